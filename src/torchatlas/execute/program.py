"""Flat instructions over registers: what a traced model runs.

Every argument is resolved to a register or a constant once, when the program is made; running it is one loop. A value
that is recorded is what the node produced: it is copied just before a later op writes to its memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchatlas.torch_private import OpOverload

Edits = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class Register:
    """Stands for what a register holds."""

    number: int


@dataclass(frozen=True, eq=False)
class Instruction:
    """One call. `plain` holds (register, None) or (-1, constant) per argument when no argument is nested."""

    name: str  # the node's
    result: int
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plain: tuple[tuple[int, Any], ...] | None
    reads: tuple[int, ...]
    overwrites: tuple[int, ...] = ()  # registers whose memory the call writes to

    def call(self, registers: list[Any]) -> Any:
        try:
            if self.plain is not None:
                return self.target(*[registers[r] if r >= 0 else c for r, c in self.plain])
            return self.target(*_filled(self.args, registers), **_filled(self.kwargs, registers))
        except Exception as error:
            raise Failed(self.name, error) from error


@dataclass(eq=False)
class Program:
    """Instructions, the registers of inputs, what registers hold from the beginning, and what is returned."""

    names: list[str]  # per register
    inputs: list[int]
    constants: dict[int, str]  # register -> parameter, buffer or constant of the model, by name
    instructions: list[Instruction]
    outputs: list[Any]  # registers or constants
    _dead: list[tuple[int, ...]] = field(default_factory=list)  # per instruction, what is not read after it

    def __post_init__(self) -> None:
        last: dict[int, int] = {}
        for position, instruction in enumerate(self.instructions):
            last[instruction.result] = position  # perhaps nobody reads it
            for register in instruction.reads:
                last[register] = position
        stays = {item.number for item in self.outputs if isinstance(item, Register)} | self.constants.keys()
        dead: list[list[int]] = [[] for _ in self.instructions]
        for register, position in last.items():
            if register not in stays:
                dead[position].append(register)
        self._dead = list(map(tuple, dead))

    def run(
        self,
        arguments: list[Any],
        constants: Mapping[str, Any],
        *,
        keep: Collection[str] | None = (),
        edits: Edits | None = None,
        watch: Callable[[str, Any], None] | None = None,
    ) -> tuple[list[Any], dict[str, Taken]]:
        """Run it. Returns the results, flat, and what the nodes to `keep` took and made, by name; None keeps all."""
        registers: list[Any] = [None] * len(self.names)
        for register, name in self.constants.items():
            registers[register] = constants[name]
        for register, argument in zip(self.inputs, arguments, strict=True):
            registers[register] = argument
        recorder = _Recorder(self.names, registers, keep, edits or {}, watch)
        if recorder.is_idle:
            for instruction, dead in zip(self.instructions, self._dead, strict=True):
                registers[instruction.result] = instruction.call(registers)
                for register in dead:
                    registers[register] = None
        else:
            for register in self.inputs:
                recorder.made(register)
            for instruction, dead in zip(self.instructions, self._dead, strict=True):
                recorder.called(instruction)
                registers[instruction.result] = instruction.call(registers)
                recorder.made(instruction.result)
                for register in dead:
                    registers[register] = recorder.cells[register] = None
        return [_filled(item, registers) for item in self.outputs], recorder.values()


@dataclass(frozen=True)
class Taken:
    """What a node took, in the order of its registers, and made."""

    inputs: tuple[Any, ...]
    output: Any


class _Recorder:
    """Keeps, edits or hands on what nodes take and make.

    A kept value lies in a cell, which all who saw that state of it share: before an op writes to its memory the cell
    gets a copy, and whoever looks later gets a new cell.
    """

    def __init__(
        self,
        names: list[str],
        registers: list[Any],
        keep: Collection[str] | None,
        edits: Edits,
        watch: Callable[[str, Any], None] | None,
    ) -> None:
        self.names, self.registers, self.keep, self.edits, self.watch = names, registers, keep, edits, watch
        self.cells: list[list[Any] | None] = [None] * len(registers)
        self.kept: dict[str, tuple[list[list[Any]], list[Any]]] = {}
        self.is_idle = keep is not None and not keep and not edits and watch is None

    def _wants(self, name: str) -> bool:
        return self.keep is None or name in self.keep

    def _cell(self, register: int) -> list[Any]:
        cell = self.cells[register]
        if cell is None:
            cell = self.cells[register] = [self.registers[register]]
        return cell

    def called(self, instruction: Instruction) -> None:
        """Before a call: note what it takes, and copy what was kept of memory that it writes to."""
        if self._wants(instruction.name):
            self.kept[instruction.name] = [self._cell(register) for register in instruction.reads], []
        for register in instruction.overwrites:
            cell = self.cells[register]
            if cell is not None:
                cell[0] = _copied(cell[0])
                self.cells[register] = None

    def made(self, register: int) -> None:
        name, registers = self.names[register], self.registers
        if name in self.edits:
            registers[register] = self.edits[name](registers[register])
        if self._wants(name):
            taken = self.kept[name][0] if name in self.kept else []
            self.kept[name] = taken, self._cell(register)
        if self.watch is not None:
            self.watch(name, registers[register])

    def values(self) -> dict[str, Taken]:
        return {name: Taken(tuple(cell[0] for cell in taken), made[0]) for name, (taken, made) in self.kept.items()}


class Failed(Exception):
    """An instruction raised; traced.py says where that is in the user's program."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


