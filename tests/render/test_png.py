"""PNG: exact pixels, the resolution written, text without any font of the machine, clear refusals."""

from __future__ import annotations

import re
import struct
import zlib
from typing import Any

import pytest
import resvg_py

from torchatlas.errors import InvalidInputError
from torchatlas.render import fonts, png
from torchatlas.render.png import to_png
from torchatlas.render.svg import Canvas
from torchatlas.render.theme import LIGHT


def page(text: str = "", width: float = 60, height: float = 40) -> str:
    canvas = Canvas(width, height, LIGHT)
    canvas.text(5, 25, text, size=16, fill="#000000")
    return canvas.markup()


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Every chunk, checksums tested."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = [], 8
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + size)
        assert zlib.crc32(kind + body) == checksum, kind
        found.append((kind, body))
        at += 12 + size
    return found


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and raw RGBA, whose filters are all undone."""
    parts = dict(chunks(data))
    width, height, depth, colour = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert (depth, colour) in ((8, 2), (8, 6))
    size = 3 if colour == 2 else 4
    raw = zlib.decompress(b"".join(body for kind, body in chunks(data) if kind == b"IDAT"))
    stride, rows = size * width, bytearray()
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        above = rows[-stride:] if y else bytes(stride)
        for x in range(stride):
            left, corner = (line[x - size], above[x - size]) if x >= size else (0, 0)
            guess = left + above[x] - corner
            paeth = min((left, above[x], corner), key=lambda one: abs(guess - one))
            line[x] = (line[x] + (0, left, above[x], (left + above[x]) // 2, paeth)[kind]) % 256
        rows += line
    found = bytes(rows)
    if size == 3:
        found = b"".join(found[at : at + 3] + b"\xff" for at in range(0, len(found), 3))
    return width, height, found


@pytest.mark.parametrize("size", [(60, 40), (120, 80), (61, 41), (40, 200), (1, 1)])
def test_the_size_is_exact(size: tuple[int, int]) -> None:
    png = to_png(page("hi"), width=size[0], height=size[1])
    assert struct.unpack_from(">II", png, 16) == size


@pytest.mark.parametrize(("dpi", "per_metre"), [(96, 3780), (300, 11811), (72, 2835)])
def test_the_resolution_is_written_once_and_before_the_pixels(dpi: int, per_metre: int) -> None:
    found = chunks(to_png(page("hi"), width=60, height=40, dpi=dpi))
    kinds = [kind for kind, _ in found]
    assert kinds[:2] == [b"IHDR", b"pHYs"]
    assert kinds[-1] == b"IEND"
    assert kinds.count(b"pHYs") == 1
    assert dict(found)[b"pHYs"] == struct.pack(">IIB", per_metre, per_metre, 1)


def test_all_else_is_kept() -> None:
    svg = page("hi")
    found = [chunk for chunk in chunks(to_png(svg, width=60, height=40)) if chunk[0] != b"pHYs"]
    assert [kind for kind, _ in found] == [b"IHDR", b"IDAT", b"IEND"]
    plain = resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True, font_files=fonts.font_files())
    assert found == chunks(bytes(plain))


def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What resvg is asked for."""
    asked: dict[str, Any] = {}
    real = resvg_py.svg_to_bytes

    def spy(**options: Any) -> bytes:
        asked.update(options)
        asked.setdefault("all", []).append(options["skip_system_fonts"])
        return real(**options)

    monkeypatch.setattr(resvg_py, "svg_to_bytes", spy)
    return asked


def test_text_appears_without_the_fonts_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = seen(monkeypatch)
    _, _, blank = pixels(to_png(page(), width=60, height=40))
    assert set(blank) == {255}
    _, _, written = pixels(to_png(page("Größe →"), width=60, height=40))
    assert min(written) < 60
    assert False not in asked.get("all", [])


def test_other_scripts_may_use_the_fonts_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = seen(monkeypatch)
    fonts._drawn_scripts.cache_clear()
    to_png(page("漢字"), width=60, height=40)
    assert False in asked["all"]  # read once, to see what they have


def test_what_no_font_has_is_spelled_in_pixels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = chr(0x10FFFD)
    assert nowhere in page(nowhere)
    spelled = to_png(page("\\U0010fffd"), width=60, height=40)
    assert to_png(page(nowhere), width=60, height=40) == spelled


def test_what_only_a_pointer_would_show_reads_no_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = seen(monkeypatch)
    canvas = Canvas(60, 40, LIGHT)
    canvas.rect(5, 5, 20, 20, fill="#000000", title="漢字 <&>")
    _, _, with_title = pixels(to_png(canvas.markup(), width=60, height=40))
    assert False not in asked.get("all", [])
    plain = Canvas(60, 40, LIGHT)
    plain.rect(5, 5, 20, 20, fill="#000000")
    assert with_title == pixels(to_png(plain.markup(), width=60, height=40))[2]


def test_what_only_a_browser_needs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The font in the document and the widths of its texts: fonts would be read for every picture."""
    svg = page("Größe ★ → 3×3")
    assert "@font-face" in svg
    assert "textLength" in svg
    given: list[str] = []
    monkeypatch.setattr(png, "_resized", lambda svg, *size: given.append(svg) or svg)
    plain = re.sub('(?s)<style>.*</style>| textLength="[^"]*" lengthAdjust="[^"]*"', "", svg)
    assert to_png(svg, width=60, height=40) == to_png(plain, width=60, height=40)
    assert set(given) == {plain}


def test_bold_is_bolder() -> None:
    def ink(bold: bool) -> int:
        canvas = Canvas(60, 40, LIGHT)
        canvas.text(5, 25, "mmm", size=16, fill="#000000", bold=bold)
        return sum(255 - value for value in pixels(to_png(canvas.markup(), width=60, height=40))[2])

    assert ink(True) > 1.2 * ink(False)


def test_other_proportions_are_centred_and_not_stretched() -> None:
    canvas = Canvas(10, 10, LIGHT)
    canvas.rect(0, 0, 10, 10, fill="#000000")
    width, height, data = pixels(to_png(canvas.markup(), width=30, height=10))
    row = [data[4 * x : 4 * x + 4] for x in range(width)]
    assert (width, height) == (30, 10)
    assert row[:10] == row[20:] == [b"\0\0\0\0"] * 10
    assert row[10:20] == [b"\0\0\0\xff"] * 10


def test_a_page_of_a_fraction_of_a_pixel_leaves_no_hairline() -> None:
    svg = page(width=60.4, height=40)
    assert set(pixels(to_png(svg, width=60, height=40))[2]) == {255}


@pytest.mark.parametrize(
    ("size", "what"),
    [
        ({"width": 0, "height": 5}, "width=0"),
        ({"width": 5, "height": -1}, "height=-1"),
        ({"width": 20_001, "height": 5}, "1 to 20,000"),
        ({"width": 20_000, "height": 20_000}, "400 million pixels"),
        ({"width": 10.5, "height": 5}, "whole number"),
        ({"width": True, "height": 5}, "width=True"),
        ({"width": 5, "height": 5, "dpi": 0}, "dpi=0"),
    ],
)
def test_absurd_sizes_are_refused(size: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInputError, match=what):
        to_png(page(), **size)


@pytest.mark.parametrize(
    "text", ["", "hello", "<svg>", '<svg width="5" height="5" xmlns="http://www.w3.org/2000/svg"><']
)
def test_what_is_no_svg_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not an SVG document"):
        to_png(text, width=5, height=5)
