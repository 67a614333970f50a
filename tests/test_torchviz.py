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


def test_formats_and_folders_that_are_none(tmp_path: Path) -> None:
    x = torch.ones(1, requires_grad=True)
    dot = atlas.make_dot(x * 2)
    with pytest.raises(atlas.errors.FileFormatError, match="pdf"):
        dot.render(tmp_path / "graph", format="pdf")
    with pytest.raises(atlas.errors.FileSystemError, match="does not exist"):
        dot.render(tmp_path / "missing" / "graph")
