"""Reading the flat rows of the event stream: order, entries, results, and where iterations end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torchatlas.capturing.recording_functions import Plan
from torchatlas.graph.arguments import exact_text

Target = tuple[int, int, bool]  # a written argument: its place among the inputs, its tensor, whether it is not read


def in_order(rows: list[Any], width: int, missing: tuple[Any, ...]) -> list[Any]:
    """Flat rows by the number they begin with; threads may have written them in another order.

    A thread that goes on after the recording may have drawn a number and not yet written its row: `missing` stands in.
    """
    rows = list(rows)  # it may be writing just now
    if rows[0::width] == list(range(len(rows) // width)):
        return rows
    found = {rows[i]: rows[i + 1 : i + width] for i in range(0, len(rows), width)}
    return [item for number in range(max(found) + 1) for item in (number, *found.get(number, missing))]


def flat_results(results: Any) -> list[int]:
    return [
        number
        for item in results
        if item is not None
        for number in (flat_results(item) if type(item) is list else [item])
    ]


def pattern_of(entries: list[Any]) -> tuple[Any, ...]:
    """What a row's tensor arguments look like, tensors apart: two rows of one pattern share their text."""
    return tuple(
        -1
        if type(entry) is int
        else exact_text(entry)  # 2, 2.0 and True are equal, and not the same
        if entry is None or type(entry) is tuple
        else tuple(len(item) if type(item) is list else item is None for item in entry)
        for entry in entries
    )


def flat_entries(plan: Plan, entries: list[Any], others: Any) -> tuple[list[int], list[Target]]:
    """A row's tensor arguments one by one, and which of them the operator writes."""
    if not plan.readable:
        return list(others[0]), [(index, others[0][index], False) for index in others[2:]]
    numbers: list[int] = []
    targets: list[Target] = []
    hidden = plan.hidden[0] if plan.hidden is not None and others[plan.others.index(plan.hidden[1])] else ()
    for slot, entry in zip(plan.slots, entries, strict=True):
        found = [entry] if type(entry) is int else entry if type(entry) is list else []
        if slot.nested:
            found = [number for part in entry for number in part]
        for number in found:
            if type(number) is int:
                if slot.written or slot.position in hidden:
                    targets.append((len(numbers), number, slot.overwritten))
                numbers.append(number)
    return numbers, targets


def iteration_boundaries(steps: list[tuple[int, int]], end: int) -> list[int]:
    """Positions in the stream where a new iteration begins.

    Optimizers take turns: an iteration is over when the first of them steps again, and it ended right after the
    step before that.
    """
    boundaries = []
    for (ended, _), (_, owner) in pairwise(steps):
        if owner == steps[0][1]:
            boundaries.append(ended)
    last = boundaries[-1] if boundaries else -1
    if steps and steps[-1][0] < end and {owner for at, owner in steps if at > last} == {owner for _, owner in steps}:
        boundaries.append(steps[-1][0])
    return boundaries
