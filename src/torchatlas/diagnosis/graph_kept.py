"""Graphs of earlier iterations that something still holds."""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.saved import saved_by, storage_bytes, storage_key
from torchatlas.autograd.tasks import reached
from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case, short
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, at, some
from torchatlas.diagnosis.holders import names_of
from torchatlas.diagnosis.not_finite import tensors_in
from torchatlas.graph import GraphNode, SourceLine
from torchatlas.torch_private import next_sequence_nr
from torchatlas.units import format_bytes

_OLD = 2  # iterations
_FEWEST = 3  # graphs that one line made, each in another iteration, and that are still there
_FEWEST_UNUSED = 6  # at the end, and no backward pass went through them: of an evaluation with gradients enabled
_MOST_LOOKED_AT = 200  # tensors whose graphs are walked, one by one
_MOST_OF_A_LINE = 1_000  # tensors whose graphs are counted
_MOST_LINES = 5  # that are named
_MOST_ASKED_FOR = 20  # tensors of a line: who holds them takes long to find out
_FIRST_LOOK = 8  # iterations before what lies inside of graphs is looked at for the first time, then twice as many


class Token:
    """Hangs on a node, lives as long as that does, and knows whether a backward pass came by."""

    def __init__(self, used: bool) -> None:
        self.used = used

    def __call__(self, *gradients: Any) -> None:
        self.used = True


@dataclass(frozen=True)
class Graph:
    """The root of a graph that was made in some iteration."""

    token: weakref.ref[Token]
    handle: Any
    line: Where
    step: int
    root: tuple[str, int]  # its name and autograd's number


