"""What a traced model does: other sizes, other ways to call it, kept and edited values, errors."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import pytest
import torch
from autograd.test_gradient_statistics import Elsewhere
from test_laws import world
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.errors import (
    CaptureError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    NodeNotFoundError,
)
from torchatlas.execute.tracing import difference


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(x + self.out(mixed.transpose(1, 2).flatten(2)))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean((2, 3)))


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, scale: float = 1.0, flip: bool = False) -> Tensor:
        y = self.linear(x) * scale
        return -y if flip else y if mask is None else y * mask


class Nested(nn.Module):
    def forward(self, batch: dict[str, Any], pair: tuple[Tensor, list[Tensor]]) -> dict[str, Any]:
        total = batch["a"] + batch["deep"]["b"]
        return {"total": total, "rest": [pair[0] * 2, (pair[1][0] + total, None)], "text": "kept"}


class BySize(nn.Module):
    """Takes another path for large batches, and for odd ones."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 4:
            return x * 2
        return x * 3 if x.shape[0] % 2 else x * 5


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [1, 2])
def test_any_batch_whatever_the_example_was(example: int) -> None:
    model = Convolution().eval()
    traced = atlas.trace(model, torch.randn(example, 3, 9, 9))
    for batch, height, width in ((1, 9, 9), (2, 9, 9), (5, 12, 7), (1, 20, 9)):
        x = torch.randn(batch, 3, height, width)
        assert torch.equal(traced(x), model(x))
        assert torch.equal(traced.predict(x).output, model(x))


def test_traced_with_128_run_with_256() -> None:
    model = Attention().eval()
    traced = atlas.trace(model, torch.randn(1, 128, 16))
    assert [str(size).isdecimal() for size in traced.graph.nodes[0].outputs[0].shape] == [False, False, True]
    for shape in ((1, 256, 16), (3, 7, 16), (2, 1, 16)):
        x = torch.randn(shape)
        assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize("example", [8, 3, 2])
def test_sizes_that_take_another_path_are_traced_again(example: int) -> None:
    traced = atlas.trace(BySize(), torch.randn(example, 3))
    for batch in (8, 3, 2, 1, 7, 4):
        x = torch.randn(batch, 3)
        assert torch.equal(traced(x), BySize()(x))
    assert len(traced._variants) <= 4


def test_a_trace_made_later_keeps_the_mode_of_the_first() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    traced = atlas.trace(model, torch.randn(3, 4))
    model.train()
    x = torch.randn(1, 4)
    assert torch.equal(traced(x), model[0](x))
    assert model.training
    assert model[1].training


def test_without_dynamic_shapes_all_sizes_are_fixed() -> None:
    traced = atlas.trace(nn.Linear(4, 2), torch.randn(3, 4), dynamic_shapes=None)
    with pytest.raises(InputMismatchError, match=r"input input has size 5 in dimension 0; this trace fixes it to 3"):
        traced(torch.randn(5, 4))


def test_there_is_an_end_to_tracing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchatlas.execute.traced._MOST_TRACES", 1)
    traced = atlas.trace(BySize(), torch.randn(8, 3))
    with pytest.raises(InputMismatchError, match=r"x\.shape\[0\] > 4.*make a new TracedModel"):
        traced(torch.randn(2, 3))


# -- inputs and outputs ------------------------------------------------------------------------------------------------


def test_nested_inputs_and_outputs() -> None:
    def inputs(n: int) -> tuple[Any, ...]:
        b = {"a": torch.randn(n, 3), "deep": {"b": torch.randn(n, 3)}}
        return b, (torch.randn(n, 3), [torch.randn(n, 3)])

    traced = atlas.trace(Nested(), *inputs(2))
    given = inputs(4)
    got, wanted = traced(*given), Nested()(*given)
    assert list(got) == ["total", "rest", "text"]
    assert got["text"] == "kept"
    assert got["rest"][1][1] is None
    assert torch.equal(got["rest"][1][0], wanted["rest"][1][0])


def test_the_same_call_by_position_and_by_keyword() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a - 2 * b

    a, b = torch.randn(3), torch.randn(3)
    by_position, by_keyword = atlas.trace(Two(), a, b), atlas.trace(Two(), b=b, a=a)
    for traced in (by_position, by_keyword):
        for got in (traced(a, b), traced(a, b=b), traced(b=b, a=a)):
            assert torch.equal(got, a - 2 * b)


