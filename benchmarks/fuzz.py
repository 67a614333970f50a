"""Feed torchatlas with files that are wrong: no case may crash, hang, leak or raise anything but our own errors.

    python benchmarks/fuzz.py --cases 1000 --seed 0 [--only program] [--keep FOLDER]
    python benchmarks/fuzz.py --reproduce 0:17 [--only program] [--keep FOLDER]

A case is a seed number and a case number: together (and with --only) they give the same file everywhere. Each file is
loaded, looked at in some of all ways (the next cases take the others; `--here` takes all), saved and loaded again;
programs are called and recorded steps replayed. That happens in processes that may not take more than 4 GB beyond what
they have, nor more than 5 seconds a case.
"""

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: forked workers share its settings, not its threads

from fuzzing.mutations import KINDS
from fuzzing.pool import Outcome, outcomes
from fuzzing.seeds import Seed, make_seeds
from fuzzing.user import use, warm_up


def planned(seeds: list[Seed], kinds: list[str], seed: int, case: int) -> tuple[str, Seed, random.Random]:
    """What to change, in which file, and the random numbers to do it with."""
    rng = random.Random(f"{seed}:{case}")
    kind = rng.choice(kinds)
    return kind, rng.choice([one for one in seeds if KINDS[kind][1](one)]), rng


def made(seeds: list[Seed], kinds: list[str], seed: int, case: int) -> tuple[str, Seed, bytes]:
    """The file of a case, and what it was made of."""
    kind, chosen, rng = planned(seeds, kinds, seed, case)
    return kind, chosen, KINDS[kind][0](rng, chosen)


def turns(kind: str) -> int:
    """One in how many ways of looking at a graph a case takes. Many cases with one look find more than few with all;
    where only the program was changed, still fewer looks are enough."""
    return 64 if kind in ("program", "replay") else 24


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", choices=list(KINDS), action="append", help="what to change; may be given several times"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the files of cases that fail")
    parser.add_argument("--reproduce", metavar="SEED:CASE")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="run the case to reproduce in this process")
    options = parser.parse_args()
    kinds, seeds = options.only or list(KINDS), make_seeds()
    first, cases, seed = options.first, options.cases, options.seed
    if options.reproduce:
        seed, first = map(int, options.reproduce.split(":"))
        cases = 1
    with tempfile.TemporaryDirectory() as folder:
        warm_up(seeds, Path(folder))
        if options.here:
            return _here(seeds, kinds, seed, first, Path(folder))

    def run(case: int, folder: Path) -> str:
        kind, chosen, data = made(seeds, kinds, seed, case)
        path = folder / f"case{chosen.suffix}"
        path.write_bytes(data)
        return use(path, chosen, case, turns=turns(kind))

    table, failures, begun = Counter[tuple[str, str]](), list[tuple[Outcome, str, int]](), time.monotonic()
    for number, outcome in enumerate(outcomes(run, iter(range(first, first + cases)), options.workers), 1):
        kind, chosen, _ = planned(seeds, kinds, seed, outcome.case)
        table[kind, "FAILED" if outcome.failed else outcome.word.partition(":")[0]] += 1
        if outcome.failed:
            data = made(seeds, kinds, seed, outcome.case)[2]
            failures.append((outcome, f"{kind} of {chosen.name}{chosen.suffix}", len(data)))
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{seed}-{outcome.case}{chosen.suffix}").write_bytes(data)
                (options.keep / f"{seed}-{outcome.case}.txt").write_text(f"{outcome.word}\n{outcome.detail}")
        if number % 1000 == 0 or number == cases:
            rate = number / (time.monotonic() - begun)
            print(f"{number:,} cases, {rate:.0f} a second, {len(failures)} failed", flush=True)
    _report(table, failures, seed, options.only)
    return 1 if failures else 0


def _here(seeds: list[Seed], kinds: list[str], seed: int, case: int, folder: Path) -> int:
    kind, chosen, data = made(seeds, kinds, seed, case)
    path = folder / f"case{chosen.suffix}"
    path.write_bytes(data)
    os.chdir(folder)
    print(f"{kind} of {chosen.name}{chosen.suffix}, {len(data)} bytes: {use(path, chosen, case, step_by_step=True)}")
    return 0


def _report(
    table: Counter[tuple[str, str]], failures: list[tuple[Outcome, str, int]], seed: int, only: list[str] | None
) -> None:
    words = sorted({word for _, word in table})
    print("".join(f"{word:>24}" for word in ["", *words]))
    for kind in sorted({kind for kind, _ in table}):
        print(f"{kind:>24}" + "".join(f"{table[kind, word]:>24,}" for word in words))
    alike = itertools.groupby(sorted(failures, key=lambda each: (each[0].word, each[2])), key=lambda each: each[0].word)
    for word, group in alike:
        cases = list(group)
        shortest = cases[0]
        asked = "".join(f" --only {kind}" for kind in only or ())
        print(f"\n{len(cases)} x {word}\n  {shortest[1]}, {shortest[2]} bytes")
        print(f"  python benchmarks/fuzz.py --here --reproduce {seed}:{shortest[0].case}{asked}")


if __name__ == "__main__":
    sys.exit(main())
