r"""Text from strangers -> text that may be shown: names, notes and source lines come from models and files, so from
anybody, and must not control the reader's terminal or spreadsheet.

Text for people (`str`, `repr`, messages, tables) passes through `clean` where it is made. Data (names in a graph, JSON,
pandas) stays exact.
"""

from __future__ import annotations

import re

_NOT_ASCII_TEXT = re.compile(r"[^ -~]+")
# OWASP, "CSV Injection": a spreadsheet computes cells that begin so. The last four are the wide forms of the first.
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def clean(text: str) -> str:
    r"""One line in which the characters that a terminal obeys or hides are shown as escapes.

    These are the characters that `repr` escapes as well: controls and line ends, direction marks, characters without
    width, halves of surrogate pairs. All others stay; cleaning twice changes nothing.

    >>> clean("conv\x1b[31m[bold]ü\u202e")
    'conv\\x1b[31m[bold]ü\\u202e'
    """
    return text if text.isprintable() else _NOT_ASCII_TEXT.sub(_escaped, text)


def _escaped(run: re.Match[str]) -> str:
    return run[0] if run[0].isprintable() else "".join(map(_shown, run[0]))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def clean_text(text: str) -> str:
    r"""Clean a text of several lines: line feeds stay. For whole texts; a name with line feeds could imitate our lines.

    >>> clean_text("first\nsecond\x07")
    'first\nsecond\\x07'
    """
    return "\n".join(map(clean, text.split("\n")))


def quoted(text: str, most: int = 60) -> str:
    r"""A text for a message: in quotation marks, cut, and clean.

    >>> quoted("\x1b[2J"), quoted("ab" * 100, 6)
    ("'\\x1b[2J'", "'ababab…'")
    """
    return repr(text if len(text) <= most else f"{text[:most]}…")


def encodable(text: str) -> str:
    r"""Text that UTF-8 has: half a surrogate pair, which a name may hold, is shown as an escape.

    >>> encodable("a\ud800b")
    'a\\ud800b'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def cell(text: str) -> str:
    """Text for a cell of a spreadsheet: an apostrophe goes before what would be taken for a formula.

    >>> cell("=1+1"), cell("layer1.0")
    ("'=1+1", 'layer1.0')
    """
    return f"'{text}" if _FORMULA.match(text) else text
