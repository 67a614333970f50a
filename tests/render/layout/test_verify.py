"""The verifier sees what is wrong: every defect that is planted in a good picture is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from render.graphs import Sketch, linear
from render.layout import verify
from render.layout.pages import drawn, frame

from torchatlas.render.fonts import text_width
from torchatlas.render.layout import folding
from torchatlas.render.layout.highlight import HighlightedPath
from torchatlas.render.layout.line_labels import Label
from torchatlas.render.layout.scene import Line, Scene
from torchatlas.render.layout.style import STYLE
from torchatlas.render.picture import Picture
from torchatlas.render.scene_painter import heaviest


@pytest.fixture
def picture() -> Picture:
    """Two branches in a module, and a box before and after it."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    x = sketch.op("tanh", x, shape=(2, 9))
    with sketch.module("fork", "Fork"):
        left, right = linear(sketch, x, "left", 4), sketch.op("sin", x, shape=(2, 4))
        x = sketch.op("add", left, right)
    sketch.output(sketch.op("exp", x))
    found = drawn(sketch.graph())
    assert verify.defects(found.scene) == []
    account = verify.account(found.outline, found.scene)
    assert (account.missing, account.invented) == ([], [])
    assert frame(found.scene, "Fork").open
    return found


def moved(scene: Scene, which: str, dx: float = 0.0, dy: float = 0.0, **changes: object) -> Scene:
    """The scene with one frame elsewhere, or otherwise."""
    one = frame(scene, which)
    other = replace(one, x=one.x + dx, y=one.y + dy, **changes)
    return replace(scene, frames=[other if found is one else found for found in scene.frames])


def touching(scene: Scene, title: str, end: int) -> Line:
    """A line that begins (0) or ends (-1) at a box."""
    one = frame(scene, title)
    y = one.y if end else one.y + one.height
    return next(
        line
        for line in scene.lines
        if abs(line.points[end][1] - y) < 1 and one.x <= line.points[end][0] <= one.x + one.width
    )


def box_on_box(scene: Scene) -> Scene:
    here, there = frame(scene, "Linear"), frame(scene, "sin")
    return moved(scene, "Linear", there.x - here.x, there.y - here.y)


def box_outside_its_group(scene: Scene) -> Scene:
    return moved(scene, "add", dy=frame(scene, "Fork").height)


def box_on_the_heading_of_its_group(scene: Scene) -> Scene:
    return moved(scene, "sin", dy=frame(scene, "Fork").y - frame(scene, "sin").y)


def box_off_the_page(scene: Scene) -> Scene:
    return moved(scene, "tanh", dx=-scene.width)


def text_too_wide(scene: Scene) -> Scene:
    return moved(scene, "sin", title="sin" * 40)


def second_text_too_wide(scene: Scene) -> Scene:
    return moved(scene, "sin", subtitle="2×4 " * 40)


def line_through_a_box(scene: Scene) -> Scene:
    one = frame(scene, "Linear")
    middle, net = one.y + one.height / 2, scene.lines[0].net
    points = ((one.x - 10, middle), (one.x + one.width + 10, middle))
    return replace(scene, lines=[*scene.lines, Line(net, points, False, 0)])


def line_through_a_heading(scene: Scene) -> Scene:
    one = frame(scene, "Fork")
    points = ((one.x - 10, one.y + STYLE.heading / 2), (one.x + one.width + 10, one.y + STYLE.heading / 2))
    return replace(scene, lines=[*scene.lines, Line(scene.lines[0].net, points, False, 0)])


def two_nets_on_one_line(scene: Scene) -> Scene:
    line = touching(scene, "tanh", 0)
    (x, y), *_ = line.points
    other = Line(line.net + 7, ((x + 1, y), (x + 1, y + 20)), False, line.level)
    return replace(scene, lines=[*scene.lines, other])


