"""Makes export/data/profiled_step.json.gz: two steps under torch.profiler on a CPU, and a made-up GPU.

    python tests/profiled_step.py

The events of the CPU are what torch.profiler recorded. No GPU was there: launches and kernels are written here, tied to
ops as Kineto does it, by `External id` and `correlation`, with times that a test can know.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

PATH = Path(__file__).parent / "export" / "data" / "profiled_step.json.gz"
KERNELS = {"aten::addmm": ("gemm", 20.5), "aten::mm": ("gemm", 12.25), "aten::native_layer_norm": ("norm", 3.125)}
SPLIT = "aten::threshold_backward"  # launches two kernels
INNER = "aten::native_layer_norm"  # launches from an op that it calls
LOST = ("memset of the allocator", 7.0)  # belongs to no op
_KEPT = ("External id", "Sequence number", "Fwd thread id", "Input Dims", "correlation", "stream")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.norm(self.up(x))))  # type: ignore[no-any-return]


def made() -> tuple[Model, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.AdamW(model.parameters()), torch.ones(2, 8)


def recorded() -> dict[str, Any]:
    model, optimizer, x = made()
    plan = schedule(wait=1, warmup=1, active=2)
    with (
        tempfile.TemporaryDirectory() as folder,
        profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as prof,
    ):
        for _ in range(4):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            prof.step()
        prof.export_chrome_trace(f"{folder}/trace.json")
        return json.loads(Path(f"{folder}/trace.json").read_text())  # type: ignore[no-any-return]


def with_kernels(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with a stream of kernels; every second one names its op by `correlation` only."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("cpu_op", "user_annotation")]
    begin = min(event["ts"] for event in events)
    for event in events:
        event["ts"] = round(event["ts"] - begin, 3)
        event["pid"] = event["tid"] = 1
        event["args"] = {name: item for name, item in event.get("args", {}).items() if name in _KEPT}
    device: list[dict[str, Any]] = []
    for event in sorted(events, key=lambda event: event["ts"]):
        if event["name"] in KERNELS:
            launcher = _called(event, events) if event["name"] == INNER else event
            device += _launched(launcher, *KERNELS[event["name"]], correlation=len(device) + 1)
        elif event["name"] == SPLIT:
            device += _launched(event, "relu", 1.0, correlation=len(device) + 1)
            device += _launched(event, "relu", 2.0, correlation=len(device) + 1)
    name, us = LOST
    device.append({"ph": "X", "cat": "gpu_memset", "name": name, "pid": 0, "tid": 7, "ts": 1.0, "dur": us, "args": {}})
    return {"schemaVersion": 1, "traceEvents": events + device}


def _called(op: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """The first op that an op calls."""
    begin, end = op["ts"], op["ts"] + op["dur"]
    inside = [one for one in events if one is not op and begin <= one["ts"] and one["ts"] + one["dur"] <= end]
    return min(inside, key=lambda one: one["ts"])  # type: ignore[no-any-return]


def _launched(op: dict[str, Any], name: str, us: float, correlation: int) -> list[dict[str, Any]]:
    named = {"External id": op["args"]["External id"]} if correlation % 4 == 1 else {}
    base = {"ph": "X", "args": {"correlation": correlation, **named}}
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 0.1}
    kernel = {"cat": "kernel", "name": name, "pid": 0, "tid": 7, "dur": us}
    return [{**base, **launch, "ts": op["ts"]}, {**base, **kernel, "ts": round(op["ts"] + 30, 3)}]


if __name__ == "__main__":
    text = json.dumps(with_kernels(recorded()), separators=(",", ":"))
    PATH.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{PATH.name}: {PATH.stat().st_size:,} bytes")
