"""Graph -> its summary as text for a terminal: what there is, where the time and the bytes went, what took longest.

Nothing from a graph is ever read as markup, and what a terminal would obey is made visible: a graph may come from a
file, and its names from anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchatlas.analysis.totals import memory_usage, operations_by_phase, run_times, slowest, time_by_phase
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.render.module_cells import counted_columns, share, time
from torchatlas.render.module_table import ModuleTable, module_table, row_notes
from torchatlas.tables import Column, FittedLines, StyledLine, note_lines, paragraph, plain, table_lines
from torchatlas.units import format_count, format_ns

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 3  # between two columns
_MOST_ROWS = 60


def summary_text(graph: Graph, *, width: int = 100, depth: int | None = None, top: int = 10) -> str:
    """The summary as plain text, no line longer than `width`.

    `depth` says how many levels of modules to show (as many as fit by default), `top` how many slow operations.
    """
    return plain(_lines(graph, width, depth, top)) + "\n"


def print_summary(graph: Graph, console: Console, *, depth: int | None = None, top: int = 10) -> None:
    """Print the summary on a rich console: with colour where it has any."""
    console.print(FittedLines(lambda width: _lines(graph, width, depth, top)))


def _lines(graph: Graph, width: int, depth: int | None, top: int) -> Iterator[StyledLine]:
    modules = module_table(graph, depth, rows=_MOST_ROWS)
    yield from _head(graph, modules, width)
    yield []
    yield from table_lines(_phases(graph, modules), width, _GAP)
    if len(modules.rows) > 1 or modules.rows[0].type:
        yield []
        yield from table_lines(counted_columns(modules), width, _GAP)
    if nodes := slowest(graph, top):
        yield []
        yield from table_lines(_slowest(graph, nodes), width, _GAP)
    if notes := [*row_notes(modules.rows), *graph.notes]:
        yield []
        yield from note_lines(notes, width)


def _head(graph: Graph, modules: ModuleTable, width: int) -> Iterator[StyledLine]:
    yield from paragraph(clean(modules.title), width, "bold")
    counts = f"{len(graph):,} nodes, {len(graph.edges):,} edges, {format_count(modules.totals.parameters)} parameters"
    torch = graph.metadata.get("torch")
    yield from paragraph(counts + (clean(f", torch {torch}") if isinstance(torch, str) else ""), width)
    yield from paragraph(f"memory: {memory_usage(graph)}" if len(graph) else "nothing was recorded", width)
    if graph.timing is not None:
        yield from paragraph(f"time: {run_times(graph)}", width)


def _phases(graph: Graph, modules: ModuleTable) -> list[Column]:
    counts, times = operations_by_phase(graph), time_by_phase(graph).values()
    total = modules.rows[0]
    return [
        Column("phase", [*counts, "total"], right=False),
        Column("operations", [f"{count:,}" for count in (*counts.values(), total.operations)], leaves=1),
        Column("time", [*map(format_ns, times), time(total)]),
        Column("share", [*(share(part, total.total.time_ns) for part in times), ""], leaves=2),
    ]


def _slowest(graph: Graph, nodes: list[GraphNode]) -> list[Column]:
    columns = [
        Column("slowest operations", [clean(node.name) for node in nodes], right=False, readable=40),
        Column("kind", [str(node.operation_type) for node in nodes], right=False, leaves=3, style="cyan"),
        Column("time", [format_ns(node.time_ns) for node in nodes]),
    ]
    if graph.timing is not None and graph.timing.runs > 1:
        columns.append(Column("spread", [f"± {format_ns(node.time_spread_ns)}" for node in nodes], leaves=1))
    whole = graph.scopes[""].time_ns
    return [
        *columns,
        Column("share", [share(node.time_ns, whole) for node in nodes], leaves=2),
        Column("made at", [_source_line(node) for node in nodes], right=False, leaves=4, style="dim"),
    ]


def _source_line(node: GraphNode) -> str:
    """The name of the file without its folder, and the line."""
    if node.source is None:
        return ""
    return clean(f"{node.source.file.replace(chr(92), '/').rpartition('/')[2]}:{node.source.line}")
