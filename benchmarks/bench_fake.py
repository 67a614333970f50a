"""What recording adds to a training step of a giant model that runs on fake tensors.

    python benchmarks/bench_fake.py [7B 70B 405B] [--repeats N]

Each run has a process of its own: CPU time of the step (forward, backward, AdamW; for the recorded run also
decoding) and of the whole run with building the model, and the most memory the process held.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchatlas as atlas

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import GIANTS, giant_llama


def run(size: str, recorded: bool) -> dict[str, float]:
    begin = time.process_time()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = giant_llama(size)
        inputs = torch.zeros(1, 2048, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(input_ids=inputs, labels=inputs).loss.backward()
            optimizer.step()

        start = time.process_time()
        if recorded:
            with atlas.recording(model) as rec:
                step()
            graph = rec.graph
        else:
            step()
        end = time.process_time()
    found = {"step": end - start, "whole": end - begin}
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if recorded:
        found |= {"ops": len(graph.where(kind="op")), "peak": graph.peak_bytes or 0}
    return found


def in_own_process(size: str, recorded: bool) -> dict[str, float]:
    command = [sys.executable, __file__, size, "--one", "recorded" if recorded else "plain"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200).stdout
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("sizes", nargs="*", default=list(GIANTS))
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--one", choices=["plain", "recorded"], help=argparse.SUPPRESS)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.one:
        print(json.dumps(run(chosen.sizes[0], chosen.one == "recorded")))
        return
    print("| Llama | ops | peak GB | step, CPU s, plain | recorded | ratio | whole run, ratio | memory above, MB |")
    print("|---|---|---|---|---|---|---|---|")
    for size in chosen.sizes:
        pairs = [(in_own_process(size, False), in_own_process(size, True)) for _ in range(chosen.repeats)]

        def median(what: str, which: int, pairs: list[tuple[dict[str, float], dict[str, float]]] = pairs) -> float:
            return statistics.median(pair[which][what] for pair in pairs)

        plain, recorded = median("step", 0), median("step", 1)
        more = median("megabytes", 1) - median("megabytes", 0)
        whole = median("whole", 1) / median("whole", 0)
        ops, peak = pairs[0][1]["ops"], pairs[0][1]["peak"] / 1e9
        print(
            f"| {size} | {ops:,.0f} | {peak:,.1f} | {plain:.1f} | {recorded:.1f} | {recorded / plain:.2f} "
            f"| {whole:.2f} | {more:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
