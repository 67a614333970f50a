"""Fake captures: the same graph as a real run, with nothing computed or allocated and the user's model untouched."""

from __future__ import annotations

import copy
import sys
import textwrap
import warnings
from typing import Any

import children
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from zoo import Specimen, specimens

import torchatlas as atlas
from torchatlas.errors import CaptureError, InvalidInputError

# Where torch itself may run other ops on fake tensors (some depend on its cache): what comes out is still the same.
OTHER_OPS = {
    "inplace_on_view": "a view whose base was written is made again by its own op, not by as_strided",
    "disjoint_column_writes": "the same",
    "indexed_writes": "the same",
    "losses": "one_hot cannot look at the largest class",
    "lstm": "the fused layer copies what its real kernel does not",
    "bidirectional_lstm": "the same",
    "module_made_in_forward": "a fake parameter is made by detaching",
}
OTHER_PEAK = {"key_value_cache": "the caller holds on to the real cache, nobody to its fake copy"}


def operations(graph: atlas.Graph) -> list[str]:
    return [node.operation for node in graph.where(kind="op")]


@pytest.mark.parametrize("specimen", specimens(fakes=True), ids=str)
def test_a_fake_run_has_the_ops_and_shapes_of_a_real_one(specimen: Specimen) -> None:
    if specimen.name == "own_generator":
        pytest.skip("torch 2.13 cannot deep-copy a Generator into fake tensors")
    model, args, kwargs = specimen.build()
    real = atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains)
    model, args, kwargs = specimen.build()
    fake = atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains, fake=True)
    assert fake.scopes[""].parameters == real.scopes[""].parameters
    results = [[(v.shape, v.dtype) for v in g.where(kind="output")[0].inputs] for g in (fake, real)]
    assert results[0] == results[1]
    if specimen.name in OTHER_OPS:
        return
    assert operations(fake) == operations(real)
    for one, other in zip(fake.where(kind="op"), real.where(kind="op"), strict=True):
        assert one.name == other.name
        assert [(v.shape, v.dtype) for v in one.outputs] == [(v.shape, v.dtype) for v in other.outputs]
    if specimen.name not in OTHER_PEAK:
        assert fake.peak_bytes == pytest.approx(real.peak_bytes, rel=0.02, abs=64)


class Sees(nn.Module):
    """Tells what its parameters and inputs are while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        SEEN.append((type(self.linear.weight.data), type(x), self))
        return self.linear(x)


SEEN: list[Any] = []


def test_the_users_model_is_untouched() -> None:
    model, x = Sees(), torch.ones(1, 3, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    SEEN.clear()
    graph = atlas.capture(model, x, backward=True, optimizer=optimizer, fake=True)
    weight_type, input_type, ran = SEEN[0]
    assert issubclass(weight_type, FakeTensor)
    assert issubclass(input_type, FakeTensor)
    assert ran is not model
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is None
    assert not optimizer.state
    assert type(model.linear.weight) is nn.Parameter
    assert torch.equal(state, torch.get_rng_state())
    assert len(graph.where(phase="optimizer")) > 0


MEASURE = """
    import resource, torch
    from torch import nn
    import torchatlas as atlas

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8192, 8192, bias=False) for _ in range(8))
        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return x

    atlas.capture(lambda: nn.Linear(3, 3), torch.ones(1, 3), fake=True, backward=True)  # what is imported once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = atlas.capture(Large, torch.empty(4, 8192, device="meta"), fake=True, backward=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(grown, graph.scopes[""].parameter_bytes, graph.peak_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_two_gigabytes_of_weights_take_no_memory() -> None:
    kilobytes, weights, peak = map(int, children.python(textwrap.dedent(MEASURE)).split())
    assert weights == 8 * 8192 * 8192 * 4  # 2 GiB
    assert peak > 2 * weights  # gradients as well
    assert kilobytes < 100_000


# -- what may stand for the model ------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh())


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = mlp()
    graph = atlas.capture(model, torch.empty(2, 3, device="meta"), fake=True)
    assert graph.where(kind="output")[0].inputs[0].shape == (2, 4)
    assert {value.device for value in graph.values} == {"cpu"}
    assert all(parameter.device.type == "meta" for parameter in model.parameters())


def test_a_function_that_builds_the_model() -> None:
    graph = atlas.capture(mlp, torch.ones(2, 3), fake=True)
    assert "1.tanh" in graph
    assert operations(graph) == operations(atlas.capture(mlp(), torch.ones(2, 3)))


def test_a_class() -> None:
    assert "linear.addmm" in atlas.capture(Small, torch.ones(2, 3), fake=True)


def test_a_plain_function() -> None:
    graph = atlas.capture(lambda x, y: (x * y).sum(), torch.ones(2), torch.ones(2), fake=True)
    assert operations(graph) == ["aten.mul.Tensor", "aten.sum.default"]


