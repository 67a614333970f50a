"""Watch the backward passes of a program: what each begins from, and the gradients in it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchatlas.autograd.engine_observer import Gradients
from torchatlas.autograd.graph_walk import reached, sequence_nr, starting_node
from torchatlas.capturing.frames import user_line
from torchatlas.diagnosis.events import Diagnosis, is_power_of_two
from torchatlas.diagnosis.history import running_line
from torchatlas.diagnosis.loss_graph import LossGraph
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import engine_runs, functorch_depth, next_sequence_nr

if TYPE_CHECKING:
    from torchatlas.diagnosis.visit import Visit


_FULL_WALKS = 4  # of a graph that grows, before it is walked less often


@dataclass(eq=False)
class BackwardPass(LossGraph):
    """One run of the engine that the program asked for. `nodes` are all that it may run."""

    retains: bool = False  # retain_graph, and not because of create_graph
    accumulates: bool = True  # into .grad; else gradients are returned
    roots: tuple[Any, ...] = ()
    carried: tuple[Any, ...] = ()  # of a retained graph: nodes that new ones lead to, from before the last such pass
    is_partial: bool = False  # `nodes` are the new ones alone: the graph grows with every pass


class GrowingGraph:
    """The graph that one line of the program has backward retain, pass after pass.

    A graph that grows with every pass is walked as a whole when the number of passes has doubled, and else as far as it
    is new: to walk it each time would take the square of the program's time. The ops of a pass that is not walked as a
    whole are not recorded either.
    """

    def __init__(self) -> None:
        self._passes, self._first_new, self._nodes = 0, 0, 0

    def walk(self, backward: BackwardPass) -> None:
        """Set `nodes`, `carried` and `is_partial` of a pass."""
        new, old = _new(backward.roots, self._first_new) if self._first_new else ([], [])
        backward.carried = tuple(old)
        self._passes = self._passes + 1 if old else 0
        backward.is_partial = self._passes > _FULL_WALKS and not is_power_of_two(self._passes)
        backward.nodes = new if backward.is_partial else reached(list(backward.roots))
        if old and not backward.is_partial:
            grows, self._nodes = len(backward.nodes) > self._nodes, len(backward.nodes)
            self._passes = self._passes if grows else 0
        self._first_new = next_sequence_nr()


def _new(roots: tuple[Any, ...], first: int) -> tuple[list[Any], list[Any]]:
    """The nodes behind `roots` with numbers from `first` on, and the older ones that they lead to; leaves are new."""
    new, old = dict.fromkeys(roots), dict[Any, None]()
    waiting = list(new)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in new or node in old:
                continue
            if sequence_nr(node) < first:
                old[node] = None
            else:
                new[node] = None
                waiting.append(node)
    return list(new), list(old)


def watch_backward(visit: Visit) -> AbstractContextManager[None]:
    """Tell a visit of every backward pass of this thread, but of none that runs inside another."""
    thread, inside = threading.get_ident(), False
    growing: dict[Any, GrowingGraph] = {}  # by the line of the program

    def around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inside or threading.get_ident() != thread or not all(map(_is_real, outputs)):
            return run(outputs, *args, **kwargs)
        try:
            backward = _pass(visit, outputs, args, kwargs, growing)
        except Exception as error:
            visit.failed(error)
            return run(outputs, *args, **kwargs)
        with watched(backward), visit.history.paused() if backward.is_partial else nullcontext():
            return run(outputs, *args, **kwargs)

    @bracketed
    def watched(backward: BackwardPass) -> Iterator[None]:
        nonlocal inside
        error: BaseException | None = None
        handles: list[Any] = []
        inside, begun = True, False
        try:
            with visit.guarded:
                visit.tell("before_backward", backward)
                begun = True
                for number, listening in _listeners(visit, backward).items():
                    node = backward.nodes[number]
                    handles.append(node.register_prehook(partial(_tell, visit, listening, backward, number)))
            try:
                yield
            except BaseException as raised:
                error = raised
                raise
            finally:
                for handle in handles:
                    handle.remove()
                inside = False
                if begun:
                    with visit.guarded:
                        visit.backward_ends(backward, error)
        finally:
            inside = False

    return engine_runs(around)


def _listeners(visit: Visit, backward: BackwardPass) -> dict[int, list[Diagnosis]]:
    """The diagnoses that want to hear of each node of a pass, by the node's place."""
    listeners: dict[int, list[Diagnosis]] = {}
    for each in list(visit.diagnoses):
        try:
            for number in each.nodes_wanted(backward):
                listeners.setdefault(number, []).append(each)
        except Exception as error:
            visit.failed(error, each)
    return listeners


def _tell(visit: Visit, listening: list[Diagnosis], backward: BackwardPass, node: int, gradients: Gradients) -> None:
    for each in listening:
        if each in visit.diagnoses:
            try:
                each.node_runs(backward, node, gradients)
            except Exception as error:
                visit.failed(error, each)


def _pass(
    visit: Visit, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], growing: dict[Any, GrowingGraph]
) -> BackwardPass:
    _, keep_graph, create_graph = (*args, None, None)[:3]
    losses = [output for output in outputs if isinstance(output, torch.Tensor)]
    edges = [output for output in outputs if not isinstance(output, torch.Tensor)]
    roots = dict.fromkeys(starting_node(output) for output in [*losses, *edges] if _has_graph(output))
    backward = BackwardPass(
        losses,
        visit.history,
        running_line("backward"),
        retains=bool(keep_graph) and not create_graph,
        accumulates=bool(kwargs.get("accumulate_grad", True)),
        roots=tuple(roots),
    )
    if backward.retains and backward.accumulates:
        growing.setdefault(user_line(sys._getframe(1)), GrowingGraph()).walk(backward)
    else:
        backward.nodes = reached(list(roots))
    return backward


def _is_real(output: Any) -> bool:
    """False for what a compiler or a transform of torch.func has in the place of a tensor."""
    return functorch_depth() == 0 and type(output) in (torch.Tensor, nn.Parameter, torch.autograd.graph.GradientEdge)


def _has_graph(output: Any) -> bool:
    return not isinstance(output, torch.Tensor) or output.requires_grad
