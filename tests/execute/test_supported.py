"""docs/supported-operations.md is what its benchmark writes: checked on a handful of programs, so it cannot age."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from zoo import ZOO, Specimen

from benchmarks.supported import PAGE, collected, is_equal, page, replayed_operations, traced_operations
from torchatlas.operations import operation_type

SAMPLE = ["residual_inplace_relu", "einsum", "losses", "linalg", "scatter_and_gather", "multi_output_operators"]


def rows(text: str) -> dict[str, tuple[str, int, int]]:
    """Operator -> the section it is in, and in how many programs it was traced and replayed."""
    found, kind = {}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            kind = line.removeprefix("## ")
        elif match := re.fullmatch(r"\| `(\S+)` \| (\d*) \| (\d*) \|", line):
            found[match[1]] = kind, int(match[2] or 0), int(match[3] or 0)
    return found


ROWS = rows(PAGE.read_text())
sample = pytest.mark.parametrize("specimen", [one for one in ZOO if one.name in SAMPLE], ids=str)


def test_the_sample_is_of_the_zoo() -> None:
    assert set(SAMPLE) <= {specimen.name for specimen in ZOO}


@sample
def test_what_is_traced_is_on_the_page(specimen: Specimen) -> None:
    found = traced_operations(specimen)
    assert found
    assert {name for name in found if not ROWS.get(name, ("", 0, 0))[1]} == set()


@sample
def test_what_is_replayed_is_on_the_page(specimen: Specimen) -> None:
    found = replayed_operations(specimen)
    assert found
    if specimen.name == "losses" and "aten.aminmax.default" not in found:
        found = found - {"aten.max.default", "aten.min.default"}  # what ctc_loss calls in its place, up to torch 2.12
    assert {name for name in found if not ROWS.get(name, ("", 0, 0))[2]} == set()


def test_every_operator_is_in_its_category() -> None:
    assert len(ROWS) > 200
    assert {name: kind for name, (kind, _, _) in ROWS.items() if operation_type(name).value != kind} == {}


def test_only_what_ran_is_counted() -> None:
    traced = collected([{"aten.mm.default", "aten.relu.default"}, {"aten.mm.default"}, None])
    found = rows(page(traced, Counter({"aten.relu.default": 1, "aten.addmm.default": 4})))
    assert found == {
        "aten.relu.default": ("activation", 1, 1),
        "aten.addmm.default": ("matmul", 0, 4),
        "aten.mm.default": ("matmul", 2, 0),
    }


def test_a_difference_is_not_equal() -> None:
    x = torch.tensor([1.0, float("nan")], dtype=torch.float64)
    assert is_equal({"y": [x, 2, "text"]}, {"y": [x.clone(), 2, "text"]})
    assert not is_equal({"y": x}, {"y": x + 1e-15})
    assert not is_equal({"y": x}, {"z": x})
    assert not is_equal([x, 2], [x, 3])
    assert not is_equal(["text", x], 3.0)
    assert not is_equal(x, None)
