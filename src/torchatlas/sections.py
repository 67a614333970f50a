"""What a report shows, as data: lines, tables and facts. Plain text is one view of it, made here; HTML for notebooks is
another, made by render/report_html.py.

Cells and lines may come from anybody: each view makes them safe. Spaces at the beginning of a line or cell indent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchatlas.escapes import clean
from torchatlas.tables import GAP, cell_len, cut, text_lines, text_table

_WIDEST_FACT = 400  # cells


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of text. The first line of a report says what it found, and stands for it where there is room for one."""

    texts: Sequence[str]
    notes: Sequence[str] = ()  # what a reader must know before trusting a number


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings. A > before a heading aligns its column to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    widest: int = 48  # longer cells are cut
    below: str = ""  # a line about rows that are left out


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what is known of them, a line each."""

    rows: Sequence[tuple[str, str]]


Section = Lines | Table | Facts


def text_of(sections: Iterable[Section]) -> str:
    r"""The sections as plain text; those without content are left out.

    >>> print(text_of([Lines(["2 ops"], notes=["none was timed"]), Facts([("device", "cpu"), ("dtype", "float32")])]))
    2 ops
    note: none was timed
    <BLANKLINE>
    device  cpu
    dtype   float32
    """
    return "\n\n".join(text for text in map(_text, sections) if text)


def headline(sections: Iterable[Section]) -> str:
    """The first line, clean."""
    texts = (text for section in sections if isinstance(section, Lines) for text in section.texts)
    return clean(next(texts, ""))


def _text(section: Section) -> str:
    if isinstance(section, Lines):
        return text_lines([*section.texts, *(f"note: {note}" for note in section.notes)])
    if isinstance(section, Table):
        table = text_table(section.headings, section.rows, widest=section.widest)
        return f"{table}\n{clean(section.below)}" if section.below else table
    names = [clean(name) for name, _ in section.rows]
    width = max(map(cell_len, names), default=0) + GAP
    return "\n".join(
        f"{name}{' ' * (width - cell_len(name))}{cut(clean(fact), _WIDEST_FACT)}".rstrip()
        for name, (_, fact) in zip(names, section.rows, strict=True)
    )
