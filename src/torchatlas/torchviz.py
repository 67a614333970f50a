"""`make_dot`, for people who come from torchviz: the autograd graph behind a tensor as a picture, without Graphviz."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchatlas.autograd.graph import autograd_graph
from torchatlas.errors import FileFormatError
from torchatlas.graph import Graph


@dataclass(frozen=True)
class Dot:
    """An autograd graph that can be drawn. `source` is its DOT text."""

    graph: Graph

    @property
    def source(self) -> str:
        from torchatlas.render.dot import dot_text

        return dot_text(self.graph)

    def render(
        self, filename: str | os.PathLike[str] = "graph", *, format: str = "png", cleanup: bool = False, **options: Any
    ) -> str:
        """Write `filename.format` and return its path. png, svg, dot and mmd; `options` go to `atlas.draw`.

        `cleanup` is there because graphviz has it: no intermediate file is written.
        """
        del cleanup
        path = Path(f"{os.fspath(filename)}.{format}")
        if format in ("png", "svg"):
            from torchatlas.render.picture import draw

            return str(draw(self.graph, **({"title": "autograd graph"} | options)).save(path))
        if format not in ("dot", "gv", "mmd"):
            raise FileFormatError(f"format={format!r} cannot be written; known: png, svg, dot, mmd.")
        return str(self.graph.save(path))

    def _repr_svg_(self) -> str:
        return self.graph._repr_svg_()


def make_dot(
    var: torch.Tensor | tuple[torch.Tensor, ...],
    params: Mapping[str, torch.Tensor] | None = None,
    show_attrs: bool = False,
    show_saved: bool = False,
    max_attr_chars: int = 50,
) -> Dot:
    """The autograd graph behind a tensor, with torchviz' arguments; the leaves get their names from `params`.

    Gradients flow down, from the tensor to the leaves. `show_attrs`, `show_saved` and `max_attr_chars` are accepted and
    change nothing: what a node saved is not drawn.
    """
    del show_attrs, show_saved, max_attr_chars
    return Dot(autograd_graph(var, params))
