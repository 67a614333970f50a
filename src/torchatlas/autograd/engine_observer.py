"""Watching the real engine: every run of it in this process, and in each of them every node, just before it runs.

All backward passes go through one function of torch: backward, grad, what a checkpoint runs inside of backward,
torch.func, gradient checks. While an observer watches, that function first hooks every node behind its outputs.
The engine is torch's own, so order, gradients and hooks of the program are its own as well.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from torchatlas.autograd.graph_walk import starting_node
from torchatlas.capturing.collectives import keep_groups
from torchatlas.capturing.deep_graphs import Edges, nodes_behind
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph.columns import Array
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import current_autograd_node, engine_run_id, engine_runs, hang_hooks

Gradients = tuple[torch.Tensor | None, ...]
# Nodes whose gradient has the numbers of the one that arrives, in another shape.
_HANDS_ON = {f"{name}Backward0" for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Clone")}
Around = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class EdgeColumns(NamedTuple):
    """Which output of which node leads to which input of which: arrays side by side."""

    source: Array
    output: Array
    target: Array
    input: Array


@dataclass(eq=False)
class EngineRun:
    """One run of the engine. Nodes are numbered in the order in which they were found; roots come first."""

    number: int
    outer: int | None  # the run inside of which it runs
    roots: list[Any] = field(repr=False)
    following: dict[Any, Edges] = field(repr=False)  # the nodes that it may run, and what their outputs lead to
    keep_graph: bool
    create_graph: bool
    inputs: tuple[Any, ...] = field(default=(), repr=False)  # what gradients are wanted for; empty: all leaves
    accumulates: bool = True  # into .grad; else gradients are returned
    ran: list[int] = field(default_factory=list, repr=False)  # numbers of nodes, as they ran
    began_ns: list[int] = field(default_factory=list, repr=False)  # when each of them did, side by side
    same: dict[int, int] = field(default_factory=dict, repr=False)  # edge -> the one whose numbers are handed on to it

    @cached_property
    def nodes(self) -> list[Any]:
        return list(self.following)

    @cached_property
    def numbers(self) -> dict[Any, int]:
        return {node: number for number, node in enumerate(self.following)}

    @cached_property
    def leaves(self) -> list[int]:
        """The nodes that lead nowhere: those of leaves."""
        return [number for number, edges in enumerate(self.following.values()) if not edges]

    @cached_property
    def edges(self) -> EdgeColumns:
        flat = list(itertools.chain.from_iterable(self.following.values()))
        counts = np.fromiter(map(len, self.following.values()), np.int64, len(self.following))
        source = np.repeat(np.arange(len(counts)), counts)
        output = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
        target = np.array([self.numbers[node] if node is not None else -1 for node, _ in flat], np.int64)
        input_nr = np.array([slot for _, slot in flat], np.int64)
        real = target >= 0
        return EdgeColumns(source[real], output[real], target[real], input_nr[real])


class EngineObserver(Protocol):
    """Is told of runs of the engine. `before` may return other gradients.

    A graph that runs once costs much less to watch: for most nodes, the function that `passing` returns is called, and
    `before` only if that function returns true; None stands for a function that never does. For the other nodes
    `before` is called.
    """

    def begin(self, task: EngineRun) -> None: ...
    def edges(self, task: EngineRun) -> Callable[[int, torch.Tensor], None] | None:
        """The function to call with every edge, by its number, and the gradient on it, but for edges in `task.same`.

        The gradient is seen as it arrives, which costs a third, or as it was made if others meet it where it arrives.
        """

    def passing(self, task: EngineRun) -> Callable[[int], bool] | None: ...
    def before(self, task: EngineRun, node: int, gradients: Gradients) -> Gradients | None: ...
    def end(self, task: EngineRun, error: BaseException | None) -> None: ...


# -- watchers ----------------------------------------------------------------------------------------------------------

_watchers: list[Around] = []  # in the order in which they came; they may leave in another
_patch: list[AbstractContextManager[None]] = []
_lock = threading.Lock()


@bracketed
def watched(observer: EngineObserver, thread: int | None = None) -> Iterator[None]:
    """Tell an observer of every node that runs meanwhile, in one thread or in all."""
    numbers, running = itertools.count(), list[_LiveRun]()

    def around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here, outer = threading.get_ident(), _outer(running)
        if thread is not None and here != thread and outer is None:
            return run(outputs, *args, **kwargs)
        with collection_paused():
            outer_number = None if outer is None else outer.task.number
            mine = _LiveRun(_engine_run(next(numbers), outer_number, outputs, args, kwargs), here)
        with _observed(mine, running, observer):
            return run(outputs, *args, **kwargs)

    _watchers.append(around)
    _settle(wait=True)
    try:
        yield
    finally:
        _watchers.remove(around)
        _settle(wait=False)


@bracketed
def _observed(mine: _LiveRun, running: list[_LiveRun], observer: EngineObserver) -> Iterator[None]:
    """Tell an observer of the nodes of one run."""
    error: BaseException | None = None
    keep_groups()
    running.append(mine)
    try:
        observer.begin(mine.task)
        try:
            with collection_paused():
                let_go = _hooked(mine, running, observer)
            try:
                yield
            finally:
                let_go()
        except BaseException as raised:
            error = raised
            raise
        finally:
            observer.end(mine.task, error)
    finally:
        running.remove(mine)


def _settle(*, wait: bool) -> None:
    """Put our function in the place of torch's while there are watchers, and take it away after that.

    A watcher that leaves does not wait for the lock: the thread that holds it may be collecting garbage, and be waiting
    for that watcher. That thread looks again after it has released the lock, so that no change is missed.
    """
    while bool(_patch) != bool(_watchers) and _lock.acquire(blocking=wait):
        try:
            if _watchers and not _patch:
                patch = engine_runs(_all_around)
                patch.__enter__()
                _patch.append(patch)
            elif _patch and not _watchers:
                _patch.pop().__exit__(None, None, None)
        finally:
            _lock.release()


def _all_around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for around in list(_watchers):
        run = partial(_one_around, around, run)
    return run(outputs, *args, **kwargs)


def _one_around(around: Around, run: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
    return around(run, outputs, args, kwargs)


# -- what runs ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _LiveRun:
    """A run that is not over. Runs of other threads, or inside of this one, may go through the same nodes."""

    task: EngineRun
    thread: int
    engine_run: int = -1  # the engine's number for it; known as soon as something of it runs

    def is_here(self, running: list[_LiveRun]) -> bool:
        """True if what runs in this thread belongs to it. Asked in a hook of one of its nodes."""
        current_run, here = engine_run_id(), threading.get_ident()
        if self.engine_run < 0 and (here == self.thread or self._began_elsewhere(current_run, here, running)):
            self.engine_run = current_run
        return self.engine_run == current_run

    def _began_elsewhere(self, current_run: int, here: int, running: list[_LiveRun]) -> bool:
        """True in a thread of the engine's own, in which nodes of other devices and deeply nested runs run."""
        of_python = any(t.ident == here and not t.name.startswith("Dummy-") for t in threading.enumerate())
        return not of_python and all(run.engine_run != current_run for run in running)


