"""A backward pass of the real engine, every node observed -> a Graph in the order in which they ran, and a report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.autograd.autograd_graph import graph_of_walk, link
from torchatlas.autograd.check_arguments import (
    Params,
    check_backward,
    check_model,
    counted,
    forward_graph,
    names_by_id,
)
from torchatlas.autograd.engine_observer import EngineRun, Gradients, watched
from torchatlas.autograd.gradient_statistics import Figures, GradientFigures, has_no_numbers
from torchatlas.autograd.graph_walk import Walk
from torchatlas.capturing.recording import Recording
from torchatlas.errors import InvalidInputError, StateError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.columns import Array
from torchatlas.graph.names import short_line
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.graph.timing import Measured
from torchatlas.interrupts import bracketed
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import FunctionNode
from torchatlas.units import format_bytes, format_ns

_MOST_ROWS = 15


@dataclass(frozen=True, repr=False)
class Statistics(ShownPart):
    """Numbers of the gradient on one edge."""

    source: str  # the node that made it
    target: str  # the node that takes it
    norm: float
    smallest: float
    largest: float
    not_finite: int

    def _headline(self) -> str:
        bad = f", {counted(self.not_finite, 'number')} not finite" if self.not_finite else ""
        return clean(f"{self.source} -> {self.target}: norm {self.norm:.4g}{bad}")


@dataclass(frozen=True, repr=False)
class Sum(ShownPart):
    """A place where the engine adds gradients that meet."""

    node: str
    input_nr: int
    gradients: int
    bytes: int

    def _headline(self) -> str:
        return clean(f"{self.node}, input {self.input_nr}: {self.gradients:,} gradients of {format_bytes(self.bytes)}")


@dataclass(eq=False, repr=False)
class BackwardRun(Shown):
    """One run of the engine: `graph` holds its nodes in the order in which they ran, with the time each took.

    A node's time lasts until the next one begins; `memory_bytes` are the gradients that wait after it, by their shapes.
    """

    task: EngineRun  # the engine's run as it was observed
    began_ns: int  # when the first node began
    ended_ns: int = 0  # when the last one ended
    error: BaseException | None = None
    _names: Mapping[int, str] = field(default_factory=dict)
    _forward: Graph | None = None
    _figures: GradientFigures | None = None

    @property
    def time_ns(self) -> int:
        """From the first node to the end."""
        return self.ended_ns - self.began_ns

    @cached_property
    def _edges(self) -> Array:
        """Numbers of the edges between nodes that ran, in the order in which their gradients were made."""
        source, turn = self.task.edges.source, self._turn
        ran = np.flatnonzero((turn[source] >= 0) & (turn[self.task.edges.target] >= 0))
        return ran[np.argsort(turn[source[ran]], kind="stable")]

    @cached_property
    def _turn(self) -> Array:
        """When each node of the task ran; -1: it did not."""
        turn = np.full(len(self.task.nodes), -1, np.int64)
        turn[self.task.ran] = np.arange(len(self.task.ran))
        return turn

    @cached_property
    def _walk(self) -> Walk:
        """The nodes that ran, without edges to those that were not wanted and did not run."""
        nodes, edges = [self.task.nodes[position] for position in self.task.ran], self.task.edges
        number = {node: position for position, node in enumerate(nodes)}
        source, target = (self._turn[ends[self._edges]] for ends in (edges.source, edges.target))
        return Walk(nodes, number, source.tolist(), target.tolist(), edges.input[self._edges].tolist())

    @cached_property
    def graph(self) -> Graph:
        """The nodes in the order in which they ran, with the time each took."""
        walked = self._walk
        graph = graph_of_walk(walked, self._names, saved=False)
        starts = np.array(self.task.began_ns, np.int64)
        ends = np.append(starts[1:], self.ended_ns) if len(starts) else starts
        graph.columns["node_start_ns"][:] = starts - self.began_ns
        graph.columns["node_time_ns"][:] = ends - starts
        graph.columns["node_memory_bytes"][:] = waiting_bytes(graph)
        if self._forward is not None:
            link(graph, self._forward)
        if self.error is not None:
            graph.notes.append(
                f"backward stopped after {counted(len(graph), 'node')}: {type(self.error).__name__}: {self.error}"
            )
        if self._figures is not None and (count := self._figures.overwritten):
            graph.notes.append(
                "1 gradient was written to after it was made: it has no statistics"
                if count == 1
                else f"{count:,} gradients were written to after they were made: they have no statistics"
            )
        if self._figures is not None and (count := self._figures.without_numbers):
            are, have = ("is", "it has") if count == 1 else ("are", "they have")
            graph.notes.append(
                f"{counted(count, 'gradient')} {are} on the meta device, fake or batched, without numbers: {have} no "
                "statistics"
            )
        return graph

    @cached_property
    def sums(self) -> list[Sum]:
        """Where several gradients arrive at one input of a node."""
        graph = self.graph
        key = np.stack([graph.columns["edge_target"].astype(np.int64), graph.recorded["input_nr"]], 1)
        inputs, first, counts = np.unique(key, axis=0, return_index=True, return_counts=True)
        sizes = np.maximum(edge_bytes(graph)[first], 0)
        return [
            Sum(graph.nodes[int(inputs[row, 0])].name, int(inputs[row, 1]), int(counts[row]), int(sizes[row]))
            for row in np.flatnonzero(counts > 1)
        ]

    @cached_property
    def statistics(self) -> list[Statistics]:
        """Numbers of the gradient on every edge; empty unless they were asked for."""
        if self._figures is None:
            return []
        names, figures, edges = [node.name for node in self.graph.nodes], self._figures, self._walk
        ends = zip(edges.source, edges.target, self._edges.tolist(), strict=True)
        return [
            Statistics(names[source], names[target], *figures[edge]) for source, target, edge in ends if edge in figures
        ]

    @property
    def first_not_finite(self) -> Statistics | None:
        """The first gradient that is not finite, in the order in which they were made."""
        return next((each for each in self.statistics if each.not_finite), None)

    @property
    def peak_gradient_bytes(self) -> int:
        """The most bytes of gradients that waited at one time."""
        return int(self.graph.columns["node_memory_bytes"].max(initial=0))

    def slowest(self, count: int = _MOST_ROWS) -> list[GraphNode]:
        """The nodes that took longest.

        Args:
            count: How many.
        Returns:
            The nodes, the slowest first.
        """
        order = np.argsort(-self.graph.columns["node_time_ns"], kind="stable")[:count]
        return [self.graph.nodes[int(node)] for node in order]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "nodes": len(self.graph),
            "time_ns": self.time_ns,
            "runs": 1,
            "peak_gradient_bytes": self.peak_gradient_bytes,
            "sums": [vars(each) for each in self.sums],
            "order": [node.name for node in self.graph.nodes],
            "statistics": [vars(each) for each in self.statistics],
            "error": None if self.error is None else f"{type(self.error).__name__}: {self.error}",
        }

    def _sections(self) -> Iterator[Section]:
        graph = self.graph
        lines = [
            f"backward: {counted(len(graph), 'node')} in {Measured(self.time_ns)}, "
            f"gradients that wait: at most {format_bytes(self.peak_gradient_bytes)}, {counted(len(self.sums), 'sum')}"
        ]
        if self.error is not None:
            lines.append(graph.notes[-1])
        if self.first_not_finite is not None:
            bad = self.first_not_finite
            lines.append(
                f"first gradient that is not finite: from {bad.source} to {bad.target}, "
                f"{counted(bad.not_finite, 'number')}"
            )
        rows = [[str(n.id), n.name, n.scope.path, _line(n), format_ns(n.time_ns or 0)] for n in self.slowest()]
        yield Lines(lines)
        yield Table([">ran", "slowest nodes", "module", "line", ">time"], rows)

    def __repr__(self) -> str:
        ran = counted(len(self.task.ran), "node")
        if not self.ended_ns:
            return f"<BackwardRun, running: {ran} so far>"
        failed = f", then {type(self.error).__name__}" if self.error is not None else ""
        return f"<BackwardRun: {ran} in {Measured(self.time_ns)}{failed}>"


@dataclass(eq=False, repr=False)
class BackwardRecording(Shown):
    """All runs of the engine while it was open: `runs` in the order in which they began, nested ones included."""

    runs: list[BackwardRun] = field(default_factory=list)

    def _first(self) -> BackwardRun:
        if not self.runs:
            raise StateError("no backward pass ran while this recording was open.")
        return self.runs[0]

    @property
    def graph(self) -> Graph:
        """The graph of the first run."""
        return self._first().graph

    @property
    def order(self) -> list[str]:
        """The names of the nodes, in the order in which they ran."""
        return [node.name for node in self.graph.nodes]

    @property
    def statistics(self) -> list[Statistics]:
        """Numbers of the gradient on every edge, of all runs; empty unless they were asked for."""
        return self._first().statistics

    @property
    def sums(self) -> list[Sum]:
        """Where several gradients arrive at one input of a node, in all runs."""
        return self._first().sums

    @property
    def first_not_finite(self) -> Statistics | None:
        """The first gradient of all runs that is not finite; None if all are, or without statistics."""
        return self._first().first_not_finite

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"runs": [run.to_dict() for run in self.runs]}

    def _sections(self) -> Iterator[Section]:
        if not self.runs:
            yield Lines(["no backward pass ran while this recording was open"])
            return
        yield from self._first()._sections()
        if inside := len(self.runs) - 1:
            yield Lines([f"in .runs: {counted(inside, 'more run')} of the engine"])

    def __repr__(self) -> str:
        ran = sum(len(run.task.ran) for run in self.runs)
        return f"<BackwardRecording: {counted(len(self.runs), 'run')} of the engine, {counted(ran, 'node')}>"


def _line(node: GraphNode) -> str:
    source = node.source
    return "" if source is None else f"{short_line(source)} in {source.function.rpartition('.<locals>.')[2]}"


class _Observer:
    """Notes when each node begins and, if asked, numbers of each gradient. See engine_observer.EngineObserver."""

    def __init__(self, recording: BackwardRecording, names: Mapping[int, str], forward: Graph | None, numbers: bool):
        self.recording, self.names, self.forward = recording, names, forward
        self._numbers = numbers
        self._runs: dict[int, BackwardRun] = {}
        self._clock = time.perf_counter_ns

    def begin(self, task: EngineRun) -> None:
        figures = GradientFigures(len(task.edges.source)) if self._numbers else None
        run = BackwardRun(task, self._clock(), _names=self.names, _forward=self.forward, _figures=figures)
        self._runs[task.number] = run
        self.recording.runs.append(run)

    def passing(self, task: EngineRun) -> Callable[[int], bool] | None:
        if self._numbers and any(isinstance(node, FunctionNode) for node in task.nodes):
            return partial(self._passes, task)
        return None

    def _passes(self, task: EngineRun, node: int) -> bool:
        figures = self._runs[task.number]._figures
        if figures is not None and isinstance(task.nodes[node], FunctionNode):
            figures.flush()  # it may write to the gradients it is given
        return False

    def before(self, task: EngineRun, node: int, gradients: Gradients) -> None:
        self._passes(task, node)

    def edges(self, task: EngineRun) -> Callable[[int, torch.Tensor], None] | None:
        figures = self._runs[task.number]._figures
        return None if figures is None else figures.add

    def end(self, task: EngineRun, error: BaseException | None) -> None:
        run = self._runs.pop(task.number)
        run.ended_ns, run.error = self._clock(), error
        if run._figures is not None:
            run._figures.finish(task.same)


def edge_figures(run: BackwardRun) -> list[Figures | None]:
    """Norm, smallest, largest and count of non-finite numbers on each edge of a run's graph; None where unknown."""
    figures = run._figures
    return [None if figures is None or edge not in figures else figures[edge] for edge in run._edges.tolist()]


