"""Item -> what is written on its box: a title, a line below it, and the shape of a tensor."""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from torchatlas.graph.arguments import TensorRef, decode
from torchatlas.graph.attributes import arguments_by_name
from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import NodeKind, OperationType, Phase, Role
from torchatlas.graph.select import members
from torchatlas.render.fonts import clipped, ending, shortened, text_width
from torchatlas.render.layout.folding import hands_on
from torchatlas.render.layout.outline import OUTPUTS, Item, Outline
from torchatlas.render.layout.shapes import Shapes, outer_call
from torchatlas.tables import clean
from torchatlas.units import format_count

# What the dispatcher adds to the name of an op to say which kernel it is.
_KERNEL = re.compile(r"^_+|_+$|^native_|^_native_|_for_cpu$|_default$")
_ATTENTION = re.compile(r"scaled_dot_product_\w*?_?attention\w*")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)

_GRADIENT, _PARAMETER = ROLES.index(Role.GRADIENT), ROLES.index(Role.PARAMETER)
_BACKWARD = PHASES.index(Phase.BACKWARD)
_WIDEST, _SMALL = 190.0, 11.0  # boxes.py cuts off what is wider in text of this size: here names give way to figures
_SHORTEST_NAME = 40.0  # and keep so much
_BETWEEN = " · "
_WIDEST_TITLE, _TITLE = 260.0, 12.5  # the same of titles
_DIFFER = "sizes or numbers differ"
# What the schemas of products call the operand that has the features: of those that it adds to, nothing is said.
_PRODUCTS = {"addmm": "mat1", "mm": "self", "linear": "input", "baddbmm": "batch1", "mv": "vec", "addmv": "vec"}
_MOST_OPS = 0.75  # a repeat with one module of such a share is named after it
_ALL_NAMES = 3  # so many names are all written
_MOST_NAMES = 40  # in a tooltip
_IN_FULL = 2_000.0  # the room that there is in one
_MANY_PAIRS = 5_000  # of modules and parameters that they read

Shape = tuple[int | str, ...]


