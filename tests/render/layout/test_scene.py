"""The scene: every box once at its place, lines between them, shapes where they are new and there is room."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from render.graphs import Sketch, chain, recurrent_loop, tower
from render.layout import verify
from render.layout.pages import drawn, frame
from render.layout.test_properties import outside
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.highlight import HighlightedPath
from torchatlas.render.layout.line_labels import Label
from torchatlas.render.layout.scene import Line, SceneMaker
from torchatlas.render.layout.style import STYLE


def test_every_box_is_there_once_and_the_page_itself_is_none() -> None:
    scene = drawn(tower(3, width=lambda number: 8 + number), 2400, 1800).scene
    titles = [found.title for found in scene.frames]
    assert titles.count("Block") == 3
    assert titles.count("Linear") == 6
    assert "Tower" not in titles
    assert len(scene.closed) == len(scene.frames) - 3
    assert len({id(found.item) for found in scene.frames}) == len(scene.frames)


def test_an_input_that_nothing_drawn_reads_has_a_box() -> None:
    def first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.view(-1)  # a view that nothing reads
        return x * 2

    scene = drawn(atlas.capture(first, torch.randn(3), torch.randn(4))).scene
    assert [found.title for found in scene.frames] == ["x", "y", "mul", "output"]


def test_what_other_phases_are_given_takes_no_room() -> None:
    def added(*tensors: torch.Tensor) -> torch.Tensor:
        return (torch.stack(tensors).sum(0) ** 2).sum()

    first = torch.randn(3, requires_grad=True)
    for count in (10, 60):
        graph = atlas.capture(added, first, *(torch.randn(3) for _ in range(count)), backward=True)
        scene = atlas.draw(graph, phases=["backward"]).scene
        assert not any(found.item.kind == "segment" for found in scene.frames)
        assert min(found.x for found in scene.frames) == 0
        assert max(found.x + found.width for found in scene.frames) == scene.width


def test_inner_boxes_lie_in_their_group_below_its_heading() -> None:
    scene = drawn(tower(2, width=lambda number: 8 + number)).scene
    by_item = {id(found.item): found for found in scene.frames}
    inner = [found for found in scene.frames if found.depth == 1]
    assert inner
    for found in inner:
        above = by_item[id(found.item.parent)]
        assert above.x <= found.x
        assert found.x + found.width <= above.x + above.width
        assert above.y + STYLE.heading <= found.y
        assert found.y + found.height <= above.y + above.height


def test_a_repeat_shows_one_dashed_line_back() -> None:
    scene = drawn(recurrent_loop(20)).scene
    cell = frame(scene, "Cell")
    assert cell.item.repeat == 20
    if cell.open:
        (back,) = (line for line in scene.lines if line.returning)
        assert back.points[0][1] > back.points[-1][1]
        assert all(cell.x <= x <= cell.x + cell.width + STYLE.stack for x, _ in back.points)
    assert sum(line.returning for line in scene.lines) == int(cell.open)


@pytest.mark.parametrize("page", [(1600, 1200), (500, 400)])
@pytest.mark.parametrize("hands_on", ["state", "result"])
def test_the_dashed_line_begins_at_what_is_handed_on(hands_on: str, page: tuple[int, int]) -> None:
    """The state of a loop goes from cell to cell; what a head makes of it leaves the loop."""
    sketch = Sketch()
    x, made = sketch.input("x", (2, 8)), []
    for _ in range(6):
        with sketch.module("cell", "Cell"):
            state = sketch.op("tanh", sketch.op("cos", x))
        with sketch.module("head", "Head"):
            made.append(sketch.op("sin", sketch.op("exp", state)))
        x = state if hands_on == "state" else made[-1]
    sketch.output(sketch.op("stack", *made))
    scene = drawn(sketch.graph(), *page).scene
    (back,) = (line for line in scene.lines if line.returning)
    cell, head = frame(scene, "Cell"), frame(scene, "Head")
    start_x, start_y = back.points[0]
    if hands_on == "state":
        assert start_x == pytest.approx(cell.x + cell.width)
        assert cell.y < start_y < cell.y + cell.height
    else:
        assert start_y > head.y + head.height
        assert any(line.points[0][0] == start_x for line in scene.lines if line is not back and not line.arrow)
    assert verify.defects(scene) == []


def three_states(*, side_by_side: bool, leaving: bool = False) -> Graph:
    """A loop that hands on three tensors, made side by side or one of the other; the last ones may be read too."""
    sketch = Sketch()
    states, made = [sketch.input(f"x{number}", (2, 8)) for number in range(3)], []
    for _ in range(6):
        last = mixed = sketch.op("add", sketch.op("cat", *states, shape=(2, 8)), states[0])
        for place, name in enumerate(("sin", "cos", "exp")):
            states[place] = last = sketch.op(name, mixed if side_by_side else last)
        made.append(sketch.op("relu", sketch.op("sigmoid", last)))
    sketch.output(sketch.op("stack", *made), *(states if leaving else []))
    return sketch.graph()


@pytest.mark.parametrize(("side_by_side", "leaving"), [(True, True), (True, False), (False, False)])
def test_all_that_a_round_hands_on_joins_the_dashed_line(side_by_side: bool, leaving: bool) -> None:
    picture = drawn(three_states(side_by_side=side_by_side, leaving=leaving), 900, 1200)
    scene = picture.scene
    (loop,) = (number for number, found in enumerate(scene.frames) if found.item.repeat > 1)
    dashed = [line for line in scene.lines if line.returning]
    joins = {scene.frames[line.ends[0]].title: line for line in dashed if line.ends[0] != loop}  # type: ignore[index]
    pieces = [line for line in dashed if line.ends[0] == loop]
    assert set(joins) == {"sin", "cos", "exp"}
    assert [line.arrow for line in pieces] == [False, False, True]
    assert [one.points[-1] == other.points[0] for one, other in itertools.pairwise(pieces)] == [True, True]
    for title, line in joins.items():
        maker = frame(scene, title)
        assert line.points[-1] in {piece.points[0] for piece in pieces}
        if leaving:  # a dot where the line that goes on below the loop is crossed
            (out,) = (one for one in scene.lines if one.ends == (scene.frames.index(maker), None))
            assert [x for x, _ in line.points] == [out.points[-1][0]]
        else:  # from the right of a box, or down from it where others are in the way
            x, y = line.points[0]
            assert x == maker.x + maker.width or (maker.x < x < maker.x + maker.width and y == maker.y + maker.height)
    assert picture.svg.count("<circle") == (3 if leaving else 0)
    assert verify.defects(scene) == []
    assert verify.hidden(picture.outline, scene) == []
    for line in joins.values():
        without = replace(scene, lines=[one for one in scene.lines if one is not line])
        assert "hands on what no dashed line shows" in "".join(verify.hidden(picture.outline, without))


def test_how_many_tensors_are_handed_on_is_said_where_not_all_can_join(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SceneMaker._free
    monkeypatch.setattr(  # as if something lay below all of them
        SceneMaker, "_free", lambda self, axis, *rest: free(self, axis, *rest) if axis else None
    )
    picture = drawn(three_states(side_by_side=True), 900, 1200)
    (dashed,) = (line for line in picture.scene.lines if line.returning)
    labels = {label.text: label for label in picture.scene.labels}
    assert beside(labels["3 tensors"], replace(dashed, points=dashed.points[::-1]))
    assert verify.defects(picture.scene) == []
    assert verify.hidden(picture.outline, picture.scene) == []
    silent = replace(picture.scene, labels=[])
    assert "hands on what no dashed line shows" in "".join(verify.hidden(picture.outline, silent))


def test_shapes_are_written_where_they_change() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    x = sketch.op("relu", x)
    x = sketch.op("mean", x, shape=(2,))
    x = sketch.op("exp", x)
    sketch.output(x)
    scene = drawn(sketch.graph()).scene
    assert [label.text for label in scene.labels] == ["2"]
    assert scene.no_room == []


def test_lines_say_in_which_shape_a_box_gets_a_tensor() -> None:
    model = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 4))
    scene = drawn(atlas.capture(model, torch.randint(0, 99, (2, 16)))).scene
    assert [label.text for label in scene.labels] == ["2×16×8", "2×16×10", "2×16×4"]


def test_branches_of_different_shapes_are_labelled_apart() -> None:
    def split(x: torch.Tensor) -> torch.Tensor:
        one = x.exp()
        return one.view(24).sin().sum() + one.view(3, 8).cos().sum() + one.tan().sum()

    scene = drawn(atlas.capture(split, torch.randn(2, 12))).scene
    exp = next(number for number, found in enumerate(scene.frames) if found.title == "exp")
    lines = [line for line in scene.lines if line.ends[0] == exp]
    assert len(lines) == 3
    labels = {label.text: label for label in scene.labels if label.net == lines[0].net}
    assert set(labels) <= {"24", "3×8"}
    assert labels, "there is room for one at least"
    for text, title in (("24", "sin"), ("3×8", "cos")):
        if text in labels:
            near = [line for line in lines if beside(labels[text], line)]
            assert [scene.frames[line.ends[1]].title for line in near] == [title]  # type: ignore[index]


def test_lines_of_rounds_that_differ_in_shape_have_no_label() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:number].exp().sum(1) for number in range(1, 50)])

    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([(x * number).sum(0) for number in range(1, 50)])

    graph = atlas.capture(branches, torch.randn(60, 3))
    scene = drawn(graph).scene
    assert [found.item.alike_only for found in scene.frames if found.item.repeat == 49] == [True]
    outside = [line.net for line in scene.lines if line.level < 0]
    assert [label.text for label in scene.labels if label.net in outside] == ["1225"]  # of the whole
    scene = drawn(atlas.capture(rows, torch.randn(60, 3))).scene  # only numbers differ
    assert [found.item.alike_only for found in scene.frames if found.item.repeat == 49] == [True]
    assert "3" in [label.text for label in scene.labels]


def test_labels_lie_on_no_side_of_an_open_frame() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    one = other = x
    with sketch.module("wide", "AModuleWithALongNameAndLittleInIt"):  # beside its boxes there seems to be room
        for name in ("sin", "cos", "tan"):
            one = sketch.op(name, one)
    for number, name in enumerate(("exp", "log", "abs")):
        other = sketch.op(name, other, shape=(1111, 2222, number))
    y = sketch.op("mul", sketch.op("cat", one, other), shape=(2, 9))
    sketch.output(y)
    scene = drawn(sketch.graph()).scene
    (wide,) = (found for found in scene.frames if found.open)
    assert "2×9" in [label.text for label in scene.labels]
    for label in scene.labels:
        left, right = label.x, label.x + text_width(label.text, STYLE.small_text)
        beside = label.y + 2 < wide.y or label.y - 9 > wide.y + wide.height
        assert beside or right < wide.x or left > wide.x + wide.width or wide.x < left < right < wide.x + wide.width


def side_by_side(count: int, shape: tuple[int, ...]) -> Graph:
    """So many pairs of ops, with a tensor of some shape between them."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(count):
        part = sketch.op(f"part{number}", x, shape=shape)
        sketch.output(sketch.op(f"more{number}", part, shape=(2, 8)), name=f"y{number}")
    return sketch.graph()


