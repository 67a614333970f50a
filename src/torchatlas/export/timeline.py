"""Graph -> spans of a timeline: its ops, and around them the steps, phases and module calls they ran in.

Ops of one run are placed where they were measured. Medians of several runs have no common clock: they are placed end to
end, and `OpTimeline.placed` says so. A module has a span for each unbroken run of its ops, from the first to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.analysis.totals import operations_mask
from torchatlas.errors import AnalysisError
from torchatlas.escapes import encodable
from torchatlas.graph import Graph
from torchatlas.graph.columns import PHASES, Array

MEASURED = "where it was measured; the cost of recording is in the gaps between ops"


@dataclass(frozen=True, eq=False)
class OpTimeline:
    """The ops of a graph that have a time, in order."""

    graph: Graph
    nodes: Array  # their ids
    start_ns: Array
    time_ns: Array
    lane: Array  # positions in `lanes`
    lanes: list[str]  # threads
    placed: str  # how the spans are placed, in words
    untimed: Array  # ids of the ops that have no time, and so no span
    inside: Array  # which ops ran inside another op: saved-tensor hooks run such ops

    @property
    def notes(self) -> list[str]:
        """What a reader must know before trusting a time."""
        measured = self.graph.measured()
        assert measured is not None
        notes = [f"time of ops: {measured}", f"each op stands {self.placed}", *self.graph.notes]
        if self.inside.any():
            notes.append(
                f"ops that ran inside of other ops: {int(self.inside.sum()):,}, which count in the time of both"
            )
        if len(self.untimed):
            notes.append(f"{len(self.untimed):,} ops have no time and no span: the total is at least that")
        return [encodable(note) for note in notes]


@dataclass(slots=True)
class Span:
    """One bar. `node` is the id of an op; -1 for a step, a phase or a module."""

    kind: str  # step | phase | module | op
    name: str
    lane: int
    depth: int  # how many spans it is in
    start_ns: int
    end_ns: int
    node: int = -1
    module: int = -1  # -> tables.modules


def timeline(graph: Graph, *, gaps: bool = True) -> OpTimeline:
    """Place the ops of a graph on a timeline; without `gaps` each begins where the last one on its thread ended."""
    is_op, time = operations_mask(graph), graph.columns["node_time_ns"]
    nodes = np.flatnonzero(is_op & (time >= 0))
    if not len(nodes):
        raise AnalysisError(_why_untimed(graph))
    start, took = graph.columns["node_start_ns"][nodes], time[nodes].astype(np.int64)
    lane, lanes = _lanes(graph, nodes)
    placed, timing, inside = MEASURED, graph.timing, None
    if not gaps:
        placed = "end to end: what passed between ops, and the cost of recording, is left out"
    elif timing is not None and timing.runs > 1:
        placed = f"end to end, for times are medians of {timing.runs:,} runs, which have no common clock"
    elif (start < 0).any():
        placed = "end to end, for when ops began is not known"
    else:
        order = np.lexsort((-took, start))  # an op that ran inside of another may have been recorded before it
        nodes, start, took, lane = nodes[order], start[order] - start.min(), took[order], lane[order]
        inside = _inside(start, took, lane)
        if inside is None:
            placed = "end to end, for ops of one thread overlap as recorded"
            order = np.argsort(nodes)
            nodes, took, lane = nodes[order], took[order], lane[order]
    if placed is not MEASURED:
        inside = None
        start = np.cumsum(took) - took
        if not gaps:
            start = start - _others_before(took, lane, len(lanes))
    inside = np.zeros(len(nodes), bool) if inside is None else inside
    return OpTimeline(graph, nodes, start, took, lane, lanes, placed, np.flatnonzero(is_op & (time < 0)), inside)


def _why_untimed(graph: Graph) -> str:
    if graph.metadata.get("fake"):
        why = "fake tensors compute nothing. Capture it without fake=True"
    elif graph.source in ("export", "fx"):
        why = f"a graph of {graph.source} was never run. Capture the model: atlas.capture(model, *args)"
    elif graph.source == "autograd":
        why = "a loss was walked, and nothing was run. Record its backward pass: atlas.record_backward(loss)"
    else:
        why = "on an accelerator only a profiler knows them: see atlas.join_profile"
    return f"This graph has no times, so there is no timeline to write: {why}. An .html page shows it without times."


def _lanes(graph: Graph, nodes: Array) -> tuple[Array, list[str]]:
    """One lane per thread, in the order of their first op. Ops without a thread ran where the recording began."""
    thread = graph.columns["node_thread"][nodes]
    threads, first, lane = np.unique(thread, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    names = [graph.tables.threads[one] if one >= 0 else "main thread" for one in threads[order].tolist()]
    return rank[lane], [encodable(name) for name in names]


def _others_before(took: Array, lane: Array, lanes: int) -> Array:
    """Per op the time of all ops before it on other threads."""
    time_before = np.zeros(len(took), np.int64)
    for one in range(lanes):
        mine = lane == one
        time_before[mine] = (np.cumsum(np.where(mine, 0, took)))[mine]
    return time_before


def _inside(start: Array, took: Array, lane: Array) -> Array | None:
    """Which ops lie inside of another one of their thread; None if some lie neither inside nor apart."""
    is_inside = np.zeros(len(start), bool)
    open_ends: dict[int, list[int]] = {}
    for at, (begin, end, one) in enumerate(zip(start.tolist(), (start + took).tolist(), lane.tolist(), strict=True)):
        ends = open_ends.setdefault(one, [])
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            return None
        is_inside[at] = bool(ends)
        ends.append(end)
    return is_inside


def spans(line: OpTimeline) -> list[Span]:
    """All spans, outer ones before what is in them: steps, phases, modules, ops."""
    columns, tables = line.graph.columns, line.graph.tables
    modules, chains = columns["call_module"].tolist(), _chains(columns)
    titles = [encodable(one.path or one.type or "program") for one in tables.modules]
    names = [profiler_name(one.name) for one in tables.operations]
    rows = zip(
        line.nodes.tolist(),
        line.lane.tolist(),
        line.start_ns.tolist(),
        (line.start_ns + line.time_ns).tolist(),
        line.inside.tolist(),
        *(columns[f"node_{name}"][line.nodes].tolist() for name in ("iteration", "phase", "call", "operation")),
        strict=True,
    )
    all_spans: list[Span] = []
    stacks: list[list[tuple[Any, Span]]] = [[] for _ in line.lanes]
    ops: list[list[Span]] = [[] for _ in line.lanes]  # the last op, and those in it
    for node, lane, start, end, inside, step, phase, call, operation in rows:
        stack, title = stacks[lane], names[operation]
        if inside:  # in an op, whatever module it belongs to
            around = ops[lane]
            while around[-1].end_ns <= start:
                around.pop()
            around.append(Span("op", title, lane, around[-1].depth + 1, start, end, node))
            all_spans.append(around[-1])
            continue
        wanted = [("step", step), ("phase", step, phase), *chains[call]]
        same = 0
        while same < min(len(stack), len(wanted)) and stack[same][0] == wanted[same]:
            same += 1
        del stack[same:]
        for _, outer in stack:
            outer.end_ns = end
        for key in wanted[same:]:
            if isinstance(key, tuple):
                name = f"ProfilerStep#{step}" if key[0] == "step" else str(PHASES[phase])
                span = Span(key[0], name, lane, len(stack), start, end)
            else:
                span = Span("module", titles[modules[key]], lane, len(stack), start, end, module=modules[key])
            stack.append((key, span))
            all_spans.append(span)
        ops[lane] = [Span("op", title, lane, len(stack), start, end, node)]
        all_spans += ops[lane]
    return all_spans


def _chains(columns: dict[str, Array]) -> list[tuple[int, ...]]:
    """Per module call the calls it is in, outermost first, itself last; at the end, for no call, none."""
    chains: list[tuple[int, ...]] = []
    for call, parent in enumerate(columns["call_parent"].tolist()):
        chains.append((*(chains[parent] if 0 <= parent < call else ()), call))
    return [*chains, ()]


def profiler_name(operation: str) -> str:
    """What torch.profiler calls an operation.

    >>> profiler_name("aten.add_.Tensor"), profiler_name("c10d.allreduce_.default"), profiler_name("AddmmBackward0")
    ('aten::add_', 'c10d::allreduce_', 'AddmmBackward0')
    """
    parts = operation.split(".")
    dispatched = len(parts) == 3 and parts[0] not in ("torch", "_operator", "nn")
    return encodable(f"{parts[0]}::{parts[1]}" if dispatched else operation)
