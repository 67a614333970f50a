"""Every module of the zoo is traced and equals itself, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from execute.tracing import MODULES, NOT_EXACT, REFUSED, TRACED, built, interpreted, traced, untouched
from support import sampled
from test_laws import assert_same_state, same, state_of, world
from zoo import Specimen, leaves_of, loss_of, tensors_in

import torchatlas as atlas
from torchatlas.capturing.exported import graph_of_export
from torchatlas.errors import CaptureError
from torchatlas.torch_private import functorch_depth, pytree

every_traced = pytest.mark.parametrize("specimen", sampled(TRACED, 3), ids=lambda specimen: specimen.name)
every_module = pytest.mark.parametrize("specimen", sampled(MODULES, 3), ids=lambda specimen: specimen.name)
both_modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def assert_equal(ours: Any, theirs: Any) -> None:
    mine, other = list(tensors_in(ours)), list(tensors_in(theirs))
    assert len(mine) == len(other)
    assert all(same(a.detach(), b.detach()) for a, b in zip(mine, other, strict=True))


@both_modes
@every_traced
def test_a_traced_model_equals_the_model(specimen: Specimen, training: bool) -> None:
    found, _ = traced(specimen.name, training)
    model, args, kwargs = built(specimen, training)
    _, our_args, our_kwargs = built(specimen, training)
    with untouched(found.model):
        for seed in (3, 4):  # twice: what a run leaves in buffers counts in the next
            torch.manual_seed(seed)
            wanted = model(*args, **kwargs)
            torch.manual_seed(seed)
            got = found(*our_args, **our_kwargs)
            assert pytree.tree_structure(got) == pytree.tree_structure(wanted)
            if specimen.name in NOT_EXACT and not training:
                assert any("differs from the model by up to" in note for note in found.notes)
                torch.testing.assert_close(got, wanted)
            else:
                assert_equal(got, wanted)
            assert_equal(dict(found.model.named_buffers()), dict(model.named_buffers()))
            if specimen.name == "key_value_cache":  # the caller's dictionary is filled by the model alone
                assert any("changes a list or dictionary" in note for note in found.notes)
                return
            assert_equal((our_args, our_kwargs), (args, kwargs))  # some models write to their inputs


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_with_the_reason(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    model, args, kwargs = next(one for one in MODULES if one.name == name).build()
    with pytest.raises(CaptureError, match=REFUSED[name]) as caught:
        atlas.trace(model, *args, kwargs=kwargs)
    if "values of tensors" in REFUSED[name]:
        assert "zoo/control.py:" in str(caught.value)
    assert "".join(capfd.readouterr()) == ""


@every_module
def test_tracing_leaves_everything_as_found(specimen: Specimen, capfd: pytest.CaptureFixture[str]) -> None:
    model, args, kwargs = specimen.build()
    before, process, depth = state_of(model, args, kwargs, None), world(), functorch_depth()
    refused = False
    try:
        atlas.trace(model, *args, kwargs=kwargs)
    except CaptureError:
        refused = True
    assert refused == (specimen.name in REFUSED)
    assert world() == process
    assert functorch_depth() == depth
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        pass  # raises when a transform that was interrupted still forbids them
    assert_same_state(before, state_of(model, args, kwargs, None))
    assert "".join(capfd.readouterr()) == ""


# -- law 10: captured, exported or fx-traced, the same model costs the same --------------------------------------------


@every_traced
def test_a_traced_model_costs_the_macs_of_the_captured_one(specimen: Specimen) -> None:
    found, _ = traced(specimen.name, True)
    model, args, kwargs = built(specimen, True)
    report = atlas.cost(found.graph)
    if specimen.name == "forward_mode":  # export has the ops of the primal alone: the report says "at least"
        assert report.at_least
        return
    assert report.macs == atlas.cost(atlas.capture(model, *args, kwargs=kwargs)).macs


# -- law 11: a recorded value is what the node produced, even if a later op overwrites its memory ----------------------


@both_modes
@every_traced
def test_recorded_values_are_what_nodes_took_and_made(specimen: Specimen, training: bool) -> None:
    found, program = traced(specimen.name, training)
    _, args, kwargs = built(specimen, training)
    uninitialized = specimen.name in ("disjoint_column_writes", "resized")
    torch.use_deterministic_algorithms(uninitialized)  # memory that nobody wrote is NaN then
    try:
        with untouched(found.model):
            torch.manual_seed(5)
            values = found.predict(*args, **kwargs)
        _, args, kwargs = built(specimen, training)
        with untouched(found.model):
            torch.manual_seed(5)
            expected = interpreted(program, found.model, args, kwargs)
    finally:
        torch.use_deterministic_algorithms(False)
    variant, _ = found._matching(args, kwargs)
    _, numbers = graph_of_export(program, found.model, pytree.tree_leaves((args, kwargs)))
    fx_names = {variant.graph.nodes[number].name: fx_name for fx_name, number in numbers.items()}
    assert set(values) == set(fx_names)
    for name, entry in values.items():
        taken, made = expected[fx_names[name]]
        if name != "output":
            assert_equal(entry.output, made)
        assert_equal(entry.inputs, taken)


# -- training ----------------------------------------------------------------------------------------------------------

# Backward passes that export does not see. All but the hook on a tensor, which leaves no trace, carry a note.
OTHER_GRADIENTS = {
    "custom_function": "own backward",
    "checkpoint_reentrant": "own backward",
    "checkpoint_reentrant_dropout": "own backward",
    "inference_mode_inside": "torch.inference_mode is not traced",
    "module_backward_hook": "own backward",
    "tensor_gradient_hook": None,
}


@pytest.mark.parametrize("specimen", [one for one in TRACED if one.trains], ids=lambda specimen: specimen.name)
def test_gradients_are_the_models_own(specimen: Specimen) -> None:
    found, _ = traced(specimen.name, True)
    model, args, kwargs = built(specimen, True)
    _, our_args, our_kwargs = built(specimen, True)
    if specimen.name in OTHER_GRADIENTS:
        reason = OTHER_GRADIENTS[specimen.name]
        assert reason is None or any(reason in note for note in found.notes)
        return
    assert not any("gradients" in note for note in found.notes)
    with untouched(found.model):
        torch.manual_seed(6)
        loss_of(model(*args, **kwargs)).backward()
        torch.manual_seed(6)
        loss_of(found(*our_args, **our_kwargs)).backward()
        ours = leaves_of(found.model, our_args, our_kwargs)
        for name, leaf in leaves_of(model, args, kwargs).items():
            assert same(ours[name].grad, leaf.grad), name
