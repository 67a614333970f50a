"""make_dot, as people know it from torchviz."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import torchatlas as atlas


def test_the_document_s_example(tmp_path: Path) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    z = (x**2).sum()
    dot = atlas.make_dot(z, params={"x": x})
    assert dot.render(tmp_path / "graph", format="png") == str(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    svg = dot.render(str(tmp_path / "graph"), format="svg", cleanup=True, width=500, height=400)
    assert svg == str(tmp_path / "graph.svg")
    words = ["".join(text.itertext()) for text in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"SumBackward0", "PowBackward0", "AccumulateGrad", "x · 2×3"} <= set(words)
    assert "PowBackward0" in dot.source
    assert dot._repr_svg_().startswith("<svg")
    assert x.grad is None  # nothing ran


def test_it_is_used_as_what_torchviz_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dot = atlas.make_dot((torch.ones(2, requires_grad=True) ** 2).sum())
    dot.format = "svg"
    assert dot.render("graph", tmp_path) == str(tmp_path / "graph.svg")
    assert dot.pipe() == (tmp_path / "graph.svg").read_bytes()
    assert dot.pipe(format="png").startswith(b"\x89PNG")
    assert dot.pipe("pdf") == Path(dot.render(tmp_path / "graph", format="pdf")).read_bytes()
    with pytest.raises(atlas.errors.FileFormatError, match="'mmd' is no picture"):
        dot.pipe("mmd")
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert dot.render("text", tmp_path, view=True, format="dot") == str(tmp_path / "text.dot")
    assert shown == [(tmp_path / "text.dot").as_uri()]


def test_what_nodes_saved_is_written_on_request() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    loss = model(torch.randn(4, 8)).mean()
    saved = atlas.make_dot(loss, show_saved=True).source
    assert "saved mat1 4×16, mat2 16×1" in saved
    assert "saved result 4×16" in saved
    assert "saved" not in atlas.make_dot(loss).source


def test_what_cannot_be_written(tmp_path: Path) -> None:
    x = torch.ones(1, requires_grad=True)
    dot = atlas.make_dot(x * 2)
    with pytest.raises(atlas.errors.FileFormatError, match="eps"):
        dot.render(tmp_path / "missing" / "graph", format="eps")
    with pytest.raises(TypeError, match="colour"):
        dot.render(tmp_path / "missing" / "graph", colour=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(atlas.errors.FileFormatError, match="format='mp3' cannot be written"):
        dot.render(outfile=tmp_path / "missing" / "graph.mp3")
    with pytest.raises(atlas.errors.FileFormatError, match="not named after format='png'"):
        dot.render(outfile=tmp_path / "graph.svg", format="png")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(atlas.errors.FileSystemError, match=r"Cannot make the folder .*file"):
        dot.render("graph", tmp_path / "file" / "folder")


def test_defaults_and_folders_are_those_of_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dot = atlas.make_dot(torch.ones(1, requires_grad=True) * 2)
    assert dot.render(filename=None, directory=None, format="svg", quiet=True) == "graph.svg"
    assert Path(dot.render("net", "out/deep", format="svg")) == Path("out", "deep", "net.svg")
    assert Path(dot.render("other/net", format="dot")) == Path("other", "net.dot")
    for outfile in ("net.png", Path("third", "net.svg"), "net.gv"):  # the suffix says what it is
        assert dot.render(outfile=outfile) == str(outfile)
    assert Path("net.png").read_bytes() == dot.pipe()
    assert Path("third", "net.svg").read_bytes() == dot.pipe("svg")
    assert Path("net.gv").read_text() == dot.source
    Path("third", "net.svg").unlink()
    Path("third").rmdir()
    assert (tmp_path / "out" / "deep" / "net.svg").read_bytes() == (tmp_path / "graph.svg").read_bytes()
    assert (tmp_path / "other" / "net.dot").exists()
    with pytest.raises(atlas.errors.FileSystemError, match="does not exist"):  # a graph's own makes none
        dot.graph.save(tmp_path / "third" / "net.dot")
    with pytest.raises(atlas.errors.FileSystemError, match="does not exist"):
        atlas.draw(dot.graph).save(tmp_path / "third" / "net.svg")


def test_errors_name_what_was_called() -> None:
    with pytest.raises(
        atlas.errors.InvalidInputError, match=r"make_dot takes a tensor or several, not int: make_dot\(l"
    ):
        atlas.make_dot(3)  # type: ignore[arg-type]
    loss = torch.ones(2, requires_grad=True).sum()
    with pytest.raises(atlas.errors.InvalidInputError, match=r"A model may be passed in their place\.") as caught:
        atlas.make_dot(loss, {"w": 3})  # type: ignore[dict-item]
    assert "model=" not in str(caught.value)
    assert atlas.make_dot(loss, torch.nn.Linear(2, 2)).source  # type: ignore[arg-type]
