"""GraphPartitioner: every operation in one subgraph, true dependencies, figures that are cost's, stable ids."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from partition.models import Attention, Block, Inception, Net, traced
from support import load_torchvision
from torch import Tensor, fx, nn

import torchatlas as atlas
from torchatlas.analysis.devices import device_named
from torchatlas.errors import InvalidInputError, InvalidModelError, NodeNotFoundError
from torchatlas.partition import PartitionReport
from torchatlas.partition.acyclic_groups import Groups
from torchatlas.partition.fusion import Fusion
from torchatlas.partition.traffic import ledger
from torchatlas.partition.unit_graph import units_of_graph

STRATEGIES = ("fusion", "op", "module")


def reachable(before: list[list[int]]) -> list[set[int]]:
    """Per member those that it depends on, directly or not."""
    found: list[set[int]] = []
    for needed in before:
        found.append({*needed}.union(*(found[one] for one in needed)))
    return found


def reports() -> list[tuple[str, PartitionReport]]:
    step = atlas.capture(Net(), torch.randn(2, 3, 8, 8), backward=True)
    exported = atlas.trace(Attention(), torch.randn(2, 6, 16))
    made = []
    for strategy in STRATEGIES:
        cut = atlas.GraphPartitioner(strategy)
        made += [
            (f"fx net {strategy}", cut.partition(traced(Net(), 2, 3, 8, 8))),
            (f"fx inception {strategy}", cut.partition(traced(Inception(), 2, 3, 8, 8))),
            (f"step {strategy}", cut.partition(step)),
            (f"export {strategy}", cut.partition(exported)),
        ]
    return made


@pytest.fixture(scope="module")
def every_report() -> list[tuple[str, PartitionReport]]:
    torch.manual_seed(0)
    return reports()


def test_every_operation_is_in_exactly_one_subgraph(every_report: list[tuple[str, PartitionReport]]) -> None:
    for name, report in every_report:
        ops = [op for one in report.subgraphs for op in one.ops]
        assert sorted(ops) == [node.id for node in report.graph.where(kind="op")], name


def test_totals_are_those_of_cost(every_report: list[tuple[str, PartitionReport]]) -> None:
    for name, report in every_report:
        cost = atlas.cost(report.graph)
        assert (report.total_macs, report.total_flops) == (cost.macs, 2 * cost.macs), name
        assert report.total_elementwise_flops == cost.elementwise_flops, name
        assert report.unfused_bytes == cost.total.bytes, name
        assert sum(report.operation_type_counts.values()) == cost.total.operations, name


def test_dependencies_are_those_of_the_graph(every_report: list[tuple[str, PartitionReport]]) -> None:
    """Reachability between subgraphs is exactly what the edges of the graph say."""
    for name, report in every_report:
        of_op = {op: number for number, one in enumerate(report.subgraphs) for op in one.ops}
        number = {one.node_id: at for at, one in enumerate(report.subgraphs)}
        found = [[number[other] for other in one.depends_on] for one in report.subgraphs]
        assert all(other < at for at, needed in enumerate(found) for other in needed), name  # no circle, and in order
        truth: list[set[int]] = [set() for _ in found]
        for edge in report.graph.edges:
            pair = of_op.get(edge.source_id), of_op.get(edge.target_id)
            if None not in pair and pair[0] != pair[1]:
                truth[pair[1]].add(pair[0])
        if name.startswith("fx"):  # a Dropout runs nothing, and is on the way all the same
            assert all(set(reaching) >= needed for reaching, needed in zip(found, truth, strict=True)), name
        else:
            assert reachable(found) == reachable([sorted(one) for one in truth]), name


def test_fusing_saves_and_never_adds(every_report: list[tuple[str, PartitionReport]]) -> None:
    for name, report in every_report:
        fused = report.strategy == "fusion"
        assert (report.total_bytes < report.unfused_bytes) == fused, name
        assert (report.total_kernels < report.unfused_kernels) == fused, name
        assert all(one.traffic_bytes >= 0 for one in report.subgraphs), name


def test_ids_and_everything_else_are_the_same_in_another_process() -> None:
    """Sets of strings have another order there."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    code = "from partition.test_partitioner import *; print(json.dumps(partitions()))"
    found = json.loads(children.python(code, cwd=Path(__file__).resolve().parent.parent, PYTHONHASHSEED=seed))
    assert found == json.loads(json.dumps(partitions()))
    assert all(one["total_subgraphs"] > 3 for one in found)


def partitions() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    return [atlas.GraphPartitioner().partition(traced(model(), 2, 3, 8, 8)).to_dict() for model in (Net, Inception)]


