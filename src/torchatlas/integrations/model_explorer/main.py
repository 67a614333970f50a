"""`.atlas` -> the graphs of Model Explorer, and numbers to colour their nodes by: what its `--extensions` loads."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from torchatlas.errors import AtlasError, MissingDependencyError
from torchatlas.export.model_explorer import GRAPH_ID, graph_facts, graph_nodes
from torchatlas.export.node_data import QUANTITIES, node_data
from torchatlas.graph import Graph

try:
    from model_explorer import Adapter, AdapterMetadata, graph_builder, node_data_builder
    from model_explorer.node_data_provider import (
        GetConfigEditorsResult,
        NodeDataProvider,
        NodeDataProviderFilter,
        NodeDataProviderMetadata,
        NodeDataProviderResult,
    )
except ImportError as error:
    raise MissingDependencyError(
        "torchatlas.integrations.model_explorer needs Model Explorer: pip install 'torchatlas[model-explorer]'"
    ) from error

_ADAPTER = "torchatlas"


class AtlasAdapter(Adapter):  # type: ignore[misc]  # Model Explorer has no annotations
    """Reads a recorded graph."""

    metadata = AdapterMetadata(
        id=_ADAPTER,
        name="torchatlas adapter",
        description="Graphs of PyTorch programs that torchatlas recorded",
        fileExts=["atlas"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """The graph of a file as one graph of Model Explorer."""
        return {"graphs": [as_dataclasses(_loaded(model_path))]}


class AtlasNodeData(NodeDataProvider):  # type: ignore[misc]
    """Time, memory, FLOPs and bytes of the nodes, in the panel "Node data providers"."""

    metadata: ClassVar = [
        NodeDataProviderMetadata(
            id=f"{_ADAPTER}_{by}",
            name=f"torchatlas: {name}",
            description=f"Colour nodes by {name}",
            icon="palette",
            filter=NodeDataProviderFilter(adapterIds=[_ADAPTER]),
        )
        for by, (name, _) in QUANTITIES.items()
    ]

    def get_config_editors(self, provider_id: str) -> Any:
        """There is nothing to choose."""
        return GetConfigEditorsResult(configEditors=[])

    def run(self, provider_id: str, model_path: str, graph_id: str, config_values: dict[str, Any], graph: Any) -> Any:
        """The numbers of one quantity, or why there are none."""
        try:
            members = node_data(_loaded(model_path), provider_id.removeprefix(f"{_ADAPTER}_"))
        except AtlasError as error:
            return NodeDataProviderResult(error=str(error))
        results = {node: node_data_builder.NodeDataResult(**result) for node, result in members.pop("results").items()}
        gradient = [node_data_builder.GradientItem(**stop) for stop in members.pop("gradient")]
        return NodeDataProviderResult(node_data_builder.GraphNodeData(results, gradient=gradient, **members))


def as_dataclasses(graph: Graph) -> Any:
    """A graph as Model Explorer's own classes hold it."""
    facts = graph_facts(graph)
    overlays = [
        graph_builder.EdgeOverlaysData(one["name"], one["type"], [_overlay(**each) for each in one["overlays"]])
        for one in facts.pop("tasksData", {}).get("edgeOverlaysDataListLeftPane", [])
    ]
    nodes = [_node(**node) for node in graph_nodes(graph)]
    return graph_builder.Graph(GRAPH_ID, nodes, **facts, tasksData=graph_builder.TasksData(overlays))


def _node(attrs: Any, incomingEdges: Any, outputsMetadata: Any, **rest: Any) -> Any:  # as theirs are named
    return graph_builder.GraphNode(
        **rest,
        attrs=[_attribute(**each) for each in attrs],
        incomingEdges=[graph_builder.IncomingEdge(**each) for each in incomingEdges],
        outputsMetadata=[
            graph_builder.MetadataItem(each["id"], [_attribute(**one) for one in each["attrs"]])
            for each in outputsMetadata
        ],
    )


def _attribute(key: str, value: Any) -> Any:
    return graph_builder.KeyValue(
        key, graph_builder.NodeIdsNodeAttributeValue(**value) if isinstance(value, dict) else value
    )


def _overlay(edges: Any, **rest: Any) -> Any:
    return graph_builder.EdgeOverlay(**rest, edges=[graph_builder.Edge(**edge) for edge in edges])


def _loaded(path: str) -> Graph:
    changed = Path(path).stat().st_mtime_ns if Path(path).exists() else 0
    return _read(path, changed)


@lru_cache(maxsize=2)  # the graph is asked for once, and again for each quantity
def _read(path: str, changed: int) -> Graph:
    return Graph.load(path)
