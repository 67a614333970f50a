"""Watching the real engine: every run of it in this process, and in each of them every node, just before it runs.

All backward passes go through one function of torch: backward, grad, what a checkpoint runs inside of backward,
torch.func, gradient checks. While somebody watches, that function first puts a hook on every node behind its outputs.
The engine is torch's own, so order, gradients and hooks of the program are its own as well.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch

from torchatlas.autograd.walk import roots_of, walk
from torchatlas.capturing.collectives import keep_groups
from torchatlas.errors import InvalidInputError
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph.columns import Array
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import (
    current_autograd_node,
    engine_run_id,
    engine_runs,
    hang_hooks,
    hang_post_hooks,
)

Gradients = tuple[torch.Tensor | None, ...]
_LARGE = 5_000  # nodes; fewer can be freed by recursion
# Nodes whose gradient has the numbers of the one that arrives, in another shape.
_HANDS_ON = {f"{name}Backward0" for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Clone")}
Around = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Edges:
    """Which output of which node leads to which input of which: arrays side by side, made when somebody asks."""

    def __init__(self, following: list[tuple[Any, ...]], numbers: Mapping[Any, int]) -> None:
        self._following, self._numbers = following, numbers  # per node, what its outputs lead to, as torch has it

    def ends(self) -> list[int]:
        """The nodes that lead nowhere: those of leaves."""
        return [node for node, following in enumerate(self._following) if not following]

    @cached_property
    def _columns(self) -> tuple[Array, Array, Array, Array]:
        flat = list(itertools.chain.from_iterable(self._following))
        counts = np.fromiter(map(len, self._following), np.int64, len(self._following))
        source = np.repeat(np.arange(len(counts)), counts)
        output = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
        number = self._numbers
        target = np.array([number[node] if node is not None else -1 for node, _ in flat], np.int64)
        input_nr = np.array([slot for _, slot in flat], np.int64)
        real = target >= 0
        return source[real], output[real], target[real], input_nr[real]

    @property
    def source(self) -> Array:
        return self._columns[0]

    @property
    def output(self) -> Array:
        return self._columns[1]

    @property
    def target(self) -> Array:
        return self._columns[2]

    @property
    def input(self) -> Array:
        return self._columns[3]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(eq=False)
class Task:
    """One run of the engine: the nodes that it may run, in the order in which they were found."""

    number: int
    outer: int | None  # the task inside of which it runs
    roots: list[Any] = field(repr=False)
    nodes: list[Any] = field(repr=False)
    edges: Edges = field(repr=False)
    keep_graph: bool
    create_graph: bool
    inputs: tuple[Any, ...] = field(repr=False)  # what gradients are wanted for; empty: all leaves
    accumulates: bool  # into .grad; else gradients are returned
    ran: list[int] = field(default_factory=list, repr=False)  # positions in `nodes`, as they ran
    began_ns: list[int] = field(default_factory=list, repr=False)  # when each of them did, side by side
    same: dict[int, int] = field(default_factory=dict, repr=False)  # edge -> the one whose numbers are handed on to it


class Observer(Protocol):
    """Who watches. `before` may return other gradients.

    A graph that runs once costs much less: what `passing` returns is then called for most nodes, and `before` only if
    that returns true; None stands for what never does. For the other nodes it is `before` alone.
    """

    def begin(self, task: Task) -> None: ...
    def edges(self, task: Task) -> Callable[[int, torch.Tensor], None] | None:
        """What is to be told of the gradient on every edge, by its number: as it arrives or, if others meet it there,
        as it was made. Seeing what arrives costs a third of seeing what is made. Not told of those in `task.same`."""

    def passing(self, task: Task) -> Callable[[int], bool] | None: ...
    def before(self, task: Task, node: int, gradients: Gradients) -> Gradients | None: ...
    def end(self, task: Task, error: BaseException | None) -> None: ...


# -- who watches -------------------------------------------------------------------------------------------------------

_watchers: list[Around] = []  # in the order in which they came; they may leave in another
_patch: list[AbstractContextManager[None]] = []
_lock = threading.Lock()


@bracketed
def watched(observer: Observer, thread: int | None = None) -> Iterator[None]:
    """Tell an observer of every node that runs meanwhile, in one thread or in all."""
    numbers, running = itertools.count(), list[_Run]()

    def around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here, outer = threading.get_ident(), _outer(running)
        if thread is not None and here != thread and outer is None:
            return run(outputs, *args, **kwargs)
        with collection_paused():
            mine = _Run(*_task(None if outer is None else outer.task.number, outputs, args, kwargs), here)
        mine.task.number = next(numbers)
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
def _observed(mine: _Run, running: list[_Run], observer: Observer) -> Iterator[None]:
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
    """Be in the place of torch's function while anybody watches.

    Who leaves does not wait: the thread that holds the lock may be collecting garbage in it, and waiting for him to
    leave. It looks again after it has let go of the lock, so that nobody is forgotten.
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
class _Run:
    """A task while it runs. Runs of other threads, or inside of this one, may go through the same nodes."""

    task: Task
    numbers: dict[Any, int]  # node -> its position
    thread: int
    engine_run: int = -1  # the engine's number for it; known as soon as something of it runs

    def is_here(self, running: list[_Run]) -> bool:
        """Whether what runs in this thread belongs to it. Asked in a hook of one of its nodes."""
        found, here = engine_run_id(), threading.get_ident()
        if self.engine_run < 0 and (here == self.thread or self._began_elsewhere(found, here, running)):
            self.engine_run = found
        return self.engine_run == found

    def _began_elsewhere(self, found: int, here: int, running: list[_Run]) -> bool:
        """Nodes of other devices, and tasks deep inside of others, run in threads of the engine's own."""
        of_python = any(t.ident == here and not t.name.startswith("Dummy-") for t in threading.enumerate())
        return not of_python and all(run.engine_run != found for run in running)


