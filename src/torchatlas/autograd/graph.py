"""Tensor -> Graph: what backward would run, with what nodes saved, their leaves, and the forward ops they belong to.

Edges go as gradients do, from the loss to the leaves, and carry the engine's input index. What a node saved for its
backward is among its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from torchatlas.autograd.check_arguments import Params, forward_graph, names_by_id
from torchatlas.autograd.graph_walk import FIRST, Walk, leaf_of, roots_of, sequence_nr, walk
from torchatlas.autograd.saved_tensors import SavedSlot, saved_by, storage_bytes, storage_key
from torchatlas.capturing.tensors import layout_name, shape_of
from torchatlas.graph import Graph
from torchatlas.graph.arguments import Call, TensorRef, encode
from torchatlas.graph.columns import (
    COLUMNS,
    EDGE_KINDS,
    KINDS,
    PHASES,
    ROLES,
    Array,
    Layout,
    Operation,
    Tables,
)
from torchatlas.graph.nouns import EdgeKind, NodeKind, Phase, Role
from torchatlas.operations import operation_type

if TYPE_CHECKING:
    from torchatlas.capturing.recording import Recording


def autograd_graph(
    outputs: torch.Tensor | Iterable[torch.Tensor],
    params: Params = None,
    model: nn.Module | None = None,
    *,
    forward: Graph | Recording | None = None,
    saved: bool = True,
) -> Graph:
    """The autograd graph behind one tensor or several.

    `params` or `model` name the leaves. `forward` is a recording of what built the graph, in this process: nodes then
    belong to the module and line of their forward op. `saved=False` leaves out what nodes saved, which is faster.
    `graph.recorded["topological_nr"]` holds the longest way from each node to a leaf, as the engine counts it, and
    `graph.recorded["input_nr"]` the input of the target that each edge leads to.
    """
    roots, names, recorded = roots_of(outputs, "autograd_graph"), names_by_id(params, model), forward_graph(forward)
    graph = graph_of_walk(walk(roots), names, saved=saved)
    if recorded is not None:
        link(graph, recorded)
    return graph


# -- columns -----------------------------------------------------------------------------------------------------------


def graph_of_walk(found: Walk, names: Mapping[int, str], *, saved: bool) -> Graph:
    """Values are the gradients on the edges; after them come leaves and saved tensors, which no node makes."""
    count, edges = len(found.nodes), len(found.source)
    source, target = np.array(found.source, np.int64), np.array(found.target, np.int64)
    leaves = {number: leaf for number, node in enumerate(found.nodes) if (leaf := leaf_of(node)) is not None}
    tables, extras = Tables(threads=["main"], devices=[]), _Extras(names, leaves)
    incoming = np.bincount(target, minlength=count).tolist()
    known: dict[str, int] = {}
    operations: dict[Operation, int] = {}
    operation, slots, slot_ptr = [], [], [0]
    for number, node in enumerate(found.nodes):
        full = node.name()  # not its type: nodes of different names may share one
        row = known.get(full)
        if row is None:
            name = full.rpartition("::")[2]  # torch::autograd::AccumulateGrad
            row = known[full] = operations.setdefault(Operation(name, operation_type(name)), len(operations))
        operation.append(row)
        for metadata in node._input_metadata:
            slots.append(extras.gradient_layout(metadata))
        slot_ptr.append(len(slots))
        extras.add(node, number, incoming[number], saved and number not in leaves)
    tables.operations, tables.layouts = list(operations), list(extras.layouts)
    tables.names, tables.devices, tables.arguments = list(extras.names), list(extras.devices), list(extras.texts)
    edge_layout = _edge_layouts(slots, np.array(slot_ptr), target, np.array(found.index, np.int64), extras)
    value_count = edges + len(extras.owner)
    owner = np.array(extras.owner, np.int64)
    # inputs: gradients in the order of their slots, then what the node holds
    into = np.concatenate([target, owner])
    order = np.lexsort((np.concatenate([found.index, np.full(len(owner), 1 << 30)]), into))
    place = np.empty(value_count, np.int64)
    place[order] = np.arange(value_count)
    input_ptr = np.searchsorted(into[order], np.arange(count + 1))
    output_index = np.arange(edges) - np.searchsorted(source, source)

    def both(of_edges: Any, of_extras: Any) -> Array:
        return np.concatenate([np.broadcast_to(of_edges, edges), np.asarray(of_extras).reshape(-1)])

    columns: dict[str, Any] = {
        "node_kind": np.full(count, KINDS.index(NodeKind.OP)),
        "node_operation": operation,
        "node_phase": np.full(count, PHASES.index(Phase.BACKWARD)),
        "node_arguments": extras.argument,
        "node_sequence_nr": [number if (number := sequence_nr(node)) < FIRST else -1 for node in found.nodes],
        "node_iteration": np.zeros(count),
        "node_thread": np.zeros(count),
        "input_ptr": input_ptr,
        "output_ptr": np.searchsorted(source, np.arange(count + 1)),
        "input_value": order,
        "input_written": np.zeros(value_count),
        "output_value": np.arange(edges),
        "value_storage": both(-1, extras.storage),
        "value_layout": both(edge_layout, extras.layout),
        "value_offset": both(0, extras.offset),
        "value_version": both(0, extras.version),
        "value_producer": both(source, np.full(len(owner), -1)),
        "value_output_index": both(output_index, np.full(len(owner), -1)),
        "value_view_of": both(-1, [edges + leaf if leaf >= 0 else -1 for leaf in extras.view_of]),
        "value_role": both(ROLES.index(Role.TEMPORARY), extras.role),
        "value_parameter": both(-1, extras.parameter),
        "storage_bytes": extras.storage_bytes,
        "storage_device": extras.storage_device,
        "storage_role": extras.storage_role,
        "edge_source": source,
        "edge_target": target,
        "edge_output_index": output_index,
        "edge_input_index": place[:edges] - input_ptr[target] if edges else [],
        "edge_value": np.arange(edges),
        "edge_kind": np.full(edges, EDGE_KINDS.index(EdgeKind.DATA)),
    }
    filled = {
        name: np.ascontiguousarray(columns[name], dtype)
        if name in columns
        else np.full(_length(unit, count, extras), -1, dtype)
        for name, (dtype, unit) in COLUMNS.items()
    }
    metadata = {"torch": torch.__version__.partition("+")[0]}
    recorded = {"topological_nr": _topological(count, found), "input_nr": np.array(found.index, np.int64)}
    return Graph(filled, tables, source="autograd", metadata=metadata, recorded=recorded)


def _length(unit: str, nodes: int, extras: _Extras) -> int:
    return {"node": nodes, "storage": len(extras.storage_bytes)}.get(unit, 0)


def _topological(count: int, found: Walk) -> Array:
    """The longest way from each node to a leaf. The engine takes it to leave out what cannot lead to an input."""
    numbers = [0] * count
    for source, target in zip(reversed(found.source), reversed(found.target), strict=True):
        if numbers[target] >= numbers[source]:
            numbers[source] = numbers[target] + 1
    return np.array(numbers, np.int64)


def _edge_layouts(slots: list[int], slot_ptr: Array, target: Array, index: Array, extras: _Extras) -> Array:
    """What arrives at an input of a node: the shape of what its forward op made."""
    place = slot_ptr[target] + index if len(target) else np.empty(0, np.int64)
    known = place < slot_ptr[target + 1] if len(target) else np.empty(0, bool)  # a Function may say less than it takes
    unknown = extras.layout_row(Layout((), None, "unknown", "unknown", "unknown")) if not known.all() else -1
    return np.where(known, np.array([*slots, -1])[np.where(known, place, -1)], unknown)


class _Extras:
    """Leaves, by the nodes that accumulate their gradients, then saved tensors; and the tables that values share."""

    def __init__(self, names: Mapping[int, str], leaves: Mapping[int, torch.Tensor]) -> None:
        self._given = names
        self.layouts: dict[Layout, int] = {}
        self.names: dict[str, int] = {}
        self.devices: dict[str, int] = {}
        self.texts: dict[str, int] = {encode(Call()): 0}
        self.argument: list[int] = []  # per node
        self.owner: list[int] = []  # per value, as what follows
        self.storage: list[int] = []
        self.layout: list[int] = []
        self.offset: list[int] = []
        self.version: list[int] = []
        self.role: list[int] = []
        self.parameter: list[int] = []
        self.view_of: list[int] = []  # the leaf whose storage it has
        self.storage_bytes: list[int] = []
        self.storage_device: list[int] = []
        self.storage_role: list[int] = []
        self._storages: dict[int, int] = {}
        self._layouts_of_metadata: dict[Any, int] = {}
        self._signatures: dict[tuple[str, ...], int] = {}
        self._leaves: dict[int, tuple[int, torch.Tensor]] = {}  # by storage
        for place, (number, leaf) in enumerate(leaves.items()):  # first: what views them comes after
            self._value(number, leaf, Role.PARAMETER, leaf._version)
            self._leaves.setdefault(storage_key(leaf), (place, leaf))

    def layout_row(self, layout: Layout) -> int:
        return self.layouts.setdefault(layout, len(self.layouts))

    def gradient_layout(self, metadata: Any) -> int:
        shape = ("*",) if metadata.is_cpp_nested_tensor else tuple(metadata.shape)  # the former does not tell
        key = shape, metadata.dtype, metadata.device
        try:
            return self._layouts_of_metadata[key]
        except (KeyError, TypeError):  # not seen yet; or a symbolic size, which has no hash
            nested = metadata.is_nested_tensor  # its symbols are of no program
            sizes = tuple(size if isinstance(size, int) else "*" if nested else str(size) for size in shape)
            dtype = str(metadata.dtype).removeprefix("torch.")
            row = self.layout_row(Layout(sizes, None, dtype, str(metadata.device), "gradient"))
            if all(isinstance(size, int) for size in shape):
                self._layouts_of_metadata[key] = row
            return row

    def add(self, node: Any, number: int, gradients: int, saved: bool) -> None:
        """What the forward of a node saved, if it is wanted."""
        held = saved_by(node) if saved else []
        self.argument.append(self._saved(number, gradients, held) if held else 0)

    def _saved(self, number: int, gradients: int, held: list[SavedSlot]) -> int:
        """The row of the arguments that say which input, after the gradients, lies in which slot."""
        slots = []
        for each in held:
            if each.data is not None:
                role = Role.PARAMETER if storage_key(each.data) in self._leaves else Role.ACTIVATION
                self._value(number, each.data, role, each.version)
                slots.append(each.slot)
        key = (str(gradients), *slots)
        row = self._signatures.get(key)
        if row is None:
            references = {slot: TensorRef(gradients + place) for place, slot in enumerate(slots)}
            row = self.texts.setdefault(encode(Call((), references)), len(self.texts))
            self._signatures[key] = row
        return row

    def _value(self, owner: int, tensor: torch.Tensor, role: Role, version: int) -> None:
        strided = tensor.layout is torch.strided and not tensor.is_nested
        layout = Layout(
            tuple(shape_of(tensor)),
            tuple(tensor.stride()) if strided else None,
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
            "strided" if strided else layout_name(tensor),
        )
        name = self._given.get(id(tensor), "")
        place, leaf = self._leaves.get(storage_key(tensor), (-1, None))
        self.view_of.append(place if leaf is not tensor else -1)
        self.owner.append(owner)
        self.storage.append(self._storage(tensor, role))
        self.layout.append(self.layout_row(layout))
        self.offset.append(int(tensor.storage_offset()) if strided else 0)
        self.version.append(version)
        self.role.append(ROLES.index(role))
        self.parameter.append(self.names.setdefault(name, len(self.names)) if name else -1)

    def _storage(self, tensor: torch.Tensor, role: Role) -> int:
        key = storage_key(tensor)
        row = self._storages.get(key)
        if row is None:
            row = self._storages[key] = len(self.storage_bytes)
            self.storage_bytes.append(storage_bytes(tensor))
            self.storage_device.append(self.devices.setdefault(str(tensor.device), len(self.devices)))
            self.storage_role.append(ROLES.index(role))
        return row


# -- forward -----------------------------------------------------------------------------------------------------------


def link(graph: Graph, forward: Graph) -> None:
    """Give each node the module and the line of the forward op that made it, found by their numbers."""
    made_by = _by_number(forward)
    found = np.array([_maker(number, made_by) for number in graph.columns["node_sequence_nr"].tolist()], np.int64)
    calls = _calls_by_path(forward)
    known = found >= 0
    for column in ("node_call", "node_source"):
        graph.columns[column][known] = forward.columns[column][found[known]]
    for column in ("call_module", "call_parent", "call_index"):
        graph.columns[column] = forward.columns[column].copy()
    graph.tables.modules = list(forward.tables.modules)
    graph.tables.sources = list(forward.tables.sources)
    for node, name in _accumulated(graph):  # it belongs to the module whose parameter it is
        graph.columns["node_call"][node] = calls.get(name.rpartition(".")[0], -1)


def _by_number(forward: Graph) -> dict[int, tuple[int, bool]]:
    """Sequence number -> the forward op that made the node of this number, and whether it wrote to what it was given.

    Every thread counts for itself: a number that several have used belongs to nobody.
    """
    columns = forward.columns
    numbers, threads = columns["node_sequence_nr"], columns["node_thread"]
    phases = [PHASES.index(phase) for phase in (Phase.FORWARD, Phase.RECOMPUTE, Phase.OTHER)]
    nodes = np.flatnonzero(np.isin(columns["node_phase"], phases) & (numbers >= 0))[::-1]
    writes = np.zeros(len(forward), bool)
    writes[np.repeat(np.arange(len(forward)), np.diff(columns["input_ptr"]))[columns["input_written"] > 0]] = True
    found = {int(numbers[node]): (int(node), bool(writes[node])) for node in nodes}
    if len(np.unique(threads[nodes])) > 1:
        pairs = np.unique(np.stack([numbers[nodes], threads[nodes]], 1), axis=0)
        used, times = np.unique(pairs[:, 0], return_counts=True)
        for number in used[times > 1].tolist():
            del found[number]
    return found


def _maker(number: int, made_by: dict[int, tuple[int, bool]]) -> int:
    """The forward op that made a node; -1 if it is not known.

    Who writes to a view makes three nodes: of the op itself, of its base (CopySlices) and of the view, anew.
    """
    for back in range(3):
        node, writes = made_by.get(number - back, (-1, False))
        if node >= 0:
            return node if writes or not back else -1
    return -1


def _calls_by_path(graph: Graph) -> dict[str, int]:
    """The first call of each module."""
    paths = [module.path for module in graph.tables.modules]
    rows = graph.columns["call_module"].tolist()
    return {paths[module]: call for call, module in reversed(list(enumerate(rows)))}


def _accumulated(graph: Graph) -> list[tuple[int, str]]:
    """The nodes that accumulate the gradient of a parameter which has a name."""
    columns, names = graph.columns, graph.tables.names
    leaves = [row for row, operation in enumerate(graph.tables.operations) if operation.name == "AccumulateGrad"]
    found = []
    for node in np.flatnonzero(np.isin(columns["node_operation"], leaves)).tolist():
        held = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        named = [row for row in columns["value_parameter"][held].tolist() if row >= 0]
        if named:
            found.append((node, names[named[0]]))
    return found