def line_from_nowhere(scene: Scene) -> Scene:
    """Into the module, beside where its tensor enters."""
    line, one = touching(scene, "sin", -1), frame(scene, "Fork")
    x = line.points[-1][0]
    other = replace(line, points=((x, one.y + STYLE.heading), line.points[-1]))
    assert all(abs(end.points[-1][0] - x) > 2 for end in scene.lines if abs(end.points[-1][1] - one.y) < 1)
    return replace(scene, lines=[other if found is line else found for found in scene.lines])


def line_to_nowhere(scene: Scene) -> Scene:
    return replace(scene, lines=[line for line in scene.lines if line is not touching(scene, "exp", -1)])


def line_of_another_tensor_beyond_a_border(scene: Scene) -> Scene:
    line = touching(scene, "tanh", 0)
    return replace(scene, lines=[replace(one, net=one.net + 7) if one is line else one for one in scene.lines])


def label_on_a_box(scene: Scene) -> Scene:
    one = frame(scene, "sin")
    return replace(scene, labels=[*scene.labels, Label(one.x + 5, one.y + 14, "2×4", 0)])


def label_on_the_left_border(scene: Scene) -> Scene:
    one = frame(scene, "Fork")
    return replace(scene, labels=[Label(one.x - 5, one.y + one.height / 2, "2×4", 0)])


def label_on_the_right_border(scene: Scene) -> Scene:
    one = frame(scene, "Fork")
    return replace(scene, labels=[Label(one.x + one.width - 5, one.y + one.height / 2, "2×4", 0)])


def label_on_the_lower_border(scene: Scene) -> Scene:
    one = frame(scene, "Fork")
    return replace(scene, labels=[Label(one.x + 8, one.y + one.height + 5, "2×4", 0)])


def label_on_what_looks_out_behind_a_repeat(scene: Scene) -> Scene:
    one = frame(scene, "Fork")
    one.item.repeat = 2
    return replace(scene, labels=[Label(one.x + one.width + STYLE.stack / 2, one.y + one.height / 2, "2×4", 0)])


def label_on_a_line(scene: Scene) -> Scene:
    x, y = touching(scene, "exp", 0).points[0]
    return replace(scene, labels=[Label(x - 5, y + 11, "2×4", 0)])


def label_on_a_label(scene: Scene) -> Scene:
    label = Label(scene.width + 50, scene.height + 50, "2×4", 0)
    return replace(scene, labels=[label, replace(label, x=label.x + STYLE.small_text / 2)])


def label_in_the_left_margin(scene: Scene) -> Scene:
    return replace(scene, labels=[Label(-scene.beside - 5, scene.height / 2, "2×4", 0)])


def label_in_the_right_margin(scene: Scene) -> Scene:
    wide = text_width("2×4", STYLE.small_text)
    return replace(scene, labels=[Label(scene.width + scene.beside - wide + 5, scene.height / 2, "2×4", 0)])