def edge_bytes(graph: Graph) -> Array:
    """The bytes of the gradient on each edge; -1 where its shape is not known."""
    sizes = []
    for layout in graph.tables.layouts:
        dtype = getattr(torch, layout.dtype, None)
        known = isinstance(dtype, torch.dtype) and all(isinstance(size, int) for size in layout.shape)
        numbers = int(np.prod([int(size) for size in layout.shape], dtype=np.int64)) if known else 0
        sizes.append(numbers * dtype.itemsize if known and dtype is not None else -1)
    rows = graph.columns["value_layout"][graph.columns["edge_value"]]
    return np.array([*sizes, -1], np.int64)[rows] if len(rows) else np.empty(0, np.int64)


def waiting_bytes(graph: Graph) -> Array:
    """After each node, the bytes of gradients that were made and not yet taken; those that meet are one."""
    source, target = graph.columns["edge_source"].astype(np.int64), graph.columns["edge_target"].astype(np.int64)
    if not len(source):
        return np.zeros(len(graph), np.int64)
    key = np.stack([target, graph.recorded["input_nr"]], 1)
    _, first, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    begins = np.full(len(first), len(graph), np.int64)
    np.minimum.at(begins, inverse, source)  # a buffer is there from its first gradient until its node has run
    sizes, change = np.maximum(edge_bytes(graph)[first], 0), np.zeros(len(graph) + 1, np.int64)
    np.add.at(change, begins, sizes)
    np.add.at(change, target[first], -sizes)
    return np.cumsum(change)[:-1]


