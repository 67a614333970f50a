"""torchatlas validate: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support import load_torchvision

from torchatlas.cli import main
from torchatlas.partition.validate import validation as validating
from torchatlas.partition.validate.checks import PartitionCheck

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(1, 3, 8, 8)
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["validate", *arguments])


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(MODEL)
    return f"{tmp_path / 'small.py'}:build"


def test_a_target(target: str) -> None:
    result = run(target)
    assert result.exit_code == 0, result.output
    assert "each node once" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("0 failed, 0 could not be made")
    content = json.loads(run(target, "--json", "--strategy", "op", "--front-end", "fx").stdout)
    assert content["passed"] is True
    assert [(one["front_end"], one["strategy"]) for one in content["models"][0]["partitions"]] == [("fx", "op")]


def test_inputs_of_a_target() -> None:
    assert run("torch.nn:Flatten", "--inputs", "2,3,4", "--strategy", "op").exit_code == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_failed_check_is_code_1(target: str, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validating, "checks_of", lambda report, again: [PartitionCheck("bytes", False, "1 of 2")])
    result = run(target, "--strategy", "op", *["--json"] * as_json)
    assert result.exit_code == 1
    if as_json:
        assert json.loads(result.stdout)["passed"] is False
    else:
        assert "FAILED fx op, bytes: 1 of 2" in result.stdout


def test_what_is_refused(tmp_path: Path) -> None:
    load_torchvision()
    result = run("resnet19")
    assert result.exit_code == 2
    assert "did you mean 'resnet1" in result.stderr
    assert run("resnet18", "--inputs", "1,3,64,64").exit_code == 2
    assert run("resnet18", "--strategy", "ops").exit_code == 2
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    assert run(str(script)).exit_code == 2
    assert json.loads(run("resnet19", "--json").stdout)["error"] == "UnknownNameError"
