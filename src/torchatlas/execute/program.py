"""Flat instructions over registers: what a traced model runs.

Every argument is resolved to a register or a constant once, when the program is made; running it is one loop. A value
that is recorded is what the node produced: it is copied just before a later op writes to its memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchatlas.capturing.exported import Block, attribute, block_of
from torchatlas.errors import FileFormatError
from torchatlas.torch_private import OpOverload, pytree

Edits = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class Register:
    """Stands for what a register holds."""

    number: int


@dataclass(frozen=True, eq=False, slots=True)
class Instruction:
    """One call. `plain` holds (register, None) or (-1, constant) per argument when no argument is nested."""

    name: str  # the node's; empty for what is no node, such as the beginning of a no_grad block
    result: int
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plain: tuple[tuple[int, Any], ...] | None
    reads: tuple[int, ...]  # once for each time, in the order of the arguments
    writes: tuple[int, ...]  # registers whose memory the call writes to
    function: Any  # what `target` is short for: an operator of torch, a Python function, or a Mode


def instruction(
    name: str, result: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any = None
) -> Instruction:
    """A call of an operator or a Python function; `target` is what to call in its place, if not the function itself."""
    if function is torch.ops.aten.copy_.default:
        target = _copy
    elif target is None:
        target = function._op if type(function) is OpOverload else function
    plain = None
    if not kwargs and not any(isinstance(item, (list, tuple, dict, slice)) for item in args):
        plain = tuple((item.number, None) if isinstance(item, Register) else (-1, item) for item in args)
    reads, writes = tuple(_registers((args, kwargs))), _written(function, args, kwargs)
    return Instruction(name, result, target, args, kwargs, plain, reads, writes, function)


@dataclass(eq=False)
class Program:
    """Instructions, the registers of inputs, what registers hold from the beginning, and what is returned."""

    names: list[str]  # per register
    inputs: list[int]
    constants: dict[int, str]  # register -> parameter, buffer or constant of the model, by name
    instructions: list[Instruction]
    outputs: list[Any]  # registers or constants
    attached: dict[int, Any] = field(default_factory=dict)  # register -> what the trace itself holds
    _steps: list[tuple[Instruction, tuple[int, ...]]] = field(default_factory=list)  # and what is not read after it

    def __post_init__(self) -> None:
        last: dict[int, int] = {}
        for position, instruction in enumerate(self.instructions):
            last[instruction.result] = position  # perhaps nobody reads it
            for register in instruction.reads:
                last[register] = position
        stays = set(_registers(self.outputs))
        dead: list[list[int]] = [[] for _ in self.instructions]
        for register, position in last.items():
            if register not in stays:
                dead[position].append(register)
        self._steps = list(zip(self.instructions, map(tuple, dead), strict=True))

    def run(
        self,
        arguments: list[Any],
        constants: Callable[[str], Any],
        *,
        keep: Collection[str] | None = (),
        edits: Edits | None = None,
        watch: Callable[[str, Any], None] | None = None,
    ) -> tuple[list[Any], dict[str, Taken]]:
        """Run it. Returns the results, flat, and what the nodes to `keep` took and made, by name; None keeps all."""
        registers: list[Any] = [None] * len(self.names)
        for register, name in self.constants.items():
            registers[register] = constants(name)
        for register, item in self.attached.items():
            registers[register] = item
        for register, argument in zip(self.inputs, arguments, strict=True):
            registers[register] = argument
        del arguments  # so that an input, too, is freed after its last use, if the caller lets go of it
        recorder = _Recorder(self, registers, keep, edits or {}, watch)
        try:
            if recorder.is_idle:
                self._run(registers)
            else:
                self._run_recorded(registers, recorder)
        except BaseException:
            for mode in reversed([item for item in registers if type(item) is Mode]):
                mode.end()
            raise
        results = [_filled(item, registers) for item in self.outputs]
        recorder.returned("output", results)
        return results, recorder.values()

    def _run(self, registers: list[Any]) -> None:
        for instruction, dead in self._steps:
            try:
                if (plain := instruction.plain) is not None:
                    result = instruction.target(*[registers[r] if r >= 0 else c for r, c in plain])
                else:
                    args, kwargs = _filled(instruction.args, registers), _filled(instruction.kwargs, registers)
                    result = instruction.target(*args, **kwargs)
                    args = kwargs = None
            except Exception as error:
                raise Failed(instruction.name, error) from error
            registers[instruction.result] = result
            for register in dead:
                registers[register] = None
            result = None  # it may be dead

    def _run_recorded(self, registers: list[Any], recorder: _Recorder) -> None:
        for register in self.inputs:
            recorder.made(register)
        for instruction, dead in self._steps:
            recorder.called(instruction)
            try:
                args, kwargs = _filled(instruction.args, registers), _filled(instruction.kwargs, registers)
                registers[instruction.result] = instruction.target(*args, **kwargs)
                args = kwargs = None
            except Exception as error:
                raise Failed(instruction.name, error) from error
            if instruction.name:
                recorder.made(instruction.result)
            for register in dead:
                registers[register] = None


@dataclass(frozen=True)
class Taken:
    """What a node took, in the order of its arguments, and made."""

    inputs: tuple[Any, ...]
    output: Any


@dataclass(eq=False, slots=True)
class _Cell:
    """One state of what a register holds; all who saw that state share it."""

    value: Any
    register: int


class _Recorder:
    """Keeps, edits or hands on what nodes take and make.

    A kept value lies in a cell: before an op writes to its memory the cell gets a copy, and whoever looks later gets a
    new cell. Who shares memory is seen from the storages while it runs: schemas do not always say so.
    """

    def __init__(
        self,
        program: Program,
        registers: list[Any],
        keep: Collection[str] | None,
        edits: Edits,
        watch: Callable[[str, Any], None] | None,
    ) -> None:
        self.names, self.registers, self.keep, self.edits, self.watch = program.names, registers, keep, edits, watch
        self.cells: list[_Cell | None] = [None] * len(registers)
        self.kept: dict[str, tuple[list[_Cell], _Cell | None]] = {}
        self.is_idle = keep is not None and not keep and not edits and watch is None
        written = not self.is_idle and any(instruction.writes for instruction in program.instructions)
        self.in_memory: dict[int, list[_Cell]] | None = {} if written else None  # storage -> what lies in it
        self.written: set[int] = set()  # storages
        self.outside: set[int] = set()  # those of the model and the caller
        if written:
            outside = [*program.inputs, *program.constants, *program.attached]
            self.outside.update(storage for register in outside for storage in _storages(registers[register]))

    def _wants(self, name: str) -> bool:
        return self.keep is None or name in self.keep

    def _cell(self, register: int) -> _Cell:
        cell = self.cells[register]
        if cell is None:
            cell = self.cells[register] = _Cell(self.registers[register], register)
            if self.in_memory is not None:
                for storage in _storages(cell.value):
                    self.in_memory.setdefault(storage, []).append(cell)
        return cell

    def called(self, instruction: Instruction) -> None:
        """Before a call: note what it takes, and copy what was kept of memory that it writes to."""
        if instruction.name and self._wants(instruction.name):
            self.kept[instruction.name] = [self._cell(register) for register in instruction.reads], None
        if self.in_memory is not None:
            for register in instruction.writes:
                for storage in _storages(self.registers[register]):
                    self.written.add(storage)
                    self._copy(storage)

    def _copy(self, storage: int) -> None:
        assert self.in_memory is not None
        for cell in self.in_memory.pop(storage, ()):
            if self.cells[cell.register] is cell:
                self.cells[cell.register] = None
                cell.value = cloned(cell.value)

    def made(self, register: int) -> None:
        name, registers = self.names[register], self.registers
        if name in self.edits:
            registers[register] = self.edits[name](registers[register])
        if self._wants(name):
            taken = self.kept[name][0] if name in self.kept else []
            self.kept[name] = taken, self._cell(register)
        if self.watch is not None:
            self.watch(name, registers[register])

    def returned(self, name: str, results: list[Any]) -> None:
        if not self.is_idle and self._wants(name):
            self.kept[name] = [_Cell(result, -1) for result in results], None

    def values(self) -> dict[str, Taken]:
        for storage in self.written & self.outside:  # the next run will write to it again
            self._copy(storage)
        return {
            name: Taken(tuple(cell.value for cell in taken), None if made is None else made.value)
            for name, (taken, made) in self.kept.items()
        }


class Failed(Exception):
    """An instruction raised; traced.py says where that is in the user's program."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


