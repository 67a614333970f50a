"""Folding: what repeats and is wired alike becomes one box, and nothing else does."""

from __future__ import annotations

import pytest
from render.graphs import Sketch, chain, dense_block, linear, recurrent_loop, tower
from render.layout.pages import drawn, every_item, outlined

from torchatlas.graph import Graph
from torchatlas.render.layout import verify
from torchatlas.render.layout.outline import Item


def repeats(graph: Graph) -> list[tuple[str, str, int]]:
    """Kind, class and count of everything that is folded."""
    return [(item.kind, item.type, item.repeat) for item in every_item(outlined(graph)) if item.repeat > 1]


def leaves(graph: Graph) -> int:
    """Leaves of the top items, counting repeats: folding loses nothing."""
    outline = outlined(graph)
    return sum(item.end - item.start for item in outline.children(outline.root))


def test_a_loop_of_50_steps_whose_outputs_are_stacked_is_one_box() -> None:
    graph = recurrent_loop(50)
    assert repeats(graph) == [("module", "Cell", 50)]
    assert leaves(graph) == len(outlined(graph).tree.node)
    picture = drawn(graph)
    account = verify.account(picture.outline, picture.scene)
    assert account.repeated > 49 * 4
    assert (account.missing, account.invented) == ([], [])


def test_a_step_that_reads_elsewhere_breaks_the_loop() -> None:
    counts = [count for _, _, count in repeats(recurrent_loop(50, odd_step=20))]
    assert 50 not in counts
    assert sum(counts) >= 45
    assert max(counts) <= 30


def test_a_body_of_two_modules() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(6):
        with sketch.module(f"attend{number}", "Attend"):
            x = sketch.op("add", sketch.op("softmax", x), x)
        with sketch.module(f"feed{number}", "Feed"):
            x = sketch.op("mul", sketch.op("gelu", x), x)
    sketch.output(x)
    graph = sketch.graph()
    assert repeats(graph) == [("loop", "", 6)]
    (loop,) = (item for item in every_item(outlined(graph)) if item.kind == "loop")
    assert [part.type for part in loop.parts or ()] == ["Attend", "Feed"]


def test_a_body_of_two_is_worth_folding_from_three_on() -> None:
    def alternating(times: int) -> Graph:
        return chain(2 * times, lambda number: ("sin", "cos")[number % 2])

    assert repeats(alternating(2)) == []
    assert repeats(alternating(3)) == [("loop", "", 3)]


@pytest.mark.parametrize(("length", "folds"), [(3, False), (4, True)])
def test_single_ops_fold_from_four_on(length: int, folds: bool) -> None:
    assert bool(repeats(chain(length, lambda number: "relu"))) == folds


def test_blocks_fold_in_a_chain_but_not_side_by_side() -> None:
    assert repeats(tower(12)) == [("module", "Block", 12)]
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    ends = []
    for number in range(6):
        with sketch.module(f"expert{number}", "Expert"):
            ends.append(sketch.op("relu", linear(sketch, x, "linear", 8)))
    sketch.output(sketch.op("cat", *ends))
    assert repeats(sketch.graph()) == []


def test_blocks_of_other_sizes_do_not_fold() -> None:
    assert repeats(tower(6, width=lambda number: 8 + number)) == []


def test_blocks_whose_wiring_differs_do_not_fold_together() -> None:
    """The fourth block adds what the first made, not what the one before it did."""
    sketch = Sketch()
    x = first = sketch.input("x", (2, 8))
    for number in range(6):
        with sketch.module(f"block{number}", "Block"):
            x = sketch.op("add", sketch.op("relu", x), first if number == 3 else x)
        first = x if number == 0 else first
    sketch.output(x)
    counts = [count for _, _, count in repeats(sketch.graph())]
    assert all(count <= 3 for count in counts)


def test_a_unit_read_by_name_from_far_away_breaks_the_run() -> None:
    """A U-Net's way down: what the second block makes is read at the end, what the others make is not."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    kept = x
    for number in range(6):
        with sketch.module(f"block{number}", "Block"):
            x = sketch.op("add", sketch.op("relu", x), x)
        kept = x if number == 1 else kept
    sketch.output(sketch.op("mul", x, kept))
    graph = sketch.graph()
    assert ("module", "Block", 6) not in repeats(graph)
    picture = drawn(graph)
    account = verify.account(picture.outline, picture.scene)
    assert (account.missing, account.invented) == ([], [])


def test_folds_nest() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        for stage in range(3):
            with sketch.module(f"stages.{stage}", "Stage"):
                for number in range(4):
                    with sketch.module(f"blocks.{number}", "Block"):
                        x = sketch.op("add", sketch.op("relu", x), x)
                x = sketch.op("tanh", x)
    sketch.output(x)
    assert repeats(sketch.graph()) == [("module", "Stage", 3), ("module", "Block", 4)]


def test_a_dense_block_is_one_box_that_says_its_layers_differ() -> None:
    outline = outlined(dense_block(8))
    (folded,) = (item for item in every_item(outline) if item.repeat > 1)
    assert (folded.type, folded.alike_only) == ("DenseLayer", True)
    assert folded.repeat >= 7  # the first reads one tensor and may be left out
    assert folded.name.endswith("layer7")


def test_names_say_from_where_to_where() -> None:
    (folded,) = (item for item in every_item(outlined(tower(12))) if item.repeat > 1)
    assert folded.name == "0 … 11"


def test_a_repeat_stands_for_all_its_leaves() -> None:
    item = Item("module", 10, 14, 0, repeat=5)
    assert item.end == 30
