"""SVG text with a size -> files and notebooks: what every picture and plot is handed out as."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.render.png import to_png


@dataclass(frozen=True)
class Drawing:
    """Something drawn. It shows itself in a notebook."""

    svg: str = field(repr=False)
    width: int
    height: int

    def png(self, dpi: int = 96) -> bytes:
        """In pixels, as many as its width and height; `dpi` is written into the file."""
        return to_png(self.svg, width=self.width, height=self.height, dpi=dpi)

    def save(self, path: str | os.PathLike[str], *, dpi: int = 96) -> Path:
        """Write an .svg or .png; returns the path. No folder is created."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise FileFormatError(
                f"{path.name}: drawings are saved as .svg or .png, not {path.suffix or 'no suffix'!r}."
            )
        if not path.parent.is_dir():
            raise FileSystemError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")
        data = self.png(dpi) if path.suffix == ".png" else self.svg.encode()
        try:
            path.write_bytes(data)
        except OSError as error:
            raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
        return path

    def _repr_svg_(self) -> str:
        return self.svg