def _outer(running: list[_LiveRun]) -> _LiveRun | None:
    """The run inside of which this thread is."""
    current_run, here = engine_run_id(), threading.get_ident()
    if current_run < 0:
        return None
    for run in reversed(running):
        if run.engine_run < 0 and run.thread == here:  # this is a hook before its first node
            run.engine_run = current_run
        if run.engine_run == current_run:
            return run
    return None


def _engine_run(number: int, outer: int | None, outputs: Any, args: tuple[Any, ...], kwargs: Any) -> EngineRun:
    _, keep_graph, create_graph, inputs = (*args, None, None, ())[:4]
    roots = list(dict.fromkeys(starting_node(output) for output in outputs))
    accumulates = bool(kwargs.get("accumulate_grad", True))
    inputs = tuple(inputs or ())
    return EngineRun(
        number, outer, roots, nodes_behind(roots), bool(keep_graph), bool(create_graph), inputs, accumulates
    )


@dataclass(eq=False)
class _Arrivals:
    """Which hook sees the gradient on each edge."""

    alone: dict[int, dict[int, int]]  # input -> node -> the edge whose gradient arrives there, and no other
    met: dict[int, list[tuple[int, int]]]  # node -> its outputs that meet others where they lead to, and their edges

    @classmethod
    def of(cls, task: EngineRun) -> _Arrivals:
        edges, alone, met = task.edges, defaultdict[int, dict[int, int]](dict), defaultdict[int, list[Any]](list)
        targets, slots = edges.target, edges.input
        key = targets * (1 + int(slots.max(initial=0))) + slots
        _, which, counts = np.unique(key, return_inverse=True, return_counts=True)
        meets = counts[which] > 1
        meets |= targets < len(task.roots)  # they come first, and also get what backward begins with
        meets |= bool(task.inputs)  # a node that a gradient is wanted for need not run: nothing is seen to arrive
        single = np.flatnonzero(~meets)
        for slot in np.unique(slots[single]).tolist():
            here = single[slots[single] == slot]
            alone[slot] = dict(zip(targets[here].tolist(), here.tolist(), strict=True))
        several = np.flatnonzero(meets)
        ends = zip(several.tolist(), edges.source[several].tolist(), edges.output[several].tolist(), strict=True)
        for edge, source, output in ends:
            came = alone[0].get(source)
            if came is not None and type(task.nodes[source]).__name__ in _HANDS_ON:
                task.same[edge] = came
            else:
                met[source].append((output, edge))
        return cls(alone, met)


