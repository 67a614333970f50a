"""Reports mean what their names say, and answer to the names of branes-ai/graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from partition.models import Net, traced
from support import load_torchvision
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

import torchatlas as atlas
from torchatlas.partition.report import PartitionReport


class Mobile(nn.Module):
    """What mobilenet_v2 begins with: an activation in place, a depthwise convolution; and a pool and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pool, self.norm = nn.MaxPool2d(2), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.pool(self.depthwise(self.stem(x))))


X = torch.randn(2, 3, 8, 8)


def shaped(model: nn.Module) -> fx.GraphModule:
    module = fx.symbolic_trace(model)
    ShapeProp(module).propagate(X)
    return module


@pytest.fixture(scope="module")
def report() -> PartitionReport:
    return atlas.GraphPartitioner("op").partition(shaped(Mobile().eval()))


# -- inference, and what only backward needs ---------------------------------------------------------------------------

WAYS: dict[str, Callable[[nn.Module], tuple[Any, ...]]] = {
    "torch.fx's graph": lambda model: (shaped(model),),
    "a model": lambda model: (model, X),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("training", "gradients", "with_autograd"),
    [(False, None, False), (False, True, True), (True, None, True), (True, False, False)],
)
def test_eval_mode_is_partitioned_as_inference(
    way: str, training: bool, gradients: bool | None, with_autograd: bool
) -> None:
    model = Mobile().train(training)
    found = atlas.GraphPartitioner("module", depth=1, gradients=gradients).partition(*WAYS[way](model))
    assert (found.front_end, found.with_autograd) == ("fx", with_autograd)
    clones = found.graph.where(operation="clone")
    assert len(clones) == with_autograd
    assert ("recorded with autograd" in str(found)) is with_autograd
    assert ("as inference" in str(found)) is not with_autograd
    assert found.to_dict()["with_autograd"] is with_autograd
    stem = found["stem_0"]
    assert stem.total_output_bytes == 4 * 2 * 8 * 8 * 8 * (2 if with_autograd else 1)  # the copy is kept for backward


def test_a_recorded_run_too() -> None:
    class Branches(Mobile):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.sum().item() > 1e9 else y[y > 0]

    model = Branches().eval()
    for gradients in (None, True):
        found = atlas.GraphPartitioner("op", gradients=gradients).partition(model, X)
        assert (found.front_end, found.with_autograd) == ("run", bool(gradients))
        assert torch.equal(found.extract()(X), model(X))


def test_what_only_backward_needs_is_no_output(report: PartitionReport) -> None:
    pooled = 2 * 8 * 4 * 4
    assert (report["pool"].total_output_bytes, report["pool"].saved_for_backward_bytes) == (4 * pooled, 8 * pooled)
    assert (report["norm"].total_output_bytes, report["norm"].saved_for_backward_bytes) == (4 * pooled, 2 * 4 * 2 * 2)
    for name in ("total_output_bytes", "saved_for_backward_bytes"):
        assert getattr(report, name) == sum(getattr(one, name) for one in report)
    assert "only backward needs" in str(report)
    assert report["pool"].traffic_bytes == 4 * 4 * pooled + 12 * pooled  # it is written all the same


@pytest.mark.parametrize(("name", "megabytes"), [("mobilenet_v2", 69.1), ("efficientnet_b0", 104.5)])
@pytest.mark.slow
def test_traffic_of_published_models(name: str, megabytes: float) -> None:
    model = getattr(load_torchvision().models, name)(weights=None).eval()
    found = atlas.GraphPartitioner().partition(model, torch.randn(1, 3, 224, 224))
    assert found.total_memory_traffic / 1e6 == pytest.approx(megabytes, abs=0.05)


# -- intensity ---------------------------------------------------------------------------------------------------------


def test_each_intensity_under_its_name(report: PartitionReport) -> None:
    work = [one.flops + one.elementwise_flops for one in report]
    intensity = [amount / one.traffic_bytes for amount, one in zip(work, report, strict=True)]
    plain = sum(intensity) / len(intensity)
    weighted = sum(w * i for w, i in zip(work, intensity, strict=True)) / sum(work)
    assert report.average_arithmetic_intensity == pytest.approx(plain)
    assert report.weighted_arithmetic_intensity == pytest.approx(weighted)
    assert plain != pytest.approx(weighted)
    assert f"average arithmetic intensity {plain:.3g} " in str(report)
    assert f"weighted arithmetic intensity {weighted:.3g} " in str(report)
    assert (report.min_arithmetic_intensity, report.max_arithmetic_intensity) == (min(intensity), max(intensity))


# -- the names of branes-ai/graphs -------------------------------------------------------------------------------------

