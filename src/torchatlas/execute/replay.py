"""A graph captured with values="replay" -> the same run once more, op by op, from the bytes it was captured with.

The model is not needed: a graph that was loaded from a file, in another process, runs as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchatlas.capturing.record_op import plan_for
from torchatlas.capturing.replaying import REPLAY, default_generator, settings
from torchatlas.capturing.tensor_bytes import as_bytes, digest, is_void
from torchatlas.capturing.tensors import storages_of
from torchatlas.errors import CaptureError, NotAvailableError
from torchatlas.escapes import clean
from torchatlas.execute.node_values import value_text
from torchatlas.execute.operators import argument, dtype_named
from torchatlas.execute.program import Failed, Instruction, Observer, Program, Register
from torchatlas.execute.recorded_program import (
    Recipe,
    RecordedOps,
    Settings,
    apply,
    built,
    content,
    fresh_storage,
    view_of,
)
from torchatlas.graph import Graph
from torchatlas.graph.columns import ROLES, Layout
from torchatlas.graph.nouns import NodeKind, OperationType, Role
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.operations.behaviour import TAKES_STORAGE
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import OpOverload, no_dispatch_modes

_LASTING = (Role.PARAMETER, Role.BUFFER)
_MOST_ROWS = 40


@dataclass(frozen=True, repr=False)
class OpLocation(ShownPart):
    """An op of the graph: its node, and where the program ran it."""

    node: str
    operation: str
    module: str
    source: str | None

    def __str__(self) -> str:
        return clean(f"{self.node} ({self.operation})" + (f" at {self.source}" if self.source else ""))


@dataclass(frozen=True, repr=False)
class Unplayed(OpLocation):
    """An op that could not be run again, and why."""

    reason: str

    def __str__(self) -> str:
        return clean(f"{super().__str__()} could not be replayed: {self.reason}")


@dataclass(frozen=True, repr=False)
class Replay(Shown):
    """What running a graph again computed."""

    outputs: tuple[Any, ...]  # what the program returned, one entry per output node, in its structure
    state: dict[str, torch.Tensor]  # parameters and buffers by name, as they are in the end
    gradients: dict[str, torch.Tensor]  # by the name of the parameter

    def _sections(self) -> Iterator[Section]:
        counts = f"parameters and buffers: {len(self.state):,}, gradients: {len(self.gradients):,}"
        yield Lines([f"replayed; outputs: {len(self.outputs):,}, {counts}"])
        rows = [[f"output {number}", value_text(one)] for number, one in enumerate(self.outputs)]
        rows += [[name, value_text(one)] for name, one in self.state.items()]
        rows += [[f"gradient of {name}", value_text(one)] for name, one in self.gradients.items()]
        left = len(rows) - _MOST_ROWS
        yield Table(["what", "value"], rows[:_MOST_ROWS], below=f"{left:,} more" if left > 0 else "")


def replay(graph: Graph, *, allow: Iterable[str] = ()) -> Replay:
    """Run a graph captured with values="replay" once more, in id order, from the bytes kept in it.

    The model is not touched. A graph from a file runs only operators that were reviewed (SECURITY.md); `allow`
    adds others by name ("my_ops.scale.default"), or all of a namespace ("my_ops"), for files that you trust.
    """
    program = ReplayProgram(graph, allow)
    results = program.run(ReplayObserver(), returns=True)
    if program.stopped is not None:
        raise CaptureError(f"{program.stopped}") from program.error
    return Replay(*results)


# -- running -----------------------------------------------------------------------------------------------------------


class ReplayObserver(Observer):
    """Counts the ops of a graph that were run again."""

    done = 0

    def begin(self, program: Program, registers: list[Any]) -> None:
        self.registers = registers

    def after(self, instruction: Instruction, args: Any, kwargs: dict[str, Any]) -> None:
        if isinstance(instruction.function, OpOverload):
            self.ran(instruction, args, kwargs)
            self.done += 1

    def ran(self, instruction: Instruction, args: Any, kwargs: dict[str, Any]) -> None:
        """An op has run; the name of its instruction is the number of its node."""


@contextmanager
def _world(graph: Graph, generators: list[tuple[str, bool]]) -> Iterator[None]:
    """A context without gradients, modes and autocast; generators and settings are afterwards as before."""
    devices = {device.partition(":")[0] for device in graph.tables.devices} - {"meta"}
    before = Settings(**settings())
    with ExitStack() as stack:
        for context in (no_dispatch_modes(), torch.inference_mode(False), torch.no_grad()):
            stack.enter_context(context)
        for device in devices:
            if torch.amp.is_autocast_available(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        # A file may leave out from which generator an op draws.
        used = {"cpu", *(device for device, is_default in generators if is_default)}
        drawn_from = [default_generator(torch.device(device)) for device in sorted(used)]
        states = [generator.get_state() for generator in drawn_from]
        try:
            yield
        finally:
            apply(before)
            for generator, state in zip(drawn_from, states, strict=True):
                generator.set_state(state)


def op_location(graph: Graph, node: int) -> tuple[str, str, str, str | None]:
    """The fields of an OpLocation."""
    op = graph.nodes[node]
    return op.name, op.operation, op.scope.path, None if op.source is None else str(op.source)


# -- the program -------------------------------------------------------------------------------------------------------


class ReplayProgram(RecordedOps):
    """A recorded graph that runs again: tensors from outside are made of the bytes that were kept."""

    def __init__(self, graph: Graph, allow: Iterable[str]) -> None:
        # those that take a storage run as code of ours, which looks at where storages end
        super().__init__(graph, frozenset(allow) | TAKES_STORAGE)
        self.ended: dict[int, bool] = {}  # storages from outside: whether they hold what they held in the end
        self.stopped: Unplayed | None = None  # the op at which a run ended early
        self.error: Exception | None = None
        self._generators: dict[int, torch.Generator] = {}
        self._settings = dict(self.data.settings)
        self._patches: dict[int, list[int]] = {}
        for position, patch in enumerate(self.data.patches):
            self._patches.setdefault(patch[0], []).append(position)
        # Only these have views whose numbers are conjugated or negated when they are read.
        self._lazy_views = bool(self.bits) or any(layout.dtype.startswith("complex") for layout in self.layouts)
        self._check_operators()

    def _check_operators(self) -> None:
        """Refuse a graph that calls what cannot be called; collectives first, which is the plainest reason."""
        rows = {self._operation[node]: node for node in self.ops}
        operations = self.graph.tables.operations
        for row in sorted(rows, key=lambda row: operations[row].type != OperationType.COMMUNICATION):
            plan = plan_for(self.operator_of(rows[row]).function)
            if not plan.readable:
                raise NotAvailableError(
                    f"{plan.name} cannot be replayed: its schema hides which of its arguments are tensors."
                )

    def run(self, observer: ReplayObserver, *, returns: bool = False) -> list[Any]:
        """Run it to its end, or to the first op that cannot be run.

        With `returns` the results are what the program returned, its state and its gradients. Without, memory is freed
        after its last use, and storages from outside are then compared with what they held in the end.
        """
        program = self._program(returns)
        with _world(self.graph, self.data.generators):
            try:
                return program.run([], dict[str, Any]().__getitem__, observer)
            except Exception as error:
                self.error = error.error if isinstance(error, Failed) else error
                node = self.ops[observer.done] if observer.done < len(self.ops) else len(self.kinds) - 1
                if isinstance(error, Failed) and error.name:
                    node = int(error.name)
                reason = str(self.error).partition("\n")[0] or type(self.error).__name__
                self.stopped = Unplayed(*op_location(self.graph, node), reason)
        return []

    def _program(self, returns: bool) -> Program:
        """All instructions. What cannot be decoded becomes one that raises, so that all before it runs."""
        ends = {} if returns else self._last_uses()
        outputs: list[Any] = []
        results: list[Any] = []
        op = node = 0
        try:
            for node, kind in enumerate(self.kinds):
                if kind is NodeKind.OP:
                    self._op(op, node)
                    op += 1
                elif kind is NodeKind.OUTPUT and returns:
                    outputs += self._returned(node)
                self._end(ends.get(node, ()))
            self._patch(op)
            self._end(ends.get(len(self.kinds), ()))
            if returns:
                results = [tuple(outputs), self._named(_LASTING), self._named((Role.GRADIENT,))]
        except Exception as error:
            self.builder.add(str(node), _raise, (error,))
        return self.builder.program(results)

    def _op(self, op: int, node: int) -> None:
        if op in self._settings:
            self.add(apply, self._settings[op])
        self._patch(op)
        operator, inputs = self.operator_of(node), self.inputs_of[node]
        taken = [self.register_of(value, op, index) for index, value in enumerate(inputs)]
        if self._lazy_views:
            for index, value in enumerate(inputs):
                bits = self.bits.get((op, index), 0)
                taken[index] = self.add(_with_bits, taken[index], bits, self.layout_of(value), self.offset[value])
        generator = self._generator(op)
        self._detach_bases(node, taken)
        if operator.name in TAKES_STORAGE:
            shown = self.tensor(self.outputs_of[node][0])
            result = self.builder.add(str(node), operator.function, (taken[0], shown), None, _set)
        else:
            args, kwargs = argument(self.call_of(node), taken, generator)
            result = self.builder.add(str(node), operator.function, args, kwargs, operator.target)
        self.hold_results(node, taken, result, operator)

    def _detach_bases(self, node: int, taken: list[Register]) -> None:
        """Before a tensor is made to show another storage: keep the storage that other registers reach through it."""
        made = {self.storage[value] for value in self.outputs_of[node]}
        for index, value in self.written_of[node]:
            number = self.storage[value]
            if number not in made and self.bases.get(number) == taken[index]:
                self.bases[number] = self.add(_storage, taken[index])

    def _generator(self, op: int) -> torch.Generator | None:
        """The generator an op draws from; before the op it gets the state it had then."""
        if op not in self.draws:
            return None
        position, number = self.draws[op]
        if number not in self._generators:
            device, is_default = self.data.generators[number]
            generator = default_generator(torch.device(device)) if is_default else torch.Generator(torch.device(device))
            self._generators[number] = generator
        if self.data.draws[position][2]:
            self.add(_set_state, self._generators[number], self.graph, position)
        return self._generators[number]

    # -- tensors and storages ----------------------------------------------------------------------------------------

    def built(self, value: int, recipe: Recipe) -> Register:
        return self.add(built, self.graph, recipe, self.layout_of(value))

    def tensor(self, value: int) -> Register:
        layout = self.layout_of(value)
        is_lazy = layout.stride is None and layout.kind == "strided"  # of a lazy module: nothing is in it yet
        layout = replace(layout, shape=(0,), stride=(1,)) if is_lazy else self.plain_layout(value)
        if layout.device == "meta":
            shape, options = (layout.shape, layout.stride), {"dtype": dtype_named(layout.dtype), "device": "meta"}
            return self.builder.add("", torch.empty_strided, shape, options)
        return self.add(_view, self._base(self.storage[value]), layout, self.offset[value])

    def _base(self, number: int) -> Register:
        """What holds a storage: a tensor that an op made there, or a copy of what came from outside."""
        if number not in self.bases:
            device = self.graph.tables.devices[self.graph.columns["storage_device"][number]]
            misaligned = self.data.misaligned.get(str(number), 0)
            self.bases[number] = self.add(_loaded, self.graph, number, misaligned, device)
        return self.bases[number]

    def _patch(self, op: int) -> None:
        """Restore bytes that were in memory before an op although no recorded op had written them."""
        for position in self._patches.get(op, ()):
            _, number, offset, size, _ = self.data.patches[position]
            self.bases[number] = self.add(_patched, self._base(number), self.graph, position, offset, size)
            self.forget(number)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _last_uses(self) -> dict[int, list[int]]:
        """Node -> the storages from outside whose last use it is; storages used to the end are under the node count."""
        end = len(self.kinds)
        last = {self.storage[v]: n for n in range(end) for v in (*self.inputs_of[n], *self.outputs_of[n])}
        last.update({patch[1]: end for patch in self.data.patches if patch[0] >= self.data.ops})
        by_node: dict[int, list[int]] = {}
        for number in map(int, self.data.last):
            by_node.setdefault(last.get(number, end), []).append(number)
        return by_node

    def _end(self, storages: Iterable[int]) -> None:
        for number in storages:
            self.add(self._compare_end, self._base(number), number)

    def _compare_end(self, base: Any, number: int) -> None:
        self.ended[number] = digest(as_bytes(_storage(base))).hex() == self.data.last[str(number)]

    def _returned(self, node: int) -> list[Any]:
        """What the program returned, in its structure; copied, since ops may write to it afterwards."""
        values = self.inputs_of[node]
        taken = [self.register_of(value, -1, index) for index, value in enumerate(values)]
        copies = [self.builder.add(str(node), torch.clone, (register,)) for register in taken]
        return list(argument(self.call_of(node), copies)[0])

    def _named(self, roles: tuple[Role, ...]) -> dict[str, Register]:
        """The tensors of some roles that have a name, in their last state."""
        columns, wanted = self.graph.columns, [ROLES.index(role) for role in roles]
        chosen = np.isin(columns["value_role"], wanted) & (columns["value_parameter"] >= 0)
        last = {int(columns["value_parameter"][value]): int(value) for value in np.flatnonzero(chosen)}
        names = self.graph.tables.names
        here = {name: value for name, value in last.items() if self._has_storage(self.storage[value])}
        return {names[name]: self.register_of(value, -1, -1) for name, value in here.items()}

    def _has_storage(self, number: int) -> bool:
        return number in self.bases or f"{REPLAY}storage/{number}" in self.graph.recorded


# -- instructions that are no ops --------------------------------------------------------------------------------------


def _raise(error: Exception) -> None:
    raise error


def _storage(base: Any) -> Any:
    """The storage of a tensor, of a sparse one that of its values; a storage is its own."""
    if not isinstance(base, torch.Tensor):
        return base
    held = storages_of(base)
    if not held:
        raise NotAvailableError("a tensor that does not tell its memory is viewed without an op.")
    return held[-1]


def _loaded(graph: Graph, number: int, misaligned: int, device: str) -> Any:
    return fresh_storage(content(graph, f"storage/{number}"), misaligned, device)


def _view(base: Any, layout: Layout, offset: int) -> torch.Tensor:
    storage = _storage(base)
    if is_void(storage):
        raise NotAvailableError("a view of zeros that have no memory was made without an op.")
    return view_of(storage, layout, offset)


def _with_bits(tensor: torch.Tensor, bits: int, layout: Layout, offset: int) -> torch.Tensor:
    """A tensor that is conjugated (1) and negated (2) as `bits` say: itself, or another view of its memory."""
    if tensor.is_quantized or tensor.is_conj() + 2 * tensor.is_neg() == bits:
        return tensor
    tensor = _view(tensor, layout, offset)
    tensor = tensor.conj() if bits & 1 else tensor
    return torch.ops.aten._neg_view.default(tensor) if bits & 2 else tensor


def _set(tensor: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Make a tensor show the storage that `view` shows, which is what the recorded op returned."""
    return tensor.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def _set_state(generator: torch.Generator, graph: Graph, position: int) -> None:
    generator.set_state(torch.tensor(content(graph, f"state/{position}")))


def _patched(base: Any, graph: Graph, position: int, offset: int, size: int) -> Any:
    """A storage with other bytes in it. One of another size is a new one: tensors cannot reach out of what shrinks."""
    storage, part = _storage(base), torch.tensor(content(graph, f"patch/{position}"))
    if storage.nbytes() != size:
        before, storage = as_bytes(storage), torch.UntypedStorage(size, device=storage.device)
        as_bytes(storage)[: len(before)] = before[:size]
    as_bytes(storage)[offset : offset + len(part)] = part.to(storage.device)
    return storage
