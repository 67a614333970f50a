"""The one writer of SVG: what it writes parses, is escaped, holds plain numbers, and brings its font along."""

from __future__ import annotations

import io
import math
import re
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render import font_tables
from render.reading import shown

import torchatlas as atlas
from torchatlas import demo
from torchatlas.errors import InvalidInputError, StateError
from torchatlas.render.fonts import font_files, has_all, text_width, widths_by_piece
from torchatlas.render.png import to_png
from torchatlas.render.svg import Canvas, isolated, number
from torchatlas.render.theme import DARK, LIGHT

SVG = "{http://www.w3.org/2000/svg}"


def parsed(canvas: Canvas) -> ElementTree.Element:
    return ElementTree.fromstring(canvas.markup().encode())


def drawn(canvas: Canvas, tag: str) -> ElementTree.Element:
    found = list(parsed(canvas).iter(SVG + tag))
    return found[-1]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_numbers_are_plain(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"-?\d+(\.\d{1,2})?", text)
    assert text != "-0"
    assert abs(float(text) - value) <= 0.005 + abs(value) * 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_coordinate_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidInputError, match="coordinate"):
        Canvas(10, 10, LIGHT).rect(0, value, 1, 1)


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (math.nan, 5), (5, math.inf)])
def test_a_page_has_a_size(size: tuple[float, float]) -> None:
    with pytest.raises(InvalidInputError, match="above zero"):
        Canvas(*size, LIGHT)


@settings(deadline=None)  # what is not in our font has those of the machine read
@given(st.text())
def test_any_text_survives_as_text_and_nothing_else(text: str) -> None:
    canvas = Canvas(100, 100, LIGHT)
    canvas.text(1, 2, text or "x", size=10, fill=text, title=text)
    canvas.rect(0, 0, 1, 1, fill=text, title=text)
    canvas.path(text, stroke=text, dash=text)
    canvas.begin_group(text)
    canvas.end_group()
    root = parsed(canvas)
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg", "rect", "text", "path", "g", "title", "style",
    }  # fmt: skip
    written = drawn(canvas, "text")
    plain = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "□", isolated(text or "x"))
    assert "".join(written.itertext()).endswith(plain.replace("\r\n", "\n").replace("\r", "\n"))


@pytest.mark.parametrize("name", ["\u05d0\u05d1", "\u0637\u0628\u0642\u0629", "conv_\u05d0\u05d1_1"])
def test_a_name_from_right_to_left_stays_in_its_place(name: str) -> None:
    apart = f"\u2068{name}\u2069"
    assert isolated(f"{name} · 8→16") == f"{apart} · 8→16"
    assert isolated(f"stem, {name} … {name} · 8→16, 3×3") == f"stem, {apart} … {apart} · 8→16, 3×3"
    assert isolated(f"{name}  12 ms") == f"{apart}  12 ms"


def test_a_name_cannot_turn_the_text_after_it_round() -> None:
    assert isolated("a\u202eb\u2067c\u2069 · 8→16") == "a□b□c□ · 8→16"
    assert isolated("conv1 · 8→16, ünï → 漢") == "conv1 · 8→16, ünï → 漢"


def test_figures_after_a_hebrew_name_are_drawn_as_they_are() -> None:
    """Drawn in full, then with the name alone: the name begins at the left of both."""
    image = pytest.importorskip("PIL.Image")

    def columns(text: str) -> list[bool]:
        canvas = Canvas(200, 30, LIGHT)
        canvas.text(5, 20, text, size=14, fill="#000000")
        drawn = image.open(io.BytesIO(to_png(canvas.markup(), width=200, height=30))).convert("L")
        return [min(drawn.crop((x, 0, x + 1, 30)).tobytes()) < 128 for x in range(5, 30)]

    assert columns("\u05d0\u05d1\u05d2\u05d3 · 8→16") == columns("\u05d0\u05d1\u05d2\u05d3")


def test_a_name_cannot_inject_markup() -> None:
    canvas = Canvas(100, 100, LIGHT)
    canvas.text(0, 0, "<script>alert(1)</script>&\x00", size=10, fill='"/><script>', title="</title><script>")
    markup = canvas.markup()
    assert "<script" not in markup
    assert drawn(canvas, "text").attrib["fill"] == '"/><script>'
    assert "".join(drawn(canvas, "text").itertext()).endswith("<script>alert(1)</script>&□")


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_document(theme) -> None:  # type: ignore[no-untyped-def]
    root = parsed(Canvas(300, 200.5, theme))
    assert root.tag == SVG + "svg"
    assert root.attrib["viewBox"] == "0 0 300 200.5"
    assert root.attrib["height"] == "200.5"
    assert root.attrib["font-family"].startswith("torchatlas Inter, Inter, ")
    assert root[0].attrib == {"width": "300", "height": "200.5", "fill": theme.background}