class Labels:
    """The words of a picture."""

    def __init__(self, outline: Outline) -> None:
        self.outline, self.tree, self.graph = outline, outline.tree, outline.tree.graph
        self.shapes = Shapes(outline)

    def title(self, item: Item) -> str:
        """A class or an op; both ends of one that is too long, as classes often begin alike."""
        return shortened(self._title(item), _TITLE, _WIDEST_TITLE, bold=True)

    def _title(self, item: Item) -> str:
        if item.type:
            return clean(item.type)
        if item.kind == "leaf":
            return clean(self._operation(item.start))
        if item.kind == "loop":
            return _main_module(item) or self._turn(item)
        return {"functional": "functional ops", "segment": "ops"}.get(item.kind, clean(item.name))

    def _turn(self, item: Item) -> str:
        """What one round of a repeat is."""
        return "loop body" if hands_on(self.tree, item) else "branch"

    def subtitle(self, item: Item, room: float = _WIDEST) -> str:
        """Name, size and shape: what tells boxes of one title apart."""
        if item.kind == "leaf":
            if self.outline.is_marker(item):
                return _some(self.shapes.made(item.start * OUTPUTS).split("×"), room, "×")
            name = self.name(item, room)
            left = room - min(text_width(name, _SMALL), _SHORTEST_NAME) - (_width(_BETWEEN) if name else 0.0)
            return _joined(name, *(self._gradient(item, left) or self._detail(item, left)), room=room)
        each = " each" if item.repeat > 1 and not item.alike_only else ""
        operations = f"{self.operations(item):,} op{'' if self.operations(item) == 1 else 's'}{each}"
        if item.kind in ("functional", "segment"):
            left = room - _width(operations + _BETWEEN)
            inside = (
                _some(_main_modules(item), left) or self._main_leaves(item, left) or self._main_operations(item, left)
            )
            return _joined("", operations, inside, room=room)
        name = "" if item.kind == "lane" else _modules_of_one_class(item) or self.name(item, room)
        return _joined(name, operations, _DIFFER if item.alike_only else self._parameters(item), room=room)

    def tooltip(self, item: Item) -> str:
        """What a pointer that rests on a box is told."""
        parts = [self._title(item), self.subtitle(item, _IN_FULL)]
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
            parts.append(f"{item.repeat} times" + (f", {_DIFFER}" if item.alike_only else ""))
        if len(names := self._names(item)) > 1:
            parts.append(", ".join(names[:_MOST_NAMES]) + (" …" if len(names) > _MOST_NAMES else ""))
        return "\n".join(clean(part) for part in dict.fromkeys(parts) if part)

    def heading(self, item: Item, room: float = _WIDEST) -> str:
        """What stands beside the title of an open group."""
        if item.kind == "lane":
            return f"{self.operations(item):,} op{'' if self.operations(item) == 1 else 's'}"
        if item.kind in ("functional", "segment"):
            return self._main_leaves(item, room)
        name = self.name(item, room)
        if item.kind == "loop":  # the boxes in it say their names
            name = self._turn(item) if _main_module(item) else ""
        return _joined(name, _DIFFER if item.alike_only else self._parameters(item), room=room)

    # -- names ---------------------------------------------------------------------------------------------------------

    def name(self, item: Item, room: float = _WIDEST) -> str:
        """What a module is called in the one around it. Of a repeat: "0 … 11", "q, k, v" or "stem, body … head"."""
        if item.kind == "loop":
            named = [self.name(part, room) for part in self.outline.children(item) if part.name]
            return ", ".join(named[:_ALL_NAMES]) + (" …" if len(named) > _ALL_NAMES else "")
        names = [clean(name) for name in self._names(item)]
        if len(names) < 2:  # what belongs to no module is called by its class, which is written above
            return clean(item.name) if item.name != item.type else ""
        said = listed(names)
        if _width(said) > room and not _count_up(names) and not ending(said, _SMALL, room):
            said = listed([_within(name, room / 4) for name in names])  # one may be too long: not all need suffer
        return said

    def _names(self, item: Item) -> list[str]:
        """The names of all modules that one box stands for, as they come; empty for what is no repeat of modules."""
        rounds = item if item.repeat > 1 or item.parent is None else item.parent
        if item.call < 0 or rounds.repeat == 1 or (rounds is not item and rounds.kind != "loop"):
            return []
        columns, modules = self.graph.columns, self.graph.tables.modules
        parents, outer = columns["call_parent"], outer_call(item)
        first = item.start + np.arange(rounds.repeat) * (rounds.stop - rounds.start)
        calls = columns["node_call"][self.tree.node[first]]
        # One and the same box in every round: the calls lie equally deep.
        while (calls >= 0).all() and calls[0] != item.call:
            calls = parents[calls]
        levels: list[Array] = []
        while (calls >= 0).all() and calls[0] != outer:
            levels.append(columns["call_module"][calls])
            calls = parents[calls]
        if not levels:
            return []
        rows = dict.fromkeys(zip(*(level.tolist() for level in reversed(levels)), strict=True))
        return list(
            dict.fromkeys(".".join(filter(None, (modules[one].path.rpartition(".")[2] for one in row))) for row in rows)
        )

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def operations(self, item: Item) -> int:
        """How many ops there are in it but for views and bookkeeping, which no box is for."""
        return int(self._ops_before[item.stop] - self._ops_before[item.start])

    @cached_property
    def _ops_before(self) -> Array:
        """How many ops come before each leaf, inputs and outputs left out."""
        is_op = self.graph.columns["node_kind"][self.tree.node] == KINDS.index(NodeKind.OP)
        return np.concatenate([[0], np.cumsum(is_op)])

    # -- details -------------------------------------------------------------------------------------------------------

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

    def _main_operations(self, item: Item, room: float) -> str:
        """The two or three commonest ops in it."""
        columns = self.graph.columns
        found = Counter(columns["node_operation"][self.tree.node[item.start : item.stop]].tolist())
        names = dict.fromkeys(
            _KERNEL.sub("", short_name(self.graph.tables.operations[operation].name))
            for operation, _ in found.most_common(4)
        )
        return _some([clean(name) for name in names], room, most=_ALL_NAMES)

    def _main_leaves(self, item: Item, room: float = _WIDEST) -> str:
        """In a graph of autograd: the modules whose parameters get their gradients in it."""
        if self.graph.source != "autograd":
            return ""
        columns = self.graph.columns
        values = columns["input_value"][members(columns["input_ptr"], self.tree.node[item.start : item.stop])]
        rows = columns["value_parameter"][values[columns["value_producer"][values] < 0]]
        names = (self.graph.tables.names[row] for row in rows[rows >= 0].tolist())
        modules = [clean(name) for name in dict.fromkeys(name.rpartition(".")[0] for name in names) if name]
        if len(modules) < 2:
            return _within(modules[0], room) if modules else ""
        shared = _shared(modules, ".")
        last = f" … {modules[-1][len(shared) :]}"  # where a stretch begins and ends says the most
        if said := _fitting([listed(modules), modules[0] + last], room):
            return said
        first = ending(modules[0], _SMALL, room - _width(last))
        if len(first) > len(modules[0]) - len(shared):  # else it lost parts that the last one does not have
            return first + last
        return f"{_within(modules[0], room - _width(', …'))}, …"

    def _parameters(self, item: Item) -> str:
        count = self.parameters(item)
        return format_count(count) if count else ""

    def parameters(self, item: Item) -> int:
        """Elements of what a module has and what it reads of others, tied ones once; 0 for what is no module."""
        if item.call < 0:
            return 0
        path = self.graph.tables.modules[self.graph.columns["call_module"][item.call]].path
        return self.parameters_of(path) + sum(self._read_of_others.get(path, {}).values())

    def parameters_of(self, path: str) -> int:
        """Elements of what a module has, by its path; of everything for the empty one."""
        (names, _), sums = self._parameter_rows, self._sums
        if not path:
            return int(sums[-1])
        first, last = bisect_left(names, path + "."), bisect_left(names, path + "/")  # the character after the dot
        return int(sums[last] - sums[first])

    @cached_property
    def _parameter_rows(self) -> tuple[list[str], Array]:
        """The names of all values that are parameters, sorted, and the values."""
        columns, names = self.graph.columns, self.graph.tables.names
        rows = np.flatnonzero(columns["value_role"] == _PARAMETER)
        found = [names[name] if name >= 0 else "" for name in columns["value_parameter"][rows].tolist()]
        order = sorted(range(len(found)), key=found.__getitem__)  # no pairs: 30,000 of them wake the garbage collector
        return [found[row] for row in order], rows[np.array(order, np.int64)]

    @cached_property
    def _sums(self) -> Array:
        """How many elements the parameters before each have, in order of names; tied ones once."""
        return np.concatenate([[0], np.cumsum(self._elements)])

    @cached_property
    def _read_of_others(self) -> dict[str, dict[int, int]]:
        """Path of a module -> storages of parameters that it reads though another has them, such as tied weights -> of
        how many elements."""
        columns, (names, rows) = self.graph.columns, self._parameter_rows
        counted = np.flatnonzero(self._elements)
        place_of = dict(zip(columns["value_storage"][rows[counted]].tolist(), counted.tolist(), strict=True))
        node = np.repeat(np.arange(len(self.graph)), np.diff(columns["input_ptr"]))
        value, call = columns["input_value"], columns["node_call"][node]
        chosen = (value >= 0) & (call >= 0)
        chosen[chosen] = columns["value_role"][value[chosen]] == _PARAMETER
        modules, storages = columns["call_module"][call[chosen]].astype(np.int64), columns["value_storage"]
        many = int(storages.max(initial=0)) + 1
        pairs = np.unique(modules * many + storages[value[chosen]].clip(0))
        if len(pairs) > _MANY_PAIRS:  # to look at each would take longer than the rest of the picture
            pairs = pairs[np.bincount(pairs % many)[pairs % many] > 1]
        found: dict[str, dict[int, int]] = {}
        for pair in pairs.tolist():
            module, storage = divmod(pair, many)
            row, at = self.graph.tables.modules[module], place_of.get(storage, -1)
            path = row.path
            while path and at >= 0 and row.kind == "module" and not names[at].startswith(path + "."):
                found.setdefault(path, {})[storage] = int(self._elements[at])
                path = path.rpartition(".")[0]
        return found

    @cached_property
    def _elements(self) -> Array:
        """How many elements each of the parameters has, in order of names; those tied to one before have none."""
        columns, (_, rows) = self.graph.columns, self._parameter_rows
        sizes = [math.prod(size for size in row.shape if isinstance(size, int)) for row in self.graph.tables.layouts]
        elements = np.array(sizes or [0], np.int64)[columns["value_layout"][rows]]
        whole = np.flatnonzero(columns["value_view_of"][rows] < 0)
        by_value = whole[np.argsort(rows[whole], kind="stable")]
        _, first = np.unique(columns["value_storage"][rows[by_value]], return_index=True)
        counted = np.zeros(len(rows), bool)
        counted[by_value[first]] = True
        return np.where(counted, elements, 0)

    def _detail(self, item: Item, room: float) -> tuple[str, ...]:
        """What a layer turns into what: 64→128, 3×3. In autograd: whose gradient is accumulated, or what was saved."""
        kind = self.outline.operation_type(item)
        if kind == OperationType.ACCUMULATE:
            return self._leaf(item.start, room)
        return (self._turns(item, kind, room) if self.graph.source != "autograd" else self._saved(item.start, room),)

    def _turns(self, item: Item, kind: OperationType, room: float) -> str:
        """Sizes of a layer, from what its op was called with: parameters of one name are not laid out in one way."""
        node = int(self.tree.node[item.start])
        if kind == OperationType.CONVOLUTION:
            return self._channels(node, room)
        if kind == OperationType.MATMUL:
            return self._features(item)
        if kind == OperationType.EMBEDDING:
            return "×".join(map(str, self._table(node)))
        weight = self._weight(node) if item.call >= 0 else ()
        return str(weight[0]) if len(weight) == 1 else ""

    def _channels(self, node: int, room: float) -> str:
        """What a convolution turns into what. Its weight alone does not tell: of grouped ones it holds the channels of
        one group, and of transposed ones it is turned."""
        named, values = self._called(node)
        shapes = {name: self._shape(value) for name, value in values.items()}
        taken, made = self._shapes("input", node), self._shapes("output", node)
        weight = shapes.get("weight") or (taken[1] if not named and len(taken) > 1 else ())
        read = shapes.get("input") or shapes.get("self") or (taken[0] if taken else ())
        written = shapes.get("grad_output") or (made[0] if made else ())
        spatial = len(weight) - 2
        # Those of conv_tbc, of which only old programs have any, lie in another order.
        if spatial < 1 or min(len(read), len(written)) <= spatial or "tbc" in self._name_of(node):
            return ""
        into, out, groups = read[-1 - spatial], written[-1 - spatial], named.get("groups", 1)
        said = f"{into}→{out}, " + "×".join(map(str, weight[2:]))
        if not isinstance(groups, int) or groups < 2:
            return said
        return _fitting([f"{said}, depthwise" if groups == into else f"{said}, groups {groups}"], room) or said

    def _table(self, node: int) -> Shape:
        """The sizes of an embedding. Those of quantised ones have scales in their rows."""
        if self._name_of(node).startswith("quantized"):
            return ()
        weight = self._weight(node)
        if not weight and self.graph.columns["node_phase"][node] == _BACKWARD:  # that makes the gradient of one
            weight = next(iter(self._shapes("output", node)), ())
        return weight if len(weight) == 2 else ()

    def _weight(self, node: int) -> Shape:
        """The shape of the weight that an op reads, as the layer has it: PReLU hands on a view."""
        columns, names = self.graph.columns, self.graph.tables.names
        named, values = self._called(node)
        if "weight" in values:
            value = values["weight"]
            while columns["value_view_of"][value] >= 0 and columns["value_role"][value] == _PARAMETER:
                value = int(columns["value_view_of"][value])
            return self._shape(value)
        read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]].tolist()
        for value in read if not named else ():  # a file need not say how ops were called
            name = columns["value_parameter"][value]
            if columns["value_role"][value] == _PARAMETER and name >= 0 and names[name].endswith("weight"):
                return self._shape(value)
        return ()

    def _gradient(self, item: Item, room: float) -> tuple[str, ...]:
        """Which parameter an op of backward makes the gradient of."""
        columns, node = self.graph.columns, self.tree.node[item.start]
        if columns["node_phase"][node] != _BACKWARD:
            return ()
        values = columns["output_value"][columns["output_ptr"][node] : columns["output_ptr"][node + 1]]
        values = values[values >= 0]
        roles, names = columns["value_role"][values], columns["value_parameter"][values]
        made = [
            clean(self.graph.tables.names[name].rpartition(".")[2])
            for role, name in zip(roles, names, strict=True)
            if role == _GRADIENT and name >= 0
        ]
        left = room - _width("grad of ")
        return (f"grad of {_some(made, left) or _within(made[0], left)}",) if made else ()

    def _leaf(self, leaf: int, room: float) -> tuple[str, ...]:
        columns, node = self.graph.columns, self.tree.node[leaf]
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        own = [value for value in values if columns["value_producer"][value] < 0]
        if not own:
            return ()
        name, shape = columns["value_parameter"][own[0]], self.shapes.of_value(own[0])
        if name < 0:
            return (_some(shape.split("×"), room, "×"),)
        shape = _some(shape.split("×"), room - _SHORTEST_NAME - _width(_BETWEEN), "×")
        return _within(clean(self.graph.tables.names[name]), room - _width(_BETWEEN + shape)), shape

    def _saved(self, leaf: int, room: float) -> str:
        """What an op of autograd keeps for backward: as many tensors as there is room for, or else how many."""
        node = int(self.tree.node[leaf])
        _, values = self._called(node)
        held = [clean(f"{slot} {self.shapes.of_value(value)}") for slot, value in values.items()]
        some = _some(held, room - _width("saved "))
        return f"saved {some or f'{len(held):,} tensor' + 's' * (len(held) > 1)}" if held else ""

    def _features(self, item: Item) -> str:
        """The last sizes of what a product takes and makes: of backward, of one with weights. Others there sum over the
        batch. A layer says in backward too what it turns into what in forward."""
        node = int(self.tree.node[item.start])
        columns, operand = self.graph.columns, _PRODUCTS.get(self._operation(item.start))
        read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        is_weight = columns["value_role"][read] == _PARAMETER
        backward = columns["node_phase"][node] == _BACKWARD
        if operand is None or (backward and not is_weight.any()):
            return ""
        named, values = self._called(node)
        first = values.get(operand, -1)
        if first >= 0 and columns["value_role"][first] == _PARAMETER and not is_weight.all():
            return ""  # a weight times what it turns: its rows are the features
        matrices = [shape for shape in self._shapes("input", node) if len(shape) >= 2]
        taken = self._shape(first) if first >= 0 else matrices[0] if matrices and not named else ()
        made = next(iter(self._shapes("output", node)), ())
        if not taken or not made:
            return ""
        turned = backward and item.call >= 0
        return f"{made[-1]}→{taken[-1]}" if turned else f"{taken[-1]}→{made[-1]}"

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _called(self, node: int) -> tuple[dict[str, Any], dict[str, int]]:
        """What an op was called with, by the names of its schema, and the values that the tensors among it are; nothing
        where the graph does not hold it."""
        columns, tables = self.graph.columns, self.graph.tables
        row = columns["node_arguments"][node]
        if row < 0:
            return {}, {}
        named = arguments_by_name(tables.operations[columns["node_operation"][node]], decode(tables.arguments[row]))
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]].tolist()
        return named, {
            name: values[reference.index]
            for name, reference in named.items()
            if isinstance(reference, TensorRef) and 0 <= reference.index < len(values)  # files may say anything
        }

    def _shapes(self, side: str, node: int) -> list[Shape]:
        """The shapes of the tensors that an op takes ("input") or makes ("output")."""
        columns = self.graph.columns
        values = columns[f"{side}_value"][columns[f"{side}_ptr"][node] : columns[f"{side}_ptr"][node + 1]]
        return [self._shape(value) for value in values.tolist() if value >= 0]

    def _shape(self, value: int) -> Shape:
        shape: Shape = self.graph.tables.layouts[self.graph.columns["value_layout"][value]].shape
        return shape

    def _name_of(self, node: int) -> str:
        name: str = self.graph.tables.operations[self.graph.columns["node_operation"][node]].name
        return name


