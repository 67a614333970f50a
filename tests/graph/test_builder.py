"""Graphs made row by row."""

from __future__ import annotations

import pytest

from torchatlas.graph import NodeKind, OperationType, Role
from torchatlas.graph.builder import Builder
from torchatlas.graph.columns import Layout, Operation
from torchatlas.graph.consistency import faults
from torchatlas.graph.nouns import SourceLine

ADD = Operation("aten.add.Tensor", OperationType.POINTWISE)
INPUT = Operation("input", OperationType.MOVEMENT)
ROW = Layout((2, "s0"), ("s0", 1), "float32", "cpu", "strided")


def small() -> Builder:
    """x -> add -> add_, with a weight; the second add writes to what the first made."""
    builder = Builder()
    model = builder.call("", "Model")
    layer = builder.call("layer", "Linear", model)
    given = builder.value(ROW, Role.INPUT, storage=builder.storage(-1, "cpu", Role.INPUT, 0), producer=0, output=0)
    assert builder.node(INPUT, kind=NodeKind.INPUT, outputs=[given], name="x") == 0
    weight = builder.value(ROW, Role.PARAMETER, storage=builder.storage(32, "cpu", Role.PARAMETER), name="weight")
    memory = builder.storage(-1, "cpu", Role.ACTIVATION, 1)
    first = builder.value(ROW, Role.ACTIVATION, storage=memory, producer=1, output=0)
    line = SourceLine("model.py", 3, "forward", "x + w")
    builder.node(ADD, inputs=[given, weight], outputs=[first], call=layer, source=line)
    second = builder.value(ROW, Role.ACTIVATION, storage=memory, producer=2, output=0, version=1, view_of=first)
    assert builder.next_node == 2
    builder.node(ADD, inputs=[first, first], outputs=[second], written=[0], call=builder.call("layer", "Linear", model))
    return builder


def test_rows_become_a_sound_graph() -> None:
    graph = small().graph("export", notes=["a note"], metadata={"sizes": {"s0": 4}})
    assert faults(graph.columns, graph.tables) is None
    assert (graph.source, graph.notes, graph.metadata["sizes"]) == ("export", ["a note"], {"s0": 4})
    assert [node.kind for node in graph.nodes] == ["input", "op", "op"]
    assert graph.nodes[0].name == "x"
    assert graph.nodes[1].source == SourceLine("model.py", 3, "forward", "x + w")
    assert graph.nodes[1].outputs[0].shape == (2, "s0")


def test_edges_follow_from_producers() -> None:
    graph = small().graph("export")
    assert [(e.source.id, e.target.id, e.input_index) for e in graph.edges] == [(0, 1, 0), (1, 2, 0), (1, 2, 1)]


def test_writes_versions_and_views() -> None:
    node = small().graph("export").nodes[2]
    assert node.writes == (0,)
    assert node.outputs[0].version == 1
    assert node.outputs[0].view_of is not None
    assert node.outputs[0].storage.id == node.inputs[0].storage.id


def test_what_is_not_said_is_unknown() -> None:
    graph = small().graph("export")
    assert graph.nodes[1].time_ns is None
    assert graph.nodes[1].memory_bytes is None
    assert graph.nodes[1].inputs[0].storage.bytes is None


def test_calls_are_counted_and_roles_remembered() -> None:
    builder = small()
    assert builder.role_of(1) == Role.PARAMETER
    graph = builder.graph("export")
    assert graph.scopes["layer"].calls == 2
    assert graph.columns["call_index"].tolist() == [0, 0, 1]


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(AssertionError):
        small().add("node", colour=1)


def test_rows_that_come_all_at_once_come_first() -> None:
    """`fill` broadcasts what is one for all, leaves unknown what is not said, and counts inputs into pointers."""
    builder = Builder()
    builder.value(ROW, Role.CONSTANT, name="late")
    builder.fill("value", 2, layout=builder.row("layouts", ROW), version=[3, 4], role=0)
    builder.row("operations", ADD)
    builder.row("arguments", "[[],{}]")
    nodes = {"kind": 1, "operation": 0, "phase": 0, "arguments": 0, "iteration": 0, "thread": 0}
    builder.fill("node", 2, **nodes, input_count=[1, 2])
    builder.fill("input", 3, value=[0, 1, 2], written=0)
    graph = builder.graph("run")
    assert faults(graph.columns, graph.tables) is None
    assert graph.columns["value_version"].tolist() == [3, 4, 0]
    assert graph.columns["value_storage"].tolist() == [-1, -1, -1]
    assert graph.columns["input_ptr"].tolist() == [0, 1, 3]
    assert graph.columns["output_ptr"].tolist() == [0, 0, 0]
    with pytest.raises(AssertionError):
        builder.fill("node", 2, **nodes, colour=1)
