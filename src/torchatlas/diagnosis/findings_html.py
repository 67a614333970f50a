"""Findings -> HTML for notebooks. Lines of cells are named as IPython names them: Cell In[3], line 2.

Those of the cell that ran are links to it, as JupyterLab 4, Notebook 7 and nbconvert have them. A kernel is told the id
of the cell that runs and of no other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from html import escape
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from torchatlas.escapes import clean
from torchatlas.graph import SourceLine

if TYPE_CHECKING:
    from torchatlas.diagnosis.findings import Finding, Findings, Where

# Readable on light and dark pages: at least 4 to 1 against white and against Jupyter's #111111.
_COLORS = {"error": "#e03e3e", "warning": "#a8730f", "note": "#6c7a89"}
_PAGE = "font-size:13px;line-height:1.5;max-width:100%"
_CELL = "text-align:left;vertical-align:top;padding:2px .6em;overflow-wrap:anywhere"


def findings_html(findings: Findings) -> str:
    """A block for each finding: what is wrong, then why, where and how to mend it."""
    blocks = "".join(_block(finding, findings.cells) for finding in findings)
    closing = "<br>".join(_text(line) for line in findings.closing_lines)
    return f'<div style="{_PAGE}">{blocks}<p>{closing}</p></div>'


def running_cell() -> dict[str, str]:
    """The file that IPython gives the cell that runs, and the id of that cell; empty elsewhere."""
    parent: dict[str, Any] = getattr(_shell(), "get_parent", dict)()
    cell = parent.get("metadata", {}).get("cellId")
    frame: FrameType | None = sys._getframe(1)
    file = ""
    while frame is not None:
        file = frame.f_code.co_filename if _name_of_cell(frame.f_code.co_filename) else file  # the outermost
        frame = frame.f_back
    return {file: cell} if file and isinstance(cell, str) else {}


def _block(finding: Finding, cells: Mapping[str, str]) -> str:
    often = f" ({finding.times:,} times)" if finding.times > 1 else ""
    kind = f'<b style="color:{_COLORS[finding.severity]}">{finding.severity}</b> <code>{_text(finding.key)}</code>'
    rows = [("why", _text(finding.why)), ("where", "<br>".join(_places(finding.where, cells)))]
    rows.append(("fix", _text(finding.fix)))
    rows += [
        ("so also", f"<code>{_text(consequence.key)}</code>: {_text(consequence.what)}")
        for consequence in finding.follows
    ]
    table = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:normal;opacity:.7;white-space:nowrap">{name}</th>'
        f'<td style="{_CELL}">{text}</td></tr>'
        for name, text in rows
        if text
    )
    style = "border-collapse:collapse;border:none;margin:2px 0 10px;font-size:13px"
    return f'<div>{kind} <b>{_text(finding.what)}</b>{often}</div><table style="{style}">{table}</table>'


def _places(where: Iterable[Where], cells: Mapping[str, str]) -> Iterable[str]:
    for place in where:
        if place.source is None:
            yield _text(place.what)
            continue
        library = f", by {_text(str(place.library))}" if place.library is not None else ""
        code = f"<br><code>{_text(place.source.text)}</code>" if place.source.text else ""
        line = _text(_line(place.source))
        if place.source.file in cells:
            line = f'<a href="#cell-id={quote(cells[place.source.file], safe="")}">{line}</a>'
        yield f"{_text(place.what)}, {line}{library}{code}"


def _line(source: SourceLine) -> str:
    """The file of a line, or its notebook cell, and its number."""
    name = _name_of_cell(source.file)
    return f"{name}, line {source.line}" if name else f"{source.file}:{source.line}"


def _name_of_cell(file: str) -> str:
    """What IPython calls the cell that has this file; empty if none has."""
    named = getattr(getattr(_shell(), "compile", None), "format_code_name", lambda file: None)(file)
    return " ".join(named) if named else ""


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def _text(text: str) -> str:
    return escape(clean(text))