def _main_modules(item: Item) -> list[str]:
    """The classes of the modules in a stretch of a program, the largest first; none if there are single ops only."""
    sizes, stack = Counter[str](), [item]
    while stack:
        for part in stack.pop().parts or ():
            if part.kind == "module":
                sizes[clean(part.type)] += part.end - part.start
            elif part.kind != "leaf":
                stack.append(part)
    return [name for name, _ in sizes.most_common()]


def _main_module(item: Item) -> str:
    """The class of the one module that a round of a repeat mostly is; empty if there is none."""
    largest = max((part for part in item.parts or () if part.kind == "module"), key=_size, default=None)
    if largest is None or _size(largest) < _MOST_OPS * (item.stop - item.start):
        return ""
    return clean(largest.type)


def _modules_of_one_class(item: Item) -> str:
    """What a round of a repeat is that is nothing but several modules of one class; else empty."""
    parts = item.parts or () if item.kind == "loop" else ()
    classes = {part.type for part in parts if part.kind == "module"}
    if len(parts) < 2 or len(classes) > 1 or any(part.kind != "module" for part in parts):
        return ""
    return f"{sum(part.repeat for part in parts)} {clean(classes.pop())}"


def _size(item: Item) -> int:
    return item.end - item.start


def listed(names: list[str]) -> str:
    """Names as one: those that count up and long lists by their ends, and what all begin with once.

    >>> listed(["layer.0", "layer.1", "layer.2"]), listed(["q", "k", "v"]), listed(["stem", "body", "neck", "head"])
    ('layer.0 … 2', 'q, k, v', 'stem, body … head')
    """
    if _count_up(names):
        shared = _shared(names, ".-_")
        return f"{names[0]} … {names[-1][len(shared) :]}"
    shared = _shared(names, ".-_")
    if not all(re.search("[0-9]", name[len(shared) :]) for name in names):  # Mixed_6b, 6c; but not layer_norm, scale
        shared = _shared(names, ".")
    own = [name[len(shared) :] for name in names]
    return shared + (", ".join(own) if len(own) <= _ALL_NAMES else f"{own[0]}, {own[1]} … {own[-1]}")