@diagnosis
class GraphKept(Diagnosis):
    keys = ("graph-kept",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._graphs: list[Graph] = []
        self._told: set[Where | SourceLine | None] = set()
        self._stepped: dict[int, weakref.ref[Any]] = {}  # the optimizers that stepped in this iteration, by id
        self._last_step = 0, 0  # autograd's number and the count of steps, at the end of the latest
        self._numbers: list[int] = []  # the same at the end of each iteration but this
        self._steps: list[int] = []

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        for loss in found.losses:
            if loss.grad_fn is not None and case.line is not None:
                self._mark(loss.grad_fn, case.line, used=True)

    def module_returned(self, module: nn.Module, result: Any) -> None:
        line = self.visit.line("called")
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                self._mark(tensor.grad_fn, line)

    def _mark(self, node: Any, line: Where, used: bool = False) -> None:
        token = Token(used)
        handle = node.register_prehook(token)
        self._graphs.append(Graph(weakref.ref(token), handle, line, self.visit.steps, _root(node)))

    def after_step(self, optimizer: Any, parameters: Any) -> None:
        begins = self._begins_another(optimizer)
        if begins:
            self._numbers.append(self._last_step[0])
            self._steps.append(self._last_step[1])
            self._stepped = {}
        self._stepped[id(optimizer)] = weakref.ref(optimizer)
        self._last_step = next_sequence_nr(), self.visit.steps
        self._look()
        count = len(self._numbers) + 1
        if begins and count >= _FIRST_LOOK and count & (count - 1) == 0:  # it takes long
            self._look_inside()

    def _begins_another(self, optimizer: Any) -> bool:
        """Whether a step is of another iteration than the one before it: of each optimizer, one has one at most.

        An ensemble, or a GAN, has several optimizers. A program may also make an optimizer for every iteration, and
        let go of it.
        """
        known = self._stepped.get(id(optimizer))
        if known is not None and known() is optimizer:
            return True
        return bool(self._stepped) and all(other() is None for other in self._stepped.values())

    def _is_old(self, iteration: int) -> bool:
        return iteration <= len(self._numbers) - _OLD

    def at_end(self, complete: bool) -> None:
        if complete:
            self._look(at_end=True)
        self._look_inside()
        for graph in self._graphs:
            graph.handle.remove()

    def _look(self, at_end: bool = False) -> None:
        self._graphs = [graph for graph in self._graphs if graph.token() is not None]
        lines: dict[Where, list[tuple[int, Graph]]] = {}
        unused: dict[Where, list[Graph]] = {}
        for graph in self._graphs:
            iteration = bisect_right(self._steps, graph.step)
            if self._is_old(iteration):
                lines.setdefault(graph.line, []).append((iteration, graph))
            if at_end and (token := graph.token()) is not None and not token.used:
                unused.setdefault(graph.line, []).append(graph)
        old = [
            (line, [graph for _, graph in made])
            for line, made in lines.items()
            if len({iteration for iteration, _ in made}) >= _FEWEST
        ]
        old += [(line, graphs) for line, graphs in unused.items() if len(graphs) >= _FEWEST_UNUSED]
        for line, graphs in old:
            if line not in self._told:
                self._told.add(line)
                self._report(line, graphs)

    def _look_inside(self) -> None:
        """For tensors of earlier iterations that are neither losses nor results of models: from inside of a graph."""
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
        for number, op in self.visit.makers_of(old).items():  # all at once: each time, the whole recording is read
            if op.source is not None and op.source not in self._told:
                lines.setdefault(op.source, []).append((number, op))
        counts = {source: len({iterations[number] for number, _ in made}) for source, made in lines.items()}
        kept = sorted((made for source, made in lines.items() if counts[source] >= _FEWEST), key=len, reverse=True)
        if kept:  # of one forward pass, often from many of its lines: that is told once
            count = max(counts.values())
            tensors = [tensor for made in kept for number, _ in made[:_MOST_OF_A_LINE] for tensor in old[number]]
            nodes = reached(list(dict.fromkeys(tensor.grad_fn for tensor in tensors)))
            self._told |= {made[0][1].source for made in kept}
            some_of_each = [old[number][0] for made in kept[:_MOST_LINES] for number, _ in made[:_MOST_ASKED_FOR]]
            self._tell(count, some_of_each, nodes, [made[0][1] for made in kept[:_MOST_LINES]])

    def _report(self, line: Where, old: list[Graph]) -> None:
        held = _holders({graph.root for graph in old})
        if not held:  # C++ alone holds them: a graph that still grows
            return
        makers = self.visit.makers_of(sequence_nr(tensor.grad_fn) for tensor, _ in held)
        first = makers.get(sequence_nr(held[0][0].grad_fn))
        if first is not None and first.source in self._told:  # another root of the same graphs
            return
        self._told |= {op.source for op in makers.values()}
        nodes = dict.fromkeys(node for _, nodes in held for node in nodes)
        made_by = [] if first is None else [first]
        self._tell(
            len(old),
            [tensor for tensor, _ in held],
            list(nodes),
            made_by,
            replace(line, what="graphs of this line are kept"),
        )

    def _tell(
        self, count: int, tensors: list[torch.Tensor], nodes: list[Any], made_by: list[GraphNode], *line: Where
    ) -> None:
        names = list(dict.fromkeys(names_of(tensors)))
        self.visit.report(
            Finding(
                "graph-kept",
                f"at least {count} graphs of earlier iterations are still alive"
                + (f", held by {some(names)}" if names else "")
                + f": {format_bytes(_saved_bytes(nodes))} saved for backward, {len(nodes):,} nodes",
                (*(at("the tensor that holds them was made by", op) for op in made_by), *line),
                "a tensor with a graph was stored, or added to another, and every iteration adds to it",
                "store numbers: loss.item() or loss.detach(); evaluate under torch.no_grad(); detach what is carried "
                "from one iteration to the next",
            )
        )


def _holders(roots: set[tuple[str, int]]) -> list[tuple[torch.Tensor, list[Any]]]:
    """The tensors of Python whose graph leads to some nodes, and the graph; the one to most of them first."""
    oldest = min(number for _, number in roots)
    tensors = [(_root(tensor.grad_fn), tensor) for tensor in _with_graph()]
    later = [(root in roots, root[1], tensor) for root, tensor in tensors if root[1] >= oldest]
    later.sort(key=lambda each: each[:2], reverse=True)  # their own results first, then what can lead to most of them
    found = []
    for _, _, tensor in later[:_MOST_LOOKED_AT]:
        nodes = reached([tensor.grad_fn])
        count = sum(_root(node) in roots for node in nodes if leaf_of(node) is None)
        if count:
            found.append((count, tensor, nodes))
    found.sort(key=lambda each: (-each[0], -len(each[2])))
    return [(tensor, nodes) for _, tensor, nodes in found]


def _root(node: Any) -> tuple[str, int]:
    """A node by its name and autograd's number: its object in Python may be another one by now."""
    return short(node), sequence_nr(node)


def _with_graph() -> list[torch.Tensor]:
    """Tensors of Python that have a graph."""
    return list(filter(_has_graph, gc.get_objects()))


def _has_graph(item: Any) -> bool:
    """Of all objects there are: subclasses may do anything when they are asked, and some views refuse."""
    if type(item) is not torch.Tensor:
        return False
    try:
        return item.grad_fn is not None
    except RuntimeError:  # "Output 0 of Unbind is a view and its base has been modified inplace"
        return False


def _saved_bytes(nodes: Iterable[Any]) -> int:
    """Of what they saved and still have, without parameters."""
    leaves = {storage_key(leaf) for node in nodes if (leaf := leaf_of(node)) is not None}
    held = {
        storage_key(saved.data): max(storage_bytes(saved.data), 0)
        for node in nodes
        for saved in saved_by(node)
        if saved.data is not None
    }
    return sum(size for storage, size in held.items() if storage not in leaves)
