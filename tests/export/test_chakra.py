"""Execution traces, decoded by the real runtime of Protocol Buffers with the messages that Chakra publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import tiny_gpt2
from torch import nn

import torchatlas as atlas
from torchatlas.graph import EdgeKind, Graph, NodeKind

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")

# Of schema/protobuf/et_def.proto the messages and fields that a reader of our files meets: number, type, name.
_FIELDS = {
    "AttributeProto": "1 string name, 3 double double_val, 7 int32 int32_val, 9 int64 int64_val, 13 uint64 uint64_val, "
    "27 bool bool_val, 29 string string_val",
    "GlobalMetadata": "1 string version, 2 *AttributeProto attr",
    "IOInfo": "1 string values, 2 string shapes, 3 string types",
    "Node": "1 uint64 id, 2 string name, 3 int32 type, 4 *uint64 ctrl_deps, 5 *uint64 data_deps, "
    "6 uint64 start_time_micros, 7 uint64 duration_micros, 8 IOInfo inputs, 9 IOInfo outputs, 10 *AttributeProto attr",
}
COMP, COLLECTIVE = 4, 7


def messages() -> dict[str, Any]:
    """The classes of the messages, made by protobuf from their description."""
    from google.protobuf import descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def_of_a_test.proto", package="ChakraProtoMsg", syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        one_of = described.oneof_decl.add(name="value") if message == "AttributeProto" else None
        for text in fields.split(", "):
            number, kind, name = text.split()
            row = described.field.add(name=name, number=int(number))
            row.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in _FIELDS:
                row.type, row.type_name = field.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                row.type = getattr(field, f"TYPE_{kind.upper()}")
            if one_of is not None and name.endswith("_val"):
                row.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in _FIELDS
    }


def decoded(path: Path) -> tuple[Any, list[Any]]:
    """The metadata and the nodes of a file: messages after their length."""
    known, data, at, found = messages(), path.read_bytes(), 0, []
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        message = known["Node" if found else "GlobalMetadata"]()
        assert message.ParseFromString(data[at : at + size]) == size
        assert message.SerializeToString(deterministic=True)
        assert not len(_unknown(message)), "a field that the schema does not have"
        found.append(message)
        at += size
    assert at == len(data)
    return found[0], found[1:]


def _unknown(message: Any) -> Any:
    from google.protobuf.unknown_fields import UnknownFieldSet

    return UnknownFieldSet(message)


def attributes(message: Any) -> dict[str, Any]:
    return {one.name: getattr(one, one.WhichOneof("value")) for one in message.attr}


@pytest.fixture(scope="module")
def step() -> Graph:
    model, inputs = tiny_gpt2()
    return atlas.capture(model, kwargs=inputs, loss=lambda output: output.loss, optimizer=torch.optim.AdamW)


def test_every_op_and_every_edge_is_there(step: Graph, tmp_path: Path) -> None:
    metadata, nodes = decoded(step.save(tmp_path / "step.et"))
    assert metadata.version == "0.0.4"
    assert "one run" in attributes(metadata)["time"]
    ops = step.where(kind=NodeKind.OP)
    assert [node.id for node in nodes] == [op.id for op in ops]
    is_op = {op.id for op in ops}
    wanted = {
        kind: {(e.source_id, e.target_id) for e in step.edges if e.kind == kind and {e.source_id, e.target_id} <= is_op}
        for kind in EdgeKind
    }
    assert {(source, node.id) for node in nodes for source in node.data_deps} == wanted[EdgeKind.DATA]
    order = {(source, node.id) for node in nodes for source in node.ctrl_deps}
    assert order == wanted[EdgeKind.ORDER] - wanted[EdgeKind.DATA]
    assert order
    for node, op in zip(nodes, ops, strict=True):
        said = attributes(node)
        assert (said["node"], said["op_schema"], said["time_ns"]) == (op.name, op.operation, op.time_ns)
        assert node.duration_micros == max(1, round(op.time_ns / 1000))  # type: ignore[operator]
        assert node.outputs.shapes == str([list(value.shape) for value in op.outputs])
        assert node.type == COMP
        if op.operation == "aten.mm.default":
            (rows, inner), (_, columns) = (value.shape for value in op.inputs)
            assert said["num_ops"] == 2 * rows * inner * columns  # type: ignore[operator]
            assert said["tensor_size"] == 4 * (rows * inner + inner * columns + rows * columns)  # type: ignore[operator]


def test_a_graph_without_times_has_no_durations(tmp_path: Path) -> None:
    graph = atlas.capture(nn.Linear(4, 2), torch.ones(1, 4), fake=True)
    metadata, nodes = decoded(graph.save(tmp_path / "step.et"))
    assert attributes(metadata)["time"] == "none of the ops was timed"
    assert all(node.duration_micros == 0 and "time_ns" not in attributes(node) for node in nodes)
    assert any(attributes(node)["num_ops"] for node in nodes)


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_collectives_say_what_they_are(process_group: None, tmp_path: Path) -> None:
    with atlas.recording() as rec:
        x = torch.ones(3, 4)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        parts = [torch.empty(3, 4)]
        dist.all_gather(parts, x)
        y = parts[0] + 1
    assert y.sum() == 24
    metadata, nodes = decoded(rec.graph.save(tmp_path / "step.et"))
    assert attributes(metadata)["world_size"] == 1
    talks = [node for node in nodes if node.type == COLLECTIVE]
    assert [attributes(node)["comm_type"] for node in talks] == [0, 5, 2]
    assert {attributes(node)["comm_size"] for node in talks} == {48}
    assert {attributes(node)["pg_name"] for node in talks} == {"0"}
    add = next(node for node in nodes if node.name == "aten::add")
    assert talks[-1].id in add.data_deps


def test_order_can_be_data(step: Graph, tmp_path: Path) -> None:
    _, nodes = decoded(step.save(tmp_path / "a.et"))
    _, merged = decoded(step.save(tmp_path / "b.et", order_as_data=True))
    for node, both in zip(nodes, merged, strict=True):
        assert not both.ctrl_deps
        assert set(both.data_deps) == {*node.data_deps, *node.ctrl_deps}
