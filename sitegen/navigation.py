"""The navigation as mkdocs.yml writes it -> the one that names every page there is."""

from __future__ import annotations

import fnmatch
import posixpath
from typing import Any


def completed(nav: Any, pages: list[str]) -> Any:
    """The navigation without pages that may be absent and are, and with those that a * stands for."""
    named = {name.removesuffix("?") for name in _names(nav)}

    def entries(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            found = [one for entry in ([below] if isinstance(below, str) else below) for one in entries(entry)]
            return [{title: found[0] if isinstance(below, str) else found}] if found else []
        if entry.endswith("?"):
            return [entry[:-1]] if entry[:-1] in pages else []
        if entry.endswith("*"):
            folder = posixpath.dirname(entry)
            below = [page for page in fnmatch.filter(pages, entry) if posixpath.dirname(page) == folder]
            return [page for page in below if page not in named]
        return [entry]

    return [found for entry in nav for found in entries(entry)]


def _names(nav: Any) -> list[str]:
    if isinstance(nav, dict):
        return [name for below in nav.values() for name in _names(below)]
    return [name for below in nav for name in _names(below)] if isinstance(nav, list) else [nav]
