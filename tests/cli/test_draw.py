"""torchatlas draw: what it writes of files and of targets, and how it fails."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "draw_models.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    graph = atlas.capture(model, torch.randn(4, 8), optimizer=torch.optim.SGD, values="stats")
    return graph.save(tmp_path / "step.atlas")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["draw", *arguments])


def test_a_file_becomes_a_picture(file: Path, folder: Path) -> None:
    result = run(str(file), "-o", "step.png", "--size", "800x600")
    assert result.exit_code == 0
    assert result.stdout == "written: step.png\n"
    assert struct.unpack(">II", (folder / "step.png").read_bytes()[16:24]) == (800, 600)
    assert run(str(file)).exit_code == 0
    assert (folder / "graph.png").exists()


def test_a_target_becomes_a_picture(folder: Path) -> None:
    result = run("draw_models:build", "--inputs", "3,4", "--backward", "-o", "m.svg", "--color-by", "flops", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["file"] == "m.svg"
    assert facts["boxes"] > 2
    assert facts["smallest_text"] >= 9
    ElementTree.parse(folder / "m.svg")


def test_the_options_reach_the_picture(file: Path, folder: Path) -> None:
    seen = set()
    for number, options in enumerate(
        ([], ["--theme", "dark"], ["--title", "mine"], ["--critical-path"], ["--modules"], ["--phase", "forward"])
    ):
        assert run(str(file), "-o", f"{number}.svg", *options).exit_code == 0
        seen.add((folder / f"{number}.svg").read_text())
    assert len(seen) == 6


@pytest.mark.parametrize("plot", ["memory", "roofline", "time", "gradients"])
def test_plots(file: Path, folder: Path, plot: str) -> None:
    assert run(str(file), "--plot", plot, "-o", "plot.svg").exit_code == 0
    root = ElementTree.parse(folder / "plot.svg").getroot()
    assert (root.get("width"), root.get("height")) == ("1200", "700")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step.atlas", "--size", "big"), "WxH"),
        (("step.atlas", "--size", "20x20"), "too few"),
        (("step.atlas", "-o", "graph.gif"), ".svg or .png"),
        (("step.atlas", "-o", "missing/graph.png"), "does not exist"),
        (("nowhere.atlas",), "nowhere.atlas"),
        (("step.atlas", "--backward"), "it was run already"),
        (("train.py",), "torchatlas capture --output run.atlas"),
    ],
)
def test_what_cannot_be_drawn(file: Path, folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (folder / "train.py").write_text("print(1)")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
