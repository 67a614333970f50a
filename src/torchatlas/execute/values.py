"""What the nodes of one run took and made: by name, in the order in which they ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchatlas.errors import NodeNotFoundError
from torchatlas.graph import GraphNode
from torchatlas.graph.names import short_name
from torchatlas.registry import near_names


@dataclass(frozen=True, eq=False)
class NodeIO:
    """What one node took and made in one run. Indexing by "inputs", "output", "hyperparameters" works as well.

    So does indexing by the keys of DLBacktrace's `node_io`: "input_values", "output_values", "layer_hyperparams",
    "input_sources", "output_children", "node_type", "layer_type", "func_name".
    """

    inputs: tuple[Any, ...]
    output: Any
    _hyperparameters: Callable[[], dict[str, Any]] = field(repr=False)
    node: GraphNode | None = field(default=None, repr=False)  # None for the output of a model that was not traced

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What it was called with by name; weights and biases are the model's own."""
        return self._hyperparameters()

    def __getitem__(self, name: str) -> Any:
        if name in _OF_VALUES:
            return getattr(self, _OF_VALUES[name])
        if self.node is None or name not in _OF_NODE:
            raise KeyError(f"{name!r} is not one of {', '.join(self.keys())}")
        return _OF_NODE[name](self.node)

    def keys(self) -> list[str]:
        """What it can be indexed by."""
        return [*_OF_VALUES, *(() if self.node is None else _OF_NODE)]


_OF_VALUES = {
    "inputs": "inputs",
    "output": "output",
    "hyperparameters": "hyperparameters",
    "input_values": "inputs",
    "output_values": "output",
    "layer_hyperparams": "hyperparameters",
}
_OF_NODE: dict[str, Callable[[GraphNode], Any]] = {
    "input_sources": lambda node: [one.name for one in node.predecessors],
    "output_children": lambda node: [one.name for one in node.successors],
    "node_type": lambda node: node.op,
    "layer_type": lambda node: str(node.operation_type),
    "func_name": lambda node: short_name(node.operation),
}


class NodeValues(Mapping[str, NodeIO]):
    """Node name -> what it took and made, in the order in which the nodes ran. `output` is the model's."""

    def __init__(self, entries: dict[str, NodeIO], output: Any) -> None:
        self._entries, self.output = entries, output

    def __getitem__(self, name: str) -> NodeIO:
        if name not in self._entries:
            near = " or ".join(map(repr, near_names(name, self._entries)))
            raise NodeNotFoundError(f"no value of {name!r} was kept" + (f"; did you mean {near}?" if near else ""))
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<values of {len(self)} nodes>"
