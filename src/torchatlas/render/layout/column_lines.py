"""A layered problem and the column of each box -> the columns side by side, and the lines between them.

A line to a later column leaves at the bottom of its own, goes up in the gap before the other and enters it from above.
What enters the group does so once, above the first column that reads it, and goes to others above them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchatlas.render.layout.layered import Net, Problem
from torchatlas.render.layout.routing import Placed, Point, Route
from torchatlas.render.layout.style import STYLE

if TYPE_CHECKING:
    from torchatlas.render.layout.page_columns import Solver

Key = tuple[str, int, Net]  # a net that enters, or leaves, a column
Column = tuple[dict[int | Key, int], Placed]  # the numbers of boxes and nets in it, and where they lie


class Columns:
    """The columns side by side, with the lines between them."""

    def __init__(
        self,
        problem: Problem,
        column: list[int],
        solver: Solver,
        solved: dict[tuple[int, ...], Column],
    ) -> None:
        self.problem, self.column, self.count = problem, column, max(column) + 1
        self.ports = {*problem.sources, *problem.sinks}
        self.goes_to: dict[tuple[int, Net], set[int]] = {}  # nets that cross a cut -> the columns they go to
        for u, v, net in problem.edges:
            if column[u] >= 0 and column[v] >= 0 and column[u] != column[v]:
                self.goes_to.setdefault((u, net), set()).add(column[v])
        self.read_in: dict[int, set[int]] = {port: set() for port in problem.sources}
        for u, v, _ in problem.edges:
            if u in self.read_in and column[v] >= 0:
                self.read_in[u].add(column[v])
        holds: list[list[int]] = [[] for _ in range(self.count)]
        for box, c in enumerate(column):
            if c >= 0:
                holds[c].append(box)
        for c, boxes in enumerate(map(tuple, holds)):
            if boxes not in solved:
                solved[boxes] = self._solve(c, solver)
        self.solved = [solved[tuple(boxes)] for boxes in holds]

    def _solve(self, c: int, solver: Solver) -> Column:
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
        return number, solver.place(Problem(sizes, list(edges), enters, leaves, sources, sinks))

    def placed(self) -> Placed:
        self._lanes()
        problem, top = self.problem, self.top
        places: list[Point] = [(0.0, 0.0)] * len(problem.sizes)
        for left, (number, placed) in zip(self.left, self.solved, strict=True):
            for key, node in number.items():
                if isinstance(key, int):
                    x, y = placed.places[node]
                    places[key] = (x + left, y + top)
        for port in problem.sources:
            places[port] = (self.starts.get(port, 0.0), 0.0)
        for port in problem.sinks:
            places[port] = (self.width, self.bottom)
        for u, v, net in problem.edges:
            if v in self.ports:
                places[v] = (self.left_at[u, net] + self.left[self.column[u]], self.bottom)
        crossings = sum(placed.crossings for _, placed in self.solved)
        tangles = sum(placed.tangles for _, placed in self.solved)
        return Placed(self.width, self.bottom, places, self._lines, crossings, self.count, tangles=tangles)

    def _lines(self) -> list[Route]:
        self._collect()
        self._join()
        return self.routes

    def _lanes(self) -> None:
        """Room for the lines between columns: below each, below all, in the gaps and above."""
        column, goes_to = self.column, self.goes_to
        exits = self.left_at = dict[tuple[int, Net], float]()  # where nets leave their columns
        for number, placed in self.solved:
            for key, node in number.items():
                if isinstance(key, tuple) and key[0] == "out":
                    exits[key[1], key[2]] = placed.places[node][0]
        # A net that leaves further left runs below one that leaves further right: they do not cross.
        nets = sorted(goes_to, key=lambda net: (column[net[0]], -exits[net]))
        self.near = [[n for n in nets if column[n[0]] == c and max(goes_to[n]) == c + 1] for c in range(self.count)]
        self.far = [n for n in nets if max(goes_to[n]) > column[n[0]] + 1]
        self.arriving = [[n for n in nets if c in goes_to[n]] for c in range(self.count)]
        shared = [port for port, columns in self.read_in.items() if len(columns) > 1]
        self.top = STYLE.above_columns + STYLE.lane * (max(map(len, self.arriving), default=0) + len(shared))
        heights = [
            placed.height + (STYLE.below_columns + STYLE.lane * len(near) if near else 0)
            for (_, placed), near in zip(self.solved, self.near, strict=True)
        ]
        self.column_height = max(heights)
        self.bottom = (
            self.top + self.column_height + (STYLE.below_columns + STYLE.lane * len(self.far) if self.far else 0)
        )
        self.left, self.gaps, at = [], [], 0.0
        for c, (_, placed) in enumerate(self.solved):
            gap = STYLE.gutter + STYLE.lane * len(self.arriving[c]) if c else 0.0
            self.gaps.append(gap)
            self.left.append(at + gap)
            at += gap + placed.width
        self.width = at
        self._lanes_above(shared)

    def _lanes_above(self, shared: list[int]) -> None:
        """Where tensors enter the group, and how high above the columns a tensor runs that several of them read.

        Separate lines, one above each of these columns, would be taken for different tensors.
        """
        self.starts: dict[int, float] = {}
        last: dict[int, float] = {}  # where the line to the last column turns down
        for left, (number, placed) in zip(self.left, self.solved, strict=True):
            for key, node in number.items():
                if isinstance(key, tuple) and key[0] == "in" and key[1] in self.read_in:
                    last[key[1]] = left + placed.places[node][0]
                    self.starts.setdefault(key[1], last[key[1]])
        # The further right its last line turns down, the higher a tensor runs: so that line meets no other.
        order = sorted(shared, key=lambda port: -last[port])
        self.lane_above = {port: STYLE.above_columns + STYLE.lane * at for at, port in enumerate(order)}

    def _collect(self) -> None:
        """The lines of every column where they now lie; the ends of those that go on elsewhere."""
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
            for route in placed.routes:
                points = [(x + left, y + top) for x, y in route.points]
                source, target = key_of[route.source], key_of[route.target]
                if isinstance(source, tuple):
                    assert isinstance(target, int)
                    if source[1] in self.ports:
                        entry = self._entry_points(source[1], points[0][0])
                        self.routes.append(Route(route.net, source[1], target, [*entry, *points]))
                    else:
                        self.entries.setdefault((source[1], route.net, c), []).append((target, points))
                elif isinstance(target, tuple):
                    self.exits[source, route.net] = points, placed.height + top
                    for port in sinks[source, route.net]:
                        end = (points[-1][0], self.bottom)
                        self.routes.append(Route(route.net, source, port, [*points, end]))
                else:
                    self.routes.append(Route(route.net, source, target, points))

    def _entry_points(self, port: int, x: float) -> list[Point]:
        """From where a tensor enters the group to above a column that reads it."""
        start = self.starts[port]
        if x == start:
            return [(x, 0.0)]
        return [(start, 0.0), (start, self.lane_above[port]), (x, self.lane_above[port])]

    def _join(self) -> None:
        for u, net in self.goes_to:
            out, below = self.exits[u, net]
            near = self.near[self.column[u]]
            if (u, net) in near:
                low = below + STYLE.box_to_track + STYLE.lane * near.index((u, net))
            else:
                low = self.top + self.column_height + STYLE.box_to_track + STYLE.lane * self.far.index((u, net))
            for c in sorted(self.goes_to[u, net]):
                many, at = len(self.arriving[c]), self.arriving[c].index((u, net))
                x = self.left[c] - self.gaps[c] / 2 + STYLE.lane * (at - (many - 1) / 2)
                high = self.top - STYLE.lane * (many - at)
                for target, points in self.entries.get((u, net, c), ()):
                    between = [(out[-1][0], low), (x, low), (x, high), (points[0][0], high)]
                    self.routes.append(Route(net, u, target, [*out, *between, *points]))
