"""Rows -> comma-separated values, as RFC 4180 says. Texts have passed through `escapes.cell` before."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO


def write_rows(file: BinaryIO, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write headings and rows into an open file, which stays open. None is an empty cell."""
    text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
    # Python's csv, until 3.12 at least, quotes a carriage return only if lines end with one.
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(headings)
    writer.writerows(rows)
    text.flush()
    text.detach()
