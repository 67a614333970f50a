"""A tall layered problem -> newspaper columns: the ranks are cut where few tensors cross, so that a strip fills a page.

A line to a later column leaves at the bottom of its own, goes up in the gap before the other and enters it from above.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass, field

from torchatlas.render.layout.layered import RANK_GAP, Net, Problem, ranks
from torchatlas.render.layout.routing import Placed, Point, Route, place

_LANE = 9.0  # between two lines that run beside each other between columns
_GUTTER = 24.0
_MOST_COLUMNS = 10
_MOST_RANKS = 400
_CUT_PRICE = 45.0  # a tensor that crosses a cut costs as much as so much height
_TOLERANCE = 1.06

Key = tuple[str, int, Net]  # a net that enters, or leaves, a column
Column = tuple[dict[int | Key, int], Placed]  # the numbers of boxes and nets in it, and where they lie


@dataclass
class Solved:
    """What was found for a problem before: by where it was cut, and for single columns by their rows."""

    whole: dict[tuple[int, ...], Placed] = field(default_factory=dict)
    columns: dict[tuple[int, int], Column] = field(default_factory=dict)
    work: int = 0


def place_within(problem: Problem, height: float, solved: Solved) -> Placed:
    """Solve a problem in as many columns as it takes to stay within a height, if that is possible at all."""
    if () not in solved.whole:
        solved.whole[()] = place(problem)
        solved.work += solved.whole[()].work
    placed = solved.whole[()]
    ports = {*problem.sources, *problem.sinks}
    if placed.height <= height or len(problem.sizes) - len(ports) < 3:
        return placed
    rank, _ = ranks(len(problem.sizes), problem.edges, problem.sources, problem.sinks)
    boxes = [box for box in range(len(problem.sizes)) if box not in ports]
    levels = sorted({rank[box] for box in boxes})
    if not 3 <= len(levels) <= _MOST_RANKS:
        return placed
    row = {level: number for number, level in enumerate(levels)}
    tall = [0.0] * len(levels)
    for box in boxes:
        tall[row[rank[box]]] = max(tall[row[rank[box]]], problem.sizes[box][1])
    spans: dict[tuple[int, Net], int] = {}
    for u, v, net in problem.edges:
        if u not in ports and v not in ports:
            spans[u, net] = max(spans.get((u, net), 0), row[rank[v]])
    crossing = [0] * len(levels)  # after each level
    for (u, _), last in spans.items():
        for level in range(row[rank[u]], last):
            crossing[level] += 1
    most = min(_MOST_COLUMNS, len(levels))
    tall = [h + RANK_GAP + 4 for h in tall]
    fewest = min(max(2, math.ceil(sum(tall) / (height * _TOLERANCE))), most) if height > 0 else most
    for count in range(fewest, most + 1):
        cuts = _cuts(tall, crossing, count)
        highest = max(sum(tall[a:b]) for a, b in itertools.pairwise(cuts))
        if highest > height * _TOLERANCE and count < most:
            continue
        key = tuple(cuts)
        if key not in solved.whole:
            column = [-1] * len(problem.sizes)
            for box in boxes:
                column[box] = bisect_right(cuts, row[rank[box]]) - 1
            solved.whole[key] = _Columns(problem, column, cuts, solved.columns).placed()
            solved.work += solved.whole[key].work
        placed = solved.whole[key]
        if placed.height <= height:
            break
    return placed


def _cuts(tall: list[float], crossing: list[int], count: int) -> list[int]:
    """Where to cut rows into so many columns: the highest column plus the price of the cuts is least."""
    rows, far = len(tall), float("inf")
    sums = [0.0]
    for h in tall:
        sums.append(sums[-1] + h)
    best = [[far] * (rows + 1) for _ in range(count + 1)]
    back = [[0] * (rows + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for k in range(1, count + 1):
        above, here, came = best[k - 1], best[k], back[k]
        for j in range(k, rows + 1):
            price = _CUT_PRICE * (crossing[j - 1] - 1) if j < rows else 0.0
            for i in range(k - 1, j):
                cost = max(above[i], sums[j] - sums[i]) + price
                if cost < here[j]:
                    here[j], came[j] = cost, i
    cuts, at = [rows], rows
    for k in range(count, 0, -1):
        at = back[k][at]
        cuts.append(at)
    return cuts[::-1]


class _Columns:
    """The columns side by side, with the lines between them."""

    def __init__(
        self, problem: Problem, column: list[int], cuts: list[int], known: dict[tuple[int, int], Column]
    ) -> None:
        self.problem, self.column, self.count = problem, column, len(cuts) - 1
        self.ports = {*problem.sources, *problem.sinks}
        self.goes_to: dict[tuple[int, Net], set[int]] = {}  # nets that cross a cut -> the columns they go to
        for u, v, net in problem.edges:
            if column[u] >= 0 and column[v] >= 0 and column[u] != column[v]:
                self.goes_to.setdefault((u, net), set()).add(column[v])
        self.solved: list[Column] = []
        self.work = 0
        for c, rows in enumerate(itertools.pairwise(cuts)):
            if rows not in known:
                known[rows] = self._solve(c)
                self.work += known[rows][1].work
            self.solved.append(known[rows])

    def _solve(self, c: int) -> Column:
        """One column as a problem of its own; nets from elsewhere enter and leave at points."""
        problem, column = self.problem, self.column
        number: dict[int | Key, int] = {}
        for box in range(len(problem.sizes)):
            if column[box] == c:
                number[box] = len(number)
        sizes = [problem.sizes[box] for box in number if isinstance(box, int)]
        sources: list[int] = []
        sinks: list[int] = []
        edges: dict[tuple[int, int, Net], None] = {}

        def point(key: Key, points: list[int]) -> int:
            if key not in number:
                number[key] = len(sizes)
                sizes.append((0.0, 0.0))
                points.append(number[key])
            return number[key]

        for u, v, net in problem.edges:
            if column[v] == c:
                begin = number[u] if column[u] == c else point(("in", u, net), sources)
                edges[begin, number[v], net] = None
            elif column[u] == c:
                edges[number[u], point(("out", u, net), sinks), net] = None
        enters = {(number[box], net): x for (box, net), x in problem.enters.items() if box in number}
        leaves = {(number[box], net): x for (box, net), x in problem.leaves.items() if box in number}
        return number, place(Problem(sizes, list(edges), enters, leaves, sources, sinks))

    def placed(self) -> Placed:
        self._lanes()
        self._collect()
        self._join()
        problem = self.problem
        for port in problem.sources:  # above their first use
            starts = [route.points[0][0] for route in self.routes if route.source == port]
            self.places[port] = (min(starts, default=0.0), 0.0)
        for port in problem.sinks:
            ends = [route.points[-1][0] for route in self.routes if route.target == port]
            self.places[port] = (ends[0] if ends else self.width, self.bottom)
        crossings = sum(placed.crossings for _, placed in self.solved)
        tangles = sum(placed.tangles for _, placed in self.solved)
        return Placed(self.width, self.bottom, self.places, self.routes, crossings, self.count, self.work, tangles)

    def _lanes(self) -> None:
        """Room for the lines between columns: below each, below all, in the gaps and above."""
        column, goes_to = self.column, self.goes_to
        exits = {}
        for number, placed in self.solved:
            for key, node in number.items():
                if isinstance(key, tuple) and key[0] == "out":
                    exits[key[1], key[2]] = placed.places[node][0]
        # A net that leaves further left runs below one that leaves further right: they do not cross.
        nets = sorted(goes_to, key=lambda net: (column[net[0]], -exits[net]))
        self.near = [[n for n in nets if column[n[0]] == c and max(goes_to[n]) == c + 1] for c in range(self.count)]
        self.far = [n for n in nets if max(goes_to[n]) > column[n[0]] + 1]
        self.arriving = [[n for n in nets if c in goes_to[n]] for c in range(self.count)]
        self.top = 6 + _LANE * max(map(len, self.arriving), default=0)
        heights = [
            placed.height + (4 + _LANE * len(near) if near else 0)
            for (_, placed), near in zip(self.solved, self.near, strict=True)
        ]
        self.column_height = max(heights)
        self.bottom = self.top + self.column_height + (4 + _LANE * len(self.far) if self.far else 0)
        self.left, self.gaps, at = [], [], 0.0
        for c, (_, placed) in enumerate(self.solved):
            gap = _GUTTER + _LANE * len(self.arriving[c]) if c else 0.0
            self.gaps.append(gap)
            self.left.append(at + gap)
            at += gap + placed.width
        self.width = at

    def _collect(self) -> None:
        """Boxes and lines of every column where they now lie; the ends of those that go on elsewhere."""
        self.places: list[Point] = [(0.0, 0.0)] * len(self.problem.sizes)
        self.routes: list[Route] = []
        self.exits: dict[tuple[int, Net], tuple[list[Point], float]] = {}
        self.entries: dict[tuple[int, Net, int], list[tuple[int, list[Point]]]] = {}
        sinks = {(u, net): [] for u, _, net in self.problem.edges}  # type: dict[tuple[int, Net], list[int]]
        for u, v, net in self.problem.edges:
            if v in self.ports:
                sinks[u, net].append(v)
        for c, (number, placed) in enumerate(self.solved):
            key_of = {node: key for key, node in number.items()}
            left, top = self.left[c], self.top
            for key, node in number.items():
                if isinstance(key, int):
                    x, y = placed.places[node]
                    self.places[key] = (x + left, y + top)
            for route in placed.routes:
                points = [(x + left, y + top) for x, y in route.points]
                source, target = key_of[route.source], key_of[route.target]
                if isinstance(source, tuple):
                    assert isinstance(target, int)
                    if source[1] in self.ports:
                        begin = (points[0][0], 0.0)
                        self.routes.append(Route(route.net, source[1], target, [begin, *points]))
                    else:
                        self.entries.setdefault((source[1], route.net, c), []).append((target, points))
                elif isinstance(target, tuple):
                    self.exits[source, route.net] = points, placed.height + top
                    for port in sinks[source, route.net]:
                        end = (points[-1][0], self.bottom)
                        self.routes.append(Route(route.net, source, port, [*points, end]))
                else:
                    self.routes.append(Route(route.net, source, target, points))

    def _join(self) -> None:
        for u, net in self.goes_to:
            out, below = self.exits[u, net]
            near = self.near[self.column[u]]
            if (u, net) in near:
                low = below + 8 + _LANE * near.index((u, net))
            else:
                low = self.top + self.column_height + 8 + _LANE * self.far.index((u, net))
            for c in sorted(self.goes_to[u, net]):
                many, at = len(self.arriving[c]), self.arriving[c].index((u, net))
                x = self.left[c] - self.gaps[c] / 2 + _LANE * (at - (many - 1) / 2)
                high = self.top - _LANE * (many - at)
                for target, points in self.entries.get((u, net, c), ()):
                    way = [(out[-1][0], low), (x, low), (x, high), (points[0][0], high)]
                    self.routes.append(Route(net, u, target, [*out, *way, *points]))