@explains_arguments
@bracketed
def recording_backward(
    model: nn.Module | None = None,
    *,
    params: Params = None,
    forward: Graph | Recording | None = None,
    statistics: bool = False,
) -> Iterator[BackwardRecording]:
    """Observe every run of the autograd engine: `with atlas.recording_backward(model) as rec: loss.backward()`.

    Works for whatever runs the engine: backward, grad, double backward, checkpoints, torch.func.

    Args:
        model: Names the leaves as the model does.
        params: Names of leaves: a dictionary from name to tensor, or `model.named_parameters()`.
        forward: A recording of the forward pass: nodes then belong to the module and line of their forward op.
        statistics: Also keep norm, extremes and count of non-finite numbers of each gradient.
    Returns:
        A context that gives a BackwardRecording, whose `runs` grow with every run of the engine.
    Raises:
        InvalidInputError: `model`, `params` or `forward` is of another type.
    Example:
        >>> import torch, torchatlas as atlas
        >>> x = torch.ones(3, requires_grad=True)
        >>> with atlas.recording_backward(params={"x": x}) as rec:
        ...     (x * x).sum().backward()
        >>> len(rec.runs), rec.sums[0].node, rec.sums[0].gradients
        (1, 'AccumulateGrad', 2)
    """
    recording, names = BackwardRecording(), names_by_id(params, check_model(model))
    with watched(_Observer(recording, names, forward_graph(forward), statistics)):
        yield recording


