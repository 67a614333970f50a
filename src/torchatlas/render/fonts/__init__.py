"""Text -> its width in the font that torchatlas ships (Inter), so that a label is placed, or cut, before it is drawn.

The fonts hold no kerning: a text is as wide as its characters together, and widths.json has the width of each.
README.md says how the files were made; pieces.py puts the fonts into an SVG.
A character beyond the font is drawn in a font of the machine, and its width is estimated: one em if Unicode calls it
wide, 0.6 em otherwise. Scripts that no font of the machine has are spelled as escapes, and are as wide as those.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from pathlib import Path
from unicodedata import category, east_asian_width, name

FAMILY = "Inter"
OURS = "torchatlas " + FAMILY  # the family name of our copy, so that no other Inter of the machine is taken for it
_FOLDER = Path(__file__).parent
_FILES = {False: _FOLDER / "Inter-Regular.otf", True: _FOLDER / "Inter-SemiBold.otf"}
_EM = 2816  # units of the widths in widths.json
_DOTS = "…"
_SHORT = 80  # characters: the widths of longer texts are not worth a place in the cache
_SEVERAL = re.compile(" … |, ")  # stands between names that are written as one
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*(?:[KMBTGP](?![A-Za-z0-9]))?")  # also 1,024 and 1.77M
_NO_WIDTH = ("Mn", "Me", "Cf")  # Unicode categories: accents on the character before, joiners, marks of direction
_NOWHERE = "\U0010fffd"  # for private use: in no font, so it is drawn as every missing character is


def text_width(text: str, size: float, bold: bool = False) -> float:
    """The width of `text` at a font size, in the unit of `size`.

    >>> text_width("Conv2d", 10) < text_width("Conv2d", 10, bold=True) < text_width("Conv2d", 11, bold=True)
    True
    """
    return _advance(text, bold) * size / _EM


@lru_cache(maxsize=4096)  # a picture asks for the widths of few texts, of each many times
def _advance(text: str, bold: bool) -> int:
    return sum(map(_advances(bold).__getitem__, text))


def clipped(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text, cut at its end by "…" where it is wider than `room`; empty where not even the dots fit.

    A number is left out as a whole: its first digits would be another number.

    >>> clipped("encoder.layers.0.attention", 10, 80), clipped("encoder", 10, 80), clipped("encoder", 10, 2)
    ('encoder.layers…', 'encoder', '')
    """
    if len(text) < _SHORT and text_width(text, size, bold) <= room:  # most texts fit, and their widths are cached
        return text
    advances = _advances(bold)
    used, cut_at = 0, 0
    for index, character in enumerate(text):
        if (used + advances[_DOTS]) * size / _EM <= room:
            cut_at = index
        used += advances[character]
        if used * size / _EM > room:  # stop here: a name may have 10,000 characters
            dots = _DOTS if advances[_DOTS] * size / _EM <= room else ""
            return text[: _before_number(text, cut_at)].rstrip() + dots
    return text


def _before_number(text: str, at: int) -> int:
    """The index `at`, or that of the number around it."""
    numbers = _NUMBER.finditer(text[: at + 3])  # three characters more, to see that 1 is the beginning of 1,024
    return next((number.start() for number in numbers if number.start() < at < number.end()), at)


def shortened(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text with "…" in its middle where it is wider than `room`: both ends of a name tell something.

    The words of a name with underscores stay whole where enough of them fit.

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


def ending(text: str, size: float, room: float) -> str:
    """As many last parts of a dotted name as fit after "…"; empty if none fits.

    Where several names are written as one ("layer.0 … 11", "layer.q, k"), parts of the first name are left out;
    empty if the other names have dots, too.

    >>> ending("encoder.layers.0.attention.query", 10, 80), ending("encoder.layer.0 … 11", 10, 70)
    ('…query', '…layer.0 … 11')
    """
    first, end = _SEVERAL.split(text, maxsplit=1)[0], ""
    if "." in text[len(first) :]:
        return ""
    for at in reversed([at for at, character in enumerate(first[:-1]) if character == "."]):
        if text_width(_DOTS + text[at + 1 :], size) > room:
            break
        end = _DOTS + text[at + 1 :]
    return end


def spelled(text: str) -> str:
    """Replace characters that no font of this machine has by their Python escapes (\\u6ce8).

    In a PNG they would be empty boxes. An SVG keeps them, since a browser may have more fonts than this machine; labels
    leave room for both.
    """
    if has_all(text):
        return text
    ours = _characters()
    return "".join(
        character if character in ours or _machine_draws(character) else _escape(character) for character in text
    )


def has_all(text: str) -> bool:
    """True if the font has every character of `text`. Line ends and tabs are drawn as spaces."""
    return _characters().issuperset(text)


def font_files() -> list[str]:
    """The paths of the font files: regular, then semi-bold."""
    return [str(path) for path in _FILES.values()]


@cache
def widths_by_piece() -> dict[str, dict[str, tuple[int, int]]]:
    """For each piece of the font, its characters with their widths in regular and in semi-bold."""
    pieces: dict[str, dict[str, tuple[int, int]]] = json.loads((_FOLDER / "widths.json").read_text("utf-8"))
    return pieces


class _Advances(dict[str, int]):
    """How far each character moves the pen. Whole numbers, because they add up exactly."""

    def __missing__(self, character: str) -> int:
        if not _machine_draws(character):
            advance = sum(map(self.__getitem__, _escape(character)))
        elif category(character) in _NO_WIDTH:
            advance = 0
        else:
            advance = _EM if east_asian_width(character) in "WF" else round(0.6 * _EM)
        self[character] = advance
        return advance


@cache
def _advances(bold: bool) -> _Advances:
    advances = _Advances(
        {character: widths[bold] for piece in widths_by_piece().values() for character, widths in piece.items()}
    )
    for blank in "\t\n\r":
        advances[blank] = advances[" "]
    return advances


@cache
def _characters() -> frozenset[str]:
    return frozenset("\t\n\r").union(*widths_by_piece().values())


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _machine_draws(character: str) -> bool:
    """True if a font of this machine has the script of a character. The first character of each script is tried."""
    if category(character) in _NO_WIDTH:
        return True  # draws nothing by itself
    # Unicode names begin with the script: "CJK 0". Fonts that have a script in plane 0 may lack it in plane 2.
    script = f"{name(character, category(character)).partition(' ')[0]} {ord(character) >> 16}"
    known = _drawn_scripts()
    if script not in known:
        known[script] = _glyph(character) != _glyph(_NOWHERE)
    return known[script]


@cache
def _drawn_scripts() -> dict[str, bool]:
    return {}


def _glyph(character: str) -> bytes:
    from torchatlas.render.png import rasterized  # reads the fonts of the machine: only where there is a need
    from torchatlas.render.svg import safe

    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24" font-family="{FAMILY}">'
    return rasterized(f'{svg}<text x="6" y="17" font-size="12">{safe(character)}</text></svg>', 24, 24)
