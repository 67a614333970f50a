"""What the decoder found -> a Graph: roles and names of tensors, module paths, input nodes, columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchatlas.capturing import compiled
from torchatlas.capturing.decode import (
    BACKWARD,
    FORWARD,
    INPUT_NODE,
    OPTIMIZER,
    OTHER,
    OUTPUT_NODE,
    RECOMPUTE,
    Decoder,
)
from torchatlas.capturing.module_calls import CALL_ROW, Named, Watch
from torchatlas.capturing.portable import layout_row, operation_row, source_row
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.tensor_states import DATA, NODE_ROW, ORDER, Decoded
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph, Module, NodeKind, Operation, Phase, Role
from torchatlas.graph.arguments import Call, encode
from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, KINDS, PHASES, ROLES, Array, Layout, Tables
from torchatlas.graph.nouns import EdgeKind, OperationType

assert [PHASES[p] for p in (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER)] == list(Phase)
assert (EDGE_KINDS[DATA], EDGE_KINDS[ORDER]) == (EdgeKind.DATA, EdgeKind.ORDER)

_PLAN, _CALL, _PHASE, _MEMORY, _TAKEN = 0, 4, 6, 7, 11  # places in a row of Decoded.nodes
_EDGE_COLUMNS = tuple(name for name in COLUMNS if name.startswith("edge_"))
_MARKERS = {
    INPUT_NODE: Operation("input", OperationType.MOVEMENT),
    OUTPUT_NODE: Operation("output", OperationType.MOVEMENT),
}
_ROLE: dict[str, int] = {role: ROLES.index(role) for role in Role}  # also by its name: a role is a string
_MADE_IN = {  # the role of what a node allocates
    FORWARD: _ROLE[Role.ACTIVATION],
    RECOMPUTE: _ROLE[Role.ACTIVATION],
    BACKWARD: _ROLE[Role.TEMPORARY],
    OPTIMIZER: _ROLE[Role.TEMPORARY],
    OTHER: _ROLE[Role.TEMPORARY],
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
        found = decoder.run()
        outside = Role.ACTIVATION if unseen else Role.CONSTANT if only_inputs else Role.INPUT
        return _Finish(recorder, watch, decoder, found, input_names, outside).graph(timing, memory)


class _Finish:
    def __init__(
        self,
        recorder: Recorder,
        watch: Watch,
        decoder: Decoder,
        found: Decoded,
        input_names: dict[int, str],
        outside: Role,
    ) -> None:
        self.recorder, self.watch, self.decoder, self.found = recorder, watch, decoder, found
        self.tables = Tables(threads=decoder.thread_names)
        self.names: dict[str, int] = {}
        self.prefixes = _root_prefixes(watch)
        self.input_names, self.outside = input_names, _ROLE[outside]
        self.rows = np.array(found.nodes, np.int64).reshape(-1, NODE_ROW)
        self.plan, self.call, self.phase, self.input_count = self.rows.T[[_PLAN, _CALL, _PHASE, _TAKEN]]
        self.storage_of_value = np.array(decoder.storage_of, np.int64)[np.array(found.value_tensor, np.int64)]
        self.fresh = self._fresh()
        self._count_from_the_beginning()

    def graph(self, timing: bool, memory: bool) -> Graph:
        storage_role, value_name = self._roles()
        inputs = self._input_values(storage_role)
        columns = self._columns(inputs, storage_role, value_name)
        if not timing:
            columns["node_time_ns"][:] = -1
            columns["node_start_ns"][:] = -1
        if not memory:
            columns["node_memory_bytes"][:] = -1
        self.tables.names = list(self.names)
        metadata: dict[str, Any] = {"torch": torch.__version__.partition("+")[0], **self.recorder.metadata}
        if resizes := self.decoder.resizes:  # storage_bytes only holds the most: which, at which node, from, to
            metadata["resized"] = [[storage, node + len(inputs), *sizes] for storage, node, *sizes in resizes]
        names = [operation.name for operation in self.tables.operations]
        codes = [code for code, _ in self.found.source_keys]
        notes = compiled.notes(names, codes, {self.watch.owners[owner].type for owner in self.watch.calls[0::CALL_ROW]})
        return Graph(columns, self.tables, source="run", notes=notes, metadata=metadata, own=True)

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def _full_name(self, named: Named) -> str:
        prefix = self.prefixes.get(named.root, "")
        return f"{prefix}.{named.name}" if prefix and named.name else named.name or prefix

    # -- roles ---------------------------------------------------------------------------------------------------

    def _roles(self) -> tuple[Array, Array]:
        """A role for every storage, and a name for every value that has one."""
        decoder, found, watch = self.decoder, self.found, self.watch
        born = np.array(found.born, np.int64)
        phase = np.append(self.phase, 0)
        made_in = np.array([_MADE_IN[p] for p in range(len(PHASES))])
        role = np.where(born >= 0, made_in[phase[born]], self.outside)
        role[list(decoder.gradients)] = _ROLE[Role.GRADIENT]
        for number in self._lifted():
            role[decoder.storage_of[number]] = _ROLE[Role.CONSTANT]
        for number in self.input_names:
            if born[decoder.storage_of[number]] < 0:
                role[decoder.storage_of[number]] = _ROLE[Role.INPUT]
        name_of_storage: dict[int, int] = {}
        name_of_tensor: dict[int, int] = {}
        crowded: set[int] = set()  # storages that hold several named tensors
        for number, named in watch.tensors.items():
            storage = decoder.storage_of[number]
            role[storage] = _ROLE[named.role]
            text = self._full_name(named)
            if text:
                name_of_tensor[number] = self._name(text)
                if storage in name_of_storage and self._differs(storage, number):
                    crowded.add(storage)
                name_of_storage.setdefault(storage, name_of_tensor[number])
        for storage, named in watch.storages.items():
            role[storage] = _ROLE[named.role]
            if text := self._full_name(named):
                name_of_storage.setdefault(storage, self._name(text))
        crowded |= watch.shared
        for number, named in watch.pieces.items():
            if decoder.storage_of[number] in crowded and (text := self._full_name(named)):
                name_of_tensor.setdefault(number, self._name(text))
        value_name = np.full(len(found.value_tensor), -1, np.int64)
        for value, number in enumerate(found.value_tensor):
            storage = decoder.storage_of[number]
            if number in name_of_tensor:
                value_name[value] = name_of_tensor[number]
            elif storage in name_of_storage and storage not in crowded:
                value_name[value] = name_of_storage[storage]
        return role, value_name

    def _differs(self, storage: int, number: int) -> bool:
        """Whether a second named tensor on a storage is another part of it, not the same tied weight."""
        origin = self.decoder.origin[storage]
        return origin >= 0 and self.decoder._key(self.found.value_tensor[origin]) != self.decoder._key(number)

    def _lifted(self) -> list[int]:
        """Tensors that torch.tensor(...) made of Python data: constants of the program."""
        return [self.found.value_tensor[value] for _, value in self._lifts("aten.lift")]

    def _lifts(self, name: str) -> list[tuple[int, int]]:
        """The nodes of operators whose name begins so, with what each took, if no node had made that."""
        lifting = [i for i, plan in enumerate(self.recorder.plans) if plan.name.startswith(name)]
        if not lifting:
            return []
        found, starts = self.found, np.cumsum(self.input_count) - self.input_count
        nodes = np.flatnonzero(np.isin(self.plan, lifting)).tolist()
        pairs = [(node, found.inputs[starts[node]]) for node in nodes]
        return [(node, value) for node, value in pairs if found.value_producer[value] < 0]

    def _bytes_from_outside(self) -> int:
        """What was alive before the first op: what has a name or was passed in, and what outlived the recording.

        What came from outside and died meanwhile counts from its first use, and so does what is known to be new: a
        batch made of numpy data in a loop was not there from the beginning.
        """
        found, size = self.found, self.decoder.first_bytes
        came_later = {storage for storage in self.decoder.arrived if found.died[storage] >= 0} | self.fresh.keys()
        return sum(max(size[s], 0) for s in range(len(size)) if found.born[s] < 0 and s not in came_later)

    def _fresh(self) -> dict[int, int]:
        """Storages just made of Python or numpy data, without an op -> the node that says so and took them first."""
        return {
            self.decoder.storage_of[self.found.value_tensor[value]]: node
            for node, value in self._lifts("aten.lift_fresh.default")
            if self.decoder.origin[self.decoder.storage_of[self.found.value_tensor[value]]] == value
        }

    def _count_from_the_beginning(self) -> None:
        """Correct the live bytes: the decoder counts what has a name from the beginning, the rest from its first use.

        What is known to be new was not there before, also if it has a name: the buffer of a module built meanwhile.
        """
        arrived, size = self.decoder.arrived, self.decoder.first_bytes
        for storage, node in arrived.items():
            if self.found.died[storage] < 0 and storage not in self.fresh:
                self.rows[node:, _MEMORY] -= max(size[storage], 0)
        for storage, node in self.fresh.items():
            if storage not in arrived:
                self.rows[node:, _MEMORY] += max(size[storage], 0)

    # -- inputs --------------------------------------------------------------------------------------------------

    def _input_values(self, storage_role: Array) -> list[int]:
        """The values that get an input node: the named ones first, then the others in order of use."""
        found = self.found
        named = [found.value_of[number] for number in self.input_names]
        named = [value for value in named if value >= 0]
        taken = found.from_outside[0::4]
        is_input = storage_role[self.storage_of_value] == _ROLE[Role.INPUT]
        first = [self._state_before(value) for value in named]
        return list(dict.fromkeys([*[v for v in first if v >= 0], *[v for v in taken if is_input[v]]]))

    def _state_before(self, value: int) -> int:
        """The state in which an input arrived, if it was written since; -1 when a node made it."""
        if self.found.value_producer[value] < 0:
            return value
        origin = self.decoder.origin[int(self.storage_of_value[value])]
        return origin if origin >= 0 and self.found.value_producer[origin] < 0 else -1

    def _input_name(self, value: int) -> str:
        number = self.found.value_tensor[value]
        return self.input_names.get(number, "input")

    # -- columns -------------------------------------------------------------------------------------------------

    def _columns(self, inputs: list[int], storage_role: Array, value_name: Array) -> dict[str, Array]:
        found, extra = self.found, len(inputs)
        shift = np.int64(extra)
        producer = _shifted(found.value_producer, shift)
        producer[inputs] = np.arange(extra)
        output_index = np.array(found.value_output, np.int64)
        output_index[inputs] = 0
        tensor = np.array(found.value_tensor, np.int64)
        columns: dict[str, Any] = {
            **self._node_columns(inputs, shift),
            "input_value": found.inputs,
            "input_written": found.written,
            "output_value": [*inputs, *found.outputs],
            "value_storage": self.storage_of_value,
            "value_layout": self._layouts(),
            "value_offset": np.array(self.decoder.offsets, np.int64)[tensor],
            "value_version": np.maximum(found.value_version, 0) if found.value_version else [],
            "value_producer": producer,
            "value_output_index": output_index,
            "value_view_of": found.value_view_of,
            "value_role": storage_role[self.storage_of_value],
            "value_parameter": value_name,
            "storage_bytes": self.decoder.most_bytes,
            "storage_device": self._devices(),
            "storage_born": _shifted([self.fresh.get(s, node) for s, node in enumerate(found.born)], shift),
            "storage_died": _shifted(found.died, shift),
            "storage_role": storage_role,
            **dict(zip(_EDGE_COLUMNS, self._edges(inputs, shift).T, strict=True)),
            **self._call_columns(),
        }
        return {name: np.ascontiguousarray(columns[name], dtype) for name, (dtype, _) in COLUMNS.items()}

    def _node_columns(self, inputs: list[int], shift: np.int64) -> dict[str, Any]:
        found, tables, extra = self.found, self.tables, len(inputs)
        tables.sources = [source_row(code, at) for code, at in found.source_keys]
        nothing = found.argument_texts.setdefault(encode(Call()), len(found.argument_texts))
        tables.arguments = list(found.argument_texts)
        arriving = (INPUT_NODE, -1, -1, -1, -1, -1, FORWARD, 0, 0, -1, nothing, 0, 1, 0)
        rows = np.concatenate([np.array([arriving] * extra, np.int64).reshape(-1, NODE_ROW), self.rows])
        plan, start, time, sequence, call, source, phase, memory, iteration, forward, arguments = rows.T[:11]
        taken, made, thread = rows.T[11:]
        kind = np.full(len(rows), KINDS.index(NodeKind.OP))
        kind[:extra] = KINDS.index(NodeKind.INPUT)
        is_output = plan == OUTPUT_NODE
        kind[is_output] = KINDS.index(NodeKind.OUTPUT)
        name = np.full(len(rows), -1, np.int64)
        name[:extra] = [self._name(self._input_name(value)) for value in inputs]
        if is_output.any():
            name[is_output] = self._name("output")
        return {
            "node_kind": kind,
            "node_operation": self._operations(plan),
            "node_phase": phase,
            "node_call": call,
            "node_source": source,
            "node_arguments": arguments,
            "node_name": name,
            "node_start_ns": start,
            "node_time_ns": time,
            "node_time_spread_ns": np.full(len(rows), -1),
            "node_memory_bytes": memory + self._bytes_from_outside(),
            "node_sequence_nr": sequence,
            "node_iteration": iteration,
            "node_thread": thread,
            "node_forward": _shifted(forward, shift),
            "input_ptr": _pointers(taken),
            "output_ptr": _pointers(made),
        }

    def _operations(self, plan: Array) -> Array:
        """The operation of every node, and the table in order of appearance."""
        rows: dict[int, int] = {}
        column = [rows.setdefault(number, len(rows)) for number in plan.tolist()]
        plans = self.recorder.plans
        self.tables.operations = [
            _MARKERS[number] if number in _MARKERS else operation_row(plans[number]) for number in rows
        ]
        return np.array(column, np.int64)

    def _devices(self) -> list[int]:
        rows: dict[str, int] = {}
        known = {device: rows.setdefault(str(device), len(rows)) for device in dict.fromkeys(self.decoder.devices)}
        self.tables.devices = list(rows)
        return [known[device] for device in self.decoder.devices]

    def _call_columns(self) -> dict[str, Any]:
        owners, module = self.watch.calls[0::CALL_ROW], self._modules()
        return {
            "call_module": [module[owner] for owner in owners],
            "call_parent": self.watch.calls[1::CALL_ROW],
            "call_index": _occurrences(owners),
        }

    def _layouts(self) -> Array:
        decoder = self.decoder
        rows: dict[Layout, int] = {}
        devices = decoder.devices
        known: dict[Any, int] = {}
        column = []
        for number in self.found.value_tensor:
            device = devices[decoder.storage_of[number]]
            key = (decoder.shapes[number], decoder.strides[number], decoder.dtypes[number], device)
            row = known.get(key)
            if row is None:
                row = known[key] = rows.setdefault(layout_row(*key), len(rows))
            column.append(row)
        self.tables.layouts = list(rows)
        return np.array(column, np.int64)

    def _modules(self) -> list[int]:
        """The module table; returns the row of each owner."""
        rows: dict[str, int] = {}
        number = []
        for owner in self.watch.owners:
            prefix = self.prefixes.get(owner.root, "")
            path = ".".join(part for part in (prefix, owner.path) if part)
            if path not in rows:
                rows[path] = len(rows)
                self.tables.modules.append(Module(path, owner.type, owner.kind))
            number.append(rows[path])
        return number

    def _edges(self, inputs: list[int], shift: np.int64) -> Array:
        found = self.found
        edges = np.array(found.edges, np.int64).reshape(-1, 6)
        edges[:, :2] += shift
        outside = np.array(found.from_outside, np.int64).reshape(-1, 4)
        node_of_value = np.full(len(found.value_tensor) + 1, -1, np.int64)
        node_of_value[inputs] = np.arange(len(inputs))
        outside = outside[node_of_value[outside[:, 0]] >= 0]
        arriving = np.zeros((len(outside), 6), np.int64)
        arriving[:, 0], arriving[:, 1] = node_of_value[outside[:, 0]], outside[:, 1] + shift
        arriving[:, 3], arriving[:, 4], arriving[:, 5] = outside[:, 2], outside[:, 3], DATA
        return _tidy(np.concatenate([arriving, edges]))


_YES = np.array([True])


def _tidy(edges: Array) -> Array:
    """Edges by target and input; an order that data or a more precise order edge already keeps is left out."""
    if not len(edges):
        return edges
    source, target, output, index, value, kind = edges.T
    edges = edges[np.lexsort((value, output, source, index, kind, target))]
    edges = edges[np.concatenate([_YES, (edges[1:] != edges[:-1]).any(axis=1)])]
    pair = edges[:, 0] * (edges[:, 1].max() + 1) + edges[:, 1]
    is_order = edges[:, 5] == ORDER
    drop = np.zeros(len(edges), bool)
    drop[is_order] = _among(pair[is_order], pair[~is_order])
    vague = np.flatnonzero((edges[:, 3] < 0) & ~drop)
    if len(vague):
        drop[vague] = True
        _, first = np.unique(pair[vague], return_index=True)
        drop[vague[first]] = _among(pair[vague[first]], pair[edges[:, 3] >= 0])
    return edges[~drop]


def _among(items: Array, pool: Array) -> Array:
    """Which items occur in the pool."""
    if not len(pool):
        return np.zeros(len(items), bool)
    pool = np.sort(pool)
    found: Array = pool[np.minimum(np.searchsorted(pool, items), len(pool) - 1)] == items
    return found


def _root_prefixes(watch: Watch) -> dict[int, str]:
    """What goes before the names of each tree of modules: nothing for the model, or for the only one there is."""
    roots = [number for number, owner in enumerate(watch.owners) if owner.root == number]
    modules = [number for number in roots if watch.owners[number].kind == "module"]
    main = modules[0] if modules and (watch.named or len(modules) == 1) else None
    prefixes: dict[int, str] = {}
    seen: dict[str, int] = {}
    for number in roots:
        if number == main:
            prefixes[number] = ""
            continue
        kind = watch.owners[number].type
        seen[kind] = seen.get(kind, -1) + 1
        prefixes[number] = f"{kind}_{seen[kind]}" if seen[kind] else kind
    return prefixes


def parameter_names(watch: Watch) -> dict[int, str]:
    """The names of the parameters of all modules that were seen and are still there, by the ids of the tensors."""
    prefixes, names = _root_prefixes(watch), dict[int, str]()
    for owner in watch.owners:
        module = owner.reference() if owner.kind == "module" else None
        for name, tensor in module._parameters.items() if module is not None else ():
            path = ".".join(part for part in (prefixes[owner.root], owner.path, name) if part)
            names.setdefault(id(tensor), path)
    return names


def _shifted(column: Any, shift: np.int64) -> Array:
    """Node numbers moved up to make room for the inputs; -1 stays."""
    array = np.array(column, np.int64)
    return np.where(array >= 0, array + shift, -1)


def _pointers(counts: Array) -> Array:
    pointers = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=pointers[1:])
    return pointers


def _occurrences(items: list[int]) -> list[int]:
    """For every entry, how many equal ones come before it."""
    seen: dict[int, int] = {}
    result = []
    for item in items:
        result.append(seen.get(item, 0))
        seen[item] = result[-1] + 1
    return result
