"""The nouns: one Graph for every source, made of columns, handing out nodes, edges, values, storages and scopes."""

from torchatlas.graph.arguments import Call, Constant, TensorRef
from torchatlas.graph.columns import Layout, Module, Operation, Parameter, Tables
from torchatlas.graph.graph import Graph
from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase, Role, SourceLine
from torchatlas.graph.objects import GraphEdge, GraphNode, Storage, Value
from torchatlas.graph.scopes import Scope

__all__ = [
    "Call",
    "Constant",
    "EdgeKind",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "Layout",
    "Module",
    "NodeKind",
    "Operation",
    "OperationType",
    "Parameter",
    "Phase",
    "Role",
    "Scope",
    "SourceLine",
    "Storage",
    "Tables",
    "TensorRef",
    "Value",
]