# -- from an fx graph --------------------------------------------------------------------------------------------------


def compiled(graph: Any, constants: Mapping[str, str]) -> Program:
    """A program of an fx graph of functions. `constants` says which placeholders are the model's own, by name."""
    compiler = _Compiler(constants)
    outputs = compiler.read(graph, "")
    lists = compiler.instructions, list(outputs), compiler.attached
    return Program(compiler.names, compiler.inputs, compiler.held, *lists)


class _Compiler:
    def __init__(self, constants: Mapping[str, str]) -> None:
        self.constants = constants
        self.names: list[str] = []
        self.inputs: list[int] = []
        self.held: dict[int, str] = {}
        self.attached: dict[int, Any] = {}
        self.instructions: list[Instruction] = []
        self.places: dict[Any, Any] = {}  # fx node -> a register, or what it stands for in an argument

    def _register(self, name: str) -> Register:
        self.names.append(name)
        return Register(len(self.names) - 1)

    def read(self, graph: Any, prefix: str) -> Any:
        """Instructions for the nodes of a graph; what it returns."""
        for node in graph.nodes:
            name = prefix + node.name
            if node.op == "placeholder" and not prefix:  # those of an inner graph have been given their places
                register = self.places[node] = self._register(name)
                if node.name in self.constants:
                    self.held[register.number] = self.constants[node.name]
                else:
                    self.inputs.append(register.number)
            elif node.op == "get_attr":
                register = self.places[node] = self._register(name)
                self.attached[register.number] = attribute(graph.owning_module, str(node.target))
            elif node.op == "call_function" and (block := block_of(node)) is not None:
                self._block(node, block, name)
            elif node.op == "call_function" and not _is_check(node.target):
                self._call(node, name)
            elif node.op == "output":
                return self._resolved(node.args[0])
        return ()

    def _call(self, node: Any, name: str) -> None:
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):  # of the results of a block
            self.places[node] = args[0][args[1]]
            return
        register = self.places[node] = self._register(name)
        self.instructions.append(instruction(name, register.number, node.target, args, kwargs))

    def _block(self, node: Any, block: Block, name: str) -> None:
        """The nodes of a block between its beginning and its end: their values can be seen as well."""
        for inner, operand in zip(
            (inner for inner in block.body.graph.nodes if inner.op == "placeholder"), block.operands, strict=True
        ):
            self.places[inner] = self._resolved(operand)
        mode = self._register("")
        self.instructions.append(instruction("", mode.number, Mode, (block.kind, block.settings), {}))
        self.places[node] = self.read(block.body.graph, f"{name}.")
        self.instructions.append(instruction("", self._register("").number, Mode.end, (mode,), {}))

    def _resolved(self, item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return self.places[item]
        if isinstance(item, list):
            return [self._resolved(part) for part in item]
        if isinstance(item, tuple):
            return tuple(self._resolved(part) for part in item)
        if isinstance(item, Mapping):
            return {key: self._resolved(part) for key, part in item.items()}
        if isinstance(item, slice):
            return slice(*(self._resolved(part) for part in (item.start, item.stop, item.step)))
        return item


# -- modes -------------------------------------------------------------------------------------------------------------


def block(*given: Any) -> tuple[Any, ...]:
    """The arguments of a Mode as a file has them: a kind of block and its settings. FileFormatError for others."""
    match given:
        case ("tag_activation_checkpoint", ()) | ("wrap_with_set_grad_enabled", (bool(),)):
            return given
        case ("wrap_with_autocast", (str(), None | torch.dtype(), bool(), None | bool())):
            return given
    raise FileFormatError("its program is damaged: it begins a block that is none.")


class Mode:
    """A mode that was begun. A checkpoint only saves memory in backward: its ops run as they are."""

    def __init__(self, kind: str, settings: tuple[Any, ...]) -> None:
        self._open: Any = None
        if kind == "wrap_with_set_grad_enabled":
            self._open = torch.set_grad_enabled(settings[0])  # it is on from now; the `with` only ends it
        elif kind == "wrap_with_autocast":
            device, dtype, enabled, _ = settings  # export notes that it has turned the cache of casts off, for itself
            self._open = torch.autocast(device, dtype=dtype, enabled=enabled)
            self._open.__enter__()

    def end(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


# -- arguments ---------------------------------------------------------------------------------------------------------


def _written(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """The registers that a call writes to, by its schema."""
    if not isinstance(target, OpOverload):
        return ()
    names = (argument.name for argument in target._schema.arguments)
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    written = [a.name for a in target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tuple(register for name in written for register in _registers(given.get(name)))


def _is_check(target: Any) -> bool:
    """What export adds to hold its assumptions: the inputs are checked before the program runs."""
    return str(target).startswith(("aten._assert_tensor_metadata", "aten.sym_constrain_range"))


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Export ends with a copy to each buffer that was assigned, also after `self.count += 1`: a copy to itself.

    That one would only tell autograd that what it saved was overwritten.
    """
    return target if source is target else torch.ops.aten.copy_.default._op(target, source, non_blocking)


def _registers(item: Any) -> Iterator[int]:
    if isinstance(item, Register):
        yield item.number
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _registers(part)
    elif isinstance(item, Mapping):
        for part in item.values():
            yield from _registers(part)
    elif isinstance(item, slice):
        yield from _registers((item.start, item.stop, item.step))


def _filled(item: Any, registers: list[Any]) -> Any:
    kind = type(item)
    if kind is Register:
        return registers[item.number]
    if kind is list:
        return [_filled(part, registers) for part in item]
    if kind is tuple:
        return tuple([_filled(part, registers) for part in item])
    if kind is dict:
        return {key: _filled(part, registers) for key, part in item.items()} if item else item
    if kind is slice:
        return slice(*(_filled(part, registers) for part in (item.start, item.stop, item.step)))
    return item


def _storages(value: Any) -> list[int]:
    """The memory that a value lies in."""
    if isinstance(value, torch.Tensor):
        try:
            return [value.untyped_storage()._cdata]
        except (NotImplementedError, RuntimeError):  # sparse: no op of an exported program writes to those
            return []
    return [s for part in value for s in _storages(part)] if isinstance(value, (list, tuple)) else []


def cloned(value: Any) -> Any:
    """Tensors of their own, still part of autograd's graph."""
    return pytree.tree_map(lambda part: part.clone() if isinstance(part, torch.Tensor) else part, value)
