"""torchatlas partition: what it prints, as text and as JSON, of a file and of a model."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_of_a_model() -> None:
    result = run("torch.nn:Flatten", "--inputs", "2,3,4")
    assert result.exit_code == 0, result.output
    assert run("torch.nn:Flatten", "--inputs", "2,3,4", "--device", "a1000").exit_code == 2
