"""Columns, lines and sections of reports -> one self-contained piece of HTML, for the cells of notebooks.

Jupyter, VS Code and Colab each bring their own style sheet, so that whatever a table needs is said in the style of its
cells: Jupyter's own sets `white-space: normal` on cells, which folds the spaces that a tree would be indented with.
Colours are those of the page, light or dark: text inherits, rules and bars are half-transparent grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from torchatlas.escapes import clean
from torchatlas.sections import Facts, Lines, Section, Table
from torchatlas.tables import Column

_PAGE = "font-size:13px;line-height:1.5;max-width:100%"
_WIDE = (
    "overflow-x:auto;max-width:100%"  # a table that is wider than the cell is scrolled, and the lines around it stay
)
_TABLE = "border-collapse:collapse;border:none;background:none;margin:6px 0;font-size:13px;table-layout:auto"
_RULE = "border-bottom:1px solid rgba(127,127,127,.5)"
_BAR = "display:block;height:.7em;margin-top:.35em;background:rgba(31,119,180,.75)"
_BAR_WIDTH = 12  # em, of a whole
_PADDING = 0.6  # em, at the sides of a cell
_INDENT = 0.6  # em, of one leading space
_LONGEST = 120  # characters of a cell
_LONGEST_LINE = 2000
_NOWRAP = 48  # characters: a longer cell is broken into lines, as wide as so many
_FAINT = 0.7


def sections_html(sections: Iterable[Section]) -> str:
    """What a report shows. Its first line is its title."""
    parts: list[str] = []
    for section in sections:
        if isinstance(section, Lines):
            texts = list(section.texts)
            if not parts and texts:
                parts.append(title(texts.pop(0)))
            parts += [line(text) for text in texts]
            parts += [note(text) for text in section.notes]
        elif isinstance(section, Table):
            parts.append(table(list(_columns(section))))
            if section.below:
                parts.append(line(section.below, _FAINT))
        elif isinstance(section, Facts) and section.rows:
            parts.append(facts(section.rows))
    return piece(parts)


def page(heading: str, parts: Iterable[str], notes: Iterable[str]) -> str:
    """The whole: a title, parts that are HTML already, and notes."""
    return piece([title(heading), *parts, *map(note, notes)])


def piece(parts: Iterable[str]) -> str:
    """Parts that are HTML already, as one."""
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'


def title(text: str) -> str:
    return f'<div style="overflow-wrap:anywhere"><b>{_shown(text, _LONGEST_LINE)}</b></div>'


def note(text: str) -> str:
    """What a reader must know before trusting a number."""
    return line(f"note: {text}", _FAINT)


def line(text: str, opacity: float = 1.0) -> str:
    """One line of text; it is fainter with a lower opacity."""
    faint = f";opacity:{opacity:g}" if opacity < 1 else ""
    return f'<div style="overflow-wrap:anywhere{_indent(text)}{faint}">{_shown(text, _LONGEST_LINE)}</div>'


def table(columns: Sequence[Column], tooltips: Sequence[str] = ()) -> str:
    """Columns as an HTML table; each row may have a tooltip."""
    styles = [f"text-align:{'right' if column.right else 'left'}" for column in columns]
    titles = zip((column.title for column in columns), styles, strict=True)
    head = "".join(_cell("th", text, f"{style};font-weight:bold;{_RULE}") for text, style in titles)
    rows = [f'<tr style="background:none">{head}</tr>']
    for at in range(len(columns[0].cells) if columns else 0):
        tooltip = f' title="{_shown(tooltips[at])}"' if tooltips else ""
        top = ";vertical-align:top" if any(len(column.cells[at]) > _NOWRAP for column in columns) else ""
        cells = (
            _cell("td", column.cells[at], style + top) if column.shares is None else _bar(column.shares[at], style)
            for column, style in zip(columns, styles, strict=True)
        )
        rows.append(f'<tr style="background:none"{tooltip}>{"".join(cells)}</tr>')
    return _scrolled("".join(rows))


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what is known of them; long texts are whole."""
    name = f"text-align:left;vertical-align:top;font-weight:normal;opacity:{_FAINT}"
    known = f"text-align:left;vertical-align:top;overflow-wrap:anywhere;padding:2px {_PADDING}em"
    return _scrolled(
        "".join(
            f'<tr style="background:none">{_cell("th", text, name)}'
            f'<td style="{known}">{_shown(fact, _LONGEST_LINE)}</td></tr>'
            for text, fact in rows
        )
    )


def _columns(section: Table) -> Iterable[Column]:
    for at, heading in enumerate(section.headings):
        cells = [row[at] for row in section.rows]
        yield Column(heading.removeprefix(">"), cells, right=heading.startswith(">"))


def _scrolled(rows: str) -> str:
    return f'<div style="{_WIDE}"><table style="{_TABLE}">{rows}</table></div>'


def _cell(tag: str, text: str, style: str) -> str:
    wrap = "white-space:nowrap" if len(text) <= _NOWRAP else f"min-width:{_NOWRAP // 2}em;overflow-wrap:anywhere"
    padding = f"padding:2px {_PADDING}em{_indent(text, _PADDING)}"
    return f'<{tag} style="{style};{wrap};{padding}">{_shown(text)}</{tag}>'


def _bar(share: float | None, style: str) -> str:
    """A bar in a cell. Whatever is more than nothing can be seen."""
    width = _BAR_WIDTH * min(share or 0.0, 1.0)
    shown = f'<span style="{_BAR};width:{width:.2f}em;min-width:1px"></span>' if share else ""
    return f'<td style="{style};padding:2px {_PADDING}em;min-width:{_BAR_WIDTH}em">{shown}</td>'


def _indent(text: str, padding: float = 0.0) -> str:
    """The padding that stands for the spaces at the beginning of a text."""
    spaces = len(text) - len(text.lstrip(" "))
    return f";padding-left:{padding + _INDENT * spaces:.1f}em" if spaces else ""


def _shown(text: str, longest: int = _LONGEST) -> str:
    text = clean(text).strip(" ")
    return escape(text if len(text) <= longest else f"{text[: longest - 40]}…{text[-39:]}")
