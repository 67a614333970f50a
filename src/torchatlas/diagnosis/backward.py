"""The backward passes of a program that is visited: what each begins from, and the gradients in it."""

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

from torchatlas.autograd.tasks import Gradients, reached, starting_node
from torchatlas.autograd.walk import sequence_nr
from torchatlas.capturing.frames import user_line
from torchatlas.diagnosis.diagnosis import Diagnosis
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import engine_runs, functorch_depth, next_sequence_nr

if TYPE_CHECKING:
    from torchatlas.diagnosis.case import Case
    from torchatlas.diagnosis.visit import Visit


_FULL_WALKS = 4  # of a graph that grows, before it is walked less often


@dataclass(eq=False)
class Pass:
    """One run of the engine that the program asked for."""

    losses: list[torch.Tensor]
    nodes: list[Any]  # all that it may run
    retains: bool  # retain_graph, and not because of create_graph
    creates: bool
    accumulates: bool  # into .grad; else gradients are returned
    carried: tuple[Any, ...] = ()  # of a retained graph: nodes that new ones lead to, from before the last such pass
    roots: tuple[Any, ...] = ()
    partial: bool = False  # `nodes` are the new ones alone: the graph grows with every pass


class Growth:
    """Of the graphs that one place in the program has backward retain, pass after pass.

    A graph that grows with every pass is walked as a whole when the number of passes has doubled, and else as far as it
    is new: to walk it each time would take the square of the program's time. The ops of a pass that is not walked as a
    whole are not recorded either.
    """

    def __init__(self) -> None:
        self.passes, self._first_new, self._nodes = 0, 0, 0

    def look(self, found: Pass, roots: list[Any]) -> None:
        new, old = _new(roots, self._first_new) if self._first_new else ([], [])
        found.carried, found.roots = tuple(old), tuple(roots)
        self.passes = self.passes + 1 if old else 0
        found.partial = self.passes > _FULL_WALKS and self.passes & (self.passes - 1) != 0
        found.nodes = new if found.partial else reached(roots)
        if old and not found.partial:
            self.passes, self._nodes = (self.passes if len(found.nodes) > self._nodes else 0), len(found.nodes)
        self._first_new = next_sequence_nr()


def _new(roots: list[Any], first: int) -> tuple[list[Any], list[Any]]:
    """The nodes behind some that were made since a number, and the older ones that they lead to; leaves are new."""
    found, old = dict.fromkeys(roots), dict[Any, None]()
    waiting = list(found)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in found or node in old:
                continue
            if sequence_nr(node) < first:
                old[node] = None
            else:
                found[node] = None
                waiting.append(node)
    return list(found), list(old)


def backward_passes(visit: Visit) -> AbstractContextManager[None]:
    """Tell a visit of every backward pass of this thread; not of what a node runs inside of one."""
    thread, inside = threading.get_ident(), False
    growth: dict[Any, Growth] = {}  # by the place in the program

    def around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inside or threading.get_ident() != thread or not all(map(_is_real, outputs)):
            return run(outputs, *args, **kwargs)
        try:
            found = _pass(outputs, args, kwargs, growth)
        except Exception as error:
            visit.failed(error)
            return run(outputs, *args, **kwargs)
        with watched(found), visit.paused() if found.partial else nullcontext():
            return run(outputs, *args, **kwargs)

    @bracketed
    def watched(found: Pass) -> Iterator[None]:
        nonlocal inside
        error: BaseException | None = None
        handles: list[Any] = []
        inside = True
        try:
            case: Case | None = None
            with visit.guarded():
                case = visit.backward_begins(found)
                listening = [each for each in visit.diagnoses if type(each).node_runs is not Diagnosis.node_runs]
                for number, node in enumerate(found.nodes if listening else ()):
                    handles.append(node.register_prehook(partial(_tell, visit, listening, found, number)))
            try:
                yield
            except BaseException as raised:
                error = raised
                raise
            finally:
                for handle in handles:
                    handle.remove()
                inside = False
                if case is not None:
                    with visit.guarded():
                        visit.backward_ends(case, found, error)
        finally:
            inside = False

    return engine_runs(around)


def _tell(visit: Visit, listening: list[Diagnosis], found: Pass, node: int, gradients: Gradients) -> None:
    for each in list(listening):
        try:
            each.node_runs(found, node, gradients)
        except Exception as error:
            visit.failed(error, each)
            listening.remove(each)


def _pass(outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], growth: dict[Any, Growth]) -> Pass:
    _, keep_graph, create_graph = (*args, None, None)[:3]
    losses = [output for output in outputs if isinstance(output, torch.Tensor)]
    edges = [output for output in outputs if not isinstance(output, torch.Tensor)]
    roots = list(dict.fromkeys(starting_node(output) for output in [*losses, *edges] if _has_graph(output)))
    retains = bool(keep_graph) and not create_graph
    found = Pass(losses, [], retains, bool(create_graph), bool(kwargs.get("accumulate_grad", True)))
    if retains and found.accumulates:
        growth.setdefault(user_line(sys._getframe(1)), Growth()).look(found, roots)
    else:
        found.nodes = reached(roots)
    return found


def _is_real(output: Any) -> bool:
    """Not what a compiler or a transform of torch.func has in the place of a tensor."""
    return functorch_depth() == 0 and type(output) in (torch.Tensor, nn.Parameter, torch.autograd.graph.GradientEdge)


def _has_graph(output: Any) -> bool:
    return not isinstance(output, torch.Tensor) or output.requires_grad
