"""Watching the real engine: every run of it in this process, and in each of them every node, just before it runs.

All backward passes go through one function of torch: backward, grad, what a checkpoint runs inside of backward,
torch.func, gradient checks. While somebody watches, that function first puts a hook on every node behind its outputs.
The engine is torch's own, so order, gradients and hooks of the program are its own as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from torchatlas.autograd.lifetime import LARGE, keep_until_freed
from torchatlas.autograd.walk import roots_of
from torchatlas.errors import InvalidInputError
from torchatlas.torch_private import engine_runs

Gradients = tuple[torch.Tensor | None, ...]


@dataclass(eq=False)
class Task:
    """One run of the engine: the nodes that it may run, in the order in which they were found."""

    number: int
    outer: int | None  # the task inside of which it runs
    roots: list[Any]
    nodes: list[Any]
    keep_graph: bool
    create_graph: bool
    inputs: tuple[Any, ...]  # what gradients are wanted for; empty: all leaves
    accumulates: bool  # into .grad; else gradients are returned
    ran: list[int] = field(default_factory=list)  # positions in `nodes`, as they ran


class Observer(Protocol):
    """Who watches. `before` may return other gradients; `after` is only called if `looks_after` is true."""

    looks_after: bool

    def begin(self, task: Task) -> None: ...
    def before(self, task: Task, node: int, gradients: Gradients) -> Gradients | None: ...
    def after(self, task: Task, node: int, made: Gradients, taken: Gradients) -> None: ...
    def end(self, task: Task, error: BaseException | None) -> None: ...


@contextmanager
def watched(observer: Observer, thread: int | None = None) -> Iterator[list[Task]]:
    """Tell an observer of every node that runs meanwhile, in one thread or in all. Yields the tasks, in order."""
    tasks: list[Task] = []
    running: list[int] = []
    lock = threading.Lock()

    def around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if thread is not None and threading.get_ident() != thread:
            return run(outputs, *args, **kwargs)
        with lock:
            task = _task(len(tasks), running[-1] if running else None, outputs, args, kwargs)
            tasks.append(task)
            running.append(task.number)
        error: BaseException | None = None
        observer.begin(task)
        handles = _hooked(task, observer)
        try:
            return run(outputs, *args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for handle in handles:
                handle.remove()
            running.remove(task.number)
            observer.end(task, error)

    with engine_runs(around):
        yield tasks


def _task(number: int, outer: int | None, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
    _, keep_graph, create_graph, inputs = (*args, None, None, ())[:4]
    roots = list(dict.fromkeys(starting_node(output) for output in outputs))
    accumulates = bool(kwargs.get("accumulate_grad", True))
    return Task(
        number, outer, roots, reached(roots), bool(keep_graph), bool(create_graph), tuple(inputs or ()), accumulates
    )


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
    found = list(roots)
    seen = set(found)
    for node in found:
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                found.append(following)
    if len(found) > LARGE:
        for root in roots:
            keep_until_freed(root, found[len(roots) :])
    return found


def _hooked(task: Task, observer: Observer) -> list[Any]:
    before, handles = partial(_before, task, observer.before, task.ran.append), []
    for number, node in enumerate(task.nodes):
        handles.append(node.register_prehook(partial(before, number)))
        if observer.looks_after:
            handles.append(node.register_hook(partial(observer.after, task, number)))
    return handles


def _before(
    task: Task,
    tell: Callable[[Task, int, Gradients], Gradients | None],
    note: Callable[[int], None],
    node: int,
    gradients: Gradients,
) -> Gradients | None:
    changed = tell(task, node, gradients)
    note(node)
    return changed
