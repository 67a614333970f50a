"""A graph captured with values="replay" -> a Program that a partition can cut, and that keeps to the recorded path.

Parameters and buffers are the model's, if it is at hand; else what was kept, as other tensors from outside are.

A recorded run is one path. Numbers that the program read, and results whose size depends on what is in a tensor, have
decided it; where one of them differs, nothing that comes after would be what the model computes. So `Input` compares
inputs with the recorded ones, and `guarded` compares the results of ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from torchatlas.capturing.replaying import CHANGED, REPLAY, leaves_of
from torchatlas.capturing.tensor_bytes import fingerprint
from torchatlas.errors import InputMismatchError, NotAvailableError
from torchatlas.execute.operators import argument, dtype_named
from torchatlas.execute.program import Program, Register
from torchatlas.execute.recorded_program import (
    Recipe,
    RecordedOperator,
    RecordedOps,
    array,
    built,
    content,
    fresh_storage,
    view_of,
)
from torchatlas.execute.recorded_run import TENSOR, CallStructure, LiveRun, Read, rebuilt, structure_of
from torchatlas.execute.replay import OpLocation, op_location
from torchatlas.graph import Graph, NodeKind, Phase
from torchatlas.graph.arguments import Constant
from torchatlas.graph.columns import PHASES
from torchatlas.inputs import argument_names, named_tensors
from torchatlas.operations.behaviour import TAKES_STORAGE

AGAIN = "Partition the model again with these inputs."

# -- inputs and outputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """One tensor that the program takes, as it was when recorded."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    digest: bytes | None  # if its numbers decide the path, or may: then it must be equal
    reader: str = "the program reads them past the operators"

    def refused(self, tensor: torch.Tensor) -> str | None:
        """Why a tensor cannot take its place."""
        if tuple(tensor.shape) != self.shape or tensor.dtype is not self.dtype:
            return f"is {tensor.dtype} {list(tensor.shape)}, and was {self.dtype} {list(self.shape)}"
        if tensor.layout is not torch.strided or tensor.device != torch.device(self.device):
            return f"is {tensor.layout} on {tensor.device}, and was torch.strided on {self.device}"
        if any(a != b for a, b, size in zip(tensor.stride(), self.stride, self.shape, strict=True) if size > 1):
            return f"has the strides {tensor.stride()}, and had {self.stride}"
        if self.digest is not None and fingerprint(tensor) != self.digest:
            return f"holds other numbers, and {self.reader}"
        return None


