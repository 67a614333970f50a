"""Units -> groups, by operation, by module, or as the user asks. Fusion, the fourth way, has a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torchatlas.errors import InvalidInputError, NodeNotFoundError
from torchatlas.graph.columns import Array
from torchatlas.partition.acyclic_groups import CircleError, Groups, sorted_groups
from torchatlas.partition.traffic import Ledger
from torchatlas.partition.unit_graph import Units
from torchatlas.registry import did_you_mean


def by_operation(units: Units, ledger: Ledger) -> tuple[list[list[int]], list[bool]]:
    """One group per operation, and which of the groups are only glue: they belong to no operation.

    Views and other ops that run nothing are joined with what they are a view of. In torch.fx's graphs an operation is a
    call of a module or arithmetic between tensors, as in `out += identity`, and a convolution or product called as a
    function. Every other function (relu, flatten, a user's own) is joined with the one operation it follows, or with
    the one that follows it. What joins several operations for several others, a `cat` between two Inception blocks, is
    glue.
    """
    groups = Groups(units)
    counts = [bool(units.is_head[unit]) and not _runs_nothing(units, ledger, unit) for unit in range(len(units))]
    holds_operation = list(counts)  # by group

    def join(one: int | None, other: int) -> None:
        joined = None if one is None else groups.join(one, other)
        if joined is not None and one is not None:
            holds_operation[joined] = holds_operation[one] or holds_operation[other]

    for unit in range(len(units)):  # backward, to what it follows
        if not counts[unit]:
            join(groups.only_producer(unit), groups.group[unit])
    for unit in range(len(units) - 1, -1, -1):  # forward, to what follows it
        group = groups.group[unit]
        if not holds_operation[group]:
            join(groups.only_user(unit), group)
    ordered = groups.in_order()
    return ordered, [not any(counts[unit] for unit in group) for group in ordered]


def _runs_nothing(units: Units, ledger: Ledger, unit: int) -> bool:
    """Whether a unit of a graph is a view. A module that runs nothing, a Dropout, is a module all the same."""
    ops = units.ops[unit]
    return bool(ops) and "fx_nodes" not in units.graph.metadata and all(ledger.is_idle[op] for op in ops)


def by_module(units: Units, depth: int) -> list[list[int]]:
    """One group per call of a module `depth` levels down, and one per unbroken run of operations of a module above.

    Each group is a run of operations that follow each other, so groups cannot depend on each other in a circle.
    """
    calls = _calls_at(units, depth)
    groups: list[list[int]] = []
    last: tuple[int, int] | None = None
    for unit, ops in enumerate(units.ops):
        columns = units.graph.columns
        key = (int(calls[columns["node_call"][ops[0]]]), int(columns["node_phase"][ops[0]])) if ops else last
        if groups and key == last:
            groups[-1].append(unit)
        else:
            groups.append([unit])
        last = key
    return groups


def _calls_at(units: Units, depth: int) -> Array:
    """Per module call (and, last, for none) the enclosing call that is at most `depth` levels down."""
    columns, tables = units.graph.columns, units.graph.tables
    parent = columns["call_parent"].tolist()
    levels = [len(tables.modules[module].path.split(".")) for module in columns["call_module"].tolist()]
    enclosing = list(range(len(parent)))
    for call, above in enumerate(parent):
        if levels[call] > depth and above >= 0:
            enclosing[call] = enclosing[above]
    return np.array([*enclosing, -1], np.int64)


def as_asked(
    units: Units, groups: Mapping[str, Iterable[str]] | Sequence[Iterable[str]]
) -> tuple[list[list[int]], dict[int, str]]:
    """The user's own groups, by node names; every other unit is a group of its own. Also the names of the groups."""
    named = groups.items() if isinstance(groups, Mapping) else ((f"group {n}", names) for n, names in enumerate(groups))
    number = {name: unit for unit, name in enumerate(units.names)}
    mine: dict[int, str] = {}
    asked: dict[str, list[int]] = {}
    for group, names in named:
        if not isinstance(names, Iterable):
            raise InvalidInputError(f"groups: {group!r} is {names!r}; a group is the names of its nodes, in a list.")
        for name in [names] if isinstance(names, str) else names:
            if name not in number:
                raise NodeNotFoundError(f"groups: no node is named {name!r}{did_you_mean(name, number)}")
            unit = number[name]
            if mine.setdefault(unit, group) != group:
                raise InvalidInputError(
                    f"groups: {name!r} is in {mine[unit]!r} and in {group!r}; a node has one group."
                )
            asked.setdefault(group, []).append(unit)
    rest = [[unit] for unit in range(len(units)) if unit not in mine]
    try:
        ordered = sorted_groups(units, [*(list(dict.fromkeys(members)) for members in asked.values()), *rest])
    except CircleError as error:
        raise InvalidInputError(_circle(units, error.groups, mine)) from None
    return ordered, mine


def _circle(units: Units, groups: list[list[int]], mine: dict[int, str]) -> str:
    """One circle among groups that depend on each other, in words."""
    of_unit = {unit: at for at, group in enumerate(groups) for unit in group}
    at, waits_for = 0, dict[int, tuple[int, int]]()
    while at not in waits_for:  # each group waits for another of them, so going back must reach one twice
        waits_for[at] = next((b, unit) for unit in groups[at] for b in units.before[unit] if of_unit.get(b, at) != at)
        at = of_unit[waits_for[at][0]]
    steps, start = [], at
    while True:
        before, unit = waits_for[at]
        label = mine.get(unit, units.names[unit])
        steps.append(f"{label!r} takes {units.names[before]!r} for {units.names[unit]!r}")
        at = of_unit[before]
        if at == start:
            break
    return (
        f"The groups depend on each other in a circle: {'; '.join(steps)}, so none can run first. "
        "Put the nodes between them into the same group, or divide one of them."
    )
