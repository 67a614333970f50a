"""Random programs: a seed -> a valid program of statements.py, its source, its run, and the shortest one that fails.

    python tests/programs.py --from 0 --count 5000       check so many programs, print what fails
    python tests/programs.py --show 17                   print the program of a seed

A program is two lists of statements: those before the recording begins and those that are recorded. It is valid by
construction: each statement is chosen for the state that the ones before it have left, which is why they run while it
is made. A statement that raises is kept now and then, in a `try`; what it did until then is part of the program.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Any

import torch
from statements import BEFORE, DEFINITIONS, RULES, TRAINING, WEIGHTS, Scene, matrix, module, optimizer

RAISED = (RuntimeError, IndexError, TypeError, ValueError, AttributeError)
LENGTH = (3, 10)  # statements that are recorded


@dataclass(frozen=True)
class Program:
    """Statements, each the text of one line or block."""

    seed: int
    before: tuple[str, ...]
    body: tuple[str, ...]

    def __str__(self) -> str:
        """Source that runs as it stands."""
        body = "\n".join(self.body) or "pass"
        head, *classes = DEFINITIONS.split("\nclass ")
        used = [f"class {one}" for one in classes if one.partition("(")[0] in f"{self.before}{body}"]
        lines = [f"{head}import torchatlas as atlas\n", *used, f"torch.manual_seed({self.seed})", *self.before]
        return "\n".join([*lines, "with atlas.recording(values='replay') as rec:", indent(body, "    ")])

    def run(self, around: AbstractContextManager[Any] | None = None) -> dict[str, Any]:
        """What its names stand for in the end. The recorded part runs inside of `around`."""
        names = dict(_KNOWN)
        torch.manual_seed(self.seed)
        _execute("\n".join(self.before), f"<before program {self.seed}>", names)
        with around or nullcontext():
            _execute("\n".join(self.body), f"<program {self.seed}>", names)
        return names


_KNOWN: dict[str, Any] = {}
exec(compile(DEFINITIONS, "<definitions of programs>", "exec"), _KNOWN)


def _execute(text: str, file: str, names: dict[str, Any]) -> None:
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    with warnings.catch_warnings():  # as torch warns of an out= that it resizes
        warnings.simplefilter("ignore")
        exec(compile(text, file, "exec"), names)


def random_program(seed: int) -> Program:
    """The program of a seed: the same everywhere with the same torch."""
    chance, program = random.Random(seed), Program(seed, (), ())
    names = program.run()
    length, trains = chance.randint(*LENGTH), chance.random() < 0.5
    weights = TRAINING if trains else WEIGHTS
    beginning = [module, matrix, optimizer][: chance.randint(2, 3)] if trains else []
    beginning += [chance.choice(BEFORE) for _ in range(chance.randint(0 if trains else 1, 3))]
    for number in range(100):
        if len(program.body) >= length:
            break
        early = number < len(beginning)
        rule = beginning[number] if early else chance.choices(RULES, weights)[0]
        statement = rule(Scene(names, chance, number))
        if statement is None:
            continue
        try:
            _execute(statement, f"<statement {number}>", names)
        except RAISED:
            if early or chance.random() < 0.7:
                names = program.run()  # without what it did before it raised
                continue
            kinds = ", ".join(kind.__name__ for kind in RAISED)
            statement = f"try:\n{indent(statement, '    ')}\nexcept ({kinds}):\n    pass"
        program = _with(program, statement, early)
    return program


def _with(program: Program, statement: str, early: bool) -> Program:
    if early:
        return replace(program, before=(*program.before, statement))
    return replace(program, body=(*program.body, statement))


def shortest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program with as many statements taken out as can be while it fails. Each must run alone."""

    def still_fails(shorter: Program) -> bool:
        try:
            shorter.run()
        except Exception:
            return False
        return fails(shorter)

    size = max(len(program.body) // 2, 1)
    while size:
        at, before = 0, len(program.before) + len(program.body)
        while at < len(program.before) + len(program.body):
            statements = [(True, one) for one in program.before] + [(False, one) for one in program.body]
            left = statements[:at] + statements[at + size :]
            shorter = replace(
                program,
                before=tuple(one for early, one in left if early),
                body=tuple(one for early, one in left if not early),
            )
            if still_fails(shorter):
                program = shorter
            else:
                at += size
        if size == 1 and len(program.before) + len(program.body) < before:
            continue
        size //= 2
    return program


def report(program: Program, faults: list[str]) -> str:
    """What is wrong with the shortest program that fails in the same way, and its source."""
    from program_checks import faults_of, kind_of

    kinds = {kind_of(fault) for fault in faults}
    short = shortest(program, lambda one: bool(kinds & {kind_of(fault) for fault in faults_of(one)}))
    found = "\n".join(f"# {line}" for fault in faults_of(short) or faults for line in fault.splitlines())
    return f"# program {program.seed}:\n{found}\n{short}"


def main() -> int:
    from program_checks import counted, faults_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--show", type=int, metavar="SEED")
    parser.add_argument("--most", type=int, default=5, help="how many failures to shorten and print")
    options = parser.parse_args()
    if options.show is not None:
        print(random_program(options.show))
        return 0
    failed, began = [], time.perf_counter()
    for seed in range(options.first, options.first + options.count):
        program = random_program(seed)
        if faults := faults_of(program):
            failed.append(seed)
            print(f"program {seed}: {faults[0].splitlines()[0]}", flush=True)
            if len(failed) <= options.most:
                print(report(program, faults), flush=True)
        if (done := seed + 1 - options.first) % 100 == 0 and done < options.count:
            print(f"{done:,} programs, {counted['ops']:,} ops, failed: {len(failed)}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - began
    print(f"{options.count:,} programs, {counted['ops']:,} ops, {seconds:.0f} s; failed: {len(failed)} {failed[:50]}")
    print(", ".join(f"{name}: {count:,}" for name, count in Counter(counted).most_common()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
