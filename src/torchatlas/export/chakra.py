"""Graph -> `.et`: an execution trace of MLCommons Chakra, one file per rank, for simulators and replay.

A file is messages of Protocol Buffers, each after its length: a GlobalMetadata, then a Node for every op. Edges of data
are `data_deps` and those that only keep an order `ctrl_deps`: both are the ones that were recorded, none is guessed.
"""

from __future__ import annotations

import functools
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchatlas.escapes import encodable
from torchatlas.export.node_fields import work_of
from torchatlas.export.timeline import profiler_name
from torchatlas.files import replacing
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph, GraphNode, OperationType
from torchatlas.graph.columns import EDGE_KINDS
from torchatlas.graph.formats import WRITERS
from torchatlas.graph.nouns import EdgeKind, NodeKind

if TYPE_CHECKING:
    from torchatlas.analysis.node_work import Counts

SCHEMA = "0.0.4"  # of the messages
COMP, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
# CollectiveCommType, by the beginning of an operator's name without underscores; a longer beginning goes first.
_COLLECTIVES = {
    "allreduce": 0,
    "allgather": 2,
    "reducescatter": 7,
    "alltoall": 6,
    "broadcast": 5,
    "barrier": 9,
    "monitoredbarrier": 9,
    "reduce": 1,
    "gather": 3,
    "scatter": 4,
}


@WRITERS.add(".et")
def save_chakra(graph: Graph, path: Path, *, order_as_data: bool = False) -> None:
    """Write the trace. `order_as_data` is for simulators that obey data_deps only."""
    with replacing(path) as file, collection_paused():
        work, problem = work_of(graph)
        file.write(_delimited(_metadata(graph, problem)))
        for node in _nodes(graph, work, order_as_data):
            file.write(_delimited(node))


def _metadata(graph: Graph, problem: str) -> bytes:
    facts: dict[str, Any] = {"schema": SCHEMA, "exporter": "torchatlas", "torch": str(graph.metadata.get("torch", ""))}
    for name in ("rank", "world_size"):
        if name in graph.metadata:
            facts[name] = int(graph.metadata[name])
    measured = graph.measured()
    facts["time"] = "none of the ops was timed" if measured is None else str(measured)
    facts["notes"] = "\n".join([*graph.notes, *filter(None, [problem])])
    return _text(1, SCHEMA) + b"".join(_attribute(2, name, fact) for name, fact in facts.items())


