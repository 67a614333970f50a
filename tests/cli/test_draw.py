"""torchatlas draw: what it writes of files and of targets, and how it fails."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner, Result
from render.pdf_reading import Pdf
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "draw_models.py").write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n\n"
        "model = build()\n\ndef train():\n    model(torch.randn(3, 4)).sum().backward()\n\n"
        "def never():\n    print('the model ran')\n    return build()\n"
    )
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


@pytest.mark.parametrize("asked", [("--color-by", "gradient"), ("--plot", "gradients")])
def test_gradients_of_a_target_are_kept_when_they_are_asked_for(folder: Path, asked: tuple[str, str]) -> None:
    result = run("draw_models:build", "--inputs", "3,4", *asked, "-o", "m.svg")
    assert result.exit_code == 0, result.output
    assert "radient norm" in (folder / "m.svg").read_text()
    result = run("draw_models:train", *asked, "-o", "n.svg")  # a program that runs backward itself
    assert result.exit_code == 0, result.output
    result = run("draw_models:build", "--inputs", "3,4", *asked, "--fake", "-o", "m.svg")
    assert result.exit_code == 2
    assert "--fake computes nothing" in result.stderr


@pytest.mark.parametrize(
    ("size", "inches"), [("column", (3.4, None)), ("full", (7, None)), ("5.5in", (5.5, None)), ("5.5x3in", (5.5, 3))]
)
def test_figures_for_papers(file: Path, folder: Path, size: str, inches: tuple[float, float | None]) -> None:
    asked = ("--size", size, "--depth", "2", "--no-title", "--no-legend", "--no-footer", "-o", "figure.pdf")
    result = run(str(file), *asked, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["inches"][0] == inches[0]
    assert facts["inches"][1] == inches[1] or inches[1] is None
    pdf = Pdf((folder / "figure.pdf").read_bytes())
    assert pdf.size == pytest.approx([72 * side for side in facts["inches"]], abs=0.01)
    said = " ".join(text.text for text in pdf.texts())
    assert "Linear" in said
    assert not any(words in said for words in ("forward · backward", "activation", "with views"))
    result = run(str(file), "--size", size, "-o", "figure.png", "--dpi", "100")
    assert result.exit_code == 0, result.output
    assert int.from_bytes((folder / "figure.png").read_bytes()[16:20]) == round(100 * inches[0])


def test_plots_for_papers(file: Path, folder: Path) -> None:
    result = run(str(file), "--plot", "memory", "--size", "column", "-o", "memory.pdf", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["inches"][0] == 3.4
    assert Pdf((folder / "memory.pdf").read_bytes()).size[0] == pytest.approx(3.4 * 72)


def test_lines_to_the_right(file: Path, folder: Path) -> None:
    for direction in ("down", "right"):
        assert run(str(file), "--direction", direction, "-o", f"{direction}.svg").exit_code == 0
        picture = atlas.draw(atlas.load(file), direction=direction)
        assert (folder / f"{direction}.svg").read_text(encoding="utf-8") == picture.svg


def test_text_for_other_programs(file: Path, folder: Path) -> None:
    for name, begin in (("x.dot", "digraph"), ("x.gv", "digraph"), ("X.MMD", "flowchart")):
        result = run(str(file), "-o", name, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == {"file": name}
        assert (folder / name).read_text(encoding="utf-8").startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--plot", "gradients", "--title", "T"), "--title is for a picture of the graph"),
        (("--plot", "time", "--color-by", "type"), "--color-by is for a picture"),
        (("--plot", "time", "--critical-path"), "--critical-path is for a picture"),
        (("--plot", "time", "--modules"), "--modules is for a picture"),
        (("--plot", "time", "--phase", "forward"), "--phase is for a picture"),
        (("--plot", "time", "--font-size", "9"), "--font-size is for a picture"),
        (("--plot", "time", "--depth", "2"), "--depth is for a picture"),
        (("--plot", "time", "--direction", "right"), "--direction is for a picture"),
        (("--plot", "time", "--no-footer"), "--no-footer is for a picture"),
        (("--title", "T", "--no-title"), "--title and --no-title contradict each other"),
        (("-o", "x.pdf", "--dpi", "300"), "--dpi is written into a .png"),
        (("--plot", "memory", "--device", "t4"), "--device is for the roofline"),
        (("--device", "t4"), "--device is for the roofline"),
        (("-o", "x.dot", "--theme", "dark"), "--theme is for pictures"),
        (("-o", "x.dot", "--plot", "time"), "a plot is saved as .svg, .png or .pdf"),
        (("-o", "x.svg", "--dpi", "300"), "--dpi is written into a .png"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    file: Path, folder: Path, arguments: tuple[str, ...], option: str
) -> None:
    result = run(str(file), *arguments)
    assert result.exit_code == 2
    assert option in result.stderr
    assert not list(folder.glob("*.svg")) + list(folder.glob("*.png")) + list(folder.glob("*.dot"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "graph.gif"), ".svg, .png or .pdf"),
        (("-o", "missing/graph.png"), "does not exist"),
        (("--size", "big"), "WxH"),
        (("--size", "30000x20"), "--size 30000x20: width=30000 is no size"),
        (("--size", "0x20"), "--size 0x20"),
        (("--size", "0.1in"), "--size 0.1in: size=0.1 is no size of a picture"),
        (("--size", "5.5x"), "5.5x3in"),
        (("--plot", "time", "--size", "2in"), "--size 2in: size=2.0 is too small for a plot"),
        (("--depth", "0"), "--depth"),
        (("--plot", "time", "--size", "100x100"), "480"),
        (("--plot", "roofline", "--device", "t44"), "No device profile"),
        (("--font-size", "0"), "--font-size"),
        (("--dpi", "0"), "--dpi"),
    ],
)
def test_mistakes_are_found_before_the_model_runs(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("draw_models:never", "--inputs", "3,4", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "the model ran" not in result.output


def test_what_a_file_does_not_hold_is_said_in_options(file: Path, folder: Path) -> None:
    atlas.load(file).save(folder / "step.json")
    atlas.capture(nn.Linear(8, 2), torch.randn(4, 8), values="stats").save(folder / "forward.atlas")
    for name in ("step.json", "forward.atlas"):
        for asked in (("--color-by", "gradient"), ("--plot", "gradients")):
            result = run(name, *asked)
            assert result.exit_code == 2
            assert "An .atlas file keeps them" in result.stderr
            assert "--backward --values stats" in result.stderr
    result = run("forward.atlas", "--phase", "backward")
    assert result.exit_code == 2
    assert "it has forward" in result.stderr
    result = run("forward.atlas", "--size", "30x30")
    assert "at --font-size 9: use at least" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step.atlas", "--size", "big"), "WxH"),
        (("step.atlas", "--size", "20x20"), "too few"),
        (("step.atlas", "-o", "graph.gif"), ".svg, .png or .pdf"),
        (("step.atlas", "-o", "missing/graph.png"), "does not exist"),
        (("nowhere.atlas",), "nowhere.atlas"),
        (("step.atlas", "--backward"), "it was run already"),
        (("train.py",), "torchatlas capture --output run.atlas"),
        (("draw_models:build",), "returned a Linear without inputs, and it takes some: give them with --inputs"),
    ],
)
def test_what_cannot_be_drawn(file: Path, folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (folder / "train.py").write_text("print(1)")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