def test_shapes() -> None:
    canvas = Canvas(100, 100, LIGHT)
    canvas.rect(1, 2, 3, 4, fill="#ABCDEF", stroke="#123456", stroke_width=1.5, radius=2, dash="3 2", opacity=0.5)
    assert drawn(canvas, "rect").attrib == {
        "x": "1", "y": "2", "width": "3", "height": "4", "rx": "2", "fill": "#ABCDEF", "stroke": "#123456",
        "stroke-width": "1.5", "stroke-dasharray": "3 2", "opacity": "0.5",
    }  # fmt: skip
    canvas.line(0, 1, 2, 3, stroke="#000000")
    assert drawn(canvas, "line").attrib == {"x1": "0", "y1": "1", "x2": "2", "y2": "3", "stroke": "#000000"}
    canvas.circle(5, 6, 7, fill="#FFFFFF", title="a dot")
    assert drawn(canvas, "circle").attrib == {"cx": "5", "cy": "6", "r": "7", "fill": "#FFFFFF"}
    assert drawn(canvas, "circle")[0].text == "a dot"
    canvas.polyline([(0, 0), (1.005, 2)], stroke="#000000")
    assert drawn(canvas, "polyline").attrib["points"] in ("0,0 1,2", "0,0 1.01,2")
    canvas.text(1, 2, "bold", size=9, fill="#000000", bold=True, anchor="middle")
    assert drawn(canvas, "text").attrib["font-weight"] == "600"
    assert drawn(canvas, "text").attrib["text-anchor"] == "middle"
    canvas.text(1, 2, "", size=9, fill="#000000")
    assert drawn(canvas, "text").text == "bold"


# -- looks the same everywhere -----------------------------------------------------------------------------------------


def carried(svg: str) -> dict[str, set[str]]:
    """The characters that the fonts in a document have, by weight."""
    found: dict[str, set[str]] = {}
    rules = re.findall(r"@font-face\{([^}]*)\}", "".join(ElementTree.fromstring(svg).itertext()))
    for rule in rules:
        (weight,), (data,) = re.findall(r"font-weight:(\d+)", rule), re.findall(r"base64,([^)]*)\)", rule)
        assert 'font-family:"torchatlas Inter"' in rule
        characters = set(font_tables.widths(b64decode(data)))
        ranges = [
            one.partition("-")[::2] for one in re.findall(r"U\+([0-9A-F-]+)", rule.partition("unicode-range:")[2])
        ]
        said = {chr(code) for a, b in ranges for code in range(int(a, 16), int(b or a, 16) + 1)}
        assert said == characters
        assert not characters & found.setdefault(weight, set())
        found[weight] |= characters
    return found


def check_carries_what_it_needs(svg: str) -> None:
    fonts, root = carried(svg), ElementTree.fromstring(svg)
    for text in root.iter(SVG + "text"):
        words, bold = shown(text), "font-weight" in text.attrib
        assert fonts.get(text.attrib.get("font-weight", "400"), set()) >= {one for one in words if has_all(one)}
        if has_all(words):
            width = text_width(words, float(text.attrib["font-size"]), bold)
            assert float(text.attrib["textLength"]) == pytest.approx(width, abs=0.1), words
            assert text.attrib["lengthAdjust"] == "spacingAndGlyphs"
    assert set(re.findall(r"[a-z]+://[^\"]*", svg)) == {"http://www.w3.org/2000/svg"}  # a name: nothing is fetched
    assert all(place.startswith("data:font/woff;base64,") for place in re.findall(r"url\(([^)]*)\)", svg))
    assert "href" not in svg
    assert "@import" not in svg


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_and_plots_carry_their_font_and_fetch_nothing(theme: str) -> None:
    graph = demo.training_step()
    for drawing in (atlas.draw(graph, theme=theme), atlas.plot(graph, "memory", theme=theme)):
        check_carries_what_it_needs(drawing.svg)
        assert 20_000 < len("".join(re.findall("base64,[^)]*", drawing.svg))) < 25_000  # two weights


@settings(deadline=None)  # as above
@given(st.text(st.characters(codec="utf-8") | st.sampled_from("aé Ж→★漢×")), st.booleans())
def test_any_text_carries_its_font(text: str, bold: bool) -> None:
    canvas = Canvas(100, 100, LIGHT)
    text = " ".join(text.split())  # what is drawn of blanks is tested below
    canvas.text(1, 2, text or "x", size=10, fill="#000000", bold=bold)
    check_carries_what_it_needs(canvas.markup())


