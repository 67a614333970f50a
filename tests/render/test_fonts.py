"""The font of the package: its widths are those of the file, and what is cut fits."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchatlas.render import fonts
from torchatlas.render.fonts import FAMILY, clipped, font_files, has_all, text_width
from torchatlas.render.png import to_png

SIZES = st.floats(6, 40)


def test_known_advances() -> None:
    # Read with fontTools from the original Inter 3.019: advance / 2816.
    assert text_width("A", 2816) == 1904
    assert text_width("A", 2816, bold=True) == 2038
    assert text_width("…", 2816) == 2312


def test_a_width_is_the_sum_of_its_characters_and_scales() -> None:
    text = "encoder.layers.0 → 3×224²"
    assert text_width(text, 11) == pytest.approx(sum(text_width(one, 11) for one in text))
    assert text_width(text, 22) == pytest.approx(2 * text_width(text, 11))
    assert text_width("", 11) == 0


def test_what_the_font_does_not_have_is_estimated() -> None:
    assert text_width("漢字", 10) == pytest.approx(20)
    assert text_width("\u05d0", 10) == pytest.approx(6, rel=1e-3)  # Hebrew


def test_the_width_is_what_is_drawn() -> None:
    """A text drawn in black on white reaches as far as its width says, within a pixel or two of side bearing."""
    image = pytest.importorskip("PIL.Image")
    ops = pytest.importorskip("PIL.ImageOps")
    import io

    text = "Conv2d blocks.11 → 768×3072 WAVE"
    for bold, weight in ((False, 400), (True, 600)):
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="60" font-family="Inter">'
            '<rect width="900" height="60" fill="#fff"/>'
            f'<text x="10" y="40" font-size="30" font-weight="{weight}">{text}</text></svg>'
        )
        drawn = image.open(io.BytesIO(to_png(svg, width=900, height=60))).convert("L")
        left, _, right, _ = ops.invert(drawn).getbbox()
        assert abs((right - left) - text_width(text, 30, bold)) < 6, (bold, right - left)


@given(st.text(max_size=60), SIZES, st.floats(0, 300), st.booleans())
def test_what_is_cut_fits_and_what_fits_is_not_cut(text: str, size: float, room: float, bold: bool) -> None:
    cut = clipped(text, size, room, bold)
    if text_width(text, size, bold) <= room:
        assert cut == text
    else:
        assert text_width(cut, size, bold) <= room
        assert cut == "" or cut.endswith("…")
        assert text.startswith(cut.removesuffix("…"))


def test_as_much_is_kept_as_fits() -> None:
    text = "encoder.layers.0.attention.project_in"
    for room in range(20, 200, 7):
        cut = clipped(text, 10, room)
        longer = text[: len(cut)] + "…"
        assert cut == text or text_width(longer, 10) > room


def test_a_long_name_is_not_read_to_its_end() -> None:
    """By count, not by clock: only the characters that fit are looked at."""
    seen = itertools.count()

    class Counted(str):
        def __iter__(self):  # type: ignore[no-untyped-def]
            for one in str.__iter__(self):
                next(seen)
                yield one

    assert clipped(Counted("x" * 10_000), 10, 100).endswith("…")
    assert next(seen) < 40


def test_which_characters_there_are() -> None:
    assert has_all("Größe żółć Σλ Привет … × · → ← ↑ ↓ ≥ ≤ ± − ∑ √ ∞ ≈ ■ □ ● ○ ① µ ⁻⁹\n\t")
    assert not has_all("漢")
    assert not has_all("\x00")


def test_the_files_are_there_with_their_licence() -> None:
    assert FAMILY == "Inter"
    files = [Path(path) for path in font_files()]
    assert all(20_000 < path.stat().st_size < 150_000 for path in files)
    assert "SIL OPEN FONT LICENSE" in (files[0].parent / "OFL.txt").read_text()
    assert all(path.read_bytes()[:4] == b"OTTO" for path in files)
    assert set(fonts._advances(False)) >= set("abc")
    assert fonts._advances(False).em == 2816
