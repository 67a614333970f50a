"""The zoo is what it claims to be, in plain torch: the laws can then blame the capture."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import support
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from zoo import ZOO, Specimen, leaves_of, loss_of, specimens, tensors_in

every = pytest.mark.parametrize("entry", ZOO, ids=str)
pytestmark = pytest.mark.filterwarnings("error")


def global_state() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
    )


STATE_AT_IMPORT = global_state()


def run(entry: Specimen) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    return run_call(entry, entry.build())


def run_call(entry: Specimen, call: Any) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """Outputs, and the gradient of every leaf after a backward if the specimen trains."""
    model, args, kwargs = call
    outputs = model(*args, **kwargs)
    if entry.trains:
        loss_of(outputs).backward()
    gradients = {name: leaf.grad for name, leaf in leaves_of(model, args, kwargs).items()}
    return list(tensors_in(outputs)), gradients


def assert_same(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def test_there_are_enough_of_them() -> None:
    assert len(ZOO) >= 48


def test_names_are_unique() -> None:
    names = [entry.name for entry in ZOO]
    assert len(names) == len(set(names))


def test_every_specimen_says_what_it_stands_for() -> None:
    reasons = [entry.stands_for for entry in ZOO]
    assert all(reasons)
    assert len(reasons) == len(set(reasons))
    assert not [reason for reason in reasons if "\n" in reason]


def test_filters() -> None:
    assert specimens() == ZOO
    assert [entry.name for entry in specimens(name="tied_weights")] == ["tied_weights"]
    assert {entry.trains for entry in specimens(trains=False)} == {False}
    assert len(specimens(fakes=True)) + len(specimens(fakes=False)) == len(ZOO)


@every
def test_runs(entry: Specimen) -> None:
    outputs, gradients = run(entry)
    assert outputs
    if entry.trains:
        arrived = [gradient for gradient in gradients.values() if gradient is not None]
        assert arrived, "backward reached no leaf"
        assert all(gradient.to_dense().isfinite().all() for gradient in arrived)


@pytest.mark.parametrize("entry", specimens(trains=False), ids=str)
def test_what_does_not_train_has_nothing_to_train_from(entry: Specimen) -> None:
    model, args, kwargs = entry.build()
    assert not [out for out in tensors_in(model(*args, **kwargs)) if out.requires_grad]


@every
def test_two_builds_are_equal(entry: Specimen) -> None:
    assert_same(run(entry), run(entry))


@every
def test_building_changes_nothing_but_the_seed(entry: Specimen) -> None:
    entry.build()
    assert global_state() == STATE_AT_IMPORT  # not "as before the build": an earlier test may have let it leak


def built_fake(entry: Specimen, mode: FakeTensorMode) -> Any:
    with mode:
        return entry.build()


def copied_fake(entry: Specimen, mode: FakeTensorMode) -> Any:
    call = entry.build()
    with FakeCopyMode(mode):
        return copy.deepcopy(call)


def run_fake(entry: Specimen, make: Callable[[Specimen, FakeTensorMode], Any]) -> Any:
    mode = FakeTensorMode()
    call = make(entry, mode)
    with mode:
        return run_call(entry, call)


def layout(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.layout)


@pytest.mark.parametrize("make", [built_fake, copied_fake])
@pytest.mark.parametrize("entry", specimens(fakes=True), ids=str)
def test_runs_on_fake_tensors(entry: Specimen, make: Callable[[Specimen, FakeTensorMode], Any]) -> None:
    if make is copied_fake and entry.name == "own_generator":
        pytest.skip("torch 2.13 cannot deep-copy a Generator into fake tensors")
    real, real_gradients = run(entry)
    fake, fake_gradients = run_fake(entry, make)
    assert all(isinstance(out, FakeTensor) for out in fake)
    assert [layout(out) for out in fake] == [layout(out) for out in real]
    assert {name: layout(gradient) for name, gradient in fake_gradients.items()} == {
        name: layout(gradient) for name, gradient in real_gradients.items()
    }


@pytest.mark.parametrize("make", [built_fake, copied_fake])
@pytest.mark.parametrize("entry", specimens(fakes=False), ids=str)
def test_what_cannot_be_faked_fails(entry: Specimen, make: Callable[[Specimen, FakeTensorMode], Any]) -> None:
    with pytest.raises((RuntimeError, AssertionError, TypeError)):
        run_fake(entry, make)


def test_loss_reads_every_floating_output() -> None:
    tree = {"a": torch.tensor(1.0), "b": [torch.tensor([2.0, 3.0]), (None, "x", torch.tensor(7))]}
    assert loss_of(tree).item() == 6


@pytest.mark.parametrize("build", [support.tiny_gpt2, support.tiny_llama, support.tiny_bert])
def test_tiny_transformers_train(build: Any) -> None:
    model, inputs = build()
    model(**inputs).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_torchvision_loads_more_than_once() -> None:
    assert support.load_torchvision() is support.load_torchvision()
