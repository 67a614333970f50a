"""Graph -> `.trace.json` (or `.trace.json.gz`): a trace for Perfetto, chrome://tracing and HolisticTraceAnalysis.

The Trace Event Format with the names that torch.profiler gives things, so that tools for its traces read ours: ops are
`cpu_op`, modules `python_function`, steps `ProfilerStep#0`. Each event is a line.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from torchatlas.escapes import encodable
from torchatlas.export.node_fields import work_of
from torchatlas.export.ranks import missing_ranks, ranks_of
from torchatlas.export.timeline import OpTimeline, Span, spans, timeline
from torchatlas.files import replacing
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph
from torchatlas.graph.columns import PHASES
from torchatlas.graph.formats import RANK_WRITERS, WRITERS

_CATEGORIES = {"step": "user_annotation", "phase": "user_annotation", "module": "python_function", "op": "cpu_op"}
_AT_ONCE = 10_000  # events that are encoded together
Event = dict[str, Any]


@WRITERS.add(".trace.json", ".trace.json.gz")
def save_trace(graph: Graph, path: Path, *, details: bool = True) -> None:
    """One process, named after the graph's rank. Without `details` ops have no shapes, sources and FLOPs."""
    save_rank_traces([graph], path, details=details)


@RANK_WRITERS.add(".trace.json", ".trace.json.gz")
def save_rank_traces(graphs: Sequence[Graph], path: Path, *, details: bool = True) -> None:
    """A process for each graph, by its rank."""
    flows = itertools.count()
    processes = [
        _Process(timeline(graph), rank, flows, details) for rank, graph in zip(ranks_of(graphs), graphs, strict=True)
    ]
    with replacing(path) as file, collection_paused():
        if path.name.lower().endswith(".gz"):
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                _write(packed, processes)  # type: ignore[arg-type]
        else:
            _write(file, processes)


def _write(file: BinaryIO, processes: Sequence[_Process]) -> None:
    file.write(_head(processes).encode())
    encoder, before = msgspec.json.Encoder(), b""
    events = itertools.chain.from_iterable(process.events() for process in processes)
    while some := list(itertools.islice(events, _AT_ONCE)):
        # JSON text has no line breaks: these stand between events, and nowhere else.
        file.write(before + encoder.encode_lines(some).rstrip(b"\n").replace(b"}\n{", b"},\n{"))
        before = b",\n"
    file.write(b"\n]}\n")


def _head(processes: Sequence[_Process]) -> str:
    """All before the events. HTA looks for `"rank": 0` with a space, from the first line on."""
    graphs = [process.line.graph for process in processes]
    world = max(int(graph.metadata.get("world_size", len(graphs))) for graph in graphs)
    if len(processes) == 1:
        notes = processes[0].notes
    else:
        notes = [f"rank {process.rank}: {note}" for process in processes for note in process.notes]
        notes.append("each rank begins at 0: the clocks of processes are not compared")
        if missing := missing_ranks(graphs):
            notes.append(f"not in this file: rank {', '.join(map(str, missing))} of {world}")
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": processes[0].rank, "world_size": world},
        "displayTimeUnit": "ms",
        "traceName": "torchatlas",
        "torch": encodable(str(graphs[0].metadata.get("torch", ""))),
        "notes": notes,
    }
    return (
        "{\n"
        + "".join(f"{json.dumps(key)}: {json.dumps(item)},\n" for key, item in head.items())
        + '"traceEvents": [\n'
    )


