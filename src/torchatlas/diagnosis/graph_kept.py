"""Graphs of earlier iterations that something still holds."""

from __future__ import annotations

import gc
import itertools
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
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
from torchatlas.graph import SourceLine
from torchatlas.torch_private import next_sequence_nr
from torchatlas.units import format_bytes

_OLD = 2  # steps
_FEWEST = 3  # graphs that one line made, each in another iteration, and that are still there
_FEWEST_UNUSED = 6  # at the end, and no backward pass went through them: of an evaluation with gradients enabled
_MOST_LOOKED_AT = 200  # tensors
_FIRST_LOOK = 8  # steps before what lies inside of graphs is looked at for the first time, then twice as many


class Token:
    """Hangs on a node, lives as long as that does, and knows whether a backward pass came by."""

    used = False

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
        self._numbers: list[int] = []  # autograd's, at the end of each step

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        for loss in found.losses:
            if loss.grad_fn is not None and case.line is not None:
                self._mark(loss.grad_fn, case.line)

    def module_returned(self, module: nn.Module, result: Any) -> None:
        line = self.visit.line("called")
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                self._mark(tensor.grad_fn, line)

    def _mark(self, node: Any, line: Where) -> None:
        token = Token()
        handle = node.register_prehook(token)
        self._graphs.append(Graph(weakref.ref(token), handle, line, self.visit.steps, (short(node), sequence_nr(node))))

    def after_step(self, optimizer: Any, parameters: Any) -> None:
        self._numbers.append(next_sequence_nr())
        self._look()
        if (steps := len(self._numbers)) >= _FIRST_LOOK and steps & (steps - 1) == 0:  # it takes long
            self._look_inside()

    def at_end(self, complete: bool) -> None:
        if complete:
            self._look(at_end=True)
            self._look_inside()
        for graph in self._graphs:
            graph.handle.remove()

    def _look(self, at_end: bool = False) -> None:
        self._graphs = [graph for graph in self._graphs if graph.token() is not None]
        lines: dict[Where, list[Graph]] = {}
        unused: dict[Where, list[Graph]] = {}
        for graph in self._graphs:
            if graph.step < self.visit.steps - _OLD:
                lines.setdefault(graph.line, []).append(graph)
            if at_end and (token := graph.token()) is not None and not token.used:
                unused.setdefault(graph.line, []).append(graph)
        old = [(line, graphs) for line, graphs in lines.items() if len({graph.step for graph in graphs}) >= _FEWEST]
        old += [(line, graphs) for line, graphs in unused.items() if len(graphs) >= _FEWEST_UNUSED]
        for line, graphs in old:
            if line not in self._told:
                self._told.add(line)
                self._report(line, graphs)

    def _look_inside(self) -> None:
        """For tensors of earlier steps that are neither losses nor results of models: from inside of a graph."""
        old: list[tuple[int, torch.Tensor]] = []
        for tensor in _with_graph():
            step = bisect_right(self._numbers, sequence_nr(tensor.grad_fn))
            if step < len(self._numbers) - _OLD:
                old.append((step, tensor))
        if len({step for step, _ in old}) < _FEWEST:
            return
        lines: dict[SourceLine, tuple[set[int], list[torch.Tensor]]] = {}
        for step, tensor in old:
            op = self.visit.maker_of(sequence_nr(tensor.grad_fn))
            if op is not None and op.source is not None and op.source not in self._told:
                steps, tensors = lines.setdefault(op.source, (set(), []))
                steps.add(step)
                tensors.append(tensor)
        for steps, tensors in lines.values():
            if len(steps) >= _FEWEST:
                self._tell(len(steps), [(tensor, reached([tensor.grad_fn])) for tensor in tensors])

    def _report(self, line: Where, old: list[Graph]) -> None:
        held = list(_holders({graph.root for graph in old}))
        if held:  # else C++ alone holds them: a graph that still grows
            self._tell(len(old), held, replace(line, what="graphs of this line are kept"))

    def _tell(self, count: int, held: list[tuple[torch.Tensor, list[Any]]], *line: Where) -> None:
        op = self.visit.maker_of(sequence_nr(held[0][0].grad_fn))
        if op is not None and op.source in self._told:  # another root of the same graphs
            return
        self._told.add(None if op is None else op.source)
        nodes = dict.fromkeys(node for _, nodes in held for node in nodes)
        names = list(dict.fromkeys(names_of([tensor for tensor, _ in held])))
        self.visit.report(
            Finding(
                "graph-kept",
                f"at least {count} graphs of earlier iterations are still alive"
                + (f", held by {some(names)}" if names else "")
                + f": {format_bytes(_saved_bytes(nodes))} saved for backward, {len(nodes):,} nodes",
                (*([] if op is None else [at("the tensor that holds them was made by", op)]), *line),
                "a tensor with a graph was stored, or added to another, and every iteration adds to it",
                "store numbers: loss.item() or loss.detach(); evaluate under torch.no_grad(); detach what is carried "
                "from one iteration to the next",
            )
        )


def _holders(roots: set[tuple[str, int]]) -> Iterator[tuple[torch.Tensor, list[Any]]]:
    """The tensors of Python whose graph leads to some nodes, and the graph; the one to most of them first."""
    found = []
    for tensor in _with_graph():
        nodes = reached([tensor.grad_fn])
        count = sum((short(node), sequence_nr(node)) in roots for node in nodes if leaf_of(node) is None)
        if count:
            found.append((count, tensor, nodes))
    for _, tensor, nodes in sorted(found, key=lambda each: (-each[0], -len(each[2]))):
        yield tensor, nodes


def _with_graph() -> list[torch.Tensor]:
    """Tensors of Python that have a graph, not too many."""
    return list(itertools.islice(filter(_has_graph, gc.get_objects()), _MOST_LOOKED_AT))


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
