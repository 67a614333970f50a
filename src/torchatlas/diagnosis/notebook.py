"""Findings -> a table for notebooks. Lines of cells are named as IPython names them: Cell In[3], line 2."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from torchatlas.escapes import clean
from torchatlas.graph import SourceLine

if TYPE_CHECKING:
    from torchatlas.diagnosis.finding import Finding, Findings, Where

_COLORS = {"error": "#c0392b", "warning": "#b9770e", "note": "#5d6d7e"}  # readable on light and dark pages
_CELL = "text-align: left; vertical-align: top"


def findings_html(findings: Findings) -> str:
    rows = "".join(_row(finding) for finding in findings)
    titles = "".join(f'<th style="{_CELL}">{title}</th>' for title in ("", "what and why", "where", "fix"))
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div>{table}<p>{'<br>'.join(_text(line) for line in findings.closing_lines)}</p></div>"


def _row(finding: Finding) -> str:
    often = f" ({finding.times:,} times)" if finding.times > 1 else ""
    what = [f"<b>{_text(finding.what)}</b>{often}", _text(finding.why)]
    what += [f"so also <code>{_text(one.key)}</code>: {_text(one.what)}" for one in finding.follows]
    color = _COLORS[finding.severity]
    key = f'<b style="color: {color}">{finding.severity}</b><br><code>{_text(finding.key)}</code>'
    cells = [key, "<br>".join(what), "<br>".join(_places(finding.where)), _text(finding.fix)]
    return "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _places(where: Iterable[Where]) -> Iterable[str]:
    for place in where:
        if place.source is None:
            yield _text(place.what)
            continue
        library = f", by {_text(str(place.library))}" if place.library is not None else ""
        code = f"<br><code>{_text(place.source.text)}</code>" if place.source.text else ""
        yield f"{_text(place.what)}, {_text(_line(place.source))}{library}{code}"


def _line(source: SourceLine) -> str:
    """Where a line is: in a cell if it is one's."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)(source.file)
    return f"{' '.join(name)}, line {source.line}" if name else f"{source.file}:{source.line}"


def _text(text: str) -> str:
    return escape(clean(text))