def test_epilogues_are_fused_and_every_boundary_says_why() -> None:
    report = atlas.GraphPartitioner().partition(traced(Net(), 2, 3, 8, 8))
    assert report["block1_conv1"].nodes == ("block1_conv1", "block1_bn1", "block1_relu")
    assert report["block1_conv1"].pattern == "convolution+norm+activation"
    last = report["block1_relu_1"]
    assert {"add", "block1_relu_1"} < set(last.nodes)
    assert "product" in report["block1_conv1"].partition_reason
    crossing = {(one.source, one.target) for one in report.boundaries}
    assert crossing <= {(other, one.node_id) for one in report.subgraphs for other in one.depends_on}
    assert all(one.reason and one.bytes > 0 for one in report.boundaries)


def test_what_fusing_saves_is_counted_by_hand() -> None:
    """relu(x * 2) + x: two intermediate results, each neither written nor read."""

    def pointwise(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2) + x

    graph = atlas.capture(pointwise, torch.randn(1000))
    report = atlas.GraphPartitioner().partition(graph)
    assert [one.pattern for one in report.subgraphs] == ["pointwise+activation+pointwise"]
    assert report.unfused_bytes == 4000 * (2 + 2 + 3)
    assert report.total_bytes == report.unfused_bytes - 4000 * 4
    assert report.subgraphs[0].total_output_bytes == 4000
    assert report.subgraphs[0].total_input_bytes == 4000


def test_attention_is_one_kernel_while_a_head_fits() -> None:
    graph = atlas.trace(Attention(), torch.randn(2, 6, 16)).graph
    report = atlas.GraphPartitioner().partition(graph)
    inside = next(one for one in report.subgraphs if "softmax" in one.nodes)
    assert {"bmm", "mul", "softmax", "bmm_1"} <= set(inside.nodes)
    small = atlas.GraphPartitioner(on_chip_bytes=100).partition(graph)
    inside = next(one for one in small.subgraphs if "softmax" in one.nodes)
    assert "bmm_1" not in inside.nodes
    assert small.total_bytes > report.total_bytes


def test_rows_that_do_not_fit_are_not_fused() -> None:
    def normed(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    graph = atlas.capture(normed, torch.randn(4, 1000))
    assert len(atlas.GraphPartitioner().partition(graph)) == 1
    report = atlas.GraphPartitioner(on_chip_bytes=1000).partition(graph)
    assert len(report) == 2
    assert "fit on the chip" in report.subgraphs[0].partition_reason


def test_a_circle_is_never_fused() -> None:
    """a -> product -> softmax + a: a and the softmax run over the same elements, but the product is between them."""

    def ring(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x)
        return a + torch.softmax(torch.mm(a, w), -1)

    report = atlas.GraphPartitioner().partition(atlas.capture(ring, torch.randn(4, 4), torch.randn(4, 4)))
    assert [one.nodes for one in report.subgraphs] == [("relu",), ("mm",), ("_softmax", "add")]
    assert "circle" in report.subgraphs[0].partition_reason


def test_unknown_operations_are_counted_as_such() -> None:
    @torch.library.custom_op("partition_test::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    graph = atlas.capture(lambda x: torch.relu(odd(x)), torch.randn(3))
    report = atlas.GraphPartitioner().partition(graph)
    assert report.operation_type_counts["unknown"] == 1
    assert report.at_least
    assert "partition_test.odd" in next(iter(report.uncosted))
    assert report.subgraphs[0].uncosted == 1
    assert "unknown" in report.subgraphs[0].pattern


def test_parallelism_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1, groups=2), nn.Conv2d(4, 4, 1))
    report = atlas.GraphPartitioner().partition(traced(model, 2, 8, 6, 6))
    kinds = [(one.parallelism.is_depthwise, one.parallelism.is_grouped) for one in report.subgraphs if one.parallelism]
    assert kinds == [(True, True), (False, True), (False, False)]
    first = report.subgraphs[0].parallelism
    assert first is not None
    assert (first.batch, first.channels, first.spatial, first.total_threads) == (2, 8, 16, 2 * 8 * 16)
    assert (first.vectorizable_dimension, first.vectorizable_size) == (3, 4)


def test_bounds_are_of_the_device() -> None:
    graph = atlas.capture(nn.Linear(512, 512), torch.randn(512, 512))
    bounds = {
        device: atlas.GraphPartitioner("op", device).partition(graph)["addmm"].recommended_bottleneck.value
        for device in ("generic", "xeon-8380")
    }
    assert bounds == {"generic": "compute_bound", "xeon-8380": "compute_bound"}
    tiny = atlas.GraphPartitioner("op").partition(atlas.capture(nn.Linear(2, 2), torch.randn(1, 2)))
    assert tiny["addmm"].recommended_bottleneck.value == "overhead_bound"


