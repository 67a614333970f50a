"""Graph -> the module table that people know from torchinfo: a row per module with its output shape, parameters,
multiply-adds, time and memory. Repeated modules fold into one row; rows sum to the totals.

The table is plain data. Its views are text and rich (module_cells.py), HTML (report_html.py), bars (bars.py), JSON and
pandas; the summary of a graph (text.py) and its notebook view (graph_html.py) show some of its columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from torchatlas.analysis.module_figures import Figures, OwnFigures, Shape, outputs_by_path
from torchatlas.analysis.reports import sum_of
from torchatlas.analysis.totals import RunTimes, memory_usage, run_times
from torchatlas.argument_errors import explains_arguments
from torchatlas.deprecation import old_arguments
from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean, encodable
from torchatlas.graph import Graph, Role, Scope
from torchatlas.graph.columns import PHASES, ROLES
from torchatlas.graph.formats import imported
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.graph.names import origin
from torchatlas.graph.shown import Shown, facts
from torchatlas.render import module_cells, report_html
from torchatlas.render.bars import ModuleBars
from torchatlas.sections import Facts, Lines, Section
from torchatlas.tables import Printable, StyledLine, cut, note_lines, paragraph, table_lines

if TYPE_CHECKING:
    import pandas

_NUMBERED = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True, slots=True, repr=False)
class ModuleRow(Shown):
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
        """How many modules it stands for."""
        return len(self.paths)

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{module_cells.label(self)}: {self.operations:,} operations"])
        several = f"{self.count:,} alike, from {self.paths[0]} to {self.paths[-1]}" if self.count > 1 else self.path
        yield Facts(
            [
                ("module", several or "(all)"),
                ("type", self.type or "-"),
                ("calls", f"{self.calls:,}"),
                ("output shape", module_cells.output_shape(self) or "-"),
                *facts(self.total),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        names = ("depth", "label", "type", "count", "calls", "operations", "hidden")
        figures = {"total": self.total.to_dict(), "own": self.own.to_dict()}
        shapes = [list(shape) for shape in self.outputs]
        return {name: getattr(self, name) for name in names} | {"paths": list(self.paths), "outputs": shapes} | figures


@dataclass(frozen=True, eq=False, repr=False)
class ModuleTable(Printable):
    """The modules of a graph with their figures, parents first. Print it, or let a notebook show it."""

    title: str
    rows: tuple[ModuleRow, ...] = field(repr=False)
    phases: tuple[str, ...]
    parameter_bytes: int
    input_bytes: int | None  # None when nothing came in
    peak_bytes: int | None
    peak_at_least: bool  # some sizes are unknown: there may be more
    times: RunTimes
    notes: tuple[str, ...] = field(repr=False)

    @property
    def totals(self) -> Figures:
        """The figures of the whole graph."""
        return self.rows[0].total

    def lines(self, width: int) -> Iterator[StyledLine]:
        """The text with its styles, line by line.

        Args:
            width: No line is wider.
        Returns:
            The lines.
        """
        yield [(cut(clean(self.title), width), "bold")]
        if not self.rows[0].operations:
            yield [("nothing was recorded" if len(self.rows) == 1 else "no operation was recorded", "")]
        yield []
        yield from table_lines(module_cells.columns(self), width)
        yield []
        for line in module_cells.footer(self):
            yield from paragraph(line, width)
        yield from note_lines(self.notes, width)

    def _repr_html_(self) -> str:
        paths = [clean(row.path) for row in self.rows]
        parts = [
            report_html.table(module_cells.columns(self), paths),
            *map(report_html.line, module_cells.footer(self)),
        ]
        return report_html.page(self.title, parts, self.notes)

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON can hold it, with the same keys for every graph."""
        names = ("title", "parameter_bytes", "input_bytes", "peak_bytes", "peak_at_least", "times")
        facts = {name: getattr(self, name) for name in names} | {"phases": list(self.phases)}
        lists = {"rows": [row.to_dict() for row in self.rows], "notes": list(self.notes)}
        return facts | {"totals": self.totals.to_dict()} | lists

    to_dict = as_dict  # the name that other reports have

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with one row per row; what is unknown is <NA>. `own_` columns sum to the totals.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        pandas = imported("pandas", "to_pandas needs")
        rows = self.rows
        data: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in ("depth", "calls", "operations")}
        texts: dict[str, list[str | None]]
        texts = {name: [encodable(getattr(row, name)) for row in rows] for name in ("path", "label", "type")}
        texts["output_shape"] = [module_cells.shape_text(row.outputs[0]) if row.outputs else None for row in rows]
        data = {name: pandas.array(cells, dtype="string") for name, cells in texts.items()} | data
        data |= {"count": [row.count for row in rows], "hidden": [row.hidden for row in rows]}
        for name in (figure.name for figure in fields(Figures)):
            for prefix, part in (("", "total"), ("own_", "own")):
                cells = [getattr(getattr(row, part), name) for row in rows]
                data[prefix + name] = pandas.array(cells, dtype="Int64")
        return pandas.DataFrame(data)


