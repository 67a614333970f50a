"""A layering -> heights and lines: where nets meet boxes, and the horizontal tracks between the ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from torchatlas.render.layout.layered import Layering, Net, Problem, Ranks, layer
from torchatlas.render.layout.style import STYLE

# What a pair of pieces costs, in crossings, if vertical lines of theirs lie on each other: more than all crossings that
# two pieces usually have, for lines that cross can be followed and lines on each other cannot.
_ON_EACH_OTHER = 20
_STEP = 4.0  # units from one place to the next that is tried for a line
_ASIDE = 100.0  # units to either side of a piece where a line that turns twice may come down

Point = tuple[float, float]
_Pair = tuple[int, int, int, int]  # two pieces, and the crossings when the first, or the second, runs above


@dataclass
class Route:
    """One line, from box to box."""

    net: Net
    source: int
    target: int
    points: list[Point]


@dataclass
class Placed:
    """A solved problem: the upper left corner of every box, and the lines. The lines are made when asked for: of
    most solutions only the size is needed."""

    width: float
    height: float
    places: list[Point]
    lines: Callable[[], list[Route]] = field(repr=False, compare=False)  # makes them
    crossings: int
    columns: int = 1
    work: int = 0  # lines between ranks that were put in order to get there
    tangles: int = 0  # pairs of lines that lie on each other: too many change places at once

    @cached_property
    def routes(self) -> list[Route]:
        return self.lines()


@dataclass(eq=False)
class _Track:
    """The horizontal piece of one net below a rank: `trunk` is where the net comes down, `drops` where it goes on
    down."""

    key: tuple[int, Net]
    low: float
    high: float
    trunk: float
    drops: list[float]
    part: int = 0  # 1 for the second piece of a net that turns twice


def place(problem: Problem, known: Ranks | None = None) -> Placed:
    """Solve a layered problem, in one column."""
    return _Router(layer(problem, known)).placed()


class _Router:
    def __init__(self, layering: Layering) -> None:
        self.layering, self.problem = layering, layering.problem
        self.enter: dict[tuple[int, Net], float] = {}
        self.leave: dict[tuple[int, Net], float] = {}
        self._ports()
        self._straighten()
        self._snap()
        self._heights()

    # -- where lines meet boxes --------------------------------------------------------------------------------------

    def _ports(self) -> None:
        layering, x, width = self.layering, self.layering.x, self.layering.width
        above: dict[int, list[tuple[int, Net]]] = {}
        below: dict[int, dict[Net, list[int]]] = {}
        for a, b, net in layering.segments:
            if b < layering.count:
                above.setdefault(b, []).append((a, net))
            if a < layering.count or a in layering.owner:
                below.setdefault(layering.owner.get(a, a), {}).setdefault(net, []).append(b)
        entered, left = _by_box(self.problem.enters), _by_box(self.problem.leaves)
        for box in range(layering.count):
            if layering.is_point(box):
                continue
            middle = x[box] + width[box] / 2
            wishes: list[tuple[float, Net]] = []
            for a, net in above.get(box, ()):
                fixed = self.problem.enters.get((box, net))
                if fixed is not None:
                    self.enter[box, net] = x[box] + fixed
                else:
                    wishes.append((self._end_of(a, net), net))
            self._spread(box, wishes, self.enter, [x[box] + at for at in entered.get(box, ())])
            nets = below.get(box, {})
            wishes = []
            for net, others in nets.items():
                fixed = self.problem.leaves.get((box, net))
                if fixed is not None:
                    self.leave[box, net] = x[box] + fixed
                else:
                    ends = [x[b] + width[b] / 2 for b in others]
                    wishes.append((sum(ends) / len(ends) if len(nets) > 1 else middle, net))
            self._spread(box, wishes, self.leave, [x[box] + at for at in left.get(box, ())])

    def _straighten(self) -> None:
        """Move the points where nets enter and leave the group over the other ends of their lines, if there is room."""
        layering, x = self.layering, self.layering.x
        beside: dict[int, tuple[float, float]] = {}
        for row in (layering.rows[0], layering.rows[-1]) if layering.rows else ():
            for position, node in enumerate(row):
                left, right = (
                    row[position - 1] if position else None,
                    row[position + 1] if position + 1 < len(row) else None,
                )
                low = -math.inf if left is None else x[left] + layering.width[left] + STYLE.line_gap
                beside[node] = low, math.inf if right is None else x[right] - STYLE.line_gap
        sources, sinks = set(self.problem.sources), set(self.problem.sinks)
        lines: dict[int, list[float]] = {}
        for a, b, net in layering.segments:
            if a in sources and not layering.is_point(b):
                lines.setdefault(a, []).append(self.enter[b, net])
            if b in sinks and not layering.is_point(a):
                lines.setdefault(b, []).append(self.leave[layering.owner.get(a, a), net])
        for point, ends in lines.items():
            low, high = beside.get(point, (1.0, 0.0))
            if len(ends) == 1 and abs(ends[0] - x[point]) <= STYLE.port_gap and low <= ends[0] <= high:
                x[point] = ends[0]

    def _snap(self) -> None:
        """Straighten lines that would turn aside by less than a jog before a box, if no other end is near."""
        layering, ends = self.layering, dict[int, list[tuple[int, Net]]]()
        for a, b, net in layering.segments:
            if b < layering.count and not layering.is_point(b):
                ends.setdefault(b, []).append((a, net))
        for box, lines in ends.items():
            left, right = layering.x[box], layering.x[box] + layering.width[box]
            for a, net in lines:
                straight = self._out_of(a, net)
                aside = abs(straight - self.enter[box, net])
                if not STYLE.straight < aside <= STYLE.jog or (box, net) in self.problem.enters:
                    continue
                others = [self.enter[box, other] for _, other in lines if other != net]
                inside = left + STYLE.line_ends_apart <= straight <= right - STYLE.line_ends_apart
                if inside and all(abs(straight - other) >= STYLE.line_ends_apart for other in others):
                    self.enter[box, net] = straight

    def _end_of(self, node: int, net: Net) -> float:
        layering = self.layering
        if layering.is_point(node):
            return layering.x[node]
        fixed = self.problem.leaves.get((layering.owner.get(node, node), net), layering.width[node] / 2)
        return layering.x[node] + fixed

    def _spread(
        self, box: int, wishes: list[tuple[float, Net]], table: dict[tuple[int, Net], float], fixed: list[float]
    ) -> None:
        """Place the ends of lines on a box as near to where the lines come from as its width and the other ends
        allow."""
        if not wishes:
            return
        x, width = self.layering.x[box], self.layering.width[box]
        margin, many = min(STYLE.corner_to_line, width / 4), len(wishes)
        low, high = x + margin, x + width - margin
        wishes.sort(key=lambda wish: wish[0])
        if many == 1 and not low <= wishes[0][0] <= high:  # it comes from the side anyway: at the centre
            wishes = [((low + high) / 2, wishes[0][1])]
        gap = min(STYLE.port_gap, (high - low) / max(1, many - 1))
        least = low
        for position, (wish, net) in enumerate(wishes):
            at = min(max(wish, least), high - (many - 1 - position) * gap)
            table[box, net] = _beside(at, fixed, low, high) if fixed else at
            least = at + gap

    def _out_of(self, node: int, net: Net) -> float:
        layering = self.layering
        return layering.x[node] if layering.is_point(node) else self.leave[layering.owner.get(node, node), net]

    def _into(self, node: int, net: Net) -> float:
        layering = self.layering
        return layering.x[node] if layering.is_point(node) else self.enter[node, net]

    # -- heights -----------------------------------------------------------------------------------------------------

    def _heights(self) -> None:
        layering = self.layering
        rows, height, rank = layering.rows, layering.height, layering.rank
        nets: list[dict[tuple[int, Net], tuple[float, list[float]]]] = [{} for _ in rows]
        for a, b, net in layering.segments:
            _, drops = nets[rank[a]].setdefault((a, net), (self._out_of(a, net), []))
            drops.append(self._into(b, net))
        self.y = [0.0] * len(rank)
        self.tangles = 0
        self.tracks: dict[tuple[int, Net], list[Point]] = {}  # where a net turns: down to its track, or its two
        top, tops, tall = 0.0, [], [max((height[node] for node in row), default=0.0) for row in rows]
        for level, row in enumerate(rows):
            tops.append(top)
            for node in row:
                self.y[node] = top + (tall[level] - height[node]) / 2
            if level + 1 == len(rows):
                top += tall[level]
                break
            tracks = [
                _Track(key, min(trunk, *drops), max(trunk, *drops), trunk, drops)
                for key, (trunk, drops) in nets[level].items()
                if any(abs(drop - trunk) > STYLE.straight for drop in drops)
            ]
            lines = [x for trunk, drops in nets[level].values() for x in (trunk, *drops)]
            tracks, pairs = _untangled(tracks, lines)
            track_numbers = _assigned(tracks, pairs)
            self.tangles += _tangles(pairs, track_numbers)
            below = top + tall[level] + STYLE.box_to_track
            for track, number in zip(tracks, track_numbers, strict=True):
                self.tracks.setdefault(track.key, []).append((track.trunk, below + number * STYLE.track))
            used = max(track_numbers, default=-1) + 1
            ports, ports_next = (all(layering.is_point(node) for node in r) for r in (row, rows[level + 1]))
            foot = STYLE.box_to_track if ports_next else STYLE.track_to_box
            least = STYLE.track_to_border if ports_next else STYLE.track_to_box if ports else STYLE.rank_gap
            top += tall[level] + max(least, STYLE.box_to_track + (used - 1) * STYLE.track + foot if used else 0.0)
        for box in range(layering.count):
            last = layering.tail[box]
            if last != box:  # centred in the ranks it spans
                begin, end = tops[rank[box]], tops[rank[last]] + tall[rank[last]]
                self.y[box] = begin + (end - begin - self.problem.sizes[box][1]) / 2
        self.height = top

    # -- lines -------------------------------------------------------------------------------------------------------

    def placed(self) -> Placed:
        layering, sizes = self.layering, self.problem.sizes
        routes = []
        for u, v, net, chain in layering.chains:
            points = [(self._out_of(layering.tail[u], net), self.y[u] + sizes[u][1])]
            for a, b in itertools.pairwise(chain):
                end = self._into(b, net)
                if abs(end - points[-1][0]) > STYLE.straight:
                    for x, track in self.tracks[a, net]:
                        points += [(x, points[-1][1]), (x, track)]
                    points.append((end, points[-1][1]))
                points.append((end, self.y[b]))
            routes.append(Route(net, u, v, points))
        ends = [layering.x[node] + layering.width[node] for node in range(len(layering.x))]
        every = [x for route in routes for x, _ in route.points]
        left = min([*layering.x, *every], default=0.0)
        if left < 0:
            layering.x = [x - left for x in layering.x]
            for route in routes:
                route.points = [(x - left, y) for x, y in route.points]
        width = max([*ends, *every], default=0.0) - min(left, 0.0)
        places = [(layering.x[box], self.y[box]) for box in range(layering.count)]
        more = {"work": layering.work, "tangles": self.tangles}
        return Placed(width, self.height, places, lambda: routes, layering.crossings, **more)


def _by_box(ends: dict[tuple[int, Net], float]) -> dict[int, list[float]]:
    by_box: dict[int, list[float]] = {}
    for (box, _), at in ends.items():
        by_box.setdefault(box, []).append(at)
    return by_box


def _beside(at: float, taken: list[float], low: float, high: float) -> float:
    """The free place on a box that is nearest to `at`."""
    for step in range(1, 2 * int((high - low) / _STEP) + 4):
        candidate = at + (step // 2) * _STEP * (1 if step % 2 else -1)
        if low <= candidate <= high and all(abs(candidate - other) >= STYLE.line_ends_apart for other in taken):
            taken.append(candidate)
            return candidate
    return at


def _untangled(tracks: list[_Track], taken: list[float]) -> tuple[list[_Track], list[_Pair]]:
    """Nets that change places in a ring would lie on each other in any order: one of each ring turns twice.

    `taken` is where lines come down in this gap, also straight ones.
    """
    pieces, turned = list(tracks), set[tuple[int, Net]]()
    while True:
        pairs = _pairs(pieces)
        ring = [pieces[i] for i in _ring(len(pieces), pairs) if pieces[i].key not in turned]
        if not ring:
            return pieces, pairs
        piece = min(ring, key=lambda track: (len(track.drops), track.high - track.low))
        turned.add(piece.key)
        at = pieces.index(piece)
        middle = _beside((piece.low + piece.high) / 2, taken, piece.low - _ASIDE, piece.high + _ASIDE)
        first = _Track(piece.key, min(middle, piece.trunk), max(middle, piece.trunk), piece.trunk, [middle])
        second = _Track(piece.key, min(middle, *piece.drops), max(middle, *piece.drops), middle, piece.drops, 1)
        pieces[at : at + 1] = [first, second]


def _pairs(tracks: list[_Track]) -> list[_Pair]:
    """The pieces that meet if they share a track, with what it costs if the one, or the other, runs above."""
    apart = STYLE.track_ends_apart
    return [
        (i, j, _price(one, other), _price(other, one))
        for i, one in enumerate(tracks)
        for j, other in enumerate(tracks[:i])
        if one.low <= other.high + apart and other.low <= one.high + apart
    ]


def _price(upper: _Track, lower: _Track) -> int:
    """Crossings when one piece runs above another; lines that would lie on each other cost much more."""
    if upper.key == lower.key:
        return 0 if upper.part < lower.part else 2 * _ON_EACH_OTHER
    crossed = int(upper.low < lower.trunk < upper.high) + sum(lower.low < drop < lower.high for drop in upper.drops)
    return crossed + _ON_EACH_OTHER * any(abs(lower.trunk - drop) < STYLE.lines_look_one for drop in upper.drops)


def _ring(count: int, pairs: list[_Pair]) -> list[int]:
    """Pieces of which each must run above the next, and the last above the first; empty if there are none."""
    below: list[list[int]] = [[] for _ in range(count)]
    for i, j, above, under in pairs:
        if under >= _ON_EACH_OTHER:
            below[i].append(j)
        if above >= _ON_EACH_OTHER:
            below[j].append(i)
    state = [0] * count  # 1 while on the way, 2 when done
    for start in range(count):
        path, choices = [start], [iter(below[start])]
        while path and state[start] != 2:
            state[path[-1]] = 1
            following = next(choices[-1], None)
            if following is None:
                state[path.pop()] = 2
                choices.pop()
            elif state[following] == 1:
                return path[path.index(following) :]
            elif state[following] == 0:
                path.append(following)
                choices.append(iter(below[following]))
    return []


def _assigned(tracks: list[_Track], pairs: list[_Pair]) -> list[int]:
    """A track number for every horizontal piece: no two that meet share one, and few cross."""
    count = len(tracks)
    above: list[list[int]] = [[] for _ in range(count)]
    meets: list[list[int]] = [[] for _ in range(count)]
    for i, j, first, second in pairs:
        meets[i].append(j)
        meets[j].append(i)
        if first < second:
            above[j].append(i)
        elif second < first:
            above[i].append(j)
    number = [-1] * count
    waiting: set[int] = set()
    for start in sorted(range(count), key=lambda i: tracks[i].high - tracks[i].low):
        stack = [] if number[start] >= 0 else [(start, iter(above[start]))]
        waiting.update(i for i, _ in stack)
        while stack:  # those above first; no recursion, which has a limit
            i, rest = stack[-1]
            following = next((j for j in rest if number[j] < 0 and j not in waiting), None)
            if following is None:
                stack.pop()
                waiting.discard(i)
                at, taken = max((number[j] for j in above[i]), default=-1) + 1, {number[j] for j in meets[i]}
                while at in taken:
                    at += 1
                number[i] = at
            else:
                stack.append((following, iter(above[following])))
                waiting.add(following)
    return number


def _tangles(pairs: list[_Pair], track_numbers: list[int]) -> int:
    """Pairs of pieces that still lie on each other."""
    return sum(
        (above if track_numbers[i] < track_numbers[j] else under) >= _ON_EACH_OTHER for i, j, above, under in pairs
    )
