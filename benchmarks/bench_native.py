"""What recording costs with each recorder: a training step alone, recorded in Python, recorded in C++.

    torchatlas native && python benchmarks/bench_native.py [--rounds 15] [--only mlp lstm resnet18 gpt2]
    torchatlas native && python benchmarks/bench_native.py --parts [--rounds 15]

Every round runs each way in turn; a ratio is taken within its round. Printed are medians of the ratios to the step
alone, of CPU time; `decode` is the making of the graph, after the recording. Every way, the step alone as well, runs
twice untimed before it is timed: what ran before leaves the caches of the processor to it. `--cold` leaves that out and
times what comes just after a full garbage collection, which makes a short step twice as slow, recorded or not.

`--parts` says where the time goes, for small steps: blocks of steps take turns with blocks of the same steps alone, and
each part of a recording is on by itself.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from programs import Step, dropout_mlp, gpt2_small, lstm_loop, mlp, resnet18
from torch.profiler import ProfilerActivity, profile

import torchatlas as atlas
from torchatlas.capturing.native.recorder import NativeRecorder
from torchatlas.capturing.recording import Recording, native_module

PROGRAMS = {"mlp": mlp, "dropout mlp": dropout_mlp, "lstm": lstm_loop, "resnet18": resnet18, "gpt2": gpt2_small}
SMALL = ("mlp", "dropout mlp")
GOALS = {"mlp": 1.3, "dropout mlp": 1.3, "lstm": 1.8, "resnet18": 1.03, "gpt2": 1.03}
BLOCK = 60  # steps of a part


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


def measure(step: Step, rounds: int, cold: bool) -> dict[str, float]:
    ratios: dict[str, list[float]] = defaultdict(list)

    def cost(run: Callable[[], Any]) -> tuple[float, Any]:
        gc.collect()
        for _ in range(0 if cold else 2):
            run()
        return timed(run)

    for native in (False, True):
        assert recorded(step, native).graph.metadata["recorder"] == ("native" if native else "python")
    for _ in range(rounds):
        alone = cost(step)[0]
        for native, name in ((False, "python"), (True, "native")):
            seconds, rec = cost(lambda native=native: recorded(step, native))
            ratios[name].append(seconds / alone)
            ratios[f"decode {name}"].append(timed(lambda rec=rec: rec.graph)[0] / alone)
            del rec
        ratios["profiler"].append(cost(lambda: profiled(step))[0] / alone)
    return {name: statistics.median(found) for name, found in ratios.items()}


# -- where the time goes -----------------------------------------------------------------------------------------------


@contextmanager
def callback(*, pause: bool) -> Iterator[None]:
    """The recorder in C++ by itself. Paused, its callback of torch's and its listener to allocations return at once."""
    recorder = NativeRecorder(native_module(required=True))
    recorder.start()
    if pause:
        recorder._core.pause(1)
    try:
        yield
    finally:
        recorder.stop()


@contextmanager
def watched() -> Iterator[None]:
    """What sees modules, backward passes and optimizers in Python, without a recorder."""
    watch = Recording(native=True)._watch
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def parts(make: Callable[[], Step], rounds: int) -> dict[str, float]:
    step, ratios = make(), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as folder:
        runs = iter(range(10 * rounds))
        ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "nothing": (nullcontext, step),
            "callback and listener of torch's, empty": (lambda: callback(pause=True), step),
            "the recorder in C++ by itself": (lambda: callback(pause=False), step),
            "what sees modules by itself": (watched, step),
            "a recording of many steps: a step of it": (lambda: atlas.recording(native=True), step),
            "a run with every=1: a step of it": (
                lambda: atlas.recording(every=1, path=Path(folder) / f"{next(runs)}.atlas", native=True),
                step,
            ),
            "a recording of one step": (nullcontext, lambda: recorded(step, native=True)),
        }
        for _ in range(rounds):
            for name, (entered, run) in ways.items():
                alone = block(step)
                with entered():
                    ratios[name].append(block(run) / alone)
    return {name: statistics.median(found) for name, found in ratios.items()}


def block(step: Callable[[], Any]) -> float:
    """A quick step of many, the seventh of sixty: what else the machine does only ever adds."""
    for _ in range(5):
        step()
    return sorted(timed(step)[0] for _ in range(BLOCK))[BLOCK // 10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS))
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only or (SMALL if options.parts else PROGRAMS):
        if options.parts:
            print(name)
            for part, ratio in parts(PROGRAMS[name], options.rounds).items():
                print(f"  {part:45}{ratio:.2f}")
        else:
            found = measure(PROGRAMS[name](), options.rounds, options.cold)
            print(
                f"{name:12}" + "".join(f"{key} {value:.3f}   " for key, value in found.items()) + f"goal {GOALS[name]}"
            )


if __name__ == "__main__":
    main()
