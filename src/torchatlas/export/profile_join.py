"""Graph and a trace of torch.profiler of the same program -> the time of each op on the host and on the device.

Ops are paired by autograd's sequence numbers, and between those by name and order. A kernel belongs to the op that
launched it, which the trace says by `External id` or `correlation`. What has no partner is listed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.analysis.reports import Report
from torchatlas.analysis.totals import operations_mask
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.export.align_ops import Op, align
from torchatlas.export.kineto import ProfilerTrace, TraceOp, ops_by_id, read_profiler_trace
from torchatlas.export.timeline import profiler_name
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph, GraphNode, OperationType
from torchatlas.graph.columns import PHASES
from torchatlas.graph.formats import as_path
from torchatlas.graph.nouns import Phase
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_ns

_LEAST_JOINED = 0.5  # of the ops, and of those that make a model what it is: below, the trace is of another program
_TELLING = {
    OperationType.CONVOLUTION,
    OperationType.MATMUL,
    OperationType.ATTENTION,
    OperationType.RECURRENT,
    OperationType.NORM,
    OperationType.EMBEDDING,
}
_NOTE = "device times: "
_SHOWN = 12


@dataclass(frozen=True, slots=True, repr=False)
class ProfiledNode(Report):
    """What a profiler measured of one op, in one run of it."""

    node: GraphNode
    host_ns: int  # the call on the host, with everything in it; of an accelerator the launch
    device_ns: int | None  # the sum of its kernels; None if it launched none
    kernels: tuple[str, ...]
    by: str  # how it was found: "sequence number" or "order"


@dataclass(frozen=True, slots=True, repr=False)
class ProfileJoin(Report):
    """Which ops and kernels of a profiler's trace belong to which ops of a graph. Times are of one run, the trace's."""

    trace: str  # the file of the profiler
    step: int | None  # the ProfilerStep that was taken, the first of several; None if the trace has none
    ops: int  # of the graph
    nodes: tuple[ProfiledNode, ...]  # the ops that were found, in order
    modules: dict[str, int]  # by path the device time of a module and everything in it; only those that have some
    host_ns: int  # of all ops that were found
    device_ns: int | None  # of all kernels that were joined; None if there are none
    kernels: int  # kernels, copies and fills of the step
    unjoined_ops: tuple[str, ...]  # names of nodes that the trace does not have
    unjoined_events: dict[str, int]  # ops of the trace that the graph does not have, counted
    unjoined_kernels: dict[str, int]  # by name the device time that belongs to no op of the graph
    other_shapes: tuple[str, ...]  # names of nodes whose inputs had other shapes in the trace

    @property
    def overlay(self) -> dict[str, dict[str, float]]:
        """The times in milliseconds by name of node, for `graph.save("step.html", overlay=...)`."""
        device = {one.node.name: one.device_ns / 1e6 for one in self.nodes if one.device_ns is not None}
        host = {one.node.name: one.host_ns / 1e6 for one in self.nodes}
        return {"device time (ms, profiled)": device} if device else {"host time (ms, profiled)": host}

    def _sections(self) -> Iterator[Section]:
        step = "" if self.step is None else f", step {self.step}"
        numbered = sum(one.by == "sequence number" for one in self.nodes)
        device = (
            "no kernels of a device in it" if self.device_ns is None else f"{format_ns(self.device_ns)} on the device"
        )
        yield Lines(
            [
                f"{len(self.nodes):,} of {self.ops:,} ops joined to {self.trace}{step}: {device}, "
                f"{format_ns(self.host_ns)} on the host (one run)",
                f"{numbered:,} by sequence number, {len(self.nodes) - numbered:,} by name and order",
            ],
            notes=list(self._doubts()),
        )
        has = self.device_ns is not None
        largest = sorted(self.nodes, key=lambda one: -((one.device_ns if has else one.host_ns) or 0))[:_SHOWN]
        rows = [[one.node.name, format_ns(one.host_ns)] for one in largest]
        if not has:
            yield Table(["op", ">host"], rows)
            return
        more = [[format_ns(one.device_ns), ", ".join(one.kernels)] for one in largest]
        joined = [[*row, *rest] for row, rest in zip(rows, more, strict=True)]
        yield Table(["op", ">host", ">device", "kernels"], joined)
        modules = sorted(self.modules.items(), key=lambda item: -item[1])[:_SHOWN]
        yield Table(["module", ">device"], [[path or "(all)", format_ns(ns)] for path, ns in modules])

    def _doubts(self) -> Iterator[str]:
        if self.unjoined_kernels:
            named = ", ".join(list(self.unjoined_kernels)[:3])
            yield f"{format_ns(sum(self.unjoined_kernels.values()))} of kernels belong to no op of the graph: {named}"
        if self.unjoined_ops:
            yield f"{len(self.unjoined_ops):,} ops have no partner in the trace: {', '.join(self.unjoined_ops[:3])}"
        if self.unjoined_events:
            named = ", ".join(list(self.unjoined_events)[:3])
            count = sum(self.unjoined_events.values())
            yield f"{count:,} ops of the trace are not in the graph ({named}): is it the same program and step?"
        if self.other_shapes:
            yield f"{len(self.other_shapes):,} ops had inputs of other shapes: {', '.join(self.other_shapes[:3])}"


@explains_arguments
def join_profile(graph: Graph, trace: str | os.PathLike[str], *, step: int | None = None) -> ProfileJoin:
    """Find the ops of a graph in a trace of torch.profiler, and bring the times of their kernels into the graph.

    Afterwards `node.device_time_ns` and `scope.device_time_ns` hold what ran on the device, apart from `time_ns`, which
    is the host's. Files keep it. `graph.notes` says where the times come from and what found no partner.

    Args:
        graph: A graph of the program.
        trace: A .json or .json.gz that `prof.export_chrome_trace` wrote, of a run of the same program with the same
            shapes. `record_shapes=True` lets shapes be compared.
        step: The ProfilerStep to take; the last ones of the trace by default.
    Returns:
        The times of every op that was found, and lists of what was not.
    Raises:
        FileFormatError: The file is no such trace, or is not whole.
        FileSystemError: The file cannot be read.
        AnalysisError: Less than half of the ops are in the trace, or of its matrix products, convolutions and the
            like: it is of another program.
        InvalidInputError: The trace has no such step.
    Example:
        >>> import tempfile, torch, torchatlas as atlas
        >>> from torch.profiler import ProfilerActivity, profile
        >>> model, x = torch.nn.Linear(4, 2), torch.ones(1, 4)
        >>> graph = atlas.capture(model, x)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with profile(activities=[ProfilerActivity.CPU]) as prof:
        ...         _ = model(x)
        ...     prof.export_chrome_trace(f"{folder}/trace.json")
        ...     join = atlas.join_profile(graph, f"{folder}/trace.json")
        >>> [(one.node.name, one.by) for one in join.nodes], join.device_ns is None
        ([('t', 'sequence number'), ('addmm', 'sequence number')], True)
    """
    if not isinstance(graph, Graph):
        raise InvalidInputError(f"join_profile takes a graph and a trace, not {type(graph).__name__}: {graph!r:.80}.")
    with collection_paused():
        read = read_profiler_trace(as_path(trace))
        return _Join(graph, read, step).report()


class _Join:
    def __init__(self, graph: Graph, trace: ProfilerTrace, step: int | None) -> None:
        self.graph, self.trace = graph, trace
        self.ids = np.flatnonzero(operations_mask(graph)).tolist()
        if not self.ids:
            raise AnalysisError("This graph has no ops, so nothing of a trace can belong to it.")
        self.step, (begin, end) = _window(graph, trace, step)
        self.ours = _our_ops(graph, self.ids)
        self.inside = [op for op in trace.ops if begin <= op.start_ns < end]
        self.events = _outermost(self.inside, {op.name for op in self.ours})
        pairs, self.numbered = align(self.ours, [_as_op(event) for event in self.events])
        telling = [at for at, node in enumerate(self.ids) if graph.nodes[node].operation_type in _TELLING]
        for what, positions in (("ops", range(len(self.ids))), ("matrix products, convolutions and the like", telling)):
            joined = sum(at in pairs for at in positions)
            if joined < _LEAST_JOINED * len(positions):
                raise AnalysisError(self._other_program(f"{joined:,} of {len(positions):,} {what}"))
        self.event_of = {self.ids[one]: self.events[other] for one, other in sorted(pairs.items())}
        self.node_of = {id(event): node for node, event in self.event_of.items()}

    def _other_program(self, how_many: str) -> str:
        there = {event.name for event in self.events}
        lacking = Counter(op.name for op in self.ours if op.name not in there).most_common(3)
        example = f" It has no {', '.join(name for name, _ in lacking)}." if lacking else ""
        part = "" if self.step is None else f", step {self.step}"
        return (
            f"{self.trace.path}{part}: only {how_many} of the graph are in this trace, "
            f"so it is of another program or of a part of it.{example} Profile what was captured: the same model, the "
            "same shapes, backward and optimizer as well if the graph has them."
        )

    def report(self) -> ProfileJoin:
        device, kernels, lost, count = self._kernels()
        nodes = tuple(
            ProfiledNode(
                self.graph.nodes[node],
                event.end_ns - event.start_ns,
                device.get(node),
                tuple(kernels.get(node, ())),
                "sequence number" if position in self.numbered else "order",
            )
            for position, (node, event) in self._positions()
        )
        joined = set(self.node_of)
        others = Counter(event.name for event in self.events if id(event) not in joined)
        report = ProfileJoin(
            trace=self.trace.path.name,
            step=self.step,
            ops=len(self.ids),
            nodes=nodes,
            modules=self._modules(device),
            host_ns=sum(one.host_ns for one in nodes),
            device_ns=sum(device.values()) if device else None,
            kernels=count,
            unjoined_ops=tuple(self.graph.nodes[node].name for node in self.ids if node not in self.event_of),
            unjoined_events=dict(others.most_common()),
            unjoined_kernels=dict(lost.most_common()),
            other_shapes=tuple(self._other_shapes()),
        )
        self._keep(report, device)
        return report

    def _positions(self) -> Iterator[tuple[int, tuple[int, TraceOp]]]:
        position = {node: at for at, node in enumerate(self.ids)}
        return ((position[node], (node, event)) for node, event in self.event_of.items())

    def _kernels(self) -> tuple[dict[int, int], dict[int, list[str]], Counter[str], int]:
        """Time of kernels by node, their names by node, time of kernels without an op by name, number of kernels."""
        by_id = ops_by_id(self.trace)
        here = {id(op) for op in self.inside}
        time: dict[int, int] = {}
        names: dict[int, list[str]] = {}
        lost: Counter[str] = Counter()
        count = 0
        for kernel in self.trace.kernels:
            launcher = by_id.get(kernel.external_id)
            if launcher is None and kernel.correlation is not None:
                launcher = self.trace.launches.get(kernel.correlation)
            if launcher is not None and id(launcher) not in here:
                continue  # of another step
            count += 1
            around: TraceOp | None = launcher
            while around is not None and id(around) not in self.node_of:
                around = around.parent
            if around is None:
                lost[kernel.name] += kernel.time_ns
            else:
                node = self.node_of[id(around)]
                time[node] = time.get(node, 0) + kernel.time_ns
                names.setdefault(node, []).append(kernel.name)
        return time, names, lost, count

    def _modules(self, device: dict[int, int]) -> dict[str, int]:
        index, call, own = self.graph.index, self.graph.columns["node_call"], Counter[str]()
        for node, ns in device.items():
            own[index.paths[index.path_of_call[call[node]]]] += ns
        return {path: ns for path, ns in self.graph.scopes.totals(own, 0).items() if ns}

    def _other_shapes(self) -> Iterator[str]:
        """Names of nodes whose inputs have other shapes than in the trace, if the trace has shapes."""
        for node, event in self.event_of.items():
            if isinstance(event.dims, list):
                item = self.graph.nodes[node]
                mine = sorted(list(value.shape) for value in item.inputs if value.shape and _known(value.shape))
                if mine != sorted(_sizes(event.dims)) and all(_known(value.shape) for value in item.inputs):
                    yield item.name

    def _keep(self, report: ProfileJoin, device: dict[int, int]) -> None:
        """Put the device times into the graph, in place of those of an earlier trace."""
        self.graph.metadata.pop("device_times", None)
        self.graph.notes[:] = [note for note in self.graph.notes if not note.startswith(_NOTE)]
        if device:
            by_node = {str(node): ns for node, ns in sorted(device.items())}
            self.graph.metadata["device_times"] = {"trace": report.trace, "step": report.step, "by_node": by_node}
            step = "" if report.step is None else f", step {report.step}"
            doubts = "".join(f"; {doubt}" for doubt in report._doubts())
            self.graph.notes.append(f"{_NOTE}sums of kernels in {report.trace}{step} (one run of a profiler){doubts}")


def _window(graph: Graph, trace: ProfilerTrace, step: int | None) -> tuple[int | None, tuple[int, int]]:
    """The first step and the time span to join: as many steps as the graph has, the last ones if none is named."""
    if not trace.steps:
        if step is not None:
            raise InvalidInputError(
                f"step={step}: {trace.path} has no steps. torch.profiler.schedule and prof.step() mark them."
            )
        return None, (0, 2**62)
    wanted = len(set(graph.columns["node_iteration"].tolist()))
    numbers = [number for number, _, _ in trace.steps]
    if step is not None and step not in numbers:
        raise InvalidInputError(f"step={step}: {trace.path} has the steps {', '.join(map(str, numbers[:20]))}.")
    first = max(0, len(numbers) - wanted) if step is None else numbers.index(step)
    chosen = trace.steps[first : first + wanted]
    return chosen[0][0], (min(begin for _, begin, _ in chosen), max(end for _, _, end in chosen))


def _our_ops(graph: Graph, ids: list[int]) -> list[Op]:
    """Ops of forward by the number of the node they made, those of backward by the number of the node they run in."""
    columns, backward = graph.columns, PHASES.index(Phase.BACKWARD)
    names = [profiler_name(one.name) for one in graph.tables.operations]
    sequence, forward = columns["node_sequence_nr"].tolist(), columns["node_forward"].tolist()
    operation, phase = columns["node_operation"].tolist(), columns["node_phase"].tolist()
    ops = []
    for node in ids:
        in_backward = phase[node] == backward and forward[node] >= 0
        number = sequence[forward[node]] if in_backward else -1 if phase[node] == backward else sequence[node]
        ops.append(Op(names[operation[node]], number if number >= 0 else None, in_backward))
    return ops


def _as_op(event: TraceOp) -> Op:
    in_backward = event.backward_of is not None
    return Op(event.name, event.backward_of if in_backward else event.sequence, in_backward)


def _outermost(ops: list[TraceOp], names: set[str]) -> list[TraceOp]:
    """The ops of these names that are not nested in another such op: what an op calls inside is no op of the graph."""
    inner: set[int] = set()
    outermost = []
    for op in ops:  # outer ones come first
        if op.parent is not None and id(op.parent) in inner:
            inner.add(id(op))
        elif op.name in names:
            inner.add(id(op))
            outermost.append(op)
    return outermost


def _known(shape: tuple[Any, ...]) -> bool:
    return all(isinstance(size, int) for size in shape)


def _sizes(dims: list[Any]) -> Iterator[list[int]]:
    """The shapes in `Input Dims`: a list for each argument, of lists for a list of tensors, empty for all else."""
    for item in dims:
        if isinstance(item, list) and item and all(isinstance(size, int) for size in item):
            yield item
        elif isinstance(item, list):
            yield from (part for part in item if isinstance(part, list) and part and all(type(n) is int for n in part))
