"""torchatlas memory: what it prints, as text and as JSON, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import children
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.memory import memory
from torchatlas.cli import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return atlas.capture(model, torch.randn(4, 8), optimizer=torch.optim.SGD).save(tmp_path / "step.atlas")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["memory", *arguments])


def test_it_prints_the_report(file: Path) -> None:
    result = run(str(file))
    assert result.exit_code == 0
    assert result.stdout == f"{memory(atlas.load(file))}\n"
    assert "what the peak is made of" in result.stdout


def test_json_is_one_object(file: Path) -> None:
    result = run(str(file), "--json", "--top", "2")
    content = json.loads(result.stdout)
    assert content["file"] == str(file)
    assert content["memory"] == json.loads(json.dumps(memory(atlas.load(file), top=2).to_dict()))
    assert len(content["memory"]["largest"]) == 2


def test_without_tensors(file: Path) -> None:
    result = run(str(file), "--top", "0")
    assert result.exit_code == 0
    assert "largest at the peak" not in result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_a_graph_without_memory_ends_with_code_2(tmp_path: Path, as_json: bool) -> None:
    with atlas.recording(track_memory=False) as rec:
        torch.ones(3)
    path = rec.graph.save(tmp_path / "without.json")
    result = run(str(path), *["--json"] * as_json)
    assert result.exit_code == 2
    assert "track_memory=True" in result.stderr
    assert not as_json or json.loads(result.stdout)["error"] == "AnalysisError"


def test_a_missing_file_ends_with_code_2(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing.atlas"))
    assert result.exit_code == 2
    assert "nothing.atlas" in result.stderr


def test_it_does_not_need_torch(file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from torchatlas.cli import main\n"
        f"main(['memory', {str(file)!r}], standalone_mode=False)"
    )
    assert children.python(code).startswith("peak ")
