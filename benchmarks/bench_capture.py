"""What recording costs: every way of watching a training step, interleaved in one process.

    python benchmarks/bench_capture.py [--pairs 40] [--only mlp lstm resnet18 gpt2]

Every round runs each way once, in turn; a ratio is taken within its round, so that a slow moment of the machine
falls on both sides. Printed are medians of the ratios and the interval that holds the middle half of them.
With torchlens installed, a second table sets a forward pass beside it; last, because it leaves torch wrapped.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
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


def measure(step: Step, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {
        way: [] for way in ("eager", "empty mode", "recording", "decoding", "module level", "profiler")
    }
    for way in (step, lambda: in_empty_mode(step), lambda: recorded(step).graph, lambda: modules_only(step)):
        way()
    for _ in range(rounds):
        gc.collect()
        seconds["eager"].append(timed(step)[0])
        seconds["empty mode"].append(timed(lambda: in_empty_mode(step))[0])
        spent, rec = timed(lambda: recorded(step))
        seconds["recording"].append(spent)
        seconds["decoding"].append(timed(lambda rec=rec: rec.graph)[0])
        del rec
        seconds["module level"].append(timed(lambda: modules_only(step))[0])
        seconds["profiler"].append(timed(lambda: profiled(step))[0])
    return seconds


def ratios(seconds: dict[str, list[float]], way: str, base: str) -> str:
    quotients = [a / b for a, b in zip(seconds[way], seconds[base], strict=True)]
    low, middle, high = statistics.quantiles(quotients, n=4)
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
        seconds = measure(step, rounds)
        cells = [name, f"{operations:,}", f"{statistics.median(seconds['eager']) * 1e3:.1f}", str(rounds)]
        cells += [ratios(seconds, way, "eager") for way in ways]
        cells += [ratios(seconds, "recording", "empty mode"), str(LIMITS[name])]
        cells += [ratios(seconds, "decoding", "empty mode"), "1.0"]
        print("| " + " | ".join(cells) + " |", flush=True)
    forward_table(min(options.pairs, 15))


if __name__ == "__main__":
    main()