def test_reports_are_frozen() -> None:
    report = atlas.GraphPartitioner().partition(traced(Block(), 1, 8, 4, 4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.total_flops = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.subgraphs[0].flops = 1  # type: ignore[misc]


def test_a_file_is_cut_without_torch(tmp_path: Path) -> None:
    path = atlas.capture(Net().eval(), torch.randn(1, 3, 8, 8)).save(tmp_path / "net.atlas")
    code = f"""
import sys, torchatlas as atlas
report = atlas.GraphPartitioner().partition({str(path)!r})
atlas.ConcurrencyAnalyzer().analyze(report); atlas.pipeline_stages({str(path)!r}, 2); str(report)
print(report.front_end, len(report), "torch" in sys.modules)
"""
    where, count, has_torch = children.python(code).split()
    assert (where, has_torch) == ("file", "False")
    assert int(count) > 3


# -- a plain model -----------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool((x > 0).any()) else x + 1


def test_a_model_goes_by_the_first_way_that_works() -> None:
    cut = atlas.GraphPartitioner()
    assert (found := cut.partition(Net().eval(), torch.randn(1, 3, 8, 8))).front_end == "fx"
    assert found.attempts == ()
    found = cut.partition(nn.LSTM(4, 4), torch.randn(3, 2, 4))
    assert found.front_end == "export"
    assert [one.front_end for one in found.attempts] == ["fx"]
    found = cut.partition(Branches(), torch.ones(3))
    assert (found.front_end, [one.front_end for one in found.attempts]) == ("run", ["fx", "export"])
    assert all(one.reason for one in found.attempts)
    assert "fx did not work" in str(found)


def test_a_model_in_training_is_left_as_it_was() -> None:
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    atlas.GraphPartitioner().partition(model, torch.randn(2, 3, 8, 8))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# -- the user's own groups ---------------------------------------------------------------------------------------------


def test_groups_as_asked() -> None:
    module = traced(Block(), 1, 8, 4, 4)
    report = atlas.GraphPartitioner(groups={"main": ["conv1", "bn1", "relu", "conv2", "bn2"]}).partition(module)
    assert report["main"].nodes == ("conv1", "bn1", "relu", "conv2", "bn2")
    assert report.strategy == "groups"
    assert len(report) == 4


def test_groups_that_form_a_circle() -> None:
    with pytest.raises(InvalidInputError, match=r"circle: .*'ends' takes .*none can run first"):
        atlas.GraphPartitioner(groups={"ends": ["conv1", "bn2"]}).partition(traced(Block(), 1, 8, 4, 4))


def test_groups_with_wrong_names() -> None:
    module = traced(Block(), 1, 8, 4, 4)
    with pytest.raises(NodeNotFoundError, match="did you mean 'conv1'"):
        atlas.GraphPartitioner(groups=[["conv11"]]).partition(module)
    with pytest.raises(InvalidInputError, match="a node has one group"):
        atlas.GraphPartitioner(groups={"a": ["conv1"], "b": ["conv1"]}).partition(module)
    with pytest.raises(InvalidInputError, match="names of its nodes, in a list"):
        atlas.GraphPartitioner(groups={"a": None}).partition(module)  # type: ignore[dict-item]


def test_no_groups_of_ones_own_leave_each_operation_alone() -> None:
    module = traced(Block(), 1, 8, 4, 4)
    alone = atlas.GraphPartitioner(groups={"a": []}).partition(module)
    assert all(len(one.nodes) == 1 for one in alone)
    assert {boundary.reason for boundary in alone.boundaries} == {"they are in different groups, as asked"}
    assert alone[0] is alone.subgraphs[0]
    assert alone[-1] is alone.subgraphs[-1]


def test_models_of_torch_jit_and_nested_tensors_are_run() -> None:
    x = torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.trace(Net().eval(), x)
    report = atlas.GraphPartitioner().partition(scripted, x)
    assert report.front_end == "run"
    assert "no Python signature" in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    assert atlas.GraphPartitioner().partition(nn.Linear(4, 2), ragged).front_end == "run"


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_input() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'fusion'"):
        atlas.GraphPartitioner("fussion")
    with pytest.raises(InvalidInputError, match="one of fusion"):
        atlas.GraphPartitioner(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="whole number of levels"):
        atlas.GraphPartitioner("module", depth="2")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="no number of bytes"):
        atlas.GraphPartitioner(on_chip_bytes="1 MB/s")
    with pytest.raises(InvalidInputError, match="ShapeProp"):
        atlas.GraphPartitioner().partition(fx.symbolic_trace(Net()))
    with pytest.raises(InvalidInputError, match="example inputs"):
        atlas.GraphPartitioner().partition(Net())
    with pytest.raises(InvalidModelError, match="not int"):
        atlas.GraphPartitioner().partition(3)
    with pytest.raises(InvalidInputError, match="top"):
        atlas.GraphPartitioner().partition(traced(Block(), 1, 8, 4, 4)).top(by="nodes")


# -- published figures -------------------------------------------------------------------------------------------------

LEVELS = {
    "resnet18": (62, 2),
    "mobilenet_v2": (151, 1),
    "efficientnet_b0": (239, 1),
    "resnet50": (166, 2),
    "vit_b_16": (137, 1),
    "swin_t": (120, 1),
    "densenet121": (366, 1),
    "googlenet": (49, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
def test_levels_over_module_level_operations(name: str) -> None:
    """As counted by hand over calls of modules and arithmetic between them, Dropouts included, cat and flatten not."""
    changes = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    size = 224 if name == "vit_b_16" else 64
    model = getattr(load_torchvision().models, name)(weights=None, **changes)
    report = atlas.GraphPartitioner("op").partition(traced(model, 1, 3, size, size))
    found = atlas.ConcurrencyAnalyzer().analyze(report)
    assert (found.num_stages, found.max_parallel_ops_per_stage) == LEVELS[name]
    assert "unknown" not in report.operation_type_counts


def test_levels_of_small_models() -> None:
    analyze = atlas.ConcurrencyAnalyzer().analyze
    found = analyze(atlas.GraphPartitioner("op").partition(traced(Net(), 1, 3, 8, 8)))
    # stem, two blocks of conv bn relu conv bn add relu, dropout, linear; pooling and flatten go with the last relu
    assert (found.num_stages, found.max_parallel_ops_per_stage) == (1 + 7 + 7 + 2, 2)
    report = atlas.GraphPartitioner("op").partition(traced(Inception(), 1, 3, 8, 8))
    found = analyze(report)
    assert (found.num_stages, found.max_parallel_ops_per_stage) == (3, 4)
    assert found.glue == (report["cat"].node_id,)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(2, 4)
        states = []
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
            states.append(h)
        return self.head(torch.stack(states, 1))


class Counting(list[Any]):
    """A list that counts how often an entry is asked for."""

    asked = 0

    def __getitem__(self, key: Any) -> Any:
        Counting.asked += 1
        return super().__getitem__(key)


def test_joining_looks_at_as_much_per_operation_in_a_long_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at grows with the recording, not with its square: that took 72 s for 11,000 nodes."""
    plain = Groups.__init__

    def counted(self: Groups, units: Any) -> None:
        plain(self, units)
        self._before, self._after = Counting(self._before), Counting(self._after)

    monkeypatch.setattr(Groups, "__init__", counted)
    per_node = []
    for steps in (10, 160):
        graph = atlas.capture(Loop(), torch.randn(2, steps, 4), backward=True)
        Counting.asked = 0
        atlas.GraphPartitioner().partition(graph)
        per_node.append(Counting.asked / len(graph))
    assert per_node[1] < 1.1 * per_node[0]


def test_who_only_waits_reads_nothing() -> None:
    class WritesLater(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            x.mul_(2)
            return y.exp()

    report = atlas.GraphPartitioner().partition(atlas.capture(WritesLater(), torch.randn(4)))
    assert [(one.nodes, one.partition_reason) for one in report] == [
        (("add", "exp"), "what follows waits for it and reads nothing of it"),
        (("mul_",), "nothing follows it"),
    ]


def test_reads_between_groups_are_those_of_their_units() -> None:
    """Of the reads that tell the same only the first is kept."""
    graph = atlas.capture(Loop(), torch.randn(2, 6, 4), backward=True)
    units = units_of_graph(graph)
    fusion = Fusion(units, ledger(graph, device_named(None)), 1 << 20)
    group, members, fewer = fusion.groups.group, fusion.groups.members, 0
    for producer in members:
        for consumer in set(members) - {producer}:
            readers = sorted(members[consumer])
            plain = [read for unit in readers for read in fusion._taken[unit] if group[read.maker] == producer]
            kept = fusion._reads.between(producer, consumer)
            assert [read for read in plain if read in kept] == kept
            assert kept[:1] == plain[:1]
            assert {read.numel for read in kept} == {read.numel for read in plain}
            assert any(read.saved_bytes for read in kept) == any(read.saved_bytes for read in plain)
            starts = [[read for read in reads if fusion._reads._begins_kernel[read.reader]] for reads in (kept, plain)]
            assert starts[0][:1] == starts[1][:1]
            fewer += len(kept) < len(plain)
    assert fewer