def test_a_function_of_any_number_of_arguments_is_the_program() -> None:
    graph = atlas.capture(lambda *xs: xs[0] + xs[1], torch.ones(2), torch.ones(2), fake=True)
    assert operations(graph) == ["aten.add.Tensor"]


def test_a_function_without_arguments_is_the_program() -> None:
    assert operations(atlas.capture(lambda: torch.ones(2) + 1, fake=True)) == ["aten.ones.default", "aten.add.Tensor"]


def test_an_optimizer_and_a_function_that_makes_one() -> None:
    model = mlp()
    instance = torch.optim.Adam(model.parameters())
    first = atlas.capture(model, torch.ones(2, 3), optimizer=instance, fake=True)
    second = atlas.capture(model, torch.ones(2, 3), optimizer=torch.optim.Adam, fake=True)
    third = atlas.capture(mlp, torch.ones(2, 3), optimizer=torch.optim.Adam, fake=True)
    assert operations(first) == operations(second) == operations(third)
    assert {node.scope.path for node in first.where(phase="optimizer")} == {"Adam"}
    assert {storage.role for storage in first.storages} >= {"optimizer state", "gradient", "parameter"}


# -- what cannot be faked --------------------------------------------------------------------------------------------


class ReadsValues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            return x
        return -x


def test_a_program_that_reads_values_is_refused_by_its_line() -> None:
    with pytest.raises(CaptureError, match=r"fake=False") as caught:
        atlas.capture(ReadsValues(), torch.ones(2), fake=True)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    cause = "".join(getattr(caught.value.__cause__, "__notes__", []))
    assert "test_fake.py" in text + cause
    assert "ReadsValues.forward" in text + cause


@pytest.mark.parametrize("specimen", specimens(name="data_dependent_loop") + specimens(name="boolean_mask"), ids=str)
def test_data_dependent_programs_are_refused(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    with pytest.raises(CaptureError, match="reads the values"):
        atlas.capture(model, *args, kwargs=kwargs, fake=True)


def test_a_builder_that_builds_no_model_is_refused() -> None:
    with pytest.raises(CaptureError, match="returned int"):
        atlas.capture(lambda: 3, torch.ones(2), fake=True)


@pytest.mark.parametrize("values", ["all", "stats"])
def test_there_are_no_values_to_record(values: str) -> None:
    with pytest.raises(InvalidInputError, match="fake"):
        atlas.capture(mlp(), torch.ones(2, 3), fake=True, values=values)


def test_a_builder_may_convert_the_model_it_made():
    graph = atlas.capture(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16),
        torch.empty(2, 4, dtype=torch.bfloat16),
        backward=True,
        fake=True,
    )
    assert {value.dtype for value in graph.values if value.role == "parameter"} == {"bfloat16"}
    assert {storage.device for storage in graph.storages} == {"cpu"}


def test_a_builder_that_copies_layers_is_not_warned_of_torchs_own_copying() -> None:
    """torch says it once in a process, so this can fail in the first test only that copies fake layers."""

    def build() -> nn.Module:
        warnings.warn("the builder's own", UserWarning, stacklevel=1)
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        atlas.capture(build, torch.randn(3, 2, 16), fake=True)
    assert [str(each.message) for each in caught] == ["the builder's own"]


def test_a_fake_kernel_that_refuses_a_dtype_is_named() -> None:
    """As torch's own of aten._grouped_mm does with float32, which the real kernel takes."""

    @torch.library.custom_op("tests_fake::narrow", mutates_args=())
    def narrow(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @narrow.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.dtype == torch.bfloat16, lambda: f"Expected BF16 but got x.dtype={x.dtype}.")
        return torch.empty_like(x)

    class Narrow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return narrow(super().forward(x))

    x = torch.ones(2, 4)
    assert "tests_fake.narrow.default" in operations(atlas.capture(Narrow(4, 4), x))
    with pytest.raises(CaptureError, match=r"fake kernel of tests_fake.narrow.default at .*got x.dtype") as caught:
        atlas.capture(Narrow(4, 4), x, fake=True)
    assert "fake=False" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    notes = [*caught.value.__cause__.__notes__, *getattr(caught.value, "__notes__", [])]
    assert not any("hint" in note for note in notes), "the inputs are right"
    half = atlas.capture(Narrow(4, 4).bfloat16(), x.bfloat16(), fake=True)
    assert "tests_fake.narrow.default" in operations(half)


def test_an_error_of_the_program_under_fake_tensors_is_its_own() -> None:
    with pytest.raises(RuntimeError, match=r"reduction dim|cannot be multiplied") as caught:
        atlas.capture(nn.Linear(4, 4), torch.ones(2, 5), fake=True)
    assert not isinstance(caught.value, atlas.AtlasError)