def _nodes(graph: Graph, work: Counts | None, order_as_data: bool) -> Iterator[bytes]:
    unknown = [-1] * len(graph)
    flops = unknown if work is None else work.flops.tolist()
    others = unknown if work is None else work.elementwise_flops.tolist()
    moved = unknown if work is None else work.bytes.tolist()
    names, (data, order) = graph.index.names(), _dependencies(graph)
    if order_as_data:
        for target, sources in order.items():
            data[target] |= sources
        order.clear()
    for node in graph.nodes:
        if node.kind != NodeKind.OP:
            continue
        kind, facts = _kind(node)
        arithmetic = flops[node.id] + others[node.id] if flops[node.id] >= 0 else None
        facts |= {
            "num_ops": arithmetic,
            "tensor_size": None if moved[node.id] < 0 else _Unsigned(moved[node.id]),
            "time_ns": node.time_ns,  # duration_micros has whole microseconds only
            "node": names[node.id],
            "scope": node.scope.path,
            "phase": str(node.phase),
            "op_schema": node.operation,
            "seq_id": node.sequence_nr,
            "is_cpu_op": not any(value.device.startswith("cuda") for value in (*node.inputs, *node.outputs)),
        }
        yield b"".join(
            [
                _number(1, node.id),
                _text(2, profiler_name(node.operation)),
                _number(3, kind),
                _numbers(4, sorted(order.get(node.id, ()))),
                _numbers(5, sorted(data.get(node.id, ()))),
                _number(6, (node.start_ns or 0) // 1000),
                _number(7, _microseconds(node.time_ns)),
                _message(8, _tensors(node.inputs)),
                _message(9, _tensors(node.outputs)),
                *(_attribute(10, name, fact) for name, fact in facts.items() if fact is not None),
            ]
        )


def _microseconds(time_ns: int | None) -> int:
    """Rounded, but at least 1: in the format 0 means that the time is not known."""
    return 0 if time_ns is None else max(1, round(time_ns / 1000))


def _dependencies(graph: Graph) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Per op the ops it takes data from, and those it only has to wait for. Inputs of the program are no ops."""
    columns = graph.columns
    is_op = {node.id for node in graph.where(kind=NodeKind.OP)}
    data: dict[int, set[int]] = defaultdict(set)
    order: dict[int, set[int]] = defaultdict(set)
    of_data = EDGE_KINDS.index(EdgeKind.DATA)
    rows = (columns[f"edge_{name}"].tolist() for name in ("source", "target", "kind"))
    for source, target, kind in zip(*rows, strict=True):
        if source in is_op and target in is_op:
            (data if kind == of_data else order)[target].add(source)
    for target, sources in order.items():
        sources -= data.get(target, set())
    return data, order


def _kind(node: GraphNode) -> tuple[int, dict[str, Any]]:
    """The NodeType and, for a communication, its attributes."""
    if node.operation_type is not OperationType.COMMUNICATION:
        return COMP, {}
    name = profiler_name(node.operation).rpartition("::")[2].lstrip("_").replace("_", "")
    attributes = node.attributes
    group = attributes.get("group") or {}
    facts: dict[str, Any] = {"comm_size": attributes.get("bytes"), "pg_name": group.get("name")}
    if name.startswith("send"):
        return SEND, facts | {"comm_dst": _Short.of(attributes.get("peer"))}
    if name.startswith("recv"):
        return RECEIVE, facts | {"comm_src": _Short.of(attributes.get("peer"))}
    kind = next((number for start, number in _COLLECTIVES.items() if name.startswith(start)), None)
    if kind is None:  # waiting for a collective, or one that Chakra has no word for
        return COMP, facts
    return COLLECTIVE, {"comm_type": kind, **facts, "root": attributes.get("root")}


def _tensors(values: Iterable[Any]) -> bytes:
    """An IOInfo: lists as text, as Chakra's own converter writes them."""
    listed = list(values)
    ids = [[value.id, -1 if value.storage is None else value.storage.id, value.offset] for value in listed]
    shapes, types = [list(value.shape) for value in listed], [f"Tensor({value.dtype})" for value in listed]
    return _text(1, str(ids)) + _text(2, str(shapes)) + _text(3, str(types))


# -- Protocol Buffers: the part of the encoding that these messages need -----------------------------------------------


class _Unsigned(int):
    """A number of the type uint64 in an attribute."""


class _Short(int):
    """A number of the type int32 in an attribute."""

    @classmethod
    def of(cls, number: Any) -> _Short | None:
        return cls(number) if isinstance(number, int) else None


_INT32, _INT64, _UINT64, _BOOL, _STRING, _DOUBLE = 7, 9, 13, 27, 29, 3  # fields of an attribute, by type


def _attribute(field: int, name: str, fact: Any) -> bytes:
    """An AttributeProto. A value that is set is written also when it is zero: it is one of a `oneof`."""
    if isinstance(fact, bool):
        value = _varint(_BOOL << 3) + _varint(int(fact))
    elif isinstance(fact, int):
        kind = _UINT64 if isinstance(fact, _Unsigned) else _INT32 if isinstance(fact, _Short) else _INT64
        value = _varint(kind << 3) + _varint(fact)
    elif isinstance(fact, float):
        value = _varint(_DOUBLE << 3 | 1) + struct.pack("<d", fact)
    else:
        value = _text(_STRING, str(fact))
    return _message(field, _text(1, name) + value)


_SMALL = [bytes([number]) for number in range(0x80)]


def _varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SMALL[number]
    number &= 2**64 - 1  # negative ones as their two's complement
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number) if number else b""


def _numbers(field: int, numbers: list[int]) -> bytes:
    return _message(field, b"".join(map(_varint, numbers))) if numbers else b""


@functools.lru_cache(4096)  # the same names again and again
def _text(field: int, text: str) -> bytes:
    return _message(field, encodable(text).encode())


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _delimited(content: bytes) -> bytes:
    return _varint(len(content)) + content
