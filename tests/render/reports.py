"""One of each report that a notebook may show, by its class, with texts that its HTML must hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.analysis import critical_path
from torchatlas.execute.replay import replay
from torchatlas.graph.timing import Measured
from torchatlas.partition.validate import validate_model
from torchatlas.partition.validate.validation import ModelValidation, ValidationReport
from torchatlas.pipeline.comparing import PipelineDifference
from torchatlas.types import (
    CheckpointCheck,
    Difference,
    Finding,
    Findings,
    PipelineRun,
    SourceLine,
    Timeline,
    Verification,
    Where,
)
from torchatlas.units import format_bytes, format_count, format_flops, format_ns, format_seconds

MARKUP = "<img onerror='x'>\"&"  # as part of a module's name; neither dot nor slash, which would divide it


def model(mark: str = "") -> nn.Module:
    """Two blocks with a branch, so that there is something to cut, to checkpoint and to run at the same time."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(f"up{mark}", nn.Linear(16, 64))
            self.add_module(f"gate{mark}", nn.Linear(16, 64))
            self.add_module(f"down{mark}", nn.Linear(64, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            up, gate, down = self.children()
            return x + down(torch.relu(up(x)) * torch.sigmoid(gate(x)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    blocks = nn.Sequential()
    blocks.add_module(f"first{mark}", Block())
    blocks.add_module(f"second{mark}", Block())
    return blocks


def example() -> torch.Tensor:
    return torch.linspace(-1, 1, 64).reshape(4, 16)


@cache
def step(mark: str = "", batch: int = 4) -> atlas.Graph:
    """A training step."""
    return atlas.capture(model(mark), torch.ones(batch, 16), optimizer=torch.optim.AdamW)


@cache
def forward(mark: str) -> atlas.Graph:
    return atlas.capture(model(mark), example())


@cache
def partition(mark: str) -> Any:
    return atlas.GraphPartitioner(device="a100-80gb").partition(forward(mark))


@cache
def traced(mark: str) -> Any:
    return atlas.trace(model(mark), example())


@cache
def compared(mark: str) -> Any:
    other = model(mark)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    return atlas.compare_runs(traced(mark), atlas.trace(other, example()), example())


@cache
def backward(mark: str) -> Any:
    net = model(mark)
    with atlas.recording(net) as recorded:
        loss = net(example()).sum()
    return atlas.record_backward(loss, model=net, forward=recorded.graph, statistics=True)


@cache
def stopped(mark: str) -> tuple[Any, Any, Any]:
    """A debugger, its breakpoint and its first stop."""
    net = model(mark)
    debugger = atlas.debug_backward(net(example()).sum(), model=net)
    point = debugger.break_at("MulBackward0")
    return debugger, point, debugger.run()


@cache
def run_recording(mark: str) -> Any:
    """A recorded run of two steps."""
    net = model(mark)
    optimizer = torch.optim.SGD(net.parameters())
    with atlas.recording(net, every=1, path=Path(tempfile.mkdtemp()) / "run.atlas") as recorded:
        for _ in range(2):
            optimizer.zero_grad()
            net(example()).sum().backward()
            optimizer.step()
    return recorded


@cache
def watched(mark: str) -> Any:
    """A watched training of two steps."""
    net = model(mark)
    optimizer = torch.optim.SGD(net.parameters())
    path = Path(tempfile.mkdtemp()) / "run.atlas"
    with atlas.watch(optimizer, net, every=1, path=path, page=False) as found:
        for _ in range(2):
            optimizer.zero_grad()
            net(example()).sum().backward()
            optimizer.step()
    return found


@cache
def run(mark: str) -> Any:
    return atlas.load(run_recording(mark).path)


@cache
def visit(mark: str) -> Any:
    net = model(mark)
    with atlas.doctor(model=net) as found:
        (net(example()) * torch.nan).sum().backward()
    return found


def finding(mark: str) -> Finding:
    where = Where(f"step of w{mark}", SourceLine(f"train{mark}.py", 5, "f", f"step({mark})"))
    return Finding("not-zeroed", f"w{mark} is not zeroed", (where,), f"why{mark}", f"fix{mark}", times=3)


@cache
def checkpoints(mark: str) -> Any:
    return atlas.checkpoint_plan(model(mark), torch.ones(512, 16), limit=step_peak(mark) - 1)


@cache
def step_peak(mark: str) -> int:
    peak = atlas.capture(model(mark), torch.ones(512, 16), backward=True, fake=True).peak_bytes
    assert peak is not None
    return peak


def difference(mark: str) -> Difference:
    return Difference(f"up{mark}.addmm", "aten.addmm.default", f"up{mark}", "net.py:3 in forward", 0, 0.25)


@cache
def pipeline_run(mark: str) -> PipelineRun:
    """As `run_pipeline` returns it, without its processes."""
    plan = atlas.pipeline_stages(forward(mark), 2)
    line, found = Timeline(0.25, (0.2, 0.15)), PipelineDifference("gradients", 12, [f"w{mark}"], 0.5, False)
    return PipelineRun(plan, "1f1b", 2, 4, 1.25, (found,), line, line, line, (3 << 20, 2 << 20), (), (f"note {mark}",))


@dataclass(frozen=True)
class Row:
    """A report, and texts of numbers that it holds."""

    make: Callable[[str], Any]
    numbers: Callable[[Any], Iterable[str]]
    named: bool = True  # whether names of the model are in it


def _two_graphs(mark: str) -> Any:
    return atlas.compare(step(mark), step(mark, batch=8))


def _validated(mark: str) -> ModelValidation:
    net = model(mark)
    return validate_model(net, example(), name=f"net{mark}", strategies=["fusion"], front_ends=["export"])


def _recorded(mark: str) -> Any:
    with atlas.recording(net := model(mark)) as recorded:
        net(example())
    return recorded


def _failed(mark: str) -> Any:
    try:
        with atlas.recording(net := model(mark)) as recorded:
            net(torch.ones(2, 3))
    except RuntimeError:
        return recorded.failure


@cache
def profiled(mark: str) -> Any:
    """A step joined to its own trace."""
    with tempfile.TemporaryDirectory() as folder:
        return atlas.join_profile(step(mark), step(mark).save(Path(folder) / "step.trace.json"))


REPORTS: dict[str, Row] = {
    "Amount": Row(lambda m: atlas.cost(step(m)).total, lambda r: [format_count(r.macs), f"{r.macs:,}"], named=False),
    "AppliedPlan": Row(lambda m: checkpoints(m).apply(model(m)), lambda r: [], named=False),
    "BackwardRecording": Row(backward, lambda r: [f"{len(r.graph):,} nodes"]),
    "BackwardRun": Row(lambda m: backward(m).runs[0], lambda r: [format_bytes(r.peak_gradient_bytes)]),
    "BarRow": Row(lambda m: atlas.module_bars(step(m), "macs").rows[1], lambda r: [r.text]),
    "BatchPeak": Row(
        lambda m: atlas.peak_for_batch({size: step(m, size) for size in (2, 3, 4)}),
        lambda r: [format_bytes(r.at(4)), format_bytes(r.at(128)), "128"],
    ),
    "Boundary": Row(lambda m: partition(m).boundaries[0], lambda r: [format_bytes(r.bytes)], named=False),
    "Breakpoint": Row(lambda m: stopped(m)[1], lambda r: [f"{r.hits}"], named=False),
    "Change": Row(lambda m: _two_graphs(m).changed[0], lambda r: ["[8, 16]"], named=False),
    "CheckpointCheck": Row(
        lambda m: CheckpointCheck(5, (f"gradient of w{m}",), 1 << 20, 2 << 20), lambda r: ["1.00 MiB", "2.00 MiB", "5"]
    ),
    "CheckpointChoice": Row(lambda m: checkpoints(m).choice, lambda r: [format_bytes(r.peak_bytes)]),
    "CheckpointPlan": Row(checkpoints, lambda r: [format_bytes(r.captured_peak_bytes), format_flops(r.choice.flops)]),
    "CheckpointedModule": Row(lambda m: checkpoints(m).modules[0], lambda r: [format_bytes(r.saved_bytes)]),
    "Comparison": Row(_two_graphs, lambda r: [f"{len(r.changed):,} changed", format_count(r.after.macs)]),
    "Compatibility": Row(
        lambda m: atlas.check_compatibility(model(m), example()), lambda r: [format_bytes(r.peak_bytes)], named=False
    ),
    "ConcurrencyReport": Row(
        lambda m: atlas.ConcurrencyAnalyzer().analyze(partition(m)),
        lambda r: [f"{r.speedup_bound:.3g}", f"{r.speedups[2]:.3g}", format_flops(r.span)],
        named=False,
    ),
    "CostReport": Row(
        lambda m: atlas.cost(step(m), "a100-80gb"),
        lambda r: [format_count(r.macs), format_bytes(r.total.bytes_read), format_count(r.by_phase["backward"].macs)],
    ),
    "CriticalPath": Row(lambda m: critical_path(forward(m), "flops"), lambda r: [f"{r.length:,}"]),
    "Debugger": Row(lambda m: stopped(m)[0], lambda r: [f"#{r.current.number}"], named=False),
    "Delta": Row(lambda m: _two_graphs(m).modules[""]["bytes"], lambda r: [f"{r.after:,}"], named=False),
    "Device": Row(lambda m: atlas.cost(step(m), "a100-80gb").device, lambda r: ["19.5 TFLOPs/s"], named=False),
    "Difference": Row(difference, lambda r: [f"output {r.output}", "0.25"]),
    "Dot": Row(lambda m: atlas.make_dot(model(m)(example()).sum()), lambda r: [], named=False),
    "Drawing": Row(lambda m: atlas.plot(step(m), "memory"), lambda r: [f'width="{r.width}"'], named=False),
    "Failure": Row(_failed, lambda r: ["2x3"]),
    "Figures": Row(lambda m: atlas.module_table(step(m)).totals, lambda r: [format_count(r.macs)], named=False),
    "Finding": Row(finding, lambda r: [r.key, "3 times"]),
    "Findings": Row(lambda m: Findings([finding(m)], ("not-zeroed",)), lambda r: [*r.keys, "1 error"]),
    "GraphEdge": Row(lambda m: step(m).edges[5], lambda r: [str(r.kind)]),
    "GraphNode": Row(
        lambda m: step(m).where(operation_type="matmul")[0],
        lambda r: [f"[{', '.join(map(str, r.outputs[0].shape))}]", format_bytes(r.memory_bytes)],
    ),
    "InputSize": Row(lambda m: traced(m).input_sizes[0], lambda r: [f"{r.size}"], named=False),
    "Lifecycle": Row(
        lambda m: atlas.lifecycle(model(m)(example()).sum()), lambda r: [format_bytes(r.held_bytes)], named=False
    ),
    "LineMemory": Row(lambda m: atlas.memory(step(m)).by_line[0], lambda r: [f"{r.bytes:,}"], named=False),
    "Measured": Row(lambda m: Measured(19_900_000, 10, 640_000), lambda r: ["19.9 ms", "3.2 %"], named=False),
    "MemoryReport": Row(
        lambda m: atlas.memory(step(m)), lambda r: [f"{r.peak_bytes:,} bytes", format_bytes(r.largest[0].bytes)]
    ),
    "ModelValidation": Row(_validated, lambda r: ["0 failed", f"{r.partitions[0].subgraphs:,}"]),
    "ModuleBars": Row(
        lambda m: atlas.module_bars(step(m), "macs"), lambda r: [r.rows[1].text, f"{100 * r.rows[1].share:.1f} %"]
    ),
    "ModuleMemory": Row(lambda m: list(atlas.memory(step(m)).by_module.values())[1], lambda r: [f"{r.bytes:,}"]),
    "ModuleRow": Row(lambda m: atlas.module_table(step(m)).rows[1], lambda r: [format_count(r.total.macs)]),
    "ModuleShare": Row(
        lambda m: next(one for one in watched(m).report.modules if one.path.startswith("second")),
        lambda r: [format_ns(r.time_ns)],
    ),
    "ModuleTable": Row(lambda m: atlas.module_table(step(m)), lambda r: [format_count(r.totals.macs)]),
    "NodeCost": Row(lambda m: atlas.cost(step(m)).top(1)[0], lambda r: [format_count(r.macs)], named=False),
    "NodeDifference": Row(lambda m: compared(m).first, lambda r: [f"{r.differing:,} of {r.numbers:,}"]),
    "NodeIO": Row(lambda m: list(traced(m).predict(example()).values())[3], lambda r: ["[4, 64]"]),
    "NodeLife": Row(
        lambda m: atlas.lifecycle(model(m)(example()).sum()).nodes[1], lambda r: [f"{r.sequence_nr:,}"], named=False
    ),
    "NodeValues": Row(lambda m: traced(m).predict(example()), lambda r: [f"{len(r):,} nodes", "float32[4, 64]"]),
    "Parallelism": Row(lambda m: partition(m).top(1)[0].parallelism, lambda r: [f"{r.total_threads:,}"], named=False),
    "PartitionReport": Row(
        partition, lambda r: [f"{len(r)} subgraphs", format_flops(r.total_flops), format_bytes(r.total_bytes)]
    ),
    "PartitionValidation": Row(
        lambda m: _validated(m).partitions[0], lambda r: [f"{r.subgraphs:,}", r.front_end], named=False
    ),
    "Picture": Row(lambda m: atlas.draw(step(m)), lambda r: ['viewBox="0 0 1600 1200"']),
    "PipelineDifference": Row(lambda m: pipeline_run(m).differences[0], lambda r: ["1 of 12", "0.5"]),
    "PipelinePlan": Row(
        lambda m: atlas.pipeline_stages(forward(m), 2),
        lambda r: [format_seconds(r.bottleneck), format_flops(r.stages[1].flops)],
    ),
    "PipelineRun": Row(pipeline_run, lambda r: ["1.25", "3.00 MiB", "200 ms"]),
    "ProfileJoin": Row(profiled, lambda r: [f"{len(r.nodes):,} of {r.ops:,} ops", format_ns(r.host_ns)]),
    "ProfiledNode": Row(lambda m: profiled(m).nodes[0], lambda r: [format_ns(r.host_ns), r.by]),
    "Recording": Row(_recorded, lambda r: [f"{len(r.graph):,} nodes"], named=False),
    "Replay": Row(lambda m: replay(atlas.capture(model(m), example(), values="replay")), lambda r: ["float32[4, 16]"]),
    "Rows": Row(lambda m: step(m).nodes, lambda r: [f"{len(r):,} nodes", "float32[4, 64]"]),
    "Run": Row(run, lambda r: ["2 steps"], named=False),
    "RunComparison": Row(compared, lambda r: [f"{len(r.nodes):,} nodes", f"{r.worst.relative:.2g}"]),
    "RunRecording": Row(run_recording, lambda r: ["2"], named=False),
    "RunStructure": Row(lambda m: run(m).structures[0], lambda r: [f"{r.ops:,}"], named=False),
    "Scope": Row(lambda m: list(step(m).scopes.values())[1], lambda r: [format_count(r.parameters)]),
    "ScopeTree": Row(lambda m: step(m).scopes, lambda r: [f"{len(r) - 1:,} modules", format_count(r[""].parameters)]),
    "SourceLine": Row(lambda m: SourceLine(f"net{m}.py", 17, "f", "x = 1"), lambda r: ["17"]),
    "Stage": Row(lambda m: atlas.pipeline_stages(forward(m), 2).stages[1], lambda r: [format_bytes(r.weight_bytes)]),
    "Statistics": Row(lambda m: backward(m).statistics[0], lambda r: [f"{r.norm:.4g}"]),
    "StepTable": Row(lambda m: run(m).steps, lambda r: ["structure"], named=False),
    "Stop": Row(lambda m: stopped(m)[2], lambda r: [f"#{r.number}", f"{r.norm():.4g}"], named=False),
    "Storage": Row(lambda m: step(m).storages[0], lambda r: [f"{r.bytes:,}"], named=False),
    "Subgraph": Row(lambda m: partition(m).top(1)[0], lambda r: [format_flops(r.flops), format_bytes(r.traffic_bytes)]),
    "Sum": Row(lambda m: backward(m).sums[0], lambda r: [format_bytes(r.bytes)]),
    "TensorMemory": Row(lambda m: atlas.memory(step(m)).largest[0], lambda r: [f"{r.bytes:,}"]),
    "Timeline": Row(lambda m: Timeline(0.25, (0.2, 0.15)), lambda r: ["250 ms", "200 ms", "30%"], named=False),
    "Timing": Row(lambda m: step(m).timing, lambda r: ["runs"], named=False),
    "TracedModel": Row(traced, lambda r: [f"{len(r.graph):,} nodes", "16"], named=False),
    "ValidationReport": Row(lambda m: ValidationReport((_validated(m),)), lambda r: ["0 failed"]),
    "TrainingReport": Row(lambda m: watched(m).report, lambda r: ["2 steps", format_ns(r.modules[0].time_ns)]),
    "TrainingWatch": Row(watched, lambda r: ["2 steps"]),
    "Value": Row(lambda m: step(m).where(operation_type="matmul")[0].inputs[0], lambda r: [f"value {r.id}"]),
    "Verification": Row(
        lambda m: Verification(24, 24, 30, 29, 13, 13, 0, first_difference=difference(m)),
        lambda r: ["29 of 30", "0.25"],
    ),
    "Violation": Row(
        lambda m: _two_graphs(m).violations("macs>+0")[0],
        lambda r: [format_count(r.before), format_count(r.after)],
        named=False,
    ),
    "Visit": Row(visit, lambda r: r.keys, named=False),
    "Where": Row(lambda m: Where("step", SourceLine(f"net{m}.py", 5, "f", "y")), lambda r: [":5"]),
}
ELSEWHERE = {
    "Graph": "tests/render/test_text.py",
    "Severity": "an enum",
    "Guard": "assertions, not a report",
}
