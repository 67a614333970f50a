"""Boxes that follow each other, one line from each to the next -> their places: what layering and routing would find.

Most groups of most models are such chains, or are cut into columns that are; nothing in them needs to be searched for.
"""

from __future__ import annotations

from collections.abc import Callable

from torchatlas.render.layout.layered import Net, Problem
from torchatlas.render.layout.routing import Placed, Point, Route
from torchatlas.render.layout.style import STYLE


def chain(problem: Problem) -> list[tuple[int, int, Net]]:
    """The lines from the first box to the last, if they pass all boxes and there are no others; else none."""
    count = len(problem.sizes)
    if len(problem.edges) != count - 1 or count < 2:
        return []
    leaving = {edge[0]: edge for edge in problem.edges}
    entered = {v for _, v, _ in problem.edges}
    if len(leaving) < count - 1 or len(entered) < count - 1:
        return []
    at = next((node for node in range(count) if node not in entered), -1)
    lines = []
    while (edge := leaving.pop(at, None)) is not None:
        lines.append(edge)
        at = edge[1]
    return lines if len(lines) == count - 1 else []  # else some of them lie in a ring


def place_chain(problem: Problem, lines: list[tuple[int, int, Net]]) -> Placed:
    """All boxes below each other, so that every line is straight."""
    sizes, enters, leaves = problem.sizes, problem.enters, problem.leaves
    shift, x = 0.0, [0.0] * len(sizes)
    out_of: dict[int, float] = {}  # node -> where its line leaves it, from its left side
    into: dict[int, float] = {}
    for u, v, net in lines:
        out_of[u] = leaves.get((u, net), sizes[u][0] / 2)
        into[v] = enters.get((v, net), sizes[v][0] / 2)
        shift += out_of[u] - into[v]
        x[v] = shift
    left = min(x)
    x = [at - left for at in x]
    ports = {*problem.sources, *problem.sinks}
    order = [lines[0][0], *(v for _, v, _ in lines)]
    places: list[Point] = [(0.0, 0.0)] * len(sizes)
    top = 0.0
    for position, node in enumerate(order):
        if position:
            after_port = STYLE.track_to_box if order[position - 1] in ports else STYLE.rank_gap
            top += STYLE.track_to_border if node in ports else after_port
        places[node] = x[node], top
        top += sizes[node][1]

    def routes() -> list[Route]:
        routes = []
        for u, v, net in problem.edges:
            (a, above), (b, below) = places[u], places[v]
            routes.append(Route(net, u, v, [(a + out_of[u], above + sizes[u][1]), (b + into[v], below)]))
        return routes

    width = max(x[node] + sizes[node][0] for node in order)
    return Placed(width, top, places, routes, 0, work=len(lines))


def place_columns(
    problem: Problem, lines: list[tuple[int, int, Net]], column: list[int], routes: Callable[[], list[Route]]
) -> Placed:
    """A chain cut into columns: the line from the last box of each goes up to the first of the next.

    `column` says where each box is, -1 for points on the border. page_columns.py finds the same, and makes the lines.
    """
    sizes, enters, leaves = problem.sizes, problem.enters, problem.leaves
    order = [lines[0][0], *(v for _, v, _ in lines)]
    count = max(column) + 1
    top = STYLE.above_columns + (STYLE.lane if count > 1 else 0.0)
    places: list[Point] = [(0.0, 0.0)] * len(sizes)
    at = 1 if column[order[0]] < 0 else 0
    right = tallest = begin = end = 0.0
    for number in range(count):
        gap = STYLE.gutter + STYLE.lane if number else 0.0
        left = right + gap
        first, shift, y = at, 0.0, 0.0
        xs = []
        if at:  # from the border or from another column
            _, box, net = lines[at - 1]
            xs.append(0.0)
            shift -= enters.get((box, net), sizes[box][0] / 2)
            y = STYLE.track_to_box
        while at < len(order) and column[order[at]] == number:
            if at > first:
                u, v, net = lines[at - 1]
                shift += leaves.get((u, net), sizes[u][0] / 2) - enters.get((v, net), sizes[v][0] / 2)
                y += STYLE.rank_gap
            places[order[at]] = shift, y + top
            xs.append(shift)
            y += sizes[order[at]][1]
            at += 1
        if at < len(order):  # to another column or to the border
            u, _, net = lines[at - 1]
            shift += leaves.get((u, net), sizes[u][0] / 2)
            xs.append(shift)
            y += STYLE.track_to_border
        least, most = min(xs), max(xs)
        right += gap + max(most - least, *(places[box][0] - least + sizes[box][0] for box in order[first:at]))
        for box in order[first:at]:
            places[box] = left + (places[box][0] - least), places[box][1]
        begin = begin if number else left + (0.0 - least)
        end = left + (shift - least)
        tallest = max(tallest, y + (STYLE.below_columns + STYLE.lane if number < count - 1 else 0.0))
    for port in problem.sources:
        places[port] = begin, 0.0
    for port in problem.sinks:
        places[port] = end, top + tallest
    return Placed(right, top + tallest, places, routes, 0, count)
