"""Any graph on any page: nothing overlaps, nothing is too small, every edge is drawn and none is invented."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

import children
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from render import graphs
from render.graphs import nested_graphs, written
from render.layout import verify
from render.layout.pages import drawn

from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.highlight import HighlightedPath
from torchatlas.render.layout.style import STYLE
from torchatlas.render.picture import DIRECTIONS, Picture
from torchatlas.render.scene_painter import heaviest

PAGES = ((300, 200), (800, 600), (1200, 800), (1600, 1200), (700, 2400), (4000, 3000))
FONTS = (6.0, 9.0, 12.0, 16.0)


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes: to shrink, take this line away for once
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


def check(graph: Graph, picture: Picture, font: float) -> None:
    """Everything that must hold of a picture."""
    scene = picture.scene
    assert verify.defects(scene) == []
    account = verify.account(picture.outline, scene)
    assert (account.missing, account.invented) == ([], [])
    assert verify.hidden(picture.outline, scene) == []
    tree = picture.outline.tree
    assert account.drawn + account.inside + account.repeated == len(tree.source)
    assert account.kept == len(tree.kept_source)
    assert broken(picture) == []
    assert picture.fit.scale * STYLE.small_text >= font - 1e-9
    assert picture.smallest_text == picture.fit.scale * STYLE.small_text
    assert all(size >= font - 0.01 for size in text_sizes(picture.svg)), min(text_sizes(picture.svg))
    left, top, right, bottom = extent(picture)
    assert left >= 0
    assert top >= 0
    assert right <= picture.width
    assert bottom <= picture.height
    assert outside(picture) == []


def broken(picture: Picture) -> list[str]:
    """What is wrong with the critical path on a page, from beginning to end, by number of ops."""
    outline, scene = picture.outline, picture.scene
    leaves = heaviest(outline.tree, "count")
    way = HighlightedPath(outline, scene, leaves)
    found = verify.broken(scene, way)
    ends = [HighlightedPath(outline, scene, leaves[place : place + 1 or None]).chain for place in (0, -1)]
    if ends[0] and ends[0][0] is not way.chain[0] and not outline.is_marker(ends[0][0].item):
        found.append("it begins elsewhere")  # but where nothing leads from what is given to another lane than forward
    if ends[1] and ends[1][0] is not way.chain[-1]:
        found.append("it ends elsewhere")
    return found


_GROUP = re.compile(r"translate\((\S+) (\S+)\) scale\((\S+)\)")


def outside(picture: Picture) -> list[str]:
    """The labels that stick out of what lies between the margins: the line below the title is as wide as that."""
    rule = re.search(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="1"', picture.svg)
    assert rule is not None
    first, last = float(rule[1]) - 0.5, float(rule[1]) + float(rule[2]) + 0.5
    left, _, _, _ = extent(picture)
    scale, labels = picture.fit.scale, picture.scene.labels
    ends = [
        (left + label.x * scale, left + (label.x + text_width(label.text, STYLE.small_text)) * scale)
        for label in labels
    ]
    return [label.text for label, (start, stop) in zip(labels, ends, strict=True) if start < first or stop > last]


def text_sizes(svg: str) -> set[float]:
    """The sizes of all texts in pixels, as the SVG says them."""

    def walk(element: ElementTree.Element, scale: float) -> None:
        transform = _GROUP.search(element.get("transform", ""))
        scale *= float(transform[3]) if transform else 1.0
        if element.tag.endswith("text") and "".join(element.itertext()).strip():
            found.add(float(element.get("font-size", "nan")) * scale)
        for child in element:
            walk(child, scale)

    found: set[float] = set()
    walk(ElementTree.fromstring(svg), 1.0)
    return found


def extent(picture: Picture) -> tuple[float, float, float, float]:
    """What of the page the scene takes, in pixels."""
    transform = _GROUP.search(picture.svg)
    assert transform is not None
    left, top, scale = map(float, transform.groups())
    return left, top, left + picture.scene.width * scale, top + picture.scene.height * scale


def drawn_or_enlarged(graph: Graph, page: tuple[int, int], font: float, direction: str) -> Picture:
    """The picture; of a page that is too small the one of the least page that the error names."""
    try:
        return drawn(graph, *page, font, direction)
    except InvalidInputError as error:
        asked = re.search(r"use at least (\d+) x (\d+)", str(error))
        if asked is None or page[0] >= 800:  # a page of that size can show at least one box
            raise
    return drawn(graph, max(int(asked[1]) + 1, page[0]), max(int(asked[2]) + 1, page[1]), font, direction)


ANY_PAGE = (nested_graphs(), st.sampled_from(PAGES), st.sampled_from(FONTS), st.sampled_from(DIRECTIONS))


def check_any(graph: Graph, page: tuple[int, int], font: float, direction: str) -> None:
    check(graph, drawn_or_enlarged(graph, page, font, direction), font)


@examples(40)
@given(*ANY_PAGE)
def test_any_graph_on_any_page_is_readable_and_true(
    graph: Graph, page: tuple[int, int], font: float, direction: str
) -> None:
    check_any(graph, page, font, direction)


@pytest.mark.slow
@examples(200)
@given(*ANY_PAGE)
def test_many_graphs_on_any_page_are_readable_and_true(
    graph: Graph, page: tuple[int, int], font: float, direction: str
) -> None:
    check_any(graph, page, font, direction)


NAMED = {
    "empty": Graph,
    "one input": lambda: written([]),
    "chain": lambda: graphs.chain(300),
    "equal chain": lambda: graphs.chain(300, lambda number: "relu"),
    "60 branches": lambda: graphs.branches(60),
    "loop": lambda: graphs.recurrent_loop(50),
    "tower": lambda: graphs.tower(12),
    "tower of different blocks": lambda: graphs.tower(12, width=lambda number: 8 + number),
    "dense": lambda: graphs.dense_block(12),
    "mesh": lambda: written([("mesh", 12, seed) for seed in range(4)]),
    "isolated": lambda: written([("alone", False)] * 9, inputs=3),
    "training": lambda: written([("repeat", 6, [("linear", 8), ("chain", 2, True)], True)], training="two steps"),
    "swapped outputs": lambda: written([("again", 3, [("op", "convolution", (1,), [3]), ("linear", 1)]), ("dense", 3)]),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", NAMED)
def test_the_difficult_ones_on_three_pages(name: str, direction: str) -> None:
    for page, font in (((600, 400), 6.0), ((1600, 1200), 9.0), ((1200, 1600), 12.0)):
        graph = NAMED[name]()
        check(graph, drawn(graph, *page, font, direction), font)


@pytest.mark.parametrize("odd", graphs.ODD_NAMES, ids=lambda name: name[:6].encode("unicode_escape").decode())
def test_odd_names_stay_text(odd: str) -> None:
    graph = written([("module", odd, [("chain", 3, False), ("linear", 4)]), ("chain", 2, False)], named=odd)
    picture = drawn(graph)
    check(graph, picture, 9.0)
    kinds = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture.svg).iter()}
    assert kinds <= {"svg", "g", "rect", "path", "text", "title", "style", "defs", "polygon", "line", "desc", "circle"}
    assert "<script" not in picture.svg


def test_a_page_that_is_too_small_says_which_would_do() -> None:
    with pytest.raises(InvalidInputError, match=r"use at least \d+ x \d+"):
        drawn(graphs.branches(5), 40, 30, 16.0)


def many() -> list[Graph]:
    return [NAMED[name]() for name in ("loop", "tower of different blocks", "dense", "training", "swapped outputs")]


def digest() -> str:
    return hashlib.sha256("".join(drawn(graph, 1000, 700).svg for graph in many()).encode()).hexdigest()


def test_the_same_graph_gives_the_same_picture_here_and_in_another_process() -> None:
    tests = Path(__file__).resolve().parents[2]
    program = (
        f"import sys; sys.path.insert(0, {str(tests)!r});"
        "from render.layout.test_properties import digest; print(digest())"
    )
    first = digest()
    assert digest() == first
    assert {children.python(program, PYTHONHASHSEED=seed).strip() for seed in ("1", "2")} == {first}
