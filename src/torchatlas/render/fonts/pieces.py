"""The characters of a picture -> a style sheet that carries our font for them, so that no viewer needs to have it.

The font is cut into pieces (README.md says how): what nearly every picture is written with, other letters, other signs.
A picture gets those that it uses, as data, so that nothing is fetched.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from torchatlas.render.fonts import OURS, font_files, widths_by_piece


def font_style(used: Mapping[bool, Iterable[str]]) -> str:
    """The rules for the characters that are used in regular (False) and in semi-bold (True). Characters beyond our font
    have none.

    >>> font_style({True: "Conv2d"})[:68]
    '@font-face{font-family:"torchatlas Inter";font-weight:600;src:url(da'
    """
    rules = []
    for bold, characters in sorted(used.items()):
        wanted = frozenset(characters)
        rules += [_rule(piece, bold) for piece, widths in widths_by_piece().items() if wanted & widths.keys()]
    return "\n".join(rules)


@cache
def _rule(piece: str, bold: bool) -> str:
    whole = Path(font_files()[bold])
    data = b64encode(whole.with_name(f"{whole.stem}-{piece}.woff").read_bytes()).decode()
    # The characters are listed, so that a browser takes no piece for a character that another piece has.
    return (
        f'@font-face{{font-family:"{OURS}";font-weight:{600 if bold else 400};'
        f'src:url(data:font/woff;base64,{data}) format("woff");'
        f"unicode-range:{_ranges(widths_by_piece()[piece])}}}"
    )


def _ranges(characters: Iterable[str]) -> str:
    """Characters as CSS lists them.

    >>> _ranges("cab→")
    'U+61-63,U+2192'
    """
    codes = sorted(map(ord, characters))
    gaps = [(a, b) for a, b in pairwise(codes) if b > a + 1]
    starts, ends = [codes[0], *(b for _, b in gaps)], [*(a for a, _ in gaps), codes[-1]]
    return ",".join(f"U+{a:X}" + (f"-{b:X}" if b > a else "") for a, b in zip(starts, ends, strict=True))