# -- hooks -------------------------------------------------------------------------------------------------------------


def _hooked(run: _LiveRun, running: list[_LiveRun], observer: EngineObserver) -> Callable[[], None]:
    """Put hooks on all nodes; returns a function that removes them. All share them: the engine knows which runs."""
    task, position, node_here = run.task, run.task.numbers, current_autograd_node
    tell, passing = observer.before, observer.passing(task)
    note, stamp, clock = task.ran.append, task.began_ns.append, time.perf_counter_ns
    see = observer.edges(task) or (lambda edge, gradient: None)
    seen = _Arrivals.of(task) if observer.edges(task) else _Arrivals({}, {})
    handles: list[Any] = []
    shared: list[dict[int, Any]] = []  # hooks that many nodes share

    def hang(numbers: Iterable[int], hook: Callable[[torch.Tensor | None], None], input_nr: int) -> None:
        """Hang one hook on many nodes, at a tenth of what registering it with each of them costs.

        torch has it for tensors: a node takes over the dictionary of a tensor's hooks, and calls those before its own.
        It cannot be taken off again, but an empty dictionary calls no hook, and dies with the graph.
        """
        shared.append({0: hook})
        hang_hooks([task.nodes[node] for node in numbers], shared[-1], input_nr)

    def before(gradients: Gradients) -> Gradients | None:
        if run.engine_run != engine_run_id() and not run.is_here(running):
            return None
        node = position[node_here()]
        changed = tell(task, node, gradients)
        note(node)
        stamp(clock())
        return changed

    def arriving(gradients: Gradients) -> Gradients | None:
        if seen.alone and (run.engine_run == engine_run_id() or run.is_here(running)):
            node = position[node_here()]
            for input_nr, edges in seen.alone.items():
                if node in edges and (gradient := gradients[input_nr]) is not None:
                    see(edges[node], gradient)
        return before(gradients)

    def after(made: Gradients, taken: Gradients) -> None:
        if run.engine_run == engine_run_id():
            for output, edge in seen.met[position[node_here()]]:
                if (gradient := made[output]) is not None:
                    see(edge, gradient)

    def about_to_run(gradient: torch.Tensor | None) -> None:
        if run.engine_run != engine_run_id() and not run.is_here(running):
            return
        node = position[node_here()]
        if (edge := first.get(node)) is not None and gradient is not None:
            see(edge, gradient)
        if passing is not None and passing(node):
            handles.append(task.nodes[node].register_prehook(before))  # the engine comes to it after this hook
        else:
            note(node)
            stamp(clock())

    def arrives_at(edges: dict[int, int], gradient: torch.Tensor | None) -> None:
        if gradient is not None and (run.engine_run == engine_run_id() or run.is_here(running)):
            see(edges[position[node_here()]], gradient)

    first = seen.alone.get(0, {})
    hooked: Iterable[int] = range(len(task.nodes))
    # A shared hook stays on its node, empty: so none is hung on a node that may run again. It is also called at a node
    # that does not run and only hands out a gradient that was asked for. Nodes of leaves call no such hooks.
    if not task.keep_graph and not task.inputs:
        for input_nr, edges in seen.alone.items():
            if input_nr:
                hang(edges, partial(arrives_at, edges), input_nr)
        hooked = task.leaves
        hang(set(range(len(task.nodes))).difference(hooked), about_to_run, 0)  # the last of a node's
    handles += [task.nodes[node].register_hook(after) for node in seen.met]
    handles += [task.nodes[node].register_prehook(arriving) for node in hooked]

    def let_go() -> None:
        for hooks in shared:
            hooks.clear()
        for handle in handles:
            handle.remove()

    return let_go
