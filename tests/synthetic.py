"""Graphs of any size made from nothing: every column holds plausible data, so that a file format cannot cheat."""

import numpy as np

from torchatlas.graph import Graph, Layout, Module, Operation, OperationType, Parameter, SourceLine, Tables
from torchatlas.graph.arguments import Call, Constant, TensorRef, encode, encode_value
from torchatlas.graph.columns import COLUMNS, KINDS, PHASES, ROLES, Array
from torchatlas.graph.nouns import NodeKind, Role
from torchatlas.graph.timing import Timing

_OPS = {
    "aten.convolution.default": OperationType.CONVOLUTION,
    "aten.addmm.default": OperationType.MATMUL,
    "aten.add.Tensor": OperationType.POINTWISE,
    "aten.relu_.default": OperationType.ACTIVATION,
    "aten.view.default": OperationType.VIEW,
    "aten.native_layer_norm.default": OperationType.NORM,
    "aten.sum.dim_IntList": OperationType.REDUCTION,
    "mine.step_1.default": OperationType.UNKNOWN,  # ends like the second node of an operation called step
    'my::odd op, "quoted" ü': OperationType.CUSTOM,
}


def random_graph(nodes: int, edges: int, seed: int = 0) -> Graph:
    """A valid graph of exactly so many nodes and edges; the same seed gives the same graph."""
    if nodes < 2 and edges:
        raise ValueError("an edge needs two nodes")
    rng = np.random.default_rng(seed)
    columns: dict[str, Array] = {}
    columns.update(_outputs(rng, nodes))
    columns.update(_edges(rng, nodes, edges, columns))
    columns.update(_inputs(rng, nodes, columns))
    columns.update(_storages(rng, nodes, columns))
    tables = _tables(rng, nodes)
    columns.update(_calls(rng, len(tables.modules)))
    columns.update(_nodes(rng, np.diff(columns["input_ptr"]), tables, len(columns["call_module"])))
    return Graph(
        {name: np.ascontiguousarray(columns[name], dtype) for name, (dtype, _) in COLUMNS.items()},
        tables,
        notes=["made up", "two nodes were not timed: «≥»"],
        metadata={"seed": seed, "torch": "2.13.0", "nested": {"list": [1, 2.5, None, True, "x"]}},
        timing=Timing(runs=3, warmup=1, recorded_ns=(70, 61, 62), eager_ns=(20, 21, 2**40)),
    )


