"""What looking at backward costs: recording, statistics and stepping against a plain backward; walking deep graphs.

    python benchmarks/bench_autograd.py [--only gpt2 resnet18 lstm walk] [--nodes 1000000]

Every round runs each way once, in turn, on a graph of its own; a ratio is taken within its round. Printed are medians
and the interval that holds the middle half. Time is CPU time of the process, all threads together.
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
from programs import load_torchvision, load_transformers
from torch import nn

import torchatlas as atlas
from torchatlas.autograd.check_arguments import names_by_id
from torchatlas.autograd.debug_session import Session
from torchatlas.autograd.engine_observer import watched
from torchatlas.autograd.graph_walk import walk

Build = Callable[[], tuple[nn.Module, torch.Tensor]]
# Of recording, statistics, debugging, stepping as at a terminal and stepping from another thread. The loop's nodes run
# for 10 µs each; to stop at one costs as much, or 60 µs from another thread: there is no goal for stopping at them all.
LIMITS: dict[str, tuple[float | None, ...]] = {
    "gpt2": (1.3, 2.5, 1.5, 1.5, 1.5),
    "resnet18": (1.3, 2.5, 1.5, 1.5, 1.5),
    "lstm": (2.0, 2.5, 1.5, None, None),
}


def gpt2() -> Build:
    transformers: Any = load_transformers()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(loss_type="ForCausalLM"))
    ids = torch.randint(0, 50257, (1, 128))
    return lambda: (model, model(ids, labels=ids).loss)


def resnet18() -> Build:
    model, x = load_torchvision().models.resnet18(weights=None), torch.randn(4, 3, 224, 224)
    return lambda: (model, model(x).pow(2).mean())


def lstm() -> Build:
    model, x = nn.LSTMCell(32, 64), torch.randn(200, 4, 32)

    def build() -> tuple[nn.Module, torch.Tensor]:
        hidden, state = torch.zeros(4, 64), torch.zeros(4, 64)
        for moment in x:
            hidden, state = model(moment, (hidden, state))
        return model, hidden.sum()

    return build


PROGRAMS: dict[str, tuple[Callable[[], Build], int]] = {
    "gpt2": (gpt2, 6),
    "resnet18": (resnet18, 8),
    "lstm": (lstm, 15),
}


def debugged(loss: torch.Tensor, model: nn.Module) -> None:
    with atlas.debug_backward(loss, model=model) as dbg:
        dbg.run()


def stepped_inline(loss: torch.Tensor, model: nn.Module) -> None:
    """Stop at every node in the thread that runs it, as `torchatlas debug` does."""
    session = Session(lambda: session.go(steps=1), names_by_id(None, model), None)
    session.go(steps=1)
    with watched(session):
        loss.backward()


def stepped(loss: torch.Tensor, model: nn.Module) -> None:
    with atlas.debug_backward(loss, model=model) as dbg:
        while dbg.step():
            pass


WAYS: dict[str, Callable[[torch.Tensor, nn.Module], Any]] = {
    "plain": lambda loss, model: loss.backward(),
    "recorded": lambda loss, model: atlas.record_backward(loss, model=model),
    "with statistics": lambda loss, model: atlas.record_backward(loss, model=model, statistics=True),
    "debugged": debugged,
    "stepped inline": stepped_inline,
    "every node stepped": stepped,
}


def compare(name: str) -> None:
    make, rounds = PROGRAMS[name]
    build, ratios = make(), defaultdict(list)
    for number in range(rounds + 1):
        times = {}
        for way, run in WAYS.items():
            model, loss = build()
            model.zero_grad()
            gc.collect()
            began = time.process_time()
            kept = run(loss, model)
            times[way] = time.process_time() - began
            del kept, loss
        if number:  # the first warms up
            for way in WAYS:
                ratios[way].append(times[way] / times["plain"])
    print(f"\n{name}: {rounds} rounds, plain = 1")
    for (way, found), limit in zip(list(ratios.items())[1:], LIMITS[name], strict=True):
        low, _, high = statistics.quantiles(found, n=4)
        goal = "" if limit is None else f"; goal {limit}"
        print(f"  {way:18} {statistics.median(found):5.2f} ({low:.2f} to {high:.2f}){goal}")


def walking(nodes: int) -> None:
    x, w = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    y = x
    for _ in range(nodes // 2):
        y = (y * w).sin()
    runs: dict[str, Callable[[], Any]] = {
        "engine": lambda: y.backward(retain_graph=True),
        "walk alone": lambda: walk([y.grad_fn]),
        "graph, structure": lambda: atlas.autograd_graph(y, saved=False),
        "graph, saved tensors": lambda: atlas.autograd_graph(y),
    }
    times = {}
    for name, run in runs.items():
        began = time.process_time()
        kept = run()
        times[name] = time.process_time() - began
        del kept
    print(f"\nwalking {nodes:,} nodes: engine {times['engine']:.2f} s")
    for name, goal in (("walk alone", ""), ("graph, structure", "; goal 1.5"), ("graph, saved tensors", "; goal 5")):
        print(f"  {name:20} {times[name] / times['engine']:.2f}{goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[*PROGRAMS, "walk"])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads that wait for each other take CPU time as well
    for name in options.only:
        if name in PROGRAMS:
            compare(name)
    if "walk" in options.only:
        walking(options.nodes)


if __name__ == "__main__":
    main()
