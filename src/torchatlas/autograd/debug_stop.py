"""Where a debugged backward pass has stopped: the node that is about to run, its gradients, and the queue."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from torchatlas.autograd.autograd_graph import graph_of_walk, link
from torchatlas.autograd.check_arguments import counted
from torchatlas.autograd.engine.buffer import InputBuffer
from torchatlas.autograd.engine.queue import NodeTask, ReadyQueue
from torchatlas.autograd.engine_observer import EngineRun, Gradients
from torchatlas.autograd.gradient_statistics import has_no_numbers, numbers_of
from torchatlas.autograd.graph_walk import Walk, sequence_nr, starting_node, walk
from torchatlas.autograd.print_graph import shape_text
from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.shown import Shown
from torchatlas.sections import Facts, Lines, Section, Table
from torchatlas.torch_private import no_transforms, unobserved


@dataclass(eq=False, repr=False)
class Stop(Shown):
    """A node that is about to run; or one that has just run, if it made NaN or infinity of finite gradients."""

    run: DebuggedRun  # the run of the engine it belongs to
    node: GraphNode  # in the graph of its run: name, module, line
    number: int  # how many ran before it
    gradients: Gradients  # what arrives at it; nothing if it was passed by and failed
    made: Gradients | None = None  # what it made, if it has run

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def operation(self) -> str:
        """What torch calls the node, such as MulBackward0."""
        return self.node.operation

    @property
    def module(self) -> str:
        """The path of the module of its forward op; "" if unknown."""
        return self.node.scope.path

    @property
    def parameter(self) -> str | None:
        """The name of the leaf whose gradient the node accumulates."""
        return next((value.parameter for value in self.node.inputs if value.parameter), None)

    @property
    def torch_node(self) -> Any:
        """The node as torch holds it."""
        return self.run.walk.nodes[self.node.id]

    def norm(self) -> float:
        """The norm of all gradients that arrive."""
        with unobserved(), no_transforms():
            parts = [torch.linalg.vector_norm(precise(gradient)).item() for gradient in self.dense()]
        return math.hypot(*parts)

    def dense(self) -> list[torch.Tensor]:
        """The numbers of the gradients that arrive, as plain tensors: of sparse and nested ones those they hold."""
        return [numbers_at(gradient, self.name) for gradient in self.gradients if gradient is not None]

    def __str__(self) -> str:
        shapes = ", ".join("none" if g is None else shape_text(g) for g in self.gradients)
        arrives = f": gradient {shapes}" if shapes else ""  # one that was not looked at
        where = f" in {self.module}" if self.module else ""
        line = f", {self.node.source}" if self.node.source is not None else ""
        leaf = f" of {self.parameter}" if self.parameter else ""
        made = "" if self.made is None else "; it has run, and what it made is not finite"
        return clean(f"#{self.number} {self.name}{leaf}{where}{arrives}{line}{made}")

    def __repr__(self) -> str:
        return f"<Stop {'before' if self.made is None else 'after'} {self}>"

    def _sections(self) -> Iterator[Section]:
        yield Lines([str(self)])
        known = {"module": self.module, "leaf": self.parameter, "line": self.node.source}
        if facts := [(name, str(item)) for name, item in known.items() if item]:
            yield Facts(facts)
        rows = [*_gradient_rows("arrives", self.gradients), *_gradient_rows("made", self.made or ())]
        if rows:
            yield Table(["gradient", "tensor", ">norm"], rows)


def _gradient_rows(what: str, gradients: Iterable[torch.Tensor | None]) -> Iterator[list[str]]:
    for number, gradient in enumerate(gradients):
        if gradient is None:
            yield [f"{what} {number}", "none", ""]
        elif has_no_numbers(gradient):
            yield [f"{what} {number}", shape_text(gradient), "no numbers"]
        else:
            with unobserved(), no_transforms():
                norm = torch.linalg.vector_norm(precise(numbers_of(gradient))).item()
            yield [f"{what} {number}", shape_text(gradient), f"{norm:.4g}"]


def numbers_at(gradient: torch.Tensor, name: str) -> torch.Tensor:
    """All numbers of a gradient that arrives at a node of this name, as a plain tensor, detached."""
    if has_no_numbers(gradient):
        raise InvalidInputError(
            f"the gradient that arrives at {name} is on the meta device or fake, or a batch of several: it has a shape "
            "and no numbers. Stop at a name, or run backward on a device that computes."
        )
    with unobserved(), no_transforms():
        return numbers_of(gradient)


def precise(values: torch.Tensor) -> torch.Tensor:
    """The numbers in float64 or complex128, on the CPU: not every device has these types."""
    return values.cpu().to(torch.complex128 if values.is_complex() else torch.float64)


@dataclass(eq=False, repr=False)
class DebuggedRun:
    """A run of the engine that is debugged: its graph, and which nodes of it will run and have run."""

    task: EngineRun
    names: Mapping[int, str]
    forward: Graph | None
    wanted: set[int] | None = None  # None: all

    @cached_property
    def walk(self) -> Walk:
        return walk(self.task.roots)

    @cached_property
    def graph(self) -> Graph:
        with unobserved():  # torch 2.10 leaves function modes on in backward: they would see tensors being asked
            graph = graph_of_walk(self.walk, self.names, saved=False)
        if self.forward is not None:
            link(graph, self.forward)
        return graph

    @cached_property
    def numbers(self) -> list[int]:
        """Position in task.nodes -> node of the graph."""
        return [self.walk.number[node] for node in self.task.nodes]

    def queues(self, current: int) -> tuple[list[GraphNode], list[GraphNode]]:
        """Nodes that have all their gradients, the next first; and those that have some of them.

        The engine's own queues cannot be seen: this is what they must hold, given what ran. Numbers can be equal, and
        which comes first then depends on all that was in the queue before: so what ran goes through one here as well.
        """
        queue = _Queue(self)
        for node in [self.numbers[number] for number in self.task.ran]:
            queue.take(node)
            queue.ran(node)
        queue.take(current)
        nodes = self.graph.nodes
        return [nodes[n] for n in queue.ready()], [nodes[n] for n in queue.waiting()]

    def __repr__(self) -> str:
        if not self.task.nodes:
            return f"<DebuggedRun {self.task.number}, not begun>"
        return (
            f"<DebuggedRun {self.task.number}: {len(self.task.ran):,} of {counted(len(self.task.nodes), 'node')} ran>"
        )


class _Queue:
    """A model of the engine's queue, as far as it can be told from the outside; see engine/task.py."""

    def __init__(self, run: DebuggedRun) -> None:
        task, walk = run.task, run.walk
        self._walk, self._ready, self._arrived = walk, ReadyQueue(), set[int]()
        self._following: dict[int, list[int]] = defaultdict(list)
        self._missing = [0] * len(walk.nodes)
        for source, target in zip(walk.source, walk.target, strict=True):
            self._following[source].append(target)
            self._missing[target] += 1
        self._runs = run.wanted
        self._enters = run.wanted  # None: all
        if run.wanted is not None and not task.accumulates:
            asked = {walk.number[node] for node in map(starting_node, task.inputs) if node in walk.number}
            self._enters = run.wanted | asked
            # A node that only hands out the gradient that was asked for is taken from the queue, and does not run.
            self._runs = {n for n in run.wanted if any(to in self._enters for to in self._following[n])}
        roots = [walk.number[node] for node in task.roots]
        if len(roots) == 1:  # what torch begins with then
            self._push(roots[0])
            return
        for root in roots:
            self._missing[root] += 1
        for root in roots:
            self._deliver(root)

    def ran(self, node: int) -> None:
        for target in self._following[node]:
            self._deliver(target)

    def _deliver(self, node: int) -> None:
        self._missing[node] -= 1
        if self._enters is None or node in self._enters:
            self._arrived.add(node)
            if not self._missing[node]:
                self._push(node)

    def _push(self, node: int) -> None:
        self._ready.push(NodeTask(node, InputBuffer(), sequence_nr(self._walk.nodes[node])))

    def take(self, node: int) -> None:
        """Remove a node whose turn has come. With several devices, and a queue for each, it may not be the first."""
        left = []
        while self._ready:
            task = self._ready.pop()
            if task.node == node:
                break
            if self._is_run(task.node):
                left.append(task)
        for task in left:
            self._ready.push(task)

    def _is_run(self, node: int) -> bool:
        return self._runs is None or node in self._runs

    def ready(self) -> list[int]:
        return [node for node in self._ready if self._is_run(node)]

    def waiting(self) -> list[int]:
        """The youngest first."""
        some = [node for node in self._arrived if self._missing[node] and self._is_run(node)]
        return sorted(some, key=lambda node: -sequence_nr(self._walk.nodes[node]))
