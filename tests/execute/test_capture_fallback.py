"""Models that torch.export refuses, followed along the path that was captured."""

from __future__ import annotations

import pytest
import torch
from support import sampled
from torch import Tensor, nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.errors import CaptureError, InputMismatchError, InvalidInputError, NotAvailableError, NotFiniteError


class Branch(nn.Module):
    """Goes one way or the other, as the values say."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Tensor]:
        hidden = self.norm(self.first(x)).relu_()
        if x.sum() > 0:
            return {"up": hidden * scale}
        return {"up": hidden.tanh().neg()}


UP, DOWN = torch.ones(3, 4), -torch.ones(3, 4)


def traced(**options: object) -> tuple[Branch, atlas.TracedModel]:
    torch.manual_seed(0)
    model = Branch().eval()
    return model, atlas.trace(model, UP, fallback="capture", **options)


def test_without_the_fallback_the_refusal_names_the_line_and_the_way_out() -> None:
    with pytest.raises(CaptureError, match=r"if x\.sum\(\) > 0.*fallback=\"capture\""):
        atlas.trace(Branch(), UP)


def test_it_runs_along_the_captured_path_with_other_sizes() -> None:
    model, found = traced()
    other = torch.rand(7, 4)
    assert torch.equal(found(other)["up"], model(other)["up"])
    assert torch.equal(found(UP, scale=3.0)["up"], model(UP, scale=3.0)["up"])
    assert any("the path that its example took" in note for note in found.notes)
    assert any("the path that its example took" in note for note in found.graph.notes)


def test_another_path_is_refused_and_named() -> None:
    _, found = traced()
    with pytest.raises(
        InputMismatchError, match=r"runs aten\.tanh\.default, where the traced path ran mul .*in Branch.forward"
    ):
        found(DOWN)
    assert found(UP)["up"].shape == (3, 4)


def test_a_path_that_ends_earlier_or_goes_on_is_refused() -> None:
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            while x.sum() < 10:
                x = x + 1
            return x

    found = atlas.trace(Loop(), torch.zeros(2), fallback="capture")
    assert torch.equal(found(torch.zeros(2)), torch.full((2,), 5.0))
    with pytest.raises(InputMismatchError, match="ends, where the traced path ran"):
        found(torch.full((2,), 4.0))
    with pytest.raises(InputMismatchError, match="where the traced path ended"):
        found(torch.full((2,), -4.0))


def test_a_model_that_catches_the_refusal_is_refused_all_the_same() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x + 1
            try:
                return x.tanh()
            except RuntimeError:
                return x

    found = atlas.trace(Careless(), torch.ones(2), fallback="capture")
    with pytest.raises(InputMismatchError, match="takes another path"):
        found(-torch.ones(2))


def test_values_are_what_nodes_made_even_if_they_are_overwritten() -> None:
    model, found = traced()
    x = torch.randn(5, 4).abs()
    values = found.predict(x)
    before = model.norm(model.first(x))
    normed = next(name for name in values if "batch_norm" in name)
    made = values[normed].output
    assert torch.equal(made[0] if isinstance(made, tuple) else made, before)
    assert (before < 0).any()
    assert torch.equal(values.output["up"], model(x)["up"])
    assert torch.equal(values["x"].output, x)
    assert set(values) == {node.name for node in found.graph.nodes}
    assert values["first.addmm"].hyperparameters["bias"] is model.first.bias


def test_only_some_values_or_a_callback() -> None:
    _, found = traced()
    assert set(found.predict(UP, nodes=["first"])) == {"first.addmm"}
    seen: list[str] = []
    assert len(found.predict(UP, callback=lambda name, value: seen.append(name))) == 0
    assert seen == [node.name for node in found.graph.nodes if node.name != "output"]


def test_values_can_be_edited_also_those_written_in_place() -> None:
    model, found = traced()
    expected = model.norm(model.first(UP) * 2).relu()
    assert torch.allclose(found.run(UP, edit={"first": lambda value: value * 2})["up"], expected)
    assert found.run(UP, edit={"relu_": torch.zeros_like})["up"].abs().sum() == 0


def test_gradients_flow_as_in_the_model() -> None:
    model, found = traced()
    found(UP)["up"].sum().backward()
    got = model.first.weight.grad
    model.zero_grad()
    model(UP)["up"].sum().backward()
    assert got is not None
    assert torch.equal(got, model.first.weight.grad)  # type: ignore[arg-type]


def test_errors_name_the_node() -> None:
    _, found = traced()
    with pytest.raises(InputMismatchError, match=r"failed at first\.addmm .*shape"):
        found(torch.ones(3, 5))
    with pytest.raises(NotFiniteError, match=r"not finite after x"):
        found.run(torch.full((3, 4), torch.inf), check_finite=True)


def test_parts_cannot_be_run() -> None:
    _, found = traced()
    with pytest.raises(NotAvailableError, match=r"when torch\.export traced it"):
        found.run_between({"first": UP}, "norm")


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fallback='eager' is not one of None, 'capture'"):
        atlas.trace(Branch(), UP, fallback="eager")


def test_what_export_takes_is_not_captured() -> None:
    found = atlas.trace(nn.Linear(4, 4).eval(), UP, fallback="capture")
    assert found.graph.source == "export"
    assert found.notes == []


# Not the one that draws from a generator of its own: every run of the model moves that on, also the one that is traced.
MODULES = [entry for entry in ZOO if entry.name != "own_generator" and isinstance(entry.build()[0], nn.Module)]


@pytest.mark.parametrize("entry", sampled(MODULES, 3), ids=str)
def test_every_module_of_the_zoo_can_be_followed_or_traced(entry: Specimen) -> None:
    model, args, kwargs = entry.build()
    torch.manual_seed(3)
    found = atlas.trace(model, *args, kwargs=kwargs, fallback="capture")
    if found.graph.source == "export":
        pytest.skip("torch.export traces it")
    torch.manual_seed(4)
    got = found(*args, **kwargs)
    model, args, kwargs = entry.build()
    torch.manual_seed(4)
    expected = model(*args, **kwargs)
    one, other = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected)
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(theirs, Tensor) and theirs.layout is torch.strided and not theirs.is_nested:
            assert torch.equal(mine, theirs) or torch.allclose(mine, theirs, equal_nan=True, rtol=0, atol=0)