REPORT: dict[str, Callable[[PartitionReport], Any]] = {
    "fused_subgraphs": lambda report: report.subgraphs,
    "original_operators": lambda report: sum(len(one.ops) for one in report),
    "avg_fusion_size": lambda report: sum(len(one.ops) for one in report) / 5,
    "max_fusion_size": lambda report: max(len(one.ops) for one in report),
    "total_memory_traffic": lambda report: sum(
        one.total_input_bytes + one.total_output_bytes + one.total_weight_bytes for one in report
    ),
    "total_memory_traffic_unfused": lambda report: sum(one.unfused_bytes for one in report),
    "data_movement_reduction": lambda report: 0.0,  # each operation by itself saves nothing
    "fusion_pattern_counts": lambda report: {"convolution": 2, "activation": 1, "pooling": 1, "norm": 1},
    "bottleneck_distribution": lambda report: {"overhead_bound": 5},
    "partition_reason_distribution": lambda report: {"a group of its own, as the strategy says": 5},
    "parallelism_distribution": lambda report: {"<1K": 2, "1K-10K": 3, "10K-100K": 0, "100K-1M": 0, ">1M": 0},
    "critical_path_subgraphs": lambda report: ["s0", "s1", "s2", "s3", "s4"],
    "concurrency": lambda report: None,
}
SUBGRAPH: dict[str, Any] = {
    "subgraph_id": 2,
    "node_ids": ["depthwise"],
    "node_names": ["depthwise"],
    "fusion_pattern": "convolution",
    "num_operators": 1,
    "total_flops": 2 * 2 * 8 * 8 * 8 * 9,
    "total_macs": 2 * 8 * 8 * 8 * 9,
    "internal_bytes": 0,
}
CONCURRENCY: dict[str, Any] = {
    "total_subgraphs": 5,
    "independent_subgraphs": 0,
    "sequential_subgraphs": 5,
    "batch_size": 2,
    "critical_path_length": 5,
    "critical_path_flops": 2 * 2 * 8 * 8 * 8 * (9 + 27),
}


@pytest.mark.parametrize("name", REPORT)
def test_names_of_the_report(report: PartitionReport, name: str) -> None:
    assert getattr(report, name) == REPORT[name](report)


@pytest.mark.parametrize("name", SUBGRAPH)
def test_names_of_a_subgraph(report: PartitionReport, name: str) -> None:
    assert getattr(report["depthwise"], name) == SUBGRAPH[name]


@pytest.mark.parametrize("name", CONCURRENCY)
def test_names_of_concurrency(report: PartitionReport, name: str) -> None:
    assert getattr(atlas.ConcurrencyAnalyzer().analyze(report), name) == CONCURRENCY[name]


def test_enums_have_values_and_texts_are_texts(report: PartitionReport) -> None:
    one = report["depthwise"]
    assert one.operation_type is atlas.OperationType.CONVOLUTION
    assert (one.operation_type.value, one.recommended_bottleneck.value) == ("convolution", "overhead_bound")
    assert one.partition_reason.value == one.partition_reason == "a group of its own, as the strategy says"
    assert one.partition_reason in one.partition_reasoning_summary()
    assert one.data_movement_reduction() == 0
    assert report.summary_stats() == str(report)
    concurrency = atlas.ConcurrencyAnalyzer().analyze(report)
    assert concurrency.explanation == str(concurrency)
    json.dumps([report.to_dict(), concurrency.to_dict()])


def test_what_fusing_saves() -> None:
    found = atlas.GraphPartitioner().partition(traced(Net(), 1, 3, 8, 8))
    fused = max(found, key=lambda one: len(one.ops))
    assert fused.internal_bytes == fused.unfused_bytes - fused.traffic_bytes > 0
    assert fused.data_movement_reduction() == fused.internal_bytes / fused.unfused_bytes
    assert found.data_movement_reduction == pytest.approx(1 - found.total_bytes / found.unfused_bytes)
    assert 0 < found.data_movement_reduction < 1


@pytest.mark.parametrize(
    ("node", "channels", "spatial", "batch", "groups"),
    [("stem_0", True, True, True, 1), ("depthwise", True, True, True, 8), ("norm", False, True, True, 1)],
)
def test_how_a_subgraph_can_be_split(
    report: PartitionReport, node: str, channels: bool, spatial: bool, batch: bool, groups: int
) -> None:
    found = report[node].parallelism
    assert found is not None
    assert (found.can_split_channels, found.can_split_spatial, found.can_split_batch) == (channels, spatial, batch)
    assert found.num_groups == groups


def test_only_concurrency_can_be_assigned() -> None:
    report = atlas.GraphPartitioner("op").partition(shaped(Mobile().eval()))
    concurrency = atlas.ConcurrencyAnalyzer().analyze(report)
    report.concurrency = concurrency
    assert report.concurrency is concurrency
    for name in ("total_flops", "subgraphs", "something_else"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(report, name, 1)
