"""What recording a whole run costs: time, file and memory over thousands of steps, each beside an eager one.

    python benchmarks/bench_runs.py [--steps 10000] [--every 1 100] [--only mlp lstm]

A recorded step runs in this thread, the same step of a second model in a thread that was there before the run and that
is not part of it, one after the other: a slow moment of the machine falls on both. All that the run does is in the
recorded side: recording, knowing the structure, writing. Compared is the time that the processor spent in each thread:
by the clock, a thread that has just woken up would be served first. "all" is the ratio of the sums, "median" that of
the pairs. With --every 0 nothing is recorded: that is what the method itself makes of two equal threads.
"""

from __future__ import annotations

import argparse
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from programs import Step, lstm_loop, mlp

import torchatlas as atlas
from torchatlas.runs.keeper import ResidentMemory

PROGRAMS: dict[str, tuple[Callable[[], Step], int]] = {"mlp": (mlp, 1), "lstm": (lambda: lstm_loop(20), 10)}


class Beside:
    """Runs steps in a thread of its own, one at a time, and says how long each took."""

    def __init__(self, step: Step) -> None:
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._step = step
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._asked.get():
            self._answers.put(timed(self._step))

    def __call__(self) -> float:
        self._asked.put(True)
        return self._answers.get()

    def end(self) -> None:
        self._asked.put(False)


def timed(step: Step) -> float:
    began = time.thread_time()
    step()
    return time.thread_time() - began


def measure(name: str, make: Callable[[], Step], steps: int, every: int, folder: Path) -> None:
    eager, step, memory = Beside(make()), make(), ResidentMemory()
    for _ in range(20):
        timed(step), eager()
    path = folder / f"{name}-{every}.atlas"
    alone, recorded, resident = np.zeros(steps), np.zeros(steps), list[int]()
    with atlas.recording(every=every, path=path) if every else nullcontext() as run:
        for at in range(steps):
            recorded[at] = timed(step)
            alone[at] = eager()
            if at in (steps // 10, steps - 1):
                if run is not None:
                    run.flush()  # figures that wait to be written take memory as well, for five seconds
                resident.append(memory.bytes() or 0)
    eager.end()
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if run is not None:
        assert len(atlas.load(path)) == run.recorded == -(-steps // every), run.notes
    print(
        f"| {name} | {every} | {steps:,} | {1e3 * np.median(alone):.2f} ms | {np.median(recorded / alone):.2f} | "
        f"{recorded.sum() / alone.sum():.2f} | {size / 1e6:.2f} MB | {(resident[-1] - resident[0]) / 1e6:+.1f} MB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, nargs="+", default=[0, 1, 100])
    parser.add_argument("--only", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| program | every | steps | eager | median | all | folder | memory after a tenth |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            make, divisor = PROGRAMS[name]
            for every in options.every:
                measure(name, make, options.steps // divisor, every, Path(folder))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
