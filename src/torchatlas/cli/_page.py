"""Where verbs write a page of the viewer: into the file that was asked for, or a temporary one."""

from __future__ import annotations

from pathlib import Path

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.files import replacing
from torchatlas.graph.formats import check_folder, suffix_of
from torchatlas.render.viewer.browser import temporary_page


def check_page(path: Path | None) -> None:
    """Refuse a page that could not be written before the long work begins."""
    if path is not None:
        if suffix_of(path) not in (".html", ".htm"):
            raise FileFormatError(f"{path.name}: the viewer is a page; give it the suffix .html.")
        check_folder(path)


def write_page(data: bytes, path: Path | None, name: str) -> Path:
    """Write a page, and return where it is. The name is for a temporary file."""
    if path is None:
        return temporary_page(data, name)
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path
