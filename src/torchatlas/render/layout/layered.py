"""One layered problem: boxes and lines of one group -> ranks, an order with few crossings, and straight columns.

The method is Sugiyama's, with four additions that a computation needs: all lines of one tensor share a trunk, crossings
are counted where lines meet a box and not at its centre, tall boxes may span several ranks, and long lines are made
straight before short ones. routing.py turns the result into lines.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torchatlas.render.layout.style import STYLE

# Limits of the search, so that it ends soon. "Lines" are those between two neighbouring ranks, summed over all ranks.
_SWEEPS = 8  # over all ranks, down and up, to order boxes
_LARGE = 250  # lines: with more, half as many sweeps
_STARTS = ((40, 16), (120, 3))  # (lines, starts): with no more lines, so many random orders are tried besides the first
_EXCHANGES, _EXCHANGES_OF_LARGE = 6, 2  # rounds of exchanging neighbours in a sweep; they end earlier if nothing moves
_DESCENTS = 24  # over all blocks, to move them to where their lines pull; it ends earlier if nothing moves
_STILL = 0.1  # units: blocks that move by less do not move
# What is made straight first: pieces of long lines, then lines between boxes, and those that have an end to themselves.
_LONG, _BETWEEN_BOXES, _ALONE = 20, 6, 2

Net = Hashable  # what is carried: lines of one net share a trunk
Ranks = tuple[list[int], list[int]]  # the rank of every box, and a topological order


@dataclass
class Problem:
    """Boxes and lines to place. `enters` and `leaves` say where a net must meet a box, from its left side."""

    sizes: list[tuple[float, float]]
    edges: list[tuple[int, int, Net]]
    enters: dict[tuple[int, Net], float] = field(default_factory=dict)
    leaves: dict[tuple[int, Net], float] = field(default_factory=dict)
    sources: Sequence[int] = ()  # points on the upper border: where nets enter the group
    sinks: Sequence[int] = ()  # and on the lower


@dataclass
class Layering:
    """Boxes and the points where long lines pass ranks, all called nodes here, ranked, ordered and placed from left."""

    problem: Problem
    count: int  # nodes below it are boxes
    rank: list[int]
    rows: list[list[int]]
    width: list[float]
    height: list[float]  # of what lies in its rank; a spanning box has a part in each
    tail: list[int]  # box -> its part in the last rank it spans
    owner: dict[int, int]  # part of a spanning box -> the box
    segments: list[tuple[int, int, Net]]  # between neighbouring ranks
    parts: list[tuple[int, int]]  # between the parts of a spanning box
    chains: list[tuple[int, int, Net, list[int]]]  # every edge with the nodes it passes
    x: list[float] = field(default_factory=list)
    crossings: int = 0
    work: int = 0  # lines that were put in order, as often as that was done

    def is_point(self, node: int) -> bool:
        return self.width[node] == 0


def layer(problem: Problem, known: Ranks | None = None, *, spans: bool = True) -> Layering:
    """Rank, order and place the boxes of a problem from left to right. `known` are its ranks, if they were computed
    before."""
    layerer = _Layerer(problem, spans, known)
    layerer.order_rows()
    layering = layerer.layering
    if layering.parts and layerer.spans_are_crossed():  # nothing may run through a box
        return layer(problem, known, spans=False)
    layering.x = _Placer(layering, layerer.up, layerer.down).place()
    return layering


def ranks(count: int, edges: list[tuple[int, int, Net]], sources: Sequence[int], sinks: Sequence[int]) -> Ranks:
    """The rank of every box, as low as its longest way allows and then near what it feeds; and a topological order."""
    after: list[list[int]] = [[] for _ in range(count)]
    before: list[list[int]] = [[] for _ in range(count)]
    for u, v, _ in edges:
        after[u].append(v)
        before[v].append(u)
    waiting = [len(nodes) for nodes in before]
    order = [node for node in range(count) if not waiting[node]]
    for u in order:
        for v in after[u]:
            waiting[v] -= 1
            if not waiting[v]:
                order.append(v)
    fixed = {*sources, *sinks}
    rank = [1 if sources else 0] * count
    for source in sources:
        rank[source] = 0
    for u in order:
        for v in after[u]:
            rank[v] = max(rank[v], rank[u] + 1)
    last = max((rank[node] for node in range(count) if node not in fixed), default=0) + bool(sinks)
    for sink in sinks:
        rank[sink] = last
    loose = _loose(order, before, after, fixed)
    for _ in range(2):
        for u in reversed(order):
            fewer_in = len(set(before[u])) < len(set(after[u])) or loose[u]
            if u not in fixed and after[u] and fewer_in:
                rank[u] = max(rank[u], min(rank[v] for v in after[u]) - 1)
    return rank, order


def _loose(order: list[int], before: list[list[int]], after: list[list[int]], fixed: set[int]) -> list[bool]:
    """Whether each box may lie as low as what it feeds allows: nothing enters it, or only from boxes that feed nothing
    else and may follow it, as from an input that one embedding reads."""
    loose = [False] * len(before)
    for u in order:
        loose[u] = u not in fixed and all(loose[other] and set(after[other]) == {u} for other in before[u])
    return loose


class _Layerer:
    """Ranks and rows."""

    def __init__(self, problem: Problem, spans: bool, known: Ranks | None = None) -> None:
        self.problem = problem
        count = len(problem.sizes)
        rank, self.topological = known or ranks(count, problem.edges, problem.sources, problem.sinks)
        rank = list(rank)  # points in the ranks that lines pass are added
        width, height = [w for w, _ in problem.sizes], [h for _, h in problem.sizes]
        self.layering = Layering(problem, count, rank, [], width, height, list(range(count)), {}, [], [], [])
        self.up: list[list[int]] = [[] for _ in range(count)]
        self.down: list[list[int]] = [[] for _ in range(count)]
        if spans:
            self._span()
        self._chain()
        self._first_rows()
        self._index()
        self.fraction: dict[tuple[int, int], float] = {}
        owner = self.layering.owner
        for a, b, net in self.layering.segments:
            width_a, width_b = width[a], width[b]
            self.fraction[a, b] = problem.leaves.get((owner.get(a, a), net), width_a / 2) / width_a if width_a else 0.5
            self.fraction[b, a] = problem.enters.get((b, net), width_b / 2) / width_b if width_b else 0.5
        for a, b in self.layering.parts:
            self.fraction[a, b] = self.fraction[b, a] = 0.5

    def _new(self, rank: int, width: float, height: float) -> int:
        layering = self.layering
        layering.rank.append(rank)
        layering.width.append(width)
        layering.height.append(height)
        self.up.append([])
        self.down.append([])
        return len(layering.rank) - 1

    def _join(self, a: int, b: int) -> None:
        self.down[a].append(b)
        self.up[b].append(a)

    def _span(self) -> None:
        """Let a tall box span several ranks, if no box in these ranks waits for it."""
        layering, problem = self.layering, self.problem
        rank, ports = layering.rank, {*problem.sources, *problem.sinks}
        next_rank = [rank[node] + 1 if node not in ports else 0 for node in range(layering.count)]
        first: dict[int, int] = {}
        for u, v, _ in problem.edges:
            first[u] = min(first.get(u, 1 << 30), rank[v])
        for box in range(layering.count):
            slack = first.get(box, next_rank[box]) - rank[box]
            tall = layering.height[box]
            if box in ports or slack < 2 or tall < STYLE.spanning_height:
                continue
            over = min(slack, max(2, round((tall + STYLE.rank_gap) / (STYLE.usual_height + STYLE.rank_gap))))
            part = (tall - (over - 1) * STYLE.rank_gap) / over
            if part < STYLE.box_corner:
                over, part = 2, (tall - STYLE.rank_gap) / 2
            layering.owner[box], layering.height[box], last = box, part, box
            for step in range(1, over):
                node = self._new(rank[box] + step, layering.width[box], part)
                layering.owner[node] = box
                self._join(last, node)
                layering.parts.append((last, node))
                last = node
            layering.tail[box] = last

    def _chain(self) -> None:
        """Make a point in every rank that a line passes; lines of one net share their points."""
        layering = self.layering
        rank, passed = layering.rank, dict[tuple[int, Net, int], int]()
        for u, v, net in self.problem.edges:
            at = layering.tail[u]
            chain = [at]
            for level in range(rank[at] + 1, rank[v]):
                key = (u, net, level)
                node = passed.get(key)
                if node is None:
                    node = passed[key] = self._new(level, 0.0, 0.0)
                    self._join(at, node)
                    layering.segments.append((at, node, net))
                at = node
                chain.append(at)
            self._join(at, v)
            layering.segments.append((at, v, net))
            chain.append(v)
            layering.chains.append((u, v, net, chain))

    def _first_rows(self) -> None:
        """The first order of each row: depth first, so that connected boxes start side by side."""
        layering = self.layering
        rank, count = layering.rank, layering.count
        rows: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
        place = {node: position for position, node in enumerate(self.topological)}
        seen = [False] * len(rank)
        stack = sorted(range(count), key=lambda node: (rank[node], place.get(node, 0)), reverse=True)
        while stack:
            node = stack.pop()
            if seen[node]:
                continue
            seen[node] = True
            rows[rank[node]].append(node)
            below = sorted(self.down[node], key=lambda other: other >= count)
            stack.extend(other for other in reversed(below) if not seen[other])
        layering.rows = rows

    def _index(self) -> None:
        self.place = [0] * len(self.layering.rank)
        for row in self.layering.rows:
            for position, node in enumerate(row):
                self.place[node] = position

    def _crossings(self, row: list[int]) -> int:
        """How many lines cross between a row and the next, counted where lines meet boxes."""
        place, fraction = self.place, self.fraction
        ends = sorted(
            (place[u] + 0.99 * fraction[u, v], place[v] + 0.99 * fraction[v, u]) for u in row for v in self.down[u]
        )
        total, seen = 0, list[float]()
        for _, end in ends:
            at = bisect_right(seen, end)
            total += len(seen) - at
            seen.insert(at, end)
        return total

    def order_rows(self) -> None:
        """Improve the first order; while lines cross, also a few random ones, for the result depends on the start."""
        layering = self.layering
        best = self._improve()
        best_rows = [list(row) for row in layering.rows]
        starts = next((starts for most, starts in _STARTS if len(layering.segments) <= most), 0)
        for start in range(starts):
            if not best:
                break
            shuffle = random.Random(start).shuffle
            for row in layering.rows:
                shuffle(row)
            self._index()
            total = self._improve()
            if total < best:
                best, best_rows = total, [list(row) for row in layering.rows]
        layering.rows, layering.crossings = best_rows, best
        self._index()

    def _improve(self) -> int:
        """Sweep down and up: sort each row by the mean place of its neighbours, then exchange boxes while that
        helps."""
        layering = self.layering
        layering.work += len(layering.segments)
        best = sum(map(self._crossings, layering.rows[:-1]))
        best_rows = [list(row) for row in layering.rows]
        large = len(layering.segments) > _LARGE
        for sweep in range(_SWEEPS // 2 if large else _SWEEPS):
            if not best:
                break
            down = sweep % 2 == 0
            rows = layering.rows[1:] if down else layering.rows[-2::-1]
            for row in rows:
                self._sort_row(row, self.up if down else self.down)
            self._exchange(_EXCHANGES_OF_LARGE if large else _EXCHANGES)
            total = sum(map(self._crossings, layering.rows[:-1]))
            if total < best:
                best, best_rows = total, [list(row) for row in layering.rows]
        layering.rows = best_rows
        return best

    def _sort_row(self, row: list[int], near: list[list[int]]) -> None:
        place, fraction = self.place, self.fraction
        wish = {}
        for node in row:
            others = near[node]
            wish[node] = (
                sum(place[other] + fraction[other, node] for other in others) / len(others)
                if others
                else place[node] + 0.5
            )
        row.sort(key=wish.__getitem__)
        for position, node in enumerate(row):
            place[node] = position

    def _exchange(self, rounds: int) -> None:
        place, fraction = self.place, self.fraction
        for _ in range(rounds):
            better = False
            for row in self.layering.rows:
                for position in range(len(row) - 1):
                    a, b = row[position], row[position + 1]
                    gain = 0
                    for near in (self.up, self.down):
                        if not near[a] or not near[b]:
                            continue
                        ends = [place[other] + fraction[other, b] for other in near[b]]
                        for other in near[a]:
                            at = place[other] + fraction[other, a]
                            for end in ends:
                                gain += (at > end) - (at < end)
                    if gain > 0:
                        row[position], row[position + 1] = b, a
                        place[a], place[b] = position + 1, position
                        better = True
            if not better:
                break

    def spans_are_crossed(self) -> bool:
        """Whether a line would run through a spanning box."""
        rank, place = self.layering.rank, self.place
        by_rank: dict[int, list[tuple[int, int]]] = {}
        for c, d, _ in self.layering.segments:
            by_rank.setdefault(rank[c], []).append((c, d))
        for c, d in self.layering.parts:
            by_rank.setdefault(rank[c], []).append((c, d))
        return any(
            (place[c] - place[a]) * (place[d] - place[b]) < 0
            for a, b in self.layering.parts
            for c, d in by_rank[rank[a]]
        )


class _Placer:
    """Places from left to right: first makes lines straight, which joins boxes into blocks, then moves blocks to
    their lines."""

    def __init__(self, layering: Layering, up: list[list[int]], down: list[list[int]]) -> None:
        self.layering, self.up, self.down = layering, up, down
        self.position = [0] * len(layering.rank)
        for row in layering.rows:
            for position, node in enumerate(row):
                self.position[node] = position

    def place_of_net(self, node: int, net: Net, leaving: bool) -> float:
        """Where on a node a net leaves or enters, from its left side."""
        layering, half = self.layering, self.layering.width[node] / 2
        if leaving:
            return layering.problem.leaves.get((layering.owner.get(node, node), net), half)
        return layering.problem.enters.get((node, net), half)

    def place(self) -> list[float]:
        layering = self.layering
        count = len(layering.rank)
        if not count:
            return []
        self._make_blocks()
        self._constrain()
        at = self._descend(self._spread())
        x = [at[self.block[node]] + self.offset[node] for node in range(count)]
        left = min(x)
        return [value - left for value in x]

    def _priority(self, segment: tuple[int, int, Net]) -> tuple[float, float]:
        a, b, net = segment
        layering = self.layering
        point_a, point_b = layering.is_point(a) and a >= layering.count, layering.is_point(b) and b >= layering.count
        down, up = self.down[a], self.up[b]
        middle = abs(down.index(b) - (len(down) - 1) / 2) + abs(up.index(a) - (len(up) - 1) / 2)
        if point_a and point_b:
            return -_LONG, middle
        enters, leaves = layering.problem.enters, layering.problem.leaves
        weight = _BETWEEN_BOXES * (not point_a and not point_b)
        weight += _ALONE * sum((len(down) == 1, len(up) == 1, (a, net) in leaves, (b, net) in enters))
        return -weight, middle

    def _make_blocks(self) -> None:
        layering, place = self.layering, self.position
        following: dict[int, tuple[int, float]] = {}
        before: dict[int, int] = {}
        taken: list[list[tuple[int, int]]] = [[] for _ in layering.rows]

        def straighten(a: int, b: int, shift: float) -> None:
            if a in following or b in before:
                return
            at, to, row = place[a], place[b], taken[layering.rank[a]]
            here = bisect_left(row, (at, to))  # the others lie in order at both ends: only neighbours can be crossed
            if any((at - p) * (to - q) <= 0 for p, q in row[max(here - 1, 0) : here + 1]):
                return
            row.insert(here, (at, to))
            following[a], before[b] = (b, shift), a

        for a, b in layering.parts:
            straighten(a, b, 0.0)
        for a, b, net in sorted(layering.segments, key=self._priority):
            straighten(a, b, self.place_of_net(a, net, True) - self.place_of_net(b, net, False))
        self.block, self.offset, self.blocks = [0] * len(layering.rank), [0.0] * len(layering.rank), 0
        for row in layering.rows:
            for node in row:
                if node in before:
                    continue
                at, shift = node, 0.0
                while True:
                    self.block[at], self.offset[at] = self.blocks, shift
                    if at not in following:
                        break
                    at, more = following[at]
                    shift += more
                self.blocks += 1

    def _constrain(self) -> None:
        """How far block j must lie to the right of block i, for all neighbours in a row."""
        width, least = self.layering.width, dict[tuple[int, int], float]()
        for row in self.layering.rows:
            for a, b in itertools.pairwise(row):
                gap = STYLE.box_gap if width[a] and width[b] else STYLE.line_gap
                apart = width[a] + gap + self.offset[a] - self.offset[b]
                key = (self.block[a], self.block[b])
                if key[0] != key[1]:
                    least[key] = max(least.get(key, apart), apart)
        self.right: list[list[tuple[int, float]]] = [[] for _ in range(self.blocks)]
        self.left: list[list[tuple[int, float]]] = [[] for _ in range(self.blocks)]
        for (i, j), apart in least.items():
            self.right[i].append((j, apart))
            self.left[j].append((i, apart))

    def _spread(self) -> list[float]:
        """The place of each block half way between as far left and as far right as it can be."""
        waiting = [len(blocks) for blocks in self.left]
        self.topological = [block for block in range(self.blocks) if not waiting[block]]
        for block in self.topological:
            for other, _ in self.right[block]:
                waiting[other] -= 1
                if not waiting[other]:
                    self.topological.append(other)
        low = [0.0] * self.blocks
        for block in self.topological:
            low[block] = max((low[other] + apart for other, apart in self.left[block]), default=0.0)
        high = [max(low, default=0.0)] * self.blocks
        for block in reversed(self.topological):
            high[block] = min((high[other] - apart for other, apart in self.right[block]), default=high[block])
        return [(a + b) / 2 for a, b in zip(low, high, strict=True)]

    def _descend(self, at: list[float]) -> list[float]:
        """Move every block to where its lines pull it, as far as its neighbours allow, until nothing moves."""
        layering = self.layering
        pulls: list[list[tuple[int, float, int]]] = [[] for _ in range(self.blocks)]
        for a, b, net in layering.segments:
            i, j = self.block[a], self.block[b]
            if i == j:
                continue
            shift = self.place_of_net(a, net, True) + self.offset[a] - self.place_of_net(b, net, False) - self.offset[b]
            weight = 1 + (a >= layering.count) + (b >= layering.count)
            pulls[i].append((j, -shift, weight))
            pulls[j].append((i, shift, weight))
        for turn in range(_DESCENTS):
            moved = 0.0
            for block in self.topological if turn % 2 else reversed(self.topological):
                if not pulls[block]:
                    continue
                weight = sum(pull[2] for pull in pulls[block])
                wish = sum((at[other] + shift) * w for other, shift, w in pulls[block]) / weight
                low = max((at[other] + apart for other, apart in self.left[block]), default=-math.inf)
                high = min((at[other] - apart for other, apart in self.right[block]), default=math.inf)
                wish = min(max(wish, low), max(low, high))
                moved = max(moved, abs(wish - at[block]))
                at[block] = wish
            if moved < _STILL:
                break
        return at
