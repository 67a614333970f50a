"""The characters of a picture -> a style sheet that carries our font for them, so that no viewer needs to have it.

The font is cut into pieces (README.md says how): what nearly every picture is written with, other letters, other signs.
A picture gets those that it uses, as data, so that nothing is fetched. They are WOFF and not WOFF2, which would be a
sixth smaller: Python reads the one by itself.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from torchatlas.render.fonts import OURS, characters_of, font_files

_PIECES = ("basic", "letters", "signs")


@dataclass(frozen=True)
class _Piece:
    """Some of the characters of one weight: a font file, and the rule that brings it along."""

    data: bytes
    characters: frozenset[str]
    rule: str


def font_style(used: Mapping[bool, Iterable[str]]) -> str:
    """The rules for the characters that are used in regular (False) and in semi-bold (True); those of others are left
    to the viewer.

    >>> font_style({True: "Conv2d"})[:68]
    '@font-face{font-family:"torchatlas Inter";font-weight:600;src:url(da'
    """
    rules = []
    for bold, characters in sorted(used.items()):
        wanted = frozenset(characters)
        rules += [piece.rule for piece in _pieces(bold) if wanted & piece.characters]
    return "\n".join(rules)


@cache
def _pieces(bold: bool) -> list[_Piece]:
    whole = Path(font_files()[bold])
    return [_piece(whole.with_name(f"{whole.stem}-{name}.woff").read_bytes(), bold) for name in _PIECES]


def _piece(data: bytes, bold: bool) -> _Piece:
    characters = frozenset(characters_of(_table(data, b"cmap")))
    # Which characters it has is said too: a piece without the one in question must not stand in for that which has it.
    rule = (
        f'@font-face{{font-family:"{OURS}";font-weight:{600 if bold else 400};'
        f'src:url(data:font/woff;base64,{b64encode(data).decode()}) format("woff");'
        f"unicode-range:{_ranges(characters)}}}"
    )
    return _Piece(data, characters, rule)


def _table(data: bytes, wanted: bytes) -> bytes:
    """One table of a WOFF: packed, if that makes it smaller."""
    (count,) = struct.unpack_from(">H", data, 12)
    for index in range(count):
        tag, start, length, whole = struct.unpack_from(">4sLLL", data, 44 + 20 * index)
        if tag == wanted:
            table = data[start : start + length]
            return table if length == whole else zlib.decompress(table)
    raise AssertionError(f"a font has a table {wanted!r}")


def _ranges(characters: Iterable[str]) -> str:
    """Characters as CSS counts them.

    >>> _ranges("cab→")
    'U+61-63,U+2192'
    """
    codes = sorted(map(ord, characters))
    gaps = [(a, b) for a, b in pairwise(codes) if b > a + 1]
    starts, ends = [codes[0], *(b for _, b in gaps)], [*(a for a, _ in gaps), codes[-1]]
    return ",".join(f"U+{a:X}" + (f"-{b:X}" if b > a else "") for a, b in zip(starts, ends, strict=True))
