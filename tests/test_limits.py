"""docs/limits.md promises a test for every row: each must exist. It excuses, by name, what is not proved to the bit."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import Entry
from torch import nn

import torchatlas as atlas
from benchmarks import verified

ROOT = Path(__file__).parent.parent
PAGE = [line for line in (ROOT / "docs" / "limits.md").read_text().splitlines() if line.startswith("| ")]
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE]
ROWS = [dict(zip(("what", "how", "why", "tests"), cells, strict=True)) for cells in CELLS if cells[-1] != "shown by"]


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"][:60])
def test_every_row_is_shown_by_a_test(row: dict[str, str]) -> None:
    assert row["how"] in ("captured", "partly", "not")
    assert row["how"] == "captured" or row["why"]
    named = re.findall(r"`([\w/]+)(?:::(\w+))?`", row["tests"])
    assert named, row["tests"]
    for file, test in named:
        path = ROOT / "tests" / f"{file}.py"
        assert path.exists(), path
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert not test or test in names, f"{path.name} has no {test}"


# -- benchmarks/verified.py --------------------------------------------------------------------------------------------


class WrittenByNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.detach().numpy()[:] = 7
        return y + 1


class EndsTheProcess(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(3)


def entry(model: Callable[[], nn.Module], name: str = "a model that no row names", trains: bool = True) -> Entry:
    return Entry(name, lambda: (model(), (torch.ones(2, 3),), {}), trains=trains)


def layer() -> nn.Module:
    return nn.Linear(3, 2)


def test_a_proof_in_eval_mode_and_of_a_training_step() -> None:
    found = [verified.check(entry(layer), mode) for mode in ("forward", "training")]
    assert [one.verdict for one in found] == ["equal", "equal"]
    assert all(one.equal and one.compared >= one.ops for one in found)
    assert found[1].ops > 20 > found[0].ops  # with backward and AdamW


def test_what_differs_is_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = atlas.capture

    def damaged(*args: Any, **kwargs: Any) -> Any:
        graph = capture(*args, **kwargs)
        next(np.asarray(a) for key, a in graph.recorded.items() if key.startswith("-1:storage/"))[0] ^= 1
        return graph

    monkeypatch.setattr(atlas, "capture", damaged)
    found = verified.check(entry(layer), "training")
    assert not found.equal
    assert found.verdict.startswith("output 0 of ")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (WrittenByNumpy, "memory changed outside of the recorded ops: 1 times"),
        (lambda: nn.Linear(4, 4), "does not run here: "),
    ],
)
def test_what_else_is_not_equal(model: Any, words: str) -> None:
    found = verified.check(entry(model), "forward")
    assert not found.equal
    assert found.verdict.startswith(words)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_dies_is_a_verdict_and_the_page_excuses_by_name() -> None:
    limits = verified.named_limits()
    line, total = verified.row(entry(EndsTheProcess, trains=False), 60, limits)
    assert "its process ended with code 3" in line
    assert (total["checks"], total["equal"], total["explained"], total["unexplained"]) == (1, 0, 0, 1)
    line, total = verified.row(entry(EndsTheProcess, "quantized_resnet18-int8", trains=False), 60, limits)
    assert "(see docs/limits.md)" in line
    assert (total["explained"], total["unexplained"]) == (1, 0)


def test_the_page_excuses_no_model_that_is_not_in_a_catalogue() -> None:
    """Only int8 models: a name that nobody runs any more would excuse nothing."""
    models = {name for catalogue in verified.CATALOGUES.values() for name in catalogue}
    excused = {name for name in models if f"`{name}`" in verified.named_limits()}
    assert excused == {name for name in models if name.endswith("-int8")}
    assert set(re.findall(r"`(\w+-int8)`", verified.named_limits())) == excused


def test_models_made_smaller_are_in_a_catalogue() -> None:
    assert set(verified.SMALLER) <= set(verified.CATALOGUES["torchvision"])
