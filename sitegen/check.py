"""A built site -> what is wrong with it: links that lead nowhere, and whatever would ask another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# A link that a reader may follow is no request; these load by themselves.
LOADED = {("link", "href"), ("use", "href"), ("image", "href")}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.style = ""
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif (name in ("src", "srcset", "data", "poster") and value) or ((tag, name) in LOADED and value):
                self.loads.append(value or "")
            elif name == "href" and value:
                self.links.append(value)
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        self.style += data if self._in_style else ""

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


def problems(folder: Path) -> list[str]:
    """One line for each; empty for a site that works from a folder without a network."""
    pages = {
        path: Page(path.read_text()) for path in sorted(folder.rglob("*.html")) if "live" not in path.parts
    }  # the viewer's own tests look at its pages
    found: list[str] = []
    for path, page in pages.items():
        where = path.relative_to(folder)
        for url in page.loads + _urls(page.style):
            found += [f"{where}: loads {url}"] if _is_foreign(url) else []
        for url in page.loads + page.links:
            found += [f"{where}: {url} leads nowhere"] if not _leads(path, url, pages) else []
    for path in sorted(folder.rglob("*.css")):
        found += [f"{path.relative_to(folder)}: loads {url}" for url in _urls(path.read_text()) if _is_foreign(url)]
    return found


def _urls(style: str) -> list[str]:
    return re.findall(r"url\(['\"]?([^)'\"]+)", style)


def _is_foreign(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _leads(path: Path, url: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("https", "data", "mailto")
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return False
    # The theme makes #__tabbed and the like itself.
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].ids or anchor.startswith("__")
