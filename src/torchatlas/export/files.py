"""What our file formats share: refusing what could not be read back, saying where it is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from torchatlas.errors import FileFormatError, NewerVersionError
from torchatlas.escapes import quoted
from torchatlas.export.contents import metadata_faults, recorded_faults, timing_faults
from torchatlas.graph import Graph
from torchatlas.graph.arguments import different_keys
from torchatlas.graph.columns import Array, Tables
from torchatlas.graph.faults import call_faults, faults

FORMAT = "torchatlas"
VERSION = 2  # of both files; a reader of version n reads 1 to n
SINCE = {"node_time_spread_ns": 2}  # columns of nodes that older versions do not have
SOURCES = ("run", "export", "fx", "autograd")


class Head(msgspec.Struct):
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
        raise FileFormatError(f"{path}: {inside}{_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.nodes[12].id`" as "nodes[12].id: expected `int`, got `str`"."""
    if isinstance(error, RecursionError):
        return "nested too deeply."
    if isinstance(error, UnicodeDecodeError):
        return f"text that is not UTF-8: {error}."
    text = str(error)
    if found := re.fullmatch(r"(.*) - at `(?:key in )?\$\.?(.*)`", text, re.DOTALL):
        what, where = found.groups()
        return f"{where}: {what[:1].lower()}{what[1:]}."
    if isinstance(error, msgspec.ValidationError):
        return f"{text[:1].lower()}{text[1:]}."
    return f"not readable as JSON: {text[:1].lower()}{text[1:]}."


def refuse_repeated_keys(path: Path, data: bytes, inside: str = "") -> None:
    """JSON readers disagree on which of two equal keys counts: refuse to guess. Slow, for files that are not ours."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        different_keys(pairs)  # and nothing is kept

    try:
        json.loads(data, object_pairs_hook=check)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FileFormatError(f"{path}: {inside}{what}.") from error


def check_savable(graph: Graph, path: Path) -> None:
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
    return problem or metadata_faults(graph) or timing_faults(graph) or recorded_faults(graph)


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
