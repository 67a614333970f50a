"""Whether partitions are right: every check passes on right ones and catches the fault it is there for."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from partition.models import Attention, Inception, Net, WritesAndReshapes, traced
from support import load_torchvision, load_transformers
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, InvalidModelError, MissingDependencyError, UnknownNameError
from torchatlas.execute.recorded_run import record
from torchatlas.partition.partitioner import STRATEGIES, GraphPartitioner
from torchatlas.partition.report import PartitionReport, Subgraph
from torchatlas.partition.validate import validate, validate_model
from torchatlas.partition.validate.checks import PartitionCheck, checks_of
from torchatlas.partition.validate.models import ONE_OF_EACH_FAMILY, example_named
from torchatlas.partition.validate.published import ARCHITECTURES, Architecture, Published, facts_of
from torchatlas.partition.validate.reassembly import reassembled

MODELS = {
    "net": (Net, (2, 3, 8, 8)),
    "inception": (Inception, (2, 3, 8, 8)),
    "attention": (Attention, (2, 6, 16)),
    "writes": (WritesAndReshapes, (3, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_right_partitions_pass(name: str) -> None:
    build, shape = MODELS[name]
    found = validate_model(build(), torch.randn(shape), name=name)
    assert found.passed, str(found)
    assert {one.strategy for one in found.partitions} == set(STRATEGIES)
    if name != "writes":  # torch.fx stops at its loop over rows
        assert {one.front_end for one in found.partitions} == {"fx", "export"}
    assert all(check.passed for one in found.partitions for check in one.checks)


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["fx", "export", "run"])
def report(request: pytest.FixtureRequest) -> PartitionReport:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    given: Any = {
        "fx": lambda: traced(model, 2, 3, 8, 8),
        "export": lambda: atlas.trace(model, x),
        "run": lambda: atlas.capture(model, x),
    }[request.param]()
    return atlas.GraphPartitioner("op").partition(given)


def failed(report: PartitionReport, again: PartitionReport | None = None) -> set[str]:
    return {one.name for one in checks_of(report, again) if one.passed is False}


def with_subgraph(report: PartitionReport, at: int, **changes: Any) -> PartitionReport:
    listed = list(report.subgraphs)
    listed[at] = replace(listed[at], **changes)
    return replace(report, subgraphs=tuple(listed))


def first(report: PartitionReport, wanted: Callable[[Subgraph], Any]) -> int:
    return next(at for at, one in enumerate(report.subgraphs) if wanted(one))


def test_nothing_is_wrong_before(report: PartitionReport) -> None:
    assert failed(report, report) == set()


def test_a_dropped_dependency(report: PartitionReport) -> None:
    for at, one in enumerate(report.subgraphs):
        for lost in one.depends_on:
            kept = tuple(other for other in one.depends_on if other != lost)
            assert failed(with_subgraph(report, at, depends_on=kept)) == {"dependencies"}


def test_an_invented_dependency(report: PartitionReport) -> None:
    last = report.subgraphs[-1]
    other = report.subgraphs[0].node_id
    changed = with_subgraph(report, -1, depends_on=tuple(sorted({other, *last.depends_on})))
    assert failed(changed) == {"dependencies"}
    assert "no circle" in failed(with_subgraph(report, -1, depends_on=("nobody",)))


def test_a_circle(report: PartitionReport) -> None:
    changed = with_subgraph(report, 0, depends_on=(report.subgraphs[-1].node_id,))
    assert failed(changed) >= {"no circle", "order"}


def test_subgraphs_out_of_order(report: PartitionReport) -> None:
    at = first(report, lambda one: one.depends_on)
    listed = list(report.subgraphs)
    listed.insert(0, listed.pop(at))
    assert failed(replace(report, subgraphs=tuple(listed))) == {"order"}


def test_a_dropped_subgraph(report: PartitionReport) -> None:
    for at in range(len(report)):
        listed = report.subgraphs[:at] + report.subgraphs[at + 1 :]
        assert "each node once" in failed(replace(report, subgraphs=listed, total_subgraphs=len(listed)))


def test_a_node_twice_or_moved(report: PartitionReport) -> None:
    one, two = report.subgraphs[1], report.subgraphs[-1]
    twice = with_subgraph(report, -1, nodes=(*two.nodes, one.nodes[0]), ops=(*two.ops, *one.ops))
    assert "each node once" in failed(twice)
    only_named = with_subgraph(report, -1, nodes=(*two.nodes, one.nodes[0]))
    assert "each node once" in failed(with_subgraph(only_named, 1, nodes=one.nodes[1:]))


def test_a_node_moved_with_all_that_it_is(report: PartitionReport) -> None:
    """Names and operations agree again, but work and bytes are those of the old place."""
    at = first(report, lambda one: one.macs and one.node_id != report.subgraphs[0].node_id)
    one, two = report.subgraphs[0], report.subgraphs[at]
    moved = with_subgraph(report, 0, nodes=(*one.nodes, *two.nodes), ops=(*one.ops, *two.ops))
    moved = with_subgraph(moved, at, nodes=(), ops=())
    assert failed(moved) >= {"work", "bytes", "weights", "dependencies"}
    assert "each node once" not in failed(moved)


def test_a_lost_flop(report: PartitionReport) -> None:
    at = first(report, lambda one: one.macs)
    one = report.subgraphs[at]
    assert failed(with_subgraph(report, at, flops=one.flops - 1)) == {"work"}
    assert failed(with_subgraph(report, at, macs=one.macs - 1, flops=one.flops - 2)) == {"work"}
    assert failed(with_subgraph(report, at, elementwise_flops=one.elementwise_flops - 1)) == {"work"}
    assert failed(replace(report, total_flops=report.total_flops - 1)) == {"work"}
    assert failed(replace(report, total_elementwise_flops=report.total_elementwise_flops + 1)) == {"work"}
    assert failed(replace(report, unfused_bytes=report.unfused_bytes + 1)) == {"work"}


def test_a_lost_byte(report: PartitionReport) -> None:
    for key in ("total_input_bytes", "total_output_bytes"):
        assert failed(with_subgraph(report, 1, **{key: getattr(report.subgraphs[1], key) - 1})) == {"bytes"}
        assert failed(replace(report, **{key: getattr(report, key) + 1})) == {"bytes"}
    for at, one in enumerate(report.boundaries):
        others = report.boundaries[:at] + report.boundaries[at + 1 :]
        assert failed(replace(report, boundaries=others)) == {"bytes"}
        assert failed(replace(report, boundaries=(*others, replace(one, bytes=one.bytes - 1)))) == {"bytes"}
    at = first(report, lambda one: one.total_weight_bytes)
    size = report.subgraphs[at].total_weight_bytes
    assert failed(with_subgraph(report, at, total_weight_bytes=size - 1)) == {"weights"}


def test_a_lost_edge_of_the_graph(report: PartitionReport) -> None:
    """The readers still take the bytes; by the edges nobody hands them over, and nobody need wait for them."""
    columns, home = report.graph.columns, {op: one.node_id for one in report.subgraphs for op in one.ops}
    ends = list(zip(columns["edge_source"].tolist(), columns["edge_target"].tolist(), strict=True))
    lost = next(at for at, (a, b) in enumerate(ends) if a in home and b in home and home[a] != home[b])
    same = [
        at for at, pair in enumerate(ends) if (home.get(pair[0]), home.get(pair[1])) == tuple(map(home.get, ends[lost]))
    ]
    for name in [name for name in columns if name.startswith("edge_")]:
        columns[name] = np.delete(columns[name], same)
    found = failed(report)
    assert "bytes" in found
    assert report.front_end == "fx" or "dependencies" in found  # torch.fx's own graph still shows it


def test_unknown_operations() -> None:
    @torch.library.custom_op("atlas_validate_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    report = atlas.GraphPartitioner().partition(atlas.capture(twice, torch.ones(2)))
    assert failed(report) == {"no unknown op"}
    good = atlas.GraphPartitioner().partition(atlas.capture(nn.ReLU(), torch.ones(2)))
    assert failed(replace(good, operation_type_counts={"unknown": 1})) == {"no unknown op"}
    assert failed(replace(good, operation_type_counts={})) == {"no unknown op"}


def test_ids_that_change(report: PartitionReport) -> None:
    renamed = with_subgraph(report, 0, node_id="other")
    assert "stable" in failed(report, renamed)
    assert "stable" in failed(report, replace(report, boundaries=report.boundaries[1:]))


class NormBetween(nn.Module):
    """Linear layers with norms between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            x = norm(layer(x) + x)
        return self.layers[-1](x)


