"""Graph -> the JSON of Model Explorer (pip install ai-edge-model-explorer): modules as layers, ops as nodes.

Tensors are edges. Edges of order, and links from an op of forward to its ops of backward, are overlays that the panel
"Edge overlays" shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from torchatlas.escapes import encodable
from torchatlas.export.namespaces import Place, places
from torchatlas.export.node_fields import edges_by_target, work_of
from torchatlas.files import replacing
from torchatlas.graph import EdgeKind, Graph, NodeKind
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, ROLES, Layout
from torchatlas.graph.formats import WRITERS
from torchatlas.graph.names import origin, short_name
from torchatlas.graph.timing import Measured
from torchatlas.units import format_bytes, format_count, format_flops

GRAPH_ID = "torchatlas"
_DATA = EDGE_KINDS.index(EdgeKind.DATA)
_BATCH = 2_000  # nodes that are one piece of the file
_OWN = ("aten.", "prims.")  # what most ops are: left out of a node's label


@WRITERS.add(".model-explorer.json")
def save_model_explorer(graph: Graph, path: Path) -> None:
    """Write the graph for `model-explorer step.model-explorer.json`."""
    encode = msgspec.json.encode
    with replacing(path) as file:
        head, piece = graph_facts(graph), list[bytes]()
        file.write(b'{"label":%s,"graphs":[{"id":%s' % (encode(_label(path)), encode(GRAPH_ID)))
        for name, item in head.items():
            file.write(b",%s:%s" % (encode(name), encode(item)))
        file.write(b',"nodes":[')
        for at, node in enumerate(graph_nodes(graph)):
            piece.append(encode(node))
            if not at % _BATCH:
                file.write(b",\n" * (at > 0) + b",\n".join(piece))
                piece.clear()
        file.write(b",\n" * bool(piece and len(graph) > 1) + b",\n".join(piece) + b"]}]}\n")


def _label(path: Path) -> str:
    return encodable(path.name[: -len(".model-explorer.json")])


def graph_facts(graph: Graph) -> dict[str, Any]:
    """The members of a Model Explorer graph other than its nodes: attributes of groups, and edge overlays."""
    facts: dict[str, Any] = {"groupNodeAttributes": _groups(graph)}
    columns, names = graph.columns, [encodable(name) for name in graph.index.names()]
    order = columns["edge_kind"] != _DATA
    linked = np.flatnonzero(columns["node_forward"] >= 0)
    overlays = [
        (
            "order: waits for, without its tensors",
            "#d9822b",
            columns["edge_source"][order],
            columns["edge_target"][order],
        ),
        ("forward op -> its backward ops", "#2b7bd9", columns["node_forward"][linked], linked),
    ]
    shown = [
        {
            "name": name,
            "edgeColor": colour,
            "showEdgesConnectedToSelectedNodeOnly": True,
            "edges": [
                {"sourceNodeId": names[source], "targetNodeId": names[target]}
                for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
            ],
        }
        for name, colour, sources, targets in overlays
        if len(sources)
    ]
    if shown:
        overlay = {"name": "torchatlas", "type": "edge_overlays", "overlays": shown}
        facts["tasksData"] = {"edgeOverlaysDataListLeftPane": [overlay]}
    return facts


def graph_nodes(graph: Graph) -> Iterator[dict[str, Any]]:
    """The nodes, each with its edges in, its attributes and the tensors it makes."""
    columns, tables = graph.columns, graph.tables
    names = [encodable(name) for name in graph.index.names()]
    distinct, place = places(graph)
    spaces = [namespace(one) for one in distinct]
    tensors, described = [_tensor(layout) for layout in tables.layouts], _Described(graph)
    edges = edges_by_target(graph, data=True)
    made, layout = columns["output_value"], np.append(columns["value_layout"], -1)
    op = KINDS.index(NodeKind.OP)
    labels = [encodable(_short(operation.name)) for operation in tables.operations]
    kinds, operations, places_of = columns["node_kind"].tolist(), columns["node_operation"].tolist(), place.tolist()
    for node, (low, high) in enumerate(pairwise(columns["output_ptr"].tolist())):
        outputs = layout[made[low:high]].tolist()
        yield {
            "id": names[node],
            "label": labels[operations[node]] if kinds[node] == op else names[node],
            "namespace": spaces[places_of[node]],
            "attrs": [{"key": key, "value": value} for key, value in described(node, names).items()],
            "incomingEdges": [
                {
                    "sourceNodeId": names[source],
                    "sourceNodeOutputId": str(max(output, 0)),
                    "targetNodeInputId": str(max(slot, 0)),
                }
                for source, output, slot in edges[node].tolist()
            ],
            "outputsMetadata": [
                {"id": str(at), "attrs": tensors[row]} for at, row in enumerate(outputs) if row >= 0
            ],
        }  # fmt: skip


def namespace(place: Place) -> str:
    """The path that Model Explorer groups by. Slashes divide it; one in the name of a module becomes one that does not.

    >>> namespace(("layer1", "a/b"))
    'layer1/a∕b'
    """
    return "/".join(encodable(part).replace("/", "∕") or "(no name)" for part in place)


def _short(operation: str) -> str:
    return short_name(operation) if operation.startswith(_OWN) else operation


def _tensor(layout: Layout) -> list[dict[str, str]]:
    shape = f"{layout.dtype}[{','.join(map(str, layout.shape))}]"
    return [{"key": "tensor_shape", "value": encodable(shape)}, {"key": "device", "value": encodable(layout.device)}]


class _Described:
    """The attributes of a node as text; those of equal calls are made once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        work, _ = work_of(graph)
        columns = graph.columns
        of_node = graph.index.path_of_call[columns["node_call"]].tolist()
        self._paths = [graph.index.paths[path] for path in of_node]
        self._calls: dict[Any, dict[str, str]] = {}
        self._layout = np.append(columns["value_layout"], -1)
        self._work = None
        if work is not None:
            self._work = list(
                zip(work.flops.tolist(), work.elementwise_flops.tolist(), work.bytes.tolist(), strict=True)
            )
        names = (
            "time_ns",
            "time_spread_ns",
            "memory_bytes",
            "iteration",
            "forward",
            "phase",
            "operation",
            "source",
            "kind",
        )
        self._runs = 1 if graph.timing is None else graph.timing.runs
        self._of_node = list(zip(*(columns[f"node_{name}"].tolist() for name in names), strict=True))

    def __call__(self, node: int, names: list[str]) -> dict[str, Any]:
        time, spread, memory, iteration, forward, phase, operation, source, kind = self._of_node[node]
        tables = self.graph.tables
        attributes: dict[str, Any] = {"operation": tables.operations[operation].name}
        if KINDS[kind] == NodeKind.OP:
            attributes["type"] = str(tables.operations[operation].type)
        attributes["phase"] = str(PHASES[phase])
        if path := self._paths[node]:  # it folds a layer of one op into that op, without a word
            attributes["module"] = path
        if self._work is not None and KINDS[kind] == NodeKind.OP:
            texts = zip(("FLOPs", "elementwise FLOPs", "bytes moved"), self._work[node], strict=True)
            attributes |= {name: format_bytes(n) if "b" in name else format_flops(n) for name, n in texts if n >= 0}
        if time >= 0:
            attributes["time"] = str(Measured(time, self._runs, spread if spread >= 0 else None))
        if memory >= 0:
            attributes["memory after it"] = format_bytes(memory)
        if source >= 0:
            line = tables.sources[source]
            attributes["source"] = f"{line.file}:{line.line} in {line.function}"
        if iteration > 0:
            attributes["iteration"] = str(iteration)
        attributes = {encodable(key): encodable(text) for key, text in (attributes | self._call(node)).items()}
        if forward >= 0:
            attributes["forward node"] = {"type": "node_ids", "nodeIds": [names[forward]]}
        backward = self.graph.index.backward_of(node).tolist()
        if backward:
            attributes["backward nodes"] = {"type": "node_ids", "nodeIds": [names[one] for one in backward]}
        return attributes

    def _call(self, node: int) -> dict[str, str]:
        """The arguments of a node, and the tensors it reads that no node made: parameters, buffers, states."""
        columns, index = self.graph.columns, self.graph.index
        taken, made = index.inputs(node), index.outputs(node)
        key = (
            int(columns["node_operation"][node]),
            int(columns["node_arguments"][node]),
            *self._layout[taken].tolist(),
            None,
            *self._layout[made].tolist(),
        )
        known = self._calls.get(key)
        if known is None:
            item = self.graph.nodes[node]
            known = self._calls[key] = {
                name: str(value) for name, value in item.attributes.items() if value is not None
            }
        texts = dict(known)
        for value in taken[columns["value_producer"][taken] < 0].tolist():
            name = int(columns["value_parameter"][value])
            if name >= 0:
                layout = self.graph.tables.layouts[int(columns["value_layout"][value])]
                role = str(ROLES[int(columns["value_role"][value])])
                text = f"{self.graph.tables.names[name]} {layout.dtype}{list(layout.shape)}"
                texts[role] = f"{texts[role]}, {text}" if role in texts else text
        return texts


