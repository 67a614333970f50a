"""`make_dot`, for people who come from torchviz: the autograd graph behind a tensor as a picture, without Graphviz."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchatlas.argument_errors import explains_arguments
from torchatlas.autograd.autograd_graph import graph_of_walk
from torchatlas.autograd.check_arguments import names_by_id
from torchatlas.autograd.graph_walk import roots_of, walk
from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.graph import Graph
from torchatlas.graph.formats import as_path, suffix_of

if TYPE_CHECKING:
    from torchatlas.render.picture import Picture

_PICTURES, _TEXTS = ("png", "svg", "pdf"), ("dot", "gv", "mmd")


@dataclass(eq=False)
class Dot:
    """An autograd graph that can be drawn. `source` is its DOT text, `format` what `render` and `pipe` make of it."""

    graph: Graph
    format: str = "png"

    @property
    def source(self) -> str:
        """The DOT text, for Graphviz."""
        from torchatlas.render.dot import dot_text

        return dot_text(self.graph)

    def render(
        self,
        filename: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        view: bool = False,
        cleanup: bool = False,
        format: str | None = None,
        *,
        quiet: bool = False,
        outfile: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> str:
        """Write the picture, as `filename.format` or `graph.format`, without Graphviz.

        Args:
            filename: The path without the suffix of the format.
            directory: The folder, which is made if it is not there, as graphviz does.
            view: Show the file as this machine does.
            cleanup: Accepted because graphviz has it: no intermediate file is written.
            format: "png", "svg", "pdf", "dot" or "mmd"; None takes that of the Dot.
            quiet: Accepted because graphviz has it: nothing is printed.
            outfile: The path itself; its suffix is the format.
            **options: Those of `atlas.draw`.
        Returns:
            The path.
        Raises:
            FileFormatError: There is no such format.
            FileSystemError: The file cannot be written.
        """
        del cleanup, quiet
        suffix = None if outfile is None else suffix_of(as_path(outfile)).removeprefix(".")
        if suffix is not None and format not in (None, suffix):
            raise FileFormatError(f"outfile={str(outfile)!r} is not named after format={format!r}; leave one out.")
        format = suffix if suffix is not None else self.format if format is None else format
        if format not in _PICTURES + _TEXTS:
            raise FileFormatError(f"format={format!r} cannot be written; known: {', '.join(_PICTURES + _TEXTS)}.")
        path = Path(outfile or Path(directory or "", f"{os.fspath(filename or 'graph')}.{format}"))
        written: Picture | Graph = self._drawn(options) if format in _PICTURES else self.graph
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileSystemError(f"Cannot make the folder {path.parent}: {error.strerror}.") from error
        written.save(path)
        if view:
            webbrowser.open(path.absolute().as_uri())
        return str(path)

    def pipe(self, format: str | None = None, **options: Any) -> bytes:
        """Return the picture as bytes, without writing a file.

        Args:
            format: "png", "svg" or "pdf"; None takes that of the Dot.
            **options: Those of `atlas.draw`.
        Returns:
            The bytes of the file.
        Raises:
            FileFormatError: There is no such format.
        """
        format = self.format if format is None else format
        if format not in _PICTURES:
            raise FileFormatError(
                f"format={format!r} is no picture; known: {', '.join(_PICTURES)}. `source` has the DOT text."
            )
        picture = self._drawn(options)
        return picture.png() if format == "png" else picture.pdf() if format == "pdf" else picture.svg.encode()

    def _drawn(self, options: dict[str, Any]) -> Picture:
        from torchatlas.render.picture import draw

        return draw(self.graph, **options)

    def _repr_svg_(self) -> str:
        return self._drawn({})._repr_svg_()

    def _repr_html_(self) -> str:
        return self._drawn({})._repr_html_()


@explains_arguments
def make_dot(
    var: torch.Tensor | tuple[torch.Tensor, ...],
    params: Mapping[str, torch.Tensor] | None = None,
    show_attrs: bool = False,
    show_saved: bool = False,
    max_attr_chars: int = 50,
) -> Dot:
    """The autograd graph behind a tensor, with the arguments of torchviz.

    Gradients flow down, from the tensor to the leaves.

    Args:
        var: The tensor, or a tuple of them.
        params: Names of leaves: a dictionary from name to tensor.
        show_attrs: Accepted, and changes nothing: numbers that a node keeps are not drawn.
        show_saved: Write below each node what it saved for backward.
        max_attr_chars: Accepted, and changes nothing.
    Returns:
        A Dot: `render("name", format="png")` writes a picture without Graphviz; `source` is the DOT text.
    Raises:
        AnalysisError: There is no graph behind the tensor.
    Example:
        >>> import torch, torchatlas as atlas
        >>> x = torch.ones(3, requires_grad=True)
        >>> atlas.make_dot((x * 2).sum(), params={"x": x}).source[:7]
        'digraph'
    """
    del show_attrs, max_attr_chars
    roots, names = roots_of(var, "make_dot"), names_by_id(params, None)
    return Dot(graph_of_walk(walk(roots), names, saved=show_saved))
