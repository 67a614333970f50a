r"""Names from models -> text that may stand in an XML file, and rows of attributes -> its elements.

XML 1.0 has no way to write most control characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

# https://www.w3.org/TR/xml/#charsets: what is not a Char, not even as a numbered reference.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A parser turns these into spaces or line feeds unless they are numbered.
_NUMBERED = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_BATCH = 2_000  # elements that are one piece of the file


def xml_text(text: str) -> str:
    r"""Text for an attribute or an element: markup is escaped, and what XML forbids is shown as Python escapes it.

    >>> xml_text('<a "b">\n\x00\ud800')
    '&lt;a &quot;b&quot;&gt;&#10;\\x00\\ud800'
    """
    return escape(_FORBIDDEN.sub(_shown, text), _NUMBERED)


def _shown(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def remembering() -> Callable[[str], str]:
    """`xml_text` with a cache: in a file most texts occur many times."""
    known: dict[str, str] = {}

    def text(item: str) -> str:
        if (escaped := known.get(item)) is None:
            escaped = known[item] = xml_text(item)
        return escaped

    return text


@dataclass(frozen=True)
class Attribute:
    """One attribute of all elements: what stands before and after each item, which is None where it is unknown."""

    before: str
    items: Sequence[Any]
    after: str


def xml_elements(starts: Iterable[str], attributes: Sequence[Attribute], end: str) -> Iterator[str]:
    """Elements with their attributes in them, many in one piece of text. Unknown attributes are left out."""
    text, piece = remembering(), list[str]()
    columns = zip(*(attribute.items for attribute in attributes), strict=True)
    for at, (start, row) in enumerate(zip(starts, columns, strict=True)):
        piece.append(start)
        for attribute, item in zip(attributes, row, strict=True):
            if item is not None:
                piece += (attribute.before, text(item) if isinstance(item, str) else str(item), attribute.after)
        piece.append(end)
        if not at % _BATCH:
            yield "".join(piece)
            piece.clear()
    yield "".join(piece)
