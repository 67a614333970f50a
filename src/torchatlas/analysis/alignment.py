"""Two graphs -> pairs of corresponding nodes, matched by module and order, or by order alone."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

import numpy as np

from torchatlas.graph import Graph
from torchatlas.graph.columns import PHASES

_LONGEST = 4000  # runs of unequal operations longer than this are paired by position: comparing all takes too long


@dataclass(frozen=True, slots=True)
class Alignment:
    """The nodes of two graphs by id: pairs that correspond, and those without a partner."""

    pairs: list[tuple[int, int]]  # by module and order
    changed: list[tuple[int, int]]  # of the pairs, those that are not alike; in order of the second graph
    removed: list[int]  # only in the first, in order
    added: list[int]  # only in the second, in order


def aligned(before: Graph, after: Graph) -> Alignment:
    """Pair the nodes of two graphs within the same module, phase, call and iteration."""
    return _alignment(_by_place(before), _by_place(after))


def aligned_in_order(before: Graph, after: Graph) -> Alignment:
    """Pair the nodes of two graphs by their order alone: for graphs whose modules have other paths."""
    sides = [sorted((row for rows in _by_place(one).values() for row in rows), key=_id) for one in (before, after)]
    return _alignment({_ANYWHERE: sides[0]}, {_ANYWHERE: sides[1]})


def _alignment(rows_before: dict[Place, list[_Row]], rows_after: dict[Place, list[_Row]]) -> Alignment:
    added, removed, changed, pairs = list[int](), list[int](), list[tuple[int, int]](), list[tuple[int, int]]()
    for place in dict.fromkeys([*rows_before, *rows_after]):
        for old, new in _aligned(rows_before.get(place, []), rows_after.get(place, [])):
            if old is not None and new is not None:
                pairs.append((old.id, new.id))
                if old.alike != new.alike:
                    changed.append((old.id, new.id))
            elif new is not None:
                added.append(new.id)
            elif old is not None:
                removed.append(old.id)
    return Alignment(pairs, sorted(changed, key=lambda pair: pair[1]), sorted(removed), sorted(added))


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    operation: str
    alike: tuple[Any, ...]  # all that makes two operations the same: operation, arguments, layouts


Place = tuple[str, str, int, int]  # module path, phase, call, iteration
_ANYWHERE: Place = ("", "", 0, 0)
_id = operator.attrgetter("id")


def _by_place(graph: Graph) -> dict[Place, list[_Row]]:
    columns, tables, index = graph.columns, graph.tables, graph.index
    path, call = index.path_of_call[columns["node_call"]].tolist(), columns["node_call"].tolist()
    call_index = [*columns["call_index"].tolist(), 0]
    layout = np.append(columns["value_layout"], -1)
    shown = [(one.shape, one.dtype, one.device, one.kind) for one in tables.layouts] + [None]
    values = [[shown[one] for one in layout[columns[f"{side}_value"]].tolist()] for side in ("input", "output")]
    ins, outs = columns["input_ptr"].tolist(), columns["output_ptr"].tolist()
    operations, arguments = columns["node_operation"].tolist(), columns["node_arguments"].tolist()
    rows_by_place: dict[Place, list[_Row]] = {}
    phases, iterations = columns["node_phase"].tolist(), columns["node_iteration"].tolist()
    for node, (phase, iteration) in enumerate(zip(phases, iterations, strict=True)):
        operation = tables.operations[operations[node]].name
        text = tables.arguments[arguments[node]] if arguments[node] >= 0 else ""
        taken = tuple(values[0][ins[node] : ins[node + 1]])
        made = tuple(values[1][outs[node] : outs[node + 1]])
        place = (index.paths[path[node]], str(PHASES[phase]), call_index[call[node]], iteration)
        rows_by_place.setdefault(place, []).append(_Row(node, operation, (operation, text, taken, made)))
    return rows_by_place


def _aligned(old: list[_Row], new: list[_Row]) -> Iterator[tuple[_Row | None, _Row | None]]:
    """Pairs of rows in order; None for the partner of a row that has none."""
    for _, low, high, first, last in _blocks([row.alike for row in old], [row.alike for row in new]):
        left, right = old[low:high], new[first:last]
        if len(left) == len(right) and all(a.alike == b.alike for a, b in zip(left, right, strict=True)):
            yield from zip(left, right, strict=True)
            continue
        names = [row.operation for row in left], [row.operation for row in right]
        for tag, begin, end, start, stop in _blocks(*names):  # the same operation, other arguments or shapes
            if tag == "equal":
                yield from zip(left[begin:end], right[start:stop], strict=True)
            else:
                yield from ((row, None) for row in left[begin:end])
                yield from ((None, row) for row in right[start:stop])


def _blocks(old: list[Any], new: list[Any]) -> list[tuple[str, int, int, int, int]]:
    """difflib's opcodes, after the equal ends are taken off: most graphs differ in a few places."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    low, high, first, last = head, len(old) - tail, head, len(new) - tail
    blocks = [("equal", 0, head, 0, head)] if head else []
    if max(high - low, last - first) > _LONGEST:
        blocks += _by_position(old, new, low, high, first, last)
    elif high > low or last > first:
        matcher = SequenceMatcher(None, old[low:high], new[first:last], autojunk=False)
        blocks += [(tag, low + a, low + b, first + c, first + d) for tag, a, b, c, d in matcher.get_opcodes()]
    return blocks + ([("equal", high, len(old), last, len(new))] if tail else [])


def _by_position(
    old: list[Any], new: list[Any], low: int, high: int, first: int, last: int
) -> Iterator[tuple[str, int, int, int, int]]:
    shared = min(high - low, last - first)
    runs = groupby(range(shared), lambda at: old[low + at] == new[first + at])
    for equal, positions in runs:
        spots = list(positions)
        begin, end = spots[0], spots[-1] + 1
        yield "equal" if equal else "replace", low + begin, low + end, first + begin, first + end
    if high - low > shared or last - first > shared:
        yield "replace", low + shared, high, first + shared, last
