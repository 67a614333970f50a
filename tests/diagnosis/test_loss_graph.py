"""atlas.doctor(loss): faults found before backward runs, with both lines, and nothing on healthy losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from autograd.graphs import GRAPHS, build
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, UnknownNameError


def test_every_write_to_a_saved_tensor_is_found_with_both_lines() -> None:
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    with atlas.recording() as rec:
        hidden = x.exp()
        product = hidden @ w
        squashed = torch.sigmoid(product)
        hidden += 1
        squashed[0] = 0
        loss = (squashed * squashed).sum()
    found = atlas.doctor(loss, forward=rec.graph)
    assert found.keys == ["in-place"] * 3
    slots = {finding.what.split(" (")[0]: finding for finding in found}
    assert set(slots) == {"MmBackward0 saved self", "SigmoidBackward0 saved result", "ExpBackward0 saved result"}
    product_finding = slots["MmBackward0 saved self"]
    assert "(product = hidden @ w)" in str(product_finding.where[0])
    assert any("(hidden += 1)" in str(line) for line in product_finding.where[1:])
    assert any("(squashed[0] = 0)" in str(line) for line in slots["SigmoidBackward0 saved result"].where[1:])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_optimizer_step_between_forward_and_backward() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with atlas.recording(net) as rec:
        first, second = net(torch.randn(2, 3)).sum(), net(torch.randn(2, 3)).sum()
        first.backward()
        optimizer.step()
    found = atlas.doctor(second, model=net, forward=rec.graph)
    assert found.keys == ["in-place"]
    assert any("optimizer.step()" in str(line) for line in found[0].where)


def test_without_a_recording_there_are_no_lines() -> None:
    x = torch.randn(3, requires_grad=True)
    hidden = x.exp()
    loss = (hidden * hidden).sum()
    hidden.mul_(2)
    found = atlas.doctor(loss)
    assert set(found.keys) == {"in-place"}
    assert all(finding.where == () for finding in found)
    assert "fix: write to a copy" in str(found)
    assert found.to_dict()["findings"][0]["key"] == "in-place"


def test_a_graph_that_was_freed() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    trunk = net(torch.randn(2, 3))
    one, other = trunk.square().sum(), trunk.exp().sum()
    one.backward()
    whole, shared = atlas.doctor(one, model=net), atlas.doctor(other, model=net)
    assert whole.keys == shared.keys == ["freed-graph"]
    assert "the whole graph was freed already, the first is PowBackward0" in whole[0].what
    assert "2 of 3 nodes were freed already" in shared[0].what
    assert "another loss" in shared[0].why


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.cut, self.never = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.used(x)) + self.cut(x).detach()


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("way", ["list", "array", "array of a sum"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Identity, lambda: nn.LayerNorm(16)])
def test_detach_is_named_where_the_program_calls_it(way: str, activation: Callable[[], nn.Module]) -> None:
    """torch detaches as well: a new parameter, and under a dispatch mode results that autograd saves."""
    with atlas.doctor() as visit:
        net = nn.Sequential(nn.Linear(4, 16), activation(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            made = net(torch.randn(2, 4))
            if way == "array of a sum":
                made = made + 1
            numbers: Any = made.tolist() if way == "list" else made.detach().numpy()
            loss = torch.tensor(numbers, requires_grad=True).square().mean()
            loss.backward()
            optimizer.step()
    (finding,) = [each for each in visit.findings if "get no gradient" in each.what]
    said = [place.source.text for place in finding.where if "cut by detach()" in place.what and place.source]
    assert ["made.detach().numpy()" in text for text in said] == ([] if way == "list" else [True])


def test_parameters_that_get_no_gradient() -> None:
    net = Cut()
    with atlas.recording(net) as rec:
        loss = net(torch.randn(2, 3)).sum()
    found = atlas.doctor(loss, model=net, forward=rec.graph)
    assert [finding.what.split()[0] for finding in found] == ["cut.weight", "never.weight"]
    assert "cut by detach()" in str(found[0].where[0])
    assert "self.cut(x).detach()" in str(found[0].where[0])
    assert "was cut off from the loss" in found[0].why
    assert (found[1].where, found[1].why) == ((), "it was never used")
    assert "no path" in atlas.doctor(loss, model=net)[0].why


def test_a_loss_that_does_not_require_a_gradient() -> None:
    net = nn.Linear(3, 3)
    with torch.no_grad():
        loss = net(torch.randn(2, 3)).sum()
    assert atlas.doctor(loss).keys == ["loss-without-grad"]
    assert atlas.doctor(loss, model=net).keys == ["loss-without-grad", "no-gradient"]
    fine = net(torch.randn(2, 3)).sum()
    assert atlas.doctor([fine, loss])[0].what == "loss 1 does not require a gradient"


class SavesItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return gradient * y


def test_what_a_custom_function_saved_of_its_own_making() -> None:
    made = SavesItsOutput.apply(torch.ones(3, requires_grad=True))
    loss = made.sum()
    assert not atlas.doctor(loss)
    made.mul_(2)
    assert atlas.doctor(loss).keys == ["in-place"]


HEALTHY: dict[str, Callable[[], Tensor]] = {
    "checkpoint": lambda: checkpoint(nn.Linear(3, 3), torch.randn(2, 3), use_reentrant=False).sum(),
    "leaf": lambda: torch.ones(1, requires_grad=True),
    "buffer written before its use": lambda: _after_a_write(),
    "retained": lambda: _retained(),
}


def _after_a_write() -> Tensor:
    buffer = torch.zeros(3)
    buffer += 1
    return (torch.ones(3, requires_grad=True) * buffer).sum()


def _retained() -> Tensor:
    loss = nn.Linear(3, 3)(torch.randn(2, 3)).tanh().sum()
    loss.backward(retain_graph=True)
    return loss


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_in_a_healthy_loss(name: str) -> None:
    found = atlas.doctor(HEALTHY[name]())
    assert not found
    assert (
        str(found) == "no fault found; looked for: freed-graph, in-place, loss-without-grad, no-gradient, saved-memory"
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_is_found_in_any_graph_of_the_corpus_and_it_runs_as_before(name: str) -> None:
    case = build(name)
    outputs = case.outputs if isinstance(case.outputs, list) else [case.outputs]
    if not all(isinstance(output, Tensor) for output in outputs):
        pytest.skip("an edge")
    found = atlas.doctor([output for output in outputs if output.requires_grad])
    assert found.keys == []


def test_what_is_no_loss() -> None:
    with pytest.raises(InvalidInputError, match="takes a loss or several, not int"):
        atlas.doctor(3)
    with pytest.raises(UnknownNameError, match="did you mean 'in-place'"):
        atlas.doctor(torch.ones(1, requires_grad=True), only=["inplace"])
