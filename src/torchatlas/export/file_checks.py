"""What our file formats share: refusing files that are no graph, and graphs that could not be read back.

Columns and tables are checked by graph/consistency.py; metadata, timing and recorded values here. Keys of metadata
that are not ours are left alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from torchatlas.errors import FileFormatError, NewerVersionError
from torchatlas.escapes import quoted
from torchatlas.graph import Graph
from torchatlas.graph.arguments import MOST_NESTED, different_keys
from torchatlas.graph.columns import Array, Tables
from torchatlas.graph.consistency import call_faults, faults

FORMAT = "torchatlas"
VERSION = 3  # of both files; a reader of version n reads 1 to n
SINCE = {"node_time_spread_ns": 2, "node_composites": 3}  # columns of nodes that older versions do not have
SOURCES = ("run", "export", "fx", "autograd")
_MOST = 2**62
_Count = Annotated[int, Meta(ge=0, le=_MOST)]


class Head(Struct):
    """Enough of a header to say what a file is."""

    format: str
    version: int


def check_head(path: Path, head: Head) -> None:
    """Raise unless this torchatlas can read the file."""
    if head.format != FORMAT:
        what = f"its format is {quoted(head.format)}, expected {FORMAT!r}"
        raise FileFormatError(f"{path}: not a torchatlas file: {what}.")
    if head.version > VERSION:
        raise NewerVersionError(
            f"{path}: written in version {head.version} of the format; this torchatlas reads up to version {VERSION}. "
            "Upgrade torchatlas: pip install --upgrade torchatlas"
        )
    if head.version < 1:
        raise FileFormatError(f"{path}: there is no version {head.version} of the format.")


def decoded(path: Path, data: bytes, decoder: msgspec.json.Decoder[Any], inside: str = "") -> Any:
    """What the decoder reads, or a FileFormatError that names the file and the place in it."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:  # ValueError: msgspec's own errors, and text that is not UTF-8
        try:
            check_head(path, msgspec.json.decode(data, type=Head))  # that explains more than what it led to
        except (ValueError, RecursionError) as head_error:
            if isinstance(head_error, FileFormatError):
                raise head_error from error
        raise FileFormatError(f"{path}: {inside}{in_words(error)}") from error


def in_words(error: Exception) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.nodes[12].id`" as "nodes[12].id: expected `int`, got `str`"."""
    if isinstance(error, RecursionError):
        return "nested too deeply."
    if isinstance(error, UnicodeDecodeError):
        return f"text that is not UTF-8: {error}."
    text = str(error)
    if match := re.fullmatch(r"(.*) - at `(?:key in )?\$\.?(.*)`", text, re.DOTALL):
        what, where = match.groups()
        return f"{where}: {what[:1].lower()}{what[1:]}."
    if isinstance(error, msgspec.ValidationError):
        return f"not a graph of torchatlas: {text[:1].lower()}{text[1:]}."
    return f"not readable as JSON: {text.removeprefix('JSON is malformed: ')}."


def refuse_repeated_keys(path: Path, data: bytes, inside: str = "") -> None:
    """JSON readers disagree on which of two equal keys counts: refuse to guess. Slow, for files that are not ours."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        different_keys(pairs)  # and nothing is kept

    try:
        json.loads(data, object_pairs_hook=check)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FileFormatError(f"{path}: {inside}{what}.") from error


def check_savable(graph: Graph, path: object) -> None:
    """Raise unless what is written can be read back: better now than when the graph is gone."""
    if problem := _lossy(graph.metadata) or _graph_faults(graph):
        raise FileFormatError(f"{path}: not written, for it could not be read back: {problem}.")


def build(path: Path, columns: dict[str, Array], tables: Tables, **rest: Any) -> Graph:
    """The graph, if columns, tables, metadata and recorded values make one."""
    graph = Graph(columns, tables, **rest)
    if problem := _graph_faults(graph):
        raise FileFormatError(f"{path}: {problem}.")
    return graph


def _graph_faults(graph: Graph) -> str | None:
    if graph.source not in SOURCES:
        return f"its source is {quoted(graph.source)}, expected one of {', '.join(SOURCES)}"
    problem = faults(graph.columns, graph.tables) or call_faults(graph.columns, graph.tables)
    return problem or _metadata_faults(graph) or _timing_faults(graph) or _recorded_faults(graph)


def _lossy(metadata: dict[str, Any]) -> str | None:
    """JSON has no tuples, no keys but text and no nan: what would come back changed is refused by name."""
    for key, item in metadata.items():
        try:
            same = isinstance(key, str) and msgspec.json.decode(msgspec.json.encode(item)) == item
        except (ValueError, TypeError, OverflowError, RecursionError):
            same = False
        if not same:
            return f"metadata[{key!r}] is not plain JSON"
    return None


# -- metadata, timing and recorded values ------------------------------------------------------------------------------


class _Group(Struct):
    """A process group."""

    description: str | None = None
    backend: str | None = None
    size: _Count | None = None
    ranks: list[_Count] | None = None


class _DeviceTimes(Struct):
    """What join_profile found: by the id of a node the time of its kernels."""

    trace: str
    by_node: dict[str, _Count]
    step: _Count | None = None


class _Known(Struct):
    """The keys of `graph.metadata` that we write. execute/ reads the last two, and checks what is in them."""

    torch: str = ""
    fake: bool = False
    rank: _Count = 0
    world_size: _Count = 0
    groups: dict[str, _Group] = {}
    parameter_groups: dict[str, list[list[str]]] = {}  # by the path of an optimizer with several: names
    resized: list[tuple[_Count, _Count, _Count, _Count]] = []  # storage, node, bytes before and after
    fx_nodes: dict[str, list[_Count]] = {}
    sizes: dict[str, _Count] = {}
    fixed_sizes: list[tuple[str, _Count, str]] = []  # of a traced model's inputs: name, dimension, why
    device_times: _DeviceTimes | None = None
    program: dict[str, Any] = {}
    replay: dict[str, Any] = {}


def _metadata_faults(graph: Graph) -> str | None:
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
    for key in known.device_times.by_node if known.device_times is not None else ():
        if not _is_number(key) or int(key) >= nodes:
            return f"metadata.device_times.by_node[{quoted(key)}]: there is no such node"
    return None


def _timing_faults(graph: Graph) -> str | None:
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


def _recorded_faults(graph: Graph) -> str | None:
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
