"""What our own code reads of a graph's metadata and recorded values, checked; keys that are not ours are left alone."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from torchatlas.escapes import quoted
from torchatlas.graph import Graph
from torchatlas.graph.arguments import MOST_NESTED

_MOST = 2**62
_Count = Annotated[int, Meta(ge=0, le=_MOST)]


class _Group(Struct):
    """A process group."""

    description: str | None = None
    backend: str | None = None
    size: _Count | None = None
    ranks: list[_Count] | None = None


class _Known(Struct):
    """The keys of `graph.metadata` that we write. execute/ reads the last two, and checks what is in them."""

    torch: str = ""
    fake: bool = False
    rank: _Count = 0
    world_size: _Count = 0
    groups: dict[str, _Group] = {}
    resized: list[tuple[_Count, _Count, _Count, _Count]] = []  # storage, node, bytes before and after
    fx_nodes: dict[str, list[_Count]] = {}
    sizes: dict[str, _Count] = {}
    fixed_sizes: list[tuple[str, _Count, str]] = []  # of a traced model's inputs: name, dimension, why
    program: dict[str, Any] = {}
    replay: dict[str, Any] = {}


def metadata_faults(graph: Graph) -> str | None:
    """The first thing in the metadata that our readers cannot take, in words."""
    if _depth(graph.metadata) > MOST_NESTED:
        return f"metadata: nested more than {MOST_NESTED} deep"
    try:
        known = msgspec.convert(graph.metadata, _Known)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        return f"metadata{where.rstrip('`')}: {what[:1].lower()}{what[1:]}"
    nodes, storages = len(graph), len(graph.storages)
    for row, (storage, node, _, _) in enumerate(known.resized):
        if storage >= storages or node > nodes:
            return f"metadata.resized[{row}]: storage {storage} at node {node} of {storages} storages and {nodes} nodes"
    for name, ran in known.fx_nodes.items():
        if ran and max(ran) >= nodes:
            return f"metadata.fx_nodes[{quoted(name)}]: there is no node {max(ran)}"
    return None


def timing_faults(graph: Graph) -> str | None:
    """The first thing about the times of whole runs that cannot be, in words."""
    timing = graph.timing
    if timing is None:
        return None
    if not 1 <= timing.runs <= _MOST or not 0 <= timing.warmup <= _MOST:
        return f"timing: {_some(timing.runs)} runs and {_some(timing.warmup)} warm-ups"
    for name in ("recorded_ns", "eager_ns"):
        samples = getattr(timing, name)
        if samples and not 0 <= min(samples) <= max(samples) <= _MOST:
            return f"timing.{name}: a time from 0 to {_MOST} ns was expected"
        if len(samples) not in (0, timing.runs) and name != "eager_ns":
            return f"timing.{name}: {len(samples)} times of {timing.runs} runs"
    return None


def _some(number: int) -> str:
    return str(number) if abs(number) <= _MOST else "too many"  # Python writes none of more than 4,300 digits


def _depth(item: Any) -> int:
    """How many lists and objects lie in each other, counted until it is too many."""
    level, depth = [item], 0
    while level and depth <= MOST_NESTED:
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                below += part.values()
            elif isinstance(part, (list, tuple)):
                below += part
        level, depth = below, depth + 1
    return depth


def recorded_faults(graph: Graph) -> str | None:
    """The first recorded value that belongs to nothing, in words.

    "3:0" is of output 0 of node 3. Autograd graphs keep a number of every node and edge; "-1:..." is what a replay
    starts from and "program/..." the weights of a traced model, which execute/ checks.
    """
    outputs = np.diff(graph.columns["output_ptr"])
    of_all = {"topological_nr": len(graph), "input_nr": len(graph.edges)}
    for key, array in graph.recorded.items():
        node, _, output = key.partition(":")
        if _is_number(node) and _is_number(output):
            if int(node) >= len(outputs) or int(output) >= outputs[int(node)]:
                return f"recorded {quoted(key)}: there is no such output"
        elif key in of_all:
            if array.shape != (of_all[key],) or array.dtype != np.int64:
                expected = f"int64 of shape ({of_all[key]},)"
                return f"recorded {quoted(key)}: {array.dtype} of shape {array.shape}, expected {expected}"
        elif not key.startswith(("-1:", "program/")):
            return f"recorded {quoted(key)}: the key is not of the form node:output"
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
