"""pytorch-graph 0.2.5: its OperationType, which says when and how something ran, not what kind of operation it is.

`torchatlas.OperationType` is the category of an operation, and a node has exactly one. The words of pytorch-graph
overlap: a matrix product in backward is a BACKWARD and a TENSOR_OP. So here each is a set of nodes:

    >>> from torchatlas.compat.pytorch_graph import OperationType
    >>> [node for node in graph.nodes if node in OperationType.BACKWARD]  # doctest: +SKIP
    >>> graph.where(OperationType.BACKWARD)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from torchatlas.graph import GraphNode, NodeKind, Phase
from torchatlas.graph import OperationType as Category


class OperationType(Enum):
    """The seven words of pytorch-graph, each with the nodes it stands for: `node in OperationType.BACKWARD`."""

    FORWARD = "forward"
    BACKWARD = "backward"
    TENSOR_OP = "tensor_op"
    LAYER_OP = "layer_op"
    GRADIENT_OP = "gradient_op"
    MEMORY_OP = "memory_op"
    CUSTOM = "custom"

    def __contains__(self, node: GraphNode) -> bool:
        return node.kind is NodeKind.OP and _HOLDS[self](node)

    def __call__(self, node: GraphNode) -> bool:
        """The same, for `graph.where(OperationType.BACKWARD)`."""
        return node in self


def _is_layer(node: GraphNode) -> bool:
    """Whether it is a whole call of a module, as track_tensor_ops=False records them."""
    return node.operation.startswith("nn.") or node.operation_type is Category.MODULE


_HOLDS: dict[OperationType, Callable[[GraphNode], bool]] = {
    OperationType.FORWARD: lambda node: node.phase is Phase.FORWARD,
    OperationType.BACKWARD: lambda node: node.phase is Phase.BACKWARD,
    OperationType.TENSOR_OP: lambda node: not _is_layer(node) and node not in OperationType.GRADIENT_OP,
    OperationType.LAYER_OP: _is_layer,
    OperationType.GRADIENT_OP: lambda node: node.operation_type in (Category.GRADIENT, Category.ACCUMULATE),
    OperationType.MEMORY_OP: lambda node: node.operation_type in (Category.VIEW, Category.MOVEMENT),
    OperationType.CUSTOM: lambda node: node.operation_type is Category.CUSTOM,
}