def _outer(running: list[_Run]) -> _Run | None:
    """The task inside of which this thread is."""
    found, here = engine_run_id(), threading.get_ident()
    if found < 0:
        return None
    for run in reversed(running):
        if run.engine_run < 0 and run.thread == here:  # this is a hook before its first node
            run.engine_run = found
        if run.engine_run == found:
            return run
    return None


def _task(
    outer: int | None, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Task, dict[Any, int]]:
    _, keep_graph, create_graph, inputs = (*args, None, None, ())[:4]
    roots = list(dict.fromkeys(starting_node(output) for output in outputs))
    numbers, edges = _numbered(roots)
    task = Task(
        number=0,
        outer=outer,
        roots=roots,
        nodes=list(numbers),
        edges=edges,
        keep_graph=bool(keep_graph),
        create_graph=bool(create_graph),
        inputs=tuple(inputs or ()),
        accumulates=bool(kwargs.get("accumulate_grad", True)),
    )
    return task, numbers


def starting_node(output: Any) -> Any:
    """The node that the gradient of an output enters first."""
    if not isinstance(output, torch.Tensor):  # an edge
        return output.node
    return output.grad_fn if output.grad_fn is not None else torch.autograd.graph.get_gradient_edge(output).node


def starting_nodes(outputs: Any, called: str) -> list[Any]:
    """The same for a tensor or several, each once. What backward cannot begin with is refused."""
    given = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    for output in given:
        if isinstance(output, torch.Tensor) and not output.requires_grad:
            roots_of(output, called)  # says why
        elif not isinstance(output, (torch.Tensor, torch.autograd.graph.GradientEdge)):
            raise InvalidInputError(f"{called} takes a tensor or several, not {type(output).__name__}: {called}(loss).")
    return list(dict.fromkeys(map(starting_node, given)))


def reached(roots: list[Any]) -> list[Any]:
    """All nodes behind some, which come first. Many of them can then still be freed."""
    return list(_numbered(roots)[0])


