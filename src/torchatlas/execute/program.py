"""Programs: flat instructions over registers, and the one loop that runs them.

A traced model (exporting.py), a recorded graph (recorded_program.py) and a file (loading.py) all become a Program:
every argument is resolved to a register or a constant once. Code that watches, edits or compares values is an Observer
of the loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from torchatlas.errors import FileFormatError
from torchatlas.torch_private import OpOverload


@dataclass(frozen=True, slots=True)
class Register:
    """A reference to a register, in arguments."""

    number: int


@dataclass(frozen=True, eq=False, slots=True)
class Instruction:
    """One call. `plain` holds (register, None) or (-1, constant) per argument when no argument is nested."""

    name: str  # the node's, as in the graph; empty for what is no node, such as the beginning of a no_grad block
    result: int
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plain: tuple[tuple[int, Any], ...] | None
    reads: tuple[int, ...]  # an entry for each use, in the order of the arguments
    writes: tuple[int, ...]  # registers whose memory the call writes to
    function: Any  # what `target` stands in for: an operator of torch, a Python function, or a Mode


def instruction(
    name: str, result: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any = None
) -> Instruction:
    """A call of an operator or a Python function; `target` is what to call in its place, if not the function itself."""
    if target is None:
        target = function._op if type(function) is OpOverload else function
    plain, nested = None, bool(kwargs)
    for item in args:
        nested = nested or type(item) in _NESTED
    if nested:
        reads = tuple(_registers((args, kwargs)))
    else:
        plain = tuple([(item.number, None) if type(item) is Register else (-1, item) for item in args])
        reads = tuple([number for number, _ in plain if number >= 0])
    writes = _written(function, args, kwargs) if type(function) is OpOverload else ()
    return Instruction(name, result, target, args, kwargs, plain, reads, writes, function)


_NESTED = frozenset({list, tuple, dict, slice})


@dataclass(eq=False)
class Program:
    """Instructions, the registers of inputs, what registers hold from the beginning, and what is returned."""

    names: list[str]  # per register, as the graph names the node that makes it; empty where no node does
    inputs: list[int]
    constants: dict[int, str]  # register -> parameter, buffer or constant of the model, by name
    instructions: list[Instruction]
    outputs: list[Any]  # registers or constants
    attached: dict[int, Any] = field(default_factory=dict)  # register -> what the trace itself holds
    _steps: list[tuple[Instruction, tuple[int, ...]]] = field(default_factory=list)  # and what is not read after it

    def __post_init__(self) -> None:
        last: dict[int, int] = {}
        for position, instruction in enumerate(self.instructions):
            last[instruction.result] = position  # perhaps nothing reads it
            for register in instruction.reads:
                last[register] = position
        stays = set(_registers(self.outputs))
        dead: dict[int, tuple[int, ...]] = {}
        for register, position in last.items():
            if register not in stays:
                dead[position] = (*dead.get(position, ()), register)
        self._steps = [(each, dead.get(position, ())) for position, each in enumerate(self.instructions)]

    def run(self, arguments: list[Any], constants: Callable[[str], Any], observer: Observer | None = None) -> list[Any]:
        """Run it and return its results, flat. `constants` gives the model's tensors by name."""
        registers: list[Any] = [None] * len(self.names)
        for register, name in self.constants.items():
            registers[register] = constants(name)
        for register, item in self.attached.items():
            registers[register] = item
        for register, argument in zip(self.inputs, arguments, strict=True):
            registers[register] = argument
        del arguments  # so that an input, too, is freed after its last use, if the caller lets go of it
        if observer is not None:
            observer.begin(self, registers)
        try:
            self._run(registers, observer)
        except BaseException:
            for mode in reversed([item for item in registers if type(item) is Mode]):
                mode.end()
            raise
        results = [filled(item, registers) for item in self.outputs]
        if observer is not None:
            observer.end(results)
        return results

    def _run(self, registers: list[Any], observer: Observer | None) -> None:
        args: Any
        kwargs: dict[str, Any]
        for instruction, dead in self._steps:
            if observer is not None:
                observer.before(instruction)
            try:
                if (plain := instruction.plain) is not None:
                    args, kwargs = [registers[r] if r >= 0 else c for r, c in plain], {}
                else:
                    args, kwargs = filled(instruction.args, registers), filled(instruction.kwargs, registers)
                registers[instruction.result] = instruction.target(*args, **kwargs)
            except Exception as error:
                raise Failed(instruction.name, error) from error
            if observer is not None and instruction.name:
                observer.after(instruction, args, kwargs)
            args = kwargs = None  # type: ignore[assignment]  # what they hold may be dead
            for register in dead:
                registers[register] = None


class Observer:
    """Is told what a program does while it runs. It may put other values into the registers."""

    def begin(self, program: Program, registers: list[Any]) -> None:
        """Inputs and constants are in their registers; nothing has run yet."""

    def before(self, instruction: Instruction) -> None:
        """An instruction is about to run."""

    def after(self, instruction: Instruction, args: Any, kwargs: dict[str, Any]) -> None:
        """An instruction that is a node has run; its result is in its register."""

    def end(self, results: list[Any]) -> None:
        """The program has returned."""


