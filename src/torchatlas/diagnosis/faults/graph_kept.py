"""graph-kept: something still holds graphs of earlier iterations, or of an evaluation."""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.graph_walk import leaf_of, reached, sequence_nr
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis, is_power_of_two
from torchatlas.diagnosis.faults.saved_memory import saved_storages
from torchatlas.diagnosis.findings import Finding, Severity, Where, at, some
from torchatlas.diagnosis.loss_graph import short
from torchatlas.diagnosis.numeric_checks import tensors_in
from torchatlas.diagnosis.variable_names import names_of
from torchatlas.garbage_collection import instances_of
from torchatlas.graph import GraphNode, SourceLine
from torchatlas.torch_private import next_sequence_nr
from torchatlas.units import format_bytes

_OLD = 2  # iterations
_FEWEST = 3  # graphs that one line made, each in another iteration, and that are still there
_FEWEST_UNUSED = 6  # that are there at once, and no backward pass goes through: of an evaluation with gradients enabled
_MOST_LOOKED_AT = 200  # tensors whose graphs are walked, one by one
_MOST_OF_A_LINE = 1_000  # tensors whose graphs are counted
_MOST_LINES = 5  # that are named
_MOST_ASKED_FOR = 20  # tensors of a line: who holds them takes long to find out
_KEY = "torchatlas sees how long this node lives"
_FIRST_LOOK = 8  # iterations before what lies inside of graphs is looked at for the first time, then twice as many


_STILL, _AT_ONCE = "graphs of earlier iterations are still alive", "graphs of an evaluation were alive at once"
_OF_EARLIER = (
    "a tensor with a graph was stored, or added to another, and every iteration adds to it",
    "store numbers: loss.item() or loss.detach(); evaluate under torch.no_grad(); detach what is carried from one "
    "iteration to the next",
)
_OF_NO_PASS = (
    "results were kept, or added up, with their graphs: gradients were enabled, and no backward pass needed them",
    "evaluate under torch.no_grad(); or store numbers: .item() or .detach()",
)


@dataclass(eq=False)
class CallsOfLine:
    """The calls of models that one line makes.

    Only the end of the program tells that backward never came, and that they were an evaluation. By then the results
    and their holders are gone: so the finding is made while they are there.
    """

    line: Where
    used: bool = False
    alive: list[weakref.ref[NodeLives]] = field(default_factory=list)
    most: int = _FEWEST_UNUSED - 1  # graphs that were there at once and that a finding tells of
    finding: Finding | None = None


class NodeLives:
    """Lives as long as its node: as a hook that learns whether a backward pass came by, or in the node's metadata."""

    def __init__(self, calls: CallsOfLine | None) -> None:
        self.calls = calls

    def __call__(self, *gradients: Any) -> None:
        if self.calls is not None:
            self.calls.used, self.calls.alive, self.calls.finding = True, [], None


@dataclass(frozen=True)
class MarkedRoot:
    """The root of a graph that was made in some iteration."""

    alive: weakref.ref[NodeLives]
    handle: Any  # of the hook, if it is one
    line: Where
    step: int
    root: tuple[str, int]  # its name and autograd's number


