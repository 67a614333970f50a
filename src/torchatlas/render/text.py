"""Graph -> text for a terminal: what there is, where the time and the bytes went, what took longest.

Nothing from a graph is ever read as markup, and what a terminal would obey is made visible: a graph may come from a
file, and its names from anybody.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

from torchatlas.analysis.summary import memory_usage, operations_by_phase, run_times, slowest, time_by_phase
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.render.outline import Row, headline, outline
from torchatlas.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_GAP = 3  # between two columns, as rich draws them
_READABLE, _NARROWEST = 40, 8  # a column of text keeps so much while another can go, and so much in any case
_OPTIONAL = ("calls", "made at", "allocated", "kind", "params", "type", "share", "spread")  # the first goes first


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
        parts.append(_modules(graph, rows, console.width))
    if nodes := slowest(graph, top):
        parts.append(_slowest(graph, nodes, console.width))
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part)
    if notes := _notes(graph, rows):
        console.print()
        for note in notes:
            console.print(_text(f"note: {note}", "dim"))


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
    if graph.timing is not None:
        title.append(f"\ntime: {run_times(graph)}")
    return title


def _phases(graph: Graph) -> Table:
    times = {str(phase): time_ns for phase, time_ns in time_by_phase(graph).items()}
    total = graph.scopes[""]
    rows = [
        [phase, f"{count:,}", format_ns(times[phase]), _share(times[phase], total.time_ns)]
        for phase, count in operations_by_phase(graph).items()
    ]
    rows.append(["total", f"{total.operations:,}", _time(total.time_ns, total.untimed), ""])
    return _table(["phase", ">operations", ">time", ">share"], rows)


def _modules(graph: Graph, rows: list[Row], width: int) -> Table:
    timed, sized = graph.scopes[""].time_ns is not None, graph.peak_bytes is not None
    headings = ["module", "type", ">calls", ">ops", *([">time", ">share"] if timed else []), ">params"]
    headings += [">allocated"] if sized else []
    return _table(
        headings, [_module_cells(row, graph.scopes[""].time_ns, timed, sized) for row in rows], width, texts=2
    )


def _module_cells(row: Row, whole_ns: int | None, timed: bool, sized: bool) -> list[str]:
    label = "  " * row.depth + row.label
    if row.count > 1 and row.type:
        label += f"  ×{row.count}"
    if row.hidden:
        label += f"  +{row.hidden:,}"
    cells = [label, row.type, f"{row.calls:,}", f"{row.operations:,}"]
    if timed:
        cells += [_time(row.time_ns, row.untimed) if row.operations else "", _share(row.time_ns, whole_ns)]
    cells.append(format_count(row.parameters) if row.parameters else "")
    if sized:
        cells.append(_at_least(format_bytes(row.allocated_bytes), row.unsized) if row.allocated_bytes else "")
    return cells


def _slowest(graph: Graph, nodes: list[GraphNode], width: int) -> Table:
    rows, several = [], graph.timing is not None and graph.timing.runs > 1
    for node in nodes:
        source = node.source
        line = f"{source.file.replace(chr(92), '/').rpartition('/')[2]}:{source.line}" if source is not None else ""
        times = [format_ns(node.time_ns), *([f"± {format_ns(node.time_spread_ns)}"] if several else [])]
        share = _share(node.time_ns, graph.scopes[""].time_ns)
        rows.append([node.name, str(node.operation_type), *times, share, line])
    headings = ["slowest operations", "kind", ">time", *([">spread"] if several else []), ">share", "made at"]
    return _table(headings, rows, width, texts=1)


def _notes(graph: Graph, rows: list[Row]) -> list[str]:
    found = list(graph.notes)
    if len(graph) and graph.scopes[""].time_ns is None:
        found.append("nothing was timed")
    elif graph.scopes[""].untimed:
        found.append(f"{graph.scopes[''].untimed:,} operations were not timed: times with ≥ are at least that")
    if any(row.hidden for row in rows):
        found.append("+ is the number of modules deeper inside, counted in their row; a greater depth shows them")
    return found


def _table(headings: list[str], rows: list[list[str]], width: int = 0, texts: int = 0) -> Table:
    """A table; a > before a heading aligns its column to the right.

    Where `width` is too small, the columns named in _OPTIONAL go, then the first `texts` columns are cut, widest
    first. Figures stay whole: left alone, rich takes a little from every column, and 1,113 becomes 1,1….
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    rows = [[clean(cell) for cell in row] for row in rows]
    titles = [heading.removeprefix(">") for heading in headings]
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    for title in _OPTIONAL if texts else ():
        least = sum(min(size, _READABLE) if number < texts else size for number, size in enumerate(widths))
        if title in titles and least + _GAP * (len(widths) - 1) > width:
            at = titles.index(title)
            del titles[at], widths[at]
            headings = headings[:at] + headings[at + 1 :]
            rows = [row[:at] + row[at + 1 :] for row in rows]
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    while texts and excess > 0 and max(widths[:texts]) > _NARROWEST:
        widths[widths.index(max(widths[:texts]))] -= 1
        excess -= 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        style = "cyan" if number == 1 and texts else "dim" if title == "made at" else ""
        side: Literal["left", "right"] = "right" if headings[number].startswith(">") else "left"
        table.add_column(title, justify=side, style=style, no_wrap=True, overflow="ellipsis", max_width=widths[number])
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
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
