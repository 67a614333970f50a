"""Graph -> the lines of the program around those that its nodes come from.

Files are read only where the line that was recorded still stands there: another version of a file would show lines
that never ran. A graph from a file names whatever files its author chose: of those only Python's are read.
"""

from __future__ import annotations

import linecache
from typing import Any

from torchatlas.errors import FileSystemError
from torchatlas.escapes import encodable
from torchatlas.files import open_to_read
from torchatlas.graph import Graph
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject

_AROUND = 3  # lines before and after
_LONGEST = 400  # characters of a line
_MOST_BYTES = 4 << 20  # of a file that is read


@section("sources")
def sources(subject: Subject) -> Members:
    """Per file ranges of lines, in order."""
    graph = subject.graph
    by_file: dict[str, dict[int, str]] = {}
    for row in graph.tables.sources:
        by_file.setdefault(row.file, {})[row.line] = row.text
    ranges_by_file = {}
    for file, wanted in sorted(by_file.items()):
        lines = _lines(graph, file)
        standing = [line for line, text in wanted.items() if 0 < line <= len(lines) and lines[line - 1].strip() == text]
        if ranges := _ranges(sorted(standing), lines):
            ranges_by_file[encodable(file)] = ranges
    return {"sources.json": ranges_by_file} if ranges_by_file else {}


def _lines(graph: Graph, file: str) -> list[str]:
    """The lines of a file; none if it cannot be read, or should not."""
    if graph.own:  # cells of a notebook, too
        return [line.rstrip("\n") for line in linecache.getlines(file)]
    if not file.endswith(".py") or "\0" in file:
        return []
    try:
        with open_to_read(file) as handle:
            data = handle.read(_MOST_BYTES + 1)
    except (FileSystemError, OSError):  # it is not here: the page does without
        return []
    return data.decode("utf-8", "replace").split("\n") if len(data) <= _MOST_BYTES else []


def _ranges(standing: list[int], lines: list[str]) -> list[dict[str, Any]]:
    ranges: list[tuple[int, int]] = []
    for line in standing:
        first, last = max(line - _AROUND, 1), min(line + _AROUND, len(lines))
        if ranges and first <= ranges[-1][1] + 1:
            first, _ = ranges.pop()
        ranges.append((first, last))
    return [{"first": first, "lines": [_cut(line) for line in lines[first - 1 : last]]} for first, last in ranges]


def _cut(line: str) -> str:
    line = encodable(line.rstrip("\r"))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
