"""Where a debugged backward pass is: the node that is about to run, what arrives at it, and where to stop next.

The session is told of every node by the real engine, in the thread that runs it. `pause` is what it does at a stop:
hand over to another thread (debugger.py), or talk to somebody at a terminal (console.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from torchatlas.autograd.graph import graph_of_walk, link
from torchatlas.autograd.tasks import Gradients, Task
from torchatlas.autograd.walk import Walk, leaf_of, sequence_nr, walk
from torchatlas.errors import InvalidInputError, NodeNotFoundError, StateError
from torchatlas.graph import Graph, GraphNode
from torchatlas.registry import near_names
from torchatlas.torch_private import FakeTensor, unobserved, will_be_executed

Test = Callable[["Stop"], bool]


_BUILDS_INSIDE = "CheckpointFunctionBackward"


class Aborted(Exception):
    """The debugger gave up this backward pass."""


@dataclass(eq=False)
class Stop:
    """A node that is about to run."""

    place: Place
    node: GraphNode  # in the graph of its task: name, module, line
    number: int  # how many ran before it
    gradients: Gradients  # what arrives at it; nothing if it was passed by and failed

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def operation(self) -> str:
        return self.node.operation

    @property
    def module(self) -> str:
        return self.node.scope.path

    @property
    def parameter(self) -> str | None:
        """The name of the leaf whose gradient the node accumulates."""
        return next((value.parameter for value in self.node.inputs if value.parameter), None)

    @property
    def torch_node(self) -> Any:
        """torch's own."""
        return self.place.found.nodes[self.node.id]

    def norm(self) -> float:
        """Of all that arrives."""
        parts = [float(torch.linalg.vector_norm(gradient.double())) for gradient in self.dense()]
        return math.hypot(*parts)

    def dense(self) -> list[torch.Tensor]:
        """The gradients that arrive and are plain tensors, detached."""
        plain = [g for g in self.gradients if isinstance(g, torch.Tensor) and g.layout is torch.strided]
        if any(gradient.is_meta or isinstance(gradient, FakeTensor) for gradient in plain):
            raise InvalidInputError(
                f"the gradient that arrives at {self.name} is on the meta device or fake: it has a shape and no "
                "numbers. Stop at a name, or run backward on a device that computes."
            )
        return [gradient.detach() for gradient in plain]

    def __str__(self) -> str:
        shapes = ", ".join("none" if g is None else f"{list(g.shape)}" for g in self.gradients)
        arrives = f": gradient {shapes}" if shapes else ""  # one that was not looked at
        where = f" in {self.module}" if self.module else ""
        line = f", {self.node.source}" if self.node.source is not None else ""
        leaf = f" of {self.parameter}" if self.parameter else ""
        return f"#{self.number} {self.name}{leaf}{where}{arrives}{line}"


@dataclass(eq=False)
class Place:
    """One task: its graph, and which nodes of it will run and have run."""

    task: Task
    names: Mapping[int, str] = field(repr=False)
    forward: Graph | None = field(repr=False)
    wanted: set[int] | None = None  # None: all

    @cached_property
    def found(self) -> Walk:
        return walk(self.task.roots)

    @cached_property
    def graph(self) -> Graph:
        graph = graph_of_walk(self.found, self.names, saved=False)
        if self.forward is not None:
            link(graph, self.forward)
        return graph

    @cached_property
    def numbers(self) -> list[int]:
        """Position in task.nodes -> node of the graph."""
        return [self.found.number[node] for node in self.task.nodes]

    def executed(self) -> set[int]:
        return {self.numbers[place] for place in self.task.ran}

    def queues(self, current: int) -> tuple[list[GraphNode], list[GraphNode]]:
        """Nodes that have all their gradients, the next first; and those that have some of them.

        The engine's own queues cannot be seen: this is what they must hold, given what ran.
        """
        done, arrived, missing = self.executed(), set(), set()
        for source, target in zip(self.found.source, self.found.target, strict=True):
            if self.wanted is not None and source not in self.wanted:
                continue
            if source in done:
                arrived.add(target)
            else:
                missing.add(target)
        left = [n for n in range(len(self.found.nodes)) if n not in done and n != current]
        left = [n for n in left if (self.wanted is None or n in self.wanted) and n in arrived]
        left.sort(key=lambda n: -sequence_nr(self.found.nodes[n]))
        nodes = self.graph.nodes
        return [nodes[n] for n in left if n not in missing], [nodes[n] for n in left if n in missing]