class ProgramBuilder:
    """A program in the making."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.inputs: list[int] = []
        self.constants: dict[int, str] = {}
        self.attached: dict[int, Any] = {}
        self.instructions: list[Instruction] = []

    def register(self, name: str = "") -> Register:
        """A register that nothing else has."""
        self.names.append(name)
        return Register(len(self.names) - 1)

    def add(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, target: Any = None
    ) -> Register:
        """Append an instruction; returns the register of its result. See `instruction`."""
        result = self.register(name)
        self.instructions.append(instruction(name, result.number, function, args, kwargs or {}, target))
        return result

    def program(self, outputs: list[Any]) -> Program:
        return Program(self.names, self.inputs, self.constants, self.instructions, outputs, self.attached)


class Failed(Exception):
    """An instruction raised; the caller says where that is in the user's program."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


# -- parts -------------------------------------------------------------------------------------------------------------


class Unreachable(Exception):
    """The given registers do not determine the wanted ones: those in `missing` are needed as well."""

    def __init__(self, missing: list[int]) -> None:
        super().__init__(missing)
        self.missing = missing


def part(
    program: Program, given: Iterable[int], wanted: Iterable[int], storages: Callable[[int], frozenset[int]]
) -> Program:
    """The instructions that compute the registers `wanted` from `given`, both as they were just after they were made.

    `storages` says in which memory a register lies: a reader of memory also needs the instructions that wrote to it.
    """
    starts, ends = list(given), list(wanted)
    instructions = program.instructions
    made = {instruction.result: position for position, instruction in enumerate(instructions)}
    writers: dict[int, list[int]] = {}  # memory -> the instructions that write to it
    for position, instruction in enumerate(instructions):
        for register in instruction.writes:
            for storage in storages(register):
                writers.setdefault(storage, []).append(position)
    known = {storage: made.get(register, -1) for register in starts for storage in storages(register)}
    needed: set[int] = set()
    missing: set[int] = set()

    def need(register: int, before: int) -> list[int]:
        """The instructions that must have run for a register to hold what it held before instruction `before`."""
        positions = [
            position
            for storage in storages(register)
            for position in writers.get(storage, ())[: bisect_left(writers.get(storage, []), before)]
            if position > known.get(storage, -1)
        ]
        if register in starts:
            return positions
        if register in program.inputs:
            missing.add(register)
        return positions + ([made[register]] if register in made else [])

    waiting = [position for register in ends for position in need(register, made.get(register, -1))]
    while waiting:
        position = waiting.pop()
        if position not in needed:
            needed.add(position)
            for register in instructions[position].reads:
                waiting += need(register, position)
    if missing:
        raise Unreachable(sorted(missing))
    chosen = [instructions[position] for position in sorted(needed | _modes(program, needed))]
    read = {register for instruction in chosen for register in instruction.reads} | set(ends)
    return Program(
        program.names,
        starts,
        {register: name for register, name in program.constants.items() if register in read},
        chosen,
        [Register(register) for register in ends],
        {register: item for register, item in program.attached.items() if register in read},
    )


def _modes(program: Program, needed: set[int]) -> set[int]:
    """The beginnings and ends of the modes in which needed instructions run."""
    positions: set[int] = set()
    open_modes: list[int] = []
    for position, instruction in enumerate(program.instructions):
        if instruction.target is Mode:
            open_modes.append(position)
        elif instruction.target is Mode.end:
            begin = open_modes.pop()
            if any(begin < other < position for other in needed):
                positions |= {begin, position}
    return positions


# -- modes -------------------------------------------------------------------------------------------------------------


def block(*arguments: Any) -> tuple[Any, ...]:
    """The arguments of a Mode as a file has them: a kind of block and its settings. FileFormatError for others."""
    match arguments:
        case ("tag_activation_checkpoint", ()) | ("wrap_with_set_grad_enabled", (bool(),)):
            return arguments
        case ("wrap_with_autocast", (str(), None | torch.dtype(), bool(), None | bool())):
            return arguments
    raise FileFormatError("its program is damaged: it begins a block that is none.")


class Mode:
    """A mode that was begun. Activation checkpointing begins none: it saves memory in backward alone."""

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


def _written(function: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """The registers that a call writes to, by the schema of its operator."""
    written = _written_arguments(function)
    arguments = [args[position] if position < len(args) else kwargs.get(name) for position, name in written]
    return tuple(_registers(arguments))


@cache
def _written_arguments(function: OpOverload) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments that an operator writes to."""
    return tuple(
        (position, one.name)
        for position, one in enumerate(function._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    )


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


def filled(item: Any, registers: list[Any]) -> Any:
    """Arguments with what registers hold in the place of registers."""
    kind = type(item)
    if kind is Register:
        return registers[item.number]
    if kind is list:
        return [filled(part, registers) for part in item]
    if kind is tuple:
        return tuple([filled(part, registers) for part in item])
    if kind is dict:
        return {key: filled(part, registers) for key, part in item.items()} if item else item
    if kind is slice:
        return slice(*(filled(part, registers) for part in (item.start, item.stop, item.step)))
    return item
