"""torchatlas partition: what it prints, as text and as JSON, of a file and of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from partition.models import Net

import torchatlas as atlas
from torchatlas.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["partition", *arguments])


def test_of_a_file(tmp_path: Path) -> None:
    path = atlas.capture(Net().eval(), torch.randn(1, 3, 8, 8)).save(tmp_path / "net.atlas")
    result = run(str(path), "--strategy", "op", "--workers", "3", "--device", "a100-80gb")
    assert result.exit_code == 0, result.output
    assert "subgraphs by op" in result.stdout
    assert "critical path by flops" in result.stdout
    content = json.loads(run(str(path), "--json", "--workers", "3").stdout)
    assert content["partition"]["strategy"] == "fusion"
    assert list(content["concurrency"]["speedups"]) == ["3"]
    assert content["concurrency"]["max_parallel_ops_per_stage"] == 2


TARGETS = """
import torch
from torch import nn

class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if (x.sum() > 1000).item() else x - 1

def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

def both():
    return net(), torch.ones(2, 4)

def program():
    torch.ones(3).exp()
"""


@pytest.mark.parametrize(
    ("arguments", "front_end", "tried"),
    [
        (("net", "--inputs", "2,4"), "fx", []),
        (("both",), "fx", []),
        (("Branches", "--inputs", "2,4"), "run", ["fx", "export"]),
        (("program",), "run", []),
        (("net", "--inputs", "2,4", "--backward"), "run", []),
        (("net", "--inputs", "2,4", "--by", "time"), "run", []),
    ],
    ids=["model", "with its example", "recorded", "program", "backward", "measured"],
)
def test_of_a_model_by_the_first_way_that_works(
    tmp_path: Path, arguments: tuple[str, ...], front_end: str, tried: list[str]
) -> None:
    (tmp_path / "targets.py").write_text(TARGETS)
    name, *options = arguments
    result = run(f"{tmp_path / 'targets.py'}:{name}", *options, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["partition"]
    assert found["front_end"] == front_end
    assert [one["front_end"] for one in found["attempts"]] == tried


def test_of_a_model() -> None:
    result = run("torch.nn:Flatten", "--inputs", "2,3,4")
    assert result.exit_code == 0, result.output
    assert run("torch.nn:Flatten", "--inputs", "2,3,4", "--device", "a1000").exit_code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "recorded with autograd"),
        (("--gradients",), "recorded with autograd"),
        (("--no-gradients",), "as inference"),
    ],
)
def test_with_or_without_autograd(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """The model is in training mode, so that by default autograd is on."""
    (tmp_path / "targets.py").write_text(TARGETS)
    result = run(f"{tmp_path / 'targets.py'}:net", "--inputs", "2,4", *options)
    assert result.exit_code == 0, result.output
    assert said in result.stdout
