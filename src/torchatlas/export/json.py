"""Graph <-> `.json`: nodes and edges as lists of objects that any program can read; docs/format.md describes them.

Rows stand one to a line. A file loads back identical in every column and table; recorded values are left to `.atlas`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from torchatlas.errors import FileFormatError
from torchatlas.escapes import quoted
from torchatlas.export.file_checks import (
    FORMAT,
    VERSION,
    Head,
    build,
    check_head,
    check_savable,
    decoded,
    refuse_repeated_keys,
)
from torchatlas.export.json_rows import ROW_LISTS, Document, JsonOperation, JsonParameter, RowList
from torchatlas.files import open_to_read, replacing
from torchatlas.graph import Graph, Operation, Parameter, Tables
from torchatlas.graph.columns import COLUMNS, Array
from torchatlas.graph.formats import READERS, WRITERS

_BATCH = 20_000  # rows that are objects at the same time while a file is written
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Document)
_HEAD = ("format", "version", "source", "notes", "metadata", "timing", "recorded")
_OPTIONAL = ("timing", "recorded")
_TABLES = ("operations", "arguments", "layouts", "sources", "modules", "names", "threads", "devices")


# -- graph -> file ---------------------------------------------------------------------------------------------------


@WRITERS.add(".json")
def save_json(graph: Graph, path: Path) -> None:
    """Write the graph, except the recorded values, whose keys are listed instead."""
    check_savable(graph, path)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "source": graph.source,
        "notes": graph.notes,
        "metadata": graph.metadata,
        "timing": graph.timing,
        "recorded": sorted(graph.recorded),
    }
    try:
        with replacing(path) as file:
            file.writelines(_text(head, _row_lists(graph), _tables(graph.tables)))
    except UnicodeEncodeError as error:
        raise FileFormatError(f"{path}: not written: a text of the graph is not Unicode ({error}).") from error


def _text(
    head: dict[str, Any], row_lists: Iterable[tuple[str, Iterable[list[Any]]]], tables: dict[str, list[Any]]
) -> Iterator[bytes]:
    """The file in pieces. Reading makes them again, to see that a file is exactly what we would write."""
    yield b"{\n"
    for name in _HEAD:
        if name not in _OPTIONAL or head[name]:
            yield b'"%s": %s,\n' % (name.encode(), _ENCODER.encode(head[name]))
    for name, batches in row_lists:
        yield b'"%s": [' % name.encode()
        yield from _lines(batches)
        yield b"],\n"
    for name in _TABLES:
        yield b'"%s": [' % name.encode()
        yield from _lines([tables[name]])
        yield b"],\n" if name != _TABLES[-1] else b"]\n"
    yield b"}\n"


def _lines(batches: Iterable[list[Any]]) -> Iterator[bytes]:
    start = b"\n"
    for batch in batches:
        if batch:  # no line break in any row: JSON escapes those in strings, and check_savable refused those in calls
            yield start
            yield _ENCODER.encode_lines(batch)[:-1].replace(b"\n", b",\n")
            start = b",\n"
    if start != b"\n":
        yield b"\n"


def _row_lists(graph: Graph) -> Iterator[tuple[str, Iterator[list[Any]]]]:
    texts: dict[str, list[Any]] = {
        "operations": _references([operation.name for operation in graph.tables.operations]),
        **{name: _references(getattr(graph.tables, name)) for name in ("names", "threads", "devices")},
        "arguments": [*map(Raw, graph.tables.arguments), UNSET],
        "arguments_row": [item if isinstance(item, int) else -1 for item in _references(graph.tables.arguments)],
    }
    for row_list in ROW_LISTS:
        count = len(graph.columns[next(iter(row_list.numbers.values()))])
        starts = range(0, count, _BATCH)
        yield row_list.name, (_rows(graph, row_list, texts, start, min(start + _BATCH, count)) for start in starts)


def _references(texts: list[str]) -> list[Any]:
    """How rows of a table are referred to: by text, or by number if an earlier row has that text; the last is none."""
    first = _rows_by_text(texts)
    return [*(text if first[text] == row else row for row, text in enumerate(texts)), None]


def _rows_by_text(texts: list[str]) -> dict[str, int]:
    """Text -> the first row that has it."""
    return {text: row for row, text in reversed(list(enumerate(texts)))}


def _rows(graph: Graph, row_list: RowList, texts: dict[str, list[Any]], start: int, stop: int) -> list[Any]:
    """The rows of one batch."""

    def part(column: str) -> list[int]:
        return graph.columns[column][start:stop].tolist()  # type: ignore[no-any-return]

    fields: dict[str, Iterable[Any]] = {"id": range(start, stop)}
    for name, column in row_list.numbers.items():
        fields[name] = part(column)
    for name, (column, words) in row_list.words.items():
        fields[name] = map(words.__getitem__, part(column))
    for name, (column, table) in row_list.references.items():
        fields[name] = map(texts[table].__getitem__, part(column))  # -1 is the last: none
    if row_list.unit == "node":
        fields.update(_node_fields(graph, start, stop))
        for name in ("arguments", "arguments_row"):
            fields[name] = map(texts[name].__getitem__, part("node_arguments"))
    return list(map(row_list.row, *(fields[name] for name in row_list.row.__struct_fields__)))


def _node_fields(graph: Graph, start: int, stop: int) -> dict[str, Iterable[Any]]:
    columns, index = graph.columns, graph.index
    types = [str(operation.type) for operation in graph.tables.operations]
    calls = [index.paths[path] for path in index.path_of_call.tolist()]
    return {
        "name": index.names(start, stop),
        "operation_type": map(types.__getitem__, columns["node_operation"][start:stop].tolist()),
        "scope": map(calls.__getitem__, columns["node_call"][start:stop].tolist()),
        "inputs": _lists(columns["input_ptr"], columns["input_value"], start, stop),
        "outputs": _lists(columns["output_ptr"], columns["output_value"], start, stop),
        "writes": _writes(columns, start, stop),
    }


def _lists(ptr: Array, items: Array, start: int, stop: int) -> list[list[int | None]]:
    bounds = ptr[start : stop + 1]
    flat = items[bounds[0] : bounds[-1]].tolist()
    if -1 in flat:
        flat = [None if item < 0 else item for item in flat]
    return [flat[low:high] for low, high in pairwise((bounds - bounds[0]).tolist())]


def _writes(columns: dict[str, Array], start: int, stop: int) -> list[list[int]]:
    """Per node the positions of the inputs it writes to."""
    ptr = columns["input_ptr"]
    writes: list[list[int]] = [[] for _ in range(start, stop)]
    written = np.flatnonzero(columns["input_written"][ptr[start] : ptr[stop]]) + ptr[start]
    nodes = np.searchsorted(ptr, written, side="right") - 1
    for node, position in zip((nodes - start).tolist(), (written - ptr[nodes]).tolist(), strict=True):
        writes[node].append(position)
    return writes


def _tables(tables: Tables) -> dict[str, list[Any]]:
    operations = [
        JsonOperation(
            operation.name,
            operation.type,
            [
                JsonParameter(one.name, one.keyword_only, UNSET if one.default is None else Raw(one.default))
                for one in operation.parameters
            ],
        )
        for operation in tables.operations
    ]
    rest = {name: getattr(tables, name) for name in _TABLES}
    return {**rest, "operations": operations, "arguments": [Raw(text) for text in tables.arguments]}


# -- file -> graph ---------------------------------------------------------------------------------------------------


@READERS.add(".json")
def load_json(path: Path) -> Graph:
    """Read the graph. What is wrong is said with its place: "nodes[12].phase: ..."."""
    with open_to_read(path) as file:
        data = file.read()
    document: Document = decoded(path, data, _DECODER)
    check_head(path, Head(document.format, document.version))
    try:
        ours = _is_ours(document, data)
        if not ours:  # made by hand, or reformatted by some tool
            refuse_repeated_keys(path, data)
        del data
        text = _as_is if ours else _canonical
        tables = _read_tables(document, text)
        columns = _read_columns(document, tables, text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError) and str(error).startswith(str(path)):
            raise
        raise FileFormatError(f"{path}: {error}.") from error
    notes = document.notes
    if document.recorded:
        left_out = f"{len(document.recorded)} recorded values were left out of {path.name}; .atlas files keep them"
        notes = [*notes, left_out]
    rest = {"notes": notes, "metadata": document.metadata, "timing": document.timing}
    return build(path, columns, tables, source=document.source, **rest)


def _is_ours(document: Document, data: bytes) -> bool:
    """Whether writing the document gives the same bytes: then no key stood twice and no call was reformatted."""
    head = {name: getattr(document, name) for name in _HEAD}
    tables = {name: getattr(document, name) for name in _TABLES}
    row_lists = ((row_list.name, _batches(getattr(document, row_list.name))) for row_list in ROW_LISTS)
    position = 0
    for piece in _text(head, row_lists, tables):
        if not data.startswith(piece, position):
            return False
        position += len(piece)
    return position == len(data)


def _batches(rows: list[Any]) -> Iterator[list[Any]]:
    listed = iter(rows)
    while batch := list(islice(listed, _BATCH)):
        yield batch


def _as_is(raw: Raw) -> str:
    return bytes(raw).decode()


def _canonical(raw: Raw) -> str:
    """A call, or one argument, as graph/arguments.py writes it: equal calls have equal texts, whatever their layout."""
    text = bytes(raw).decode()
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        return text  # `build` says what is wrong with it


def _read_tables(document: Document, text: Callable[[Raw], str]) -> Tables:
    operations = [
        Operation(row.name, row.type, tuple(_parameter(one, text) for one in row.parameters))
        for row in document.operations
    ]
    rest = {name: getattr(document, name) for name in _TABLES[2:]}
    return Tables(operations=operations, arguments=[text(raw) for raw in document.arguments], **rest)


def _parameter(row: JsonParameter, text: Callable[[Raw], str]) -> Parameter:
    return Parameter(row.name, row.keyword_only, None if row.default is UNSET else text(row.default))


def _read_columns(document: Document, tables: Tables, text: Callable[[Raw], str]) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for row_list in ROW_LISTS:
        rows = getattr(document, row_list.name)
        if "id" in row_list.row.__struct_fields__:
            _check_ids(row_list, rows)
        for name, column in row_list.numbers.items():
            columns[column] = _number_column(list(map(attrgetter(name), rows)), COLUMNS[column][0])
        for name, (column, words) in row_list.words.items():
            position = {word: number for number, word in enumerate(words)}
            numbers = map(position.__getitem__, map(attrgetter(name), rows))
            columns[column] = np.fromiter(numbers, COLUMNS[column][0], len(rows))
        for name, (column, table) in row_list.references.items():
            columns[column] = _reference_column(row_list, name, rows, column, _known(tables, table))
    columns["node_arguments"] = _arguments_column(document.nodes, tables.arguments, text)
    columns.update(_lists_columns(document.nodes))
    return columns


def _check_ids(row_list: RowList, rows: list[Any]) -> None:
    for expected, row in enumerate(rows):
        if row.id != expected:
            raise FileFormatError(
                f"{row_list.name}[{expected}].id: is {row.id}, expected {expected}: rows are in order"
            )


def _number_column(numbers: list[int | None], dtype: str) -> Array:
    try:
        return np.array(numbers, dtype)
    except TypeError:  # null is as good as leaving it out
        return np.array([-1 if number is None else number for number in numbers], dtype)


def _known(tables: Tables, table: str) -> dict[Hashable, int]:
    """Text or number -> row."""
    texts = [row.name if isinstance(row, Operation) else row for row in getattr(tables, table)]
    known: dict[Hashable, int] = {row: row for row in range(len(texts))}
    known.update(_rows_by_text(texts))
    known[None] = -1
    return known


def _reference_column(row_list: RowList, name: str, rows: list[Any], column: str, known: dict[Hashable, int]) -> Array:
    table = row_list.references[name][1]
    try:
        return np.fromiter(map(known.__getitem__, map(attrgetter(name), rows)), COLUMNS[column][0], len(rows))
    except KeyError:
        where, item = next((n, item) for n, row in enumerate(rows) if (item := getattr(row, name)) not in known)
        what = quoted(item) if isinstance(item, str) else item
        raise FileFormatError(f"{row_list.name}[{where}].{name}: {what} is not among the {table}") from None


def _arguments_column(rows: list[Any], texts: list[str], text: Callable[[Raw], str]) -> Array:
    """Calls by their text; `seen` spares reading the same bytes again, however they are laid out."""
    known = _rows_by_text(texts)
    seen = {item.encode(): row for item, row in known.items()} | {b"null": -1}
    table_rows: list[int] = []
    for number, row in enumerate(rows):
        raw = row.arguments
        data = b"null" if raw is UNSET else bytes(raw)
        table_row = seen.get(data)
        if table_row is None:
            table_row = seen[data] = known.get(text(raw), -2)
        if table_row == -2:
            raise FileFormatError(f"nodes[{number}].arguments: this call is not among the arguments")
        if row.arguments_row not in (-1, None):
            if texts[row.arguments_row : row.arguments_row + 1] != texts[table_row : table_row + 1]:
                raise FileFormatError(f"nodes[{number}].arguments_row: row {row.arguments_row} holds another call")
            table_row = row.arguments_row
        table_rows.append(table_row)
    return np.array(table_rows, COLUMNS["node_arguments"][0])


def _lists_columns(rows: list[Any]) -> dict[str, Array]:
    """inputs, outputs and writes, flat, with where each node's begin."""
    columns: dict[str, Array] = {}
    for name in ("input", "output"):
        lists = list(map(attrgetter(name + "s"), rows))
        ptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=ptr[1:])
        columns[f"{name}_ptr"] = ptr
        columns[f"{name}_value"] = _number_column([item for one in lists for item in one], "i4")
    written = np.zeros(len(columns["input_value"]), np.uint8)
    for number, row in enumerate(rows):
        for position in row.writes:
            if position >= len(row.inputs):
                raise FileFormatError(f"nodes[{number}].writes: {position}, but it has {len(row.inputs)} inputs")
            written[columns["input_ptr"][number] + position] = 1
    columns["input_written"] = written
    return columns