def test_norms_between_products() -> None:
    """Found by validating BERT: a norm was taken for the softmax of attention, and nodes were counted twice."""
    found = validate_model(NormBetween(), torch.randn(2, 8))
    assert found.passed, str(found)
    fused = atlas.GraphPartitioner().partition(NormBetween(), torch.randn(2, 8))
    assert sum(one.operation_type == "matmul" for one in fused) == 4  # each linear layer is a kernel of its own


class Waves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x[:1].cos()


class Sum(nn.Module):
    def forward(self, waves: tuple[Tensor, Tensor]) -> Tensor:
        return waves[0] + waves[1]


def test_several_tensors_over_one_border() -> None:
    """Found by validating T5: of several tensors only the last was counted."""
    model, x = nn.Sequential(Waves(), Sum()), torch.randn(3, 4)
    found = validate_model(model, x)
    assert found.passed, str(found)
    report = atlas.GraphPartitioner("module").partition(atlas.capture(model, x))
    assert [one.bytes for one in report.boundaries] == [(12 + 4) * 4]


# -- putting together again --------------------------------------------------------------------------------------------


class ZeroHead(nn.Module):
    """As torchvision's ViT: whatever comes before it, the output is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


def runs(model: nn.Module, *inputs: Tensor) -> Any:
    return [((x,), {}, [model(x)]) for x in inputs]


def test_pieces_that_compute_something_else() -> None:
    model, x, y = Net().eval(), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    report = atlas.GraphPartitioner().partition(traced(model, 2, 3, 8, 8))
    assert reassembled(report, runs(model, x, y), model).passed is True
    another = replace(report, origin=traced(Net(), 2, 3, 8, 8))
    assert reassembled(another, runs(model, x, y), model).passed is False
    nearly = [(args, kwargs, [made[0] + 1e-7]) for args, kwargs, made in runs(model, x, y)]
    assert reassembled(report, nearly, model).passed is False
    fewer = [(args, kwargs, []) for args, kwargs, _ in runs(model, x)]
    assert reassembled(report, fewer, model).passed is False


def test_a_vacuous_check_says_so() -> None:
    model, x = ZeroHead(), torch.randn(2, 4)
    report = atlas.GraphPartitioner().partition(traced(model, 2, 4))
    assert reassembled(report, runs(model, x, x + 1), model) == PartitionCheck(
        "put together", None, "vacuous: the model makes the same of two different inputs"
    )
    recorded = atlas.GraphPartitioner().partition(atlas.capture(model, x))
    assert reassembled(recorded, runs(model, x), model).passed is None


def test_zeros_are_filled_and_put_back() -> None:
    model = ZeroHead().train()
    found = validate_model(model, torch.randn(2, 4))
    assert found.passed
    assert {check.passed for one in found.partitions for check in one.checks} == {True}
    assert model.training
    assert not model.head.weight.any()


# -- published figures -------------------------------------------------------------------------------------------------


def test_figures_that_differ() -> None:
    model = Net().eval()
    report = atlas.GraphPartitioner("op").partition(traced(model, 2, 3, 8, 8))
    parameters = sum(one.numel() for one in model.parameters())
    table = Published("a table", round(report.total_macs / 1e9, 3), parameters)
    paper = Architecture("a paper", 7, 0, "Block", 2, 1)
    assert [one.passed for one in facts_of(report, model, table, paper)] == [True] * 6
    for wrong_table, wrong_paper, name in (
        (table, Architecture("a paper", 8), "convolutions"),
        (table, Architecture("a paper", depthwise=1), "depthwise convolutions"),
        (table, Architecture("a paper", block="Block", blocks=3), "blocks (Block)"),
        (table, Architecture("a paper", linears=2), "linear layers"),
        (replace(table, gmacs=table.gmacs + 0.001), paper, "published GMACs"),
        (replace(table, parameters=parameters - 1), paper, "published parameters"),
    ):
        found = facts_of(report, model, wrong_table, wrong_paper)
        assert [one.name for one in found if one.passed is False] == [name]


def test_every_fact_names_its_origin() -> None:
    assert all(one.origin for one in ARCHITECTURES.values())
    assert ARCHITECTURES["resnet18"].convolutions == 20
    assert ARCHITECTURES["mobilenet_v2"].depthwise == 17


# -- by name -----------------------------------------------------------------------------------------------------------


def test_a_model_of_torchvision_by_name() -> None:
    load_torchvision()
    found = validate("resnet18", front_ends=["fx"])
    assert found, str(found)
    names = {check.name for one in found.models[0].partitions for check in one.checks}
    assert names >= {"published GMACs", "published parameters", "convolutions", "blocks (BasicBlock)"}
    content = json.loads(json.dumps(found.to_dict()))
    assert content["passed"] is True
    assert [one["strategy"] for one in content["models"][0]["partitions"]] == list(STRATEGIES)


@pytest.mark.parametrize("name", ["bert", "lstm"])
def test_small_models_by_name(name: str) -> None:
    if name != "lstm":
        load_transformers()
    found = validate(name)
    assert found, str(found)


def test_unknown_names_lead_to_near_ones() -> None:
    load_torchvision()
    with pytest.raises(UnknownNameError, match=r"did you mean 'resnet18'"):
        validate("resnet18_")
    with pytest.raises(UnknownNameError, match=r"did you mean 'gpt2'"):
        validate("gpt")


@pytest.mark.parametrize(("name", "package"), [("resnet18", "torchvision"), ("bert", "transformers")])
def test_a_package_that_is_missing(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda wanted: None if wanted == package else find(wanted))
    with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
        validate(name)
    skipped = validate(name, skip_missing=True)
    assert not skipped  # nothing was checked
    assert skipped.models[0].passed is None
    assert package in str(skipped)


def test_bad_input() -> None:
    with pytest.raises(InvalidModelError):
        validate_model(torch.relu, torch.ones(2))
    with pytest.raises(InvalidInputError, match="example inputs"):
        validate_model(nn.ReLU())
    with pytest.raises(InvalidInputError, match="'export'"):
        validate_model(nn.ReLU(), torch.ones(2), front_ends=["exports"])


# -- reach -------------------------------------------------------------------------------------------------------------

BY_TORCHVISION = ("resnet50", "mobilenet_v2", "efficientnet_b0", "vit_b_16", "swin_t", "densenet121", "googlenet")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BY_TORCHVISION, "gpt2", "llama", "t5"])
def test_all_families(name: str) -> None:
    load_torchvision()
    if name not in BY_TORCHVISION:
        load_transformers()
    found = validate(name)
    assert found, str(found)
    assert all(check.passed for one in found.models[0].partitions for check in one.checks)
    assert name in ONE_OF_EACH_FAMILY


def kept_boxes(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression, which torchvision has only compiled."""
    kept, left = [], scores.argsort(descending=True)
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        shared = (
            torch.minimum(boxes[left, 2:], boxes[best, 2:]) - torch.maximum(boxes[left, :2], boxes[best, :2])
        ).clamp(0)
        overlap = shared.prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        left = left[overlap / (area[left] + area[best] - overlap) <= iou_threshold]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[x > 0] if (x[0] > 0.8).all().item() else self.linear(x)


