"""Columns and lines -> one self-contained piece of HTML that fits light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from torchatlas.escapes import clean
from torchatlas.tables import Column

# Colours are the page's own: text inherits, lines are half-transparent grey.
_TABLE = "border-collapse:collapse;background:none;margin:6px 0;white-space:pre;font-variant-numeric:tabular-nums"
_RULE = "border-bottom:1px solid rgba(127,127,127,.4)"
_LONGEST = 120  # characters of a cell


def page(title: str, parts: Iterable[str], notes: Iterable[str]) -> str:
    """The whole: a title, parts that are HTML already, and notes."""
    head = f"<div><b>{escape(_short(clean(title)))}</b></div>"
    below = (line(f"note: {clean(note)}", 0.6) for note in notes)
    return f'<div style="font-size:small;line-height:1.5;overflow-x:auto">{"".join([head, *parts, *below])}</div>'


def line(text: str, opacity: float = 1.0) -> str:
    """One line of text; it is fainter with a lower opacity."""
    style = f' style="opacity:{opacity:g}"' if opacity < 1 else ""
    return f"<div{style}>{escape(text)}</div>"


def table(columns: Sequence[Column], tooltips: Sequence[str] = ()) -> str:
    """Columns whose cells are clean, as an HTML table; each row may have a tooltip."""
    sides = ["right" if column.right else "left" for column in columns]
    rows = [_row("th", [column.title for column in columns], sides, f";{_RULE}")]
    for at, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        rows.append(_row("td", cells, sides, tooltip=tooltips[at] if tooltips else None))
    return f'<table cellpadding="3" style="{_TABLE}">{"".join(rows)}</table>'


def _row(tag: str, cells: Iterable[str], sides: Sequence[str], style: str = "", tooltip: str | None = None) -> str:
    inside = "".join(
        f'<{tag} style="text-align:{side}{style}">{escape(_short(cell))}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    title = "" if tooltip is None else f' title="{escape(_short(tooltip))}"'
    return f'<tr style="background:none"{title}>{inside}</tr>'


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 40]}…{text[-39:]}"
