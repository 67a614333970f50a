"""Calls operators with hostile arguments and says which of them leave their memory.

    python benchmarks/probe_operators.py [--cases 300] [--only REGEX] [--guard end|begin] [--seed 0] [--workers 1]
    python benchmarks/probe_operators.py --all          # also what is not loadable, to find candidates
    python benchmarks/probe_operators.py --only '^aten.gather.default$' --seed 0 --case 17      # one call again

Valid calls come from torch's own test samples and from tests/zoo (probing/calls.py); collecting them takes minutes, and
--calls FILE keeps them. Their arguments are changed (probing/mutations.py), and the operator is called as a graph from
a file calls it: after the checks of torchatlas.execute.preconditions. This happens in child processes
(probing/worker.py) in which each tensor ends, or begins, at a page that cannot be read (guarded_memory.c). A child that
dies is reported with its call; so is a valid call that the checks refuse. Exit status 1 if an loadable operator died.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # before torch is imported: its samples warn without end

from torchatlas.operations.loadable import loadable_operators

HERE = Path(__file__).resolve().parent
LOADABLE = loadable_operators()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compiled_allocator(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("No C compiler: guarded_memory.c is compiled with cc or gcc (Debian: apt install gcc).")
    library = folder / "guarded_memory.so"
    source = str(HERE / "guarded_memory.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True)
    return library


def collected_calls(wanted: set[str]) -> dict[str, list[bytes]]:
    """Valid calls of as many operators as possible; of the wanted ones also from their schemas."""
    import torch

    sys.path.insert(0, str(HERE.parent / "tests"))
    try:
        import torch.testing._internal.common_methods_invocations
    except ImportError as error:
        sys.exit(f"torch's samples cannot be imported ({error}): pip install expecttest")
    from probing.calls import collect
    from probing.derived import related_calls, schema_calls

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls = collect(say)
    calls.update(related_calls(calls))
    for name in sorted(wanted - calls.keys()):
        made = schema_calls(name)
        if made:
            calls[name] = made
    return calls


def results(job: dict[str, Any], folder: Path, library: Path, guard: str) -> Iterator[dict[str, Any]]:
    """What the workers say about each operator, as it comes."""
    (folder / "job.json").write_text(json.dumps(job))
    environment = {**os.environ, "LD_PRELOAD": str(library), "GUARD": guard, "OMP_NUM_THREADS": "1"}
    lines: SimpleQueue[str | None] = SimpleQueue()

    def work(part: int) -> None:
        command = [sys.executable, str(HERE / "probing" / "worker.py"), str(folder / "job.json"), str(part)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                lines.put(line)
        lines.put(None if not worker.returncode else f"a worker ended with status {worker.returncode}")

    with ThreadPoolExecutor(job["workers"]) as pool:
        for part in range(job["workers"]):
            pool.submit(work, part)
        running = job["workers"]
        while running:
            line = lines.get()
            if line is None:
                running -= 1
            elif line.startswith("{"):
                yield json.loads(line)
            else:
                sys.exit(line)


def report(found: list[dict[str, Any]], seed: int, unprobed: list[str]) -> int:
    """Print what was found. Returns how many loadable operators died."""
    print(f"\n{len(found)} operators, {sum(one['calls'] for one in found):,} calls.")
    for key, title in (("deaths", "Died"), ("timeouts", "Took too long (time is not promised)")):
        listed = [one for one in found if one[key]]
        print(f"\n{title}: {len(listed)} operators.")
        for one in listed:
            for number, how, arguments in one[key]:
                print(f"  {one['name']}: {how}\n    {arguments[:400]}")
                print(f"    again: --only '^{one['name']}$' --seed {seed} --case {number}")
    refused = [one for one in found if one["refused"]]
    print(f"\nValid calls that the preconditions refuse: {len(refused)} operators.")
    for one in refused:
        print(f"  {one['name']}", *one["refused"], sep="\n    ")
    print(f"\nAdmitted without a valid call, so not probed: {len(unprobed)} operators.")
    print("".join(f"  {name}\n" for name in unprobed), end="")
    return sum(bool(one["deaths"]) and one["name"] in LOADABLE for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, help="calls of each operator")
    parser.add_argument("--only", metavar="REGEX", default="", help="operators whose name has a match")
    parser.add_argument("--all", action="store_true", help="every operator of ATen that has a call")
    parser.add_argument("--guard", choices=("end", "begin"), default="end", help="the side of a tensor that is guarded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this call")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--calls", type=Path, help="a file to keep collected calls in, read if it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        library = compiled_allocator(folder)
        file = options.calls or folder / "calls.pickle"
        if not file.exists():
            file.write_bytes(pickle.dumps(collected_calls(set(LOADABLE))))
        calls = pickle.loads(file.read_bytes())
        wanted = {name for name in calls if re.fullmatch(r"aten\.\w+\.\w+", name)} if options.all else LOADABLE
        names = sorted(name for name in calls.keys() & wanted if re.search(options.only, name))
        job = {
            "calls": str(file),
            "names": names,
            "workers": options.workers,
            "seed": options.seed,
            "first": options.case or 0,
            "last": options.cases if options.case is None else options.case + 1,
        }
        began, found = time.monotonic(), []
        for one in results(job, folder, library, options.guard):
            found.append(one)
            ends = one["deaths"] + one["timeouts"]
            if ends or len(found) % 50 == 0:
                what = ", ".join(how for _, how, _ in ends)
                say(f"{len(found)} of {len(names)}, {time.monotonic() - began:.0f} s: {one['name']} {what}")
    unprobed = sorted(name for name in LOADABLE - calls.keys() if re.search(options.only, name))
    sys.exit(1 if report(sorted(found, key=lambda one: str(one["name"])), options.seed, unprobed) else 0)


if __name__ == "__main__":
    main()
