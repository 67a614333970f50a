"""A graph captured with values="replay" -> the same run once more, op by op, from the bytes it was captured with.

The model is not needed: a graph that was loaded from a file, in another process, runs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchatlas.capturing.recording_functions import plan_for
from torchatlas.capturing.replaying import (
    REPLAY,
    as_bytes,
    default_generator,
    digest,
    is_void,
    leaves_of,
    settings,
    written_tensors,
)
from torchatlas.capturing.row_schema import Plan
from torchatlas.capturing.tensors import storages_of
from torchatlas.errors import CaptureError, NotAvailableError
from torchatlas.escapes import clean
from torchatlas.execute.kept import Settings, apply, built, content, fresh_storage, kept_in, view_of
from torchatlas.execute.ops import argument, dtype_named, operator
from torchatlas.execute.preconditions import checked
from torchatlas.graph import Graph
from torchatlas.graph.arguments import Call, decode
from torchatlas.graph.columns import KINDS, ROLES, Array, Layout
from torchatlas.graph.nouns import NodeKind, OperationType, Role
from torchatlas.operations.behaviour import TAKES_STORAGE
from torchatlas.torch_private import no_dispatch_modes

_LASTING = (Role.PARAMETER, Role.BUFFER)


@dataclass(frozen=True)
class Place:
    """An op of the graph: its node, and where the program ran it."""

    node: str
    operation: str
    module: str
    source: str | None

    def __str__(self) -> str:
        return clean(f"{self.node} ({self.operation})" + (f" at {self.source}" if self.source else ""))


@dataclass(frozen=True)
class Unplayed(Place):
    """An op that could not be run again, and why."""

    reason: str

    def __str__(self) -> str:
        return clean(f"{super().__str__()} could not be replayed: {self.reason}")


@dataclass(frozen=True)
class Replay:
    """What running a graph again computed."""

    outputs: tuple[Any, ...]  # what the program returned, one entry per output node, in its structure
    state: dict[str, torch.Tensor]  # parameters and buffers by name, as they are in the end
    gradients: dict[str, torch.Tensor]  # by the name of the parameter


def replay(graph: Graph, *, allow: Iterable[str] = ()) -> Replay:
    """Run a graph captured with values="replay" once more, in id order, from the bytes kept in it.

    The model is not touched. A graph from a file runs only operators that were reviewed (SECURITY.md); `allow`
    adds others by name ("my_ops.scale.default"), or all of a namespace ("my_ops"), for files that you trust.
    """
    machine = Machine(graph, allow, keeps=True)
    machine.run(lambda op, node, leaves: None)
    if machine.stopped is not None:
        raise CaptureError(f"{machine.stopped}") from machine.error
    return Replay(tuple(machine.outputs), machine.named(_LASTING), machine.named((Role.GRADIENT,)))


# -- running -----------------------------------------------------------------------------------------------------------


class Machine:
    """One replay: storages by their number in the graph, tensors by their value; each freed after its last use."""

    def __init__(self, graph: Graph, allow: Iterable[str] = (), keeps: bool = False) -> None:
        self.graph, self.kept, self._keeps = graph, kept_in(graph), keeps
        columns, tables, own = graph.columns, graph.tables, graph.own
        allowed = frozenset(allow) | TAKES_STORAGE  # those run as code of ours, which looks at where storages end
        self.ops: list[int] = np.flatnonzero(columns["node_kind"] == KINDS.index(NodeKind.OP)).tolist()
        used: list[int] = np.unique(columns["node_operation"][self.ops]).tolist()
        used.sort(key=lambda row: tables.operations[row].type != OperationType.COMMUNICATION)  # the plainest reason
        self._plans = {row: _plan(operator(tables.operations[row], allowed, own=own)) for row in used}
        self._run = {row: plan.operator if own else checked(plan.operator) for row, plan in self._plans.items()}
        self._calls: dict[int, Call] = {}
        self._storages: dict[int, Any] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._odd: dict[tuple[int, int, int], torch.Tensor] = {}  # storage, layout, offset
        self._mixed: set[int] = set()  # storages that stand for several: of a sparse tensor
        self._generators: dict[int, torch.Generator] = {}
        self._views = {(op, index): bits for op, index, bits in self.kept.views}
        self._recipes = {(recipe.op, recipe.input): recipe for recipe in self.kept.recipes}
        self._draws = {op: (position, generator) for position, (op, generator, _) in enumerate(self.kept.draws)}
        self._patches: dict[int, list[int]] = {}
        for position, patch in enumerate(self.kept.patches):
            self._patches.setdefault(patch[0], []).append(position)
        self._settings = dict(self.kept.settings)
        self._input_ptr, self._inputs = columns["input_ptr"].tolist(), columns["input_value"].tolist()
        self._output_ptr, self._made = columns["output_ptr"].tolist(), columns["output_value"].tolist()
        self._storage_of: list[int] = columns["value_storage"].tolist()
        self._layout_of: list[int] = columns["value_layout"].tolist()
        self._offset_of: list[int] = columns["value_offset"].tolist()
        late = {patch[1] for patch in self.kept.patches if patch[0] >= self.kept.ops}  # written after the last op
        self._last_of_value, self._last_of_storage = _last_uses(graph, late)
        self.done = 0
        self.ended: dict[int, bool] = {}  # storages from outside: whether they hold what they held in the end
        self.outputs: list[Any] = []
        self.stopped: Unplayed | None = None
        self.error: Exception | None = None

    def run(self, seen: Callable[[int, int, list[Any]], None]) -> None:
        """Run every op; `seen` gets its number, its node, and what it returned and wrote."""
        kinds = self.graph.columns["node_kind"].tolist()
        is_op, is_output = KINDS.index(NodeKind.OP), KINDS.index(NodeKind.OUTPUT)
        with self._world():
            for node, kind in enumerate(kinds):
                try:
                    if kind == is_op:
                        seen(self.done, node, self._step(self.done, node))
                        self.done += 1
                    elif kind == is_output:
                        self._returned(node)
                    self._free(node)
                except Exception as error:
                    self._stop(node, error)
                    return
            try:
                self._patch(self.done)
                for number in map(int, self.kept.last):
                    self._end(number)
            except Exception as error:
                self._stop(len(kinds) - 1, error)

    def _stop(self, node: int, error: Exception) -> None:
        reason = str(error).partition("\n")[0] or type(error).__name__
        self.stopped, self.error = Unplayed(*place(self.graph, node), reason), error

    def _step(self, op: int, node: int) -> list[Any]:
        if op in self._settings:
            apply(self._settings[op])
        self._patch(op)
        columns = self.graph.columns
        row = int(columns["node_operation"][node])
        plan = self._plans[row]
        call = self._call(int(columns["node_arguments"][node]))
        values = self._inputs[self._input_ptr[node] : self._input_ptr[node + 1]]
        tensors = [self._tensor(value, op, index) for index, value in enumerate(values)]
        generator = self._generator(op)
        values_made = self._made[self._output_ptr[node] : self._output_ptr[node + 1]]
        if plan.name in TAKES_STORAGE:
            out, written = self._set(tensors[0], values_made[0]), tensors
        else:
            args = tuple(argument(item, tensors, generator) for item in call.args)
            kwargs = {key: argument(item, tensors, generator) for key, item in (call.kwargs or {}).items()}
            out = self._run[row](*args, **kwargs)
            written = written_tensors(plan, args, kwargs)
        leaves, changed = leaves_of(out, written), {id(tensor) for tensor in written}
        for value, tensor in zip(values, tensors, strict=True):
            if id(tensor) in changed:  # it may have another shape now, and others of this value have not
                self._tensors.pop(value, None)
        returned = [item for item in leaves_of(out, []) if isinstance(item, torch.Tensor)]
        for value, tensor in zip(values_made, returned, strict=False):
            self._register(value, tensor)
        return leaves

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _tensor(self, value: int, op: int, index: int) -> torch.Tensor:
        """An input: what an op returned, or else a view of its storage."""
        found, bits = self._tensors.get(value), self._views.get((op, index), 0)
        if found is not None and (found.is_quantized or found.is_conj() + 2 * found.is_neg() == bits):
            return found
        recipe = self._recipes.get((op, index))
        if recipe is not None:
            found = built(self.graph, recipe, self._layout(value))
            self._register(value, found)
            return found
        key = (self._storage_of[value], self._layout_of[value], self._offset_of[value])
        if key in self._odd:
            return self._odd[key]
        found = self._view(value)
        if not bits:
            self._tensors[value] = found
        found = found.conj() if bits & 1 else found
        return torch.ops.aten._neg_view.default(found) if bits & 2 else found

    def _layout(self, value: int) -> Layout:
        return self.graph.tables.layouts[self._layout_of[value]]

    def _view(self, value: int) -> torch.Tensor:
        layout, offset = self._layout(value), self._offset_of[value]
        shape: Any = layout.shape
        stride: Any = layout.stride
        if stride is None and layout.kind == "strided":  # of a lazy module: nothing is in it yet
            shape, stride = (0,), (1,)
        if stride is None or not all(isinstance(size, int) for size in (*shape, *stride)):
            raise NotAvailableError(f"a {layout.kind} tensor of {layout.dtype} came from outside and was not kept.")
        if layout.device == "meta":
            return torch.empty_strided(shape, stride, dtype=dtype_named(layout.dtype), device="meta")
        storage = self._storage(self._storage_of[value])
        if is_void(storage):
            raise NotAvailableError("a view of zeros that have no memory was made without an op.")
        return view_of(storage, replace(layout, shape=shape, stride=stride), offset)

    def _register(self, value: int, tensor: torch.Tensor) -> None:
        self._tensors[value] = tensor
        number, held = self._storage_of[value], [] if tensor.device.type == "meta" else storages_of(tensor)
        if held and number not in self._storages:
            self._storages[number] = held[-1]
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
            self._mixed.add(number)
        if number in self._mixed:
            self._odd[number, self._layout_of[value], self._offset_of[value]] = tensor

    def _set(self, tensor: torch.Tensor, value: int) -> torch.Tensor:
        """A tensor made to show a storage: which one is known from what came of it."""
        view = self._view(value)
        return tensor.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())

    # -- storages ------------------------------------------------------------------------------------------------------

    def _storage(self, number: int) -> Any:
        """A storage: what an op made, or a copy of what came from outside."""
        if number not in self._storages:
            kept = content(self.graph, f"storage/{number}")
            device = self.graph.tables.devices[self.graph.columns["storage_device"][number]]
            self._storages[number] = fresh_storage(kept, self.kept.misaligned.get(str(number), 0), device)
        return self._storages[number]

    def _patch(self, op: int) -> None:
        """Put in place what was in memory before an op although no recorded op had written it."""
        for position in self._patches.get(op, ()):
            _, number, offset, size, _ = self.kept.patches[position]
            storage, part = self._storage(number), torch.tensor(content(self.graph, f"patch/{position}"))
            if storage.nbytes() != size:
                self._forget(number)
                storage.resize_(size)
            as_bytes(storage)[offset : offset + len(part)] = part.to(storage.device)

    def _forget(self, number: int) -> None:
        """Drop the tensors of a storage that gets another size, as they might reach out of it; _view makes new ones."""
        of = self._storage_of
        self._tensors = {value: tensor for value, tensor in self._tensors.items() if of[value] != number}
        self._odd = {key: tensor for key, tensor in self._odd.items() if key[0] != number}

    def _free(self, node: int) -> None:
        for value in self._last_of_value.get(node, ()):
            self._tensors.pop(value, None)
            if self._storage_of[value] in self._mixed:
                self._odd.pop((self._storage_of[value], self._layout_of[value], self._offset_of[value]), None)
        if self._keeps:
            return
        for number in self._last_of_storage.get(node, ()):
            if str(number) in self.kept.last:
                self._end(number)
            self._storages.pop(number, None)

    def _end(self, number: int) -> None:
        if number not in self.ended:
            self.ended[number] = digest(as_bytes(self._storage(number))).hex() == self.kept.last[str(number)]

    # -- results -------------------------------------------------------------------------------------------------------

    def _returned(self, node: int) -> None:
        if not self._keeps:
            return
        values = self._inputs[self._input_ptr[node] : self._input_ptr[node + 1]]
        tensors = [self._tensor(value, -1, index).clone() for index, value in enumerate(values)]
        call = self._call(int(self.graph.columns["node_arguments"][node]))
        self.outputs += [argument(item, tensors, None) for item in call.args]

    def named(self, roles: tuple[Role, ...]) -> dict[str, torch.Tensor]:
        """The tensors of some roles that have a name, in their last state."""
        columns, wanted = self.graph.columns, [ROLES.index(role) for role in roles]
        chosen = np.isin(columns["value_role"], wanted) & (columns["value_parameter"] >= 0)
        last = {int(columns["value_parameter"][value]): int(value) for value in np.flatnonzero(chosen)}
        names = self.graph.tables.names
        return {names[name]: self._tensor(value, -1, -1) for name, value in last.items() if self._is_here(value)}

    def _is_here(self, value: int) -> bool:
        number = self._storage_of[value]
        return number in self._storages or f"{REPLAY}storage/{number}" in self.graph.recorded

    # -- arguments and the world ---------------------------------------------------------------------------------------

    def _call(self, row: int) -> Call:
        if row not in self._calls:
            self._calls[row] = decode(self.graph.tables.arguments[row])
        return self._calls[row]

    def _generator(self, op: int) -> torch.Generator | None:
        """The generator an op draws from, in the state it had then."""
        if op not in self._draws:
            return None
        position, number = self._draws[op]
        if number not in self._generators:
            device, is_default = self.kept.generators[number]
            found = default_generator(torch.device(device)) if is_default else torch.Generator(torch.device(device))
            self._generators[number] = found
        if self.kept.draws[position][2]:
            self._generators[number].set_state(torch.tensor(content(self.graph, f"state/{position}")))
        return self._generators[number]

    @contextmanager
    def _world(self) -> Iterator[None]:
        """No gradients, no modes, no autocast; generators and settings are afterwards as before."""
        devices = {device.partition(":")[0] for device in self.graph.tables.devices} - {"meta"}
        before = Settings(**settings())
        with ExitStack() as stack:
            for context in (no_dispatch_modes(), torch.inference_mode(False), torch.no_grad()):
                stack.enter_context(context)
            for device in devices:
                if torch.amp.is_autocast_available(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            # A file may leave out from which generator an op draws.
            used = {"cpu", *(device for device, is_default in self.kept.generators if is_default)}
            drawn_from = [default_generator(torch.device(device)) for device in sorted(used)]
            states = [generator.get_state() for generator in drawn_from]
            try:
                yield
            finally:
                apply(before)
                for generator, state in zip(drawn_from, states, strict=True):
                    generator.set_state(state)


def _plan(found: Any) -> Plan:
    plan = plan_for(found)
    if not plan.readable:
        raise NotAvailableError(f"{plan.name} cannot be replayed: its schema hides which of its arguments are tensors.")
    return plan


def _last_uses(graph: Graph, late: set[int]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The values and the storages that are used for the last time at each node; some storages are used later still."""
    columns = graph.columns
    nodes = np.arange(len(graph))
    last = np.full(len(columns["value_storage"]), -1, np.int64)
    for name in ("input", "output"):
        np.maximum.at(last, columns[f"{name}_value"], np.repeat(nodes, np.diff(columns[f"{name}_ptr"])))
    storages = np.full(len(columns["storage_bytes"]), -1, np.int64)
    here = columns["value_storage"] >= 0
    np.maximum.at(storages, columns["value_storage"][here], last[here])
    storages[list(late)] = len(graph)
    return _by_node(last), _by_node(storages)


def _by_node(last: Array) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, node in enumerate(last.tolist()):
        found.setdefault(node, []).append(row)
    return found


def place(graph: Graph, node: int) -> tuple[str, str, str, str | None]:
    """What a Place is made of."""
    found = graph.nodes[node]
    return found.name, found.operation, found.scope.path, None if found.source is None else str(found.source)
