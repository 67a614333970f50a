"""Graph <-> `.atlas`: a zip of one .npy per column, a JSON header and the recorded values; loses nothing.

Equal graphs give equal bytes. Members are stored, not compressed, so that no file can claim more than it holds:
sizes are checked against the file before anything is allocated, and nothing in it is ever unpickled or executed.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from msgspec import Struct

from torchatlas.errors import FileFormatError, NotAvailableError
from torchatlas.escapes import quoted
from torchatlas.export.file_checks import (
    FORMAT,
    SINCE,
    VERSION,
    Head,
    build,
    check_head,
    check_savable,
    decoded,
    refuse_repeated_keys,
)
from torchatlas.files import open_to_read, replacing
from torchatlas.graph import Graph
from torchatlas.graph.columns import COLUMNS, Array, Tables
from torchatlas.graph.formats import READERS, WRITERS
from torchatlas.graph.timing import Timing

# For the reader's protection, see docs/limits.md. We write one member per column and two more.
MOST_MEMBERS = 1000
MOST_DIRECTORY_BYTES = 1 << 20
_HEADER, _VALUES = "header.json", "values.safetensors"
# What zipfile raises on damaged files: its own error, and those of the functions it hands unchecked fields to.
_DAMAGE = (zipfile.BadZipFile, ValueError, EOFError, LookupError, RuntimeError, ArithmeticError, struct.error)
# The header of a flat array as numpy writes it. Matching the text leaves nothing for numpy to evaluate or unpickle.
_NPY_HEADER = re.compile(
    rb"\{'descr': '([^']{1,8})', 'fortran_order': (?:False|True), 'shape': \((\d{1,18}),\), \} *\n"
)
_PART = 1 << 20  # bytes of a column read at a time: what a processor's cache holds is copied at its speed


class Header(Struct, omit_defaults=True):
    """header.json."""

    format: str
    version: int
    source: str
    notes: list[str]
    metadata: dict[str, Any]
    columns: list[str]
    tables: Tables
    timing: Timing | None = None


_DECODER = msgspec.json.Decoder(Header)


# -- graph -> file ---------------------------------------------------------------------------------------------------


Parts = tuple[bytes | memoryview, ...]  # of one member, in order: a column is not copied to put its header before it


@WRITERS.add(".atlas")
def save_archive(graph: Graph, path: Path) -> None:
    """Write the whole graph."""
    check_savable(graph, path)
    members = graph_members(graph, path)
    if graph.recorded:
        header = members.pop(_HEADER)
        members = {_HEADER: header, _VALUES: (_values_bytes(graph, path),), **members}
    with replacing(path) as file:
        write_members(file, members)


def graph_members(graph: Graph, destination: object) -> dict[str, Parts]:
    """The members of an archive that hold a graph, without its recorded values; `place` is for messages."""
    header = Header(
        FORMAT, VERSION, graph.source, graph.notes, graph.metadata, list(COLUMNS), graph.tables, graph.timing
    )
    try:
        members: dict[str, Parts] = {_HEADER: (msgspec.json.encode(header),)}
    except UnicodeEncodeError as error:
        raise FileFormatError(f"{destination}: not written: a text of the graph is not Unicode ({error}).") from error
    for name, (dtype, _) in COLUMNS.items():
        members[f"columns/{name}.npy"] = array_parts(np.asarray(graph.columns[name], dtype))
    return members


def array_parts(array: Array) -> Parts:
    """A flat array as a little-endian .npy member."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return _npy_header(array), array.data.cast("B") if len(array) else b""