def _outputs(rng: np.random.Generator, nodes: int) -> dict[str, Array]:
    """One output per node, sometimes two or none; before them 1 % of values that nobody made: the parameters."""
    count = rng.choice([1, 1, 1, 1, 1, 1, 1, 1, 0, 2], nodes)
    ptr = np.append(0, np.cumsum(count))
    parameters, made = max(nodes // 100, min(nodes, 2)), int(ptr[-1])
    values = parameters + made
    role = np.full(values, ROLES.index(Role.ACTIVATION))
    role[:parameters] = ROLES.index(Role.PARAMETER)
    role[parameters:] = rng.integers(0, len(ROLES), made)
    producer = np.append(np.full(parameters, -1), np.repeat(np.arange(nodes), count))
    slot = np.append(np.full(parameters, -1), np.arange(made) - np.repeat(ptr[:-1], count))
    return {
        "output_ptr": ptr,
        "output_value": np.where(rng.random(made) < 0.01, -1, np.arange(parameters, values)),  # an output that is None
        "value_role": role,
        "value_producer": producer,
        "value_output_index": slot,
        "value_parameter": np.append(np.arange(parameters) % 40 + 4 if nodes else [], np.full(made, -1)),
        "value_offset": np.where(rng.random(values) < 0.9, 0, rng.integers(0, 2**40, values)),
        "value_version": rng.integers(0, 3, values),
        "value_layout": rng.integers(0, 60, values),
    }


def _edges(rng: np.random.Generator, nodes: int, edges: int, columns: dict[str, Array]) -> dict[str, Array]:
    """Mostly to near nodes, sorted by target as a capture has them. One in ten only orders."""
    target = np.sort(rng.integers(1, max(nodes, 2), edges))
    source = np.maximum(target - rng.geometric(0.05, edges), 0)
    far = rng.random(edges) < 0.05
    source[far] = (rng.random(int(far.sum())) * target[far]).astype(np.int64)
    outputs = np.diff(columns["output_ptr"])
    order = (rng.random(edges) < 0.1) | (outputs[source] == 0 if edges else False)
    index = rng.integers(0, 1 << 30, edges) % np.maximum(outputs[source], 1) if edges else np.zeros(0, np.int64)
    first = int((columns["value_producer"] < 0).sum())
    value = first + columns["output_ptr"][source] + index
    slots = np.cumsum(~order) - 1
    slots -= np.concatenate([[0], np.cumsum(~order)])[np.searchsorted(target, target)]
    return {
        "edge_source": source,
        "edge_target": target,
        "edge_kind": order,
        "edge_output_index": np.where(order, -1, index),
        "edge_input_index": np.where(order, -1, slots),
        "edge_value": np.where(order, -1, value),
    }


def _inputs(rng: np.random.Generator, nodes: int, columns: dict[str, Array]) -> dict[str, Array]:
    """What the data edges bring, then for one node in ten a parameter. One input in twenty is written to."""
    data = columns["edge_kind"] == 0
    taker = np.flatnonzero(rng.random(nodes) < 0.1)
    parameters = int((columns["value_producer"] < 0).sum())
    owner = np.append(columns["edge_target"][data], taker)
    value = np.append(columns["edge_value"][data], rng.integers(0, max(parameters, 1), len(taker)))
    order = np.argsort(owner, kind="stable")
    return {
        "input_ptr": np.append(0, np.cumsum(np.bincount(owner, minlength=nodes)[:nodes])),
        "input_value": value[order],
        "input_written": rng.random(len(owner)) < 0.05,
    }


def _storages(rng: np.random.Generator, nodes: int, columns: dict[str, Array]) -> dict[str, Array]:
    """One per value, but one value in six is a view of an earlier one and shares its storage; a few have none."""
    producer = columns["value_producer"]
    values = len(producer)
    view_of = np.where(rng.random(values) < 1 / 6, (rng.random(values) * np.arange(values)).astype(np.int64), -1)
    view_of[:1] = -1
    own = view_of < 0
    storage = np.where(own, np.cumsum(own) - 1, -1)
    storage = np.where(own, storage, storage[view_of]) if values else storage  # -1 where it views a view
    born = producer[own]
    died = np.minimum(born + rng.integers(1, 100, len(born)), nodes - 1)
    return {
        "value_view_of": view_of,
        "value_storage": storage,
        "storage_bytes": np.where(rng.random(len(born)) < 0.02, -1, rng.integers(0, 2**42, len(born))),
        "storage_device": rng.integers(-1, 2, len(born)),
        "storage_born": born,
        "storage_died": np.where((born < 0) | (rng.random(len(born)) < 0.1), -1, died),
        "storage_role": columns["value_role"][own],
    }


def _calls(rng: np.random.Generator, modules: int) -> dict[str, Array]:
    """Three calls of each module, nested in an earlier call."""
    calls = 3 * modules
    parent = np.where(rng.random(calls) < 0.2, -1, (rng.random(calls) * np.arange(calls)).astype(np.int64))
    parent[:1] = -1
    return {
        "call_module": np.arange(calls) % max(modules, 1),
        "call_parent": parent,
        "call_index": np.arange(calls) // max(modules, 1),
    }


def _calls_of(rng: np.random.Generator, inputs: Array, rows: int) -> Array:
    """Any call whose tensors are among the inputs of the node: row r names r % 3 of them."""
    row = rng.integers(0, max(rows // 3, 1), len(inputs)) * 3 + np.minimum(inputs, 2)
    return np.where(row < rows, row, -1)


def _nodes(rng: np.random.Generator, inputs: Array, tables: Tables, calls: int) -> dict[str, Array]:
    nodes = len(inputs)
    ids = np.arange(nodes)
    time = rng.integers(500, 10_000_000, nodes)
    kind = np.full(nodes, KINDS.index(NodeKind.OP))
    kind[:2], kind[max(nodes - 2, 0) :] = KINDS.index(NodeKind.INPUT), KINDS.index(NodeKind.OUTPUT)
    phase = ids * len(PHASES) // max(nodes, 1)
    return {
        "node_kind": kind,
        "node_operation": rng.integers(0, len(tables.operations), nodes) if nodes else ids,
        "node_phase": phase,
        "node_call": rng.integers(-1, calls, nodes) if nodes else ids,
        "node_source": rng.integers(-1, len(tables.sources), nodes) if nodes else ids,
        "node_arguments": _calls_of(rng, inputs, len(tables.arguments)),
        "node_name": np.where(kind == KINDS.index(NodeKind.OP), -1, ids % 4),
        "node_start_ns": np.cumsum(time),
        "node_time_ns": np.where(untimed := rng.random(nodes) < 0.1, -1, time),
        "node_time_spread_ns": np.where(untimed, -1, time // 7),
        "node_memory_bytes": rng.integers(0, 2**35, nodes),
        "node_sequence_nr": np.where(rng.random(nodes) < 0.3, -1, ids // 2),
        "node_iteration": ids * 3 // max(nodes, 1),
        "node_thread": rng.integers(-1, 2, nodes),
        "node_forward": np.where(phase == 1, ids // 2, -1),
        "node_composites": rng.integers(-1, len(tables.names), nodes) if nodes else ids,
    }


def _tables(rng: np.random.Generator, nodes: int) -> Tables:
    if not nodes:
        return Tables()
    parameters = (Parameter("self"), Parameter("dim", default=encode_value([1])), Parameter("eps", True, "null"))
    return Tables(
        operations=[Operation(name, type, parameters[: row % 4]) for row, (name, type) in enumerate(_OPS.items())],
        layouts=[_layout(row) for row in range(60)],
        arguments=[_arguments(row) for row in range(min(500, nodes))],
        sources=[SourceLine("/home/ü/model.py", row, "forward", f'x = self.f("{row}")\t# …') for row in range(30)],
        modules=[
            Module("", "Net"),
            *(Module(f"layers.{row}.block", "Block") for row in range(20)),
            Module("optimizer", "Adam", "optimizer"),
        ],
        names=["x", "mask", "output", "loss", *(f"layers.{row}.weight" for row in range(40))],
        threads=["MainThread", "autograd"],
        devices=["cpu", "cuda:0"],
    )


def _layout(row: int) -> Layout:
    if row == 0:
        return Layout(("s0", 3), None, "float32", "cpu", "sparse_coo")
    return Layout((row, 3, 2**33), (3 * 2**33, 2**33, 1), "bfloat16" if row % 3 else "float32", "cpu")


def _arguments(row: int) -> str:
    odd = [row, float("inf"), 2**70, (1, 2), {"a": 0.1 * row}, Constant("dtype", "float32"), None, True, "ü\n"][row % 9]
    tensors = [TensorRef(index) for index in range(row % 3)]
    return encode(Call((*tensors[:1], [*tensors[1:], row], odd), {"alpha": 1.0} if row % 2 else None))