def _numbered(roots: list[Any]) -> tuple[dict[Any, int], Edges]:
    """The same with their places, and the edges between them."""
    found, every = list(roots), list[Any]()
    numbers = {node: place for place, node in enumerate(found)}
    for node in found:
        following = node.next_functions
        every.append(following)
        for target, _ in following:
            if target not in numbers and target is not None:
                numbers[target] = len(found)
                found.append(target)
    if len(found) > _LARGE:
        walk(roots)  # makes it safe to free
    return numbers, Edges(every, numbers)


@dataclass(eq=False)
class _Arrivals:
    """Where the gradient on each edge is seen."""

    alone: dict[int, dict[int, int]]  # input -> node -> the edge whose gradient arrives there, and no other
    met: dict[int, list[tuple[int, int]]]  # node -> its outputs that meet others where they lead to, and their edges

    @classmethod
    def of(cls, task: Task) -> _Arrivals:
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


def _hooked(run: _Run, running: list[_Run], observer: Observer) -> Callable[[], None]:
    """Put hooks on all nodes; returns what takes them off. All nodes share them: the engine knows which one it runs."""
    task, position, node_here = run.task, run.numbers, current_autograd_node
    tell, passing = observer.before, observer.passing(task)
    note, stamp, clock = task.ran.append, task.began_ns.append, time.perf_counter_ns
    see = observer.edges(task) or (lambda edge, gradient: None)
    seen = _Arrivals.of(task) if observer.edges(task) else _Arrivals({}, {})
    handles: list[Any] = []
    bells = _Bells()

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

    def ring(gradient: torch.Tensor | None) -> None:
        if run.engine_run != engine_run_id() and not run.is_here(running):
            return
        node = position[node_here()]
        if (edge := first.get(node)) is not None and gradient is not None:
            see(edge, gradient)
        if passing is not None and passing(node):
            handles.append(task.nodes[node].register_prehook(before))  # the engine comes to it after the bell
        else:
            note(node)
            stamp(clock())

    def ring_at_others(edges: dict[int, int], gradient: torch.Tensor | None) -> None:
        if gradient is not None and (run.engine_run == engine_run_id() or run.is_here(running)):
            see(edges[position[node_here()]], gradient)

    first = seen.alone.get(0, {})
    hooked = task.nodes
    # A bell stays on its node, silent: not on one that may run any number of times. It also rings at a node that
    # does not run and only hands out a gradient that was asked for.
    if not task.keep_graph and not task.inputs:
        for input_nr, edges in seen.alone.items():
            if input_nr:
                bells.hang([task.nodes[node] for node in edges], partial(ring_at_others, edges), input_nr)
        bells.hang(task.nodes, ring)  # the last of a node's: it is about to run then
        # Nodes of leaves have no such hooks but the leaf's: a bell is never heard there.
        hooked = [task.nodes[node] for node in task.edges.ends()]
        handles += bells.hang_after([task.nodes[node] for node in seen.met], after)
    else:
        handles += [task.nodes[node].register_hook(after) for node in seen.met]
    handles += [node.register_prehook(arriving) for node in hooked]

    def let_go() -> None:
        bells.silence()
        for handle in handles:
            handle.remove()

    return let_go


class _Bells:
    """Hooks that many nodes share, put on them at a tenth of what registering a hook costs.

    torch has it for tensors: a node is given a tensor's dictionary of hooks, and calls those before its own. It cannot
    be taken off again, but an empty dictionary calls nobody.
    """

    def __init__(self) -> None:
        self._hooks: list[dict[int, Any]] = []

    def hang(self, nodes: list[Any], hook: Callable[[torch.Tensor | None], None], input_nr: int = 0) -> None:
        self._hooks.append({0: hook})
        hang_hooks(nodes, self._hooks[-1], input_nr)

    def hang_after(self, nodes: list[Any], hook: Callable[[Gradients, Gradients], None]) -> list[Any]:
        """The same after nodes. Returns handles where a node had hooks of its own, which such a one cannot join."""
        self._hooks.append({0: hook})
        return hang_post_hooks(nodes, self._hooks[-1])

    def silence(self) -> None:
        for hooks in self._hooks:
            hooks.clear()
