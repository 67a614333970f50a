"""A finished recording -> a Graph: what the decoder read, with roles, names, input nodes and module paths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchatlas.capturing import compiled
from torchatlas.capturing.decode import FORWARD, INPUT_NODE, OUTPUT_NODE, Decoder
from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import NodeRow, columns_of
from torchatlas.capturing.table_rows import layout_row, operation_row, source_row
from torchatlas.capturing.tensor_roles import ROLE, full_name, root_prefixes, storage_roles, value_names
from torchatlas.capturing.tensor_states import DATA, ORDER
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph, Module, NodeKind, Operation, Role
from torchatlas.graph.arguments import Call, encode
from torchatlas.graph.builder import Builder
from torchatlas.graph.columns import EDGE_KINDS, KINDS, WITHIN, Array
from torchatlas.graph.nouns import EdgeKind, OperationType

assert (EDGE_KINDS[DATA], EDGE_KINDS[ORDER]) == (EdgeKind.DATA, EdgeKind.ORDER)

_EDGE = ("source", "target", "output_index", "input_index", "value", "kind")  # of TensorStates.edges
_MARKERS = {
    INPUT_NODE: Operation("input", OperationType.MOVEMENT),
    OUTPUT_NODE: Operation("output", OperationType.MOVEMENT),
}


def graph_of(
    recorder: Recorder,
    watch: Watch,
    *,
    input_names: dict[int, str],
    only_inputs: bool,
    unseen: bool = False,
    timing: bool = True,
    memory: bool = True,
) -> Graph:
    """Decode a finished recording. `input_names` names tensors that are inputs, by number.

    `only_inputs` says that no other tensor from outside is one: the rest are constants, or, when ops ran `unseen`,
    what those made.
    """
    with collection_paused():
        decoder = Decoder(recorder, watch, input_names)
        decoder.run()
        outside = Role.ACTIVATION if unseen else Role.CONSTANT if only_inputs else Role.INPUT
        graph = _Assembly(decoder, input_names, outside).graph()
    if not timing:
        graph.columns["node_time_ns"][:] = -1
        graph.columns["node_start_ns"][:] = -1
    if not memory:
        graph.columns["node_memory_bytes"][:] = -1
    return graph


class _Assembly:
    """Fills the columns of a graph. Input nodes come first: the numbers of all others are shifted by their count."""

    def __init__(self, decoder: Decoder, input_names: dict[int, str], outside: Role) -> None:
        self.decoder, self.recorder, self.watch = decoder, decoder.recorder, decoder.watch
        self.states, self.input_names, self.outside = decoder.states, input_names, outside
        self.nodes = columns_of(decoder.nodes, NodeRow)
        self.builder = Builder(threads=decoder.thread_names)
        self.plan = np.array(self.nodes.plan, np.int64)
        self.tensor_of_value = np.array(self.states.value_tensor, np.int64)
        self.storage_of_value = np.array(self.states.storage_of, np.int64)[self.tensor_of_value]
        self.fresh = self._fresh()

    def graph(self) -> Graph:
        states, builder = self.states, self.builder
        roles = storage_roles(
            states,
            self.watch,
            phases=np.array(self.nodes.phase, np.int64),
            inputs=self.input_names,
            lifted=[states.value_tensor[value] for _, value in self._lifts("aten.lift")],
            outside=self.outside,
        )
        names = value_names(states, self.watch, lambda name: builder.row("names", name))
        inputs = self._input_values(roles)
        self._fill_nodes(inputs)
        self._fill_values(inputs, roles, names)
        self._fill_storages(len(inputs), roles)
        self._fill_edges(inputs)
        self._fill_calls()
        metadata: dict[str, Any] = {"torch": torch.__version__.partition("+")[0], **self.recorder.metadata}
        if states.resizes:  # storage_bytes only holds the most: which, at which node, from, to
            metadata["resized"] = [[storage, node + len(inputs), *sizes] for storage, node, *sizes in states.resizes]
        if self.watch.parameter_groups:
            prefixes = root_prefixes(self.watch)
            metadata["parameter_groups"] = {
                prefixes[optimizer]: [[full_name(prefixes, named) for named in group] for group in groups]
                for optimizer, groups in self.watch.parameter_groups.items()
            }
        graph = builder.graph("run", metadata=metadata, own=True)
        graph.notes += compiled.compiler_notes(
            [operation.name for operation in graph.tables.operations],
            [code for code, _ in self.decoder.source_lines],
            {self.watch.owners[owner].type for owner in self.decoder.call_owner},
        )
        return graph

    def _lifts(self, name: str) -> list[tuple[int, int]]:
        """The nodes of operators whose name begins with `name`, with the value each took, if no node had made that."""
        lifting = [i for i, plan in enumerate(self.recorder.plans) if plan.name.startswith(name)]
        if not lifting:
            return []
        states, counts = self.states, np.array(self.nodes.input_count, np.int64)
        starts, nodes = np.cumsum(counts) - counts, np.flatnonzero(np.isin(self.plan, lifting)).tolist()
        pairs = [(node, states.inputs[starts[node]]) for node in nodes]
        return [(node, value) for node, value in pairs if states.value_producer[value] < 0]

    # -- live bytes --------------------------------------------------------------------------------------------------

    def _fresh(self) -> dict[int, int]:
        """Storages just made of Python or numpy data, without an op -> the node that says so and took them first."""
        return {
            int(self.storage_of_value[value]): node
            for node, value in self._lifts("aten.lift_fresh.default")
            if self.states.origin[self.storage_of_value[value]] == value
        }

    def _live_bytes(self) -> Array:
        """The live bytes after each node.

        The decoder counts what has a name from the beginning, the rest from its first use. What outlived the recording
        was there from the beginning as well; what is known to be new was not, also if it has a name: the buffer of a
        module that was built meanwhile.
        """
        live, states = np.array(self.nodes.memory_bytes, np.int64), self.states
        for storage, node in states.arrived.items():
            if states.died[storage] < 0 and storage not in self.fresh:
                live[node:] -= max(states.first_bytes[storage], 0)
        for storage, node in self.fresh.items():
            if storage not in states.arrived:
                live[node:] += max(states.first_bytes[storage], 0)
        return live

    def _bytes_from_outside(self) -> int:
        """What was alive before the first op: what has a name or was passed in, and what outlived the recording.

        What came from outside and died meanwhile counts from its first use, and so does what is known to be new: a
        batch made of numpy data in a loop was not there from the beginning.
        """
        states, size = self.states, self.states.first_bytes
        came_later = {storage for storage in states.arrived if states.died[storage] >= 0} | self.fresh.keys()
        return sum(max(size[s], 0) for s in range(len(size)) if states.born[s] < 0 and s not in came_later)

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _input_values(self, storage_role: Array) -> list[int]:
        """The values that get an input node: the named ones first, then the others in order of use."""
        states = self.states
        named = [value for number in self.input_names if (value := states.value_of[number]) >= 0]
        first = [self._state_before(value) for value in named]
        is_input = storage_role[self.storage_of_value] == ROLE[Role.INPUT]
        taken = [value for value in states.from_outside[0::4] if is_input[value]]
        return list(dict.fromkeys([*[value for value in first if value >= 0], *taken]))

    def _state_before(self, value: int) -> int:
        """The state in which an input arrived, if it was written since; -1 when a node made it."""
        producer = self.states.value_producer
        if producer[value] < 0:
            return value
        origin = self.states.origin[int(self.storage_of_value[value])]
        return origin if origin >= 0 and producer[origin] < 0 else -1

    # -- columns -----------------------------------------------------------------------------------------------------

    def _fill_nodes(self, inputs: list[int]) -> None:
        """The nodes, after the input nodes, and what they take and make."""
        nodes, builder, decoder, states, extra = self.nodes, self.builder, self.decoder, self.states, len(inputs)
        arguments = [builder.row("arguments", text) for text in decoder.argument_texts]
        sources = [builder.row("sources", source_row(code, at)) for code, at in decoder.source_lines]
        kind = np.where(self.plan == OUTPUT_NODE, KINDS.index(NodeKind.OUTPUT), KINDS.index(NodeKind.OP))
        name = np.full(len(self.plan), -1)
        input_names = [
            builder.row("names", self.input_names.get(n, "input")) for n in self.tensor_of_value[inputs].tolist()
        ]
        if (self.plan == OUTPUT_NODE).any():
            name[self.plan == OUTPUT_NODE] = builder.row("names", "output")
        start = np.array(nodes.start_ns, np.int64)

        def after(of_inputs: Any, of_others: Any) -> Array:
            first = np.broadcast_to(np.array(of_inputs, np.int64), extra)
            return np.concatenate([first, np.array(of_others, np.int64)])

        before = self._bytes_from_outside()
        builder.fill(
            "node",
            extra + len(self.plan),
            kind=after(KINDS.index(NodeKind.INPUT), kind),
            operation=self._operations(after(INPUT_NODE, self.plan)),
            phase=after(FORWARD, nodes.phase),
            call=after(-1, nodes.call),
            source=after(-1, _rows(sources, nodes.source)),
            arguments=after(builder.row("arguments", encode(Call())), _rows(arguments, nodes.arguments)),
            name=after(input_names, name),
            start_ns=after(-1, np.where(start >= 0, start - self.recorder.began_ns, -1)),
            time_ns=after(-1, np.where(start >= 0, np.array(nodes.end_ns, np.int64) - start, -1)),
            memory_bytes=after(before, before + self._live_bytes()),
            sequence_nr=after(-1, nodes.sequence_nr),
            iteration=after(0, nodes.iteration),
            thread=after(0, nodes.thread),
            forward=after(-1, _shifted(nodes.forward, extra)),
            composites=after(-1, self._composites()),
            input_count=after(0, nodes.input_count),
            output_count=after(1, nodes.output_count),
        )
        written = np.zeros(len(states.inputs), bool)
        written[states.written_inputs] = True
        builder.fill("input", len(states.inputs), value=states.inputs, written=written)
        builder.fill("output", extra + len(states.outputs), value=[*inputs, *states.outputs])

    def _composites(self) -> Array:
        """For every op the row of the composite operators that called it; -1 where nobody knows."""
        callers = self.nodes.callers
        rows = {
            number: self.builder.row("names", WITHIN.join(self.recorder.callers_of(number)))
            for number in dict.fromkeys(callers)
            if number >= 0
        }
        return np.array([rows.get(number, -1) for number in callers], np.int64)

    def _operations(self, plan: Array) -> Array:
        """The operation of every node, in order of appearance."""
        plans = self.recorder.plans
        rows = {
            number: self.builder.row("operations", _MARKERS[number] if number < 0 else operation_row(plans[number]))
            for number in dict.fromkeys(plan.tolist())
        }
        return np.array([rows[number] for number in plan.tolist()], np.int64)

    def _fill_values(self, inputs: list[int], roles: Array, names: Array) -> None:
        states, tensor = self.states, self.tensor_of_value
        producer, output_index = _shifted(states.value_producer, len(inputs)), np.array(states.value_output_index, int)
        producer[inputs], output_index[inputs] = np.arange(len(inputs)), 0
        self.builder.fill(
            "value",
            len(tensor),
            storage=self.storage_of_value,
            layout=self._layouts(),
            offset=np.array(states.offsets, np.int64)[tensor],
            version=np.maximum(np.array(states.value_version, np.int64), 0),
            producer=producer,
            output_index=output_index,
            view_of=states.value_view_of,
            role=roles[self.storage_of_value],
            parameter=names,
        )

    def _layouts(self) -> Array:
        """The layout of every value, in order of appearance."""
        states, rows = self.states, list[int]()
        shapes, strides, dtypes, devices = states.shapes, states.strides, states.dtypes, states.devices
        known: dict[Any, int] = {}
        for number, storage in zip(states.value_tensor, self.storage_of_value.tolist(), strict=True):
            key = (shapes[number], strides[number], dtypes[number], devices[storage])
            row = known.get(key)
            if row is None:
                row = known[key] = self.builder.row("layouts", layout_row(*key))
            rows.append(row)
        return np.array(rows, np.int64)

    def _fill_storages(self, extra: int, roles: Array) -> None:
        states = self.states
        device = {device: self.builder.row("devices", str(device)) for device in dict.fromkeys(states.devices)}
        self.builder.fill(
            "storage",
            len(states.born),
            bytes=states.most_bytes,
            device=[device[each] for each in states.devices],
            born=_shifted([self.fresh.get(storage, node) for storage, node in enumerate(states.born)], extra),
            died=_shifted(states.died, extra),
            role=roles,
        )

    def _fill_edges(self, inputs: list[int]) -> None:
        states, extra = self.states, len(inputs)
        edges = np.array(states.edges, np.int64).reshape(-1, len(_EDGE))
        edges[:, :2] += extra
        origin, target, index, value = np.array(states.from_outside, np.int64).reshape(-1, 4).T
        node_of_value = np.full(len(self.tensor_of_value) + 1, -1, np.int64)
        node_of_value[inputs] = np.arange(extra)
        source = node_of_value[origin]
        arriving = np.stack(
            [source, target + extra, np.zeros_like(source), index, value, np.full_like(source, DATA)], 1
        )
        edges = _tidy(np.concatenate([arriving[source >= 0], edges]))
        self.builder.fill("edge", len(edges), **dict(zip(_EDGE, edges.T, strict=True)))

    def _fill_calls(self) -> None:
        prefixes = root_prefixes(self.watch)
        modules: dict[str, Module] = {}  # by path: the first that is seen there
        rows = []
        for owner in self.watch.owners:
            path = ".".join(part for part in (prefixes.get(owner.root, ""), owner.path) if part)
            rows.append(self.builder.row("modules", modules.setdefault(path, Module(path, owner.type, owner.kind))))
        self.builder.fill(
            "call",
            len(self.decoder.call_owner),
            module=_rows(rows, self.decoder.call_owner),
            parent=self.decoder.call_parent,
            index=_occurrences(self.decoder.call_owner),
        )


_YES = np.array([True])


def _tidy(edges: Array) -> Array:
    """Edges by target and input; an order that data or a more precise order edge already keeps is left out."""
    if not len(edges):
        return edges
    source, target, output, index, value, kind = edges.T
    edges = edges[np.lexsort((value, output, source, index, kind, target))]
    edges = edges[np.concatenate([_YES, (edges[1:] != edges[:-1]).any(axis=1)])]
    source, target, _, index, _, kind = edges.T
    pair, is_order = source * (target.max() + 1) + target, kind == ORDER
    drop = np.zeros(len(edges), bool)
    drop[is_order] = _among(pair[is_order], pair[~is_order])
    vague = np.flatnonzero((index < 0) & ~drop)
    if len(vague):
        drop[vague] = True
        _, first = np.unique(pair[vague], return_index=True)
        drop[vague[first]] = _among(pair[vague[first]], pair[index >= 0])
    return edges[~drop]


def _among(items: Array, pool: Array) -> Array:
    """True for each item that occurs in the pool."""
    if not len(pool):
        return np.zeros(len(items), bool)
    pool = np.sort(pool)
    among: Array = pool[np.minimum(np.searchsorted(pool, items), len(pool) - 1)] == items
    return among


def _shifted(column: Any, count: int) -> Array:
    """Node numbers moved up to make room for the inputs; -1 stays."""
    array = np.array(column, np.int64)
    return np.where(array >= 0, array + count, -1)


def _rows(rows: list[int], column: Iterable[int]) -> Array:
    """The rows of a table that a column of positions means; -1 stays."""
    return np.array([*rows, -1], np.int64)[np.array(column, np.int64)]


def _occurrences(items: list[int]) -> list[int]:
    """For every entry, how many equal ones come before it."""
    seen: dict[int, int] = {}
    result = []
    for item in items:
        result.append(seen.get(item, 0))
        seen[item] = result[-1] + 1
    return result
