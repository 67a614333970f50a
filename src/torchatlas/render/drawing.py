"""An SVG document with a size -> files and notebooks. Every picture and plot is a Drawing."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.graph.formats import as_path, check_folder, suffix_of
from torchatlas.render.png import to_png
from torchatlas.render.png import whole as whole


def scaled(svg: str) -> str:
    """A document for a notebook: as large as it is, or as wide as the cell if that is narrower.

    >>> scaled('<svg width="400" height="300" viewBox="0 0 400 300"></svg>')
    '<svg style="max-width:100%;height:auto" width="400" height="300" viewBox="0 0 400 300"></svg>'
    """
    return svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)


def check_drawing_path(path: Path) -> None:
    """Raise unless a drawing can be written there."""
    suffix = suffix_of(path)
    if suffix not in (".svg", ".png"):
        raise FileFormatError(f"{path.name}: drawings are saved as .svg or .png, not {suffix or 'no suffix'!r}.")
    check_folder(path)


@dataclass(frozen=True)
class Drawing:
    """A picture or a plot. It shows itself in a notebook."""

    svg: str = field(repr=False)  # the document
    width: int
    height: int

    def png(self, dpi: int = 96) -> bytes:
        """A PNG of its width and height; `dpi` is written into it, for printers."""
        return to_png(self.svg, width=self.width, height=self.height, dpi=dpi)

    def save(self, path: str | os.PathLike[str], *, dpi: int = 96) -> Path:
        """Write an .svg or .png; returns the path. No folder is created."""
        path = as_path(path)
        check_drawing_path(path)
        data = self.png(dpi) if suffix_of(path) == ".png" else self.svg.encode()
        try:
            path.write_bytes(data)
        except OSError as error:
            raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
        return path

    def _repr_svg_(self) -> str:
        return scaled(self.svg)

    def _repr_html_(self) -> str:
        """An image, so that the fonts and styles of one picture do not reach another on the same page."""
        data = b64encode(self.svg.encode()).decode()
        alt = f"{type(self).__name__.lower()} of {self.width} x {self.height}"
        return f'<img style="max-width:100%;height:auto" alt="{alt}" src="data:image/svg+xml;base64,{data}">'
