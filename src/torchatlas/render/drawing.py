"""An SVG document with a size -> files and notebooks. Every picture and plot is a Drawing."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.graph.formats import as_path, check_folder, suffix_of
from torchatlas.render.pdf import to_pdf
from torchatlas.render.png import to_png
from torchatlas.render.png import whole as whole

SUFFIXES = (".svg", ".png", ".pdf")
_SCREEN, _PRINT = 96, 300  # pixels per inch: of a drawing with a size in pixels, and of one in inches


def scaled(svg: str) -> str:
    """A document for a notebook: as large as it is, or as wide as the cell if that is narrower.

    >>> scaled('<svg width="400" height="300" viewBox="0 0 400 300"></svg>')
    '<svg style="max-width:100%;height:auto" width="400" height="300" viewBox="0 0 400 300"></svg>'
    """
    return svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)


def check_drawing_path(path: Path) -> None:
    """Raise unless a drawing can be written there."""
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise FileFormatError(f"{path.name}: drawings are saved as .svg, .png or .pdf, not {suffix or 'no suffix'!r}.")
    check_folder(path)


@dataclass(frozen=True)
class Drawing:
    """A picture or a plot. It shows itself in a notebook."""

    svg: str = field(repr=False)  # the document
    width: int  # in pixels
    height: int
    # Its size on paper; None: 96 pixels to an inch.
    inches: tuple[float, float] | None = field(default=None, kw_only=True)

    def png(self, dpi: int | None = None) -> bytes:
        """A PNG of its width and height; what has a size in inches gets `dpi` pixels for each.

        Args:
            dpi: What is written into the file for printers: 96 unless given, and 300 for a size in inches.
        Returns:
            The bytes of the file.
        """
        if self.inches is None:
            return to_png(self.svg, width=self.width, height=self.height, dpi=_SCREEN if dpi is None else dpi)
        dpi = _PRINT if dpi is None else whole("dpi", dpi, 100_000)
        width, height = (max(1, round(side * dpi)) for side in self.inches)
        return to_png(self.svg, width=width, height=height, dpi=dpi)

    def pdf(self) -> bytes:
        """A PDF of one page in its size on paper. Its texts are text, in our font, which is embedded."""
        return to_pdf(self.svg, *(self.inches or (self.width / _SCREEN, self.height / _SCREEN)))

    def save(self, path: str | os.PathLike[str], *, dpi: int | None = None) -> Path:
        """Write an .svg, .png or .pdf. No folder is created.

        Args:
            path: Where; the suffix chooses the format.
            dpi: As for `png`.
        Returns:
            The path.
        Raises:
            FileSystemError: The file cannot be written.
            FileFormatError: The suffix is none of these.
        """
        path = as_path(path)
        check_drawing_path(path)
        suffix = suffix_of(path)
        data = self.png(dpi) if suffix == ".png" else self.pdf() if suffix == ".pdf" else self.svg.encode()
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