@diagnosis
class GraphKept(Diagnosis):
    keys = ("graph-kept",)
    needs_the_end = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._graphs: list[MarkedRoot] = []
        self._calls: dict[Where, CallsOfLine] = {}
        # A first forward pass may call one cell hundreds of times. Before any backward pass, nobody can tell that from
        # an evaluation, and to look who holds the results takes a second.
        self._trains = False
        self._reported: set[Where | SourceLine | None] = set()
        self._held: dict[Where, tuple[Finding, int, int]] = {}  # by line: what was reported, of how many, and the most
        self._stepped: list[weakref.ref[Any]] = []  # the optimizers that stepped in this iteration
        self._last_step = 0, 0  # autograd's number and the count of steps, at the end of the latest
        self._numbers: list[int] = []  # autograd's number at the end of each iteration but this
        self._steps: list[int] = []
        self._last_storage = 0  # the newest that was there at the end of the latest step
        self._newest: list[int] = []  # the same, at the end of each iteration but this

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        if not self._trains:
            self._trains = True
            for calls in self._calls.values():
                if not calls.used and len(calls.alive) > calls.most:
                    self._look_at(calls)
        for loss in backward.losses:
            if loss.grad_fn is not None and backward.line is not None:
                self._mark(loss.grad_fn, backward.line, None)

    def module_returned(self, module: nn.Module, result: Any) -> None:
        made = [tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None]
        line = self.history.caller
        if not made or line is None:
            return
        calls = self._calls.setdefault(line, CallsOfLine(line))
        for node in made:
            self._mark(node, line, calls)
        if not calls.used:
            calls.alive.append(self._graphs[-1].alive)
            if self._trains and len(calls.alive) > calls.most:
                self._look_at(calls)

    def _mark(self, node: Any, line: Where, calls: CallsOfLine | None) -> None:
        lives, handle = NodeLives(calls), None
        if calls is None or calls.used:  # nobody has to know of a backward pass: a hook would be called in each
            node.metadata.setdefault(_KEY, []).append(lives)
        else:
            handle = node.register_prehook(lives)
        self._graphs.append(MarkedRoot(weakref.ref(lives), handle, line, self.history.steps, _root(node)))

    def _look_at(self, calls: CallsOfLine) -> None:
        """Find who holds the results while they are there; then again when there are twice as many: it takes long."""
        calls.alive = [alive for alive in calls.alive if alive() is not None]
        if len(calls.alive) > calls.most and calls.line not in self._reported:
            graphs = [graph for graph in self._graphs if graph.line == calls.line and graph.alive() is not None]
            if held := _holders({graph.root for graph in graphs}):
                _, calls.finding = self._finding(calls.line, len(calls.alive), held, unused=True)
            calls.most = 2 * len(calls.alive)

    def after_step(self, optimizer: Any, parameters: Any) -> None:
        begins = self._begins_another(optimizer)
        if begins:
            self._numbers.append(self._last_step[0])
            self._newest.append(self._last_storage)
            self._steps.append(self._last_step[1])
            self._stepped = []
        self._stepped.append(weakref.ref(optimizer))
        self._last_step = next_sequence_nr(), self.history.steps
        self._last_storage = max(self.history.live_storages() or (), default=self._last_storage)
        self._look()
        count = len(self._numbers) + 1
        if begins and count >= _FIRST_LOOK and is_power_of_two(count):  # it takes long
            self._look_inside()

    def _begins_another(self, optimizer: Any) -> bool:
        """True if a step begins another iteration: in one iteration each optimizer steps at most once.

        An ensemble, or a GAN, has several optimizers. A program may also make an optimizer for every iteration, and
        let go of it.
        """
        stepped = [known() for known in self._stepped]
        again = any(earlier is optimizer for earlier in stepped)
        return again or (bool(stepped) and all(earlier is None for earlier in stepped))

    def _is_old(self, iteration: int) -> bool:
        return iteration <= len(self._numbers) - _OLD

    def at_end(self, complete: bool) -> None:
        if complete:
            self._look()
            self._report_unused()
        self._look_inside()
        self._count_again()
        for graph in self._graphs:
            if graph.handle is not None:
                graph.handle.remove()

    def _look(self) -> None:
        self._graphs = [graph for graph in self._graphs if graph.alive() is not None]
        lines: dict[Where, list[tuple[int, MarkedRoot]]] = {}
        for graph in self._graphs:
            iteration = bisect_right(self._steps, graph.step)
            if self._is_old(iteration):
                lines.setdefault(graph.line, []).append((iteration, graph))
        for line, made in lines.items():
            if line in self._held:
                finding, reported, most = self._held[line]
                self._held[line] = finding, reported, max(most, len(made))
            if len({iteration for iteration, _ in made}) >= _FEWEST and line not in self._reported:
                self._reported.add(line)
                self._report(line, [graph for _, graph in made])

    def _report_unused(self) -> None:
        """Only in programs that train: others may well not know of gradients."""
        for calls in self._calls.values():
            finding = calls.finding
            if finding is not None and self.history.steps and calls.line not in self._reported:
                if not any(line.source in self._reported for line in finding.where[:-1]):
                    self.visit.report(finding)
                self._reported |= {calls.line, *(line.source for line in finding.where)}

    def _may_hold_more(self) -> bool:
        """False if too few iterations have left any memory behind. To look at all objects of Python takes long."""
        live = self.history.live_storages()
        if live is None or len(self._newest) != len(self._numbers):
            return True
        iterations = {bisect_left(self._newest, storage) for storage in live}
        return sum(map(self._is_old, iterations)) >= _FEWEST

    def _look_inside(self) -> None:
        """Look for tensors of earlier iterations that are neither losses nor results of models, but made in between."""
        if not self._may_hold_more():
            return
        old: dict[int, list[torch.Tensor]] = {}  # by autograd's number
        iterations: dict[int, int] = {}
        for tensor in _with_graph():
            number = sequence_nr(tensor.grad_fn)
            iterations[number] = bisect_right(self._numbers, number)
            if self._is_old(iterations[number]):
                old.setdefault(number, []).append(tensor)
        if len({iterations[number] for number in old}) < _FEWEST:
            return
        lines: dict[SourceLine, list[tuple[int, GraphNode]]] = {}
        for number, op in self.history.makers_of(old).items():  # all at once: each time, the whole recording is read
            if op.source is not None and op.source not in self._reported:
                lines.setdefault(op.source, []).append((number, op))
        counts = {source: len({iterations[number] for number, _ in made}) for source, made in lines.items()}
        groups = sorted((made for source, made in lines.items() if counts[source] >= _FEWEST), key=len, reverse=True)
        if groups:  # often from many lines of one forward pass: that is reported once
            count = max(counts.values())
            tensors = [tensor for made in groups for number, _ in made[:_MOST_OF_A_LINE] for tensor in old[number]]
            nodes = reached(list(dict.fromkeys(tensor.grad_fn for tensor in tensors)))
            self._reported |= {made[0][1].source for made in groups}
            some_of_each = [old[number][0] for made in groups[:_MOST_LINES] for number, _ in made[:_MOST_ASKED_FOR]]
            made_by = [made[0][1] for made in groups[:_MOST_LINES]]
            self.visit.report(_finding(f"{count} {_STILL}", some_of_each, nodes, made_by, (), _OF_EARLIER))

    def _report(self, line: Where, old: list[MarkedRoot]) -> None:
        held = _holders({graph.root for graph in old})
        if not held:  # C++ alone holds them: a graph that still grows
            return
        makers, finding = self._finding(line, len(old), held)
        first = makers.get(sequence_nr(held[0][0].grad_fn))
        if first is not None and first.source in self._reported:  # another root of the same graphs
            return
        self._reported |= {op.source for op in makers.values()}
        self._held[line] = finding, len(old), len(old)
        self.visit.report(finding)

    def _count_again(self) -> None:
        """Put the number of graphs that were held in the end into findings that were reported earlier."""
        for finding, reported, most in self._held.values():
            counted = replace(finding, what=finding.what.replace(f"at least {reported} ", f"at least {most} ", 1))
            self.visit.found[:] = [counted if each is finding else each for each in self.visit.found]

    def _finding(
        self, line: Where, count: int, held: list[tuple[torch.Tensor, list[Any]]], unused: bool = False
    ) -> tuple[dict[int, GraphNode], Finding]:
        makers = self.history.makers_of(sequence_nr(tensor.grad_fn) for tensor, _ in held)
        first = makers.get(sequence_nr(held[0][0].grad_fn))
        nodes = dict.fromkeys(node for _, nodes in held for node in nodes)
        return makers, _finding(
            f"{count} {_AT_ONCE if unused else _STILL}",
            [tensor for tensor, _ in held],
            list(nodes),
            [] if first is None else [first],
            (replace(line, what="graphs of this line are kept"),),
            _OF_NO_PASS if unused else _OF_EARLIER,
        )


