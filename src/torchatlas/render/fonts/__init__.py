"""Text -> its width in the font that torchatlas ships (Inter), so that a label is placed, or cut, before it is drawn.

The fonts hold no kerning: a text is as wide as its characters together. README.md says how the files were made;
pieces.py puts them into an SVG.
Characters that they lack are drawn in a font of the machine; those that none has are spelled, and are as wide as that.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Collection
from functools import cache, lru_cache
from pathlib import Path
from unicodedata import category, east_asian_width

FAMILY = "Inter"
OURS = "torchatlas " + FAMILY  # what our copy is known by where others called Inter may be about
_FOLDER = Path(__file__).parent
_FILES = {False: _FOLDER / "Inter-Regular.otf", True: _FOLDER / "Inter-SemiBold.otf"}
_DOTS = "…"
_SHORT = 80  # characters: of longer texts it is not worth remembering how wide they are
_SEVERAL = re.compile(" … |, ")  # stands between names that are written as one
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*(?:[KMBTGP](?![A-Za-z0-9]))?")  # also 1,024 and 1.77M
_NOWHERE = "\U0010fffd"  # for private use, and in no font: what is drawn for it is drawn for all that is missing
_CELL = 24  # pixels, for a character that is tried
_TRIED = 400  # at a time


def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide `text` is at a font size of `size`, in the same unit.

    >>> text_width("Conv2d", 10) < text_width("Conv2d", 10, bold=True) < text_width("Conv2d", 11, bold=True)
    True
    """
    advances = _advances(bold)
    return _advance(text, bold) * size / advances.em


@lru_cache(maxsize=4096)  # a picture asks for the widths of few texts, of each many times
def _advance(text: str, bold: bool) -> int:
    _look_at(text)
    return sum(map(_advances(bold).__getitem__, text))


