"""torchatlas trace: what it prints and writes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.execute.free_sizes import BUDGET_S

SOURCE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(4 * 36, 2))

def with_inputs():
    print("hello")
    return nn.Linear(4, 2), (torch.randn(3, 4),)

class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def number():
    return 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trace_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["trace", *arguments])


def test_nodes_and_what_may_vary(folder: Path) -> None:
    result = run("trace_models.py:build", "--inputs", "2,3,8,8", "--output", "m.atlas")
    assert result.exit_code == 0, result.output
    assert "convolution" in result.stdout
    assert "(2 here)" in result.stdout
    assert "written: m.atlas" in result.stdout
    traced = atlas.load(folder / "m.atlas")
    assert isinstance(traced, atlas.TracedModel)
    assert str(len(traced.graph)) in result.stdout


def test_a_model_that_export_refuses_can_be_followed(folder: Path) -> None:
    assert "--follow" not in run("trace_models.py:Branch", "--inputs", "2").output
    result = run("trace_models.py:Branch", "--inputs", "2", "--follow", "--output", "path.atlas")
    assert result.exit_code == 0, result.output
    assert "the path that its example took" in result.stdout
    assert atlas.load(folder / "path.atlas").source == "run"


def test_weights_can_be_left_out(folder: Path) -> None:
    run("trace_models.py:build", "--inputs", "2,3,8,8", "--output", "with.atlas")
    run("trace_models.py:build", "--inputs", "2,3,8,8", "--output", "without.atlas", "--no-weights")
    assert (folder / "without.atlas").stat().st_size < (folder / "with.atlas").stat().st_size


def test_json_is_all_that_is_printed() -> None:
    result = run("trace_models:with_inputs", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["macs"] == 3 * 4 * 2
    assert facts["input_shapes"]["input"][1] == 4
    assert list(facts["sizes"].values()) == [3]
    assert facts["uncosted"] == []
    assert facts["notes"] == []


def test_which_sizes_are_fixed_and_why() -> None:
    result = run("trace_models.py:build", "--inputs", "2,3,8,8", "--budget", "1000")
    reason = "the model or an operator of torch fixes it"
    assert f"input[1] = 3: {reason}" in result.stdout
    facts = json.loads(run("trace_models.py:build", "--inputs", "2,3,8,8", "--json").stdout)
    batch, channels, *_ = facts["input_sizes"]
    assert batch == {"input": "input", "dim": 0, "size": 2, "symbol": batch["symbol"], "reason": ""}
    assert channels == {"input": "input", "dim": 1, "size": 3, "symbol": None, "reason": reason}
    assert f"Default: {BUDGET_S:g}." in " ".join(run("--help").stdout.split())


def test_fixed_sizes_and_training_mode() -> None:
    result = run("trace_models.py:build", "--inputs", "2,3,8,8", "--fixed", "--train", "--json")
    facts = json.loads(result.stdout)
    assert facts["sizes"] == {}
    assert facts["input_shapes"]["input"] == [2, 3, 8, 8]
    assert "training mode" in facts["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trace_models.py:Branch", "--inputs", "3"], "trace_models.py:14"),
        (["trace_models.py:number"], "not a model"),
        (["trace_models.py"], "name the model in it"),
        (["trace_models.py:build", "--inputs", "2,3,8,8", "--output", "m.xyz"], "no format is written"),
        (["trace_models.py:build", "--inputs", "2,5,8,8"], "cannot trace"),
    ],
    ids=["branch", "no model", "script", "suffix", "shape"],
)
def test_failures_are_one_line(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