def _finding(
    counted: str,
    tensors: list[torch.Tensor],
    nodes: list[Any],
    made_by: list[GraphNode],
    line: tuple[Where, ...],
    reason: tuple[str, str],
) -> Finding:
    names = list(dict.fromkeys(names_of(tensors)))
    sizes = {storage: size for _, storage, size in saved_storages(nodes)}
    return Finding(
        "graph-kept",
        f"at least {counted}"
        + (f", held by {some(names)}" if names else "")
        + f": {format_bytes(sum(sizes.values()))} saved for backward, {len(nodes):,} nodes",
        (*(at("the tensor that holds them was made by", op) for op in made_by), *line),
        *reason,
        severity=Severity.WARNING,
    )


def _holders(roots: set[tuple[str, int]]) -> list[tuple[torch.Tensor, list[Any]]]:
    """The Python tensors whose graphs lead to some roots, and the graphs; the tensor of most roots first."""
    oldest = min(number for _, number in roots)
    tensors = [(_root(tensor.grad_fn), tensor) for tensor in _with_graph()]
    later = [(root in roots, root[1], tensor) for root, tensor in tensors if root[1] >= oldest]
    later.sort(key=lambda each: each[:2], reverse=True)  # their own results first, then what can lead to most of them
    holders = []
    for _, _, tensor in later[:_MOST_LOOKED_AT]:
        nodes = reached([tensor.grad_fn])
        count = sum(_root(node) in roots for node in nodes if leaf_of(node) is None)
        if count:
            holders.append((count, tensor, nodes))
    holders.sort(key=lambda each: (-each[0], -len(each[2])))
    return [(tensor, nodes) for _, tensor, nodes in holders]


def _root(node: Any) -> tuple[str, int]:
    """The name and number of a node, which identify it: its Python object may be another one by now."""
    return short(node), sequence_nr(node)


def _with_graph() -> list[torch.Tensor]:
    """Tensors of Python that have a graph."""
    return list(filter(_has_graph, instances_of(torch.Tensor)))


def _has_graph(item: Any) -> bool:
    """True for a plain tensor with a graph. Subclasses may run code when they are asked, and some views refuse."""
    if type(item) is not torch.Tensor:
        return False
    try:
        return item.grad_fn is not None
    except RuntimeError:  # "Output 0 of Unbind is a view and its base has been modified inplace"
        return False
