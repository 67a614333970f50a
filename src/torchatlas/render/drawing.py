"""An SVG document with a size -> files and notebooks. Every picture and plot is a Drawing."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torchatlas.errors import FileFormatError, FileSystemError, InvalidInputError
from torchatlas.graph.formats import as_path, check_folder, suffix_of
from torchatlas.render.png import MOST_PIXELS, to_png


def whole(name: str, size: Any, most: int = MOST_PIXELS) -> int:
    """A number of pixels as Python's own int; numpy's whole numbers are welcome. Raises unless it is 1 to `most`."""
    try:
        number = 0 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = 0
    if not 0 < number <= most:
        raise InvalidInputError(f"{name}={size!r} is no size for a picture; pass a whole number from 1 to {most:,}.")
    return number


def check_drawing_path(path: Path) -> None:
    """Raise unless a drawing can be written there."""
    suffix = suffix_of(path)
    if suffix not in (".svg", ".png"):
        raise FileFormatError(f"{path.name}: drawings are saved as .svg or .png, not {suffix or 'no suffix'!r}.")
    check_folder(path)


@dataclass(frozen=True)
class Drawing:
    """A picture or a plot. It shows itself in a notebook."""

    markup: Callable[[], str] = field(repr=False, compare=False)  # writes the SVG document
    width: int
    height: int

    @cached_property
    def svg(self) -> str:
        """The SVG document."""
        return self.markup()

    def png(self, dpi: int = 96) -> bytes:
        """A PNG of its width and height; `dpi` is written into it, for printers."""
        return to_png(self.svg, width=self.width, height=self.height, dpi=whole("dpi", dpi, 100_000))

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
        return self.svg
