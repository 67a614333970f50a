"""torchatlas verify: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.execute.verify_replay import verify


@pytest.fixture
def graph() -> atlas.Graph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 2))
    return atlas.capture(model, torch.randn(4, 8), optimizer=torch.optim.AdamW, values="replay")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments])


def test_equal_to_the_bit_is_code_0(graph: atlas.Graph, tmp_path: Path) -> None:
    path = graph.save(tmp_path / "step.atlas")
    result = run(str(path))
    assert result.exit_code == 0
    assert result.stdout == f"{verify(graph)}\n"
    assert result.stdout.startswith("verified: ")
    content = json.loads(run(str(path), "--json").stdout)
    assert content["file"] == str(path)
    assert content["verification"] == json.loads(json.dumps(verify(graph).to_dict()))
    assert content["verification"]["verified"] is True


def test_a_difference_is_code_1(graph: atlas.Graph, tmp_path: Path) -> None:
    graph.recorded["-1:digests"] = graph.recorded["-1:digests"] ^ 1
    path = graph.save(tmp_path / "step.atlas")
    result = run(str(path))
    assert result.exit_code == 1
    assert "first difference: output 0 of " in result.stdout
    result = run(str(path), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verification"]["first_difference"]["operation"].startswith("aten.")


@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_replayed_is_code_2(as_json: bool, tmp_path: Path) -> None:
    path = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "plain.atlas")
    result = run(str(path), *["--json"] * as_json)
    assert result.exit_code == 2
    assert 'values="replay"' in result.stderr
    assert not as_json or json.loads(result.stdout)["error"] == "StateError"


def test_custom_operators_are_allowed_by_namespace(tmp_path: Path) -> None:
    @torch.library.custom_op("atlas_verify_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    path = atlas.capture(twice, torch.ones(2), values="replay").save(tmp_path / "custom.atlas")
    assert run(str(path)).exit_code == 2
    assert run(str(path), "--allow", "atlas_verify_test").exit_code == 0
