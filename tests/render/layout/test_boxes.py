"""Boxes: as wide as their words, open ones around what is in them, equal ones laid out once."""

from __future__ import annotations

import pytest
from render.graphs import Sketch, chain, recurrent_loop, tower
from render.layout.pages import every_item, labelled

from torchatlas.graph import Graph
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.boxes import Box, BoxMaker, Share, _in_order
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.style import STYLE


def maker(graph: Graph, smallest: float = 0.0) -> tuple[Outline, BoxMaker]:
    outline, labels = labelled(graph)
    return outline, BoxMaker(outline, labels, smallest)


def opened(graph: Graph, height: float = 1e9) -> tuple[Outline, BoxMaker, Box]:
    outline, make = maker(graph)
    every = {item for item in every_item(outline) if not item.is_leaf}
    return outline, make, make.box(outline.root, every, height)


def test_a_closed_box_is_wide_enough_for_its_words() -> None:
    outline, make = maker(tower(2, width=lambda number: 8 + number))
    for item in list(every_item(outline))[1:]:
        box = make.box(item, (), 0.0)
        assert not box.open
        assert box.width >= text_width(box.title, STYLE.title_text, True)
        assert box.width >= text_width(box.subtitle, STYLE.small_text)
        assert box.height >= STYLE.title_text + (STYLE.small_text if box.subtitle else 0)


def test_a_smallest_height_is_kept() -> None:
    outline, make = maker(chain(3), smallest=80)
    assert all(make.box(item, (), 0.0).height >= 80 for item in list(every_item(outline))[1:])


def test_a_name_of_10000_characters_is_cut() -> None:
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("m" * 10_000, "T" * 10_000):
        x = sketch.op("tanh", sketch.op("relu", x))
    sketch.output(sketch.op("exp", x))
    outline, make = maker(sketch.graph())
    (module,) = (item for item in every_item(outline) if item.kind == "module" and item is not outline.root)
    closed = make.box(module, (), 0.0)
    assert closed.width < 400
    assert closed.title.endswith("T")
    assert "T…T" in closed.title
    assert closed.subtitle.startswith("mmm")
    assert closed.subtitle.endswith("mmm · 2 ops")
    assert make.box(outline.root, {outline.root, module}, 1e9).width < 600


def test_a_repeat_has_room_for_what_looks_out_behind_it() -> None:
    outline, make = maker(tower(12))
    (folded,) = (item for item in every_item(outline) if item.repeat > 1)
    words = "layers.0 … 11"  # as the repeat is called
    once = Item("module", folded.start, folded.stop, folded.hash + 1, folded.group, folded.call, folded.type, words)
    many, one = make.box(folded, (), 0.0), make.box(once, (), 0.0)
    assert many.height == one.height + STYLE.stack
    assert many.width >= one.width + STYLE.stack


def test_an_open_box_holds_its_inner_boxes_and_leaves_its_heading_free() -> None:
    _, _, root = opened(tower(3, width=lambda number: 8 + number))
    stack = [root]
    seen = 0
    while stack:
        box = stack.pop()
        stack += [inner for inner in box.inner if inner.open]
        assert box is root or box.origin[1] >= STYLE.heading
        for inner, (x, y) in zip(box.inner, box.places, strict=False):
            seen += 1
            assert x + box.origin[0] >= 0
            assert x + box.origin[0] + inner.width <= box.width + 1e-6
            assert y + box.origin[1] >= (STYLE.heading if box is not root else 0)
            assert y + box.origin[1] + inner.height <= box.height + 1e-6
    assert seen > 12


def test_equal_groups_share_one_layout() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(3):
        with sketch.module("shared", "Shared"):
            x = sketch.op("add", sketch.op("relu", x), x)
        x = sketch.op(f"between{number}", x)
    sketch.output(x)
    _, _, root = opened(sketch.graph())
    shared = [inner for inner in root.inner if inner.open]
    assert len(shared) == 3
    assert len({id(box) for box in shared}) == 1


