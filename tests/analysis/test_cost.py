"""Cost reports: parts sum to totals, nothing unknown is zero, equal calls are told apart from unequal ones."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import random_graph
from torch import nn
from zoo import ZOO, Specimen
from zoo.specimen import loss_of

import torchatlas as atlas
from torchatlas.analysis.devices import DEVICES, GENERIC, Device, device_named
from torchatlas.analysis.node_work import count
from torchatlas.analysis.roofline import Bound
from torchatlas.analysis.symbolic_sizes import evaluate
from torchatlas.errors import AnalysisError, InvalidInputError, UnknownNameError
from torchatlas.graph import Graph, OperationType
from torchatlas.graph.columns import Layout
from torchatlas.operations.formulas import FORMULAS

FIGURES = ("operations", "macs", "elementwise_flops", "bytes_read", "bytes_written", "uncosted")


def training_step() -> Graph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(16, 4), nn.Softmax(-1)))
    return atlas.capture(model, torch.randn(3, 8), optimizer=torch.optim.SGD)


def captured(specimen: Specimen) -> Graph:
    model, args, kwargs = specimen.build()
    with atlas.recording(model if isinstance(model, nn.Module) else None) as rec:
        result = model(*args, **kwargs)
        if specimen.trains:
            loss_of(result).backward()
    graph: Graph = rec.graph
    return graph


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_parts_sum_to_totals(specimen: Specimen) -> None:
    report = atlas.cost(captured(specimen))
    for groups in (report.by_phase, report.by_operation_type, report.by_operation):
        for figure in FIGURES:
            assert sum(getattr(one, figure) for one in groups.values()) == getattr(report.total, figure)
    assert sum(one.operations for one in report.by_bound.values()) + report.total.uncosted == report.total.operations
    assert {figure: getattr(report.by_module[""], figure) for figure in FIGURES} == {
        figure: getattr(report.total, figure) for figure in FIGURES
    } or not report.total.operations
    for path, scope in report.graph.scopes.items():
        if path in report.by_module and scope.children:
            below = sum(report.by_module[child.path].macs for child in scope.children if child.path in report.by_module)
            assert below <= report.by_module[path].macs
    json.dumps(report.to_dict(), allow_nan=False)
    assert str(report)


def one_by_one(graph: Graph) -> list[tuple[int, ...]]:
    """The work of every op with nothing shared: each alone in a graph of its own."""
    rows = []
    for node in graph.where(kind="op"):
        counts = count(graph.subgraph([node]))
        at = int(np.flatnonzero(counts.is_op)[0])
        rows.append(tuple(int(column[at]) for column in (counts.macs, counts.bytes_read, counts.bytes_written)))
    return rows


def test_equal_calls_are_worked_out_once_and_unequal_ones_apart() -> None:
    def program(x: Any) -> Any:
        for rows in (4, 2, 4, 3):
            y = x[:rows].contiguous() if rows != 3 else x[:3]
            y = (y @ torch.ones(8, rows)).t().add(1)
            y.add_(1)
            torch._foreach_add_([y, torch.zeros(rows)], 1)
        return y

    graph = atlas.capture(program, torch.randn(4, 8))
    counts = count(graph)
    columns = (column[counts.is_op].tolist() for column in (counts.macs, counts.bytes_read, counts.bytes_written))
    assert list(zip(*columns, strict=True)) == one_by_one(graph)


def test_what_has_no_formula_is_listed_and_makes_totals_at_least() -> None:
    graph = training_step()
    rows = graph.tables.operations
    at = next(i for i, row in enumerate(rows) if row.name.startswith("aten.addmm."))
    rows[at] = dataclasses.replace(rows[at], name="strange.thing.default", type=OperationType.CUSTOM)
    report = atlas.cost(graph)
    assert report.uncosted == {"strange.thing.default": 2}
    assert report.at_least
    assert report.by_module["0"].uncosted == 1
    assert report.by_module["1"].uncosted == 0
    assert "at least" in str(report)
    assert "strange.thing.default (2)" in str(report)
    node = graph.where(operation="strange.thing.default")[0]
    assert report.node(node).macs is None
    assert report.node(node).seconds is None
    assert report.node(node).bound is None


def test_a_formula_of_ones_own() -> None:
    with torch.library._scoped_library("atlas_cost_test", "DEF") as library:
        library.define("twice(Tensor x, int times) -> Tensor")
        library.impl("twice", lambda x, times: x * times, "CompositeExplicitAutograd")
        graph = atlas.capture(lambda x: torch.ops.atlas_cost_test.twice(x, 3), torch.ones(5))
        assert atlas.cost(graph).uncosted == {"atlas_cost_test.twice.default": 1}

        def twice(call: atlas.OpCall) -> atlas.Work:
            return atlas.Work(macs=call["x"].numel * call["times"])

        atlas.register_operator("atlas_cost_test::twice", formula=twice)
        try:
            assert atlas.cost(graph).macs == 15
            with pytest.raises(ValueError, match="registered twice"):
                atlas.register_operator("atlas_cost_test.twice", formula=twice)
        finally:
            del FORMULAS._entries["atlas_cost_test.twice"]


def test_a_call_that_cannot_be_read_names_the_node() -> None:
    graph = training_step()
    product = graph.where(operation="addmm")[0]
    graph.tables.arguments[graph.columns["node_arguments"][product.id]] = '[[{"tensor":99}],{}]'
    with pytest.raises(AnalysisError, match=r"failed on node '0\.addmm', aten\.addmm\.default: IndexError"):
        atlas.cost(graph)
    with pytest.raises(AnalysisError, match="failed on node"):
        atlas.cost(random_graph(2000, 4000), sizes={"s0": 4})  # its arguments are not those of its operations


def test_views_move_nothing_and_writes_count_once() -> None:
    x = torch.randn(4, 8)
    graph = atlas.capture(lambda x: x.t()[1:].add_(1), x)
    costs = {node.operation: atlas.cost(graph).node(node) for node in graph.where(kind="op")}
    assert [costs["aten.t.default"].bytes_read, costs["aten.t.default"].bytes_written] == [0, 0]
    added = costs["aten.add_.Tensor"]
    assert (added.bytes_read, added.bytes_written, added.elementwise_flops) == (112, 112, 28)


def test_an_expanded_tensor_is_read_once() -> None:
    graph = atlas.capture(lambda x: x.expand(100, 8) + 1, torch.randn(1, 8))
    added = atlas.cost(graph).node(graph.where(operation="add")[0])
    assert (added.bytes_read, added.bytes_written) == (32, 3200)


def test_the_text_names_what_matters() -> None:
    text = str(atlas.cost(training_step()))
    for word in ("multiply-adds", "phase", "forward", "backward", "optimizer", "module", "most expensive", "generic"):
        assert word in text


def test_the_most_expensive_come_first() -> None:
    report = atlas.cost(training_step())
    for by in ("macs", "seconds", "bytes", "elementwise_flops", "time_ns"):
        found = report.top(3, by=by)
        assert len(found) == 3
    macs = [one.macs for one in report.top(100, by="macs")]
    assert macs == sorted(macs, reverse=True)
    with pytest.raises(InvalidInputError, match="one of seconds, macs"):
        report.top(by="beauty")


def test_a_table_with_one_row_per_operation() -> None:
    pytest.importorskip("pandas")
    report = atlas.cost(training_step())
    table = report.to_pandas()
    assert len(table) == report.total.operations
    assert table["macs"].sum() == report.macs
    assert table["flops"].sum() == report.flops == 2 * report.macs


# -- symbolic sizes ----------------------------------------------------------------------------------------------------


def symbolic() -> Graph:
    """A graph in which 3, the batch, is called s0."""
    graph = training_step()

    def named(layout: Layout) -> Layout:
        stride = None if layout.stride is None else tuple("8*s0" if step == 24 else step for step in layout.stride)
        return dataclasses.replace(layout, shape=tuple("s0" if n == 3 else n for n in layout.shape), stride=stride)

    graph.tables.layouts[:] = [named(layout) for layout in graph.tables.layouts]
    graph.metadata["sizes"] = {"s0": 3}
    return graph


def test_symbolic_sizes_are_the_examples_or_as_asked() -> None:
    assert atlas.cost(symbolic()).macs == atlas.cost(training_step()).macs
    assert atlas.cost(symbolic()).sizes["s0"] == 3
    assert atlas.cost(symbolic(), sizes={"s0": 6}).macs == 2 * atlas.cost(training_step()).macs
    assert "s0 = 6" in str(atlas.cost(symbolic(), sizes={"s0": 6}))


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(InvalidInputError, match=r"no symbolic size 's1'\. It has: s0"):
        atlas.cost(symbolic(), sizes={"s1": 4})
    with pytest.raises(InvalidInputError, match="not a size"):
        atlas.cost(symbolic(), sizes={"s0": -1})
    with pytest.raises(InvalidInputError, match="It has: none"):
        atlas.cost(training_step(), sizes={"s0": 4})
    graph = symbolic()
    del graph.metadata["sizes"]
    with pytest.raises(InvalidInputError, match=r"'s0': \.\.\."):
        atlas.cost(graph)


@pytest.mark.parametrize(
    ("text", "number"),
    [("s0", 7), ("2*s0 + 1", 15), ("(s0 - 1)//2", 3), ("Max(1, s0 - 9)", 1), ("s0**2", 49), ("-s0 + 8", 1)],
)
def test_expressions_of_sizes(text: str, number: int) -> None:
    assert evaluate(text, {"s0": 7}) == number


TOWER = "(" * 40 + "s0" + "**8)" * 40  # more digits than there is memory


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "s0.real", "[s0]", "s0 +", "2**s0", "s0//0", "t", "'a'", "f(1)"),
        *(TOWER, "1" + "+1" * 5000, "floor(s0/1e400)", "-" * 5000 + "1"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_size_is_never_run(text: str) -> None:
    with pytest.raises(AnalysisError, match="size"):
        evaluate(text, {"s0": 7})


# -- devices -----------------------------------------------------------------------------------------------------------


def test_devices_are_found_by_name() -> None:
    assert device_named(None) is GENERIC
    assert device_named("A100 80GB") is DEVICES["a100-80gb"]
    assert device_named(GENERIC) is GENERIC
    with pytest.raises(UnknownNameError, match="did you mean 'h100-sxm'"):
        device_named("h100-sxmm")
    for device in DEVICES.values():
        assert device.source
        assert device.flops_for("float32") > 0
        assert device.flops_for("something else") == device.flops["float32"]
        assert device.bandwidth > device.link / 40


def test_this_machine_can_be_measured() -> None:
    here = device_named("here")
    assert here is device_named("here")
    assert here.flops["float32"] > 1e8
    assert here.bandwidth > 1e8
    assert 0 < here.overhead_s < 1e-2


def test_what_bounds_an_op() -> None:
    device = Device("square", {"float32": 1000.0}, 1000.0, 1000.0, 0, None, 1.0, 0.5, "made up")
    big, wide = torch.randn(40, 40), torch.randn(1000)

    def program(a: Any, b: Any) -> Any:
        return a @ a, b + 1, torch.ones(1) + 1

    graph = atlas.capture(program, big, wide)
    report = atlas.cost(graph, device)
    product, wide_add, small_add = (
        report.node(graph.where(operation="mm")[0]),
        *(report.node(node) for node in graph.where(operation="add")),
    )
    assert (product.bound, product.seconds) == (Bound.COMPUTE, 2 * 40**3 / 1000)
    assert (wide_add.bound, wide_add.seconds) == (Bound.MEMORY, 8.0)
    assert (small_add.bound, small_add.seconds) == (Bound.OVERHEAD, 0.5)
    even = Device("even", {"float32": 1000.0}, 125.0, 1000.0, 0, None, 1.0, 0.5, "made up")
    assert atlas.cost(graph, even).node(wide_add.name).bound == Bound.BALANCED


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"cost\(model, inputs=x\)"):
        atlas.cost(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="autograd"):
        atlas.cost(Graph(source="autograd"))
    assert atlas.cost(Graph()).macs == 0