def clipped(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text, cut and ended with "…" where it is wider than `room`; empty where not even the dots fit.

    No number is cut: what is left of one would be another.

    >>> clipped("encoder.layers.0.attention", 10, 80), clipped("encoder", 10, 80), clipped("encoder", 10, 2)
    ('encoder.layers…', 'encoder', '')
    """
    if len(text) < _SHORT and text_width(text, size, bold) <= room:  # as most do, and their widths are known
        return text
    _look_at(text)
    advances = _advances(bold)
    used, kept = 0, 0
    for index, character in enumerate(text):
        if (used + advances[_DOTS]) * size / advances.em <= room:
            kept = index
        used += advances[character]
        if used * size / advances.em > room:  # what follows is not looked at: a name may have 10,000 characters
            dots = _DOTS if advances[_DOTS] * size / advances.em <= room else ""
            return text[: _before_number(text, kept)].rstrip() + dots
    return text


def _before_number(text: str, at: int) -> int:
    """Where to cut a text that should be cut at a place: there, or before the number that it lies in."""
    around = _NUMBER.finditer(text[: at + 3])  # after 1 of 1,024 one must see that more follows
    return next((found.start() for found in around if found.start() < at < found.end()), at)


def shortened(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text with "…" in its middle where it is wider than `room`: of names, both ends tell more.

    Words of a name with underscores stay whole if enough is left.

    >>> shortened("encoder.layers.0.attention.query", 10, 80), shortened("convolution_projection_key", 10, 90)
    ('encode…n.query', 'convolution…key')
    """
    cut, dots = clipped(text, size, room, bold), text_width(_DOTS, size, bold)
    if cut == text or room <= dots:
        return cut
    half = (room + dots) / 2  # each end is cut with dots, and loses them
    begin = clipped(text, size, half, bold).removesuffix(_DOTS)
    end = clipped(text[::-1], size, half, bold).removesuffix(_DOTS)[::-1]
    if word := end.partition("_")[2]:
        begin = clipped(text, size, room - text_width(word, size, bold), bold).removesuffix(_DOTS)
        whole = begin.rpartition("_")[0]
        begin, end = whole if 2 * len(whole) >= len(begin) else begin, word
    return f"{begin}{_DOTS}{end}" if begin and end else cut


def ending(text: str, size: float, room: float, bold: bool = False) -> str:
    """The most last parts of a dotted name that fit after "…"; empty if none does.

    Of several names as one ("layer.0 … 11", "layer.q, k") the first gives way, if the others are without its parts.

    >>> ending("encoder.layers.0.attention.query", 10, 80), ending("encoder.layer.0 … 11", 10, 70)
    ('…query', '…layer.0 … 11')
    """
    first, kept = _SEVERAL.split(text, maxsplit=1)[0], ""
    if "." in text[len(first) :]:
        return ""
    for at in reversed([at for at, character in enumerate(first[:-1]) if character == "."]):
        if text_width(_DOTS + text[at + 1 :], size, bold) > room:
            break
        kept = _DOTS + text[at + 1 :]
    return kept


def spelled(text: str) -> str:
    """The text as it can be drawn here: characters that no font of this machine has are written as Python writes them.

    In a PNG they would else be empty boxes, or nothing at all. An SVG keeps them, for a browser may have more fonts
    than the machine that drew it; there is room for either.
    """
    if has_all(text):
        return text
    _look_at(text)
    known = _drawable()
    return "".join(one if known.get(one, True) else _escape(one) for one in text)


def has_all(text: str) -> bool:
    """Whether every character of `text` is in the font. Line ends and tabs are drawn as spaces and count as such."""
    return _characters().issuperset(text)


def characters_of(cmap: bytes) -> set[str]:
    """The characters that a font has, from its table `cmap`."""
    return set(_glyphs(cmap, 0))


def font_files() -> list[str]:
    """The paths of the font files: regular, then semi-bold."""
    return [str(path) for path in _FILES.values()]


class _Advances(dict[str, int]):
    """How far each character moves the pen, in units of which one em has `em`. Whole numbers add up exactly."""

    em: int = 0

    def __missing__(self, character: str) -> int:
        if not _drawable().get(character, True):
            advance = sum(map(self.__getitem__, _escape(character)))
        elif category(character) in _NO_WIDTH:
            advance = 0
        else:  # another font will draw it, we cannot know which: East Asian characters fill an em, most others less
            advance = self.em if east_asian_width(character) in "WF" else round(0.6 * self.em)
        self[character] = advance
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


# -- what other fonts can draw -----------------------------------------------------------------------------------------

_NO_WIDTH = ("Mn", "Me", "Cf")  # accents on what is before them, joiners, marks of direction


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


@cache
def _drawable() -> dict[str, bool]:
    """Which characters beyond our font a font of this machine has, as far as they were looked at."""
    return {}


def _look_at(text: str) -> None:
    """Find out which of the characters of a text can be drawn, all of them at once: that has the fonts read."""
    if text.isascii() or has_all(text):
        return
    known = _drawable()
    new = [one for one in dict.fromkeys(text) if one not in known and one not in _characters()]
    for first in range(0, len(new), _TRIED):
        some = new[first : first + _TRIED]
        known.update(zip(some, _tried(some), strict=True))


def _tried(characters: Collection[str]) -> list[bool]:
    """Whether each is drawn as something else than what is drawn for a character that no font has."""
    from torchatlas.render.png import rasterized  # reads the fonts of the machine: not before there is a need
    from torchatlas.render.svg import safe

    ways = [_NOWHERE, *characters]
    texts = (f'<text x="6" y="{_CELL * row + 17}" font-size="12">{safe(one)}</text>' for row, one in enumerate(ways))
    high = _CELL * len(ways)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_CELL}" height="{high}" font-family="{FAMILY}">'
    pixels = _pixels(rasterized(svg + "".join(texts) + "</svg>", _CELL, high))
    size = len(pixels) // len(ways)
    missing, *found = (pixels[size * row : size * (row + 1)] for row in range(len(ways)))
    # What is only there to act on others draws nothing, and need not.
    return [one != missing or category(two) in _NO_WIDTH for one, two in zip(found, characters, strict=True)]


def _pixels(png: bytes) -> bytes:
    """The pixels of a PNG of four bytes each, such as ours are, row by row."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    wide = 4 * struct.unpack_from(">I", png, 16)[0]
    packed, before, found = zlib.decompress(data), bytes(wide), bytearray()
    for start in range(0, len(packed), wide + 1):
        row, guess = bytearray(packed[start + 1 : start + 1 + wide]), _GUESSES[packed[start]]
        if guess is not None:
            for index, byte in enumerate(row):
                left, corner = (row[index - 4], before[index - 4]) if index >= 4 else (0, 0)
                row[index] = (byte + guess(left, before[index], corner)) % 256
        before = bytes(row)
        found += row
    return bytes(found)


# How PNG guesses a byte from those to its left, above it and between the two: what is packed is the difference.
_GUESSES: tuple[Callable[[int, int, int], int] | None, ...] = (
    None,
    lambda left, above, corner: left,
    lambda left, above, corner: above,
    lambda left, above, corner: (left + above) // 2,
    lambda left, above, corner: min((left, above, corner), key=lambda one: abs(left + above - corner - one)),
)


# -- what is in the font files -----------------------------------------------------------------------------------------


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
