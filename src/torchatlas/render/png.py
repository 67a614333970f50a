"""SVG text -> a PNG of exactly the size asked for, with the fonts of the package and its resolution written inside.

Drawn by lunasvg, which hands out pixels; packing them here takes milliseconds, and resvg's own most of 0.3 s. Where a
text needs other fonts, or there is no lunasvg, resvg draws: it turns to the machine's fonts character by character.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from threading import Lock
from types import ModuleType

import numpy as np

from torchatlas.errors import InvalidInputError
from torchatlas.render.fonts import FAMILY, OURS, font_files, has_all, spelled

MOST_PIXELS = 20_000  # along one side
MOST_PIXELS_IN_ALL = 200_000_000
# Pixels show no tooltip, and one strange character in them would have all fonts read. Ours are handed over as files: as
# part of the text they would have to be read again for every picture, and the widths of texts are theirs anyway.
_FOR_BROWSERS = re.compile(
    '<title>[^<]*</title>|<style>@font-face[^<]*</style>| textLength="[0-9.]+" lengthAdjust="spacingAndGlyphs"'
)
_ROOT = re.compile(r"<svg\b[^>]*>")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIGNATURE_AND_HEADER = 8 + 25  # bytes before the place where PNG wants the resolution
_reading = Lock()  # of a module that must be read once
_EFFORT = 2  # of ISA-L; zlib's usual effort makes a file a sixth smaller, and takes twenty times as long


def to_png(svg: str, *, width: int, height: int, dpi: int = 96) -> bytes:
    """The picture in `width` x `height` pixels; `dpi` tells a printer how many of them make an inch.

    A picture of other proportions is centred, and the rest stays transparent. Characters that the package's font does
    not have are drawn with a font of the machine, and spelled (\\u6ce8) where it has none.
    """
    _check(width, height, dpi)
    svg = spelled(_FOR_BROWSERS.sub("", svg))
    png = _drawn(_resized(svg, width, height), width, height) if has_all(svg) else None
    return _with_resolution(png or rasterized(svg, width, height), dpi)


# -- lunasvg -----------------------------------------------------------------------------------------------------------


@cache
def _lunasvg() -> ModuleType | None:
    """lunasvg with our fonts; None where it is not, or nothing packs what it draws: not every platform has a wheel."""
    try:
        import isal  # noqa: F401, not before the first picture, as the other

        with _reading:
            lunasvg = _compiled("pylunasvg")
    except ImportError:
        return None
    files = zip((False, True), font_files(), strict=True)
    added = [lunasvg.lunasvg_add_font_face_from_file(OURS, bold, False, file) for bold, file in files]
    return lunasvg if all(added) else None


def _compiled(package: str) -> ModuleType:
    """The compiled module of a package that has its name. What is around pylunasvg's can fetch pictures from the web:
    to import all that this needs takes as long as to draw one."""
    name = f"{package}.{package}"
    around = find_spec(package)
    spec = around and PathFinder.find_spec(name, around.submodule_search_locations)
    if name not in sys.modules and spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module  # for whoever imports the package later: it must not be read twice
    return sys.modules[name] if name in sys.modules else import_module(name)


def _drawn(svg: str, width: int, height: int) -> bytes | None:
    """The picture as a PNG; None if lunasvg is not there or cannot read the text: resvg says what is wrong with it."""
    lunasvg = _lunasvg()
    if lunasvg is None:
        return None
    tag = _ROOT.search(svg)
    assert tag is not None  # `_resized` has looked at it
    ours = re.sub(r'\sfont-family="[^"]*"', "", tag[0]).replace("<svg", f'<svg font-family="{OURS}"', 1)
    document = lunasvg.Document.loadFromData(svg[: tag.start()] + ours + svg[tag.end() :])
    bitmap = None if document is None else document.renderToBitmap(width, height)
    if bitmap is None or bitmap.isNull():
        return None
    pixels = np.array(bitmap, copy=False)  # of blue, green, red and opacity
    if np.bitwise_and.reduce(pixels.view(np.uint32), axis=None) >> 24 == 255:  # three times as fast as the least of all
        return _packed(pixels[..., 2::-1])
    bitmap.convertToRGBA()
    return _packed(pixels)


def _packed(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """A PNG of red, green, blue and, if there are four of them, opacity. Rows are packed as they are: large areas of a
    picture have one colour, and the differences that PNG knows would not make a smaller file of them."""
    from isal import isal_zlib

    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with how it is packed
    into = rows[:, 1:].reshape(height, width, channels)
    for channel in range(channels):  # one by one: numpy is five times as slow at all of them
        into[..., channel] = pixels[..., channel]
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", isal_zlib.compress(rows.data, _EFFORT)), _chunk(b"IEND", b""))
    return _SIGNATURE + b"".join(chunks)


# -- resvg -------------------------------------------------------------------------------------------------------------


def rasterized(svg: str, width: int, height: int) -> bytes:
    """The picture as a PNG, characters that no font has as boxes."""
    import resvg_py  # as above

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


# -- sizes -------------------------------------------------------------------------------------------------------------


def _check(width: int, height: int, dpi: int) -> None:
    for name, size, most in (("width", width, MOST_PIXELS), ("height", height, MOST_PIXELS), ("dpi", dpi, 100_000)):
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= most:
            raise InvalidInputError(
                f"{name}={size!r} is no size for a picture; pass a whole number from 1 to {most:,}."
            )
    if width * height > MOST_PIXELS_IN_ALL:
        raise InvalidInputError(
            f"{width:,} x {height:,} are {width * height / 1e6:,.0f} million pixels; "
            f"a picture may have {MOST_PIXELS_IN_ALL // 1_000_000:,}. Choose a smaller one, or save an SVG."
        )


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
    found = re.search(rf'\s{name}="([0-9.]+)(?:px)?"', tag)
    return float(found[1]) if found else 0.0


def _with_resolution(png: bytes, dpi: int) -> bytes:
    """The file with a pHYs chunk, in pixels per metre, right after its header; all else is kept."""
    per_metre = round(dpi / 0.0254)
    chunk = _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1))
    return png[:_SIGNATURE_AND_HEADER] + chunk + png[_SIGNATURE_AND_HEADER:]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
