"""Item -> what is written on its box: a title, a line below it, and the shape of a tensor."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from functools import cached_property

import numpy as np

from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import NodeKind, OperationType, Phase, Role
from torchatlas.render.layout.outline import OUTPUTS, Item, Outline
from torchatlas.units import format_count

# What the dispatcher adds to the name of an op to say which kernel it is.
_KERNEL = re.compile(r"^_+|_+$|^native_|^_native_|_for_cpu$|_default$")
_ATTENTION = re.compile(r"scaled_dot_product_\w*?_?attention\w*")


_GRADIENT = ROLES.index(Role.GRADIENT)


class Labels:
    """The words of a picture."""

    def __init__(self, outline: Outline) -> None:
        self.outline, self.tree, self.graph = outline, outline.tree, outline.tree.graph

    def title(self, item: Item) -> str:
        if item.type:
            return item.type
        if item.kind == "leaf":
            return self._operation(item.start)
        return {"functional": "functional ops", "loop": "loop body", "segment": "ops"}.get(item.kind, item.name)

    def subtitle(self, item: Item) -> str:
        """Name, size and shape: what tells boxes of one title apart."""
        if item.kind == "leaf":
            if self.outline.is_marker(item):
                return self.shape(item.start * OUTPUTS)
            return " · ".join(part for part in (item.name, self._gradient(item) or self._detail(item)) if part)
        if item.kind in ("functional", "segment"):
            return f"{self.operations(item):,} ops · {self._main_operations(item)}"
        name = "" if item.kind == "lane" else item.name
        return " · ".join(part for part in (name, f"{self.operations(item):,} ops", self._parameters(item)) if part)

    def tooltip(self, item: Item) -> str:
        """What a pointer that rests on a box is told."""
        parts = [self.title(item), self.subtitle(item)]
        columns, tables = self.graph.columns, self.graph.tables
        if item.call >= 0:
            parts.append(tables.modules[columns["call_module"][item.call]].path)
        if item.is_leaf and not self.outline.is_marker(item):
            node = self.tree.node[item.start]
            parts.append(tables.operations[columns["node_operation"][node]].name)
            if columns["node_source"][node] >= 0:
                source = tables.sources[columns["node_source"][node]]
                parts.append(f"line {source.line} in {source.function}: {source.text}")
        if item.repeat > 1:
            parts.append(f"{item.repeat} times" + (", sizes differ" if item.alike_only else ""))
        return "\n".join(part for part in dict.fromkeys(parts) if part)

    def heading(self, item: Item) -> str:
        """What stands beside the title of an open group."""
        if item.kind == "lane":
            return f"{self.operations(item):,} ops"
        sizes = "sizes differ" if item.alike_only else ""
        return " · ".join(part for part in (item.name, self._parameters(item), sizes) if part)

    def operations(self, item: Item) -> int:
        """How many ops there are in it but for views and bookkeeping, which no box is for."""
        return int(self._ops_before[item.stop] - self._ops_before[item.start])

    @cached_property
    def _ops_before(self) -> Array:
        """How many ops come before each leaf, inputs and outputs left out."""
        is_op = self.graph.columns["node_kind"][self.tree.node] == KINDS.index(NodeKind.OP)
        return np.concatenate([[0], np.cumsum(is_op)])

    def shape(self, tensor: int) -> str:
        """The shape of a tensor as it was made."""
        leaf, output = divmod(tensor, OUTPUTS)
        columns = self.graph.columns
        node = self.tree.node[leaf]
        first, last = columns["output_ptr"][node], columns["output_ptr"][node + 1]
        if first + output >= last:
            return ""
        value = columns["output_value"][first + output]
        if value < 0:  # it returned None there
            return ""
        layout = self.graph.tables.layouts[columns["value_layout"][value]]
        return "×".join(map(str, layout.shape)) if layout.shape else "scalar"

    def new_shape(self, tensor: int) -> str:
        """The shape of a tensor where it is news: empty if it is that of the first thing its maker reads."""
        shape, leaf = self.shape(tensor), tensor // OUTPUTS
        first, last = self.tree.first_edge[leaf], self.tree.first_edge[leaf + 1]
        if first == last:
            return shape
        before = int(self.tree.source[first]) * OUTPUTS + int(self.tree.output[first])
        return "" if shape == self.shape(before) else shape

    def _operation(self, leaf: int) -> str:
        node = self.tree.node[leaf]
        columns = self.graph.columns
        if columns["node_kind"][node] != KINDS.index(NodeKind.OP):
            name = columns["node_name"][node]
            return self.graph.tables.names[name] if name >= 0 else "input"
        name = short_name(self.graph.tables.operations[columns["node_operation"][node]].name).rpartition("::")[2]
        if _ATTENTION.search(name):
            return "attention" + (" backward" if name.endswith("backward") else "")
        while (shorter := _KERNEL.sub("", name)) != name and shorter:
            name = shorter
        return name

    def _main_operations(self, item: Item) -> str:
        """The two or three commonest ops in it."""
        columns = self.graph.columns
        found = Counter(columns["node_operation"][self.tree.node[item.start : item.stop]].tolist())
        names = dict.fromkeys(
            _KERNEL.sub("", short_name(self.graph.tables.operations[operation].name))
            for operation, _ in found.most_common(4)
        )
        return ", ".join(list(names)[:3]) + (" …" if len(found) > 3 else "")

    def _parameters(self, item: Item) -> str:
        count = self.parameters(item)
        return format_count(count) if count else ""

    def parameters(self, item: Item) -> int:
        """Elements, tied ones once; 0 for what is no module."""
        if item.call < 0:
            return 0
        path = self.graph.tables.modules[self.graph.columns["call_module"][item.call]].path
        return self.parameters_of(path)

    def parameters_of(self, path: str) -> int:
        """The same by path; of everything for the empty one."""
        (names, _), sums = self._parameter_rows, self._sums
        if not path:
            return int(sums[-1])
        first, last = bisect_left(names, path + "."), bisect_left(names, path + "/")  # the character after the dot
        return int(sums[last] - sums[first])

    @cached_property
    def _parameter_rows(self) -> tuple[list[str], Array]:
        """The names of all values that are parameters, sorted, and the values."""
        columns, names = self.graph.columns, self.graph.tables.names
        rows = np.flatnonzero(columns["value_role"] == ROLES.index(Role.PARAMETER))
        found = [names[name] if name >= 0 else "" for name in columns["value_parameter"][rows].tolist()]
        order = sorted(range(len(found)), key=found.__getitem__)  # no pairs: 30,000 of them wake the garbage collector
        return [found[row] for row in order], rows[np.array(order, np.int64)]

    @cached_property
    def _sums(self) -> Array:
        """How many elements the parameters before each have, in order of names; tied ones once."""
        columns, (_, rows) = self.graph.columns, self._parameter_rows
        sizes = [math.prod(size for size in row.shape if isinstance(size, int)) for row in self.graph.tables.layouts]
        elements = np.array(sizes or [0], np.int64)[columns["value_layout"][rows]]
        whole = np.flatnonzero(columns["value_view_of"][rows] < 0)
        by_value = whole[np.argsort(rows[whole], kind="stable")]
        _, first = np.unique(columns["value_storage"][rows[by_value]], return_index=True)
        counted = np.zeros(len(rows), bool)
        counted[by_value[first]] = True
        return np.concatenate([[0], np.cumsum(np.where(counted, elements, 0))])

    def _detail(self, item: Item) -> str:
        """What a layer turns into what: 64→128, 3×3. What accumulates a gradient: for whom."""
        kind = self.outline.operation_type(item)
        if kind == OperationType.ACCUMULATE:
            return self._leaf(item.start)
        shape = self._weight(item)
        title = self.title(item).lower()
        if shape is None:
            return self._features(item.start) if kind == OperationType.MATMUL else ""
        if len(shape) >= 3 and kind == OperationType.CONVOLUTION:
            into, out = (shape[0], shape[1]) if "transpose" in title else (shape[1], shape[0])
            return f"{into}→{out}, " + "×".join(map(str, shape[2:]))
        if kind == OperationType.EMBEDDING:
            return "×".join(map(str, shape))
        if len(shape) == 2 and kind == OperationType.MATMUL:
            return self._features(item.start) or f"{shape[1]}→{shape[0]}"
        return str(shape[0]) if len(shape) == 1 else ""

    def _gradient(self, item: Item) -> str:
        """Which parameter an op of backward makes the gradient of."""
        columns, node = self.graph.columns, self.tree.node[item.start]
        if columns["node_phase"][node] != PHASES.index(Phase.BACKWARD):
            return ""
        values = columns["output_value"][columns["output_ptr"][node] : columns["output_ptr"][node + 1]]
        values = values[values >= 0]
        roles, names = columns["value_role"][values], columns["value_parameter"][values]
        made = [
            self.graph.tables.names[name]
            for role, name in zip(roles, names, strict=True)
            if role == _GRADIENT and name >= 0
        ]
        return "grad of " + ", ".join(name.rpartition(".")[2] for name in made) if made else ""

    def _leaf(self, leaf: int) -> str:
        columns, node = self.graph.columns, self.tree.node[leaf]
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        own = [value for value in values if columns["value_producer"][value] < 0]
        if not own:
            return ""
        layout = self.graph.tables.layouts[columns["value_layout"][own[0]]]
        name = columns["value_parameter"][own[0]]
        shape = "×".join(map(str, layout.shape)) or "scalar"
        return f"{self.graph.tables.names[name]} · {shape}" if name >= 0 else shape

    def _features(self, leaf: int) -> str:
        """The last sizes of what a product takes and makes."""
        columns, node = self.graph.columns, self.tree.node[leaf]
        rank = -1
        shapes = []
        for name, place in (("input", None), ("output", 0)):
            first, last = columns[f"{name}_ptr"][node], columns[f"{name}_ptr"][node + 1]
            values = columns[f"{name}_value"][first:last]
            rows = [self.graph.tables.layouts[columns["value_layout"][value]].shape for value in values]
            rows = [row for row in rows if len(row) >= 2]
            shapes.append(rows[place if place is not None else 0] if rows else ())
        if not all(shapes) or self._operation(leaf) not in ("addmm", "mm", "linear", "baddbmm"):
            return ""
        return f"{shapes[0][rank]}→{shapes[1][rank]}"

    def _weight(self, item: Item) -> tuple[int | str, ...] | None:
        if item.call < 0:
            return None
        path = self.graph.tables.modules[self.graph.columns["call_module"][item.call]].path
        return self._shape_of(f"{path}.weight" if path else "weight")

    def _shape_of(self, name: str) -> tuple[int | str, ...] | None:
        """The shape of a parameter, as the program was given it."""
        columns, (names, rows) = self.graph.columns, self._parameter_rows
        for at in range(bisect_left(names, name), bisect_right(names, name)):
            if columns["value_producer"][rows[at]] < 0:
                shape: tuple[int | str, ...] = self.graph.tables.layouts[columns["value_layout"][rows[at]]].shape
                return shape
        return None
