"""The font of the package: its widths are those of the file, and what is cut fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render import font_tables

from torchatlas.render import fonts
from torchatlas.render.fonts import (
    FAMILY,
    clipped,
    ending,
    font_files,
    has_all,
    shortened,
    spelled,
    text_width,
    widths_by_piece,
)
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


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was learnt about the fonts of this machine is forgotten, before and after."""
    caches = (fonts._drawn_scripts, fonts._advances, fonts._advance)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_what_another_font_draws_is_estimated(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> None:
    monkeypatch.setattr(fonts, "_glyph", lambda character: character.encode())
    assert text_width("漢字", 10) == pytest.approx(20)
    assert text_width("\u05d0", 10) == pytest.approx(6, rel=1e-3)  # Hebrew
    assert text_width("e\u0316", 10) == text_width("e", 10)  # an accent below
    assert spelled("漢字 \u05d0") == "漢字 \u05d0"


def test_what_no_font_has_is_spelled_and_as_wide_as_that(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> None:
    monkeypatch.setattr(fonts, "_glyph", lambda one: b"" if one in (fonts._NOWHERE, *"漢字🙂") else one.encode())
    assert spelled("漢\u05d0 · 8→16") == "\\u6f22\u05d0 · 8→16"
    assert spelled("ü🙂") == "ü\\U0001f642"
    assert text_width("漢🙂", 10) == pytest.approx(text_width("\\u6f22\\U0001f642", 10))
    assert text_width(spelled(clipped("漢" * 9, 10, 100)), 10) <= 100
    assert text_width(spelled(shortened("漢" * 9, 10, 100)), 10) <= 100


def test_fonts_are_read_once_for_a_script(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> None:
    asked: list[str] = []
    monkeypatch.setattr(fonts, "_glyph", lambda one: asked.append(one) or one.encode())
    for _ in range(2):
        text_width("漢字漢", 10)
        clipped("plain · 8→16", 10, 5)
        spelled("字")
    assert asked == ["漢", fonts._NOWHERE]


def test_a_machine_without_fonts_draws_nothing_but_ours(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> None:
    import resvg_py

    real = resvg_py.svg_to_bytes

    def bare(**options: Any) -> bytes:
        return bytes(real(**{**options, "skip_system_fonts": True}))

    monkeypatch.setattr(resvg_py, "svg_to_bytes", bare)
    assert [fonts._machine_draws(one) for one in "漢\u05d0éA\u200d"] == [False, False, True, True, True]
    assert has_all(spelled("注意力 \u05d0 é"))


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


@settings(deadline=None)  # what is not in our font has those of the machine read
@given(st.text(max_size=60), SIZES, st.floats(0, 300), st.booleans())
def test_what_is_cut_fits_and_what_fits_is_not_cut(text: str, size: float, room: float, bold: bool) -> None:
    cut = clipped(text, size, room, bold)
    if text_width(text, size, bold) <= room:
        assert cut == text
    else:
        assert text_width(cut, size, bold) <= room
        assert cut == "" or cut.endswith("…")
        assert text.startswith(cut.removesuffix("…"))


@given(st.text("abcü→漢 .", max_size=60), SIZES, st.floats(0, 300), st.booleans())
def test_what_is_cut_in_the_middle_fits_and_keeps_both_ends(text: str, size: float, room: float, bold: bool) -> None:
    cut = shortened(text, size, room, bold)
    if text_width(text, size, bold) <= room:
        assert cut == text
        return
    assert text_width(cut, size, bold) <= room + 1e-6
    begin, dots, end = cut.partition("…")
    assert bool(dots) == bool(cut)
    assert text.startswith(begin)
    assert text.endswith(end)


def test_words_stay_whole_where_a_name_is_cut_in_the_middle() -> None:
    assert shortened("convolution_projection_key", 10, 90) == "convolution…key"
    assert shortened("position_embeddings", 10, 75).startswith("posit")  # the last word is most of it


@given(st.text("ab.,… ", max_size=60), SIZES, st.floats(0, 300))
def test_what_begins_with_dots_fits_and_is_the_end_of_a_name(text: str, size: float, room: float) -> None:
    cut = ending(text, size, room)
    assert text_width(cut, size) <= room + 1e-6
    assert not cut or (cut.startswith("…") and text.endswith("." + cut[1:]))


def test_as_many_parts_of_a_name_are_kept_as_fit() -> None:
    name = "encoder.layers.0.attention.query"
    ways = [name.split(".", count)[-1] for count in range(1, 5)]
    for room in range(10, 250, 3):
        fits = [f"…{way}" for way in ways if text_width(f"…{way}", 10) <= room]
        assert ending(name, 10, room) == (fits[0] if fits else "")
    assert ending("query", 10, 10) == ""
    assert ending("0.convolution … 1.convolution", 10, text_width("…convolution … 1.convolution", 10)) == ""
    assert ending("layer.convolution … attention", 10, text_width("…convolution … attention", 10)) != ""


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


@pytest.mark.parametrize("bold", [False, True])
def test_the_table_has_the_widths_of_the_files(bold: bool) -> None:
    file = Path(font_files()[bold])
    assert font_tables.units_per_em(file.read_bytes()) == 2816
    whole = font_tables.widths(file.read_bytes())
    table = {one: both[bold] for piece in widths_by_piece().values() for one, both in piece.items()}
    assert table == whole
    held = 0
    for piece, characters in widths_by_piece().items():  # for SVG: each character is in one piece
        part = font_tables.widths(file.with_name(f"{file.stem}-{piece}.woff").read_bytes())
        assert part == {one: whole[one] for one in characters}
        held += len(part)
    assert held == len(whole)
