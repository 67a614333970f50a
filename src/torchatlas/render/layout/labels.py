"""Item -> what is written on its box: a title, a line below it, and the shape of a tensor."""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from functools import cached_property

import numpy as np

from torchatlas.graph.arguments import TensorRef, decode
from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import NodeKind, OperationType, Phase, Role
from torchatlas.graph.select import members
from torchatlas.render.fonts import ending, shortened, text_width
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
_WIDEST_TITLE, _TITLE = 260.0, 12.5  # the same of titles
_DIFFER = "sizes or numbers differ"
_MOST_OPS = 0.75  # a repeat with one module of such a share is named after it
_ALL_NAMES = 3  # so many names are all written
_MOST_NAMES = 40  # in a tooltip
_MANY_PAIRS = 5_000  # of modules and parameters that they read


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

    def subtitle(self, item: Item) -> str:
        """Name, size and shape: what tells boxes of one title apart."""
        if item.kind == "leaf":
            if self.outline.is_marker(item):
                return self.shapes.made(item.start * OUTPUTS)
            return _joined(self.name(item), *(self._gradient(item) or self._detail(item)))
        each = " each" if item.repeat > 1 and not item.alike_only else ""
        operations = f"{self.operations(item):,} op{'' if self.operations(item) == 1 else 's'}{each}"
        if item.kind in ("functional", "segment"):
            inside = _main_modules(item) or self._main_leaves(item) or self._main_operations(item)
            return _joined("", operations, inside)
        name = "" if item.kind == "lane" else _modules_of_one_class(item) or self.name(item)
        return _joined(name, operations, _DIFFER if item.alike_only else self._parameters(item))

    def tooltip(self, item: Item) -> str:
        """What a pointer that rests on a box is told."""
        parts = [self._title(item), self.subtitle(item)]
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

    def heading(self, item: Item) -> str:
        """What stands beside the title of an open group."""
        if item.kind == "lane":
            return f"{self.operations(item):,} op{'' if self.operations(item) == 1 else 's'}"
        if item.kind in ("functional", "segment"):
            return self._main_leaves(item)
        name = self.name(item)
        if item.kind == "loop":  # the boxes in it say their names
            name = self._turn(item) if _main_module(item) else ""
        return _joined(name, _DIFFER if item.alike_only else self._parameters(item))

    # -- names ---------------------------------------------------------------------------------------------------------

    def name(self, item: Item) -> str:
        """What a module is called in the one around it. Of a repeat: "0 … 11", "q, k, v" or "stem, body … head"."""
        if item.kind == "loop":
            named = [self.name(part) for part in self.outline.children(item) if part.name]
            return ", ".join(named[:_ALL_NAMES]) + (" …" if len(named) > _ALL_NAMES else "")
        names = [clean(name) for name in self._names(item)]
        if len(names) < 2:  # what belongs to no module is called by its class, which is written above
            return clean(item.name) if item.name != item.type else ""
        said = listed(names)
        if text_width(said, _SMALL) > _WIDEST and not _count_up(names) and not ending(said, _SMALL, _WIDEST):
            said = listed([_within(name, _WIDEST / 4) for name in names])  # one may be too long: not all need suffer
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

    def _main_operations(self, item: Item) -> str:
        """The two or three commonest ops in it."""
        columns = self.graph.columns
        found = Counter(columns["node_operation"][self.tree.node[item.start : item.stop]].tolist())
        names = dict.fromkeys(
            _KERNEL.sub("", short_name(self.graph.tables.operations[operation].name))
            for operation, _ in found.most_common(4)
        )
        return ", ".join(list(names)[:3]) + (" …" if len(found) > 3 else "")

    def _main_leaves(self, item: Item) -> str:
        """In a graph of autograd: the modules whose parameters get their gradients in it."""
        if self.graph.source != "autograd":
            return ""
        columns = self.graph.columns
        values = columns["input_value"][members(columns["input_ptr"], self.tree.node[item.start : item.stop])]
        rows = columns["value_parameter"][values[columns["value_producer"][values] < 0]]
        names = (self.graph.tables.names[row] for row in rows[rows >= 0].tolist())
        modules = [clean(name) for name in dict.fromkeys(name.rpartition(".")[0] for name in names) if name]
        return listed(modules) if modules else ""

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

    def _detail(self, item: Item) -> tuple[str, ...]:
        """What a layer turns into what: 64→128, 3×3. In autograd: whose gradient is accumulated, or what was saved."""
        kind = self.outline.operation_type(item)
        if kind == OperationType.ACCUMULATE:
            return self._leaf(item.start)
        return (self._turns(item, kind) if self.graph.source != "autograd" else self._saved(item.start),)

    def _turns(self, item: Item, kind: OperationType) -> str:
        shape = self._weight(item)
        title = self._title(item).lower()
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

    def _gradient(self, item: Item) -> tuple[str, ...]:
        """Which parameter an op of backward makes the gradient of."""
        columns, node = self.graph.columns, self.tree.node[item.start]
        if columns["node_phase"][node] != _BACKWARD:
            return ()
        values = columns["output_value"][columns["output_ptr"][node] : columns["output_ptr"][node + 1]]
        values = values[values >= 0]
        roles, names = columns["value_role"][values], columns["value_parameter"][values]
        made = [
            self.graph.tables.names[name]
            for role, name in zip(roles, names, strict=True)
            if role == _GRADIENT and name >= 0
        ]
        return (clean("grad of " + ", ".join(name.rpartition(".")[2] for name in made)),) if made else ()

    def _leaf(self, leaf: int) -> tuple[str, ...]:
        columns, node = self.graph.columns, self.tree.node[leaf]
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        own = [value for value in values if columns["value_producer"][value] < 0]
        if not own:
            return ()
        name, shape = columns["value_parameter"][own[0]], self.shapes.of_value(own[0])
        if name < 0:
            return (shape,)
        room = _WIDEST - text_width(f" · {shape}", _SMALL)
        return _within(clean(self.graph.tables.names[name]), max(room, _SHORTEST_NAME)), shape

    def _saved(self, leaf: int) -> str:
        columns, node = self.graph.columns, self.tree.node[leaf]
        slots = decode(self.graph.tables.arguments[columns["node_arguments"][node]]).kwargs or {}
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        held = [
            f"{slot} {self.shapes.of_value(values[reference.index])}"
            for slot, reference in slots.items()
            if isinstance(reference, TensorRef) and reference.index < len(values)  # files may say anything
        ]
        return clean("saved " + ", ".join(held)) if held else ""

    def _features(self, leaf: int) -> str:
        """The last sizes of what a product takes and makes: of backward, of one with weights. Others there sum over the
        batch."""
        columns, node = self.graph.columns, self.tree.node[leaf]
        read = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        if columns["node_phase"][node] == _BACKWARD and _PARAMETER not in columns["value_role"][read]:
            return ""
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


