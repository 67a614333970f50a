"""Whether the peak of memory is right: storage lifetimes against the allocations torch.profiler saw.

python benchmarks/bench_peak.py
"""

from __future__ import annotations

import torch
from programs import Step, gpt2_small, lstm_loop, mlp, resnet18, vit
from torch.profiler import ProfilerActivity, profile

import torchatlas as atlas


def profiler_peak(step: Step) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    events = prof.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    live = peak = 0
    for _, size in changes:
        live += size
        peak = max(peak, live)
    return peak


def recorded_peak(step: Step) -> int:
    with atlas.recording() as rec:
        step()
    before = sum(storage.bytes or 0 for storage in rec.graph.storages if storage.born is None)
    return (rec.graph.peak_bytes or 0) - before


def main() -> None:
    torch.set_num_threads(1)
    print("| training step | profiler, bytes above the start | recorded | ratio |\n|---|---|---|---|")
    for build in (mlp, lstm_loop, resnet18, vit, gpt2_small):
        step = build()
        step()
        step()
        theirs, ours = profiler_peak(step), recorded_peak(step)
        print(f"| {build.__name__} | {theirs:,} | {ours:,} | {ours / theirs:.4f} |", flush=True)


if __name__ == "__main__":
    main()