@pytest.mark.parametrize(
    ("text", "count"), [("Conv2d 3×3 · 64→128", 1), ("Größe", 2), ("Größe ★", 3), ("漢字", 0), ("漢字a", 1)]
)
def test_only_the_pieces_that_are_used_are_carried(text: str, count: int) -> None:
    canvas = Canvas(100, 100, LIGHT)
    canvas.text(1, 2, text, size=10, fill="#000000")
    canvas.rect(1, 2, 3, 4, title="Größe ★")  # what a browser shows in a font of its own
    assert canvas.markup().count("@font-face") == count
    canvas.text(1, 2, text, size=10, fill="#000000", bold=True)
    assert canvas.markup().count("@font-face") == 2 * count
    assert ("<style" in canvas.markup()) == bool(count)


def test_the_width_is_that_of_what_is_seen() -> None:
    """Blanks in a row are drawn as one, those at the ends as none; what has to be guessed is left as it comes."""
    canvas = Canvas(100, 100, LIGHT)
    canvas.text(1, 2, " a \n b ", size=10, fill="#000000")
    assert float(drawn(canvas, "text").attrib["textLength"]) == pytest.approx(text_width("a b", 10), abs=0.01)
    for text in ("   ", "注意力 · 8→16"):
        canvas.text(1, 2, text, size=10, fill="#000000")
        assert "textLength" not in drawn(canvas, "text").attrib


def test_every_browser_draws_the_pieces_as_wide_as_we_measure() -> None:
    """As FreeType reads them, which several browsers use."""
    fonts = pytest.importorskip("PIL.ImageFont")
    for bold, file in enumerate(map(Path, font_files())):
        for piece, characters in widths_by_piece().items():
            woff = file.with_name(f"{file.stem}-{piece}.woff")
            font = fonts.truetype(str(woff), 1408, layout_engine=fonts.Layout.BASIC)
            for one in sorted(characters):
                assert font.getlength(one) == pytest.approx(text_width(one, 1408, bool(bold)), abs=1), one


# -- lines -------------------------------------------------------------------------------------------------------------


def rounded(points: list[tuple[float, float]], radius: float = 5) -> str:
    canvas = Canvas(100, 100, LIGHT)
    canvas.rounded(points, radius, stroke="#000000")
    return drawn(canvas, "path").attrib["d"]


def test_corners_are_rounded() -> None:
    assert rounded([(0, 0), (0, 20), (20, 20)]) == "M0 0L0 15Q0 20 5 20L20 20"


def test_pieces_of_no_length_and_points_on_the_way_are_dropped() -> None:
    bent = [(0, 0), (0, 0), (0, 7), (0, 20), (0, 20), (4, 20), (20, 20), (20, 20)]
    assert rounded(bent) == rounded([(0, 0), (0, 20), (20, 20)])
    assert rounded([(0, 0), (0, 5), (0, 9)]) == "M0 0L0 9"


def test_a_short_piece_is_shared_by_its_two_corners() -> None:
    assert rounded([(0, 0), (0, 20), (4, 20), (4, 40)]) == "M0 0L0 18Q0 20 2 20L2 20Q4 20 4 22L4 40"


def test_a_line_without_length_draws_nothing() -> None:
    canvas = Canvas(10, 10, LIGHT)
    canvas.rounded([(1, 1), (1, 1)], 5, stroke="#000000")
    assert "<path" not in canvas.markup()


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("down", {(10, 10), (10 - 4.2, 0), (10 + 4.2, 0)}),
        ("up", {(10, 10), (10 - 4.2, 20), (10 + 4.2, 20)}),
        ("left", {(10, 10), (20, 10 - 4.2), (20, 10 + 4.2)}),
        ("right", {(10, 10), (0, 10 - 4.2), (0, 10 + 4.2)}),
    ],
)
def test_an_arrow_points_where_it_should(direction, expected) -> None:  # type: ignore[no-untyped-def]
    canvas = Canvas(100, 100, LIGHT)
    canvas.arrow_head(10, 10, direction, fill="#000000", size=10)
    numbers = [float(one) for one in re.findall(r"-?[\d.]+", drawn(canvas, "path").attrib["d"])]
    assert set(zip(numbers[::2], numbers[1::2], strict=True)) == expected


def test_groups_close() -> None:
    canvas = Canvas(10, 10, LIGHT)
    canvas.begin_group("translate(1 2)")
    with pytest.raises(StateError, match="end_group"):
        canvas.markup()
    canvas.rect(0, 0, 1, 1)
    canvas.end_group()
    group = drawn(canvas, "g")
    assert group.attrib == {"transform": "translate(1 2)"}
    assert len(group) == 1
    with pytest.raises(StateError, match="begin_group"):
        canvas.end_group()
