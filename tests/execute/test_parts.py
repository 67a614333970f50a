"""Running a part of a traced model: from the values of some nodes to those of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import load_torchvision, sampled
from torch import Tensor, nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.errors import CaptureError, InputMismatchError, InvalidInputError, NodeNotFoundError, NotFiniteError


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.pair = Pair()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu_()
        doubled, halved = self.pair(self.second(hidden))
        doubled.add_(1)  # of memory that `halved` does not share
        return self.third(doubled + halved + x)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x / 2


@pytest.fixture
def found() -> atlas.TracedModel:
    torch.manual_seed(0)
    return atlas.trace(Skip().eval(), torch.randn(3, 4))


def test_from_a_module_to_a_module(found: atlas.TracedModel) -> None:
    model: Any = found.model
    hidden = torch.randn(5, 4)
    assert torch.equal(found.run_between({"first": hidden}, "second"), model.second(hidden.relu()))


def test_what_is_given_is_not_written_to(found: atlas.TracedModel) -> None:
    hidden = -torch.ones(5, 4)
    found.run_between({"first": hidden}, "second")
    assert torch.equal(hidden, -torch.ones(5, 4))


def test_what_lies_beside_the_way_must_be_given(found: atlas.TracedModel) -> None:
    with pytest.raises(InvalidInputError, match=r"'first' does not determine 'third': it also depends on x\."):
        found.run_between({"first": torch.randn(5, 4)}, "third")
    x = torch.randn(5, 4)
    values = found.predict(x)
    first = values["first.linear"].output
    assert torch.equal(found.run_between({"first": first, "x": x}, "third"), values.output)


def test_several_values_are_a_tuple(found: atlas.TracedModel) -> None:
    x = torch.randn(2, 4)
    one, other = found.run_between({"second": x}, "pair")
    assert torch.equal(one, x * 2)
    assert torch.equal(other, x / 2)
    again = found.run_between({"pair": (one, other), "x": torch.zeros(2, 4)}, "third")
    model: Any = found.model
    assert torch.equal(again, model.third(x * 2 + 1 + x / 2))


def test_a_write_on_the_way_is_not_left_out(found: atlas.TracedModel) -> None:
    x = torch.randn(2, 4)
    values = found.predict(x)
    summed = next(name for name in values if name.startswith("add") and not name.startswith("add_"))
    assert torch.equal(found.run_between({"x": x}, summed), values[summed].output)


def test_everything_from_the_inputs_is_the_whole_run(found: atlas.TracedModel) -> None:
    x = torch.randn(2, 4)
    assert torch.equal(found.run_between({"x": x}, "third"), found(x))


def test_gradients_flow_through_a_part(found: atlas.TracedModel) -> None:
    hidden = torch.randn(5, 4, requires_grad=True)
    found.run_between({"first": hidden}, "second").sum().backward()
    assert hidden.grad is not None


def test_unknown_and_unfit_names_are_refused(found: atlas.TracedModel) -> None:
    with pytest.raises(NodeNotFoundError, match="no node or module is named 'frist'; did you mean 'first'"):
        found.run_between({"frist": torch.ones(1)}, "second")
    with pytest.raises(InvalidInputError, match="'pair' makes 2 values; 1 were given"):
        found.run_between({"pair": torch.ones(2, 4)}, "third")
    with pytest.raises(InvalidInputError, match="nothing does not determine 'second'"):
        found.run_between({}, "second")
    with pytest.raises(InputMismatchError, match=r"failed at second\.linear"):
        found.run_between({"first": torch.ones(2, 7)}, "second")


def test_a_module_that_is_called_twice_is_ambiguous() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x).tanh())

    found = atlas.trace(Twice().eval(), torch.ones(2, 3))
    with pytest.raises(InvalidInputError, match="module 'layer' is called 2 times; name one of its nodes"):
        found.run_between({"tanh": torch.ones(2, 3)}, "layer")
    model: Any = found.model
    given = torch.randn(4, 3)
    assert torch.equal(found.run_between({"tanh": given}, "layer.linear_1"), model.layer(given))


def test_modes_hold_in_a_part() -> None:
    class Quiet(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                hidden = x * 3
            return hidden + x.tanh()

    found = atlas.trace(Quiet().eval(), torch.ones(2, requires_grad=True))
    tripled = next(node.name for node in found.graph.nodes if "mul" in node.name)
    x = torch.ones(2, requires_grad=True)
    assert not found.run_between({"x": x}, tripled).requires_grad
    assert torch.is_grad_enabled()


def test_a_stage_of_a_resnet() -> None:
    torch.manual_seed(0)
    model = load_torchvision().models.resnet18().eval()
    found = atlas.trace(model, torch.randn(2, 3, 64, 64))
    hidden = torch.randn(3, 64, 16, 16)
    expected = model.layer3(model.layer2(hidden))
    assert torch.equal(found.run_between({"layer1": hidden}, "layer3"), expected)


@pytest.mark.parametrize("entry", sampled(ZOO, 3), ids=str)
def test_every_node_of_the_zoo_from_the_inputs_alone(entry: Specimen) -> None:
    """A slice computes what the whole run does, at every node: no write and no mode is missing."""
    model, args, kwargs = entry.build()
    if not isinstance(model, nn.Module) or entry.name in ("disjoint_column_writes", "resized", "forward_mode"):
        pytest.skip("no module, memory that nobody wrote, or levels of forward mode, which a part does not begin")
    try:
        found = atlas.trace(model.eval(), *args, kwargs=kwargs)
    except CaptureError:
        pytest.skip("torch.export cannot trace it")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(0)
    values = found.predict(*args, **kwargs)
    variant, _ = found._matching(args, kwargs)
    if variant is not found._variants[0]:
        pytest.skip("the example has a size of 1")
    given = {node.name: values[node.name].output for node in found.graph.where(kind="input")}
    random = any(node.operation_type == atlas.OperationType.RANDOM for node in found.graph.nodes)
    for node in found.graph.where(kind="op")[:: max(1, len(found.graph) // 12)]:
        model.load_state_dict(state, strict=False)
        got = found.run_between(given, node.name)
        if not random:
            one, other = got if isinstance(got, tuple) else (got,), values[node.name].output
            assert_same(one, other if isinstance(other, (list, tuple)) else (other,))


def assert_same(one: Any, other: Any) -> None:
    one = one[0] if len(one) == 1 and isinstance(one[0], (list, tuple)) else one
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(theirs, Tensor) and theirs.layout is torch.strided:
            assert torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)


# -- numbers that are not finite ---------------------------------------------------------------------------------------


def test_the_first_node_that_is_not_finite_is_named() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.log() * 0).nan_to_num()

    found = atlas.trace(Log().eval(), torch.ones(2, 3))
    assert found(torch.zeros(2, 3)).sum() == 0
    with pytest.raises(NotFiniteError, match=r"6 of 6 .* not finite after log \(aten\.log\.default\).*test_parts"):
        found.run(torch.zeros(2, 3), check_finite=True)
    assert torch.equal(found.run(torch.ones(2, 3), check_finite=True), torch.zeros(2, 3))
