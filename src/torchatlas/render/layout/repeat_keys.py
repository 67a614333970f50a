"""Items of a group -> numbers that are equal for items that may be rounds of one repeat.

How equal depends on who asks: exactly, but for numbers, or of one kind whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import KINDS, ROLES, Array, Operation
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import NodeKind, OperationType, Role
from torchatlas.render.layout.tree import LANES, Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

_FREE_NUMBERS = (OperationType.RANDOM, OperationType.POINTWISE)
_FILLING = frozenset({"full_like", "new_full", "fill", "fill_", "masked_fill", "masked_fill_"})  # with a number
_IS_HELD = np.array([role in (Role.PARAMETER, Role.BUFFER) for role in ROLES])  # by the row of a role


def exact_key(item: Item, index: int) -> int:
    """Equal for equal items. A repeat may be part of a round if its own rounds are equal."""
    if item.repeat > 1 and item.alike_only:
        return -1 - index
    return (item.hash + (item.repeat - 1) * 1_000_003) % (1 << 62)


def kind_keys(tree: Tree, items: list[Item], *, exactly: bool = True) -> Array:
    """Equal for items that differ in sizes and numbers only. Gathered ops must not differ in these either, unless
    `exactly` is False. Inputs and outputs of the program are never equal."""
    columns = tree.graph.columns
    leaf = tree.node[[item.start for item in items]]
    is_op = columns["node_kind"][leaf] == KINDS.index(NodeKind.OP)
    numbers: dict[Hashable, int] = {}
    keys = []
    for index, (item, operation) in enumerate(zip(items, columns["node_operation"][leaf].tolist(), strict=True)):
        key: Hashable = index
        if item.repeat == 1 and item.kind not in ("lane", "iteration") and is_op[index]:
            inside = operation if item.group < 0 else int(tree.alike[item.group])
            key = (item.kind, item.type, item.end - item.start, inside)
            if item.parts is not None and item.group < 0 and exactly:
                key = (*key, item.hash)
        keys.append(numbers.setdefault(key, len(numbers)))
    return np.array(keys, np.int64)


def module_kind_keys(tree: Tree, items: list[Item]) -> Array:
    """Equal for modules that differ in sizes and numbers only."""
    is_module = [item.kind == "module" and item.repeat == 1 for item in items]
    return np.where(is_module, kind_keys(tree, items), -1 - np.arange(len(items)))


def keys_but_for_numbers(tree: Tree, items: list[Item]) -> Array:
    """Equal for items whose ops take and make tensors of the same shapes, and have the same arguments, but for numbers
    of ops that draw at random, work element by element or only make tensors: a probability, a factor, a time.

    Others say what a reader looks for: over how far a convolution is spread, along which axis a sum is taken. The first
    size of what is no parameter, but for ones, may differ: how many tokens an expert gets depends on the data.
    """
    columns, tables = tree.graph.columns, tree.graph.tables
    kinds = kind_keys(tree, items, exactly=False)
    if np.bincount(kinds).max() == 1:
        return kinds
    begin = items[0].start
    nodes = tree.node[begin : items[-1].end]
    operation = columns["node_operation"][nodes]
    free = [row for row in np.unique(operation).tolist() if _has_free_numbers(tables.operations[row])]
    is_given = columns["input_ptr"][nodes + 1] > columns["input_ptr"][nodes]  # the others make tensors of numbers only
    arguments = np.where(np.isin(operation, free) | ~is_given, -1, columns["node_arguments"][nodes])
    each = np.arange(len(nodes) + 1)
    parts = [(each, arguments), (each, operation)]  # what leaves have, and where that of each begins
    for name in ("input", "output"):
        ptr = columns[f"{name}_ptr"].astype(np.int64)
        taken = ptr[nodes + 1] - ptr[nodes]
        first = np.concatenate([[0], np.cumsum(taken)])
        value = columns[f"{name}_value"][np.arange(first[-1]) + np.repeat(ptr[nodes] - first[:-1], taken)]
        is_held = _IS_HELD[columns["value_role"][value]]
        layout, which = np.unique(columns["value_layout"][value] * 2 + is_held, return_inverse=True)
        shapes: dict[Hashable, int] = {}
        rows = ((tables.layouts[row // 2], row % 2) for row in layout.tolist())
        cells = ((row.shape if held else _but_for_first(row.shape), row.dtype) for row, held in rows)
        shape = np.array([shapes.setdefault(cell, len(shapes)) for cell in cells], np.int64)
        parts += [(each, taken), (first, shape[which])]
    numbers: dict[Hashable, int] = {}
    keys = []
    for item, kind in zip(items, kinds.tolist(), strict=True):
        start, stop = item.start - begin, item.stop - begin
        key = (kind, *(cells[at[start] : at[stop]].tobytes() for at, cells in parts))
        keys.append(numbers.setdefault(key, len(numbers)))
    return np.array(keys, np.int64)


def _but_for_first(shape: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """How many sizes there are, and those after the first that is not one."""
    at = next((at for at, size in enumerate(shape) if size != 1), len(shape))
    return len(shape), *shape[at + 1 :]


def _has_free_numbers(operation: Operation) -> bool:
    return operation.type in _FREE_NUMBERS or short_name(operation.name) in _FILLING


def iteration_keys(tree: Tree, items: list[Item]) -> Array:
    """Equal for iterations with the same ops, wired alike, in calls of the same modules; for nothing else."""
    module = np.append(tree.graph.columns["call_module"], -1)[tree.call]
    numbers: dict[Hashable, int] = {}
    keys = []
    for index, item in enumerate(items):
        key: Hashable = index
        if item.kind == "iteration" and item.repeat == 1:
            first, last = np.searchsorted(tree.start, [item.start, item.stop])
            inside = slice(max(item.group + 1, int(first)), int(last))
            lanes = np.where(tree.lane[inside] >= 0, tree.lane[inside] % len(LANES), -1)
            lengths = tree.stop[inside] - tree.start[inside]
            key = (int(tree.alike[item.group]), module[inside].tobytes(), lanes.tobytes(), lengths.tobytes())
        keys.append(numbers.setdefault(key, len(numbers)))
    return np.array(keys, np.int64)
