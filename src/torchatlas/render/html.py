"""Graph -> the small table a notebook shows for it: one self-contained piece of HTML that fits light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torchatlas.analysis.summary import memory_usage, operations_by_phase, run_times, slowest
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.formats import VIEWS
from torchatlas.render.outline import Row, headline, outline
from torchatlas.units import format_bytes, format_count, format_ns

# Colours are the page's own: text inherits, lines and bars are half-transparent grey.
_TABLE = "border-collapse:collapse;background:none;margin:6px 0;white-space:nowrap;font-variant-numeric:tabular-nums"
_LINE = "border-bottom:1px solid rgba(127,127,127,.4)"
_ROWS = 40
_SLOWEST = 5


@VIEWS.add("html")
def notebook_view(graph: Graph) -> str:
    """What `graph` shows as the last line of a notebook cell."""
    facts = [f"{len(graph):,} nodes", f"{len(graph.edges):,} edges"]
    facts += [f"{phase} {count:,}" for phase, count in operations_by_phase(graph).items()]
    parts = [
        f"<div><b>{escape(clean(headline(graph)))}</b></div>",
        f'<div style="opacity:.75">{escape(" · ".join(facts))}</div>',
    ]
    if len(graph):
        parts.append(f'<div style="opacity:.75">memory: {escape(str(memory_usage(graph)))}</div>')
        if graph.timing is not None:
            parts.append(f'<div style="opacity:.75">time: {escape(str(run_times(graph)))}</div>')
        parts.append(_modules(graph))
        parts.append(_slowest(graph))
    parts += [f'<div style="opacity:.6">note: {escape(clean(note))}</div>' for note in graph.notes]
    return f'<div style="font-size:small;line-height:1.5;overflow-x:auto">{"".join(parts)}</div>'


def _modules(graph: Graph) -> str:
    rows = outline(graph, limit=_ROWS)
    head = ("module", "type", ">calls", ">ops", ">time", ">parameters", ">allocated")
    return _table(head, [_module_cells(row) for row in rows], len(rows) > 12)


def _module_cells(row: Row) -> tuple[str, ...]:
    label = "\N{NO-BREAK SPACE}" * 3 * row.depth + row.label
    if row.count > 1 and row.type:
        label += f"  ×{row.count}"
    if row.hidden:
        label += f"  (+{row.hidden:,} inside)"
    at_least = "≥ " if row.untimed and row.time_ns is not None else ""
    time = at_least + format_ns(row.time_ns) if row.operations else ""
    parameters = format_count(row.parameters) if row.parameters else ""
    allocated = ("≥ " if row.unsized else "") + format_bytes(row.allocated_bytes) if row.allocated_bytes else ""
    return label, row.type, f"{row.calls:,}", f"{row.operations:,}", time, parameters, allocated


def _slowest(graph: Graph) -> str:
    nodes = slowest(graph, _SLOWEST)
    if not nodes:
        return ""
    rows = [
        (node.name, node.operation, format_ns(node.time_ns), str(node.source) if node.source else "") for node in nodes
    ]
    return _table(("slowest operations", "operation", ">time", "made at"), rows, False)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], folded: bool) -> str:
    sides = ["right" if cell.startswith(">") else "left" for cell in head]
    titles = [cell.removeprefix(">") for cell in head]
    body = _row("th", titles, sides, ";" + _LINE) + "".join(_row("td", row, sides) for row in rows)
    table = f'<table cellpadding="3" style="{_TABLE}">{body}</table>'
    if folded:
        return f"<details><summary>{escape(titles[0])}s: {len(rows)} rows</summary>{table}</details>"
    return table


def _row(tag: str, cells: Sequence[str], sides: list[str], more: str = "") -> str:
    inside = "".join(
        f'<{tag} style="text-align:{side}{more}">{escape(clean(cell))}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f'<tr style="background:none">{inside}</tr>'