PLANTED: dict[Callable[[Scene], Scene], str] = {
    box_on_box: "overlap",
    box_outside_its_group: "outside its group",
    box_on_the_heading_of_its_group: "outside its group",
    box_off_the_page: "outside its group",
    text_too_wide: "wider than its box",
    second_text_too_wide: "wider than its box",
    line_through_a_box: "runs through Linear",
    line_through_a_heading: "runs through Fork",
    two_nets_on_one_line: "lie on each other",
    line_from_nowhere: "comes from nowhere into Fork",
    line_to_nowhere: "leads nowhere out of Fork",
    line_of_another_tensor_beyond_a_border: "leads nowhere in Fork",
    label_on_a_box: "lies on a box",
    label_in_the_left_margin: "lies in the margin",
    label_in_the_right_margin: "lies in the margin",
    label_on_the_left_border: "lies on a border",
    label_on_the_right_border: "lies on a border",
    label_on_the_lower_border: "lies on a border",
    label_on_what_looks_out_behind_a_repeat: "lies on a border",
    label_on_a_line: "lies on a line",
    label_on_a_label: "lies on another",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_reported(picture: Picture, plant: Callable[[Scene], Scene]) -> None:
    found = verify.defects(plant(picture.scene))
    assert any(PLANTED[plant] in words for words in found), found


def test_a_label_beside_a_border_is_well(picture: Picture) -> None:
    one = frame(picture.scene, "Fork")
    wide = text_width("2×4", STYLE.small_text)
    places = (one.x - wide - 1, one.x + 1, one.x + one.width - wide - 1, one.x + one.width + 1)
    for x in places:
        beside = replace(picture.scene, labels=[Label(x, one.y + one.height - 3, "2×4", 0)])
        assert not any("border" in words for words in verify.defects(beside))


def test_every_line_that_is_dropped_is_missed(picture: Picture) -> None:
    scene = picture.scene
    assert len(scene.lines) >= 8
    for line in scene.lines:
        without = replace(scene, lines=[other for other in scene.lines if other is not line])
        assert verify.account(picture.outline, without).missing, line


def test_a_chain_that_is_marked_in_part_or_too_much_is_found(picture: Picture) -> None:
    scene = picture.scene
    way = HighlightedPath(picture.outline, scene, heaviest(picture.outline.tree, "count"))
    assert verify.broken(scene, way) == []
    marked = way.lines
    assert len(marked) > 5
    for line in marked:
        way.lines = marked - {line}
        assert any(words.startswith("no marked lines lead from") for words in verify.broken(scene, way)), line
    for line in set(scene.lines) - marked:
        way.lines = marked | {line}
        assert verify.broken(scene, way) == [f"a line of {line.net} is marked beside the chain"]


def test_a_line_that_is_added_is_called_invented(picture: Picture) -> None:
    scene = picture.scene
    start, stop = touching(scene, "tanh", 0), touching(scene, "exp", -1)
    way = (start.points[0], (scene.width, start.points[0][1]), (scene.width, stop.points[-1][1]), stop.points[-1])
    added = replace(scene, lines=[*scene.lines, Line(start.net, way, True, -1)])
    assert verify.account(picture.outline, added).invented == [f"tanh -> exp ({start.net})"]


def test_a_line_to_the_wrong_box_is_missed_and_invented(picture: Picture) -> None:
    scene = picture.scene
    line, there = touching(scene, "exp", -1), frame(scene, "tanh")
    wrong = replace(line, points=(*line.points[:-1], (there.x + 20, there.y)))
    account = verify.account(
        picture.outline, replace(scene, lines=[wrong if one is line else one for one in scene.lines])
    )
    assert any("exp" in words for words in account.missing)
    assert any("tanh" in words for words in account.invented)


def test_a_line_that_carries_another_tensor_is_missed(picture: Picture) -> None:
    """Inside a group a line must carry the net it says, not only lead to the right box."""
    scene = picture.scene
    line = touching(scene, "sin", -1)
    other = replace(line, net=line.net + 1)
    account = verify.account(
        picture.outline, replace(scene, lines=[other if one is line else one for one in scene.lines])
    )
    assert account.missing
    assert account.invented


def test_every_edge_is_accounted_for_once(picture: Picture) -> None:
    account = verify.account(picture.outline, picture.scene)
    assert account.drawn == len(picture.outline.tree.source) == 7
    assert (account.inside, account.repeated, account.kept) == (0, 0, 0)


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a version that folded whatever is equal."""
    monkeypatch.setattr(folding, "rounds_in_a_row", lambda tree, items, period, folds: len(items) // period)


def lost(sketch: Sketch) -> list[str]:
    """What the picture does not tell of its repeats."""
    picture = drawn(sketch.graph())
    assert any(each.item.repeat > 1 for each in picture.scene.frames)
    return verify.hidden(picture.outline, picture.scene)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("residual", "is read where others are not"),
        ("first", "reads what the first does not"),
        ("far", "reads one that is not before it"),
    ],
)
def test_folds_that_hide_something_are_found(program: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    careless(monkeypatch)
    sketch = Sketch()
    first = x = sketch.input("x", (2, 8))
    made = [x]
    for number in range(4):
        more = [sketch.input("y", (2, 8))] if program == "first" and number == 2 else [first]
        more = [made[1]] if program == "far" and number == 3 else more
        with sketch.module(f"layer{number}", "Stage"):
            x = sketch.op("mul", x, *more)
        made.append(x)
    sketch.output(sketch.op("add", x, made[1]) if program == "residual" else x)
    assert any(each.endswith(said) for each in lost(sketch))


@pytest.mark.parametrize(
    ("how", "odd", "said"),
    [
        *[("swapped inside", odd, "is wired otherwise inside") for odd in range(4)],
        *[("cut inside", odd, "is wired otherwise inside") for odd in range(4)],
        ("swapped", 0, "reads otherwise than the first"),
        *[("swapped", odd, "reads otherwise than the second") for odd in range(1, 4)],
        *[("handed on from elsewhere", odd, "reads otherwise than the second") for odd in range(3)],
        ("handed on from elsewhere", 3, ""),  # no round reads what the last one makes
    ],
)
def test_wiring_that_differs_in_one_round_is_found(
    how: str, odd: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless(monkeypatch)
    sketch = Sketch()
    x, mask = sketch.input("x", (2, 8)), sketch.input("mask", (2, 8))
    early = x
    for number in range(4):
        does = how if number == odd else ""
        a = sketch.op("sub", *((mask, x) if does == "swapped" else (x, mask)))
        with sketch.module(f"layer{number}", "Stage"):
            b = sketch.op("cos", sketch.op("sin", x if does == "cut inside" else a))
        c = sketch.op("div", *((b, a) if does == "swapped inside" else (a, b)))
        x, early = sketch.op("add", c, early), a if does == "handed on from elsewhere" else b
    sketch.output(x)
    found = lost(sketch)
    assert any(said in each for each in found) if said else found == [], found


def test_rounds_that_are_wired_alike_hide_nothing() -> None:
    sketch = Sketch()
    x, mask = sketch.input("x", (2, 8)), sketch.input("mask", (2, 8))
    for number in range(4):
        with sketch.module(f"layer{number}", "Stage"):
            a = sketch.op("sub", x, mask)
            x = sketch.op("div", a, sketch.op("sin", a))
    sketch.output(x)
    assert lost(sketch) == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("", ""),
        ("left out", "does not read all before it as others do"),
        ("swapped", "does not read all before it as others do"),
        ("read", "is read where others are not"),
    ],
)
def test_dense_folds_that_hide_something_are_found(how: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a version that folded what is nearly dense."""
    monkeypatch.setattr(folding, "rounds_in_a_dense_block", lambda tree, items, period, folds: len(items) // period)
    sketch = Sketch()
    made = [sketch.input("x", (2, 8))]
    for number in range(6):
        with sketch.module(f"layer{number}", "DenseLayer"):
            given = made[::-1] if how == "swapped" and number == 4 else list(made)
            if how == "left out" and number == 4:
                del given[2]
            joined = sketch.op("cat", *given, shape=(2, 8 * len(given)))
            made.append(sketch.op("relu", joined, shape=(2, 8)))
    x = sketch.op("cat", *made, shape=(2, 8 * len(made)))
    sketch.output(sketch.op("add", x, sketch.op("tanh", made[3])) if how == "read" else x)
    found = lost(sketch)
    assert any(each.endswith(said) for each in found) if said else found == [], found


def test_folds_of_modules_that_differ_in_numbers_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    careless(monkeypatch)
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(5):
        with sketch.module(f"{number}", "Block"):
            (y,) = sketch.ops("dropout", x, shapes=[(2, 8)], arguments=f"[[{number}],{{}}]")
            x = sketch.op("sub", *((x, y) if number == 2 else (y, x)))
    sketch.output(x)
    assert any(each.endswith("reads otherwise than the second") for each in lost(sketch))