def test_keyword_arguments_and_constants() -> None:
    model, x, mask = Keywords(), torch.randn(3, 4), torch.rand(3, 4)
    traced = atlas.trace(model, x, mask=mask, scale=2.0)
    assert torch.equal(traced(x, mask=mask, scale=2.0), model(x, mask=mask, scale=2.0))
    with pytest.raises(InputMismatchError, match=r"input scale is 3\.0, but 2\.0 was traced"):
        traced(x, mask=mask, scale=3.0)


def test_a_model_keyword_that_is_ours_goes_in_kwargs() -> None:
    class Collides(nn.Module):
        def forward(self, x: Tensor, dynamic_shapes: Tensor) -> Tensor:
            return x + dynamic_shapes

    x = torch.randn(3)
    assert torch.equal(atlas.trace(Collides(), x, kwargs={"dynamic_shapes": x})(x, dynamic_shapes=x), x + x)


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ((torch.zeros(2, 5),), InputMismatchError, "input x has size 5 in dimension 1; this trace fixes it to 4"),
        ((torch.zeros(2, 4, dtype=torch.long),), InputMismatchError, "input x has dtype torch.int64"),
        ((torch.zeros(4),), InputMismatchError, "input x has 1 dimensions"),
        ((torch.zeros(2, 4, device="meta"),), InputMismatchError, "input x is on meta"),
        ((3,), InputMismatchError, "input x is a int, not a tensor"),
        ((), InvalidInputError, r"traced with 1 input \(x\) and called with nothing: pass as many"),
        ((torch.zeros(2, 4), torch.zeros(2, 4)), InvalidInputError, r"called with float32\[2, 4\], float32"),
    ],
    ids=["size", "dtype", "dimensions", "device", "type", "none", "too many"],
)
def test_wrong_inputs_are_named(bad: tuple[Any, ...], error: type[Exception], words: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    traced, before = atlas.trace(Model(), torch.zeros(3, 4)), world()
    with pytest.raises(error, match=words):
        traced(*bad)
    assert world() == before


def test_what_is_no_module_and_what_forward_does_not_take() -> None:
    with pytest.raises(InvalidModelError, match="not function"):
        atlas.trace(lambda x: x, torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="too many positional arguments"):
        atlas.trace(nn.Linear(2, 2), torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(InvalidInputError, match=r'model\.to\("?\'?meta'):
        atlas.TracedModel(nn.Linear(2, 2), torch.zeros(1, 2), device="meta")


def test_a_failing_op_names_node_module_and_line() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return x[index]  # the line

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            with torch.no_grad():
                return self.inner(x, index) * 2

    traced, before = atlas.trace(Outer(), torch.randn(5), torch.tensor([1, 2])), world()
    with pytest.raises(InputMismatchError, match="in module inner") as caught:
        traced(torch.randn(5), torch.tensor([1, 9]))
    assert "inner.index (aten.index.Tensor)" in str(caught.value)
    assert "test_traced.py:" in str(caught.value)
    assert isinstance(caught.value.__cause__, IndexError)
    assert world() == before
    assert torch.is_grad_enabled()  # it failed inside no_grad


# -- training ----------------------------------------------------------------------------------------------------------


def test_parameters_are_shared_and_train() -> None:
    torch.manual_seed(0)
    model = Convolution()
    traced, x = atlas.trace(model, torch.randn(2, 3, 8, 8)), torch.randn(4, 3, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = traced(x).detach()
    traced(x).pow(2).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    optimizer.step()
    assert not torch.equal(traced(x).detach(), before)
    model.head = nn.Linear(4, 2)
    model.eval()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(7)
    assert torch.equal(traced(x), torch.full((4, 2), 7.0))  # as the model is now


def test_grad_mode_is_respected() -> None:
    model = nn.Linear(3, 3)
    traced, x = atlas.trace(model, torch.randn(2, 3)), torch.randn(2, 3)
    assert traced(x).requires_grad
    with torch.no_grad():
        assert not traced(x).requires_grad
    with torch.inference_mode():
        assert traced(x).is_inference()


def test_notes_say_what_is_special() -> None:
    assert atlas.trace(nn.Linear(3, 3).eval(), torch.randn(2, 3)).notes == []
    assert "training mode" in atlas.trace(nn.Linear(3, 3), torch.randn(2, 3)).graph.notes[0]


# -- values ------------------------------------------------------------------------------------------------------------


def test_predict_gives_inputs_output_and_hyperparameters() -> None:
    model, x = Convolution().eval(), torch.randn(2, 3, 8, 8)
    values = atlas.trace(model, x).predict(x)
    convolution = values["block.0.conv2d"]
    assert torch.equal(convolution.output, model.block[0](x))
    assert torch.equal(convolution["inputs"][0], x)
    assert convolution.hyperparameters["weight"] is model.block[0].weight
    assert convolution.hyperparameters["stride"] == (1, 1)
    assert next(iter(values)) == "x"
    assert torch.equal(values["output"].output, model(x))
    with pytest.raises(NodeNotFoundError, match=r"did you mean 'block\.0\.conv2d'"):
        values["block.0.conv2"]
    with pytest.raises(KeyError):
        convolution["weights"]


def test_an_input_given_twice_is_shown_twice() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    x = torch.randn(3)
    assert len(atlas.trace(Square(), x).predict(x)["mul"].inputs) == 2


def test_values_outlive_the_next_run_and_the_training_step() -> None:
    model = nn.BatchNorm1d(3)
    traced, x = atlas.trace(model, torch.randn(4, 3)), torch.randn(4, 3)
    first = traced.predict(x)
    counted = next(entry for name, entry in first.items() if "add_" in name)
    assert counted.inputs[0].item() == 0
    assert counted.output.item() == 1
    traced(x)
    assert model.num_batches_tracked.item() == 2
    assert counted.output.item() == 1


def test_only_the_asked_nodes_are_kept() -> None:
    model, x = Convolution().eval(), torch.randn(2, 3, 8, 8)
    values = atlas.trace(model, x).predict(x, nodes=["block.1", "head.linear"])
    assert [name.rpartition(".")[0] for name in values] == ["block.1", "head"]
    with torch.no_grad():
        # The module's output before the ReLU wrote to it. Its path stands for the node that makes it.
        assert torch.equal(values["block.1"].output, model.block[1](model.block[0](x)))
    with pytest.raises(NodeNotFoundError, match="did you mean"):
        atlas.trace(model, x).predict(x, nodes=["blok.1"])


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(12):
            x = x.sin()
        return x


def test_values_that_were_not_asked_for_are_freed() -> None:
    traced = atlas.trace(Chain(), torch.randn(3))
    seen: list[weakref.ref[Tensor]] = []
    most = 0

    def watch(name: str, value: Tensor) -> None:
        nonlocal most
        seen.append(weakref.ref(value))
        most = max(most, sum(one() is not None for one in seen))

    with torch.no_grad():
        traced.predict(torch.randn(3), callback=watch)
    assert len(seen) == 13
    assert most <= 3  # the caller's input, what an op takes and what it makes
    gc.collect()
    assert not any(one() is not None for one in seen)


def test_a_callback_sees_every_node_in_order_and_its_error_is_the_callers() -> None:
    traced, seen = atlas.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(3, 2)), []
    values = traced.predict(torch.randn(3, 2), callback=lambda name, value: seen.append(name))
    assert seen == ["input", "0.linear", "1.relu"]
    assert len(values) == 0

    def refuse(name: str, value: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        traced.predict(torch.randn(3, 2), callback=refuse)


# -- edits -------------------------------------------------------------------------------------------------------------


def test_editing_a_node_and_a_modules_output() -> None:
    model, x = Convolution().eval(), torch.randn(2, 3, 8, 8)
    traced = atlas.trace(model, x)
    assert torch.equal(traced.run(x), model(x))
    for name in ("block", "block.2", next(n.name for n in traced.graph.nodes if "relu_" in n.operation)):
        got = traced.run(x, edit={name: torch.zeros_like})
        assert torch.equal(got, model.head.bias.expand(2, 2)), name
    assert torch.equal(traced.run(x), model(x))
    with pytest.raises(NodeNotFoundError, match="did you mean 'block"):
        traced.run(x, edit={"blok": torch.zeros_like})


@pytest.mark.parametrize("fallback", [None, "capture"])
def test_an_edit_that_fails_is_named_with_its_module(fallback: str | None) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.block(x)
            return made * 2 if fallback and float(made.sum()) > 1e9 else made

    def broken(value: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such head\nat all")

    x = torch.randn(2, 3)
    traced = atlas.trace(Reads(), x, fallback=fallback)
    expected = r"edit\['block'\] failed at block\.1\.\S+ \(aten\.\S+\) in module block\.1.*: ValueError: no such head$"
    with pytest.raises(CaptureError, match=expected) as caught:
        traced.run(x, edit={"block": broken})
    assert str(caught.value).startswith("edit['block']")
    assert isinstance(caught.value.__cause__, ValueError)


def test_editing_a_module_edits_each_of_its_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.layer(x * 2)

    x = torch.randn(2, 3)
    assert torch.equal(atlas.trace(Twice(), x).run(x, edit={"layer": torch.ones_like}), torch.full((2, 3), 2.0))


def test_a_path_stands_for_all_values_of_its_node() -> None:
    model, x = nn.Sequential(nn.AdaptiveMaxPool1d(2), nn.ReLU()), torch.randn(2, 3, 8)
    traced = atlas.trace(model, x)
    values, places = traced.predict(x)["0"].output
    assert torch.equal(values, model[0](x))
    assert places.dtype is torch.int64
    with pytest.raises(CaptureError, match=r"must be Tensor, not tuple\. The value there is a tuple of 2\.$"):
        traced.run(x, edit={"0": torch.zeros_like})
    assert traced.run(x, edit={"0": lambda pair: (torch.ones_like(pair[0]), pair[1])}).eq(1).all()


def test_a_module_of_several_values_is_not_edited_as_one() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.sin(), x.cos()

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.pair(x)
            return a * b

    x = torch.randn(3)
    traced = atlas.trace(Uses(), x)
    with pytest.raises(InvalidInputError, match=r"several values.*pair\.sin.*pair\.cos"):
        traced.run(x, edit={"pair": torch.zeros_like})
    assert torch.equal(traced.run(x, edit={"pair.sin": torch.ones_like}), x.cos())
    values = traced.predict(x, nodes=["pair"])
    assert list(values) == ["pair.sin", "pair.cos"]
    with pytest.raises(NodeNotFoundError, match=r"what 2 nodes make; name one: pair\.sin, pair\.cos"):
        values["pair"]


# -- tensors that forward keeps ----------------------------------------------------------------------------------------


class BiasCache(nn.Module):
    """As LeViT and TinyViT: in eval mode a table of parameters is looked up once and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.biases, self.cache = nn.Parameter(torch.randn(5)), dict[str, Tensor]()
        self.register_buffer("places", torch.tensor([0, 4, 2]))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x + self.biases[self.places]
        if "cpu" not in self.cache:
            self.cache["cpu"] = self.biases[self.places]
        return x + self.cache["cpu"]


class LastSeen(nn.Module):
    """Keeps something to look at, which it never reads."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.softmax(-1)
        return self.last * 2


class SizeCache(nn.Module):
    """As rotary embeddings: a table grows with the longest input so far."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(x.shape[0]).cos()
        return x + self.table[: x.shape[0], None]


class Growing(nn.Module):
    """As a cache of keys: what it has seen before is part of the result."""

    seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.seen * 2


class Smoothed(nn.Module):
    """Moves by so little at a time that it would pass for rounding."""

    mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.mean = torch.zeros(3) if self.mean is None else self.mean * 0.99999 + x.mean(0) * 0.00001
        return x + self.mean


class BySizeOnly(nn.Module):
    """Reads what it kept only when the next input has the same size."""

    state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.state is None or self.state.shape != x.shape:
            self.state = torch.zeros_like(x)
        self.state = self.state + x
        return self.state


@pytest.mark.parametrize("make", [BiasCache, LastSeen, SizeCache])
def test_a_model_that_fills_a_cache_of_its_own_traces(make: type[nn.Module]) -> None:
    model, x = make().eval(), torch.randn(4, 3)
    before = {name: dict(item) if isinstance(item, dict) else item for name, item in vars(model).items()}
    traced = atlas.trace(model, x)
    assert vars(model) == before
    (note,) = traced.notes
    assert note.startswith("the model keeps tensors in self.")
    for batch in (4, 7, 2):
        other = torch.randn(batch, 3)
        assert torch.equal(traced(other), model(other))


def test_a_cache_follows_the_parameters_that_it_is_made_of() -> None:
    model, x = BiasCache().eval(), torch.randn(4, 3)
    traced = atlas.trace(model, x)
    traced(x).sum().backward()
    assert model.biases.grad is not None
    with torch.no_grad():
        model.biases.zero_()
    assert torch.equal(traced(x), x)


@pytest.mark.parametrize("make", [Growing, Smoothed, BySizeOnly])
@pytest.mark.parametrize("check", [True, False])
def test_a_model_whose_result_depends_on_what_it_kept_is_refused(make: type[nn.Module], check: bool) -> None:
    model = make().eval()
    with pytest.raises(CaptureError, match=r"assigns self\.\w+ in forward, and what it returns depends on them"):
        atlas.TracedModel(model, torch.randn(4, 3), check=check)
    assert not vars(model).keys() & {"seen", "mean", "state"}


# -- the graph ---------------------------------------------------------------------------------------------------------


def test_the_graph_is_like_any_other(tmp_path: Any) -> None:
    traced = atlas.trace(Convolution().eval(), torch.randn(1, 3, 8, 8))
    assert [node.kind for node in traced.topological_order][-1] == "output"
    assert traced.graph.scopes["block.0"].type == "Conv2d"
    loaded = atlas.load(traced.graph.save(tmp_path / "model.atlas"))
    assert loaded.identical(traced.graph)
    assert re.fullmatch(r"<TracedModel of Convolution: \d+ nodes; x \(s\d+, 3, s\d+, s\d+\)>", repr(traced))


def test_results_of_a_device_without_float64_are_compared() -> None:
    one = torch.ones(3)
    results: list[list[Any]] = [[numbers.as_subclass(Elsewhere)] for numbers in (one, one + 2**-20)]
    assert difference(*results) == 2**-20


def test_what_the_check_is_for() -> None:
    calls: list[None] = []

    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(None)  # torch.export takes their number for a constant
            return x + len(calls)

    with pytest.raises(CaptureError, match="does not compute what Hidden computes"):
        atlas.trace(Hidden(), torch.randn(3))
    atlas.TracedModel(Hidden(), torch.randn(3), check=False)


# -- as DLBacktrace has it ---------------------------------------------------------------------------------------------


def test_values_by_the_keys_of_dlbacktrace() -> None:
    model, x = Convolution().eval(), torch.randn(2, 3, 8, 8)
    found = atlas.trace(model, x).predict(x)["block.0.conv2d"]
    assert found["output_values"] is found.output
    assert torch.equal(found["input_values"][0], x)
    assert found["layer_hyperparams"]["weight"] is model.block[0].weight
    assert (found["node_type"], found["layer_type"], found["func_name"]) == ("call_function", "convolution", "conv2d")
    assert found["input_sources"] == ["x"]
    assert len(found["output_children"]) == 1
    assert [found[key] is not None for key in found.keys()]  # noqa: SIM118  # it is no mapping
    with pytest.raises(KeyError, match="output_values"):
        found["layer"]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "nonsense", 3.5])
def test_a_device_that_is_not_here(device: object) -> None:
    if torch.cuda.is_available() and str(device).startswith("cuda"):
        pytest.skip("it is here")
    with pytest.raises(InvalidInputError, match=r"cannot be used here.*Leave device= out"):
        atlas.TracedModel(Convolution().eval(), torch.randn(2, 3, 8, 8), device=device)


class DynamicCache:
    """What models of transformers return beside their result: a class that torch.export does not know."""


class Caches(torch.nn.Module):
    def forward(self, x: torch.Tensor, use_cache: bool = True) -> Any:
        return (x + 1, DynamicCache()) if use_cache else x + 1


def test_a_cache_in_the_output_can_be_turned_off() -> None:
    with pytest.raises(CaptureError, match=r"use_cache=False.*fallback=\"capture\""):
        atlas.trace(Caches().eval(), torch.ones(2))
    traced = atlas.trace(Caches().eval(), torch.ones(2), use_cache=False)
    assert traced(torch.ones(2), use_cache=False).tolist() == [2, 2]
