"""Subgraphs as modules: each runs, and together they give what the model gives, bit for bit."""

from __future__ import annotations

import pytest
import torch
from partition.models import Attention, Block, Inception, Net, WritesAndReshapes, traced
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, NodeNotFoundError, NotAvailableError

STRATEGIES = ("fusion", "op", "module")
MODELS = {
    "net": (Net, (2, 3, 8, 8)),
    "inception": (Inception, (2, 3, 8, 8)),
    "attention": (Attention, (2, 6, 16)),
    "block": (Block, (2, 8, 8, 8)),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_torch_fx_module_is_put_together_again(name: str, strategy: str) -> None:
    build, shape = MODELS[name]
    model, x = build().eval(), torch.randn(shape)
    report = atlas.GraphPartitioner(strategy).partition(traced(model, *shape))
    pieces = report.extract()
    assert list(pieces) == [one.node_id for one in report.subgraphs]
    assert torch.equal(pieces(x), model(x))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_traced_model_is_put_together_again(name: str, strategy: str) -> None:
    build, shape = MODELS[name]
    model, x = build().eval(), torch.randn(shape)
    report = atlas.GraphPartitioner(strategy).partition(atlas.trace(model, x))
    pieces = report.extract()
    assert len(pieces) == len(report)
    assert torch.equal(pieces(x), model(x))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_copy_stays_after_the_writes_it_copies(strategy: str) -> None:
    """An exported reshape of a transposed tensor looks like a view and copies."""
    model, x = WritesAndReshapes(), torch.randn(3, 16)
    pieces = atlas.GraphPartitioner(strategy).partition(atlas.trace(model, x)).extract()
    assert torch.equal(pieces(x), model(x))


def test_pieces_share_the_parameters_and_carry_gradients() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    pieces = atlas.GraphPartitioner().partition(traced(model, 2, 3, 8, 8)).extract()
    pieces(x).sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(found, model.parameters(), strict=True))


def test_one_piece_runs_by_itself() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    report = atlas.GraphPartitioner().partition(traced(model, 2, 3, 8, 8))
    stem = report.extract()[report["stem"].node_id]
    assert torch.equal(stem(x), model.stem(x))


class Structured(nn.Module):
    def forward(self, x: dict[str, torch.Tensor], scale: int = 2) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            wide = x["a"].exp()
        top, where = torch.topk(wide + x["b"] * scale, 2)
        return {"top": top, "where": where, "rows": x["a"].sum(0)}


def test_structures_blocks_and_several_results() -> None:
    x = {"a": torch.randn(3, 4), "b": torch.randn(3, 4)}
    model = Structured()
    report = atlas.GraphPartitioner("op").partition(atlas.trace(model, x))
    found, truth = report.extract()(x), model(x)
    assert found.keys() == truth.keys()
    assert all(torch.equal(found[key], truth[key]) for key in truth)


def test_what_does_not_run_says_so() -> None:
    graph = atlas.capture(Net().eval(), torch.randn(1, 3, 8, 8))
    with pytest.raises(NotAvailableError, match=r"atlas\.trace"):
        atlas.GraphPartitioner().partition(graph).extract()
    report = atlas.GraphPartitioner().partition(traced(Net(), 1, 3, 8, 8))
    with pytest.raises(InvalidInputError, match="not what was partitioned"):
        report.extract(traced(Block(), 1, 8, 4, 4))
    with pytest.raises(NodeNotFoundError, match="no piece"):
        report.extract()["t1"]
