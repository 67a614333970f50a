"""Graph -> the table people know from torchinfo: a row per module with its output shape, parameters, multiply-adds,
time and memory, as text, rich, HTML, JSON and pandas. Repeated modules fold into one row; rows sum to the totals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from itertools import groupby
from typing import Any

from torchatlas.analysis.module_figures import NO_MACS, Figures, OwnFigures, Shape, outputs_by_path
from torchatlas.analysis.reports import sum_of
from torchatlas.analysis.summary import RunTimes, memory_usage, run_times
from torchatlas.errors import AnalysisError, InvalidInputError, MissingDependencyError
from torchatlas.escapes import clean, encodable
from torchatlas.graph import Graph, Role, Scope
from torchatlas.graph.columns import PHASES, ROLES
from torchatlas.render.bars import BarRow, Column, Line, ModuleBars, Printed, cut, grid, wrapped
from torchatlas.render.outline import headline
from torchatlas.units import format_bytes, format_count, format_ns

_NUMBERED = re.compile(r"(.*?)(\d+)$")
_LONGEST = 120  # characters of a cell in HTML
# Colours are the page's own: text inherits, lines are half-transparent grey.
_TABLE = "border-collapse:collapse;background:none;margin:6px 0;white-space:pre;font-variant-numeric:tabular-nums"
_LINE = "border-bottom:1px solid rgba(127,127,127,.4)"


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module, or several alike. The `own` figures of all rows of a table sum to its totals."""

    depth: int
    label: str
    paths: tuple[str, ...]  # the modules it stands for
    type: str
    calls: int
    operations: int
    outputs: tuple[Shape, ...]  # what the first call hands on; that of its last operation first
    total: Figures  # with everything below
    own: Figures  # what is in no row below
    hidden: int = 0  # modules below that have no row

    @property
    def path(self) -> str:
        """The first module it stands for."""
        return self.paths[0]

    @property
    def count(self) -> int:
        return len(self.paths)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        names = ("depth", "label", "type", "count", "calls", "operations", "hidden")
        figures = {"total": self.total.to_dict(), "own": self.own.to_dict()}
        shapes = [list(shape) for shape in self.outputs]
        return {name: getattr(self, name) for name in names} | {"paths": list(self.paths), "outputs": shapes} | figures


@dataclass(frozen=True, eq=False)
class ModuleTable(Printed):
    """The modules of a graph with their figures, parents first. Print it, or let a notebook show it."""

    title: str
    rows: tuple[ModuleRow, ...] = field(repr=False)
    phases: tuple[str, ...]
    parameter_bytes: int
    input_bytes: int | None  # None when nothing came in
    peak_bytes: int | None
    peak_at_least: bool
    times: RunTimes
    notes: tuple[str, ...] = field(repr=False)

    @property
    def totals(self) -> Figures:
        """The figures of the whole graph."""
        return self.rows[0].total

    def lines(self, width: int) -> Iterator[Line]:
        """The text with its styles, line by line."""
        yield [(cut(clean(self.title), width), "bold")]
        if not self.rows[0].operations:
            yield [("nothing was recorded" if len(self.rows) == 1 else "no operation was recorded", "")]
        yield []
        yield from grid(_columns(self), width)
        yield []
        for line in _footer(self):
            yield from ([(part, "")] for part in wrapped(line, width))
        for note in self.notes:
            yield from ([(part, "dim")] for part in wrapped(clean(f"note: {note}"), width))

    def _repr_html_(self) -> str:
        return _html(self)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with the same keys for every graph."""
        names = ("title", "parameter_bytes", "input_bytes", "peak_bytes", "peak_at_least", "times")
        found = {name: getattr(self, name) for name in names} | {"phases": list(self.phases)}
        lists = {"rows": [row.to_dict() for row in self.rows], "notes": list(self.notes)}
        return found | {"totals": self.totals.to_dict()} | lists

    to_dict = as_dict  # the name that other reports have

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per row; what is unknown is <NA>. `own_` columns sum to the totals."""
        try:
            import pandas
        except ImportError as error:
            raise MissingDependencyError("to_pandas needs pandas: pip install 'torchatlas[pandas]'") from error
        rows = self.rows
        data: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in ("depth", "calls", "operations")}
        texts: dict[str, list[str | None]]
        texts = {name: [encodable(getattr(row, name)) for row in rows] for name in ("path", "label", "type")}
        texts["output_shape"] = [_shape(row.outputs[0]) if row.outputs else None for row in rows]
        data = {name: pandas.array(cells, dtype="string") for name, cells in texts.items()} | data
        data |= {"count": [row.count for row in rows], "hidden": [row.hidden for row in rows]}
        for name in (one.name for one in fields(Figures)):
            for prefix, part in (("", "total"), ("own_", "own")):
                cells = [getattr(getattr(row, part), name) for row in rows]
                data[prefix + name] = pandas.array(cells, dtype="Int64")
        return pandas.DataFrame(data)


