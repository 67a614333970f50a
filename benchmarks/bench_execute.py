"""What running a traced model costs, against the model itself, and fx.Interpreter beside it.

    python benchmarks/bench_execute.py [gpt2 resnet18 bert mobilenet_v2] [--repeats N] [--threads N]

CPU time, all ways in turn, again and again; ratios are those of the medians. "keeping" holds every value of a run at
once; "freeing" keeps none. "peak" is the most memory at a time while one node in the middle is kept, as a recording
sees it, without the parameters and what that node took and made, against a plain forward's (goal 1.1).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from programs import load_torchvision, load_transformers
from torch import nn

import torchatlas as atlas

LIMITS = {"gpt2": (1.1, 1.0), "resnet18": (1.1, 1.0), "bert": (1.1, 1.0), "mobilenet_v2": (2.0, 1.0)}


def gpt2() -> tuple[nn.Module, Any]:
    transformers: Any = load_transformers()
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)), torch.randint(0, 50257, (1, 128))


def bert() -> tuple[nn.Module, Any]:
    transformers: Any = load_transformers()
    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=6)), torch.randint(0, 30522, (1, 128))


def resnet18() -> tuple[nn.Module, Any]:
    return load_torchvision().models.resnet18(weights=None), torch.randn(1, 3, 224, 224)


def mobilenet_v2() -> tuple[nn.Module, Any]:
    return load_torchvision().models.mobilenet_v2(weights=None), torch.randn(1, 3, 224, 224)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt2": gpt2,
    "resnet18": resnet18,
    "bert": bert,
    "mobilenet_v2": mobilenet_v2,
}


def measure(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds each, in turn: what else the machine does meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(repeats + 2):
        for name, run in ways.items():
            begin = time.process_time()
            kept = run()
            spent = time.process_time() - begin
            del kept
            if round_ >= 2:
                times[name].append(spent)
    return {name: statistics.median(spent) for name, spent in times.items()}


def peak(run: Callable[[], Any], model: nn.Module) -> int:
    """Bytes that a run has at a time, beyond the parameters."""
    with atlas.recording() as rec:
        run()
    held = sum(tensor.untyped_storage().nbytes() for tensor in {*model.parameters(), *model.buffers()})
    return int(rec.graph.peak_bytes) - held


def row(name: str, repeats: int) -> str:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.eval()
    begin = time.perf_counter()
    traced = atlas.trace(model, x)
    tracing = time.perf_counter() - begin
    interpreter = torch.fx.Interpreter(torch.export.export(model, (x,)).module())
    with torch.no_grad():
        ways = {
            "eager": lambda: model(x),
            "keeping": lambda: traced.predict(x),
            "freeing": lambda: traced(x),
            "interpreter": lambda: interpreter.run(x),
        }
        middle = traced.graph.where(kind="op")[len(traced.graph) // 2].name
        kept = traced.predict(x, nodes=[middle])[middle]
        asked_for = sum(part.nbytes for part in {*kept.inputs, kept.output} - {*model.parameters(), *model.buffers()})
        memory = (peak(lambda: traced.predict(x, nodes=[middle]), model) - asked_for) / peak(ways["eager"], model)
        spent = measure(ways, repeats)
    eager = spent["eager"]
    keeping, freeing = LIMITS[name]
    beside = spent["interpreter"] / eager
    return (
        f"| {name} | {len(traced.graph):,} | {eager * 1e3:.1f} | {spent['keeping'] / eager:.2f} | {keeping} "
        f"| {spent['freeing'] / eager:.2f} | {freeing} | {beside:.2f} | {memory:.2f} | {tracing:.1f} |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    print("| model | nodes | eager, ms | keeping | limit | freeing | limit | fx.Interpreter | peak | to trace, s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in chosen.models or MODELS:
        print(row(name, chosen.repeats), flush=True)


if __name__ == "__main__":
    main()
