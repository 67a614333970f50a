"""Graph -> text for a terminal: what there is, where the time and the bytes went, what took longest.

Nothing from a graph is ever read as markup, and what a terminal would obey is made visible: a graph may come from a
file, and its names from anybody.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from torchatlas.analysis.summary import memory_usage, operations_by_phase, slowest, time_by_phase
from torchatlas.graph import Graph, GraphNode
from torchatlas.render.outline import Row, headline, outline
from torchatlas.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


def summary_text(graph: Graph, *, width: int = 100, depth: int | None = None, top: int = 10) -> str:
    """The summary as plain text, no line longer than `width`.

    `depth` says how many levels of modules to show (as many as fit by default), `top` how many slow operations.
    """
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    print_summary(graph, console, depth=depth, top=top)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def print_summary(graph: Graph, console: Console, *, depth: int | None = None, top: int = 10) -> None:
    """The same, on a rich console: with colour where it has any."""
    parts: list[RenderableType] = [_title(graph), _phases(graph)]
    rows = outline(graph, depth=depth)
    if len(rows) > 1 or rows[0].type:
        parts.append(_modules(graph, rows))
    if nodes := slowest(graph, top):
        parts.append(_slowest(graph, nodes))
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part)
    if notes := _notes(graph, rows):
        console.print()
        for note in notes:
            console.print(_text(f"note: {note}", "dim"))


def clean(text: str) -> str:
    r"""Text without what a terminal obeys: control and format characters are shown as \x1b and the like.

    >>> clean("conv\x1b[31m[bold]ü")
    'conv\\x1b[31m[bold]ü'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _title(graph: Graph) -> Text:
    torch = graph.metadata.get("torch")
    title = _text("", "")
    title.append(clean(headline(graph)), "bold")
    title.append(f"\n{len(graph):,} nodes, {len(graph.edges):,} edges")
    title.append(f", {format_count(graph.scopes[''].parameters)} parameters")
    if isinstance(torch, str):
        title.append(clean(f", torch {torch}"))
    memory = memory_usage(graph)
    title.append(f"\nmemory: {memory}" if len(graph) else "\nnothing was recorded")
    return title


def _phases(graph: Graph) -> Table:
    table = _table("phase", ">operations", ">time", ">share")
    times = time_by_phase(graph)
    for phase, count in operations_by_phase(graph).items():
        time = next(ns for name, ns in times.items() if name == phase)
        table.add_row(_text(phase), f"{count:,}", format_ns(time), _share(time, graph.time_ns))
    untimed = graph.scopes[""].untimed
    table.add_row("total", f"{graph.scopes[''].operations:,}", _time(graph.time_ns, untimed), "")
    return table


def _modules(graph: Graph, rows: list[Row]) -> Table:
    timed, sized = graph.time_ns is not None, graph.peak_bytes is not None
    headings = ["module", "type", ">calls", ">ops", *([">time", ">share"] if timed else []), ">parameters"]
    table = _table(*headings, *([">allocated"] if sized else []))
    table.columns[0].max_width = 40
    table.columns[1].max_width = 20
    for row in rows:
        label = _text("  " * row.depth + row.label)
        if row.count > 1 and row.type:
            label.append(f"  ×{row.count}")
        if row.hidden:
            label.append(f"  (+{row.hidden:,} inside)", "dim")
        cells: list[RenderableType] = [label, _text(row.type, "cyan"), f"{row.calls:,}", f"{row.operations:,}"]
        if timed:
            known = row.operations > 0
            cells += [_time(row.time_ns, row.untimed) if known else "", _share(row.time_ns, graph.time_ns)]
        cells.append(format_count(row.parameters) if row.parameters else "")
        if sized:
            cells.append(_at_least(format_bytes(row.allocated_bytes), row.unsized) if row.allocated_bytes else "")
        table.add_row(*cells)
    return table


def _slowest(graph: Graph, nodes: list[GraphNode]) -> Table:
    table = _table("slowest operations", "kind", ">time", ">share", "made at")
    table.columns[0].max_width = 50
    for node in nodes:
        source = node.source
        line = f"{source.file.replace(chr(92), '/').rpartition('/')[2]}:{source.line}" if source is not None else ""
        share = _share(node.time_ns, graph.time_ns)
        kind = _text(node.operation_type, "cyan")
        table.add_row(_text(node.name), kind, format_ns(node.time_ns), share, _text(line, "dim"))
    return table


def _notes(graph: Graph, rows: list[Row]) -> list[str]:
    found = list(graph.notes)
    if len(graph) and graph.time_ns is None:
        found.append("nothing was timed")
    elif graph.scopes[""].untimed:
        found.append(f"{graph.scopes[''].untimed:,} operations were not timed: times with ≥ are at least that")
    if any(row.hidden for row in rows):
        found.append("modules deeper inside are counted in the rows above them; a greater depth shows them")
    return found


def _table(*headings: str) -> Table:
    """Columns by heading; a > in front of one aligns it to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(
            heading.removeprefix(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    return table


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(clean(text), style=style)


def _time(time_ns: int | None, untimed: int) -> str:
    return _at_least(format_ns(time_ns), untimed if time_ns is not None else 0)


def _at_least(text: str, missing: int) -> str:
    return f"≥ {text}" if missing else text


def _share(part: int | None, whole: int | None) -> str:
    return "" if part is None or not whole else f"{100 * part / whole:.1f} %"