def module_table(
    graph: Graph,
    depth: int | None = None,
    *,
    fold: bool = True,
    limit: int | None = 200,
    sizes: Mapping[str, int] | None = None,
) -> ModuleTable:
    """The modules of a graph as a table: output shape, parameters, multiply-adds, time, memory.

    `depth` says how many levels to show; what is deeper is in the row above it. Without it, as many as `limit` rows
    allow; a longer list of modules ends in a row for the rest. `fold=False` gives every module a row of its own.
    `sizes` replaces symbolic sizes, as for `cost`.
    """
    if not isinstance(graph, Graph):
        raise InvalidInputError(
            f"module_table takes a Graph, not {type(graph).__name__}; make one with atlas.capture(...)."
        )
    for name, number, least in (("depth", depth, 0), ("limit", limit, 1)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise InvalidInputError(f"{name}={number!r}: pass a whole number from {least} on, or None.")
    tree = _Tree(graph, sizes)
    rows = tuple(tree.rows(depth, fold, limit))
    usage = memory_usage(graph)
    return ModuleTable(
        title=headline(graph),
        rows=rows,
        phases=tuple(str(phase) for phase in PHASES if phase in graph.scopes[""].operations_by_phase),
        parameter_bytes=graph.scopes[""].parameter_bytes,
        input_bytes=_input_bytes(graph),
        peak_bytes=graph.peak_bytes,
        peak_at_least=bool(usage["at_least"]),
        times=run_times(graph),
        notes=(*tree.notes, *_row_notes(rows), *graph.notes),
    )


def _input_bytes(graph: Graph) -> int | None:
    size = graph.columns["storage_bytes"][graph.columns["storage_role"] == ROLES.index(Role.INPUT)]
    return int(size[size >= 0].sum()) if (size >= 0).any() else None


def _row_notes(rows: Sequence[ModuleRow]) -> Iterator[str]:
    total = rows[0].total
    if rows[0].operations and total.time_ns is None:
        yield "nothing was timed"
    elif total.untimed:
        yield f"{total.untimed:,} operations were not timed: times with ≥ are at least that"
    if any(row.hidden for row in rows):
        yield "+ is the number of modules deeper inside, counted in their row; a greater depth shows them"


# -- figures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Branch:
    """Modules that are alike, with what is below them."""

    scopes: Sequence[Scope]
    children: Sequence[_Branch]
    above: tuple[str, str] = ("", "")  # the containers of the first and last that have no row of their own


class _Tree:
    """The module tree of a graph with its figures."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None) -> None:
        self._root, found = graph.scopes[""], OwnFigures(graph, sizes)
        self._own, self.notes = found.by_path, found.notes
        self._outputs = outputs_by_path(graph)
        self._total: dict[str, Figures] = {}
        self._modules: dict[str, int] = {}  # it and all below
        self._kind: dict[str, int] = {}  # equal for modules that are alike
        kinds: dict[Any, int] = {}
        for scope in reversed(list(self._root.walk())):
            path, below = scope.path, scope.children
            self._total[path] = total = sum_of([self._own[path], *(self._total[child.path] for child in below)])
            self._modules[path] = 1 + sum(self._modules[child.path] for child in below)
            figures = (scope.calls, scope.operations, total.parameters, total.trained, total.macs, total.forward_macs)
            parts = tuple((child.name, self._kind[child.path]) for child in below)
            key = (scope.type, scope.kind, *figures, self._outputs.get(path), parts)
            self._kind[path] = kinds.setdefault(key, len(kinds))

    def rows(self, depth: int | None, fold: bool, limit: int | None) -> Iterator[ModuleRow]:
        root = self._folded([self._root]) if fold else self._unfolded(self._root)
        deepest = _height(root)
        if depth is None and limit is not None:
            depth = next((d for d in range(deepest, 1, -1) if _size(root, d) <= limit), 1)
        yield from self._rows(root, 0, deepest if depth is None else min(depth, deepest), limit)

    def _unfolded(self, scope: Scope) -> _Branch:
        return _Branch([scope], [self._unfolded(child) for child in scope.children])

    def _folded(self, scopes: Sequence[Scope]) -> _Branch:
        """Merge modules that are alike: their children at the same place are merged too."""
        merged = [[scope.children[place] for scope in scopes] for place in range(len(scopes[0].children))]
        branches = []
        for _, run in groupby(self._with_runs(merged), key=lambda item: item[0]):
            branches.append(self._folded([scope for _, alike in run for scope in alike]))
        first = scopes[0]
        idle = not any(scope.calls or any(self._own[scope.path].to_dict().values()) for scope in scopes)
        if idle and len(branches) == 1 and first.parent is not None:  # a ModuleList: its only part stands for it
            only = branches[0]
            above = (f"{first.name}.{only.above[0]}", f"{scopes[-1].name}.{only.above[1]}")
            return _Branch(only.scopes, only.children, above)
        return _Branch(scopes, branches)

    def _with_runs(self, merged: list[list[Scope]]) -> Iterator[tuple[int, list[Scope]]]:
        """Each place with the number of its run: numbered neighbours (layers.0, layers.1) that are alike share one."""
        number, before = -1, None
        for alike in merged:
            if before is None or not self._follows(before[0], alike[0]):
                number += 1
            yield number, alike
            before = alike

    def _follows(self, before: Scope, after: Scope) -> bool:
        if self._kind[before.path] != self._kind[after.path]:
            return False
        one, two = _NUMBERED.match(before.name), _NUMBERED.match(after.name)
        return one is not None and two is not None and one[1] == two[1] and int(two[2]) == int(one[2]) + 1

    def _rows(self, branch: _Branch, at: int, depth: int, limit: int | None) -> Iterator[ModuleRow]:
        below, label = branch.children, _label(branch)
        if depth <= at:
            yield self._row(branch.scopes, at, label, below)
            return
        yield self._row(branch.scopes, at, label, ())
        shown = below if limit is None or len(below) <= limit else below[: limit - 1]
        for child in shown:
            yield from self._rows(child, at + 1, depth, limit)
        if rest := below[len(shown) :]:
            scopes = [scope for child in rest for scope in child.scopes]
            inside = [part for child in rest for part in child.children]
            yield self._row(scopes, at + 1, f"… and {len(scopes):,} more", inside, alike=False)

    def _row(
        self, scopes: Sequence[Scope], at: int, label: str, hidden: Sequence[_Branch], alike: bool = True
    ) -> ModuleRow:
        total, whole = sum_of(self._total[scope.path] for scope in scopes), bool(hidden) or not alike
        return ModuleRow(
            depth=at,
            label=label,
            paths=tuple(scope.path for scope in scopes),
            type=scopes[0].type if alike else "",
            calls=sum(scope.calls for scope in scopes),
            operations=sum(scope.operations for scope in scopes),
            outputs=self._outputs.get(scopes[0].path, ()) if alike else (),
            total=total,
            own=total if whole else sum_of(self._own[scope.path] for scope in scopes),
            hidden=sum(self._modules[scope.path] for branch in hidden for scope in branch.scopes),
        )


def _label(branch: _Branch) -> str:
    first, last = (above + branch.scopes[end].name for above, end in zip(branch.above, (0, -1), strict=True))
    return (first if first == last else f"{first} .. {last}") or "total"


def _height(branch: _Branch) -> int:
    return 1 + max(map(_height, branch.children), default=-1)


def _size(branch: _Branch, depth: int) -> int:
    return 1 + (sum(_size(child, depth - 1) for child in branch.children) if depth else 0)


# -- as bars -----------------------------------------------------------------------------------------------------------

_BARS = {"time": "time_ns", "macs": "macs", "memory": "allocated_bytes", "parameters": "parameters"}


def module_bars(graph: Graph, by: str = "time", depth: int | None = None, **options: Any) -> ModuleBars:
    """The module tree with bars: each module's share of the "time", the "macs", the "memory" or the "parameters".

    `memory` is what operations allocated, in all. Options are those of `module_table`.
    """
    if by not in _BARS:
        raise InvalidInputError(f"module_bars(by={by!r}): one of {', '.join(_BARS)}.")
    table = module_table(graph, depth, **options)
    whole = getattr(table.totals, _BARS[by])
    if whole is None:
        why = next((note for note in table.notes if by == "macs" and note.startswith(NO_MACS)), f"no {by} is known")
        raise AnalysisError(f"This graph has no {by} to draw: {why}. Draw {_drawable(table.totals)} instead.")
    cell = {"time": _time, "macs": _macs, "memory": _allocated, "parameters": _parameters}[by]
    rows = []
    for row in table.rows:
        amount = getattr(row.total, _BARS[by])
        share = None if amount is None else amount / whole if whole else 0.0
        rows.append(BarRow(row.depth, _named(row), row.path, amount, share, cell(row)))
    times = (f"time: {table.times}",) if by == "time" else ()
    return ModuleBars(table.title, by, tuple(rows), (*times, *table.notes))


def _drawable(totals: Figures) -> str:
    return " or ".join(by for by, name in _BARS.items() if getattr(totals, name) is not None)


# -- as text and HTML --------------------------------------------------------------------------------------------------


def _columns(table: ModuleTable) -> list[Column]:
    """Those that say something about this graph. Which leave first where there is no room: the least asked for."""
    rows, totals = table.rows, table.totals
    several = len(table.phases) > 1
    texts = [
        Column("module", ["  " * row.depth + _named(row) for row in rows], right=False, readable=32),
        Column("type", [clean(row.type) for row in rows], right=False, readable=18, leaves=4, style="cyan"),
        Column("output shape", [_output(row) for row in rows], right=False, readable=20, leaves=3),
    ]
    found = [column for column in texts if any(column.cells)] + [Column("params", [_parameters(row) for row in rows])]
    if totals.trained is not None and totals.trained != totals.parameters:
        found.append(Column("trained", [_trained(row) for row in rows], leaves=7))
    if totals.macs is not None:
        if several:
            found.append(Column("fwd MACs", [_forward_macs(row) for row in rows], leaves=6))
        found.append(Column("all MACs" if several else "MACs", [_macs(row) for row in rows], leaves=1))
    if totals.time_ns is not None:
        found.append(Column("time", [_time(row) for row in rows], leaves=2))
    if totals.allocated_bytes is not None:
        found.append(Column("allocated", [_allocated(row) for row in rows], leaves=5))
    if totals.kept_bytes is not None:
        found.append(Column("kept", [_kept(row) for row in rows], leaves=8))
    return found


def _named(row: ModuleRow) -> str:
    several = f"  ×{row.count:,}" if row.count > 1 and row.type else ""
    return clean(row.label) + several + (f"  +{row.hidden:,}" if row.hidden else "")


def _shape(shape: Shape) -> str:
    return f"[{', '.join(clean(str(size)) for size in shape)}]"


def _output(row: ModuleRow) -> str:
    if not row.outputs:
        return ""
    more, calls = len(row.outputs) - 1, row.calls // row.count
    return _shape(row.outputs[0]) + (f" +{more:,}" if more else "") + (f" ×{calls:,}" if calls > 1 else "")


def _at_least(text: str, missing: int) -> str:
    return f"≥ {text}" if missing else text


def _parameters(row: ModuleRow) -> str:
    return format_count(row.total.parameters) if row.total.parameters else ""


def _trained(row: ModuleRow) -> str:
    return format_count(row.total.trained) if row.total.parameters else ""


def _macs(row: ModuleRow) -> str:
    return _at_least(format_count(row.total.macs), row.total.uncosted) if row.operations else ""


def _forward_macs(row: ModuleRow) -> str:
    return _at_least(format_count(row.total.forward_macs), row.total.forward_uncosted) if row.operations else ""


def _time(row: ModuleRow) -> str:
    time_ns = row.total.time_ns
    return _at_least(format_ns(time_ns), 0 if time_ns is None else row.total.untimed) if row.operations else ""


def _allocated(row: ModuleRow) -> str:
    size = row.total.allocated_bytes
    return _at_least(format_bytes(size), row.total.unsized) if size or row.total.unsized else ""


def _kept(row: ModuleRow) -> str:
    size = row.total.kept_bytes
    return _at_least(format_bytes(size), row.total.unsized) if size or row.total.unsized else ""


def _footer(table: ModuleTable) -> Iterator[str]:
    """The totals in words, a line each; what is unknown has none."""
    totals, root = table.totals, table.rows[0]
    trained = ""
    if totals.trained is not None and totals.parameters:
        got = "all" if totals.trained == totals.parameters else f"{totals.trained:,}"
        trained = f", {got} of them got a gradient"
    yield f"parameters: {totals.parameters:,} ({format_bytes(table.parameter_bytes)}){trained}"
    if totals.macs is not None:
        forward = f"{_forward_macs(root) or 0} forward, {_macs(root) or 0} in all phases"
        yield "MACs: " + (forward if len(table.phases) > 1 else _macs(root) or "0")
    if totals.time_ns is not None:
        yield f"time: {table.times}"
    if table.input_bytes is not None:
        yield f"inputs: {format_bytes(table.input_bytes)}"
    if totals.allocated_bytes is not None:
        kept = "" if totals.kept_bytes is None else f", {_kept(root) or '0 B'} kept for backward"
        yield f"allocated: {_allocated(root) or '0 B'} in all{kept}"
    if table.peak_bytes is not None:
        yield f"peak memory: {_at_least(format_bytes(table.peak_bytes), table.peak_at_least)}"


def _html(table: ModuleTable) -> str:
    columns = _columns(table)
    sides = ["right" if column.right else "left" for column in columns]
    head = "".join(
        f'<th style="text-align:{side};{_LINE}">{escape(column.title)}</th>'
        for column, side in zip(columns, sides, strict=True)
    )
    body = []
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        whole = escape(_short(clean(row.path)))
        body.append(f'<tr style="background:none" title="{whole}">')
        body += [
            f'<td style="text-align:{side}">{escape(_short(cell))}</td>'
            for cell, side in zip(cells, sides, strict=True)
        ]
        body.append("</tr>")
    parts = [
        f"<div><b>{escape(_short(clean(table.title)))}</b></div>",
        f'<table cellpadding="3" style="{_TABLE}"><tr style="background:none">{head}</tr>{"".join(body)}</table>',
    ]
    parts += [f"<div>{escape(line)}</div>" for line in _footer(table)]
    parts += [f'<div style="opacity:.6">note: {escape(clean(note))}</div>' for note in table.notes]
    return f'<div style="font-size:small;line-height:1.5;overflow-x:auto">{"".join(parts)}</div>'


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 40]}…{text[-39:]}"
