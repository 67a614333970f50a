"""What the doctor costs: training alone, watched on the recorder in Python, watched on the recorder in C++.

    torchatlas native && python benchmarks/bench_doctor.py [--rounds 7] [--only tiny mlp lstm resnet18 gpt2 carried20]

A program is several training steps, and a visit is all of it: beginning, steps and judgement at the end. Every round
runs each way once, in turn; a ratio is taken within its round. Printed are medians of the ratios to the program alone,
of CPU time, and the load of the machine meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from programs import Step, gpt2_small, lstm_loop, mlp, resnet18, training_step
from torch import nn

import torchatlas as atlas
from torchatlas.diagnosis.visit import Visit


def tiny() -> Step:
    """Ops so small that nothing but their number counts."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    return training_step(model, lambda model: nn.functional.mse_loss(model(x), y))


def carried(steps: int) -> Step:
    """The near-hang: a recurrent state that is not detached, and retain_graph=True, so that every pass is longer."""

    def program() -> None:
        torch.manual_seed(0)
        cell, head = nn.LSTMCell(8, 16), nn.Linear(16, 1)
        optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.0)  # or torch refuses the second pass
        state = torch.zeros(4, 16), torch.zeros(4, 16)
        for _ in range(steps):
            loss = torch.zeros(())
            for _ in range(5):
                state = cell(torch.randn(4, 8), state)
                loss = loss + head(state[0]).square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(0.01 * parameter.grad)

    return program


# A program, how often it runs in a round, and the most that it may cost
PROGRAMS: dict[str, tuple[Callable[[], Step], int, float]] = {
    "tiny": (tiny, 1000, 4.0),
    "mlp": (mlp, 400, 4.0),
    "lstm": (lstm_loop, 20, 4.0),
    "resnet18": (resnet18, 4, 1.5),
    "gpt2": (gpt2_small, 3, 1.5),
    "carried20": (lambda: carried(20), 1, 3.0),
    "carried40": (lambda: carried(40), 1, 3.0),
}


def timed(run: Callable[[], None]) -> float:
    gc.collect()
    began = time.process_time()
    run()
    return time.process_time() - began


def measure(step: Step, times: int, rounds: int) -> dict[str, float]:
    def alone() -> None:
        for _ in range(times):
            step()

    def watched(native: bool) -> None:
        with Visit(native=native):
            alone()

    ways = {"python": lambda: watched(False), "native": lambda: watched(True)}
    for way in ways.values():
        way()
    ratios: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        eager = timed(alone)
        ratios["seconds alone"].append(eager)
        for name, way in ways.items():
            ratios[name].append(timed(way) / eager)
    return {name: statistics.median(found) for name, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torchatlas {atlas.__version__}, torch {torch.__version__}")
    for name in options.only:
        make, times, goal = PROGRAMS[name]
        found = measure(make(), times, options.rounds)
        shown = "".join(f"{key} {value:.3f}   " for key, value in found.items())
        print(f"{name:10}{shown}goal {goal}   load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
