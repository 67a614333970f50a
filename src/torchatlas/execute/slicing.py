"""A program -> the part of it that leads from some values to others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from torchatlas.execute.program import Mode, Program, Register


class Unreachable(Exception):
    """The values given do not determine what is wanted: these inputs, by register, do as well."""

    def __init__(self, missing: list[int]) -> None:
        super().__init__(missing)
        self.missing = missing


def part(
    program: Program, given: Iterable[int], wanted: Iterable[int], storages: Callable[[int], frozenset[int]]
) -> Program:
    """The instructions that compute the registers `wanted` from `given`, both as they were just after they were made.

    `storages` says in which memory a register lies: whoever reads memory needs what wrote to it before, too.
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
        """What must have run for this register to hold what it held before an instruction."""
        found = [
            position
            for storage in storages(register)
            for position in writers.get(storage, ())[: bisect_left(writers.get(storage, []), before)]
            if position > known.get(storage, -1)
        ]
        if register in starts:
            return found
        if register in program.inputs:
            missing.add(register)
        return found + ([made[register]] if register in made else [])

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
    found: set[int] = set()
    open_modes: list[int] = []
    for position, instruction in enumerate(program.instructions):
        if instruction.target is Mode:
            open_modes.append(position)
        elif instruction.target is Mode.end:
            begin = open_modes.pop()
            if any(begin < other < position for other in needed):
                found |= {begin, position}
    return found