@dataclass(eq=False)
class Breakpoint:
    """Where to stop, and why."""

    text: str
    test: Test = field(repr=False)

    def __str__(self) -> str:
        return self.text


class Session:
    """Told of every node (see tasks.Observer); decides where to stop. Threads that stop wait for each other."""

    def __init__(self, pause: Callable[[], None], names: Mapping[int, str], forward: Graph | None) -> None:
        self.pause, self.names, self.forward = pause, names, forward
        self.places: dict[int, Place] = {}
        self.breakpoints: list[Breakpoint] = []
        self._here: tuple[Place, int, int, Gradients] | None = None  # node, and how many ran before it
        self._stop: Stop | None = None
        self.hit: Breakpoint | None = None  # why it stopped
        self._order: list[tuple[int, int]] = []  # task, node
        self._passed = False  # whether the last of them runs now, with nobody looking
        self.aborting = False
        self.interrupted = False
        self._steps = 0  # that are left before the next stop; -1: none but breakpoints stop it
        self._until: Test | None = None
        self._replacement: Gradients | None = None
        self._turn, self._stopped = threading.RLock(), False

    # -- where to stop -----------------------------------------------------------------------------------------------

    def go(self, *, steps: int = -1, until: Test | None = None) -> None:
        """What to do when the engine goes on."""
        self._steps, self._until = steps, until

    def breakpoint(
        self, what: Any = None, *, above: float | None = None, nan: bool = False, zero: bool = False
    ) -> None:
        self.breakpoints.append(self.condition(what, above=above, nan=nan, zero=zero))

    def condition(
        self, what: Any = None, *, above: float | None = None, nan: bool = False, zero: bool = False
    ) -> Breakpoint:
        """A place by name (node, operation, module or parameter) or a function of a Stop; and what arrives there."""
        tests: list[tuple[str, Test]] = []
        if callable(what):
            tests.append((getattr(what, "__name__", "a condition"), what))
        elif isinstance(what, str):
            self._check_name(what)
            tests.append((what, lambda stop: _is_called(stop, what)))
        elif what is not None:
            raise InvalidInputError(f"a breakpoint is a name or a function, not {type(what).__name__}.")
        if above is not None:
            tests.append((f"norm above {above:g}", lambda stop: stop.norm() > above))
        if nan:
            tests.append(("not finite", lambda stop: any(not g.isfinite().all() for g in stop.dense())))
        if zero:
            tests.append(("zero", lambda stop: any(not g.any() for g in stop.dense())))
        if not tests:
            raise InvalidInputError("say where to stop: a name, a function, above=, nan=True or zero=True.")
        return Breakpoint(", ".join(text for text, _ in tests), lambda stop: all(test(stop) for _, test in tests))

    def _check_name(self, name: str) -> None:
        known: set[str] = set()
        for place in self.places.values():
            graph = place.graph
            known |= {node.name for node in graph.nodes} | {node.operation for node in graph.nodes}
            known |= set(graph.scopes) | {value.parameter for value in graph.values if value.parameter}
        hidden = _BUILDS_INSIDE in known  # what a checkpoint will run is not there yet
        if known and name not in known and not hidden:
            near = " or ".join(map(repr, near_names(name, known)))
            raise NodeNotFoundError(
                f"no node, operation, module or parameter is named {name!r}"
                + (f"; did you mean {near}?" if near else "")
            )

    # -- what the engine tells ---------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        self.add(task)

    def add(self, task: Task) -> Place:
        place = self.places[task.number] = Place(task, self.names, self.forward)
        return place

    @property
    def stop(self) -> Stop | None:
        """The node that is about to run."""
        if self._passed:  # it was not looked at
            task, node = self._order[-1]
            return self._stop_at(self.places[task], node, len(self._order) - 1, ())
        if self._stop is None and self._here is not None:
            self._stop = self._stop_at(*self._here)
        return self._stop

    def _stop_at(self, place: Place, node: int, number: int, gradients: Gradients) -> Stop:
        return Stop(place, place.graph.nodes[place.numbers[node]], number, gradients)

    @property
    def executed(self) -> int:
        """How many nodes ran, or began to."""
        return len(self._order)

    @property
    def order(self) -> list[str]:
        """The names of the nodes that ran."""
        places = ((self.places[task], node) for task, node in self._order)
        return [place.graph.nodes[place.numbers[node]].name for place, node in places]

    def over(self) -> None:
        """No node is about to run."""
        self._here, self._stop, self._passed = None, None, False

    def edges(self, task: Task) -> None:
        """Of no interest."""

    def passing(self, task: Task) -> Callable[[int], bool]:
        return partial(self._passing, task)

    def _passing(self, task: Task, node: int) -> bool:
        """Whether a node has to be looked at: nobody may want to stop anywhere near."""
        if self.breakpoints or self._until is not None or self.aborting or self.interrupted or self._stopped:
            return True
        if self._steps >= 0:
            if self._steps < 2:
                return True
            self._steps -= 1
        self._passed = True
        self._order.append((task.number, node))
        return False

    def before(self, task: Task, node: int, gradients: Gradients) -> Gradients | None:
        with self._turn:
            return self._before(task, node, gradients)

    def _before(self, task: Task, node: int, gradients: Gradients) -> Gradients | None:
        if self.aborting:
            raise Aborted
        place = self.places[task.number]
        self._here, self._stop, self._passed = (place, node, self.executed, gradients), None, False
        if place.wanted is None and task.inputs:  # only the engine itself knows, and only while it runs
            nodes = enumerate(place.found.nodes)
            candidates = [(n, found) for n, found in nodes if task.accumulates or leaf_of(found) is None]
            place.wanted = {n for n, found in candidates if will_be_executed(found)}
        if self._wants_to_stop():
            self.interrupted, self._stopped = False, True
            try:
                self.pause()
            finally:
                self._stopped = False
            if self.aborting:
                raise Aborted
        changed, self._replacement = self._replacement, None
        # Who holds a gradient that is accumulated has it copied: the leaf cannot take it over.
        self._here, self._stop, self._passed = None, None, True
        self._order.append((task.number, node))
        return changed

    def _wants_to_stop(self) -> bool:
        self.hit = None
        if self.breakpoints or self._until is not None:
            stop = self.stopped()
            with unobserved():  # the program's modes are not to see what conditions compute
                self.hit = next((each for each in self.breakpoints if each.test(stop)), None)
                if self.hit is not None or (self._until is not None and self._until(stop)):
                    return True
        if self._steps > 0:
            self._steps -= 1
        return self._steps == 0 or self.interrupted

    def end(self, task: Task, error: BaseException | None) -> None:
        if error is None:  # else it is where it happened
            self.over()

    # -- while it is stopped -----------------------------------------------------------------------------------------

    def stopped(self) -> Stop:
        stop = self.stop
        if stop is None:
            raise StateError("no node is about to run: backward has not begun, or it is over.")
        return stop

    def replace(self, gradient: torch.Tensor, index: int = 0) -> None:
        """Have the current node take another gradient."""
        arriving = list(self.stopped().gradients)
        if not 0 <= index < len(arriving):
            raise InvalidInputError(f"{len(arriving)} gradients arrive at this node; there is no number {index}.")
        was = arriving[index]
        if not isinstance(gradient, torch.Tensor):
            raise InvalidInputError(f"a gradient is a tensor, not {type(gradient).__name__}.")
        if was is not None and (gradient.shape != was.shape or gradient.dtype != was.dtype):
            wanted, got = (f"{g.dtype} of {tuple(g.shape)}" for g in (was, gradient))
            raise InvalidInputError(f"the gradient is {wanted}; this is {got}.")
        arriving[index] = gradient
        self._replacement = tuple(arriving)
        self.stopped().gradients = self._replacement


def _is_called(stop: Stop, name: str) -> bool:
    module = stop.module
    inside = module == name or module.startswith(f"{name}.") if name else False
    return name in (stop.name, stop.operation, stop.parameter) or inside