def test_labels_do_not_stick_out_into_the_margins() -> None:
    picture = drawn(side_by_side(7, (12, 100)), 700, 900)
    assert [label.text for label in picture.scene.labels].count("12×100") > 5
    assert outside(picture) == []
    assert picture.scene.beside == 0
    assert verify.defects(picture.scene) == []


def test_a_narrow_drawing_has_labels_beside_it() -> None:
    scene = drawn(side_by_side(1, (1111, 2222, 3333, 4444))).scene
    (label,) = (label for label in scene.labels if label.text == "1111×2222×3333×4444")
    assert label.x + text_width(label.text, STYLE.small_text) > scene.width + 20


def test_a_way_has_lines_where_one_leaf_reads_the_other_and_only_there() -> None:
    sketch = Sketch()
    one = sketch.op("sin", sketch.input("x", (2, 8)))
    with sketch.module("group", "Group"):
        two = sketch.op("cos", one)
        three = sketch.op("exp", two)
    sketch.output(three)
    picture = drawn(sketch.graph())
    leaf = {found.title: found.item.start for found in picture.scene.frames}

    def along(*titles: str) -> list[tuple[str, str]]:
        way = HighlightedPath(picture.outline, picture.scene, [leaf[title] for title in titles])
        assert [found.title for found in way.chain] == list(titles if way.lines else titles[-1:])
        names = [
            "border" if end is None else picture.scene.frames[end].title for line in way.lines for end in line.ends
        ]
        return sorted(zip(names[::2], names[1::2], strict=True))

    assert along("sin", "cos", "exp") == [("border", "cos"), ("cos", "exp"), ("sin", "Group")]
    assert along("sin", "exp") == []  # though a line leads from one to the frame of the other
    assert along("exp", "output") == [("Group", "output"), ("exp", "border")]


def beside(label: Label, line: Line) -> bool:
    """Whether a label stands right beside an upright piece of a line."""
    left, right, middle = label.x, label.x + text_width(label.text, STYLE.small_text), label.y - 4
    return any(
        abs(ax - bx) < 0.3 and ay <= middle <= by and min(abs(ax - left), abs(ax - right)) < 6
        for (ax, ay), (bx, by) in itertools.pairwise(line.points)
    )


def test_lines_have_no_corners_that_are_none() -> None:
    for graph in (chain(30), recurrent_loop(5, odd_step=2), tower(4, width=lambda number: 8 + number)):
        for line in drawn(graph).scene.lines:
            for (ax, ay), (bx, by), (cx, cy) in zip(line.points, line.points[1:], line.points[2:], strict=False):
                assert not (abs(ax - bx) < 0.3 and abs(bx - cx) < 0.3)
                assert not (abs(ay - by) < 0.3 and abs(by - cy) < 0.3)


def test_only_lines_to_boxes_have_arrows_and_bundles_say_how_many() -> None:
    scene = drawn(chain(4)).scene
    assert all(line.arrow and line.many == 1 for line in scene.lines)
    assert len(scene.lines) == 5
