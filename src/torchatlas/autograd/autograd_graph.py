"""Tensor -> Graph: what backward would run, with what nodes saved, their leaves, and the forward ops they belong to.

Edges go as gradients do, from the loss to the leaves. A node has one input for each gradient that arrives, in the order
of the engine's input numbers, then one for each tensor it saved for its backward.

`edge.input_index` counts these inputs, as in every graph: `edge.target.inputs[edge.input_index]` is `edge.value`. The
engine's number is another one, for it adds up all gradients that arrive at one input of a node; it stands in
`graph.recorded["input_nr"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.autograd.check_arguments import Params, forward_graph, names_by_id
from torchatlas.autograd.graph_walk import FIRST, Walk, leaf_of, roots_of, sequence_nr, walk
from torchatlas.autograd.saved_tensors import SavedSlot, saved_by, storage_bytes, storage_key
from torchatlas.capturing.table_rows import layout_row
from torchatlas.capturing.tensors import layout_name, shape_of
from torchatlas.graph import Graph
from torchatlas.graph.arguments import Call, TensorRef, encode
from torchatlas.graph.builder import Builder
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, ROLES, Array, Layout, Operation
from torchatlas.graph.nouns import EdgeKind, NodeKind, Phase, Role
from torchatlas.operations import operation_type

if TYPE_CHECKING:
    from torchatlas.capturing.recording import Recording


@explains_arguments
def autograd_graph(
    outputs: torch.Tensor | Iterable[torch.Tensor],
    params: Params = None,
    model: nn.Module | None = None,
    *,
    forward: Graph | Recording | None = None,
    saved: bool = True,
) -> Graph:
    """The autograd graph behind one tensor or several.

    `graph.recorded["topological_nr"]` holds for each node the longest path to a leaf, as the engine counts it.
    `graph.recorded["input_nr"]` holds for each edge the engine's number of the input it leads to. It differs from
    `edge.input_index` where several gradients arrive at one input: the engine adds them up, the graph lists each.

    Args:
        outputs: The tensor, or tensors, to begin at: usually a loss.
        params: Names of leaves: a dictionary from name to tensor, or `model.named_parameters()`.
        model: Names the leaves as the model does.
        forward: A recording of what built the graph, in this process: nodes then belong to the module and line of their
            forward op.
        saved: False leaves out what nodes saved for backward, which is faster.
    Returns:
        A graph whose `source` is "autograd"; edges lead from the output to the leaves, as backward runs.
    Raises:
        InvalidInputError: `outputs` are no tensors.
        AnalysisError: There is no graph behind them: they do not require a gradient, or are leaves.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Linear(4, 2)
        >>> graph = atlas.autograd_graph(model(torch.ones(1, 4)).sum(), model=model)
        >>> [node.name for node in graph][:2]
        ['SumBackward0', 'AddmmBackward0']
    """
    roots, names, recorded = roots_of(outputs, "autograd_graph"), names_by_id(params, model), forward_graph(forward)
    graph = graph_of_walk(walk(roots), names, saved=saved)
    if recorded is not None:
        link(graph, recorded)
    return graph


# -- columns -----------------------------------------------------------------------------------------------------------


def graph_of_walk(walk: Walk, names: Mapping[int, str], *, saved: bool) -> Graph:
    """The graph of a walk. Its values are gradients on edges, then leaves and saved tensors, which no node makes."""
    count, edges = len(walk.nodes), len(walk.source)
    source, target, index = (np.array(column, np.int64) for column in (walk.source, walk.target, walk.index))
    leaves = {number: leaf for number, node in enumerate(walk.nodes) if (leaf := leaf_of(node)) is not None}
    builder = Builder()
    held = _HeldTensors(builder, edges, names, leaves)
    incoming = np.bincount(target, minlength=count).tolist()
    known: dict[str, int] = {}
    operation, arguments, slots, slot_ptr = [], [], [], [0]
    for number, node in enumerate(walk.nodes):
        full = node.name()  # not its type: nodes of different names may share one
        row = known.get(full)
        if row is None:
            name = full.rpartition("::")[2]  # torch::autograd::AccumulateGrad
            row = known[full] = builder.row("operations", Operation(name, operation_type(name)))
        operation.append(row)
        for metadata in node._input_metadata:
            slots.append(held.gradient_layout(metadata))
        slot_ptr.append(len(slots))
        arguments.append(held.saved(number, incoming[number], saved_by(node) if saved and number not in leaves else []))
    # Inputs: gradients in the order of their slots, then what the node holds
    owner = np.array(held.owner, np.int64)
    into = np.concatenate([target, owner])
    order = np.lexsort((np.concatenate([index, np.full(len(owner), 1 << 30)]), into))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    first_input = np.searchsorted(into[order], np.arange(count))
    output_index = np.arange(edges) - np.searchsorted(source, source)
    builder.fill(
        "node",
        count,
        kind=KINDS.index(NodeKind.OP),
        operation=operation,
        phase=PHASES.index(Phase.BACKWARD),
        arguments=arguments,
        sequence_nr=[number if (number := sequence_nr(node)) < FIRST else -1 for node in walk.nodes],
        iteration=0,
        thread=0,
        input_count=np.bincount(into, minlength=count),
        output_count=np.bincount(source, minlength=count),
    )
    builder.fill("input", len(order), value=order, written=0)
    builder.fill("output", edges, value=np.arange(edges))
    builder.fill(
        "value",
        edges,
        layout=_edge_layouts(slots, np.array(slot_ptr), target, index, builder),
        offset=0,
        version=0,
        producer=source,
        output_index=output_index,
        role=ROLES.index(Role.TEMPORARY),
    )
    builder.fill(
        "edge",
        edges,
        source=source,
        target=target,
        output_index=output_index,
        input_index=position[:edges] - first_input[target],
        value=np.arange(edges),
        kind=EDGE_KINDS.index(EdgeKind.DATA),
    )
    metadata = {"torch": torch.__version__.partition("+")[0]}
    return builder.graph(
        "autograd", metadata=metadata, recorded={"topological_nr": _topological(count, walk), "input_nr": index}
    )


def _topological(count: int, walk: Walk) -> Array:
    """The longest path from each node to a leaf. The engine uses it to skip nodes that cannot lead to an input."""
    numbers = [0] * count
    for source, target in zip(reversed(walk.source), reversed(walk.target), strict=True):
        if numbers[target] >= numbers[source]:
            numbers[source] = numbers[target] + 1
    return np.array(numbers, np.int64)


def _edge_layouts(slots: list[int], slot_ptr: Array, target: Array, index: Array, builder: Builder) -> Array:
    """The layout of the gradient on each edge: that of the output, of the target's forward op, that it belongs to."""
    slot = slot_ptr[target] + index
    known = slot < slot_ptr[target + 1]  # a Function may say less than it takes
    unknown = builder.row("layouts", Layout((), None, "unknown", "unknown", "unknown")) if not known.all() else -1
    return np.where(known, np.array([*slots, -1])[np.where(known, slot, -1)], unknown)


