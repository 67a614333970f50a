"""Columns of text -> lines that fit a terminal, and plain text for reports that print themselves.

Widths are those a terminal shows: two cells for a Chinese character, none for a combining accent. Names come from
anybody: what a terminal would obey is made visible.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from torchatlas.escapes import clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

StyledLine = list[tuple[str, str]]  # pieces of text, each with its style for rich

GAP = 2  # between two columns
NARROWEST = 8  # cells that a column of text keeps in any case
_NARROW, _WIDE, _USUAL = 40, 160, 100  # bounds of the width on a terminal, and the width where there is none
_LEAST = 30  # room for a name and a figure


@dataclass(frozen=True, slots=True)
class Column:
    """Cells below a title. Figures stay whole; text is cut, but not below `readable` while another column can leave."""

    title: str
    cells: Sequence[str]
    right: bool = True  # aligned to the right, as figures are
    readable: int | None = None  # None: never cut
    leaves: int = 0  # where there is no room the column with the highest number leaves first; 0 stays
    style: str = ""
    shares: Sequence[float | None] | None = None  # of cells that are bars: what HTML draws them of


# -- lines -------------------------------------------------------------------------------------------------------------


def table_lines(columns: Sequence[Column], width: int, gap: int = GAP) -> Iterator[StyledLine]:
    """A table no wider than `width`: where there is no room columns leave, then text is cut, widest first."""
    fitted = _fitted(columns, width, gap)
    yield _row([column.title for column, _ in fitted], fitted, gap, "bold")
    yield [("─" * min(sum(size for _, size in fitted) + gap * (len(fitted) - 1), width), "")]
    for cells in zip(*(column.cells for column, _ in fitted), strict=True):
        yield _row(cells, fitted, gap)


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int = 48) -> str:
    """A table as plain text. A > before a heading aligns its column to the right; longer cells than `widest` are cut.

    >>> print(text_table(["op", ">MACs"], [["mm", "1,024"], ["relu", "0"]]))
    op     MACs
    ----  -----
    mm    1,024
    relu      0
    """
    titles = [clean(heading.removeprefix(">")) for heading in headings]
    cells = [[cut(clean(cell), widest) for cell in row] for row in rows]
    columns = [
        Column(title, column, right=heading.startswith(">"))
        for title, heading, *column in zip(titles, headings, *cells, strict=True)
    ]
    sized = [(column, _natural_width(column)) for column in columns]
    return plain(_row(row, sized, GAP) for row in (titles, ["-" * size for _, size in sized], *cells))


def text_lines(lines: Iterable[str]) -> str:
    r"""Lines one below the other, each safe for a terminal, and each one line whatever a name in it holds.

    >>> print(text_lines(["3 nodes", "note: \x1b[2Jforged\nline"]))
    3 nodes
    note: \x1b[2Jforged\nline
    """
    return "\n".join(map(clean, lines))


def plain(lines: Iterable[StyledLine]) -> str:
    """Lines without their styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def paragraph(text: str, width: int, style: str = "") -> Iterator[StyledLine]:
    """The text in lines no wider than `width`; a longer word is cut."""
    line = ""
    for word in text.split():
        short = cut(word, width)
        if line and cell_len(line) + 1 + cell_len(short) > width:
            yield [(line, style)]
            line = short
        else:
            line = f"{line} {short}" if line else short
    yield [(line, style)]


def note_lines(notes: Iterable[str], width: int) -> Iterator[StyledLine]:
    """Notes below a table."""
    for note in notes:
        yield from paragraph(clean(f"note: {note}"), width, "dim")


def cut(text: str, width: int) -> str:
    """Text of at most `width` cells: of a longer one both ends stay, with … between them."""
    if len(text) <= width and cell_len(text) <= width:
        return text
    end = _start(text[::-1][: width + 1], width // 2)[::-1]
    start = _start(text, width - 1 - cell_len(end))
    while (start or end) and cell_len(f"{start}…{end}") > width:  # some characters are wider beside others: emoji
        start, end = (start[:-1], end) if start else ("", end[1:])
    return f"{start}…{end}"


def cell_len(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _start(text: str, width: int) -> str:
    """As many leading characters as `width` cells hold."""
    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:at]
    return text


def _natural_width(column: Column) -> int:
    return max(map(cell_len, (column.title, *column.cells)))


def _fitted(columns: Sequence[Column], width: int, gap: int) -> list[tuple[Column, int]]:
    """The columns that have room, each with its width."""
    fitted = [(column, _natural_width(column)) for column in columns]

    def least() -> int:
        sizes = (size if column.readable is None else min(size, column.readable) for column, size in fitted)
        return sum(sizes) + gap * (len(fitted) - 1)

    while least() > width and (rank := max(column.leaves for column, _ in fitted)):
        fitted = [(column, size) for column, size in fitted if column.leaves != rank]
    widths = [size for _, size in fitted]
    excess = sum(widths) + gap * (len(widths) - 1) - width
    texts = [at for at, (column, _) in enumerate(fitted) if column.readable is not None]
    while excess > 0 and texts and max(widths[at] for at in texts) > NARROWEST:
        ordered = sorted((widths[at] for at in texts), reverse=True)
        second = max(ordered[1] if len(ordered) > 1 else 0, NARROWEST)
        less = max(min(excess, ordered[0] - second), 1)  # a name may have 10,000 characters: not one by one
        widths[next(at for at in texts if widths[at] == ordered[0])] -= less
        excess -= less
    return [(column, size) for (column, _), size in zip(fitted, widths, strict=True)]


def _row(cells: Sequence[str], sized: Sequence[tuple[Column, int]], gap: int, style: str = "") -> StyledLine:
    line = []
    for at, (cell, (column, width)) in enumerate(zip(cells, sized, strict=True)):
        text = cut(cell, width)
        fill = " " * (width - cell_len(text))
        line.append((" " * gap * bool(at) + (fill + text if column.right else text + fill), style or column.style))
    return line


# -- what prints itself ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FittedLines:
    """Lines for rich, made when the width of its console is known."""

    lines: Callable[[int], Iterable[StyledLine]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text.assemble(*line, no_wrap=True, overflow="crop")


class Printable:
    """A report that shows itself as lines: as plain text and by rich."""

    def lines(self, width: int) -> Iterator[StyledLine]:
        """The text with its styles, line by line."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        raise NotImplementedError

    def to_text(self, width: int | None = None) -> str:
        """Plain text.

        Args:
            width: No line is wider: by default the terminal's width, but between 40 and 160.
        Returns:
            The text.
        """
        if width is None:
            width = min(max(shutil.get_terminal_size((_USUAL, 24)).columns, _NARROW), _WIDE)
        return plain(self.lines(max(width, _LEAST)))

    def to_json(self) -> str:
        """One JSON object, in ASCII: it may be printed."""
        return json.dumps(self.as_dict(), allow_nan=False)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        first = plain(islice(self.lines(_WIDE), 1))
        return f"<{type(self).__name__} of {first}>"

    def __rich__(self) -> FittedLines:
        return FittedLines(self.lines)
