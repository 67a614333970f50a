"""Item -> what is written on its box: a title, a line below it, and the shape of a tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from torchatlas.escapes import clean
from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.nouns import NodeKind, OperationType, Phase, Role
from torchatlas.graph.subgraph import members
from torchatlas.render.fonts import ending, shortened
from torchatlas.render.layout.folding import hands_on, has_iterations
from torchatlas.render.layout.layer_sizes import LayerSizes
from torchatlas.render.layout.optimizers import is_step, parameter_count
from torchatlas.render.layout.outline import HEAVY, Item, Outline
from torchatlas.render.layout.shapes import Shapes, outer_call
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.text_fitting import (
    ALL_NAMES,
    BETWEEN,
    MOST_NAMES,
    count_up,
    fitting,
    joined,
    listed,
    plain,
    shared_start,
    sized,
    some,
    width,
    within,
)
from torchatlas.render.layout.wiring import OUTPUTS
from torchatlas.units import format_count

_GRADIENT, _PARAMETER, _BUFFER = (ROLES.index(role) for role in (Role.GRADIENT, Role.PARAMETER, Role.BUFFER))
_FORWARD, _BACKWARD = PHASES.index(Phase.FORWARD), PHASES.index(Phase.BACKWARD)
_DIFFER, _DIFFER_SHORT = "sizes or numbers differ", "not all equal"
_MOST_OPS = 0.75  # of a round: a repeat is named after the module that has such a share
_FEW_OPS = 8  # in a module that is called after the one layer in it
_IN_FULL = 2_000.0  # the room that there is in a tooltip


class BoxWords:
    """The words of a picture."""

    def __init__(self, outline: Outline) -> None:
        self.outline, self.tree, self.graph = outline, outline.tree, outline.tree.graph
        self.shapes, self._sizes = Shapes(outline), LayerSizes(self.graph)
        # The words of a box are asked for again and again, closed, open and to weigh it: what takes long is cached.
        self._known_names: dict[Item, list[str]] = {}
        self._said_of_all: dict[Item, str] = {}

    def title(self, item: Item) -> str:
        """A class or an op; both ends of one that is too long, as classes often begin alike."""
        return shortened(self._title(item), STYLE.title_text, STYLE.widest_title, bold=True)

    def _title(self, item: Item) -> str:
        if item.type:
            return clean(item.type)
        if item.kind == "leaf":
            return clean(self._operation(item.start))
        if item.kind == "update":
            return "update" if parameter_count(self.tree, item) else "new state"
        if item.kind == "loop" and _of_parameters(item):
            return "updates"
        if has_iterations(item):
            return f"{sum(part.repeat for part in item.parts or ()):,} iterations"
        if item.kind == "loop":
            return _main_module(item) or self._turn(item)
        if item.kind == "segment" and not self.operations(item):  # of inputs or outputs that are too many to be shown
            kinds = np.unique(self.graph.columns["node_kind"][self.tree.node[item.start : item.stop]])
            return " and ".join(f"{KINDS[kind]}s" for kind in kinds.tolist())
        if item.kind == "segment" and (modules := _main_modules(item)):
            return ", ".join(modules[:2]) + " …"
        if item.kind == "functional" and self._sets_parameters(item):
            return "initialization"
        return {"functional": "functional ops", "segment": "ops"}.get(item.kind, clean(item.name))

    def _parameters_updated(self, item: Item) -> str:
        """How many parameters an optimizer step, or a part of it, updates; empty for other items."""
        if not (_of_parameters(item) or item.kind == "group" or is_step(self.tree, item)):
            return ""
        count = parameter_count(self.tree, item) or item.repeat  # ops that make the state of parameters update none
        return f"{count:,} parameter{'' if count == 1 else 's'}"

    def _sets_parameters(self, item: Item) -> bool:
        """Whether most ops of a group set parameters or buffers, outside of the modules that these belong to."""
        columns, nodes = self.graph.columns, self.tree.node[item.start : item.stop]
        values = columns["output_value"][members(columns["output_ptr"], nodes)]
        is_held = np.isin(columns["value_role"][values[values >= 0]], (_PARAMETER, _BUFFER))
        return bool((columns["node_phase"][nodes] == _FORWARD).all() and 2 * is_held.sum() > len(nodes))

    def _turn(self, item: Item) -> str:
        """The name of one round of a repeat."""
        if hands_on(self.tree, item):
            return "loop body"
        return "batch" if item.parent is not None and item.parent.kind == "lane" else "branch"

    def subtitle(self, item: Item, room: float = STYLE.widest_text) -> str:
        """Name, size and shape: what tells boxes of one title apart."""
        if item.kind == "leaf":
            return self._below_leaf(item, room)
        each = " each" if item.repeat > 1 and (not item.alike_only or _of_parameters(item)) else ""
        operations = f"{self.operations(item):,} op{'' if self.operations(item) == 1 else 's'}{each}"
        if item.kind == "segment" and not self.operations(item):
            names = [clean(self._operation(leaf)) for leaf in range(item.start, item.stop)]
            return joined(listed(names), self._passed(item), room=room)
        if item.kind in ("functional", "segment"):
            left = room - width(operations + BETWEEN)
            if names := _names_of_modules(item):
                return joined(f"{names[0]} … {names[-1]}" if len(names) > 1 else names[0], operations, room=room)
            inside = self._main_leaves(item, left) or self._main_operations(item, left)
            return joined("", operations, inside, room=room)
        if said := self._parameters_updated(item):
            return joined(said, operations, room=room)
        name = ""
        if item.kind not in ("lane", "iteration") and not has_iterations(item):
            name = _modules_of_one_class(item) or self.name(item, room)
        if (wordings := self._layer(item)) and (said := sized(name, wordings, self._parameters(item), room)):
            return said
        return self._beside(item, name, operations, room=room)

    def _below_leaf(self, item: Item, room: float) -> str:
        if self.outline.is_marker(item):
            return some(self.shapes.made(item.start * OUTPUTS).split("×"), room, "×")
        name = self.name(item, room)
        left = room - min(width(name), STYLE.shortest_name) - (width(BETWEEN) if name else 0.0)
        if beside := self._gradient(item, left) or self._detail(item, left):
            return joined(name, *beside, room=room)
        node, kind = int(self.tree.node[item.start]), self.outline.operation_type(item)
        wordings = self._sizes.wordings(node, kind, self._operation(item.start), item.call >= 0)
        return (sized(name, wordings, "", room) if wordings else "") or within(name, room)

    def tooltip(self, item: Item) -> str:
        """The text of the tooltip."""
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
            parts.append(", ".join(names[:MOST_NAMES]) + (" …" if len(names) > MOST_NAMES else ""))
        return "\n".join(clean(part) for part in dict.fromkeys(parts) if part)

    def heading(self, item: Item, room: float = STYLE.widest_text) -> str:
        """What stands beside the title of an open group."""
        if said := self._parameters_updated(item):
            return said
        if item.kind in ("lane", "iteration") and not item.alike_only:
            return f"{self.operations(item):,} op{'' if self.operations(item) == 1 else 's'}"
        if item.kind in ("functional", "segment"):
            return self._main_leaves(item, room)
        if item.kind == "iteration" or has_iterations(item):
            name = ""
        elif item.kind == "loop":  # the boxes in it say their names
            name = self._turn(item) if _main_module(item) else ""
        else:
            name = self.name(item, room)
        return self._beside(item, name, room=room)

    def _beside(self, item: Item, *said: str, room: float) -> str:
        """The text beside the title of a group: whether its repeats differ, and which parameters it has."""
        if not item.alike_only:
            return joined(*said, self._parameters(item), room=room)
        in_full = BETWEEN.join(filter(None, (*said, _DIFFER)))
        return in_full if width(in_full) <= room else joined(*said, _DIFFER_SHORT, room=room)  # names say more

    # -- names ---------------------------------------------------------------------------------------------------------

    def name(self, item: Item, room: float = STYLE.widest_text) -> str:
        """What a module is called in the one around it. Of a repeat: "0 … 11", "q, k, v" or "stem, body … head"."""
        if item.kind == "loop":
            named = [part for part in self.outline.children(item) if part.name]
            said = ", ".join(self.name(part, room) for part in named[:ALL_NAMES])
            return said + (" …" if len(named) > ALL_NAMES else "")
        names = self._names(item)
        if len(names) < 2:  # what belongs to no module is called by its class, which is written above
            return clean(item.name) if item.name != item.type else ""
        if item not in self._said_of_all:
            self._said_of_all[item] = listed(names)
        said = self._said_of_all[item]
        if width(said) > room and not count_up(names) and not ending(said, STYLE.small_text, room):
            said = listed([within(name, room / 4) for name in names])  # one may be too long: not all need suffer
        return said

    def _names(self, item: Item) -> list[str]:
        """The names of all modules that one box stands for, as they come; empty for what is no repeat of modules."""
        rounds = item if item.repeat > 1 or item.parent is None else item.parent
        if item.call < 0 or rounds.repeat == 1 or (rounds is not item and rounds.kind != "loop"):
            return []
        names = self._known_names.get(item)
        if names is None:
            names = self._known_names[item] = [clean(name) for name in self._names_in(rounds, item)]
        return names

    def _names_in(self, rounds: Item, item: Item) -> list[str]:
        columns, own_name = self.graph.columns, self.outline.own_name
        parents, outer = columns["call_parent"], outer_call(item)
        first = item.start + np.arange(rounds.repeat) * (rounds.stop - rounds.start)
        calls = columns["node_call"][self.tree.node[first]]
        # One and the same box in every round: the calls lie equally deep.
        while (calls >= 0).all() and calls[0] != item.call:
            calls = parents[calls]
        levels: list[Array] = []
        while (calls >= 0).all() and calls[0] != outer:
            levels.append(calls)
            calls = parents[calls]
        if not levels:
            return []
        named = [[own_name(call) for call in level.tolist()] for level in reversed(levels)]
        return list(dict.fromkeys(".".join(filter(None, row)) for row in zip(*named, strict=True)))

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def operations(self, item: Item) -> int:
        """How many ops an item holds, without views and bookkeeping, which no box shows."""
        return int(self._ops_before[item.stop] - self._ops_before[item.start])

    @cached_property
    def _ops_before(self) -> Array:
        """How many ops come before each leaf, inputs and outputs left out."""
        is_op = self.graph.columns["node_kind"][self.tree.node] == KINDS.index(NodeKind.OP)
        return np.concatenate([[0], np.cumsum(is_op)])

    def _passed(self, item: Item) -> str:
        """How many tensors the inputs and outputs in an item hand on."""
        columns, nodes = self.graph.columns, self.tree.node[item.start : item.stop]
        count = sum(
            int((columns[name][nodes + 1] - columns[name][nodes]).sum()) for name in ("input_ptr", "output_ptr")
        )
        return f"{count:,} tensor{'' if count == 1 else 's'}"

    # -- details -------------------------------------------------------------------------------------------------------

    def _operation(self, leaf: int) -> str:
        node = self.tree.node[leaf]
        columns = self.graph.columns
        if columns["node_kind"][node] != KINDS.index(NodeKind.OP):
            name = columns["node_name"][node]
            return self.graph.tables.names[name] if name >= 0 else "input"
        return plain(self.graph.tables.operations[columns["node_operation"][node]].name)

    def _main_operations(self, item: Item, room: float) -> str:
        """The two or three ops that characterize an item: attention and the like, then the commonest."""
        columns, table = self.graph.columns, self.graph.tables.operations
        nodes = self.tree.node[item.start : item.stop]
        nodes = nodes[columns["node_kind"][nodes] == KINDS.index(NodeKind.OP)]
        counts = Counter(columns["node_operation"][nodes].tolist()).most_common()
        rows = sorted((row for row, _ in counts), key=lambda row: table[row].type not in HEAVY)
        return some(list(dict.fromkeys(clean(plain(table[row].name)) for row in rows)), room, most=ALL_NAMES)

    def _main_leaves(self, item: Item, room: float = STYLE.widest_text) -> str:
        """In a graph of autograd, the modules whose parameters get their gradients in an item."""
        if self.graph.source != "autograd":
            return ""
        columns = self.graph.columns
        values = columns["input_value"][members(columns["input_ptr"], self.tree.node[item.start : item.stop])]
        rows = columns["value_parameter"][values[columns["value_producer"][values] < 0]]
        names = (self.graph.tables.names[row] for row in rows[rows >= 0].tolist())
        modules = [clean(name) for name in dict.fromkeys(name.rpartition(".")[0] for name in names) if name]
        if len(modules) < 2:
            return within(modules[0], room) if modules else ""
        shared = shared_start(modules, ".")
        last = f" … {modules[-1][len(shared) :]}"  # where a stretch begins and ends says the most
        if said := fitting([listed(modules), modules[0] + last], room):
            return said
        first = ending(modules[0], STYLE.small_text, room - width(last))
        if len(first) > len(modules[0]) - len(shared):  # else it lost parts that the last one does not have
            return first + last
        return f"{within(modules[0], room - width(', …'))}, …"

    def _parameters(self, item: Item) -> str:
        count = self.parameters(item)
        return format_count(count) if count else ""

    def parameters(self, item: Item) -> int:
        """The elements of the parameters that a module owns, and of those it reads from others; tied ones count
        once; 0 for items that are no module."""
        if item.call < 0:
            return 0
        path = self.graph.tables.modules[self.graph.columns["call_module"][item.call]].path
        return self.parameters_of(path) + sum(self._read_of_others.get(path, {}).values())

    def parameters_of(self, path: str) -> int:
        """The elements of the parameters below a module path; of all parameters for the empty path."""
        return self.graph.scopes[path].parameters

    @cached_property
    def _read_of_others(self) -> dict[str, dict[int, int]]:
        """Path of a module -> storages of the parameters that it reads and another module has, such as tied weights ->
        their numbers of elements."""
        columns, tables = self.graph.columns, self.graph.tables
        is_parameter, names = columns["value_role"] == _PARAMETER, [*tables.names, ""]  # the last: of none
        first = np.flatnonzero(is_parameter & (columns["value_view_of"] < 0))[::-1]
        parameter_in = dict(zip(columns["value_storage"][first].tolist(), first.tolist(), strict=True))
        value, call = columns["input_value"], np.repeat(columns["node_call"], np.diff(columns["input_ptr"]))
        read = (value >= 0) & (call >= 0)
        read[read] = is_parameter[value[read]]
        pairs = np.stack([columns["call_module"][call[read]], columns["value_storage"][value[read]]])
        borrowed: dict[str, dict[int, int]] = {}
        for module, storage in np.unique(pairs, axis=1).T.tolist():
            row, parameter = tables.modules[module], parameter_in.get(storage, -1)
            if storage < 0 or parameter < 0 or row.kind != "module":
                continue
            name, path = names[columns["value_parameter"].item(parameter)], row.path
            while path and not name.startswith(path + "."):
                shape = tables.layouts[columns["value_layout"].item(parameter)].shape
                borrowed.setdefault(path, {})[storage] = math.prod(size for size in shape if isinstance(size, int))
                path = path.rpartition(".")[0]
        return borrowed

    def _layer(self, item: Item) -> tuple[str, ...]:
        """The input and output sizes of a small module, such as a convolution with its norm; empty for others."""
        if item.call < 0 or item.alike_only or item.stop - item.start > _FEW_OPS or self.graph.source == "autograd":
            return ()
        return self._sizes.of_block(self.tree.node[item.start : item.stop].tolist())

    def _detail(self, item: Item, room: float) -> tuple[str, ...]:
        """In graphs of autograd: whose gradient is accumulated, or what was saved; empty in other graphs."""
        if self.outline.operation_type(item) == OperationType.ACCUMULATE:
            return self._leaf(item.start, room)
        return (self._saved(item.start, room),) if self.graph.source == "autograd" else ()

    def _gradient(self, item: Item, room: float) -> tuple[str, ...]:
        """The parameter whose gradient an op of backward makes."""
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
        left = room - width("grad of ")
        return (f"grad of {some(made, left) or within(made[0], left)}",) if made else ()

    def _leaf(self, leaf: int, room: float) -> tuple[str, ...]:
        columns, node = self.graph.columns, self.tree.node[leaf]
        values = columns["input_value"][columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
        own = [value for value in values if columns["value_producer"][value] < 0]
        if not own:
            return ()
        name, shape = columns["value_parameter"][own[0]], self.shapes.of_value(own[0])
        if name < 0:
            return (some(shape.split("×"), room, "×"),)
        shape = some(shape.split("×"), room - STYLE.shortest_name - width(BETWEEN), "×")
        return within(clean(self.graph.tables.names[name]), room - width(BETWEEN + shape)), shape

    def _saved(self, leaf: int, room: float) -> str:
        """What an op of autograd keeps for backward: as many tensors as there is room for, or else how many."""
        node = int(self.tree.node[leaf])
        _, values = self._sizes.called(node)
        held = [clean(f"{slot} {self.shapes.of_value(value)}") for slot, value in values.items()]
        words = some(held, room - width("saved "))
        return f"saved {words or f'{len(held):,} tensor' + 's' * (len(held) > 1)}" if held else ""


def _of_parameters(item: Item) -> bool:
    """True if an item is the update of a parameter, or of several in turn."""
    return item.kind == "update" or (
        item.kind == "loop"
        and all(part.kind in ("update", "leaf") for part in item.parts or ())
        and any(part.kind == "update" for part in item.parts or ())
    )


def _main_modules(item: Item) -> list[str]:
    """The classes of the modules in a part of a program, the largest first; empty if there are only single ops."""
    sizes = Counter[str]()
    for part in _modules_in(item):
        sizes[clean(part.type)] += part.end - part.start
    return [name for name, _ in sizes.most_common()]


def _names_of_modules(item: Item) -> list[str]:
    """The names of the modules in a part of a program, in order; a repeat by its first and last name."""
    names: list[str] = []
    for part in _modules_in(item):
        first, dots, last = clean(part.name).partition(" … ")
        if first:
            names.append(first)
        if dots:  # "1.0 … 2" is up to 1.2
            around = first.rpartition(".")[0]
            names.append(f"{around}.{last}" if around and "." not in last else last)
    return names


def _modules_in(item: Item) -> Iterator[Item]:
    for part in item.parts or ():
        if part.kind == "module" or part.call >= 0:
            yield part
        elif part.kind != "leaf":
            yield from _modules_in(part)


def _main_module(item: Item) -> str:
    """The class of the one module that makes up most of a round of a repeat; empty if there is none."""
    largest = max((part for part in item.parts or () if part.kind == "module"), key=_size, default=None)
    if largest is None or _size(largest) < _MOST_OPS * (item.stop - item.start):
        return ""
    return clean(largest.type)


def _modules_of_one_class(item: Item) -> str:
    """The class of the modules in a round of a repeat, if they are all of one class and there is nothing else."""
    parts = item.parts or () if item.kind == "loop" else ()
    classes = {part.type for part in parts if part.kind == "module"}
    if len(parts) < 2 or len(classes) > 1 or any(part.kind != "module" for part in parts):
        return ""
    return f"{sum(part.repeat for part in parts)} {clean(classes.pop())}"


def _size(item: Item) -> int:
    return item.end - item.start