class _HeldTensors:
    """The tensors that nodes hold, as values from `first` on: leaves, then saved tensors."""

    def __init__(
        self, builder: Builder, first: int, names: Mapping[int, str], leaves: Mapping[int, torch.Tensor]
    ) -> None:
        self._builder, self._first, self._names = builder, first, names
        self.owner: list[int] = []  # of each value, the node that holds it
        self._storages: dict[int, int] = {}
        self._layouts: dict[Any, int] = {}  # of gradients, by shape, dtype and device
        self._no_arguments = builder.row("arguments", encode(Call()))
        self._signatures: dict[tuple[str, ...], int] = {}
        self._leaves: dict[int, tuple[int, torch.Tensor]] = {}  # by storage: the value of a leaf, and the leaf
        for number, leaf in leaves.items():  # first: what views them comes after
            value = self._value(number, leaf, Role.PARAMETER, leaf._version)
            self._leaves.setdefault(storage_key(leaf), (value, leaf))

    def gradient_layout(self, metadata: Any) -> int:
        shape = ("*",) if metadata.is_cpp_nested_tensor else tuple(metadata.shape)  # the former does not tell
        key = shape, metadata.dtype, metadata.device
        try:
            return self._layouts[key]
        except (KeyError, TypeError):  # not seen yet; or a symbolic size, which has no hash
            nested = metadata.is_nested_tensor  # its symbols are of no program
            sizes = tuple(size if isinstance(size, int) else "*" if nested else str(size) for size in shape)
            dtype = str(metadata.dtype).removeprefix("torch.")
            row = self._builder.row("layouts", Layout(sizes, None, dtype, str(metadata.device), "gradient"))
            if all(isinstance(size, int) for size in shape):
                self._layouts[key] = row
            return row

    def saved(self, number: int, gradients: int, slots: list[SavedSlot]) -> int:
        """Add values for what a node saved; returns the row of the arguments that say which input is in which slot.

        Saved tensors come after the gradients among the inputs of the node.
        """
        names = []
        for slot in slots:
            if slot.data is not None:
                role = Role.PARAMETER if storage_key(slot.data) in self._leaves else Role.ACTIVATION
                self._value(number, slot.data, role, slot.version)
                names.append(slot.slot)
        if not slots:
            return self._no_arguments
        key = (str(gradients), *names)
        row = self._signatures.get(key)
        if row is None:
            references = {name: TensorRef(gradients + position) for position, name in enumerate(names)}
            row = self._signatures[key] = self._builder.row("arguments", encode(Call((), references)))
        return row

    def _value(self, owner: int, tensor: torch.Tensor, role: Role, version: int) -> int:
        strided = tensor.layout is torch.strided and not tensor.is_nested
        stride = tensor.stride() if strided else layout_name(tensor)
        key = storage_key(tensor)
        if key not in self._storages:
            self._storages[key] = self._builder.storage(storage_bytes(tensor), str(tensor.device), role)
        value, leaf = self._leaves.get(key, (-1, None))
        self.owner.append(owner)
        return self._first + self._builder.value(
            layout_row(shape_of(tensor), stride, tensor.dtype, tensor.device),
            role,
            storage=self._storages[key],
            name=self._names.get(id(tensor), ""),
            version=version,
            view_of=value if leaf is not tensor else -1,
            offset=int(tensor.storage_offset()) if strided else 0,
        )