def compiled(graph: Any, constants: Mapping[str, str]) -> Program:
    """A program of an fx graph of functions. `constants` says which placeholders are the model's own, by name."""
    number: dict[Any, int] = {}
    names: list[str] = []
    inputs: list[int] = []
    held: dict[int, str] = {}
    instructions: list[Instruction] = []
    outputs: list[Any] = []
    memory = _Memory()
    for node in graph.nodes:
        if node.op == "call_function" and _is_check(node.target):
            continue
        register = number[node] = len(names)
        names.append(node.name)
        if node.op == "placeholder":
            if node.name in constants:
                held[register] = constants[node.name]
            else:
                inputs.append(register)
        elif node.op == "get_attr":
            held[register] = str(node.target)
        elif node.op == "call_function":
            args, kwargs = _resolved(node.args, number), _resolved(node.kwargs, number)
            reads = tuple(dict.fromkeys(number[other] for other in node.all_input_nodes))
            plain = None
            if not kwargs and not any(isinstance(item, (list, tuple, dict, slice)) for item in args):
                plain = tuple((item.number, None) if isinstance(item, Register) else (-1, item) for item in args)
            target = node.target._op if type(node.target) is OpOverload else node.target
            overwrites = memory.called(node, number)
            instructions.append(Instruction(node.name, register, target, args, kwargs, plain, reads, overwrites))
        elif node.op == "output":
            outputs = list(_resolved(node.args[0], number))
    return Program(names, inputs, held, instructions, outputs)


class _Memory:
    """Which registers may share memory, by what schemas say of views and writes."""

    def __init__(self) -> None:
        self._home: dict[int, int] = {}  # register -> the first register of its memory
        self._members: dict[int, list[int]] = {}

    def called(self, node: Any, number: dict[Any, int]) -> tuple[int, ...]:
        """Note a call; the registers whose memory it writes to."""
        register, target = number[node], node.target
        everything = [number[other] for other in node.all_input_nodes]
        if not isinstance(target, OpOverload):
            self._join(register, everything if target is operator.getitem else [])
            return ()
        schema = target._schema
        given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
        aliased: list[int] = []
        written: list[int] = []
        for argument in schema.arguments:
            if argument.alias_info is not None:
                mine = [number[item] for item in _nodes(given.get(argument.name))]
                aliased += mine
                written += mine if argument.alias_info.is_write else []
        overwritten = dict.fromkeys(member for source in written for member in self._members[self._of(source)])
        if any(returned.alias_info is not None for returned in schema.returns):
            self._join(register, aliased)
        else:
            self._join(register, everything[:1] if schema.name.partition("::")[2] in _SOMETIMES_VIEWS else [])
        return tuple(overwritten)

    def _of(self, register: int) -> int:
        home = self._home.setdefault(register, register)
        self._members.setdefault(home, [register])
        return home

    def _join(self, register: int, sources: list[int]) -> None:
        home = self._of(sources[0]) if sources else register
        self._home[register] = home
        self._members.setdefault(home, []).append(register)
        for source in sources[1:]:
            other = self._of(source)
            if other != home:
                for member in self._members.pop(other):
                    self._home[member] = home
                    self._members[home].append(member)


# They return their argument, or a view of it, when there is nothing to do, and their schemas do not say so.
_SOMETIMES_VIEWS = {"contiguous", "dropout", "expand_as", "flatten", "reshape", "reshape_as", "to", "type_as"}


def _is_check(target: Any) -> bool:
    """What export adds to hold its assumptions: the inputs are checked before the program runs."""
    return str(target).startswith(("aten._assert_tensor_metadata", "aten.sym_constrain_range"))


def _nodes(item: Any) -> list[Any]:
    if isinstance(item, torch.fx.Node):
        return [item]
    return [node for part in item for node in _nodes(part)] if isinstance(item, (list, tuple)) else []


def _resolved(item: Any, number: dict[Any, int]) -> Any:
    if isinstance(item, torch.fx.Node):
        return Register(number[item])
    if isinstance(item, list):
        return [_resolved(part, number) for part in item]
    if isinstance(item, tuple):
        return tuple(_resolved(part, number) for part in item)
    if isinstance(item, Mapping):
        return {key: _resolved(part, number) for key, part in item.items()}
    if isinstance(item, slice):
        return slice(*(_resolved(part, number) for part in (item.start, item.stop, item.step)))
    return item


def _filled(item: Any, registers: list[Any]) -> Any:
    kind = type(item)
    if kind is Register:
        return registers[item.number]
    if kind is list:
        return [_filled(part, registers) for part in item]
    if kind is tuple:
        return tuple(_filled(part, registers) for part in item)
    if kind is dict:
        return {key: _filled(part, registers) for key, part in item.items()}
    if kind is slice:
        return slice(*(_filled(part, registers) for part in (item.start, item.stop, item.step)))
    return item


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(_copied(part) for part in value) if isinstance(value, (list, tuple)) else value
