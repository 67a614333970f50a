"""The report before tracing: what it says, and that it never raises."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from execute.tracing import REFUSED
from test_laws import assert_same_state, state_of
from torch import nn
from zoo import ZOO, Specimen

from torchatlas.execute.check_compatibility import check_compatibility

SOME = ["mlp", "dict_in_dict_out", "tied_weights", "keyword_only_tensors", *REFUSED]


@pytest.mark.parametrize("specimen", [one for one in ZOO if one.name in SOME], ids=lambda specimen: specimen.name)
def test_it_says_whether_a_model_traces_and_leaves_it_as_found(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    before = state_of(model, args, kwargs, None)
    report = check_compatibility(model, *args, kwargs=kwargs)
    assert_same_state(before, state_of(model, args, kwargs, None))
    assert bool(report) == (specimen.name not in REFUSED)
    assert (report.reason == "") == bool(report)
    if not report:
        assert re.search(REFUSED[specimen.name], report.reason)
        assert report.reason in str(report).replace("\n", " ") or "no: " in str(report)
    assert (report.value_bytes is None) == (report.memory_reason != "")


def test_what_a_report_holds() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    report = check_compatibility(model, torch.randn(2, 8))
    assert report
    assert (report.training, report.parameters, report.devices, report.dtypes) == (False, 36, ("cpu",), ("float32",))
    (shape,) = report.input_shapes.values()
    assert shape[1] == 8
    assert isinstance(shape[0], str)
    assert report.value_bytes == 2 * (2 * 4 * 4)  # what the two ops make
    assert report.peak_bytes is not None
    assert report.to_dict()["traces"] is True
    text = str(report)
    for words in ("Sequential, 36 parameters", "yes", "eval", "input input", f"({shape[0]}, 8)", "64 B"):
        assert words in text, text
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.traces = False  # type: ignore[misc]


@pytest.mark.parametrize("model", [lambda x: x, 3, nn.Linear], ids=["function", "number", "class"])
def test_what_is_no_module_is_a_report_too(model: Any) -> None:
    report = check_compatibility(model, torch.randn(2))
    assert not report
    assert report.training is None
    assert "torch.nn.Module" in report.reason


def test_wrong_inputs_and_training_mode() -> None:
    report = check_compatibility(nn.Linear(3, 3), torch.randn(2, 4))
    assert not report
    assert "reduction dim" in report.reason
    assert "model.eval()" in str(report)
    assert not check_compatibility(nn.Linear(3, 3))
