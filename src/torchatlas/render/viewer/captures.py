"""A folder or some files -> the captures in them, newest first, and the page of each. What the loopback server serves.

A capture is known by a hash of its name, so that no request can name a file that was not listed here.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchatlas.errors import FileSystemError
from torchatlas.files import open_to_read
from torchatlas.graph.formats import suffix_of
from torchatlas.render.viewer.content import documents_of, still, title_of, viewed
from torchatlas.render.viewer.html_page import PageDocument, page

MOST_CAPTURES = 1000
_DEEPEST = 3  # folders within the folder
_KEPT_PAGES = 4
MOST_INLINE_BYTES = 8_000_000  # of a packed document: a larger one is not put into the page as text
# What the files that we write begin with. Other people's .json and .html files are left alone.
_BEGINNINGS = {
    ".atlas": b"PK\x03\x04",
    ".json": b'"format": "torchatlas"',
    ".html": b'<meta name="generator" content="torchatlas">',
}
_BEGINNING_BYTES = 4096


@dataclass(frozen=True)
class CaptureFile:
    """A file that holds a graph. `id` stands in addresses."""

    id: str
    name: str
    path: Path
    bytes: int
    modified_ns: int

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "bytes": self.bytes, "modified_ms": self.modified_ns // 1_000_000}


@dataclass(frozen=True)
class CapturePage:
    """A page, and the packed documents that it asks for, by their keys: they are too large to stand in it."""

    html: bytes
    documents: dict[str, bytes]


class Captures:
    """Files, or whatever lies in a folder at the moment. `extras` are laid over the graph of each page."""

    def __init__(self, places: Sequence[Path], **extras: Any) -> None:
        for place in places:
            if not place.exists():
                raise FileSystemError(f"There is no file or folder {place}. Check the path.")
        self.places = list(places)
        self.extras = extras
        self._pages: OrderedDict[tuple[CaptureFile, ...], CapturePage] = OrderedDict()
        self._making = threading.Lock()  # one page at a time: each takes all the processor there is

    def listed(self) -> list[CaptureFile]:
        """Every capture there is now, the newest first."""
        captures: dict[str, CaptureFile] = {}
        for place in self.places:
            for path in _files(place) if place.is_dir() else [place]:
                name = str(path.relative_to(place)) if place.is_dir() else place.name
                if (capture := _capture(path, name)) is not None:
                    captures.setdefault(capture.id, capture)
        return sorted(captures.values(), key=lambda each: (-each.modified_ns, each.name))[:MOST_CAPTURES]

    def page(self, ids: Sequence[str]) -> bytes | None:
        """The page of one capture, or of two compared; None where there is none of that id."""
        by_id = {capture.id: capture for capture in self.listed()}
        if not all(key in by_id for key in ids):
            return None
        wanted = tuple(by_id[key] for key in ids)
        with self._making:
            if wanted not in self._pages:
                self._pages[wanted] = self._made(wanted)
            self._pages.move_to_end(wanted)
            while len(self._pages) > _KEPT_PAGES:
                self._pages.popitem(last=False)
            return self._pages[wanted].html

    def document(self, key: str) -> bytes | None:
        """The packed document that a page asks for; None where no cached page does."""
        for capture_page in list(self._pages.values()):
            if key in capture_page.documents:
                return capture_page.documents[key]
        return None

    def _made(self, wanted: Sequence[CaptureFile]) -> CapturePage:
        shown = [graph for capture in wanted for graph in viewed(capture.path)]
        title, apart, documents = title_of(shown), dict[str, bytes](), list[PageDocument]()
        for document in documents_of(shown, **self.extras):
            if len(document.packed) > MOST_INLINE_BYTES:
                key = _key(document.packed)
                apart[key] = document.packed
                document = replace(document, address=f"../document/{key}")
            documents.append(document)
        return CapturePage(page(documents, title=title, still=still(shown[0].graph, title)), apart)


def _files(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Regular files of a folder and those within it. Links that lead out of it are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # it was removed meanwhile, or may not be read
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth < _DEEPEST:
                yield from _files(path, depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield path


def _capture(path: Path, name: str) -> CaptureFile | None:
    """What is known of a file; None if it is not one of ours, or gone."""
    beginning = _BEGINNINGS.get(suffix_of(path))
    if beginning is None:
        return None
    try:
        with open_to_read(path) as file:
            if beginning not in file.read(_BEGINNING_BYTES):
                return None
            about = os.fstat(file.fileno())
    except OSError:
        return None
    key = _key(str(path).encode("utf-8", "surrogateescape"))
    return CaptureFile(key, name, path, about.st_size, about.st_mtime_ns)


def _key(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