@dataclass(frozen=True, eq=False)
class RecordedProgram:
    """A program with flat inputs, and what maps the model's inputs and outputs to those of the program.

    Its instructions are named after the nodes of the graph.
    """

    program: Program = field(repr=False)
    constants: dict[str, torch.Tensor] = field(repr=False)  # what the program takes by name: parameters, say
    draws: frozenset[str]  # nodes that take random numbers
    inputs: tuple[Input, ...]
    written: tuple[torch.Tensor, ...] = field(repr=False)  # tensors from outside that each run writes anew
    result: Any = field(repr=False)  # references in place of tensors
    call_structure: CallStructure | None = field(default=None, repr=False)  # None: of a graph alone

    def call(self, whole: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model returns, computed by `whole`, a module that takes what the program takes."""
        flat = self._flat(args, kwargs)
        for one, tensor in zip(self.inputs, flat, strict=True):
            if (why := one.refused(tensor)) is not None:
                raise InputMismatchError(f"Pieces of a recorded run take what was recorded: {one.name} {why}. {AGAIN}")
        made = whole(*flat, *(tensor.clone() for tensor in self.written))
        return rebuilt(self.result, lambda reference: made[reference.index])

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call in the order of the inputs."""
        if self.call_structure is None:
            flat = [tensor for _, tensor in named_tensors((args, kwargs))]
            if len(flat) != len(self.inputs):
                expected = ", ".join(one.name for one in self.inputs)
                raise InputMismatchError(f"{len(flat)} tensors, and the run takes {len(self.inputs)}: {expected}.")
            return flat
        model, recorded = self.call_structure.model, self.call_structure.structure
        named = argument_names(model, args, kwargs)
        if (structure := structure_of(model, named)) != recorded:
            raise InputMismatchError(
                "Pieces of a recorded run take what was recorded: there the inputs were "
                f"{_described(recorded)}, these are {_described(structure)}. {AGAIN}"
            )
        tensors = dict(named_tensors(named))
        for later, first in self.call_structure.aliases.items():
            if tensors[later] is not tensors[first]:
                raise InputMismatchError(f"{later} and {first} were one tensor when it was recorded. {AGAIN}")
        return [tensors[one.name] for one in self.inputs]


def _described(structure: Any) -> str:
    return repr(structure).replace(repr(TENSOR), "tensor")


# -- results of ops ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedResults:
    """What an operator returned when it was recorded."""

    location: str  # the node, its operation and its line
    tensors: tuple[tuple[tuple[int, ...] | None, torch.dtype], ...]  # shape (None: not compared) and dtype
    digests: tuple[bytes, ...]  # of all it returned, in order
    read: frozenset[int] = frozenset()  # which tensors among them the program read: these must be equal to the bit


def guarded(operator: RecordedOperator, expected: ExpectedResults, *, grad: bool, device: str) -> Callable[..., Any]:
    """An operator as a function that checks what it returned. Several results come as a flat tuple.

    Autocast is off: its casts were recorded as operators. Where no gradients were wanted none are.
    """
    target, several = operator.target, operator.several

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(device) or (not grad and torch.is_grad_enabled()):
            with torch.autocast(device, enabled=False), torch.set_grad_enabled(grad and torch.is_grad_enabled()):
                out = target(*args, **kwargs)
        else:
            out = target(*args, **kwargs)
        leaves = leaves_of(out, [])
        _check(leaves, expected)
        return tuple(one for one in leaves if isinstance(one, torch.Tensor)) if several else out

    run.__name__ = run.__qualname__ = "".join(char if char.isalnum() else "_" for char in operator.name)
    return run


def _check(leaves: list[Any], expected: ExpectedResults) -> None:
    """Refuse results that differ from the recorded ones in what decides the path."""
    number = 0
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            if index < len(expected.digests) and fingerprint(leaf) != expected.digests[index]:
                raise _left(expected, f"reads {leaf!r}, which was another number")
            continue
        if number >= len(expected.tensors):
            raise _left(expected, f"returns more than {number} tensors")
        shape, dtype = expected.tensors[number]
        if shape is not None and leaf.shape != shape:
            raise _left(expected, f"makes a tensor of the shape {list(leaf.shape)}, which was {list(shape)}")
        if leaf.dtype is not dtype:
            raise _left(expected, f"makes a tensor of {leaf.dtype}, which was {dtype}")
        if number in expected.read and fingerprint(leaf) != expected.digests[index]:
            raise _left(expected, "makes other numbers, and the program read these past the operators")
        number += 1


def _left(expected: ExpectedResults, what: str) -> InputMismatchError:
    return InputMismatchError(
        f"These inputs take another path than the recorded run: {expected.location} {what}. {AGAIN}"
    )


# Of these the program reads a result without an operator: the LSTM kernels look at the sizes of batches.
_READ_BY_TORCH = {"aten._pack_padded_sequence.default": 1}
_UNKNOWN_READS = (
    "of a graph alone nobody knows what the program read of them past the operators; cut the model itself, with its "
    "inputs, and they may be others"
)
_READ_INPUT = ".batch_sizes"  # of a torch.nn.utils.rnn.PackedSequence


def program_of(graph: Graph, live: LiveRun | None = None) -> RecordedProgram:
    """The program of a recorded run; `live` has the model's own tensors, if the model is at hand.

    NotAvailableError says what cannot be run again, and why.
    """
    return _Pieces(graph, live).program()


class _Pieces(RecordedOps):
    """The instructions of pieces: every op is guarded, and a run that operators alone cannot repeat is refused."""

    def __init__(self, graph: Graph, live: LiveRun | None) -> None:
        super().__init__(graph, ())
        self.live = live
        self.constants: dict[str, torch.Tensor] = {}
        self.written: list[torch.Tensor] = []
        self.layout_in: dict[Register, tuple[int, int]] = {}  # layout and offset of the tensor in a register
        pointers, digests = array(graph, "digest_pointers").tolist(), array(graph, "digests")
        self.digests = [[one.tobytes() for one in digests[a:b]] for a, b in pairwise(pointers)]
        self._refuse()
        self.read, self.read_inputs = self._reads()

    def _refuse(self) -> None:
        """Refuse a run that operators alone cannot repeat."""
        columns, graph = self.graph.columns, self.graph
        phases = {PHASES[phase] for phase in np.unique(columns["node_phase"][self.ops]).tolist()}
        if phases & {Phase.BACKWARD, Phase.OPTIMIZER}:
            raise NotAvailableError("This run holds a backward pass. Capture the forward pass alone to have pieces.")
        for op, _, _, _, why in self.data.patches:
            if why == CHANGED:
                near = OpLocation(*op_location(graph, self.ops[min(op, len(self.ops) - 1)]))
                raise NotAvailableError(
                    f"Before {near} something that is no operator, numpy say, wrote into a tensor: operators alone do "
                    "not compute what this model does."
                )
        for op, (_, generator) in self.draws.items():
            if not self.data.generators[generator][1]:
                raise NotAvailableError(
                    f"{graph.nodes[self.ops[op]].name} draws from a generator of its own, which is not in the graph."
                )
        owners: dict[int, str] = {}
        for node, kind in enumerate(self.kinds):
            if kind is NodeKind.INPUT and self.outputs_of[node]:
                storage, name = self.storage[self.outputs_of[node][0]], graph.nodes[node].name
                if storage in self.written_storages and owners.setdefault(storage, name) != name:
                    raise NotAvailableError(f"{owners[storage]} and {name} share memory that this model writes.")

    def _reads(self) -> tuple[dict[int, set[int]], dict[int, bytes]]:
        """What the program read past the operators: positions of results by node, and digests of inputs by value."""
        made: dict[int, set[int]] = {}
        input_digests: dict[int, bytes] = {}
        from_ops = {self.storage[value] for values in self.outputs_of for value in values}
        writes = [(node, self.storage[value]) for node, written in enumerate(self.written_of) for _, value in written]
        for read in self.live.reads if self.live is not None else ():
            found = self._value_read(read)
            end = self.ops[read.ops] if read.ops < len(self.ops) else len(self.kinds)
            last = max((node for node, storage in writes if storage == read.storage and node < end), default=-1)
            if found is None:
                if last < 0 and read.storage not in from_ops:
                    continue  # it is always the same
                raise NotAvailableError(f"{read.how}() read a tensor that no operator has made as it was then.")
            node, index, value = found
            if last > node:
                raise NotAvailableError(
                    f"{read.how}() read what {self.graph.nodes[last].name} had written into a part of a tensor."
                )
            if self.kinds[node] is NodeKind.INPUT:
                input_digests[value] = read.digest
            else:
                made.setdefault(node, set()).add(index)
        return made, input_digests

    def _value_read(self, read: Read) -> tuple[int, int, int] | None:
        """The last node before a read that returned this tensor: node, index and value."""
        end = self.ops[read.ops] if read.ops < len(self.ops) else len(self.kinds)
        for node in range(end - 1, -1, -1):
            for index, value in enumerate(self.outputs_of[node]):
                layout = self.layout_of(value)
                same = (layout.shape, layout.stride, self.offset[value]) == (read.shape, read.stride, read.offset)
                if self.storage[value] == read.storage and same:
                    return node, index, value
        return None

    # -- the program -------------------------------------------------------------------------------------------------

    def program(self) -> RecordedProgram:
        """The whole run as one program."""
        inputs = [self._input(node) for node, kind in enumerate(self.kinds) if kind is NodeKind.INPUT]
        self._written_from_outside()
        settings, grad = dict(self.data.settings), True
        results: list[Any] = []
        structure: Any = None
        op = 0
        for node, kind in enumerate(self.kinds):
            if kind is NodeKind.OP:
                grad = settings[op].grad if op in settings else grad
                self._op(op, node, grad)
                op += 1
            elif kind is NodeKind.OUTPUT:
                results = [self.register_of(value, -1, at) for at, value in enumerate(self.inputs_of[node])]
                structure = self.call_of(node)[0][0]
        if self.live is not None:
            structure = self.live.result
            if (count := _count(structure)) != len(results):
                raise NotAvailableError(f"The model returns {count} tensors, and {len(results)} were recorded.")
        return RecordedProgram(
            self.builder.program(results),
            self.constants,
            frozenset(self.graph.nodes[node].name for op, node in enumerate(self.ops) if op in self.draws),
            tuple(inputs),
            tuple(self.written),
            structure,
            None if self.live is None else self.live.call_structure,
        )

    def _input(self, node: int) -> Input:
        name, (value,) = self.graph.nodes[node].name, self.outputs_of[node]
        layout = self.layout_of(value)
        if layout.kind != "strided" or layout.stride is None:
            raise NotAvailableError(f"{name} is a {layout.kind} tensor; pieces take plain ones.")
        self._take(value, name)
        digest, reader = self.read_inputs.get(value), Input.reader
        decides = self.live is None or name.endswith(_READ_INPUT)
        if digest is None and decides and f"{REPLAY}storage/{self.storage[value]}" in self.graph.recorded:
            digest = fingerprint(self._content(value))
            reader = Input.reader if self.live is not None else _UNKNOWN_READS
        shape: Any = layout.shape
        stride: Any = layout.stride
        return Input(name, shape, stride, dtype_named(layout.dtype), layout.device, digest, reader)

    def _take(self, value: int, name: str) -> None:
        """Have the program take a value as an input."""
        register = self.builder.register(name)
        self.builder.inputs.append(register.number)
        self.hold(value, register)

    def _op(self, op: int, node: int, grad: bool) -> None:
        where = OpLocation(*op_location(self.graph, node))
        if where.operation in TAKES_STORAGE:
            raise NotAvailableError(f"{where} lets a tensor show other memory, which pieces cannot do.")
        try:
            operator = self.operator_of(node)
            taken = [self.register_of(value, op, index) for index, value in enumerate(self.inputs_of[node])]
            args, kwargs = argument(_without_generators(self.call_of(node)), taken)
        except NotAvailableError as error:
            raise NotAvailableError(f"{where} cannot be run again: {error}") from error
        states = self.unreturned(node, operator)
        returned = [value for value in self.outputs_of[node] if value not in states]
        read = self._read_of(node, where.operation, returned)
        expected = ExpectedResults(str(where), tuple(map(self._looks, returned)), tuple(self.digests[op]), read)
        target = guarded(operator, expected, grad=grad, device=self._device(node))
        result = self.builder.add(where.node, operator.function, args, kwargs, target)
        self.hold_results(node, taken, result, operator)

    def hold(self, value: int, register: Register) -> None:
        super().hold(value, register)
        self.layout_in[register] = (self.layout[value], self.offset[value])

    def hold_results(self, node: int, taken: list[Register], result: Register, operator: RecordedOperator) -> None:
        super().hold_results(node, taken, result, operator)
        made = {self.spot(value) for value in self.outputs_of[node]}
        for index, value in self.written_of[node]:
            if self.spot(value) not in made:  # the tensor has another shape now
                self.layout_in.pop(taken[index], None)

    def _read_of(self, node: int, operation: str, returned: list[int]) -> frozenset[int]:
        """Positions of the returned tensors that must be equal to the recorded ones, bit for bit."""
        made = self.outputs_of[node]
        read = [made[index] for index in self.read.get(node, ())]
        if any(value not in returned for value in read):
            raise NotAvailableError(f"The program read what {self.graph.nodes[node].name} wrote into a tensor.")
        more = {_READ_BY_TORCH[operation]} if operation in _READ_BY_TORCH else set()
        return frozenset({returned.index(value) for value in read} | more)

    def _looks(self, value: int) -> tuple[tuple[int, ...] | None, torch.dtype]:
        layout = self.layout_of(value)
        shape = layout.shape if layout.kind == "strided" else None
        plain = None if shape is None else tuple(size for size in shape if isinstance(size, int))
        return plain if plain is not None and len(plain) == len(shape or ()) else None, dtype_named(layout.dtype)

    def _device(self, node: int) -> str:
        layouts = [self.layout_of(value) for value in (*self.inputs_of[node], *self.outputs_of[node])]
        return next((one.device.partition(":")[0] for one in layouts if one.device != "meta"), "cpu")

    # -- tensors -----------------------------------------------------------------------------------------------------

    def register_of(self, value: int, op: int, index: int) -> Register:
        if (op, index) in self.bits and not self.is_held(value):
            raise NotAvailableError("it takes a conjugated or negated view that no operator returned.")
        return super().register_of(value, op, index)

    def tensor(self, value: int) -> Register:
        """A view, with the recorded layout, of the memory that a value lies in; gradients flow through it."""
        if (base := self.bases.get(self.storage[value])) is None:
            return self._tensor_from_outside(value)
        layout, known = self.layout_of(value), self.layout_in.get(base)
        if known == (self.layout[value], self.offset[value]):
            return base
        dtype = None if known is None else self.layouts[known[0]].dtype
        if layout.kind != "strided" or dtype != layout.dtype:
            raise NotAvailableError(f"it takes a {layout.kind} view of {layout.dtype} that no operator returned.")
        return self._strided(value, base)

    def _strided(self, value: int, base: Register) -> Register:
        layout = self.layout_of(value)
        sizes = list(layout.shape or ()), list(layout.stride or ())
        register = self.add(torch.as_strided, base, *sizes, self.offset[value])
        self.hold(value, register)
        return register

    def _tensor_from_outside(self, value: int) -> Register:
        """A parameter or buffer of the model at hand, or a view of one; else a tensor as it was when first used."""
        layout = self.layout_of(value)
        own = self.live.own.get(self.storage[value], []) if self.live is not None else []
        for name, tensor in own:
            if layout.kind != "strided" or _is_like(tensor, layout, self.offset[value]):
                return self._constant(value, name, tensor)
        if own:
            name, tensor = own[0]
            if dtype_named(layout.dtype) is not tensor.dtype:
                raise NotAvailableError(f"it looks at {name} as {layout.dtype}.")
            base = self.bases[self.storage[value]] = self._constant(value, name, tensor)
            self.layout_in.pop(base)
            return self._strided(value, base)
        return self._constant(value, self._name(value), self._content(value))

    def built(self, value: int, recipe: Recipe) -> Register:
        return self._constant(value, self._name(value), built(self.graph, recipe, self.layout_of(value)))

    def _name(self, value: int) -> str:
        parameter = int(self.graph.columns["value_parameter"][value])
        return self.graph.tables.names[parameter] if parameter >= 0 else f"constants.{value}"

    def _constant(self, value: int, name: str, tensor: torch.Tensor) -> Register:
        """A tensor that the program has from the beginning."""
        register = self.builder.register(name)
        self.builder.constants[register.number] = name
        self.constants[name] = tensor
        self.hold(value, register)
        return register

    def _content(self, value: int) -> torch.Tensor:
        """A plain tensor from outside as it was kept."""
        layout = self.plain_layout(value)
        stored = fresh_storage(content(self.graph, f"storage/{self.storage[value]}"), 0, layout.device)
        return view_of(stored, layout, self.offset[value])

    def _written_from_outside(self) -> None:
        """Tensors from outside that the run writes, and that are not the model's: each run begins with a copy."""
        lasting = self.live.own if self.live is not None else {}
        columns = self.graph.columns
        for value in np.flatnonzero(columns["value_producer"] < 0).tolist():
            storage = self.storage[value]
            if storage not in self.written_storages or storage in self.bases or storage in lasting:
                continue
            if self.live is None and columns["value_parameter"][value] >= 0:
                continue
            if self.live is not None and storage in self.live.held:
                raise NotAvailableError(
                    "This model writes into a tensor that is an attribute of a module and no buffer, so that a second "
                    "run differs from the first. Make it a buffer: register_buffer(name, tensor)."
                )
            self.written.append(self._content(value))
            self._take(value, f"constant_{value}")


def _is_like(tensor: torch.Tensor, layout: Any, offset: int) -> bool:
    same = tuple(tensor.shape) == layout.shape and tensor.stride() == layout.stride
    return same and int(tensor.storage_offset()) == offset and tensor.dtype is dtype_named(layout.dtype)


def _count(structure: Any) -> int:
    tensors: list[Any] = []
    rebuilt(structure, tensors.append)
    return len(tensors)


def _without_generators(call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """A call with None for generators: torch then takes the one that it was, or none was drawn from."""

    def without(item: Any) -> Any:
        return None if isinstance(item, Constant) and item.kind == "generator" else item

    args, kwargs = call
    return tuple(map(without, args)), {key: without(item) for key, item in kwargs.items()}
