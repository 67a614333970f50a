"""Rounds with leaves that read what stands after them, as where gradients accumulate: which of them are folded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from render.graphs import Sketch
from render.layout import verify
from render.layout.pages import drawn, every_item, outlined

from torchatlas.graph import Graph, Phase
from torchatlas.render.layout.outline import Item
from torchatlas.render.layout.repeat_wiring import rounds_in_a_row
from torchatlas.render.layout.tree import build

Reads = Callable[[int], int | None]


def following(last: int) -> Reads:
    return lambda number: number + 1 if number < last else None


def rounds(count: int, reads: Reads, *, given: str = "row", early: tuple[int, ...] = ()) -> Graph:
    """Modules that begin one after the other. When all have begun, each adds what another has made to its own: the one
    that `reads` names, if any. A module that began before them reads those of `early`.

    `given` is what a module reads when it begins: the one before ("row"), the input ("side") or all before ("dense").
    """
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        with sketch.module("early", "Early"):
            began, first = sketch.call, sketch.op("neg", sketch.op("exp", x))
        made, calls = [], []
        for number in range(count):
            with sketch.module(f"block{number}", "Block"):
                before = {"row": [first, *made][-1:], "side": [x], "dense": [first, *made]}[given]
                made.append(sketch.op("relu", sketch.op("cat", *before, shape=(2, 8))))
                calls.append(sketch.call)
        for number, call in enumerate(calls):
            other = reads(number)
            if other is not None:
                with sketch.inside(call, Phase.FORWARD):
                    sketch.op("add", made[number], made[other])
        if early:
            with sketch.inside(began, Phase.FORWARD):
                sketch.op("cat", *(made[number] for number in early))
        result = sketch.op("stack", *(made if given == "dense" else made[-1:]))
        for name in ("cos", "tan", "erf"):
            result = sketch.op(name, result)
        result = sketch.op("mul", result, made[-1])  # of a repeat the last may have more readers
    sketch.output(result)
    return sketch.graph()


def repeats(graph: Graph) -> list[int]:
    return [item.repeat for item in every_item(outlined(graph)) if item.type == "Block"]


def problems(graph: Graph) -> list[str]:
    picture = drawn(graph)
    account = verify.account(picture.outline, picture.scene)
    hidden = verify.hidden(picture.outline, picture.scene)
    return [*verify.defects(picture.scene), *account.missing, *account.invented, *hidden]


@pytest.mark.parametrize(("given", "count"), [("row", 6), ("side", 14), ("dense", 6)])
def test_rounds_that_read_the_next_one_are_no_repeat(given: str, count: int) -> None:
    graph = rounds(count, following(count - 1), given=given)
    assert repeats(graph) == [1] * count
    assert problems(graph) == []


def test_the_first_round_may_read_anything_but_a_round_of_its_repeat() -> None:
    """Each adds what the one before has made, and the first what another has made that follows."""
    graph = rounds(8, lambda number: number - 1 if number else 5)
    assert problems(graph) == []
    tree = build(graph)
    calls = [group for group in range(len(tree.start)) if tree.parent[group] == 1][1:]
    blocks = [Item("module", int(tree.start[group]), int(tree.stop[group]), hash=0) for group in calls]
    assert len(blocks) == 8
    assert rounds_in_a_row(tree, blocks, 1, []) == 5, "all that come before the one that the first reads"


@pytest.mark.parametrize(("given", "count"), [("row", 8), ("side", 30), ("dense", 8)])
def test_a_reader_that_stands_before_the_rounds_counts(given: str, count: int) -> None:
    """If it reads one of them, that one is not like the others; if it reads none or all, they are alike."""
    one = rounds(count, lambda number: None, given=given, early=(2,))
    assert max(repeats(one)) < count
    assert problems(one) == []
    for early in ((), tuple(range(count))):
        every = rounds(count, lambda number: None, given=given, early=early)
        assert (early, repeats(every)) == (early, [count])
        assert problems(every) == []
