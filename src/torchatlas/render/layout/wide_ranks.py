"""A rank far too wide for the page -> rows of boxes, placed as one large box: many branches side by side that all read
the same and are all read by the same. What they read comes down on their left, what they make goes down on their right.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from torchatlas.render.layout.layered import Net, Problem
from torchatlas.render.layout.routing import Placed, Point, Route
from torchatlas.render.layout.style import STYLE

# What counts as a fan that is better drawn in rows.
_FEWEST = 8  # branches
_MOST_ENDS = 4  # different things that each branch reads, or that read it: each takes a line of its own beside the rows
# Geometry, as shares of the page.
_SHARE = 0.7  # of the height may be rows: there are other boxes
_LOOSE = 0.6  # of the width or height: rows that fill no more are as good as any

Edge = tuple[int, int, Net]
End = tuple[int, Net]  # a box; and the net, if the lines that begin there must stay apart


@dataclass(frozen=True)
class Fan:
    """Branches that read the same and are read by the same boxes. A branch is one closed box, or several in a row."""

    branches: list[list[int]]
    sources: dict[End, Net]  # -> the net that stands for all that comes from there
    targets: dict[int, Net]  # -> the net that stands for all that goes there

    @property
    def boxes(self) -> list[int]:
        """All at which its lines begin or end."""
        return [*itertools.chain(*self.branches), *self.targets, *(box for box, _ in self.sources)]


def fans(problem: Problem, closed: Collection[int], width: float) -> list[Fan]:
    """The branches that in one row would be wider than the page. At `closed` boxes, lines may be joined."""
    if len(problem.edges) < 2 * _FEWEST:  # so many enter and leave branches
        return []
    if max(Counter(u for u, _, _ in problem.edges).values()) < _FEWEST:  # so many must read the same
        return []
    closed = set(closed)
    enters: dict[int, list[Edge]] = {box: [] for box in closed}
    leaves: dict[int, list[Edge]] = {box: [] for box in closed}
    for edge in problem.edges:
        if edge[0] in leaves:
            leaves[edge[0]].append(edge)
        if edge[1] in enters:
            enters[edge[1]].append(edge)
    following = {}
    for box in closed:
        if len(leaves[box]) == 1 and leaves[box][0][1] in closed and len(enters[leaves[box][0][1]]) == 1:
            following[box] = leaves[box][0][1]
    alike: dict[tuple[frozenset[End], frozenset[int]], list[list[int]]] = {}
    for box in sorted(closed - set(following.values())):
        branch = [box]
        while branch[-1] in following:
            branch.append(following[branch[-1]])
        targets = {v for _, v, _ in leaves[branch[-1]]}
        sources = {_end(edge, closed) for edge in enters[box]}
        if sources and targets and targets <= closed and max(len(sources), len(targets)) <= _MOST_ENDS:
            alike.setdefault((frozenset(sources), frozenset(targets)), []).append(branch)
    wide_fans = []
    for branches in alike.values():
        across = sum(max(problem.sizes[box][0] for box in branch) + STYLE.box_gap for branch in branches)
        if len(branches) >= _FEWEST and across > width:
            first, last = branches[0][0], branches[0][-1]
            nets = {_end(edge, closed): edge[2] for edge in reversed(enters[first])}
            wide_fans.append(Fan(branches, nets, {v: net for _, v, net in reversed(leaves[last])}))
    return wide_fans


def _end(edge: Edge, closed: Collection[int]) -> End:
    return (edge[0], None) if edge[0] in closed else (edge[0], edge[2])


class Wrapped:
    """A problem in which every fan is one box, and its solution with the branches in that box."""

    def __init__(self, problem: Problem, fans: list[Fan], page: tuple[float, float]) -> None:
        self.whole = problem
        self.grids = [_Grid(problem, fan, page) for fan in fans]
        grid_of = {box: at for at, fan in enumerate(fans) for branch in fan.branches for box in branch}
        self.number: dict[int, int] = {}  # box -> its number in the smaller problem
        self.place_of_grid: list[int] = [-1] * len(fans)
        sizes: list[tuple[float, float]] = []
        for box, size in enumerate(problem.sizes):
            at = grid_of.get(box)
            if at is None:
                self.number[box] = len(sizes)
                sizes.append(size)
            elif self.place_of_grid[at] < 0:
                self.place_of_grid[at] = len(sizes)
                sizes.append((self.grids[at].width, self.grids[at].height))
        number = self.number
        edges: list[Edge] = []
        for u, v, net in problem.edges:
            if u in number and v in number:
                edges.append((number[u], number[v], net))
        enters = {(number[box], net): x for (box, net), x in problem.enters.items() if box in number}
        leaves = {(number[box], net): x for (box, net), x in problem.leaves.items() if box in number}
        for place, grid in zip(self.place_of_grid, self.grids, strict=True):
            for (box, _), net in grid.fan.sources.items():
                edges.append((number[box], place, net))
                enters[place, net] = grid.trunks[net]
            for box, net in grid.fan.targets.items():
                edges.append((place, number[box], net))
                leaves[place, net] = grid.exits[net]
        ports = ([number[port] for port in problem.sources], [number[port] for port in problem.sinks])
        self.problem = Problem(sizes, edges, enters, leaves, *ports)

    def unwrapped(self, placed: Placed) -> Placed:
        """A solution of the smaller problem as one of the whole."""
        places: list[Point] = [(0.0, 0.0)] * len(self.whole.sizes)
        old = {new: box for box, new in self.number.items()}
        for box, new in self.number.items():
            places[box] = placed.places[new]
        routes: list[Route] = []
        outer: dict[tuple[int, int, Net], list[Point]] = {}
        for route in placed.routes:
            if route.source in old and route.target in old:
                routes.append(Route(route.net, old[route.source], old[route.target], route.points))
            else:
                outer[route.source, route.target, route.net] = route.points
        for place, grid in zip(self.place_of_grid, self.grids, strict=True):
            left, top = placed.places[place]
            for box, (x, y) in grid.places.items():
                places[box] = (x + left, y + top)
            routes += grid.inner_routes(self.whole.edges, places)
            for branch in grid.fan.branches:
                head, tail = branch[0], branch[-1]
                for (box, _), net in grid.fan.sources.items():
                    inner_points = [(x + left, y + top) for x, y in grid.way_in(head, net)]
                    routes.append(Route(net, box, head, [*outer[self.number[box], place, net], *inner_points]))
                for box, net in grid.fan.targets.items():
                    inner_points = [(x + left, y + top) for x, y in grid.way_out(tail, net)]
                    routes.append(Route(net, tail, box, [*inner_points, *outer[place, self.number[box], net]]))
        return replace(placed, places=places, lines=lambda: routes)


class _Grid:
    """The branches of a fan in rows, from the upper left corner of the box that stands for them."""

    def __init__(self, problem: Problem, fan: Fan, page: tuple[float, float]) -> None:
        self.fan, self.sizes = fan, problem.sizes
        self.into, self.out = (list(dict.fromkeys(ends.values())) for ends in (fan.sources, fan.targets))
        self.trunks = {net: at * STYLE.line_gap for at, net in enumerate(self.into)}
        left = len(self.into) * STYLE.line_gap
        right = len(self.out) * STYLE.line_gap
        column_width = max(self.sizes[box][0] for branch in fan.branches for box in branch) + STYLE.box_gap
        row_height = (
            max(sum(self.sizes[box][1] + STYLE.rank_gap for box in branch) for branch in fan.branches) + 2 * STYLE.track
        )
        rows = min(
            range(1, len(fan.branches) + 1),
            key=lambda rows: max(
                (left + math.ceil(len(fan.branches) / rows) * column_width + right) / page[0],
                rows * row_height / (page[1] * _SHARE),
                _LOOSE,
            ),
        )
        across = math.ceil(len(fan.branches) / rows)
        self.width = left + across * column_width - STYLE.box_gap + right
        self.exits = {net: self.width - at * STYLE.line_gap for at, net in enumerate(self.out)}
        self.places: dict[int, Point] = {}
        self.row: dict[int, int] = {}
        self.above: list[float] = []  # row -> where the tracks above it, and below it, begin
        self.below: list[float] = []
        y = 0.0
        for first in range(0, len(fan.branches), across):
            self.above.append(y)
            y += (len(self.into) - 1) * STYLE.track + STYLE.track_to_box
            branches = fan.branches[first : first + across]
            bottoms = []
            for at, branch in enumerate(branches):
                middle, down = left + at * column_width + (column_width - STYLE.box_gap) / 2, y
                for box in branch:
                    self.places[box] = (middle - self.sizes[box][0] / 2, down)
                    self.row[box] = len(self.above) - 1
                    down += self.sizes[box][1] + STYLE.rank_gap
                bottoms.append(down - STYLE.rank_gap)
            y = max(bottoms) + STYLE.box_to_track
            self.below.append(y)
            y += len(self.out) * STYLE.track
        self.height = y

    def inner_routes(self, edges: list[Edge], places: list[Point]) -> list[Route]:
        """The lines within branches, straight down."""
        routes = []
        following = {a: b for branch in self.fan.branches for a, b in itertools.pairwise(branch)}
        for u, v, net in edges:
            if following.get(u) == v:
                x = places[u][0] + self.sizes[u][0] / 2
                routes.append(Route(net, u, v, [(x, places[u][1] + self.sizes[u][1]), (x, places[v][1])]))
        return routes

    def way_in(self, head: int, net: Net) -> list[Point]:
        at = self.into.index(net)
        x, y = self.places[head]
        x += self._port(head, at, len(self.into))
        track = self.above[self.row[head]] + at * STYLE.track
        return [(self.trunks[net], track), (x, track), (x, y)]

    def way_out(self, tail: int, net: Net) -> list[Point]:
        at = self.out.index(net)
        x, y = self.places[tail]
        x += self._port(tail, at, len(self.out))
        track = self.below[self.row[tail]] + at * STYLE.track
        return [(x, y + self.sizes[tail][1]), (x, track), (self.exits[net], track)]

    def _port(self, box: int, at: int, many: int) -> float:
        """Where the ends of lines lie on a box, from its left side."""
        width = self.sizes[box][0]
        return width / 2 + (at - (many - 1) / 2) * min(STYLE.port_gap, width / (many + 1))
