"""A graph captured with values="replay" -> the instructions of a Program: the one reader of recorded runs.

Ops run in the order of the graph on tensors that share memory as they did, so writes in place and views are the
operators' own. Every value has a register: what an op returned, or a view of the storage that the value lies in. What
a tensor from outside is, and how an op is called, differs: a replay starts from the bytes that were kept (replay.py),
pieces of a partition take the model's own tensors (recorded_pieces.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from torchatlas.capturing.replaying import leaves_of
from torchatlas.errors import NotAvailableError
from torchatlas.execute.operators import argument, operator
from torchatlas.execute.preconditions import checked
from torchatlas.execute.program import ProgramBuilder, Register
from torchatlas.execute.replay_data import Recipe, replay_data
from torchatlas.graph import Graph, NodeKind
from torchatlas.graph.arguments import Call, decode
from torchatlas.graph.columns import KINDS, Layout
from torchatlas.torch_private import OpOverload

Spot = tuple[int, int, int]  # storage, layout, offset: where a value lies


@dataclass(frozen=True, slots=True)
class RecordedOperator:
    """An operator of the graph, and what to call for it: one from a file is called with its arguments checked."""

    name: str
    function: OpOverload
    target: Any
    returns: int  # how many results its schema has
    several: bool  # whether it returns a tuple or a list
    aliases: bool  # whether it returns arguments, or views of them


class RecordedOps:
    """Writes the instructions of a recorded graph, op by op; knows the register of each value and of each storage."""

    def __init__(self, graph: Graph, allow: Iterable[str]) -> None:
        self.graph, self.data, self.builder = graph, replay_data(graph), ProgramBuilder()
        self._allow, columns = frozenset(allow), graph.columns
        self.layouts: list[Layout] = graph.tables.layouts
        self.kinds = [KINDS[kind] for kind in columns["node_kind"].tolist()]
        self.ops = [node for node, kind in enumerate(self.kinds) if kind is NodeKind.OP]
        self.storage: list[int] = columns["value_storage"].tolist()
        self.layout: list[int] = columns["value_layout"].tolist()
        self.offset: list[int] = columns["value_offset"].tolist()
        self.inputs_of = _by_node(columns["input_ptr"], columns["input_value"])
        self.outputs_of = _by_node(columns["output_ptr"], columns["output_value"])
        written = columns["input_written"].astype(bool)
        self.written_of = [  # node -> the inputs that it writes: index and value
            [(index, value) for index, value in enumerate(values) if flags[index]] if any(flags) else []
            for values, flags in zip(self.inputs_of, _by_node(columns["input_ptr"], written), strict=True)
        ]
        self.written_storages = set(columns["value_storage"][columns["input_value"][written]].tolist())
        self._operation, self._arguments = columns["node_operation"].tolist(), columns["node_arguments"].tolist()
        self._calls: dict[int, Call] = {}
        self._operators: dict[int, RecordedOperator] = {}
        self._recipes = {(one.op, one.input): one for one in self.data.recipes}
        self.bits = {(op, index): bits for op, index, bits in self.data.views}
        self.draws = {op: (position, generator) for position, (op, generator, _) in enumerate(self.data.draws)}
        self._registers: dict[int, dict[int, Register]] = {}  # storage -> value -> what holds it
        self.bases: dict[int, Register] = {}  # storage -> the first tensor there, or the storage itself
        self._unusual: dict[Spot, Register] = {}  # tensors that no view of a storage replaces, sparse ones say

    # -- columns -----------------------------------------------------------------------------------------------------

    def layout_of(self, value: int) -> Layout:
        return self.layouts[self.layout[value]]

    def plain_layout(self, value: int) -> Layout:
        """The layout of a tensor that is a view of its storage; NotAvailableError for others."""
        layout = self.layout_of(value)
        if layout.stride is None or not all(isinstance(size, int) for size in (*layout.shape, *layout.stride)):
            raise NotAvailableError(f"a {layout.kind} tensor of {layout.dtype} came from outside and was not kept.")
        return layout

    def spot(self, value: int) -> Spot:
        return self.storage[value], self.layout[value], self.offset[value]

    def call_of(self, node: int) -> Call:
        """The arguments of a node; nodes with equal ones share them."""
        row = self._arguments[node]
        if row not in self._calls:
            self._calls[row] = decode(self.graph.tables.arguments[row])
        return self._calls[row]

    def operator_of(self, node: int) -> RecordedOperator:
        row = self._operation[node]
        if row not in self._operators:
            operation, own = self.graph.tables.operations[row], self.graph.own
            found = operator(operation, self._allow, own=own)
            returns = found._schema.returns
            self._operators[row] = RecordedOperator(
                operation.name,
                found,
                found._op if own else checked(found),
                len(returns),
                len(returns) > 1 or any("List" in str(one.type) for one in returns),
                any(one.alias_info is not None for one in returns),
            )
        return self._operators[row]

    # -- registers ---------------------------------------------------------------------------------------------------

    def add(self, function: Any, *args: Any) -> Register:
        """Append an instruction that is no node of the graph."""
        return self.builder.add("", function, args)

    def register_of(self, value: int, op: int, index: int) -> Register:
        """The register of a value that is input number `index` of op number `op`."""
        of_storage = self._registers.setdefault(self.storage[value], {})
        found = of_storage.get(value)
        if found is None and (recipe := self._recipes.get((op, index))) is not None:
            found = self.built(value, recipe)
            self.hold(value, found)
        if found is None:
            found = self._unusual.get(self.spot(value))
        if found is None:
            found = of_storage[value] = self.tensor(value)
        return found

    def hold(self, value: int, register: Register) -> None:
        """Note that a register holds a value."""
        number = self.storage[value]
        self._registers.setdefault(number, {})[value] = register
        layout = self.layout_of(value)
        if number >= 0 and layout.device != "meta":
            self.bases.setdefault(number, register)
        if _is_unusual(layout):
            self._unusual[self.spot(value)] = register

    def forget(self, storage: int) -> None:
        """Drop the registers of a storage that has changed; views of it are made anew."""
        self._registers.pop(storage, None)

    def unreturned(self, node: int, operator: RecordedOperator) -> dict[int, int]:
        """Values that are tensors an op wrote and did not return, running means say -> which input each is."""
        inputs = {self.spot(value): index for index, value in self.written_of[node]}
        return {
            value: inputs[self.spot(value)]
            for index, value in enumerate(self.outputs_of[node] if inputs else ())
            if self.spot(value) in inputs and (index >= operator.returns or not operator.aliases)
        }

    def hold_results(self, node: int, taken: list[Register], result: Register, operator: RecordedOperator) -> None:
        """Note what holds the values that an op made: what it returned, and the tensors that it only wrote."""
        states = self.unreturned(node, operator)
        for _, value in self.written_of[node]:
            self._registers.get(self.storage[value], {}).pop(value, None)  # the tensor may have another shape now
        for value, index in states.items():
            self._registers.setdefault(self.storage[value], {})[value] = taken[index]
        returned = [value for value in self.outputs_of[node] if value not in states]
        if operator.several:
            for index, value in enumerate(returned):
                self.hold(value, self.add(_returned_tensor, result, index))
        elif returned and operator.returns:
            self.hold(returned[0], result)

    def is_held(self, value: int) -> bool:
        return value in self._registers.get(self.storage[value], ())

    def filled(self, call: Call, taken: list[Any], generator: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with registers in the place of tensors."""
        args = tuple([argument(item, taken, generator) for item in call.args])
        return args, {key: argument(item, taken, generator) for key, item in (call.kwargs or {}).items()}

    # -- what replays and pieces do in different ways ----------------------------------------------------------------

    def built(self, value: int, recipe: Recipe) -> Register:
        """A tensor from outside that is more than a view of a storage."""
        raise NotImplementedError

    def tensor(self, value: int) -> Register:
        """A tensor that no op returned: a view of its storage, which may come from outside."""
        raise NotImplementedError


def _returned_tensor(out: Any, index: int) -> torch.Tensor | None:
    """One of several tensors that an op returned."""
    returned = [item for item in leaves_of(out, []) if isinstance(item, torch.Tensor)]
    return returned[index] if index < len(returned) else None


def _by_node(pointers: Any, items: Any) -> list[list[Any]]:
    listed = items.tolist()
    return [listed[begin:end] for begin, end in pairwise(pointers.tolist())]


def _is_unusual(layout: Layout) -> bool:
    return layout.kind != "strided" or layout.dtype.startswith("q")
