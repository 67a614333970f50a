"""Cells -> lines that fit a terminal: columns of text and figures, and trees with horizontal bars.

Widths are those a terminal shows: two cells for a Chinese character, none for a combining accent.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchatlas.escapes import clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

Line = list[tuple[str, str]]  # pieces of text, each with its style

_GAP = 2  # between two columns
_NARROWEST = 8  # what a column of text keeps in any case
_NARROW, _WIDE, _USUAL = 40, 160, 100  # how wide text may get, and is where there is no terminal
_LEAST = 30  # what a name and a figure need
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHORTEST_BAR, _LONGEST_BAR = 8, 40


@dataclass(frozen=True, slots=True)
class Column:
    """Cells below a title. Figures stay whole, text is cut; `readable` is what text should keep."""

    title: str
    cells: Sequence[str]
    right: bool = True  # figures
    readable: int | None = None  # None: never cut
    leaves: int = 0  # the highest leaves first where there is no room; 0 stays
    style: str = ""


def text_width(width: int | None) -> int:
    """How wide text may be: as asked for, or as the terminal allows."""
    if width is not None:
        return max(width, _LEAST)
    return min(max(shutil.get_terminal_size((_USUAL, 24)).columns, _NARROW), _WIDE)


def grid(columns: Sequence[Column], width: int) -> Iterator[Line]:
    """A table no wider than `width`: where there is no room columns leave, then text is cut, widest first."""
    from rich.cells import cell_len

    chosen = [(one, max(map(cell_len, (one.title, *one.cells)))) for one in columns]

    def least() -> int:
        sizes = (size if one.readable is None else min(size, one.readable) for one, size in chosen)
        return sum(sizes) + _GAP * (len(chosen) - 1)

    while least() > width and (rank := max(one.leaves for one, _ in chosen)):
        chosen = [(one, size) for one, size in chosen if one.leaves != rank]
    widths = [size for _, size in chosen]
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    texts = [at for at, (one, _) in enumerate(chosen) if one.readable is not None]
    while excess > 0 and texts and max(widths[at] for at in texts) > _NARROWEST:
        ordered = sorted((widths[at] for at in texts), reverse=True)
        second = max(ordered[1] if len(ordered) > 1 else 0, _NARROWEST)
        less = max(min(excess, ordered[0] - second), 1)  # a name may have 10,000 characters: not one by one
        widths[next(at for at in texts if widths[at] == ordered[0])] -= less
        excess -= less
    kept = [one for one, _ in chosen]
    yield [
        (" " * _GAP * bool(at) + _padded(one.title, size, one.right), "bold")
        for at, (one, size) in _sized(kept, widths)
    ]
    yield [("─" * min(sum(widths) + _GAP * (len(widths) - 1), width), "")]
    for cells in zip(*(one.cells for one in kept), strict=True):
        yield [
            (" " * _GAP * bool(at) + _padded(cell, size, one.right), one.style)
            for cell, (at, (one, size)) in zip(cells, _sized(kept, widths), strict=True)
        ]


def _sized(columns: Sequence[Column], widths: Sequence[int]) -> Iterator[tuple[int, tuple[Column, int]]]:
    return enumerate(zip(columns, widths, strict=True))


def _padded(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len

    text = cut(text, width)
    fill = " " * (width - cell_len(text))
    return fill + text if right else text + fill


def cut(text: str, width: int) -> str:
    """Text that takes no more than `width` cells; what is left out in the middle is …"""
    from rich.cells import cell_len

    if len(text) <= width and cell_len(text) <= width:
        return text
    tail = _start(text[::-1][: width + 1], width // 3)[::-1]  # the first part of a name says more than the last
    start = _start(text, width - 1 - cell_len(tail))
    while start and cell_len(f"{start}…{tail}") > width:  # some characters are wider beside others: emoji
        start = start[:-1]
    return f"{start}…{tail}"


def _start(text: str, width: int) -> str:
    from rich.cells import cell_len

    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:at]
    return text


def wrapped(text: str, width: int) -> Iterator[str]:
    """The text in lines no wider than `width`; a word that is longer is cut."""
    from rich.cells import cell_len

    line = ""
    for word in text.split():
        short = cut(word, width)
        if line and cell_len(line) + 1 + cell_len(short) > width:
            yield line
            line = short
        else:
            line = f"{line} {short}" if line else short
    yield line


def plain(lines: Iterable[Line]) -> str:
    """Lines without their styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Lines for rich, made when the width of its console is known."""

    lines: Callable[[int], Iterable[Line]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text.assemble(*line, no_wrap=True, overflow="crop")


# -- bars --------------------------------------------------------------------------------------------------------------


def bar(share: float, cells: int) -> str:
    """A bar in eighths of a character; whatever is more than nothing can be seen.

    >>> bar(0.5, 5), bar(0.001, 5), bar(0.0, 5)
    ('██▌', '▏', '')
    """
    eighths = max(round(min(share, 1.0) * cells * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


@dataclass(frozen=True, slots=True)
class BarRow:
    """One module, or several alike: its part of the whole. None is unknown."""

    depth: int
    label: str
    path: str
    amount: int | None
    share: float | None
    text: str  # the amount for people


class Printed:
    """What shows itself as lines: as plain text and by rich."""

    def lines(self, width: int) -> Iterator[Line]:
        """The text with its styles, line by line."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        raise NotImplementedError

    def to_text(self, width: int | None = None) -> str:
        """Plain text, no line wider than `width`: by default the terminal's, but between 40 and 160."""
        return plain(self.lines(text_width(width)))

    def to_json(self) -> str:
        """One JSON object, in ASCII: it may be printed."""
        return json.dumps(self.as_dict(), allow_nan=False)

    def __str__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Fitted:
        return Fitted(self.lines)


@dataclass(frozen=True, eq=False)
class ModuleBars(Printed):
    """The module tree with a bar for each module's share. Print it."""

    title: str
    by: str
    rows: tuple[BarRow, ...] = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)

    def lines(self, width: int) -> Iterator[Line]:
        """The text with its styles, line by line."""
        from rich.cells import cell_len

        yield [(cut(clean(f"{self.title}, by {self.by}"), width), "bold")]
        yield []
        labels = ["  " * row.depth + clean(row.label) for row in self.rows]
        shares = ["" if row.share is None else f"{100 * row.share:.1f} %" for row in self.rows]
        texts = [row.text for row in self.rows]
        figures = max(map(cell_len, (*shares, "share"))) + max(map(cell_len, (*texts, self.by))) + 3 * _GAP
        names = min(max(map(cell_len, ("module", *labels))), max((width - figures) // 2, _NARROWEST))
        length = min(max(width - figures - names, _SHORTEST_BAR), _LONGEST_BAR)
        bars = ["" if row.share is None else bar(row.share, length) for row in self.rows]
        columns = [
            Column("module", labels, right=False, readable=names),
            Column("", [one.ljust(length) for one in bars], right=False, style="cyan", leaves=2),
            Column("share", shares, leaves=1),
            Column(self.by, texts),
        ]
        yield from grid(columns, width)
        for number, note in enumerate(self.notes):
            if not number:
                yield []
            yield from ([(part, "dim")] for part in wrapped(clean(f"note: {note}"), width))

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        names = ("depth", "label", "path", "amount", "share")
        rows = [{name: getattr(row, name) for name in names} for row in self.rows]
        return {"title": self.title, "by": self.by, "rows": rows, "notes": list(self.notes)}
