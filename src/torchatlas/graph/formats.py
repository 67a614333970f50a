"""How a graph becomes a file or another library's object: each format is one function that adds itself here.

The graph knows no format; `torchatlas.export` and `torchatlas.render` fill these tables when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.registry import Registry

Writer = Callable[[Any, Path], None]
Reader = Callable[[Path], Any]

WRITERS: Registry[Writer] = Registry("file format to write")
READERS: Registry[Reader] = Registry("file format to read")
VIEWS: Registry[Callable[[Any], Any]] = Registry("view")


def save(graph: Any, path: Path) -> Path:
    """Write by suffix; says which folder is missing instead of creating it."""
    writer = _by_suffix(WRITERS, path)
    if not path.parent.is_dir():
        raise FileSystemError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")
    try:
        writer(graph, path)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def load(path: Path) -> Any:
    """Read by suffix."""
    reader = _by_suffix(READERS, path)
    try:
        return reader(path)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot read {path}: {error.strerror or error}.") from error


def view(name: str, graph: Any) -> Any:
    """Another library's object, or text, made of the graph."""
    return VIEWS[name](graph)


def _by_suffix(formats: Registry[Any], path: Path) -> Any:
    if path.suffix not in formats:
        known = ", ".join(formats)
        raise FileFormatError(
            f"{path.name}: the suffix {path.suffix or '(none)'!r} is no {formats.kind}; known: {known}."
        )
    return formats[path.suffix]
