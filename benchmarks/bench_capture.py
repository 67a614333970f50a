"""What recording costs: every way of watching a training step, interleaved in one process.

    python benchmarks/bench_capture.py [--pairs 40] [--only mlp lstm resnet18 gpt2]

Every round runs each way once, in turn; a ratio is taken within its round, so that a slow moment of the machine
falls on both sides. Printed are medians of the ratios and the interval that holds the middle half of them.
With torchlens installed, a second table sets a forward pass beside it; last, because it leaves torch wrapped.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from programs import Step, forwards, gpt2_small, lstm_loop, mlp, resnet18
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import torchatlas as atlas

PROGRAMS: dict[str, tuple[Callable[[], Step], int]] = {  # and the most rounds worth their time
    "mlp": (mlp, 200),
    "lstm": (lstm_loop, 30),
    "resnet18": (resnet18, 12),
    "gpt2": (gpt2_small, 6),
}
LIMITS = {"mlp": 1.6, "lstm": 1.9, "resnet18": 1.2, "gpt2": 1.2}


class Empty(TorchDispatchMode):
    """The floor: a dispatch mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def in_empty_mode(step: Step) -> None:
    with Empty():
        step()


def recorded(step: Step) -> Any:
    with atlas.recording() as rec:
        step()
    return rec


def modules_only(step: Step) -> Any:
    with atlas.recording(track_tensor_ops=False) as rec:
        step()
    return rec


def profiled(step: Step) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True):
        step()


def measure(step: Step, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Ratios of every way to what it is compared with, each taken within a round."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for way in (step, lambda: in_empty_mode(step), lambda: recorded(step).graph, lambda: modules_only(step)):
        way()
    for _ in range(rounds):
        eager = timed(step)[0]
        empty = timed(lambda: in_empty_mode(step))[0]
        recording, rec = timed(lambda: recorded(step))
        decoding = timed(lambda rec=rec: rec.graph)[0]
        del rec
        ratios["eager", "ms"].append(eager * 1e3)
        ratios["empty mode", "eager"].append(empty / eager)
        for way, spent in (("recording", recording), ("decoding", decoding)):
            ratios[way, "eager"].append(spent / eager)
            ratios[way, "empty"].append(spent / empty)
    for name, run in (("module level", modules_only), ("profiler", profiled)):
        for _ in range(rounds):  # apart: the profiler leaves cold caches behind
            eager = timed(step)[0]
            ratios[name, "eager"].append(timed(lambda run=run: run(step))[0] / eager)
    return ratios


def cell(numbers: list[float]) -> str:
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def forward_table(pairs: int) -> None:
    """Recording and decoding a forward pass, beside torchlens."""
    try:
        import torchlens  # type: ignore[import-not-found]
    except ImportError:
        print("\n(torchlens is not installed: no table of forward passes)")
        return
    print("\n| forward | recording and decoding / eager | torchlens / eager |\n|---|---|---|")
    for name, (model, x) in forwards().items():
        seconds: dict[str, list[float]] = {"eager": [], "recording": [], "torchlens": []}
        ways: dict[str, Callable[[], Any]] = {
            "eager": lambda model=model, x=x: model(x),
            "recording": lambda model=model, x=x: recorded(lambda: model(x)).graph,
        }
        for way, run in ways.items():
            run()
            seconds[way] = [timed(run)[0] for _ in range(pairs)]
        torchlens.trace(model, x)
        seconds["torchlens"] = [timed(lambda model=model, x=x: torchlens.trace(model, x))[0] for _ in range(5)]
        medians = {way: statistics.median(times) for way, times in seconds.items()}
        print(
            f"| {name} | {medians['recording'] / medians['eager']:.1f} "
            f"| {medians['torchlens'] / medians['eager']:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="most rounds per program")
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS), default=list(PROGRAMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; medians of ratios [middle half]\n")
    ways = ["empty mode", "recording", "decoding", "module level", "profiler"]
    print("| training step | ops | eager ms | rounds | " + " | ".join(f"{way} / eager" for way in ways), end=" | ")
    print("recording / empty | at most | decoding / empty | at most |")
    print("|---" * (len(ways) + 8) + "|")
    for name in options.only:
        build, most = PROGRAMS[name]
        step = build()
        step()
        rounds = min(options.pairs, most)
        operations = len(recorded(step).graph.where(kind="op"))
        found = measure(step, rounds)
        cells = [name, f"{operations:,}", f"{statistics.median(found['eager', 'ms']):.1f}", str(rounds)]
        cells += [cell(found[way, "eager"]) for way in ways]
        cells += [cell(found["recording", "empty"]), str(LIMITS[name]), cell(found["decoding", "empty"]), "1.0"]
        print("| " + " | ".join(cells) + " |", flush=True)
    forward_table(min(options.pairs, 15))


if __name__ == "__main__":
    main()