def _shared(names: list[str], ends: str) -> str:
    """What all names begin with, up to the last of some characters."""
    least, most = min(names), max(names)  # what these two begin with, all do
    same = next((at for at, (one, two) in enumerate(zip(least, most, strict=False)) if one != two), len(least))
    return least[: max(least.rfind(end, 0, same) for end in ends) + 1]


def _count_up(names: list[str]) -> bool:
    """Whether they differ in one number, by one from each to the next, up or down as in backward."""
    found = [match for name in names if (match := _NUMBERED.fullmatch(name))]
    if len(found) < max(len(names), 2) or len({(match[1], match[3]) for match in found}) > 1:
        return False
    steps = {int(after[2]) - int(match[2]) for match, after in itertools.pairwise(found)}
    return steps in ({1}, {-1})


def _joined(name: str, *figures: str, room: float = _WIDEST) -> str:
    """A name and what is said beside it. The name gives way, then what is said first; no figure is cut."""
    said = [figure for figure in figures if figure]
    least = min(_width(name + _BETWEEN), _SHORTEST_NAME + _width(_BETWEEN)) if name else 0.0
    while len(said) > 1 and least + _width(_BETWEEN.join(said)) > room:
        del said[0]
    beside = _BETWEEN.join(said)
    if not name or not beside or _width(beside) > room - least:
        return clipped(beside, _SMALL, room) if beside else _within(name, room)
    return _within(name, room - _width(_BETWEEN + beside)) + _BETWEEN + beside


