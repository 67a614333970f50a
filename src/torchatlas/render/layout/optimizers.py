"""The step of an optimizer -> items: by parameter group, and in each the update of one parameter, as often as there are
parameters. Ops for many parameters at once, as foreach and fused kernels are, stay ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import ROLES, Array
from torchatlas.graph.nouns import Role
from torchatlas.graph.subgraph import members
from torchatlas.render.layout import folding
from torchatlas.render.layout.tree import Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

_PARAMETER = ROLES.index(Role.PARAMETER)
_NONE, _MANY = -1, -2  # in the place of a parameter: an op that has none, or several


def is_step(tree: Tree, item: Item) -> bool:
    """Whether an item is the step of an optimizer."""
    row = tree.graph.columns["call_module"].item(item.call) if item.call >= 0 else -1
    return row >= 0 and tree.graph.tables.modules[row].kind == "optimizer"


def items_of_step(tree: Tree, step: Item, leaves: list[Item]) -> list[Item]:
    """The ops of a step as one item for each parameter group; of the only group its items."""
    group_of = _group_of_parameter(tree, step)
    parameters, groups = _parameters(tree, step, group_of)
    items: list[Item] = []
    cuts = np.flatnonzero(np.diff(groups)) + 1
    for part in np.split(np.arange(len(leaves)), cuts):
        first, last = int(part[0]), int(part[-1]) + 1
        rounds = _rounds(tree, leaves[first:last], parameters[first:last])
        if len(cuts) and groups[first] >= 0:
            rounds = [_gathered("group", rounds, f"group {int(groups[first]):,}")]
        items += rounds
    return items


def parameter_count(tree: Tree, item: Item) -> int:
    """How many parameters the ops of an item, in all rounds, update."""
    columns, nodes = tree.graph.columns, tree.node[item.start : item.end]
    values = columns["output_value"][members(columns["output_ptr"], nodes)]
    written = columns["input_value"][members(columns["input_ptr"], nodes)]
    written = written[columns["input_written"][members(columns["input_ptr"], nodes)] > 0]
    values = np.concatenate([values, written])
    values = values[values >= 0]
    return len(np.unique(columns["value_storage"][values[columns["value_role"][values] == _PARAMETER]]))


def _group_of_parameter(tree: Tree, step: Item) -> dict[int, int]:
    """Row of a parameter's name -> the number of its group, for an optimizer with several groups."""
    graph = tree.graph
    path = graph.tables.modules[graph.columns["call_module"].item(step.call)].path
    groups = graph.metadata.get("parameter_groups", {}).get(path, [])
    number = {name: group for group, names in enumerate(groups) for name in names}
    return {row: number[name] for row, name in enumerate(graph.tables.names) if name in number} if number else {}


def _parameters(tree: Tree, step: Item, group_of: dict[int, int]) -> tuple[Array, Array]:
    """For each op of a step the parameter that it is for, and the group of that.

    Values have the name of the parameter that they are, or are the gradient or state of. What has no name, as the state
    of an optimizer that is gone, was made for the parameter of what it was made of, of what reads it, or of the ops
    before and after it.
    """
    columns = tree.graph.columns
    nodes = tree.node[step.start : step.stop]
    least, most = np.full(len(nodes), np.iinfo(np.int64).max), np.full(len(nodes), _NONE)
    for side in ("input", "output"):
        ptr = columns[f"{side}_ptr"]
        values = columns[f"{side}_value"][members(ptr, nodes)]
        rows = np.append(columns["value_parameter"], _NONE)[values]
        leaf = np.repeat(np.arange(len(nodes)), ptr[nodes + 1] - ptr[nodes])
        np.maximum.at(most, leaf, rows)
        np.minimum.at(least, leaf[rows >= 0], rows[rows >= 0])
    parameters: Array = np.where((most >= 0) & (least < most), _MANY, most)
    groups = np.array([group_of.get(row, -1) for row in most.tolist()], np.int64)
    _spread(tree, step, parameters, groups, to_readers=True)
    _spread(tree, step, parameters, groups, to_readers=False)
    _fill(parameters, groups)
    _spread(tree, step, parameters, groups, to_readers=False)
    for at in np.flatnonzero(groups < 0).tolist() if group_of else ():
        groups[at] = groups[at - 1] if at else -1
    return parameters, groups