def test_groups_that_send_out_different_tensors_do_not_share_one() -> None:
    """The first sends out what its relu made, the second what its add made."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    out = []
    for number in range(2):
        with sketch.module("shared", "Shared"):
            inner = sketch.op("relu", x)
            last = sketch.op("tanh", inner)
        out.append(inner if number == 0 else last)
        x = sketch.op(f"between{number}", out[-1])
    sketch.output(x)
    _, _, root = opened(sketch.graph())
    one, two = (inner for inner in root.inner if inner.open)
    assert one is not two


@pytest.mark.parametrize("height", [400.0, 600.0, 800.0])
def test_a_lower_page_makes_a_wider_box(height: float) -> None:
    _, _, tall = opened(chain(60))
    _, _, low = opened(chain(60), height)
    assert low.height < tall.height
    assert low.width > tall.width
    assert low.wraps > 0
    assert tall.wraps == 0
    assert low.height <= height * 1.1


def test_a_layout_that_fits_is_not_made_again_for_a_higher_page() -> None:
    outline, make = maker(recurrent_loop(3, odd_step=1))
    every = {item for item in every_item(outline) if not item.is_leaf}
    first = make.box(outline.root, every, 5000)
    assert first.natural
    assert make.box(outline.root, every, 9000) is first


def nested(depth: int, ops: int) -> Graph:
    """A chain of ops in as many modules around each other, each with ops before and after the next."""
    sketch = Sketch()
    x = sketch.input()

    def write(left: int, x: int) -> int:
        with sketch.module(f"part{left}", f"Part{left}"):
            if not left:
                for number in range(ops):
                    x = sketch.op(f"op{number}", x)
                return x
            return sketch.op(f"after{left}", write(left - 1, sketch.op(f"before{left}", x)))

    sketch.output(sketch.op("end", write(depth, sketch.op("begin", x))))
    return sketch.graph()


def test_what_is_nested_deep_gets_the_height_that_is_to_spare() -> None:
    outline, make = maker(nested(3, 12))
    every = frozenset(item for item in every_item(outline) if not item.is_leaf)
    plain, spare = (make.box(outline.root, every, 900.0, share) for share in (Share.GUESSED, Share.WHOLE))
    assert plain.cramped
    assert plain.height < 0.95 * 900
    assert not spare.cramped
    assert plain.height < spare.height
    assert spare.width < 0.8 * plain.width
    assert spare.wraps < plain.wraps


def test_what_has_no_height_to_spare_is_the_same_with_it() -> None:
    outline, make = maker(chain(60))
    every = frozenset(item for item in every_item(outline) if not item.is_leaf)
    plain, spare = (make.box(outline.root, every, 500.0, share) for share in (Share.GUESSED, Share.WHOLE))
    assert not plain.cramped
    assert (plain.width, plain.height, plain.wraps) == (spare.width, spare.height, spare.wraps)


def test_a_box_counts_what_it_reads_of_others() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    weight = sketch.parameter("embedding.weight", (100, 8))
    with sketch.module("embedding", "Embedding"):
        x = sketch.op("relu", sketch.op("embedding", weight, x, shape=(2, 8)))
    with sketch.module("head", "Head"):
        x = sketch.op("tanh", sketch.op("mm", x, weight, shape=(2, 100)))
    sketch.output(x)
    outline, make = maker(sketch.graph())
    said = {box.title: box.subtitle for box in make.box(outline.root, {outline.root}, 1e9).inner}
    assert said["Embedding"].endswith("· 800")
    assert said["Head"].endswith("· 800")


def many_returned(count: int) -> Graph:
    """A module that returns so many tensors, all made alike, and one that joins them."""
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("heads", "Heads"):
        ends = [sketch.op("tanh", sketch.op("mul", x)) for _ in range(count)]
    sketch.output(sketch.op("cat", *ends))
    return sketch.graph()


def test_what_every_round_of_a_repeat_returns_leaves_on_one_line() -> None:
    outline, _, root = opened(many_returned(60))
    at, heads = next((at, item) for at, item in enumerate(outline.children(outline.root)) if item.type == "Heads")
    box = root.inner[at]
    outputs = outline.ends(heads).outputs
    assert len(outputs) == 60
    assert box.leads == [0] * 60
    assert len({box.leaves[tensor] for tensor in outputs}) == 1
    assert sum(route.source == at for route in root.routes) == 1


def test_a_box_has_room_for_the_lines_that_are_drawn_not_for_the_tensors_they_stand_for() -> None:
    outline, make = maker(many_returned(60))
    alone = {item: make.box(item, (), 0.0) for item in list(every_item(outline))[1:]}
    root = make.box(outline.root, {outline.root}, 1e9)
    for item, box in zip(outline.children(outline.root), root.inner, strict=True):
        narrowed = max(map(len, outline.ends(item))) > 1
        assert (box.width < alone[item].width / 2) == narrowed


def test_more_lines_than_can_be_told_apart_are_not_laid_out() -> None:
    """200 different tensors that leave two open groups and enter one box."""
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("group", "Group"):
        ends = [sketch.op(f"part{number}", x) for number in range(100)]
    with sketch.module("other", "Other"):
        ends += [sketch.op(f"more{number}", x) for number in range(100)]
    sketch.output(sketch.op("cat", *ends))
    outline, make, root = opened(sketch.graph(), 1000.0)
    assert root.width > 1e5
    assert make.work < 10 * 200
    assert make.box(outline.root, {outline.root}, 1000.0).width < 1000


def test_only_groups_that_wait_for_each_other_have_lines_that_lead_back() -> None:
    """One that began first may read one that began later: it lies below it then, and every line leads down."""
    assert _in_order(3, {(2, 0), (1, 2)}) == [2, 0, 1]
    assert _in_order(3, {(0, 1), (1, 0), (1, 2)}) == [0, 1, 2]
