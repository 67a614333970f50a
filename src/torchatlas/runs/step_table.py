"""The figures of steps as a table: columns by name, a text, a data frame, a file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchatlas.errors import FileFormatError, FileSystemError, UnknownNameError
from torchatlas.escapes import cell
from torchatlas.export.csv_rows import write_rows
from torchatlas.files import replacing
from torchatlas.graph.formats import as_path, check_folder, imported, suffix_of
from torchatlas.graph.shown import Shown
from torchatlas.registry import did_you_mean
from torchatlas.runs.journal import Number
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_bytes, format_ns

_FIRST = ("number", "wall_ns", "unrecorded_ns", "device_ns", "ops", "structure", "peak_bytes", "process_bytes")
_MOST_ROWS = 20  # that a printed table shows
_TITLES = {"number": "step", "wall_ns": "time", "unrecorded_ns": "unrecorded"}


class StepTable(Shown):
    """Some steps of a run: `steps["wall_ns"]` is a column; what is not known is None."""

    def __init__(self, columns: Mapping[str, Sequence[Number]], reasons: Sequence[str] | None = None) -> None:
        self.columns = {name: list(column) for name, column in columns.items()}
        self.reasons = reasons  # why each step is in the table

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self.columns.get("number", ()))

    def __getitem__(self, name: str) -> list[Number]:
        """A column by its name."""
        if name not in self.columns:
            raise UnknownNameError(f"no column is named {name!r}{did_you_mean(str(name), self.columns) or '.'}")
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of that name."""
        return name in self.columns

    def __iter__(self) -> Iterator[dict[str, Number]]:
        """The steps one by one, each with its figures by name."""
        for at in range(len(self)):
            yield {name: column[at] for name, column in self.columns.items()}

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps."""
        return [int(number) for number in self.columns.get("number", ()) if number is not None]

    def _at(self, places: Sequence[int], reasons: Sequence[str] | None = None) -> StepTable:
        """The rows at some places."""
        return StepTable({name: [column[at] for at in places] for name, column in self.columns.items()}, reasons)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per step; what is not known is <NA>."""
        pandas = imported("pandas", "to_pandas needs")
        data = {name: pandas.array(column, dtype=_dtype(column)) for name, column in self.columns.items()}
        return pandas.DataFrame(data)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table.

        Args:
            path: Where: .csv or .parquet.
        Returns:
            The path.
        Raises:
            FileFormatError: It has another suffix.
            FileSystemError: The file cannot be written.
            MissingDependencyError: .parquet needs pyarrow.
        """
        target = as_path(path)
        suffix = suffix_of(target)
        if suffix not in (".csv", ".parquet"):
            raise FileFormatError(f"{target.name}: a table of steps is saved as .csv or .parquet.")
        if suffix == ".parquet":
            imported("pyarrow", ".parquet files need", "parquet")
        table = self.to_pandas() if suffix == ".parquet" else None
        check_folder(target)
        try:
            with replacing(target) as file:
                if table is not None:
                    table.to_parquet(file, engine="pyarrow", index=False)
                else:
                    write_rows(file, [cell(name) for name in self.columns], zip(*self.columns.values(), strict=True))
        except OSError as error:
            if isinstance(error, FileSystemError):
                raise
            raise FileSystemError(f"Cannot write {target}: {error.strerror or error}.") from error
        return target

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{len(self):,} step{'s' * (len(self) != 1)}, each timed once, while recorded"])
        if len(self):
            yield self._table()

    def _table(self) -> Table:
        """The rows for people; of many those at both ends, or the first ones if they are in order of their reasons."""
        count, half = len(self), _MOST_ROWS // 2
        shown = list(range(min(count, _MOST_ROWS)))
        if self.reasons is None and count > _MOST_ROWS:
            shown = [*range(half), *range(count - half, count)]
        names = [name for name in _FIRST if any(number is not None for number in self.columns.get(name, ()))]
        names += [
            name for name in self.columns if name not in (*_FIRST, "start_ns", "ops_ns", "finished") and ":" not in name
        ]
        rows = [[figure(name, self.columns[name][at]) for name in names] for at in shown]
        headings = [f">{_TITLES.get(name) or in_words(name)}" for name in names]
        if self.reasons is not None:
            headings.append("why")
            rows = [[*row, self.reasons[at]] for row, at in zip(rows, shown, strict=True)]
        where = "in between" if self.reasons is None else "that stand out less"
        left_out = f"{count - len(shown):,} steps {where} are left out" if count > len(shown) else ""
        return Table(headings, rows, widest=100, below=left_out)


def in_words(name: str) -> str:
    """The name of a column without its unit.

    >>> in_words("peak_bytes"), in_words("gradient_norm")
    ('peak', 'gradient norm')
    """
    return name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def figure(name: str, number: Number) -> str:
    """A number of a column, with its unit."""
    if number is None:
        return "-"
    if isinstance(number, bool):
        return "yes" if number else "no"
    if name.partition(":")[0].endswith("_ns"):
        return format_ns(number)
    if name.endswith("_bytes"):
        return format_bytes(number)
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _dtype(column: Sequence[Number]) -> str:
    known = [number for number in column if number is not None]
    if known and all(isinstance(number, bool) for number in known):
        return "boolean"
    return "Float64" if any(isinstance(number, float) for number in known) else "Int64"


def known(column: Sequence[Number]) -> list[float]:
    """The numbers of a column that are known and finite."""
    return [float(number) for number in column if number is not None and math.isfinite(number)]
