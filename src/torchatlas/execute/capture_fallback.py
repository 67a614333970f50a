"""Run a model that torch.export cannot trace, and compare each op with the path that was captured.

Python decides in such a model which ops run. So the model itself runs every time. The first op that differs from the
captured path ends the run with an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.capture import capture
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.replaying import inputs_of
from torchatlas.capturing.row_schema import Plan
from torchatlas.errors import InputMismatchError
from torchatlas.execute.node_values import RunOptions, Taken, cloned
from torchatlas.execute.program import Failed
from torchatlas.graph import Graph, GraphNode
from torchatlas.inputs import argument_names, named_tensors
from torchatlas.torch_private import no_dispatch_modes, pytree

NOTE = (
    "torch.export cannot trace this model: this is the path that its example took. The model itself runs, and other "
    "inputs are refused when they take another path"
)


class Followed:
    """Runs a model along a captured path. Nodes go by their names in the graph."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self._model, self._graph = model, graph

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions) -> tuple[Any, dict[str, Taken]]:
        """Run the model. Returns its result and, by name, the inputs and outputs of the nodes to keep."""
        path = _Path(self._graph.where(kind="op"), options)
        inputs = {node.name for node in self._graph.where(kind="input")}
        for name, tensor in named_tensors(argument_names(self._model, args, kwargs)):
            if name in inputs:
                path.arrived(name, tensor)
        try:
            with Recording(self._model, around=path.around):
                result = self._model(*args, **kwargs)
        except Exception as error:
            if path.problem is not None:
                raise path.problem from None
            if path.position >= len(path.nodes):
                raise
            raise Failed(path.nodes[path.position].name, error) from error
        path.end()
        if options.keeps("output"):
            path.kept["output"] = Taken(tuple(pytree.tree_leaves(result)), None)
        return result, path.kept


class _Left(Exception):
    """Raised where the model leaves the path. Not a TypeError: arithmetic operators would catch that one."""


class _Path:
    """The ops of the path, one after another."""

    def __init__(self, nodes: list[GraphNode], options: RunOptions) -> None:
        self.nodes, self.options = nodes, options
        self.position = 0
        self.problem: InputMismatchError | None = None  # kept: the model may catch what is raised inside of it
        self.kept: dict[str, Taken] = {}
        self._lock = threading.RLock()

    def arrived(self, name: str, tensor: torch.Tensor) -> None:
        if self.options.keeps(name):
            self.kept[name] = Taken((), _copied(tensor))
        if self.options.watch is not None:
            self.options.watch(name, tensor)

    def around(self, plan: Plan, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Wrap the recording function of an operator, so that each call is compared with the path."""

        def followed(args: Any, kwargs: Any) -> Any:
            with self._lock:
                node = self.nodes[self.position] if self.position < len(self.nodes) else None
                if node is None or node.operation != plan.name:
                    run(args, kwargs)  # what raises, and the model handles, is not on the path
                    raise self._refused(f"runs {plan.name}", node)
                taken: tuple[Any, ...] = ()
                if self.options.keeps(node.name):
                    taken = tuple(_copied(tensor) for tensor, _ in inputs_of(plan, args, kwargs))
                out = run(args, kwargs)
                if node.name in self.options.edits:
                    out = _edited(out, self.options.edits[node.name], in_place=plan.writes)
                if self.options.keeps(node.name):
                    self.kept[node.name] = Taken(taken, _copied(out))
                if self.options.watch is not None:
                    with no_dispatch_modes():
                        self.options.watch(node.name, out)
                self.position += 1
                return out

        return followed

    def end(self) -> None:
        """The model has returned: the path must be at its end."""
        if self.position < len(self.nodes):
            self._refused("ends", self.nodes[self.position])
        if self.problem is not None:
            raise self.problem

    def _refused(self, now: str, node: GraphNode | None) -> Exception:
        then = "ended"
        if node is not None:
            then = f"ran {node.name} ({node.operation})" + (f", {node.source}" if node.source else "")
        self.problem = self.problem or InputMismatchError(
            f"the model takes another path for these inputs: after {self.position:,} ops it {now}, where the traced "
            f"path {then}. Trace it again with these."
        )
        return _Left(str(self.problem))


def _edited(out: Any, change: Callable[[Any], Any], in_place: bool) -> Any:
    with no_dispatch_modes():
        changed = change(out)
        if in_place and isinstance(out, torch.Tensor):  # seen by all that hold the tensor
            return out.copy_(changed)
    return changed


def _copied(value: Any) -> Any:
    with no_dispatch_modes():
        return cloned(value)


def captured_path(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """The graph of the path that an example takes."""
    graph = capture(model, *args, kwargs=kwargs)
    graph.notes.append(NOTE)
    return graph