@explains_arguments
def record_backward(
    outputs: Any,
    gradients: Any = None,
    *,
    inputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    model: nn.Module | None = None,
    params: Params = None,
    forward: Graph | Recording | None = None,
    statistics: bool = False,
) -> BackwardRecording:
    """Run backward from a tensor, or from several, and observe every node; gradients end up where backward leaves them.

    Args:
        outputs: The tensor, or tensors, to begin at.
        gradients: The gradients to begin with, one per output; None for outputs that are single numbers.
        inputs: The leaves whose `.grad` is filled; None fills all. As in `torch.autograd.backward`.
        retain_graph: Keep what nodes saved, so that backward can run again; None does so with `create_graph`.
        create_graph: Make a graph of the gradients themselves, for second derivatives.
        model: Names the leaves as the model does.
        params: Names of leaves: a dictionary from name to tensor, or `model.named_parameters()`.
        forward: A recording of the forward pass: nodes then belong to the module and line of their forward op.
        statistics: Also keep norm, extremes and count of non-finite numbers of each gradient.
    Returns:
        A BackwardRecording: nodes in the order in which they ran, with times, sums of gradients and statistics.
    Raises:
        InvalidInputError: `outputs` or `gradients` are no tensors.
        AnalysisError: There is no graph behind `outputs`.
        RuntimeError: What backward itself raises, such as that the graph was freed.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Linear(4, 2)
        >>> rec = atlas.record_backward(model(torch.ones(1, 4)).sum(), model=model, statistics=True)
        >>> rec.order[:2], rec.first_not_finite
        (['SumBackward0', 'AddmmBackward0'], None)
    """
    outputs, _ = check_backward(outputs, gradients, "record_backward")
    if statistics and any(
        isinstance(each, torch.Tensor) and has_no_numbers(each)
        for each in (outputs if isinstance(outputs, (list, tuple)) else [outputs])
    ):
        raise InvalidInputError(
            "this tensor is fake or on the meta device: it has no numbers to take statistics of. Leave statistics out, "
            "or compute it on a device that computes."
        )
    recording = BackwardRecording()
    observer = _Observer(recording, names_by_id(params, model), forward_graph(forward), statistics)
    with watched(observer, threading.get_ident()):  # what other threads run meanwhile is not of this pass
        torch.autograd.backward(outputs, gradients, retain_graph, create_graph, inputs=inputs)
    return recording