@old_arguments(limit="rows")
@explains_arguments
def module_table(
    graph: GraphLike,
    depth: int | None = None,
    *,
    fold: bool = True,
    rows: int | None = 200,
    sizes: Mapping[str, int] | None = None,
) -> ModuleTable:
    """The modules of a graph as a table: output shape, parameters, multiply-adds, time, memory.

    Args:
        graph: A graph, or a file, recording or traced model that holds one.
        depth: How many levels of modules to show; what is deeper is in the row above it. None shows as many as fit into
            `rows`.
        fold: Show equal modules as one row; False gives every module a row of its own.
        rows: The most rows; a longer list of modules ends in a row for the rest. None shows all.
        sizes: Numbers for symbolic sizes, as for `atlas.cost`.
    Returns:
        A ModuleTable. Print it, or let a notebook show it; `to_dict()` and `to_pandas()` give the figures.
    Raises:
        InvalidInputError: `graph` is not a graph, or `depth` or `rows` no number.
    Example:
        >>> import torch, torchatlas as atlas
        >>> table = atlas.module_table(atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4)))
        >>> table.totals.parameters, table.totals.macs
        (10, 8)
    """
    graph = as_graph(graph, "module_table")
    for name, number, least in (("depth", depth, 0), ("rows", rows, 1)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise InvalidInputError(f"{name}={number!r}: pass a whole number from {least} on, or None.")
    tree = _ModuleTree(graph, sizes)
    shown = tuple(tree.rows(depth, fold, rows))
    return ModuleTable(
        title=_title(graph),
        rows=shown,
        phases=tuple(str(phase) for phase in PHASES if phase in graph.scopes[""].operations_by_phase),
        parameter_bytes=graph.scopes[""].parameter_bytes,
        input_bytes=_input_bytes(graph),
        peak_bytes=graph.peak_bytes,
        peak_at_least=bool(memory_usage(graph)["at_least"]),
        times=run_times(graph),
        notes=(*tree.notes, *row_notes(shown), *graph.notes),
    )


@old_arguments(limit="rows")
@explains_arguments
def module_bars(
    graph: GraphLike,
    by: str = "time",
    depth: int | None = None,
    *,
    fold: bool = True,
    rows: int | None = 200,
    sizes: Mapping[str, int] | None = None,
) -> ModuleBars:
    """The module tree with bars: each module's share of something.

    Args:
        graph: A graph, or a file, recording or traced model that holds one.
        by: "time", "macs", "memory" (what operations allocated, in all) or "parameters".
        depth: How many levels of modules to show; None shows as many as fit into `rows`.
        fold: Show equal modules as one row.
        rows: The most rows; a longer list ends in a row for the rest. None shows all.
        sizes: Numbers for symbolic sizes, as for `atlas.cost`.
    Returns:
        A ModuleBars. Print it.
    Raises:
        InvalidInputError: `by`, `depth` or `rows` cannot be understood.
        AnalysisError: The graph does not hold what `by` asks for, such as times of a fake run.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)), torch.ones(1, 4))
        >>> [row.label for row in atlas.module_bars(graph, by="macs").table.rows]
        ['total', '0', '1']
    """
    graph = as_graph(graph, "module_bars")
    return ModuleBars(module_table(graph, depth, fold=fold, rows=rows, sizes=sizes), by)


def _title(graph: Graph) -> str:
    name = graph.scopes[""].type
    return f"Graph of {origin(graph.source)}" + (f": {name}" if name else "")


def _input_bytes(graph: Graph) -> int | None:
    size = graph.columns["storage_bytes"][graph.columns["storage_role"] == ROLES.index(Role.INPUT)]
    return int(size[size >= 0].sum()) if (size >= 0).any() else None


def row_notes(rows: Sequence[ModuleRow]) -> Iterator[str]:
    """What a reader of the rows has to know."""
    total = rows[0].total
    if rows[0].operations and total.time_ns is None:
        yield "nothing was timed"
    elif total.untimed:
        yield f"{total.untimed:,} operations were not timed: times with ≥ are at least that"
    if any(row.hidden for row in rows):
        yield "+ is the number of modules deeper inside, counted in their row; a greater depth shows them"


# -- modules that are alike --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Branch:
    """Modules that are alike, with the branches below them."""

    scopes: Sequence[Scope]
    children: Sequence[_Branch]
    above: tuple[str, str] = ("", "")  # the containers of the first and the last module that have no row of their own

    @property
    def label(self) -> str:
        first, last = (above + self.scopes[end].name for above, end in zip(self.above, (0, -1), strict=True))
        return (first if first == last else f"{first} .. {last}") or "total"

    @property
    def height(self) -> int:
        """How many levels lie below."""
        return 1 + max((child.height for child in self.children), default=-1)

    def size(self, depth: int) -> int:
        """How many rows it takes down to a depth."""
        return 1 + (sum(child.size(depth - 1) for child in self.children) if depth else 0)


class _ModuleTree:
    """The module tree of a graph with its figures."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None) -> None:
        self._root, figures = graph.scopes[""], OwnFigures(graph, sizes)
        self._own, self.notes = figures.by_path, figures.notes
        self._outputs = outputs_by_path(graph)
        self._total: dict[str, Figures] = {}
        self._modules: dict[str, int] = {}  # the module and all below it
        self._kind: dict[str, int] = {}  # equal for modules that are alike
        kinds: dict[Any, int] = {}
        for scope in reversed(list(self._root.walk())):
            path, below = scope.path, scope.children
            self._total[path] = total = sum_of([self._own[path], *(self._total[child.path] for child in below)])
            self._modules[path] = 1 + sum(self._modules[child.path] for child in below)
            counts = (scope.calls, scope.operations, total.parameters, total.trained, total.macs, total.forward_macs)
            parts = tuple((child.name, self._kind[child.path]) for child in below)
            key = (scope.type, scope.kind, *counts, self._outputs.get(path), parts)
            self._kind[path] = kinds.setdefault(key, len(kinds))

    def rows(self, depth: int | None, fold: bool, most: int | None) -> Iterator[ModuleRow]:
        """The rows, root first; as deep as `most` rows allow, unless a depth is asked for."""
        root = self._folded([self._root]) if fold else self._unfolded(self._root)
        deepest = root.height
        if depth is None and most is not None:
            depth = next((d for d in range(deepest, 1, -1) if root.size(d) <= most), 1)
        yield from self._rows(root, 0, deepest if depth is None else min(depth, deepest), most)

    def _unfolded(self, scope: Scope) -> _Branch:
        return _Branch([scope], [self._unfolded(child) for child in scope.children])

    def _folded(self, scopes: Sequence[Scope]) -> _Branch:
        """Merge modules that are alike, and so their children of each name; numbered neighbours become one branch."""
        runs: list[list[Scope]] = []
        before = None
        for children in zip(*(scope.children for scope in scopes), strict=True):
            if before is not None and self._follows(before, children[0]):
                runs[-1] += children
            else:
                runs.append(list(children))
            before = children[0]
        branches = [self._folded(run) for run in runs]
        idle = not any(scope.calls or any(self._own[scope.path].to_dict().values()) for scope in scopes)
        if idle and len(branches) == 1 and scopes[0].parent is not None:  # a ModuleList: its only part stands for it
            only = branches[0]
            above = (f"{scopes[0].name}.{only.above[0]}", f"{scopes[-1].name}.{only.above[1]}")
            return _Branch(only.scopes, only.children, above)
        return _Branch(scopes, branches)

    def _follows(self, before: Scope, after: Scope) -> bool:
        """True for neighbours such as layers.0 and layers.1 that are alike."""
        if self._kind[before.path] != self._kind[after.path]:
            return False
        first, second = _NUMBERED.match(before.name), _NUMBERED.match(after.name)
        return (
            first is not None and second is not None and first[1] == second[1] and int(second[2]) == int(first[2]) + 1
        )

    def _rows(self, branch: _Branch, at: int, depth: int, most: int | None) -> Iterator[ModuleRow]:
        below = branch.children
        if depth <= at:
            yield self._row(branch.scopes, at, branch.label, below)
            return
        yield self._row(branch.scopes, at, branch.label, ())
        shown = below if most is None or len(below) <= most else below[: most - 1]
        for child in shown:
            yield from self._rows(child, at + 1, depth, most)
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
