"""Whether torch is as fast after captures as before: training steps without any recording, in two processes.

    python benchmarks/bench_residue.py [--pairs 30] [--captures 1000]

One process never captures. The other is timed beside it three times: before it captures, after 1,000 captures, and
after an exception at every op of recorded and captured training steps. A pair runs a step in one process right after
the other, in alternating order, and compares the time the processors spent in each: other work on the machine counts
less than by the clock. Printed are medians of the ratios and the interval that holds the middle half of them.
With torchlens importable, or in the folder that TORCHLENS_PATH names, the same is done with 10 of its traces.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from programs import Step, load_torchvision, lstm_loop, mlp, training_step
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def small_resnet18() -> Step:
    model, x = load_torchvision().models.resnet18(weights=None), torch.randn(1, 3, 64, 64)
    return training_step(model, lambda model: model(x).pow(2).mean())


PROGRAMS: dict[str, tuple[Callable[[], Step], int]] = {  # and how many steps are timed together
    "MLP": (mlp, 20),
    "LSTMCell, 50 steps": (lambda: lstm_loop(50), 1),
    "resnet18, 64 x 64": (small_resnet18, 1),
}
PATIENCE = 1200  # seconds for one answer
MARK = "answer: "
# What a process freed earlier decides how glibc allocates later, and how many page faults a step costs (30 % of a small
# resnet18). Here it never gives memory back, in either process.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_ARENA_MAX": "1"}


class Bomb(TorchDispatchMode):
    """Counts ops; raises in place of one of them."""

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        self.at, self.count = at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self.at:
            raise InterruptedError("bang")
        return func(*args, **(kwargs or {}))


def small_model() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(8, 64)


def capture_often(count: int) -> int:
    import torchatlas as atlas

    model, x = small_model()
    for _ in range(count):
        atlas.capture(model, x, backward=True)
    return count


def fail_everywhere() -> int:
    """An exception at every op of a recorded step of two programs, and of a captured one."""
    import torchatlas as atlas

    model, x = small_model()
    optimizer = torch.optim.AdamW(model.parameters())

    def recorded(step: Step) -> Step:
        def run() -> None:
            with atlas.recording() as rec:
                step()
            rec.graph  # noqa: B018

        return run

    failures = 0
    for run in (recorded(mlp()), recorded(lstm_loop(3)), lambda: atlas.capture(model, x, optimizer=optimizer)):
        with Bomb() as whole:
            run()
        for at in range(1, whole.count + 1):
            try:
                with Bomb(at):
                    run()
            except InterruptedError:
                failures += 1
    return failures


def trace_with_torchlens(count: int) -> int:
    import torchlens  # type: ignore[import-not-found]

    model, x = small_model()
    for _ in range(count):
        torchlens.trace(model, x)
    return count


def serve() -> None:
    """A process that does what it is told, line by line, and answers with a number."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = {name: (build(), count) for name, (build, count) in PROGRAMS.items()}
    jobs: dict[str, Callable[..., float]] = {
        "captures": capture_often,
        "exceptions": fail_everywhere,
        "torchlens": trace_with_torchlens,
    }
    for line in sys.stdin:
        job, *arguments = json.loads(line)
        if job in jobs:
            answer = jobs[job](*arguments)
        else:
            step, count = steps[job]
            began = time.process_time()
            for _ in range(count):
                step()
            answer = (time.process_time() - began) / count
        print(f"\n{MARK}{answer}", flush=True)


class Worker:
    """A process of its own. Not one of multiprocessing: torchlens refuses to work in those."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **KEEP_MEMORY},
        )

    def ask(self, *job: Any) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        too_late = threading.Timer(PATIENCE, self._process.kill)
        too_late.start()
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answers = (line for line in self._process.stdout if line.startswith(MARK))  # others print there too
        answer = next(answers, None)
        too_late.cancel()
        if answer is None:
            raise ChildProcessError(f"the process that was asked for {job} ended")
        return float(answer.removeprefix(MARK))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def compare(tried: Worker, fresh: Worker, pairs: int) -> dict[str, list[float]]:
    """Ratios of the time of a step in one process to that in the other."""
    ratios: dict[str, list[float]] = {}
    for name in PROGRAMS:
        for worker in (tried, fresh):
            worker.ask(name)
        ratios[name] = []
        for number in range(pairs):
            order = (tried, fresh) if number % 2 else (fresh, tried)
            seconds = {worker: worker.ask(name) for worker in order}
            ratios[name].append(seconds[tried] / seconds[fresh])
    return ratios


def cell(numbers: list[float]) -> str:
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def table(fresh: Worker, pairs: int, stages: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Before, and after each of the jobs, done one after the other by one process."""
    with Worker() as tried:
        columns: dict[str, dict[str, list[float]]] = {"before": compare(tried, fresh, pairs)}
        for title, job in stages:
            count = int(tried.ask(*job))
            columns[title.format(count)] = compare(tried, fresh, pairs)
    print("| training step | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|")
    for name in PROGRAMS:
        print(f"| {name} | " + " | ".join(cell(ratios[name]) for ratios in columns.values()) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--captures", type=int, default=1000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if folder := os.environ.get("TORCHLENS_PATH"):
        sys.path.append(folder)
    if options.serve:
        serve()
        return
    print(f"torch {torch.__version__}, one thread, {options.pairs} pairs; beside a process that never captured\n")
    stages = [("after {:,} captures", ("captures", options.captures)), ("and {:,} exceptions", ("exceptions",))]
    with Worker() as fresh:
        table(fresh, options.pairs, stages)
        if importlib.util.find_spec("torchlens") is not None:
            print()
            table(fresh, options.pairs, [("after {} traces of torchlens", ("torchlens", 10))])
        else:
            print("\n(torchlens is not installed: no table of its own)")


if __name__ == "__main__":
    main()
