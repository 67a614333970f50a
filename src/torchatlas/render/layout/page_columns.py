"""A tall layered problem -> newspaper columns: the ranks are cut where few tensors cross, so that a strip fills a page.

column_lines.py places the columns and makes the lines between them.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property

from torchatlas.render.layout.column_lines import Column, Columns
from torchatlas.render.layout.layered import Net, Problem, Ranks, ranks
from torchatlas.render.layout.routing import Placed, Route, place
from torchatlas.render.layout.style import STYLE

# Limits of the search, so that it ends soon.
_FEWEST = 3  # boxes, and ranks of them, that are worth cutting
_MOST_COLUMNS = 10
_MOST_RANKS = 400  # a group of more is not cut
_MOST_WORK = 4_000  # lines between ranks, half a second: then no more columns are tried for a thicket that is too high
_TOLERANCE = 1.06  # times the page: cuts into columns that seem higher than this are not laid out
# A price, in height: a tensor that crosses a cut is a line from one column to the next. It costs nearly as much as one
# more rank, which is a box and the gap below it.
_CUT_PRICE = 45.0
_LINES_BELOW = 4.0  # height that the lines below a row take on average, beyond the usual gap


class Solver:
    """Solves problems within heights. Problems of equal structure, which differ only in the names of nets, are
    solved once."""

    def __init__(self) -> None:
        self._strips: dict[Hashable, _Strip] = {}
        self.work = 0  # lines between ranks that were laid out so far

    def place_within(self, problem: Problem, height: float) -> Placed:
        """Solve a problem in as many columns as it takes to stay within a height, if columns can do that."""
        strip, nets = self._known(problem)
        return _named(strip.within(height), nets)

    def place(self, problem: Problem) -> Placed:
        """Solve a problem in one column."""
        strip, nets = self._known(problem)
        return _named(strip.whole, nets)

    def _known(self, problem: Problem) -> tuple[_Strip, list[Net]]:
        """The problem with its nets numbered as they come, and what they are called."""
        numbers: dict[Net, int] = {}
        edges: list[tuple[int, int, Net]]
        edges = [(u, v, numbers.setdefault(net, len(numbers))) for u, v, net in problem.edges]
        # A box may say where a net enters it that no line brings, as when lines side by side are drawn as one.
        enters: dict[tuple[int, Net], float]
        enters = {(box, numbers[net]): x for (box, net), x in problem.enters.items() if net in numbers}
        leaves: dict[tuple[int, Net], float]
        leaves = {(box, numbers[net]): x for (box, net), x in problem.leaves.items() if net in numbers}
        ports = (tuple(problem.sources), tuple(problem.sinks))
        key = (tuple(problem.sizes), tuple(edges), tuple(enters.items()), tuple(leaves.items()), ports)
        if key not in self._strips:
            self._strips[key] = _Strip(Problem(problem.sizes, edges, enters, leaves, *ports), self)
        return self._strips[key], list(numbers)


def _named(placed: Placed, nets: list[Net]) -> Placed:
    """The solution of a numbered problem with the nets of one of its kind."""

    def routes() -> list[Route]:
        named: dict[Net, Net] = dict(enumerate(nets))
        return [Route(named[route.net], route.source, route.target, route.points) for route in placed.routes]

    return replace(placed, lines=routes)


class _Strip:
    """One problem, with its solutions by their cuts."""

    def __init__(self, problem: Problem, solver: Solver) -> None:
        self.problem, self.solver = problem, solver
        self.ports = {*problem.sources, *problem.sinks}
        self.boxes = [box for box in range(len(problem.sizes)) if box not in self.ports]
        self._cut: dict[tuple[int, ...], Placed] = {}  # by the column of each box
        self._sorted: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}  # cuts -> columns, as cut and as used
        self._solved: dict[tuple[int, ...], Column] = {}  # by the boxes they hold

    @cached_property
    def whole(self) -> Placed:
        """The solution in one column."""
        placed = place(self.problem, self._ranks)
        self.solver.work += placed.work
        return placed

    def within(self, height: float) -> Placed:
        """The solution with the fewest columns within a height; with the most columns allowed if all are higher."""
        if len(self.boxes) < _FEWEST or not _FEWEST <= self._levels <= _MOST_RANKS:
            return self.whole
        if self._longest <= height and self.whole.height <= height:  # else it need not be solved to know
            return self.whole
        cuts = self._cuts(self._cutter, height, min(_MOST_COLUMNS, self._levels))
        placed = self._placed(cuts, height)
        if any(all(self._is_end[a:b]) for a, b in itertools.pairwise(cuts)):
            room = max(height, placed.height) + self._spare
            cuts = self._cuts(self._careful_cutter, room, placed.columns)
            if cuts and self._placed(cuts, room).height <= room:
                return self._placed(cuts, room)
        return placed

    def _cuts(self, cutter: _Cutter, height: float, most: int) -> tuple[int, ...]:
        """The cuts into the fewest columns within a height; the last that were tried if all are higher; () if none
        exist."""
        sums = cutter.sums
        fewest = min(max(2, math.ceil(sums[-1] / (height * _TOLERANCE))), most) if height > 0 else most
        best: tuple[int, ...] = ()
        for count in range(fewest, most + 1):
            cuts = cutter.cuts(count)
            highest = max([sums[b] - sums[a] for a, b in itertools.pairwise(cuts)], default=math.inf)
            if not cuts or (highest > height * _TOLERANCE and count < most):
                continue
            best = cuts
            if self._placed(cuts, height).height <= height or self.solver.work > _MOST_WORK:
                break
        return best

    def _placed(self, cuts: tuple[int, ...], height: float) -> Placed:
        """Cut a problem. Boxes such as inputs go into the column that first reads them, unless that makes it too
        high."""
        if cuts not in self._sorted:
            column = [-1] * len(self.problem.sizes)
            for box in self.boxes:
                column[box] = bisect_right(cuts, self._row[box]) - 1
            self._sorted[cuts] = column, self._moved(column)
        column, moved = self._sorted[cuts]
        placed = self._columns(moved)
        if moved == column or placed.height <= height + (0.0 if self.ports else STYLE.highest_closed + STYLE.rank_gap):
            return placed
        plain = self._columns(column)
        return plain if plain.height <= height else placed

    def _columns(self, column: list[int]) -> Placed:
        key = tuple(column)
        if key not in self._cut:
            self._cut[key] = Columns(self.problem, column, self.solver, self._solved).placed()
        return self._cut[key]

    def _moved(self, column: list[int]) -> list[int]:
        """The columns, with every hanging box moved to the first one that reads it: else its line would go down and up.

        Unchanged if that would leave a column empty.
        """
        moved = list(column)
        for box, readers in self._hanging:
            moved[box] = min(moved[reader] for reader in readers)
        return moved if set(moved) == set(column) else column

    @cached_property
    def _hanging(self) -> list[tuple[int, list[int]]]:
        """Closed boxes beside the longest path that read nothing from it, such as an input and what it alone feeds;
        each with its readers. The last come first."""
        after: dict[int, list[int]] = {box: [] for box in self.boxes}
        before: dict[int, list[int]] = {box: [] for box in self.boxes}
        for u, v, _ in self.problem.edges:
            if v in before:
                before[v].append(u)
                if u in after:
                    after[u].append(v)
        order = [box for box in self._ranks[1] if box in after]
        highest, lowest = dict.fromkeys(order, 0), dict[int, int]()
        for box in order:
            for reader in after[box]:
                highest[reader] = max(highest[reader], highest[box] + 1)
        for box in reversed(order):
            lowest[box] = min((lowest[reader] for reader in after[box]), default=self._levels) - 1
        hangs: dict[int, list[int]] = {}
        for box in order:
            is_small = bool(after[box]) and self._is_closed(box)
            inputs_hang = (
                other in self.ports or (other in hangs and set(after[other]) == {box}) for other in before[box]
            )
            if is_small and lowest[box] > highest[box] and all(inputs_hang):
                hangs[box] = after[box]
        return list(hangs.items())[::-1]

    def _is_closed(self, box: int) -> bool:
        """By its size: closed boxes are low or, where they were laid out sideways, narrow."""
        return min(self.problem.sizes[box]) < STYLE.highest_closed

    @cached_property
    def _ranks(self) -> Ranks:
        problem = self.problem
        return ranks(len(problem.sizes), problem.edges, problem.sources, problem.sinks)

    @cached_property
    def _row(self) -> dict[int, int]:
        """Box -> its rank, counted without ranks that hold none."""
        rank, _ = self._ranks
        number = {level: row for row, level in enumerate(sorted({rank[box] for box in self.boxes}))}
        return {box: number[rank[box]] for box in self.boxes}

    @cached_property
    def _levels(self) -> int:
        return max(self._row.values(), default=-1) + 1

    @cached_property
    def _tall(self) -> list[float]:
        """The height of each row with the gap below it."""
        tall = [0.0] * self._levels
        for box, row in self._row.items():
            tall[row] = max(tall[row], self.problem.sizes[box][1])
        return [h + STYLE.rank_gap + _LINES_BELOW for h in tall]

    @cached_property
    def _longest(self) -> float:
        """The height of the longest way through: no layout in one column is lower."""
        _, order = self._ranks
        end = [0.0] * len(self.problem.sizes)
        after: list[list[int]] = [[] for _ in end]
        for u, v, _ in self.problem.edges:
            if u not in self.ports and v not in self.ports:
                after[u].append(v)
        for u in order:
            end[u] += self.problem.sizes[u][1]
            for v in after[u]:
                end[v] = max(end[v], end[u] + STYLE.rank_gap)
        return max(end)

    @cached_property
    def _crossing(self) -> list[int]:
        """How many tensors pass the end of each row."""
        spans: dict[tuple[int, Net], int] = {}
        for u, v, net in self.problem.edges:
            if u not in self.ports and v not in self.ports:
                spans[u, net] = max(spans.get((u, net), 0), self._row[v])
        crossing = [0] * self._levels
        for (u, _), last in spans.items():
            for row in range(self._row[u], last):
                crossing[row] += 1
        return crossing

    @cached_property
    def _cutter(self) -> _Cutter:
        return _Cutter(self._tall, self._crossing, [False] * self._levels)

    @cached_property
    def _careful_cutter(self) -> _Cutter:
        return _Cutter(self._tall, self._crossing, self._is_end)

    @cached_property
    def _is_end(self) -> list[bool]:
        """Row -> whether it holds only closed boxes that nothing enters or nothing leaves, such as an input.

        Alone in a column such a box is far from what it belongs to: its line goes down, up again and over.
        """
        into, out = {v for _, v, _ in self.problem.edges}, {u for u, _, _ in self.problem.edges}
        is_end = [True] * self._levels
        for box, row in self._row.items():
            is_end[row] &= self._is_closed(box) and (box not in into or box not in out)
        return is_end

    @cached_property
    def _spare(self) -> float:
        """By how much a page may become higher so that an input stays above what reads it: what is inside was laid out
        for the whole height, and the caller can ask for a lower page. A group must keep to its height."""
        ends = [tall for tall, is_end in zip(self._tall, self._is_end, strict=True) if is_end]
        return 0.0 if self.ports else max(ends, default=0.0)


class _Cutter:
    """Where to cut rows into so many columns: the highest column plus the price of the cuts is least.

    No column holds only rows that are `never_alone`.
    """

    def __init__(self, tall: list[float], crossing: list[int], never_alone: list[bool]) -> None:
        self.rows = len(tall)
        self.sums = list(itertools.accumulate(tall, initial=0.0))
        self.price = [0.0, *(_CUT_PRICE * (many - 1) for many in crossing[:-1]), 0.0]  # of a cut before each row
        # How many rows right before each are never alone: a column that ends there has at least one more.
        self.never_alone = list(itertools.accumulate(never_alone, lambda many, is_one: (many + 1) * is_one, initial=0))
        self.best = [[0.0] + [math.inf] * self.rows]  # columns -> rows -> what the first rows cost in so many
        self.back: list[list[int]] = [[0] * (self.rows + 1)]
        self.known: dict[int, tuple[int, ...]] = {}

    def cuts(self, count: int) -> tuple[int, ...]:
        """The best cuts into `count` columns; () if there are none."""
        if count not in self.known:
            while len(self.best) <= count:
                self._add_column()
            cuts = [self.rows]
            for k in range(count, 0, -1):
                cuts.append(self.back[k][cuts[-1]])
            self.known[count] = tuple(cuts[::-1]) if self.best[count][-1] < math.inf else ()
        return self.known[count]

    def _add_column(self) -> None:
        k, sums, above = len(self.best), self.sums, self.best[-1]
        here, came = [math.inf] * (self.rows + 1), [0] * (self.rows + 1)
        for j in range(k, self.rows + 1):
            end, best, at = sums[j], math.inf, 0
            for i in range(j - 1 - self.never_alone[j], k - 2, -1):
                last = end - sums[i]
                if last > best:  # and it only grows
                    break
                cost = above[i]
                if cost < last:
                    cost = last
                if cost <= best:
                    best, at = cost, i
            here[j], came[j] = best + self.price[j], at
        self.best.append(here)
        self.back.append(came)
