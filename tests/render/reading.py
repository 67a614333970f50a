"""What was drawn, read back: shapes of an SVG, its texts with the boxes they cover, and the tags of an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

from torchatlas.render.fonts import text_width

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.encode())


def title_of(shape: ElementTree.Element) -> str:
    found = shape.find(SVG + "title")
    return "" if found is None else found.text or ""


def shapes(svg: str, tag: str) -> dict[str, list[ElementTree.Element]]:
    """The shapes that have a title, by it."""
    found: dict[str, list[ElementTree.Element]] = {}
    for shape in parsed(svg).iter(SVG + tag):
        if title_of(shape):
            found.setdefault(title_of(shape), []).append(shape)
    return found


def shown(text: ElementTree.Element) -> str:
    tooltip = text.find(SVG + "title")
    return (text.text or "") if tooltip is None else tooltip.tail or ""


def texts(svg: str) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Each text with the box it covers: left, top, right, bottom."""
    found = []
    for one in parsed(svg).iter(SVG + "text"):
        size, x, y = (float(one.attrib[key]) for key in ("font-size", "x", "y"))
        words = shown(one)
        width = text_width(words, size, bold="font-weight" in one.attrib)
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[one.attrib.get("text-anchor", "start")]
        found.append((words, (left, y - 0.73 * size, left + width, y + 0.2 * size)))
    return found


class Tags(HTMLParser):
    """The tags and attributes of a page, those that are still open, and its text. Each tag must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