def _within(name: str, room: float) -> str:
    """A name that may be too long: without its first parts, the last of several, or what is left without its middle."""
    if _width(name) <= room:
        return name
    several = name.removesuffix(" …").split(", ")
    return (
        ending(name, _SMALL, room)
        or _some([*several[:-1], name], room)  # all of it does not fit: the last gives way in any case
        or _counting(name, room)
        or shortened(name, _SMALL, room)
    )


def _counting(name: str, room: float) -> str:
    """Two names that count up, without what the second repeats: layer1 … 6. The numbers stay. Empty for others."""
    first, _, last = name.partition(" … ")
    stem = first.rstrip("0123456789")
    numbers = f"{first[len(stem) :]} … {last[len(stem) :]}"
    if not (last.startswith(stem) and last[len(stem) :].isdigit() and _width(numbers) <= room):
        return ""
    return clipped(stem, _SMALL, room - _width(numbers)) + numbers


def _some(parts: Sequence[str], room: float, between: str = ", ", most: int = _MOST_NAMES) -> str:
    """As many of some parts, from the first, as there is room for; dots for the others. Empty if not even one fits.

    >>> _some(["input 2×144×1×1", "weight 576×144×1×1"], 140), _some(["a", "b", "c"], 100, most=2), _some(["a"], 1)
    ('input 2×144×1×1, …', 'a, b …', '')
    """
    wide, used, kept = _width(between), 0.0, 0
    dots = _width(between + "…")
    for count, part in enumerate(parts[:most], 1):
        used += _width(part) + (wide if count > 1 else 0.0)  # the rest need not be looked at: there may be thousands
        if used > room:
            break
        if count == len(parts):
            return between.join(parts)
        if used + dots <= room:
            kept = count
    if not kept:
        return ""
    return between.join(parts[:kept]) + (" …" if kept == most and between == ", " else f"{between}…")


def _fitting(ways: Iterable[str], room: float) -> str:
    """The first of several ways to say something that fits; empty if none does."""
    return next((way for way in ways if _width(way) <= room), "")


def _width(text: str) -> float:
    return text_width(text, _SMALL)