def _spread(tree: Tree, step: Item, parameters: Array, groups: Array, *, to_readers: bool) -> None:
    """Give ops without a parameter the parameter of what they read, in order; else of what reads them, from the last
    on."""
    without: list[int] = np.flatnonzero(parameters == _NONE).tolist()
    for at in without if to_readers else reversed(without):
        leaf = step.start + at
        if to_readers:
            others = tree.source[tree.first_edge[leaf] : tree.first_edge[leaf + 1]] - step.start
        else:
            others = tree.target[tree.by_source[tree.first_read[leaf] : tree.first_read[leaf + 1]]] - step.start
        others = others[(others >= 0) & (others < len(parameters))]
        others = others[parameters[others] != _NONE]
        if len(others):
            candidates = np.unique(parameters[others])
            parameters[at] = candidates[0] if len(candidates) == 1 else _MANY
            groups[at] = groups[others].max()


def _fill(parameters: Array, groups: Array) -> None:
    """Give ops without a parameter the parameter of the ops around them, if these agree."""
    places = np.arange(len(parameters))
    known = parameters != _NONE
    before = np.maximum.accumulate(np.where(known, places, -1))
    after = np.minimum.accumulate(np.where(known, places, len(places))[::-1])[::-1]
    inside = ~known & (before >= 0) & (after < len(places))
    inside[inside] = parameters[before[inside]] == parameters[after[inside]]
    inside[inside] = parameters[before[inside]] >= 0
    parameters[inside], groups[inside] = parameters[before[inside]], groups[before[inside]]


def _rounds(tree: Tree, leaves: list[Item], parameters: Array) -> list[Item]:
    """Ops in a row for one parameter as one item, and such items in a row with the same ops as a repeat."""
    rounds: list[Item] = []
    cuts = np.flatnonzero((np.diff(parameters) != 0) | (parameters[1:] < 0)) + 1
    for part in np.split(np.arange(len(leaves)), cuts):
        ops = leaves[int(part[0]) : int(part[-1]) + 1]
        rounds.append(ops[0] if len(ops) == 1 else _gathered("update", ops))
    keys = [tree.graph.columns["node_operation"][tree.node[item.start : item.stop]].tobytes() for item in rounds]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    single = parameters[[item.start - leaves[0].start for item in rounds]] < 0
    numbered = np.where(single, -1 - np.arange(len(rounds)), [numbers[key] for key in keys])
    folded = folding.side_by_side_folded(tree, rounds, numbered)
    while apart := [item for item in folded if item.repeat > 1 and not _read_by_same(tree, item, folded)]:
        folded = [piece for item in folded for piece in (_unfolded(item, rounds) if item is apart[0] else [item])]
    return folded


def _read_by_same(tree: Tree, repeat: Item, items: list[Item]) -> bool:
    """Whether the same items read every round; others may read the last one as well.

    Folding also accepts rounds that each have a reader of their own: here such readers are separate boxes.
    """
    size = repeat.stop - repeat.start
    edges = tree.by_source[tree.first_read[repeat.start] : tree.first_read[repeat.end]]
    source, target = tree.source[edges], tree.target[edges]
    inside = (target >= repeat.end) & (target < items[-1].end)
    source, target, output = source[inside] - repeat.start, target[inside], tree.output[edges][inside]
    reader = np.searchsorted([item.start for item in items], target, side="right")
    rows: list[set[tuple[int, int, int]]] = [set() for _ in range(repeat.repeat)]
    for at, number, reading_item in zip(source.tolist(), output.tolist(), reader.tolist(), strict=True):
        rows[at // size].add((at % size, number, reading_item))
    return all(row == rows[0] for row in rows[:-1]) and rows[0] <= rows[-1]


def _unfolded(repeat: Item, rounds: list[Item]) -> list[Item]:
    start, end = repeat.start, repeat.end
    repeat.repeat, repeat.alike_only = 1, False  # it may be the first of its own rounds
    return [item for item in rounds if start <= item.start < end]


def _gathered(kind: str, parts: list[Item], name: str = "") -> Item:
    from torchatlas.render.layout.outline import gathered

    item = gathered(kind, parts)
    item.name = name
    return item
