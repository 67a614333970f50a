"""PDF: the shapes and texts of the SVG on a page of the right size, in fonts that the file carries."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from render import font_tables
from render.pdf_reading import Pdf
from render.pictures import tower
from render.reading import SVG, parsed, shown, texts
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError
from torchatlas.render.drawing import Drawing
from torchatlas.render.fonts import font_files, text_width, widths_by_piece
from torchatlas.render.fonts.outlines import outlines
from torchatlas.render.pdf import to_pdf
from torchatlas.render.plots import KINDS
from torchatlas.render.svg import Canvas
from torchatlas.render.theme import LIGHT

PIECES = [(piece, bold) for piece in ("basic", "letters", "signs") for bold in (False, True)]


def woff(piece: str, bold: bool) -> bytes:
    whole = Path(font_files()[bold])
    return whole.with_name(f"{whole.stem}-{piece}.woff").read_bytes()


def written(*lines: str, bold: bool = False) -> Pdf:
    canvas = Canvas(200, 100, LIGHT)
    for at, line in enumerate(lines):
        canvas.text(10, 20 + 20 * at, line, size=10, fill="#112233", bold=bold, title="a tooltip")
    return Pdf(to_pdf(canvas.markup(), 2, 1))


def collapsed(text: str) -> str:
    return re.sub("[ \t\n\r]+", " ", text).strip(" ")


@pytest.mark.parametrize("kind", ["graph", *KINDS])
def test_every_text_is_in_the_pdf_at_its_place_and_as_wide(kind: str) -> None:
    if kind == "graph":
        drawing: Drawing = atlas.draw(tower())
    else:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        graph = atlas.capture(model, torch.ones(3, 4), backward=True, values="stats")
        drawing = atlas.plot(graph, kind)
    read = Pdf(drawing.pdf()).texts()
    expected = texts(drawing.svg)
    assert len(expected) > 10
    assert [one.text for one in read] == [collapsed(words) for words, _ in expected]
    for one, (words, (left, _, right, _)) in zip(read, expected, strict=True):
        if one.text != words:  # two spaces are measured, and drawn as one
            continue
        assert one.x == pytest.approx(left, abs=0.01)
        assert one.width == pytest.approx(right - left, rel=1e-3)


def test_every_shape_is_in_the_pdf_in_its_colours() -> None:
    picture = atlas.draw(tower(), critical_path=True)
    content = Pdf(picture.pdf()).content
    shapes = [one for one in parsed(picture.svg).iter() if one.tag.removeprefix(SVG) in ("rect", "circle", "path")]
    painted = re.findall(r"^[BfS]$", content, re.MULTILINE)
    assert len(painted) == len(shapes)
    colours = {one.get(key, "none") for one in shapes for key in ("fill", "stroke")} - {"none"}
    for colour in colours:
        parts = " ".join(f"{int(colour[at : at + 2], 16) / 255:.4g}" for at in (1, 3, 5))
        assert re.search(f"^{re.escape(parts)} (rg|RG)", content, re.MULTILINE), colour
    assert content.count("] 0 d") == sum("stroke-dasharray" in one.attrib for one in shapes)


@pytest.mark.parametrize(("piece", "bold"), PIECES)
def test_the_outlines_are_those_of_the_font(piece: str, bold: bool) -> None:
    data, font = woff(piece, bold), outlines(piece, bold)
    assert font.glyphs == font_tables._glyphs(font_tables._tables(data)["cmap"])
    assert font.cff == font_tables._tables(data)["CFF "]
    assert len({outlines(*other).name for other in PIECES}) == len(PIECES)


@pytest.mark.parametrize("bold", [False, True])
def test_widths_and_unicode_are_right_for_every_character(bold: bool) -> None:
    everything = ["".join(widths) for widths in widths_by_piece().values()]
    every = [one for one in "".join(everything) if one.strip(" ")]
    pdf = written(*every, bold=bold)
    for one, text in zip(every, pdf.texts(), strict=True):
        assert text.text == one
        assert text.width == pytest.approx(text_width(one, 10, bold), abs=1e-4)
    assert len(pdf.fonts()) == 3
    for name, font in pdf.fonts().items():
        assert font.cff == outlines(name.removesuffix("Bold"), bold).cff


def test_a_page_carries_only_the_pieces_it_uses() -> None:
    assert list(written("Conv2d").fonts()) == ["basic"]
    assert sorted(written("Conv2d", "Größe").fonts()) == ["basic", "letters"]


@pytest.mark.parametrize("text", ["注意力", "conv_\u05d0\u05d1 · 8→16", "e\u0301", "\U0001f600 x"])
def test_characters_beyond_the_font_are_spelled_and_copied_as_they_are(text: str) -> None:
    pdf = written(text)
    (found,) = pdf.texts()
    assert found.text.replace("\u2068", "").replace("\u2069", "") == text
    assert found.width <= text_width(text, 10) + 0.01
    drawn = "".join(pdf.fonts()["basic"].unicode.values())
    assert "\\" in drawn


@settings(deadline=None, max_examples=60)
@given(st.text(min_size=1))
def test_any_text_makes_a_readable_file(text: str) -> None:
    canvas = Canvas(100, 100, LIGHT)
    canvas.text(1, 20, text, size=10, fill="#000000", title=text)
    expected = collapsed(shown(next(ElementTree.fromstring(canvas.markup().encode()).iter(SVG + "text"))))
    assert [one.text for one in Pdf(to_pdf(canvas.markup(), 1, 1)).texts()] == ([expected] if expected else [""])


def test_a_page_has_the_size_that_was_asked_for() -> None:
    picture = atlas.draw(tower(), width=960, height=480)
    assert Pdf(picture.pdf()).size == [720, 360]  # 96 pixels to an inch, 72 points
    canvas = Canvas(300, 100, LIGHT)
    pdf = Pdf(to_pdf(canvas.markup(), 3, 2))
    assert pdf.size == [216, 144]
    assert pdf.content.startswith("0.720000 0 0 -0.720000 0.0000 108.0000 cm")  # to scale, and in the middle


def test_no_page_is_larger_than_viewers_show() -> None:
    assert Pdf(to_pdf(Canvas(300, 100, LIGHT).markup(), 300, 100)).size == [14400, 4800]


def test_curves_and_opacity() -> None:
    canvas = Canvas(100, 100, LIGHT)
    canvas.path("M10 10Q40 10 40 40h5v-5c1 2 3 4 5 6Z", stroke="#000000")
    canvas.circle(50, 50, 10, fill="#ff0000", opacity=0.5)
    pdf = Pdf(to_pdf(canvas.markup(), 1, 1))
    assert "10 10 m\n30 10 40 20 40 40 c\n45 40 l\n45 35 l\n46 37 48 39 50 41 c\nh\nS" in pdf.content
    assert "/O0 gs\n1 0 0 rg\n50 40 m" in pdf.content
    assert "/O0 <</ca 0.5 /CA 0.5>>" in pdf.page


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ('<path d="M0 0A5 5 0 0 1 5 5" fill="#000000"/>', "more than lines and curves"),
        ('<rect width="1" height="1" fill="red"/>', "#RRGGBB"),
        ('<g transform="rotate(3)"/>', "moves and scales only"),
        ("<image/>", "<image> is no shape"),
    ],
)
def test_what_a_pdf_cannot_hold_is_refused(shape: str, why: str) -> None:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10">{shape}</svg>'
    with pytest.raises(InvalidInputError, match=why):
        to_pdf(svg, 1, 1)


def test_graphs_and_drawings_save_themselves(tmp_path: Path) -> None:
    graph = tower()
    graph.save(tmp_path / "graph.pdf")
    atlas.draw(graph).save(tmp_path / "picture.PDF")
    assert (tmp_path / "graph.pdf").read_bytes() == (tmp_path / "picture.PDF").read_bytes()
    assert Pdf((tmp_path / "graph.pdf").read_bytes()).size == [1200, 900]