def write_members(file: IO[bytes], members: Mapping[str, Parts]) -> None:
    """Write an archive. Equal members in equal order give equal bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, parts in members.items():
            _add(archive, name, parts)


def _add(archive: zipfile.ZipFile, name: str, parts: Parts) -> None:
    info = zipfile.ZipInfo(
        name, (1980, 1, 1, 0, 0, 0)
    )  # no clock and no platform in the file: equal graphs, equal bytes
    info.create_system, info.external_attr = 3, 0o644 << 16
    info.file_size = sum(len(part) for part in parts)
    with archive.open(info, "w") as member:
        for part in parts:
            member.write(part)


def _npy_header(column: Array) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(column))
    return buffer.getvalue()


def _values_bytes(graph: Graph, path: Path) -> bytes:
    from safetensors import SafetensorError
    from safetensors.numpy import save

    try:
        return save({key: np.asarray(array, order="C") for key, array in graph.recorded.items()})
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        kinds = sorted({str(array.dtype) for array in graph.recorded.values()})
        raise NotAvailableError(
            f"{path}: not written: safetensors cannot keep one of the recorded dtypes {', '.join(kinds)} ({error})."
        ) from error


# -- file -> graph ---------------------------------------------------------------------------------------------------


@READERS.add(".atlas")
def load_archive(path: Path) -> Graph:
    """Read the whole graph."""
    with _File(open_to_read(path).detach()) as file:
        return _read_graph(file, path)


def graph_of_bytes(data: bytes, path: Path) -> Graph:
    """Read the whole graph from the bytes of an archive that `path` held."""
    with _File(io.BytesIO(data)) as file:  # it reads what a raw file reads
        return _read_graph(file, path)


def _read_graph(file: _File, path: Path) -> Graph:
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            file.most = size
            members = _members(path, archive, size)
            header = _read_header(path, archive, members)
            columns = {
                name: _read_column(archive, members, name) for name in COLUMNS if header.version >= SINCE.get(name, 1)
            }
            recorded = _read_values(archive, members)
    except FileFormatError as error:
        if str(error).startswith(str(path)):
            raise
        raise FileFormatError(f"{path}: {error}.") from error
    except _DAMAGE as error:
        raise FileFormatError(f"{path}: damaged, or not an .atlas file: {error}.") from error
    for name in COLUMNS:  # the column is younger than the file
        if name not in columns:
            columns[name] = np.full(len(columns["node_kind"]), -1, COLUMNS[name][0])
    rest = {"source": header.source, "notes": header.notes, "metadata": header.metadata, "recorded": recorded}
    return build(path, columns, header.tables, timing=header.timing, **rest)


class _File(io.BufferedReader):
    """An archive. zipfile reads its directory whole before it looks at it: that read may not be larger than `most`."""

    most = MOST_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.most:
            raise FileFormatError(f"its directory has {size} bytes, expected at most {self.most}")
        return super().read(size)


def _members(path: Path, archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """What is in the archive by name, after making sure that the file is large enough to hold it."""
    members: dict[str, zipfile.ZipInfo] = {}
    if len(archive.infolist()) > MOST_MEMBERS:
        raise FileFormatError(f"it has {len(archive.infolist())} members, expected at most {MOST_MEMBERS}")
    for info in archive.infolist():
        name = quoted(info.filename)
        if info.filename in members:
            raise FileFormatError(f"{name} is in it twice")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise FileFormatError(f"{name} is compressed; members of an .atlas file are stored as they are")
        if not 0 <= info.header_offset <= size - info.file_size:
            raise FileFormatError(f"{name} lies outside of the file")
        members[info.filename] = info
    if (claimed := sum(info.file_size for info in members.values())) > size:
        raise FileFormatError(f"its members claim {claimed} bytes, but the file has {size}")
    return members


def _read(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> IO[bytes]:
    if name not in members:
        raise FileFormatError(f"{name} is missing")
    return archive.open(members[name])


def _read_header(path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> Header:
    with _read(archive, members, _HEADER) as member:
        data = member.read()
    header: Header = decoded(path, data, _DECODER, inside="header.json: ")
    check_head(path, Head(header.format, header.version))
    if msgspec.json.encode(header) != data:
        refuse_repeated_keys(path, data, inside="header.json: ")
    if unknown := [name for name in header.columns if name not in COLUMNS]:
        raise FileFormatError(f"header.json: there is no column {quoted(unknown[0])} in version {VERSION}")
    return header


def _read_column(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> Array:
    """One column; its .npy header must say what the column is and how many bytes follow, no more and no less."""
    member_name = f"columns/{name}.npy"
    dtype = np.dtype(COLUMNS[name][0]).newbyteorder("<")
    with _read(archive, members, member_name) as member:
        start = member.read(10)
        text = member.read(int.from_bytes(start[8:10], "little"))
        header = _NPY_HEADER.fullmatch(text)
        if start[:8] != b"\x93NUMPY\x01\x00" or not header or header[1] != dtype.str.encode():
            raise FileFormatError(f"{member_name}: not an .npy file of version 1.0 with flat {dtype.str}")
        rest = members[member_name].file_size - len(start) - len(text)
        if int(header[2]) * dtype.itemsize != rest:
            raise FileFormatError(f"{member_name}: claims {int(header[2])} numbers, but {rest} bytes follow")
        column = np.empty(int(header[2]), dtype)
        filled, room = 0, column.view(np.uint8)
        while part := member.read(_PART):  # to the end: zipfile then checks the sum
            room[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
    if filled != rest:
        raise FileFormatError(f"{member_name}: cut off after {filled} of {rest} bytes")
    return column.astype(COLUMNS[name][0], copy=False)


def _read_values(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, Array]:
    if _VALUES not in members:
        return {}
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with _read(archive, members, _VALUES) as member:
        data = member.read()
    try:
        return dict(load(data))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{_VALUES}: {error}") from error
