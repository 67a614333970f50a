"""SVG text -> a PNG of exactly the size asked for, with the fonts of the package and its resolution written inside.

resvg draws, without a browser. For characters beyond the package's font it turns to the fonts of the machine.
"""

from __future__ import annotations

import operator
import re
import struct
import zlib
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.render.fonts import FAMILY, font_files, has_all, spelled

MOST_PIXELS = 20_000  # along one side
MOST_PIXELS_IN_ALL = 200_000_000
# Pixels show no tooltip, and one strange character in them would have all fonts read. Ours are handed over as files: as
# part of the text they would have to be read again for every picture, and the widths of texts are theirs anyway.
_FOR_BROWSERS = re.compile(
    '<title>[^<]*</title>|<style>@font-face[^<]*</style>| textLength="[0-9.]+" lengthAdjust="spacingAndGlyphs"'
)
_ROOT = re.compile(r"<svg\b[^>]*>")
_SIGNATURE_AND_HEADER = 8 + 25  # bytes before the place where PNG wants the resolution


def to_png(svg: str, *, width: int, height: int, dpi: int = 96) -> bytes:
    """The picture in `width` x `height` pixels; `dpi` tells a printer how many of them make an inch.

    A picture of other proportions is centred, and the rest stays transparent. Characters that the package's font does
    not have are drawn with a font of the machine, and spelled (\\u6ce8) where it has none.
    """
    width, height, dpi = whole("width", width), whole("height", height), whole("dpi", dpi, 100_000)
    if width * height > MOST_PIXELS_IN_ALL:
        raise InvalidInputError(
            f"{width:,} x {height:,} are {width * height / 1e6:,.0f} million pixels; "
            f"a picture may have {MOST_PIXELS_IN_ALL // 1_000_000:,}. Choose a smaller one, or save an SVG."
        )
    svg = spelled(_FOR_BROWSERS.sub("", svg))
    return _with_resolution(rasterized(svg, width, height), dpi)


def rasterized(svg: str, width: int, height: int) -> bytes:
    """The picture as a PNG. Characters that no font has become boxes."""
    import resvg_py  # only now: most sessions draw nothing

    # Reading the fonts of the machine is slow, and without them a picture is the same on every machine.
    own_fonts_do = has_all(svg)
    try:
        png = resvg_py.svg_to_bytes(
            svg_string=_resized(svg, width, height),
            skip_system_fonts=own_fonts_do,
            font_family=FAMILY,
            sans_serif_family=FAMILY,
            font_files=font_files(),
        )
    except ValueError as error:
        raise InvalidInputError(f"the text is not an SVG document that can be drawn: {error}") from error
    return bytes(png)


def whole(name: str, size: Any, most: int = MOST_PIXELS, *, least: int = 1, what: str = "picture") -> int:
    """A number of pixels as Python's own int; numpy's whole numbers are welcome. Raises unless it is in range."""
    try:
        number = -1 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = -1
    if not least <= number <= most:
        raise InvalidInputError(
            f"{name}={size!r} is no size for a {what}; pass a whole number from {least} to {most:,}."
        )
    return number


def _resized(svg: str, width: int, height: int) -> str:
    """The document with a new size on its first tag. resvg's own width and height keep the proportions instead."""
    root = _ROOT.search(svg)
    sizes = {name: _number(root[0], name) for name in ("width", "height")} if root else {}
    if root is None or not all(sizes.values()):
        raise InvalidInputError("the text is not an SVG document with a width and a height; make one with Canvas.")
    tag = re.sub(r'\s(width|height|preserveAspectRatio)="[^"]*"', "", root[0])
    if "viewBox=" not in tag:
        tag = tag.replace("<svg", f'<svg viewBox="0 0 {sizes["width"]} {sizes["height"]}"', 1)
    scale = min(width / sizes["width"], height / sizes["height"])
    rest = max(width - scale * sizes["width"], height - scale * sizes["height"])
    # Less than a pixel is the rounding of the size: stretch the picture over it instead of leaving a hairline.
    fit = ' preserveAspectRatio="none"' if rest < 1 else ""
    tag = tag.replace("<svg", f'<svg width="{width}" height="{height}"{fit}', 1)
    return svg[: root.start()] + tag + svg[root.end() :]


def _number(tag: str, name: str) -> float:
    match = re.search(rf'\s{name}="([0-9.]+)(?:px|in)?"', tag)
    return float(match[1]) if match else 0.0


def _with_resolution(png: bytes, dpi: int) -> bytes:
    """The file with a pHYs chunk, in pixels per metre, right after its header."""
    per_metre = round(dpi / 0.0254)
    body = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_SIGNATURE_AND_HEADER] + chunk + png[_SIGNATURE_AND_HEADER:]
