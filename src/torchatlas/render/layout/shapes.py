"""Where a tensor is drawn -> its shape there: as it was made, and as a box gets it.

Views have no boxes: a line may begin at one shape and end at another.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchatlas.escapes import clean
from torchatlas.graph.columns import EDGE_KINDS, Array
from torchatlas.graph.nouns import EdgeKind
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.wiring import OUTPUTS, first_of_repeats


class Shapes:
    """Shapes of the tensors of an outline, as text: 2×16×10."""

    def __init__(self, outline: Outline) -> None:
        self.outline, self.tree, self.graph = outline, outline.tree, outline.tree.graph
        self._into: dict[Item, Array] = {}
        self._repeats: dict[Item, list[list[Item]]] = {}

    def made(self, tensor: int) -> str:
        """The shape of a tensor as it was made."""
        leaf, output = divmod(tensor, OUTPUTS)
        columns = self.graph.columns
        node = self.tree.node[leaf]
        first, last = columns["output_ptr"][node], columns["output_ptr"][node + 1]
        if first + output >= last:
            return ""
        value = columns["output_value"][first + output]
        return self.of_value(value) if value >= 0 else ""  # else it returned None there

    def arriving(self, group: Item, item: Item, tensor: int) -> str:
        """The shape of a tensor where it enters an item of a group: after the views on its way, before those inside.

        Where several parts of it enter that differ, the shape of the whole as it left the module that made it. Empty
        where the line stands for the tensors of several rounds whose shapes differ.
        """
        tree = self.tree
        first = int(tree.first_edge[item.start])
        rows = first + np.flatnonzero(self._tensors_into(group, item) == tensor)
        if self._differ(item, rows):
            return ""
        rows = rows[tree.target[rows] < item.stop]
        if item.kind in ("leaf", "module"):
            call = _outermost_call(item, self.graph.columns["call_parent"])
            shapes = {self.of_value(self._at_border(value, call)) for value in set(tree.value[rows].tolist())}
        else:
            shapes = {
                self.of_value(self._at_border(int(tree.value[row]), self._call_within(item, row)))
                for row in rows.tolist()
            }
        if len(shapes) > 1:
            outer = outer_call(item)
            shapes = {self.of_value(self._as_returned(value, outer)) for value in set(tree.value[rows].tolist())}
        return shapes.pop() if len(shapes) == 1 else self.made(tensor)

    def read(self, tensor: int) -> str:
        """The shape of the first thing that the maker of a tensor reads; empty if it reads none."""
        leaf = tensor // OUTPUTS
        first, last = self.tree.first_edge[leaf], self.tree.first_edge[leaf + 1]
        if first == last:
            return ""
        return self.of_value(self._at_border(int(self.tree.value[first]), int(self._only_call[leaf])))

    def of_value(self, value: int) -> str:
        shape = self.graph.tables.layouts[self.graph.columns["value_layout"][value]].shape
        return clean("×".join(map(str, shape))) or "scalar"

    def _tensors_into(self, group: Item, item: Item) -> Array:
        """The tensors that the ops of an item read, in order of its edges, as the group around it numbers them."""
        tensors = self._into.get(item)
        if tensors is None:
            tree = self.tree
            last = item.end if item.alike_only else item.stop  # else all rounds are the first one
            edges = slice(int(tree.first_edge[item.start]), int(tree.first_edge[last]))
            source = tree.source[edges]
            for repeats in self._repeats_around(group):
                source = first_of_repeats(source, repeats)
            tensors = self._into[item] = source * OUTPUTS + np.minimum(tree.output[edges], OUTPUTS - 1)
        return tensors

    def _repeats_around(self, group: Item) -> list[list[Item]]:
        """The repeats in a group and in those around it, from the outside in; of groups that have any."""
        repeats = self._repeats.get(group)
        if repeats is None:
            own = [item for item in group.parts or () if item.repeat > 1]
            repeats = [*(self._repeats_around(group.parent) if group.parent else ()), *([own] if own else ())]
            self._repeats[group] = repeats
        return repeats

    def _differ(self, item: Item, rows: Array) -> bool:
        """Whether edges into an item that are one line come from, or go to, rounds that differ in its shape."""
        tree = self.tree
        made = set((tree.source[rows] * OUTPUTS + np.minimum(tree.output[rows], OUTPUTS - 1)).tolist())
        if len(made) > 1 and len({self.made(tensor) for tensor in made}) > 1:
            return True
        first, every = (set(tree.value[some].tolist()) for some in (rows[tree.target[rows] < item.stop], rows))
        return len(every) > len(first) and len({*map(self.of_value, every)} - {*map(self.of_value, first)}) > 0

    def _call_within(self, item: Item, row: int) -> int:
        """The module call that an edge leads into, in a group that is no module itself; -1 for a single op."""
        leaf = int(self.tree.target[row])
        while item.kind not in ("leaf", "module"):
            parts = self.outline.children(item)
            leaf = int(first_of_repeats(np.array([leaf]), parts)[0])
            item = next(part for part in parts if part.start <= leaf < part.stop)
        return _outermost_call(item, self.graph.columns["call_parent"])

    def _at_border(self, value: int, call: int) -> int:
        """Follow a value back through the views within a call, to what came into that call."""
        columns = self.graph.columns
        while True:
            node = int(columns["value_producer"][value])
            if node < 0 or self.tree.is_leaf[node] or self._handed[node] < 0:
                return value
            if not self._is_within(node, call):
                return value
            value = int(self._handed[node])

    def _as_returned(self, value: int, outer: int) -> int:
        """Follow a value back through the views in a call, to what left the outermost module there that made it: the
        product in a Linear has fewer dimensions than anybody sees."""
        columns, around = self.graph.columns, {-1}
        while outer >= 0:
            around.add(outer)
            outer = int(columns["call_parent"][outer])
        node = int(columns["value_producer"][self._before_views(value, -1)])
        border, call = (
            -1,
            int(columns["node_call"][node]) if node >= 0 else -1,
        )
        while call not in around:
            border, call = call, int(columns["call_parent"][call])
        return self._before_views(value, border)

    def _before_views(self, value: int, call: int) -> int:
        """Follow a value back through the views outside of a call. torch writes a matmul as a product of fewer
        dimensions and a view that no program can ask for: that view is part of the matmul."""
        columns, operations = self.graph.columns, self.graph.tables.operations
        while True:
            node = int(columns["value_producer"][value])
            if node < 0 or self.tree.is_leaf[node] or self._handed[node] < 0 or self._is_within(node, call):
                return value
            if operations[columns["node_operation"][node]].name == "aten._unsafe_view.default":
                return value
            value = int(self._handed[node])

    def _is_within(self, node: int, call: int) -> bool:
        """Whether an op ran in a call, or in one that it made."""
        inner = int(self.graph.columns["node_call"][node])
        while inner >= 0 and inner != call:
            inner = int(self.graph.columns["call_parent"][inner])
        return inner >= 0

    @cached_property
    def _handed(self) -> Array:
        """Node -> what it takes from another, if it has no box and so hands it on; else -1."""
        columns = self.graph.columns
        data = (columns["edge_kind"] == EDGE_KINDS.index(EdgeKind.DATA)) & (columns["edge_value"] >= 0)
        handed = np.full(len(self.graph), -1, np.int64)
        handed[columns["edge_target"][data]] = columns["edge_value"][data]
        return np.where(self.tree.is_leaf | (self.tree.leaf_of_node < 0), -1, handed)

    @cached_property
    def _only_call(self) -> Array:
        """Leaf -> the outermost module call that runs no other; -1 for none. The two share a box."""
        tree = self.tree
        calls = np.full(len(tree.node), -1, np.int64)
        alone = np.flatnonzero((tree.stop - tree.start == 1) & (tree.call >= 0))[::-1]  # outer ones are written last
        calls[tree.start[alone]] = tree.call[alone]
        return calls


def outer_call(item: Item) -> int:
    """The module call that an item is drawn in; -1 for none."""
    above = item.parent
    while above is not None and above.call < 0:
        above = above.parent
    return above.call if above is not None else -1


def _outermost_call(item: Item, parents: Array) -> int:
    """A box may stand for a module and for those around it that do nothing else: the call of the outermost."""
    call, outer = item.call, outer_call(item)
    while call >= 0 and int(parents[call]) not in (outer, -1):
        call = int(parents[call])
    return call
