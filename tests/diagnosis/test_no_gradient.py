"""`.grad` of the result of an op is None: what the program is told to do about it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import torchatlas as atlas

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
_BEGIN = """import torch
model, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
w = torch.ones(3, requires_grad=True)
"""
_UPDATES = [
    "w.sum().backward()\nw = w - 0.1 * w.grad\nw.grad.zero_()",
    "w.sum().backward()\ng = w.grad\nw = w - 0.1 * g\nw.grad.zero_()",
    "b = w.exp().detach().requires_grad_()\n(w + b).sum().backward()\nw, b = w - w.grad, b - b.grad\nb.grad.zero_()",
]
_ACTIVATIONS = [
    "h = model(x)\nh.relu().sum().backward()\nh.grad.norm()",
    "h = model(x)\nh = h + h.relu()\nh.sum().backward()\nprint(h.grad.norm())",
    "h = torch.nn.functional.linear(\n    x, model.weight\n)\nh.sum().backward()\nh.grad.norm()",
]


@pytest.mark.parametrize("program", [*_UPDATES, *_ACTIVATIONS])
def test_an_update_by_hand_writes_to_the_leaf_and_an_activation_retains(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_BEGIN + program)
    visit = atlas.doctor(only="no-gradient")
    with pytest.raises(AttributeError, match="NoneType"), visit:
        runpy.run_path(str(script))
    (finding,) = visit.findings
    assert ("update by hand" in finding.why) == (program in _UPDATES)
    assert ("h.retain_grad()" in finding.fix) == (program in _ACTIVATIONS)


def test_an_attribute_is_no_variable_of_that_name(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_BEGIN + "model.w, w = w, w * 2\nmodel.w.grad.norm()")
    visit = atlas.doctor(only="no-gradient")
    with pytest.raises(AttributeError, match="NoneType"), visit:
        runpy.run_path(str(script))
    assert not visit.findings
