r"""Names from models -> text that may stand in an XML file. XML 1.0 has no way to write most control characters."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.sax.saxutils import escape

# https://www.w3.org/TR/xml/#charsets: what is not a Char, not even as a numbered reference.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A parser turns these into spaces or line feeds unless they are numbered.
_NUMBERED = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}


def xml_text(text: str) -> str:
    r"""Text for an attribute or an element: markup is escaped, and what XML forbids is shown as Python escapes it.

    >>> xml_text('<a "b">\n\x00\ud800')
    '&lt;a &quot;b&quot;&gt;&#10;\\x00\\ud800'
    """
    return escape(_FORBIDDEN.sub(_shown, text), _NUMBERED)


def _shown(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def remembering() -> Callable[[str], str]:
    """`xml_text` for a file in which most texts come many times."""
    known: dict[str, str] = {}

    def text(item: str) -> str:
        if (found := known.get(item)) is None:
            found = known[item] = xml_text(item)
        return found

    return text