class _Process:
    """The graph of one rank. `flows` counts the arrows of all of them."""

    def __init__(self, line: OpTimeline, rank: int, flows: Iterator[int], details: bool) -> None:
        self.line, self.rank, self.flows = line, rank, flows
        self.arguments = _Arguments(line, details)
        self.notes = line.notes + [self.arguments.problem] * bool(self.arguments.problem)

    def events(self) -> Iterator[Event]:
        yield from self._names()
        for span in spans(self.line):
            yield {
                "ph": "X",
                "cat": _CATEGORIES[span.kind],
                "name": self.arguments.title(span),
                "pid": self.rank,
                "tid": span.lane,
                "ts": span.start_ns / 1000,
                "dur": (span.end_ns - span.start_ns) / 1000,
                "args": self.arguments.of(span),
            }
        yield from self._memory()
        yield from self._flows()

    def _names(self) -> Iterator[Event]:
        base = {"ph": "M", "pid": self.rank, "ts": 0}
        yield {**base, "tid": 0, "name": "process_name", "args": {"name": f"rank {self.rank}"}}
        yield {**base, "tid": 0, "name": "process_sort_index", "args": {"sort_index": self.rank}}
        for lane, name in enumerate(self.line.lanes):
            yield {**base, "tid": lane, "name": "thread_name", "args": {"name": name}}

    def _memory(self) -> Iterator[Event]:
        """Live bytes after each op, where they change."""
        end = self.line.start_ns + self.line.time_ns
        order = np.argsort(end, kind="stable")
        end, live = end[order], self.line.graph.columns["node_memory_bytes"][self.line.nodes][order]
        known = np.flatnonzero(live >= 0)
        changes = known[np.append(True, np.diff(live[known]) != 0)] if len(known) else known
        for ns, amount in zip(end[changes].tolist(), live[changes].tolist(), strict=True):
            yield {"ph": "C", "name": "memory", "pid": self.rank, "ts": ns / 1000, "args": {"live bytes": amount}}

    def _flows(self) -> Iterator[Event]:
        """An arrow from each op of forward to the first op of its backward."""
        line, forward = self.line, self.line.graph.columns["node_forward"]
        position = np.full(len(line.graph), -1)
        position[line.nodes] = np.arange(len(line.nodes))
        linked = line.nodes[forward[line.nodes] >= 0]
        sources, first = np.unique(forward[linked], return_index=True)
        for source, target in zip(position[sources].tolist(), position[linked[first]].tolist(), strict=True):
            if source < 0:  # an op without a time has no span to begin at
                continue
            base = {"cat": "fwdbwd", "name": "fwdbwd", "id": next(self.flows), "pid": self.rank}
            for phase, end in (("s", source), ("f", target)):
                at = {"tid": int(line.lane[end]), "ts": int(line.start_ns[end]) / 1000}
                yield {"ph": phase, **base, **at, **({"bp": "e"} if phase == "f" else {})}


class _Arguments:
    """What is shown of a span when it is clicked."""

    def __init__(self, line: OpTimeline, details: bool) -> None:
        graph = line.graph
        columns, tables = graph.columns, graph.tables
        self.details, self.modules, self.problem = details, tables.modules, ""
        self.names = graph.index.names()
        self.phases = [str(PHASES[phase]) for phase in columns["node_phase"].tolist()]
        self.sequence = columns["node_sequence_nr"].tolist()
        if not details:
            return
        self.shapes = [list(layout.shape) for layout in tables.layouts]
        self.dtypes = [layout.dtype for layout in tables.layouts]
        layout = np.append(columns["value_layout"], -1)
        self.layouts = {side: layout[columns[f"{side}_value"]].tolist() for side in ("input", "output")}
        self.bounds = {side: list(itertools.pairwise(columns[f"{side}_ptr"].tolist())) for side in ("input", "output")}
        self.sources = [encodable(f"{one.file}:{one.line}") for one in tables.sources]
        self.source = columns["node_source"].tolist()
        work, self.problem = work_of(graph)
        unknown = [-1] * len(graph)
        self.flops = unknown if work is None else work.flops.tolist()
        self.other = unknown if work is None else work.elementwise_flops.tolist()

    def title(self, span: Span) -> str:
        """The name of a span as torch.profiler writes it."""
        if span.module < 0:
            return span.name
        is_optimizer = self.modules[span.module].kind == "optimizer"
        return f"Optimizer.step#{span.name}.step" if is_optimizer else f"nn.Module: {span.name}"

    def of(self, span: Span) -> Event:
        if span.kind != "op":
            return {"class": encodable(self.modules[span.module].type)} if span.module >= 0 else {}
        node = span.node
        arguments: Event = {"External id": node, "node": encodable(self.names[node]), "phase": self.phases[node]}
        if self.sequence[node] >= 0:
            arguments["Sequence number"] = self.sequence[node]
        if self.details:
            self._add_details(arguments, node)
        return arguments

    def _add_details(self, arguments: Event, node: int) -> None:
        for side, title in (("input", "Input"), ("output", "Output")):
            low, high = self.bounds[side][node]
            layouts = [layout for layout in self.layouts[side][low:high] if layout >= 0]
            arguments[f"{title} Dims"] = [self.shapes[layout] for layout in layouts]
            arguments[f"{title} type"] = [self.dtypes[layout] for layout in layouts]
        if self.source[node] >= 0:
            arguments["source"] = self.sources[self.source[node]]
        if self.flops[node] >= 0:
            arguments["FLOPs"] = self.flops[node]
            arguments["elementwise FLOPs"] = self.other[node]
