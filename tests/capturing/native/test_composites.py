"""Composite operators: the native recorder sees them call what they are made of, and the graph says so."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import vmap

import torchatlas as atlas

pytestmark = pytest.mark.usefixtures("native")

LINEAR = ("aten.linear.default",)
CROSS_ENTROPY = ("aten.cross_entropy_loss.default",)


def step() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True), torch.randn(4)
    scores = nn.functional.linear(x, weight, bias).relu()
    nn.functional.cross_entropy(scores, torch.tensor([0, 3])).backward()


def recorded(native: bool = True) -> atlas.Graph:
    with atlas.recording(native=native) as rec:
        step()
    return rec.graph


def by_operation(graph: atlas.Graph) -> dict[str, tuple[str, ...] | None]:
    return {node.operation: node.composites for node in graph.nodes if node.kind == "op"}


def test_an_op_knows_which_composite_operators_called_it() -> None:
    found = by_operation(recorded())
    assert found["aten.addmm.default"] == LINEAR
    assert found["aten._log_softmax.default"] == (*CROSS_ENTROPY, "aten.log_softmax.int")
    nll_loss = ("aten.nll_loss_nd.default", "aten.nll_loss.default")
    assert found["aten.nll_loss_forward.default"] == (*CROSS_ENTROPY, *nll_loss)
    assert found["aten.relu.default"] == ()
    assert found["aten.mm.default"] == ()  # of backward: autograd calls it


def test_nobody_knows_under_a_dispatch_mode() -> None:
    assert set(by_operation(recorded(native=False)).values()) == {None}


def test_what_the_recorder_in_python_took_over_is_not_known() -> None:
    with atlas.recording(native=True) as rec:
        nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
        vmap(torch.cos)(torch.ones(3))
        torch.ones(2).sin()
    found = by_operation(rec.graph)
    assert found["aten.mm.default"] == ("aten.linear.default", "aten.matmul.default")
    assert found["aten.cos.default"] is None
    assert found["aten.sin.default"] is None


def test_an_operator_that_autocast_calls_again_counts_once() -> None:
    with torch.autocast("cpu", torch.bfloat16), atlas.recording(native=True) as rec:
        nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    found = by_operation(rec.graph)
    assert found["aten.addmm.default"] == LINEAR
    assert found["aten._to_copy.default"] == (*LINEAR, "aten.to.dtype")


def test_each_thread_has_its_own() -> None:
    def run() -> None:
        nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))

    with atlas.recording(native=True) as rec:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        torch.ones(3).cos()
        for thread in threads:
            thread.join()
    found = by_operation(rec.graph)
    assert found["aten.addmm.default"] == LINEAR
    assert found["aten.cos.default"] == ()


def test_an_exception_in_a_composite_operator_closes_it() -> None:
    with atlas.recording(native=True) as rec:
        with pytest.raises(RuntimeError):
            nn.functional.linear(torch.ones(2, 3), torch.ones(4, 5), torch.ones(4))
        torch.ones(3).cos()
    assert by_operation(rec.graph)["aten.cos.default"] == ()


@pytest.mark.parametrize("suffix", [".atlas", ".json"])
def test_files_and_parts_keep_it(suffix: str, tmp_path: Path) -> None:
    graph = recorded()
    loaded = atlas.Graph.load(graph.save(tmp_path / f"step{suffix}"))
    assert graph.identical(loaded)
    assert by_operation(loaded) == by_operation(graph)
    part = graph.subgraph(graph.where(operation="aten.addmm.default"))
    assert by_operation(part) == {"aten.addmm.default": LINEAR}


def test_it_is_shown_and_is_no_part_of_the_structure() -> None:
    graph = recorded()
    assert "aten.linear.default" in graph.where(operation="aten.addmm.default")[0]._repr_html_()
    assert "called by" not in graph.where(operation="aten.relu.default")[0]._repr_html_()
    table = graph.to_pandas().set_index("operation")["composites"]
    assert table["aten._log_softmax.default"] == "aten.cross_entropy_loss.default > aten.log_softmax.int"
    structure = graph.hash
    graph.columns["node_composites"][:] = -1
    assert atlas.Graph(graph.columns, graph.tables, source="run").hash == structure