def _groups(graph: Graph) -> dict[str, dict[str, str]]:
    """The attributes of each group by namespace; those of the whole graph under ""."""
    _, missing = work_of(graph)
    whole = graph.scopes[""]
    about = {"made of": origin(graph.source), "nodes": f"{len(graph):,}", "edges": f"{len(graph.edges):,}"}
    about |= {"parameters": format_count(whole.parameters)} if whole.parameters else {}
    about |= {f"note {at + 1}": note for at, note in enumerate([*graph.notes, missing]) if note}
    groups = {"": {key: encodable(text) for key, text in about.items()}}
    columns = graph.columns
    distinct, place = places(graph)
    calls = np.full(len(distinct), -1, np.int64)
    calls[place] = columns["node_call"]
    modules = [*graph.tables.modules, None]
    of_call = np.append(columns["call_module"], -1)
    for one, call in zip(distinct, calls.tolist(), strict=True):
        module = modules[int(of_call[call])]
        if module is not None and one:
            scope = graph.scopes[module.path]
            facts = {"module": module.path, "class": module.type, "parameters": format_count(scope.parameters)}
            facts |= {"time, all calls and phases": str(scope.measured)} if scope.measured is not None else {}
            groups[namespace(one)] = {key: encodable(text) for key, text in facts.items() if text}
    return groups
