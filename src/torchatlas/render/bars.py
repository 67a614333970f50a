"""Module table -> the module tree with horizontal bars: each module's share of the time, MACs, memory or parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchatlas.analysis.module_figures import NO_MACS
from torchatlas.errors import AnalysisError
from torchatlas.escapes import clean
from torchatlas.graph.shown import ShownPart
from torchatlas.registry import check_choice
from torchatlas.render import module_cells, report_html
from torchatlas.tables import GAP, NARROWEST, Column, Printable, StyledLine, cell_len, cut, note_lines, table_lines

if TYPE_CHECKING:
    from torchatlas.render.module_table import ModuleTable

_FIGURES = {"time": "time_ns", "macs": "macs", "memory": "allocated_bytes", "parameters": "parameters"}
_CELLS = {
    "time": module_cells.time,
    "macs": module_cells.macs,
    "memory": module_cells.allocated,
    "parameters": module_cells.parameters,
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHORTEST_BAR, _LONGEST_BAR = 8, 40


@dataclass(frozen=True, slots=True)
class BarRow(ShownPart):
    """One module, or several alike: its part of the whole. None is unknown."""

    depth: int
    label: str
    path: str
    amount: int | None
    share: float | None
    text: str  # the amount for people


@dataclass(frozen=True, eq=False, repr=False)
class ModuleBars(Printable):
    """The module tree with a bar for each module's share. Print it."""

    table: ModuleTable = field(repr=False)
    by: str

    def __post_init__(self) -> None:
        check_choice("by", self.by, _FIGURES)
        totals = self.table.totals
        if getattr(totals, _FIGURES[self.by]) is not None:
            return
        without_macs = (note for note in self.table.notes if self.by == "macs" and note.startswith(NO_MACS))
        known = " or ".join(by for by, name in _FIGURES.items() if getattr(totals, name) is not None)
        raise AnalysisError(
            f"This graph has no {self.by} to draw: {next(without_macs, f'no {self.by} is known')}. "
            f"Draw {known} instead."
        )

    @property
    def title(self) -> str:
        """The first line."""
        return self.table.title

    @cached_property
    def rows(self) -> tuple[BarRow, ...]:
        """The modules with their shares."""
        amounts = [getattr(row.total, _FIGURES[self.by]) for row in self.table.rows]
        return tuple(
            BarRow(
                row.depth, module_cells.label(row), row.path, amount, _share(amount, amounts[0]), _CELLS[self.by](row)
            )
            for row, amount in zip(self.table.rows, amounts, strict=True)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before trusting a number."""
        times = (f"time: {self.table.times}",) if self.by == "time" else ()
        return (*times, *self.table.notes)

    def lines(self, width: int) -> Iterator[StyledLine]:
        """The text with its styles, line by line.

        Args:
            width: No line is wider.
        Returns:
            The lines.
        """
        rows = self.rows
        yield [(cut(clean(f"{self.title}, by {self.by}"), width), "bold")]
        yield []
        labels = ["  " * row.depth + row.label for row in rows]
        shares = ["" if row.share is None else f"{100 * row.share:.1f} %" for row in rows]
        texts = [row.text for row in rows]
        figures = max(map(cell_len, (*shares, "share"))) + max(map(cell_len, (*texts, self.by))) + 3 * GAP
        names = min(max(map(cell_len, ("module", *labels))), max((width - figures) // 2, NARROWEST))
        length = min(max(width - figures - names, _SHORTEST_BAR), _LONGEST_BAR)
        bars = ["" if row.share is None else bar(row.share, length) for row in rows]
        columns = [
            Column("module", labels, right=False, readable=names),
            Column("", [text.ljust(length) for text in bars], right=False, style="cyan", leaves=2),
            Column("share", shares, leaves=1),
            Column(self.by, texts),
        ]
        yield from table_lines(columns, width)
        if self.notes:
            yield []
        yield from note_lines(self.notes, width)

    def _repr_html_(self) -> str:
        rows = self.rows
        columns = [
            Column("module", ["  " * row.depth + row.label for row in rows], right=False),
            Column("", [""] * len(rows), right=False, shares=[row.share for row in rows]),
            Column("share", ["" if row.share is None else f"{100 * row.share:.1f} %" for row in rows]),
            Column(self.by, [row.text for row in rows]),
        ]
        parts = [report_html.table(columns, [row.path for row in rows])]
        return report_html.page(f"{self.title}, by {self.by}", parts, self.notes)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        names = ("depth", "label", "path", "amount", "share")
        rows = [{name: getattr(row, name) for name in names} for row in self.rows]
        return {"title": self.title, "by": self.by, "rows": rows, "notes": list(self.notes)}


def _share(amount: int | None, whole: int) -> float | None:
    return None if amount is None else amount / whole if whole else 0.0


def bar(share: float, cells: int) -> str:
    """A bar in eighths of a character; whatever is more than nothing can be seen.

    >>> bar(0.5, 5), bar(0.001, 5), bar(0.0, 5)
    ('██▌', '▏', '')
    """
    eighths = max(round(min(share, 1.0) * cells * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
