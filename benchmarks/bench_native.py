"""What recording costs with each recorder: a training step alone, recorded in Python, recorded in C++.

    torchatlas native && python benchmarks/bench_native.py [--rounds 15] [--only mlp lstm resnet18 gpt2]

Every round runs each way once, in turn; a ratio is taken within its round. Printed are medians of the ratios to the
step alone, of CPU time; `decode` is the making of the graph, after the recording.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from programs import Step, gpt2_small, lstm_loop, mlp, resnet18
from torch.profiler import ProfilerActivity, profile

import torchatlas as atlas

PROGRAMS = {"mlp": mlp, "lstm": lstm_loop, "resnet18": resnet18, "gpt2": gpt2_small}
GOALS = {"mlp": 1.3, "lstm": 1.8, "resnet18": 1.03, "gpt2": 1.03}


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = run()
    return time.process_time() - began, result


def recorded(step: Step, native: bool) -> Any:
    with atlas.recording(native=native) as rec:
        step()
    return rec


def profiled(step: Step) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True):
        step()


def measure(step: Step, rounds: int) -> dict[str, float]:
    ratios: dict[str, list[float]] = defaultdict(list)
    for native in (False, True):
        assert recorded(step, native).graph.metadata["recorder"] == ("native" if native else "python")
    for _ in range(rounds):
        gc.collect()
        alone = timed(step)[0]
        for native, name in ((False, "python"), (True, "native")):
            cost, rec = timed(lambda native=native: recorded(step, native))
            ratios[name].append(cost / alone)
            gc.collect()
            ratios[f"decode {name}"].append(timed(lambda rec=rec: rec.graph)[0] / alone)
            del rec
            gc.collect()
        ratios["profiler"].append(timed(lambda: profiled(step))[0] / alone)
    return {name: statistics.median(found) for name, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        found = measure(PROGRAMS[name](), options.rounds)
        print(f"{name:10}" + "".join(f"{key} {value:.3f}   " for key, value in found.items()) + f"goal {GOALS[name]}")


if __name__ == "__main__":
    main()
