"""The journal of a run, line by line, and its folder, `run.atlas/`: what they hold, how they are written and read.

    run.jsonl                 the journal: one JSON object per line, only ever appended to
    structures/HASH.atlas     the first step of each structure
    steps/NUMBER.atlas        a step in full

A process may be killed at any moment. A line that was not written whole has no line end and is left out when the
journal is read; a graph appears under its name only when it is complete. Power that fails is another matter: nothing is
forced onto the disk before the system writes it there.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from torchatlas.errors import FileFormatError, FileSystemError, NewerVersionError
from torchatlas.escapes import quoted
from torchatlas.files import open_to_read
from torchatlas.graph.formats import check_folder

FORMAT, VERSION = "torchatlas-run", 1
JOURNAL, STRUCTURES, STEPS = "run.jsonl", "structures", "steps"
# For the reader's protection, see docs/limits.md
MOST_LINE_BYTES = 1 << 26
MOST_STEPS = 10_000_000
MOST_COLUMNS = 1000
MOST_NUMBERS = 100_000_000  # of all columns: what a line lacks takes memory, too
_MOST_NUMBER = 2**62

Number = int | float | bool | None  # of a column; None: not known
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no word for them
_Count = Annotated[int, Meta(ge=0, le=_MOST_NUMBER)]
_Text = Annotated[str, Meta(max_length=10_000)]
_Name = Annotated[str, Meta(min_length=1, max_length=1000)]
_Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Beginning(Struct, tag="run"):
    """The first line."""

    format: str
    version: int
    program: _Text  # the version of torchatlas
    torch: _Text
    model: _Text  # its class; empty if none was given
    every: Annotated[int, Meta(ge=1, le=_MOST_NUMBER)]
    keep: _Text
    last: _Count
    began: float  # seconds since 1970


class Structure(Struct, tag="structure"):
    """A structure that was met for the first time."""

    number: _Count
    hash: _Hash
    step: _Count  # the first that has it
    ops: _Count
    words: _Text = ""  # what is different from the structure of the step before


class Steps(Struct, tag="steps"):
    """Figures of some steps, in order. Columns are of equal length; "number" is one of them."""

    columns: dict[_Name, list[int | float | bool | str | None]]


class Note(Struct, tag="note"):
    """What a reader must know before trusting a number."""

    text: _Text


class End(Struct, tag="end"):
    """The last line of a run that was left in order, whatever ended it."""

    how: Literal["finished", "failed", "stopped"]
    text: _Text
    ended: float


Line = Beginning | Structure | Steps | Note | End
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Line)


# -- writing -----------------------------------------------------------------------------------------------------------


def make_folder(path: Path) -> None:
    """A new folder for a run; raises if something is there already, or if it cannot be made."""
    check_folder(path)
    try:
        path.mkdir()
    except FileExistsError as error:
        raise FileSystemError(
            f"{path} is there already, and a run is never written over another: choose another path, or remove it."
        ) from error
    except OSError as error:
        raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error


def free_path(path: Path = Path("run.atlas")) -> Path:
    """The first of run.atlas, run-2.atlas, run-3.atlas ... that is not there, nor a page or a report of its name."""
    number, free = 1, path
    while any(os.path.lexists(candidate) for candidate in (free, free.with_suffix(".html"), free.with_suffix(".txt"))):
        number += 1
        free = path.with_name(f"{path.name.removesuffix('.atlas')}-{number}.atlas")
    return free


class Journal:
    """The journal of a run that is being recorded. `append` writes all of its lines or none."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / JOURNAL, "xb", buffering=0)  # noqa: SIM115  # closed by `close`
        self._length = 0

    def append(self, lines: Iterable[Line]) -> None:
        data = memoryview(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        try:
            while data:  # a disk that is nearly full takes a part
                data = data[self._file.write(data) :]
        except OSError:
            self._file.truncate(self._length)
            self._file.seek(self._length)
            raise
        self._length = self._file.tell()

    def close(self) -> None:
        self._file.close()


def columns_line(rows: Sequence[dict[str, Number]]) -> Steps:
    """Rows, each with the figures that are known -> their columns."""
    names = dict.fromkeys(name for row in rows for name in row)
    return Steps({name: [_written(row.get(name)) for row in rows] for name in names})


def _written(number: Number) -> int | float | bool | str | None:
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number


# -- reading -----------------------------------------------------------------------------------------------------------


def is_run(path: Path) -> bool:
    """True for a folder that holds a run."""
    return path.is_dir() and (path / JOURNAL).is_file()


def journal_lines(folder: Path) -> Iterator[Line]:
    """The lines of a journal, each checked. The last one may be cut off: then it is left out."""
    path = folder / JOURNAL
    try:
        with open_to_read(path) as file:
            number = 0
            while data := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(data) > MOST_LINE_BYTES:
                    raise FileFormatError(f"{path}: line {number} has more than {MOST_LINE_BYTES:,} bytes.")
                if not data.endswith(b"\n"):
                    return
                yield _line(path, number, data)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot read {path}: {error.strerror or error}.") from error


def _line(path: Path, number: int, data: bytes) -> Line:
    if number == 1:
        _check_head(path, data)
    try:
        line: Line = _DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: line {number}: {error}.") from error
    if isinstance(line, Beginning) != (number == 1):
        what = "expected the beginning of a run" if number == 1 else "the run begins a second time"
        raise FileFormatError(f"{path}: line {number}: {what}.")
    return line


class _Head(Struct):
    format: str
    version: int


def _check_head(path: Path, data: bytes) -> None:
    """Raise unless this torchatlas can read the run."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: line 1: {error}.") from error
    if head.format != FORMAT:
        raise FileFormatError(f"{path}: not a run: its format is {quoted(head.format)}, expected {FORMAT!r}.")
    if head.version > VERSION:
        raise NewerVersionError(
            f"{path}: written in version {head.version} of the format; this torchatlas reads up to version {VERSION}. "
            "Upgrade torchatlas: pip install --upgrade torchatlas"
        )
    if head.version < 1:
        raise FileFormatError(f"{path}: there is no version {head.version} of the format.")


def add_columns(path: Path, columns: dict[str, list[Number]], more: dict[str, list[Any]]) -> None:
    """Append the columns of further steps to a table; None where one of the two lacks a column."""
    lengths = {len(column) for column in more.values()}
    if not more.get("number") or len(lengths) != 1:
        raise FileFormatError(f"{path}: columns of steps that differ in length, or have no number.")
    before, count = len(columns.get("number", ())), lengths.pop()
    if before + count > MOST_STEPS:
        raise FileFormatError(f"{path}: more than {MOST_STEPS:,} steps.")
    for name in more:
        columns.setdefault(name, [None] * before)
    if len(columns) > MOST_COLUMNS:
        raise FileFormatError(f"{path}: more than {MOST_COLUMNS:,} columns.")
    if len(columns) * (before + count) > MOST_NUMBERS:
        raise FileFormatError(f"{path}: more than {MOST_NUMBERS:,} numbers of steps.")
    for name, column in columns.items():
        column += _numbers(path, name, more[name]) if name in more else [None] * count
    numbers = columns["number"][max(before - 1, 0) :]
    for number, following in pairwise(numbers):
        if not isinstance(number, int) or not isinstance(following, int) or following <= number:
            raise FileFormatError(f"{path}: steps {number} and {following} follow each other.")
    if not isinstance(numbers[0], int) or numbers[0] < 0:
        raise FileFormatError(f"{path}: a step has the number {numbers[0]}.")


_WHOLE = re.compile(r"number|structure|ops|finished|\w*(_ns|_bytes)(:.*)?", re.DOTALL)


def _numbers(path: Path, name: str, column: list[Any]) -> list[Number]:
    """A column as it was before it was written."""
    whole = _WHOLE.fullmatch(name) is not None
    return [_number(path, name, whole, item) for item in column]


def _number(path: Path, name: str, whole: bool, item: Any) -> Number:
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, str):
        if item not in _NOT_FINITE:
            raise FileFormatError(f"{path}: column {quoted(name)} holds {quoted(item)}, which is no number.")
        item = _NOT_FINITE[item]
    if whole and not (isinstance(item, int) and -1 <= item <= _MOST_NUMBER):
        raise FileFormatError(f"{path}: column {quoted(name)} holds {item:.20g}, expected a whole number from 0 on.")
    try:
        number: Number = float(item) if isinstance(item, int) and abs(item) > _MOST_NUMBER else item
    except OverflowError as error:
        raise FileFormatError(f"{path}: column {quoted(name)} holds a number that is too large.") from error
    return number


def kept_steps(folder: Path) -> list[int]:
    """The numbers of the steps that are there in full."""
    try:
        names = os.listdir(folder / STEPS)
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"(\d{1,18})\.atlas", name)))
