"""The names that torch.fx and pytorch-graph have for nodes and edges, for people who come from there.

Everything here is another word for what GraphNode and GraphEdge hold: nothing else in this package uses it.
docs/coming-from.md says of every name what it means there and here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torchatlas.graph.arguments import TensorRef
from torchatlas.graph.nouns import NodeKind

if TYPE_CHECKING:
    from torchatlas.graph.objects import GraphEdge, GraphNode


class NodeAliases:
    """Other names for what a GraphNode holds."""

    __slots__ = ()

    @property
    def _node(self) -> GraphNode:
        return cast("GraphNode", self)

    # -- torch.fx ----------------------------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """What `kind` is called in torch.fx: placeholder, call_function, output."""
        return self._node.kind.fx_word

    @property
    def target(self) -> Any:
        """The operator itself where torch has one of this name, else the name; of an input or output its name."""
        return _operator_named(self._node.operation) if self._node.kind is NodeKind.OP else self._node.name

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments: in place of each tensor the node that made it, or the Value if none did."""
        return tuple(self._filled(item) for item in self._node.arguments.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments, as `args`."""
        return {name: self._filled(item) for name, item in (self._node.arguments.kwargs or {}).items()}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The arguments by name, sizes as tuples; parameters and buffers (weight, bias ...) are Values."""
        attributes = {name: _as_tuples(item) for name, item in self._node.attributes.items()}
        return attributes | {
            value.parameter.rpartition(".")[2]: value for value in self._node.inputs if value.parameter
        }

    def _filled(self, item: Any) -> Any:
        if isinstance(item, TensorRef):
            value = self._node.inputs[item.index]
            return value if value.producer is None else value.producer[0]
        if isinstance(item, (list, tuple)):
            return type(item)(self._filled(part) for part in item)
        return item

    # -- pytorch-graph -----------------------------------------------------------------------------------------------

    @property
    def module_name(self) -> str:
        """The path of its module; "" outside of all."""
        return self._node.scope.path

    @property
    def input_shapes(self) -> list[tuple[int | str, ...]]:
        """The shapes of `inputs`."""
        return [value.shape for value in self._node.inputs]

    @property
    def output_shapes(self) -> list[tuple[int | str, ...]]:
        """The shapes of `outputs`."""
        return [value.shape for value in self._node.outputs]

    @property
    def parameters(self) -> dict[str, Any]:
        """Another name of `attributes`."""
        return self._node.attributes

    @property
    def execution_time(self) -> float | None:
        """Seconds; None when it was not timed."""
        return None if self._node.time_ns is None else self._node.time_ns / 1e9

    @property
    def timestamp(self) -> float | None:
        """Seconds from the start of the recording to when it began; None when it was not timed."""
        return None if self._node.start_ns is None else self._node.start_ns / 1e9

    @property
    def memory_usage(self) -> int | None:
        """Another name of `memory_bytes`."""
        return self._node.memory_bytes

    @property
    def metadata(self) -> dict[str, Any]:
        """What pytorch-graph keeps beside its fields: the operation, its module, how many tensors it took and made."""
        return {
            "operation": self._node.operation,
            "phase": str(self._node.phase),
            "module_type": self._node.scope.type,
            "module_parameters": self._node.scope.parameters,
            "input_count": len(self._node.inputs),
            "output_count": len(self._node.outputs),
            "input_dtypes": [value.dtype for value in self._node.inputs],
            "input_devices": [value.device for value in self._node.inputs],
        }

    @property
    def parent_ids(self) -> list[int]:
        """Ids of `predecessors`."""
        return [node.id for node in self._node.predecessors]

    @property
    def child_ids(self) -> list[int]:
        """Ids of `successors`."""
        return [node.id for node in self._node.successors]


class EdgeAliases:
    """Other names for what a GraphEdge holds, of pytorch-graph."""

    __slots__ = ()

    @property
    def _edge(self) -> GraphEdge:
        return cast("GraphEdge", self)

    @property
    def edge_type(self) -> str:
        """The word of `kind`: "data" or "order"."""
        return str(self._edge.kind)

    @property
    def tensor_shape(self) -> tuple[int | str, ...] | None:
        """The shape of the tensor that is handed on; None for order."""
        return None if self._edge.value is None else self._edge.value.shape

    @property
    def metadata(self) -> dict[str, Any]:
        """Which result became which argument, and of what type it is."""
        value = self._edge.value
        return {
            "output_index": self._edge.output_index,
            "input_index": self._edge.input_index,
            "dtype": None if value is None else value.dtype,
            "device": None if value is None else value.device,
        }


def _as_tuples(item: Any) -> Any:
    return tuple(map(_as_tuples, item)) if isinstance(item, list) else item


def _operator_named(name: str) -> Any:
    """The operator of torch that has this name. It is looked up and never called: the name may come from a file."""
    import torch

    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts) or hasattr(type(torch.ops), parts[0]):
        return name
    resolved: Any = torch.ops
    for part in parts:
        if (resolved := getattr(resolved, part, None)) is None:
            return name
    return resolved if callable(resolved) and str(resolved) == name else name
