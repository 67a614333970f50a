"""torchatlas table: what it prints of files and of targets, as text, as bars and as JSON, and how it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import children
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.render.module_table import module_bars, module_table

MODELS = """
import torch
from torch import nn

def build():
    print("printed by the model")
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    return atlas.capture(model, torch.randn(4, 8), optimizer=torch.optim.SGD).save(tmp_path / "step.atlas")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "table_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["table", *arguments])


def test_it_prints_the_table_and_the_bars(file: Path) -> None:
    graph = atlas.load(file)
    assert run(str(file)).stdout == f"{module_table(graph)}\n"
    assert run(str(file), "--depth", "1").stdout == f"{module_table(graph, 1)}\n"
    assert run(str(file), "--unfold").stdout == f"{module_table(graph, fold=False)}\n"
    for by in ("time", "macs", "memory", "parameters"):
        assert run(str(file), "--bars", by, "--depth", "1").stdout == f"{module_bars(graph, by, 1)}\n"
    assert str(module_table(graph)) != str(module_table(graph, 1)) != str(module_table(graph, fold=False))


def test_json_is_one_object(file: Path) -> None:
    graph = atlas.load(file)
    table = json.loads(run(str(file), "--json", "--depth", "1").stdout)
    assert table == {"file": str(file), "table": json.loads(module_table(graph, 1).to_json())}
    bars = json.loads(run(str(file), "--json", "--bars", "macs").stdout)
    assert bars == {"file": str(file), "bars": json.loads(module_bars(graph, "macs").to_json())}


@pytest.mark.parametrize("target", ["table_models:build", "table_models.py:build"])
def test_a_target_is_run_now(target: str) -> None:
    result = run(target, "--inputs", "3,4", "--optimizer", "SGD", "--json")
    assert result.exit_code == 0, result.output
    table = json.loads(result.stdout)["table"]  # what the model prints is not in it
    assert table["totals"]["parameters"] == table["totals"]["trained"] == 4 * 8 + 8 + 8 * 2 + 2
    assert table["phases"] == ["forward", "backward", "optimizer"]
    assert [row["outputs"] for row in table["rows"][1:4]] == [[[3, 8]], [[3, 8]], [[3, 2]]]
    assert "Linear" in run(target, "--inputs", "3,4", "--fake").stdout
    sys.modules.pop("table_models", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.atlas"], "nothing.atlas"),
        (["notes.txt"], "'.txt'"),
        (["step"], "There is no file or folder step"),
        (["table_models.py"], "torchatlas capture --output run.atlas table_models.py"),
        (["table_models:buidl", "--inputs", "3,4"], "did you mean 'build'"),
        (["missing.py:build"], "There is no file missing.py"),
        (["step.atlas", "--backward"], "--backward is for models"),
        (["step.atlas", "--bars", "beauty"], "beauty"),
    ],
)
def test_it_fails_with_code_2_and_says_why(file: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_bars_of_what_was_not_measured_end_with_code_2(tmp_path: Path) -> None:
    with atlas.recording(track_timing=False) as rec:
        torch.ones(3)
    path = rec.graph.save(tmp_path / "untimed.json")
    assert run(str(path)).exit_code == 0
    result = run(str(path), "--bars", "time", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"] == "AnalysisError"


def test_a_file_does_not_need_torch(file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from torchatlas.cli import main\n"
        f"main(['table', {str(file)!r}], standalone_mode=False)\n"
        f"main(['table', {str(file)!r}, '--bars', 'macs'], standalone_mode=False)"
    )
    printed = children.python(code)
    assert "output shape" in printed
    assert "█" in printed