# -- forward -----------------------------------------------------------------------------------------------------------


def link(graph: Graph, forward: Graph) -> None:
    """Give each node the module and the line of the forward op that made it, found by their numbers."""
    maker = makers(graph, forward)
    calls = _calls_by_path(forward)
    known = maker >= 0
    for column in ("node_call", "node_source"):
        graph.columns[column][known] = forward.columns[column][maker[known]]
    for column in ("call_module", "call_parent", "call_index"):
        graph.columns[column] = forward.columns[column].copy()
    graph.tables.modules = list(forward.tables.modules)
    graph.tables.sources = list(forward.tables.sources)
    for node, name in accumulated(graph):  # it belongs to the module whose parameter it is
        graph.columns["node_call"][node] = calls.get(name.rpartition(".")[0], -1)


def makers(graph: Graph, forward: Graph) -> Array:
    """For each node of an autograd graph the forward op that made it; -1 if it is not known.

    Both must be of this process: autograd numbers its nodes from one on.
    """
    made_by = _by_number(forward)
    return np.array([_maker(number, made_by) for number in graph.columns["node_sequence_nr"].tolist()], np.int64)


def _by_number(forward: Graph) -> dict[int, tuple[int, bool]]:
    """Sequence number -> the forward op that made the node of this number, and whether that op works in place.

    Each thread counts by itself: a number that several threads used is left out.
    """
    columns = forward.columns
    numbers, threads = columns["node_sequence_nr"], columns["node_thread"]
    phases = [PHASES.index(phase) for phase in (Phase.FORWARD, Phase.RECOMPUTE, Phase.OTHER)]
    nodes = np.flatnonzero(np.isin(columns["node_phase"], phases) & (numbers >= 0))[::-1]
    writes = np.zeros(len(forward), bool)
    writes[np.repeat(np.arange(len(forward)), np.diff(columns["input_ptr"]))[columns["input_written"] > 0]] = True
    made_by = {int(numbers[node]): (int(node), bool(writes[node])) for node in nodes}
    if len(np.unique(threads[nodes])) > 1:
        pairs = np.unique(np.stack([numbers[nodes], threads[nodes]], 1), axis=0)
        used, times = np.unique(pairs[:, 0], return_counts=True)
        for number in used[times > 1].tolist():
            del made_by[number]
    return made_by


def _maker(number: int, made_by: dict[int, tuple[int, bool]]) -> int:
    """The forward op that made a node; -1 if it is not known.

    Writing in place to a view makes three nodes: for the op, for the base (CopySlices), and a new one for the view.
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


def accumulated(graph: Graph) -> list[tuple[int, str]]:
    """The nodes that accumulate the gradient of a parameter which has a name."""
    columns, names = graph.columns, graph.tables.names
    leaves = [row for row, operation in enumerate(graph.tables.operations) if operation.name == "AccumulateGrad"]
    accumulators = []
    for node in np.flatnonzero(np.isin(columns["node_operation"], leaves)).tolist():
        held = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        named = [row for row in columns["value_parameter"][held].tolist() if row >= 0]
        if named:
            accumulators.append((node, names[named[0]]))
    return accumulators
