"""Graph -> the table a notebook shows for it, as HTML: its figures, its modules and its slowest operations."""

from __future__ import annotations

from torchatlas.analysis.totals import memory_usage, operations_by_phase, run_times, slowest
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.render import report_html
from torchatlas.render.module_cells import counted_columns
from torchatlas.render.module_table import module_table, row_notes
from torchatlas.tables import Column
from torchatlas.units import format_ns

_MOST_ROWS = 40
_FEW_ROWS = 12  # more are folded away until the reader opens them
_SLOWEST = 5


def graph_html(graph: Graph) -> str:
    """What `graph` shows as the last line of a notebook cell."""
    modules = module_table(graph, rows=_MOST_ROWS)
    facts = [f"{len(graph):,} nodes", f"{len(graph.edges):,} edges"]
    facts += [f"{phase} {count:,}" for phase, count in operations_by_phase(graph).items()]
    parts = [report_html.line(" · ".join(facts), 0.75)]
    if len(graph):
        parts.append(report_html.line(f"memory: {memory_usage(graph)}", 0.75))
        if graph.timing is not None:
            parts.append(report_html.line(f"time: {run_times(graph)}", 0.75))
        rows = report_html.table(counted_columns(modules))
        many = len(modules.rows) > _FEW_ROWS
        parts.append(f"<details><summary>modules: {len(modules.rows)} rows</summary>{rows}</details>" if many else rows)
        if nodes := slowest(graph, _SLOWEST):
            columns = [
                Column("slowest operations", [clean(node.name) for node in nodes], right=False),
                Column("operation", [clean(node.operation) for node in nodes], right=False),
                Column("time", [format_ns(node.time_ns) for node in nodes]),
                Column("made at", [clean(str(node.source or "")) for node in nodes], right=False),
            ]
            parts.append(report_html.table(columns))
    return report_html.page(modules.title, parts, [*row_notes(modules.rows), *graph.notes])
