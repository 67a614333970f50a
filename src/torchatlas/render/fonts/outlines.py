"""A piece of our font -> what a PDF embeds of it: its outlines (CFF), and the number of the glyph of each character."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from torchatlas.render.fonts import font_files


@dataclass(frozen=True)
class Outlines:
    """One piece of the font in one weight."""

    name: str  # as PDF wants the name of a part of a font: six letters that tell the parts apart, "+", the font's name
    cff: bytes = field(repr=False)
    glyphs: dict[str, int] = field(repr=False)
    bounds: tuple[int, int, int, int]  # of all glyphs: left, bottom, right, top, in thousandths of an em


@cache
def outlines(piece: str, bold: bool) -> Outlines:
    """The outlines of "basic", "letters" or "signs"; README.md says what is in them.

    >>> outlines("basic", True).name, len({outlines("basic", True).glyphs[one] for one in "ReLU"})
    ('BASICX+Inter-SemiBold', 4)
    """
    whole = Path(font_files()[bold])
    tables = _tables(whole.with_name(f"{whole.stem}-{piece}.woff").read_bytes())
    (em,) = struct.unpack_from(">H", tables["head"], 18)
    left, bottom, right, top = (round(1000 * at / em) for at in struct.unpack_from(">4h", tables["head"], 36))
    name = f"{piece.upper()[:6]:X<6}+{whole.stem}"
    return Outlines(name, tables["CFF "], _glyphs(tables["cmap"]), (left, bottom, right, top))


def _tables(woff: bytes) -> dict[str, bytes]:
    """The tables of a WOFF file: they are the font's, each compressed where that makes it shorter."""
    (count,) = struct.unpack_from(">H", woff, 12)
    tables = {}
    for index in range(count):
        tag, start, length, whole = struct.unpack_from(">4sLLL", woff, 44 + 20 * index)
        table = woff[start : start + length]
        tables[tag.decode("ascii")] = table if length == whole else zlib.decompress(table)
    return tables


def _glyphs(cmap: bytes) -> dict[str, int]:
    """Character -> glyph, from the first subtable of a `cmap`: pyftsubset writes it in format 4, runs of characters."""
    (start,) = struct.unpack_from(">L", cmap, 8)
    (twice,) = struct.unpack_from(">H", cmap, start + 6)
    runs = start + 14  # four arrays of `twice` bytes follow; two bytes lie between the first and the second
    words = f">{twice // 2}H"
    last, first, delta, shift = (struct.unpack_from(words, cmap, runs + at * twice + 2 * (at > 0)) for at in range(4))
    glyphs: dict[str, int] = {}
    for run, begin in enumerate(first):
        for code in range(begin, min(last[run], 0xFFFE) + 1):  # the run of 0xFFFF marks the end
            glyph = code
            if shift[run]:  # how far away the glyphs of this run are listed, from where that is said
                at = runs + 2 + 3 * twice + 2 * run + shift[run] + 2 * (code - begin)
                (glyph,) = struct.unpack_from(">H", cmap, at)
            if glyph:
                glyphs[chr(code)] = (glyph + delta[run]) % 65536
    return glyphs