def test_a_recorded_run_is_put_together() -> None:
    found = validate_model(Branches(), torch.tensor([[0.9, 1.0, 1.1, 1.2], [0.5, -1.0, -1.1, -1.2]]))
    assert found.passed, str(found)
    assert {one.front_end for one in found.partitions} == {"run"}
    together = [check for one in found.partitions for check in one.checks if check.name == "put together"]
    assert {check.detail for check in together} == {
        "1 results equal to the bit, for 2 of 3 inputs; 1 refused, on another path"
    }


def test_a_recorded_run_that_refuses_its_own_example_fails() -> None:
    report = GraphPartitioner().partition(record(Branches(), (torch.ones(2, 4),), {}))
    right = Branches()(torch.ones(3, 4))
    found = reassembled(report, [((torch.ones(3, 4),), {}, [right])], Branches())
    assert found.passed is False
    assert "take what was recorded" in found.detail


def test_what_cannot_run_says_why() -> None:
    report = GraphPartitioner().partition(atlas.capture(Branches(), torch.ones(2, 4)))
    found = reassembled(report, [((torch.ones(2, 4),), {}, [torch.ones(8)])], Branches())
    assert found.passed is None
    assert 'values="replay"' in found.detail


@pytest.mark.slow
def test_a_detection_model_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.fx and torch.export do not take it: what it does depends on how many boxes it finds."""
    torchvision = load_torchvision()
    library = torch.library.Library("torchvision", "IMPL")  # lives as long as this test
    try:
        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except RuntimeError:  # the compiled operators do not load beside this torch
        library.impl("nms", kept_boxes, "CPU")
        monkeypatch.setattr(torchvision.ops.boxes, "_assert_has_ops", lambda: None)
    example = example_named("ssdlite320_mobilenet_v3_large")
    assert [len(one["boxes"]) for one in example.model(*example.args)] == [20]  # so what comes after them is run
    found = validate_model(example.model, example.args)
    assert found.passed, str(found)
    assert {one.front_end for one in found.partitions} == {"run"}
    assert all(check.passed for one in found.partitions for check in one.checks)
    together = [check for one in found.partitions for check in one.checks if check.name == "put together"]
    assert {check.detail for check in together} == {
        "3 results equal to the bit, for 2 of 3 inputs; 1 refused, on another path"
    }
