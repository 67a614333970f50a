"""Text -> its width in the font that torchatlas ships (Inter), so that a label is placed, or cut, before it is drawn.

The fonts hold no kerning: a text is as wide as its characters together. README.md says how the files were made.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from unicodedata import east_asian_width

FAMILY = "Inter"
_FOLDER = Path(__file__).parent
_FILES = {False: _FOLDER / "Inter-Regular.otf", True: _FOLDER / "Inter-SemiBold.otf"}
_DOTS = "…"


def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide `text` is at a font size of `size`, in the same unit.

    >>> text_width("Conv2d", 10) < text_width("Conv2d", 10, bold=True) < text_width("Conv2d", 11, bold=True)
    True
    """
    advances = _advances(bold)
    return sum(map(advances.__getitem__, text)) * size / advances.em


def clipped(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text, cut and ended with "…" where it is wider than `room`; empty where not even the dots fit.

    >>> clipped("encoder.layers.0.attention", 10, 80), clipped("encoder", 10, 80), clipped("encoder", 10, 2)
    ('encoder.layers…', 'encoder', '')
    """
    advances = _advances(bold)
    used, kept = 0, 0
    for index, character in enumerate(text):
        if (used + advances[_DOTS]) * size / advances.em <= room:
            kept = index
        used += advances[character]
        if used * size / advances.em > room:  # what follows is not looked at: a name may have 10,000 characters
            dots = _DOTS if advances[_DOTS] * size / advances.em <= room else ""
            return text[:kept].rstrip() + dots
    return text


def has_all(text: str) -> bool:
    """Whether every character of `text` is in the font. Line ends and tabs are drawn as spaces and count as such."""
    return _characters().issuperset(text)


def font_files() -> list[str]:
    """The paths of the font files: regular, then semi-bold."""
    return [str(path) for path in _FILES.values()]


class _Advances(dict[str, int]):
    """How far each character moves the pen, in units of which one em has `em`. Whole numbers add up exactly."""

    em: int = 0

    def __missing__(self, character: str) -> int:
        # Another font will draw it, we cannot know which: East Asian characters fill an em, most others less.
        wide = east_asian_width(character) in "WF"
        self[character] = advance = self.em if wide else round(0.6 * self.em)
        return advance


@cache
def _advances(bold: bool) -> _Advances:
    data = _FILES[bold].read_bytes()
    tables = _tables(data)
    (em,) = struct.unpack_from(">H", data, tables["head"] + 18)
    (metrics,) = struct.unpack_from(">H", data, tables["hhea"] + 34)
    # One (advance, left bearing) pair per glyph; glyphs after the last pair have its advance.
    glyphs = struct.unpack_from(">" + "Hh" * metrics, data, tables["hmtx"])[::2]
    advances = _Advances({c: glyphs[min(glyph, metrics - 1)] for c, glyph in _glyphs(data, tables["cmap"]).items()})
    advances.em = em
    for blank in "\t\n\r":
        advances[blank] = advances[" "]
    return advances


@cache
def _characters() -> frozenset[str]:
    data = _FILES[False].read_bytes()
    return frozenset(_glyphs(data, _tables(data)["cmap"])) | frozenset("\t\n\r")


def _tables(data: bytes) -> dict[str, int]:
    """Where each table of a font file starts."""
    (count,) = struct.unpack_from(">H", data, 4)
    entries = (struct.unpack_from(">4sLLL", data, 12 + 16 * index) for index in range(count))
    return {tag.decode("ascii"): offset for tag, _, offset, _ in entries}


def _glyphs(data: bytes, cmap: int) -> dict[str, int]:
    """Character -> glyph, from the first subtable of a `cmap`, which is of format 4: runs of characters."""
    (offset,) = struct.unpack_from(">L", data, cmap + 8)
    start = cmap + offset
    version, _, _, twice = struct.unpack_from(">4H", data, start)
    assert version == 4, "a font that pyftsubset wrote as fonts/README.md says has a cmap of format 4"
    count = twice // 2
    last = struct.unpack_from(f">{count}H", data, start + 14)
    first = struct.unpack_from(f">{count}H", data, start + 16 + twice)
    delta = struct.unpack_from(f">{count}H", data, start + 16 + 2 * twice)
    ranges = start + 16 + 3 * twice
    glyphs: dict[str, int] = {}
    for run in range(count):
        (shift,) = struct.unpack_from(">H", data, ranges + 2 * run)
        for code in range(first[run], last[run] + 1):
            glyph = code
            if shift:  # an index into the words that follow, counted from the place of `shift` itself
                (glyph,) = struct.unpack_from(">H", data, ranges + 2 * run + shift + 2 * (code - first[run]))
            if glyph and code != 0xFFFF:  # the last run is a mark: 0xFFFF and nothing else
                glyphs[chr(code)] = (glyph + delta[run]) % 65536
    return glyphs