def _main_modules(item: Item) -> str:
    """The classes of the two or three largest modules in a stretch of a program; empty if there are single ops only."""
    sizes, stack = Counter[str](), [item]
    while stack:
        for part in stack.pop().parts or ():
            if part.kind == "module":
                sizes[clean(part.type)] += part.end - part.start
            elif part.kind != "leaf":
                stack.append(part)
    return ", ".join(name for name, _ in sizes.most_common(3)) + (" …" if len(sizes) > 3 else "")


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


def _joined(name: str, *figures: str) -> str:
    """A name and what is said beside it. The name gives way."""
    said = " · ".join(figure for figure in figures if figure)
    if not name or not said:
        return _within(name, _WIDEST) or said
    room = _WIDEST - text_width(f" · {said}", _SMALL)
    return f"{_within(name, max(room, _SHORTEST_NAME))} · {said}"


def _within(name: str, room: float) -> str:
    """A name that may be too long: without its first parts, the last of several, or what is left without its middle."""
    if text_width(name, _SMALL) <= room:
        return name
    several = name.removesuffix(" …").split(", ")
    fewer = (", ".join([*several[:count], "…"]) for count in range(len(several) - 1, 0, -1))
    return (
        ending(name, _SMALL, room)
        or next((some for some in fewer if text_width(some, _SMALL) <= room), "")
        or shortened(name, _SMALL, room)
    )
