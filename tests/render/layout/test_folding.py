"""Folding: what repeats and is wired alike becomes one box, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from render.graphs import Sketch, chain, dense_block, linear, recurrent_loop, tower
from render.layout import verify
from render.layout.pages import drawn, every_item, outlined

from torchatlas.graph import Graph
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.folding import hands_on
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


def stage(sketch: Sketch, name: str, *read: int) -> int:
    with sketch.module(name, "Stage"):
        return sketch.op("relu", sketch.op("mul", *read))


def residual(sketch: Sketch, x: int) -> int:
    first = stage(sketch, "a", x)
    return sketch.op("add", first, stage(sketch, "b", first))


def gated(sketch: Sketch, x: int) -> int:
    first = stage(sketch, "a", x)
    return sketch.op("add", first, sketch.op("tanh", stage(sketch, "b", first)))


def two_down_two_up(sketch: Sketch, x: int) -> int:
    one = stage(sketch, "down0", x)
    two = stage(sketch, "down1", one)
    return stage(sketch, "up0", sketch.op("add", stage(sketch, "up1", sketch.op("sin", two)), one))


def three_down_two_up(sketch: Sketch, x: int) -> int:
    kept = [x]
    for number in range(3):
        kept.append(stage(sketch, f"down{number}", kept[-1]))
    x = kept[-1]
    for number, skip in enumerate(kept[2:0:-1]):
        x = stage(sketch, f"up{number}", sketch.op("add", x, skip))
    return x


@pytest.mark.parametrize("program", [residual, gated, two_down_two_up, three_down_two_up])
def test_what_is_read_beside_the_next_one_is_no_repeat(program: Callable[[Sketch, int], int]) -> None:
    sketch = Sketch()
    sketch.output(program(sketch, sketch.input("x", (2, 8))))
    graph = sketch.graph()
    assert repeats(graph) == []
    picture = drawn(graph)
    assert verify.hidden(picture.outline, picture.scene) == []


def test_the_first_that_reads_something_else_stands_alone() -> None:
    sketch = Sketch()
    x, mask, other = (sketch.input(name, (2, 8)) for name in ("x", "mask", "other"))
    for number in range(6):
        x = stage(sketch, f"layer{number}", x, other if number == 0 else mask)
    sketch.output(x)
    graph = sketch.graph()
    assert repeats(graph) == [("module", "Stage", 5)]
    picture = drawn(graph)
    assert verify.hidden(picture.outline, picture.scene) == []


def test_the_last_of_which_more_is_read_is_one_of_them_and_one_of_which_less_is_read_is_not() -> None:
    def rounds(gathered: int) -> list[tuple[str, str, int]]:
        sketch = Sketch()
        x = sketch.input("x", (2, 8))
        made = []
        for number in range(6):
            x = stage(sketch, f"layer{number}", x)
            made.append(x)
        sketch.output(sketch.op("sub", sketch.op("cat", *made[:gathered]), sketch.op("exp", x)))
        graph = sketch.graph()
        picture = drawn(graph)
        assert verify.hidden(picture.outline, picture.scene) == []
        return repeats(graph)

    assert rounds(6) == [("module", "Stage", 6)]
    assert rounds(5) == [("module", "Stage", 5)]


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


@pytest.mark.parametrize(("length", "rounds", "folds"), [(9, 4, True), (30, 3, True), (48, 3, True), (49, 3, False)])
def test_a_body_may_be_long(length: int, rounds: int, folds: bool) -> None:
    sketch = Sketch()
    x = sketch.input()
    for _ in range(rounds):
        skipped = x
        for place in range(length - 1):
            x = sketch.op(f"op{place}", x)
        x = sketch.op("add", x, skipped)
    sketch.output(x)
    assert repeats(sketch.graph()) == ([("loop", "", rounds)] if folds else [])


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


def loop(rounds: int, odd: int, how: str) -> Graph:
    """c(a(x), b(a(x))) again and again; the odd round is wired otherwise, though its modules are the same."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        for number in range(rounds):
            is_odd = number == odd
            a = stage(sketch, f"a{number}", x)
            with sketch.module(f"b{number}", "Other"):
                b = sketch.op("tanh", sketch.op("sin", x if is_odd and how == "cut" else a))
            with sketch.module(f"c{number}", "Join"):
                x = sketch.op("relu", sketch.op("sub", *((b, a) if is_odd and how == "swap" else (a, b))))
    sketch.output(x)
    return sketch.graph()


@pytest.mark.parametrize("how", ["swap", "cut"])
@pytest.mark.parametrize(("odd", "counts"), [(-1, [7]), (3, [3, 3]), (0, [6]), (6, [6])])
def test_rounds_that_are_wired_differently_inside_do_not_fold_together(how: str, odd: int, counts: list[int]) -> None:
    graph = loop(7, odd, how)
    assert repeats(graph) == [("loop", "", count) for count in counts]
    assert is_true(graph)


def test_modules_that_differ_in_the_order_of_inputs_inside_do_not_fold_together() -> None:
    """Their hashes are equal."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(7):
        with sketch.module(f"block{number}", "Block"):
            made = sketch.op("sin", x), sketch.op("cos", x)
            x = sketch.op("sub", *(made[::-1] if number == 3 else made))
    sketch.output(x)
    assert repeats(sketch.graph()) == [("module", "Block", 3), ("module", "Block", 3)]


@pytest.mark.parametrize(
    ("first", "folds"),
    [("x, mask", True), ("mask, mask", True), ("parameter, mask", True), ("mask, x", False)],
)
def test_the_first_round_reads_anything_in_the_place_of_what_others_hand_on_and_nowhere_else(
    first: str, folds: bool
) -> None:
    sketch = Sketch()
    known = {name: sketch.input(name, (2, 8)) for name in ("x", "mask")}
    known["parameter"] = sketch.parameter("state", (2, 8))
    x = known["x"]
    for number in range(6):
        read = [known[name] for name in first.split(", ")] if number == 0 else [x, known["mask"]]
        x = sketch.op("tanh", sketch.op("sub", *read))
    sketch.output(x)
    graph = sketch.graph()
    assert repeats(graph) == [("loop", "", 6 if folds else 5)]
    assert is_true(graph)


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


def dense(layers: int, *, left_out: Sequence[tuple[int, int]] = (), read: int = -1, swapped: int = -1) -> Graph:
    """Layers that read x and all layers before; some links left out, one layer read once more, one with its inputs in
    another order."""
    sketch = Sketch()
    made = [sketch.input("x", (2, 8))]
    for number in range(layers):
        with sketch.module(f"layer{number}", "DenseLayer"):
            given = [value for place, value in enumerate(made) if (place - 1, number) not in left_out]
            given = [given[1], given[0], *given[2:]] if number == swapped else given
            joined = sketch.op("cat", *given, shape=(2, 8 * len(given)))
            made.append(sketch.op("relu", sketch.op("mul", joined, shape=(2, 8))))
    x = sketch.op("cat", *made, shape=(2, 8 * len(made)))
    sketch.output(sketch.op("add", x, sketch.op("tanh", made[read + 1])) if read >= 0 else x)
    return sketch.graph()


@pytest.mark.parametrize(
    ("graph", "counts"),
    [
        (dense(8), [8]),
        (dense(8, read=7), [8]),  # of the last more may be read
        (dense(8, read=3), [4]),  # the others are one by one: what they read is drawn
        (dense(8, left_out=[(2, 6)]), []),
        (dense(8, left_out=[(0, 7)]), [6]),  # all but the first and the last
        (dense(8, left_out=[(-1, 7)]), [7]),  # the last does not read x
        (dense(8, swapped=7), [7]),
        (dense(3), []),
    ],
)
def test_a_dense_block_is_one_box_only_if_every_layer_is_linked_alike(graph: Graph, counts: list[int]) -> None:
    found = [item for item in every_item(outlined(graph)) if item.repeat > 1]
    assert [(item.repeat, item.alike_only) for item in found] == [(count, True) for count in counts]
    assert is_true(graph)


# -- modules that differ in numbers ------------------------------------------------------------------------------------


def dropping(
    blocks: int,
    *,
    number: Callable[[int], str] = str,
    op: str = "dropout",
    shape: Callable[[int], int] = lambda number: 8,
    odd: int = -1,
    alternate: bool = False,
) -> Graph:
    """Residual blocks with a number each, such as the probability that they are left out."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        for place in range(blocks):
            with sketch.module(f"{place}", "Block"):
                y = sketch.op("cos" if alternate and place % 2 else "sin", x, shape=(2, shape(place)))
                (y,) = sketch.ops(op, y, shapes=[(2, shape(place))], arguments=f"[[{number(place)}],{{}}]")
                x = sketch.op("add", *((y, x) if place == odd else (x, y)), shape=(2, 8))
    sketch.output(x)
    return sketch.graph()


def differing(graph: Graph) -> list[tuple[str, int, bool]]:
    assert is_true(graph)
    return [(item.kind, item.repeat, item.alike_only) for item in every_item(outlined(graph)) if item.repeat > 1]


@pytest.mark.parametrize(("count", "folds"), [(2, []), (3, [("module", 3, True)]), (14, [("module", 14, True)])])
def test_modules_that_differ_in_a_number_fold_from_three_on(count: int, folds: list[tuple[str, int, bool]]) -> None:
    assert differing(dropping(count)) == folds


def test_pairs_of_modules_that_differ_in_a_number_fold_too() -> None:
    """As in Swin, whose every second block shifts its windows."""
    assert differing(dropping(6, alternate=True)) == [("loop", 3, True)]


def test_what_is_equal_folds_as_equal() -> None:
    assert differing(dropping(6, number=lambda place: "0.1")) == [("module", 6, False)]
    assert differing(dropping(6, number=lambda place: str(place // 3))) == [("module", 3, False)] * 2


@pytest.mark.parametrize("op", ["convolution", "softmax", "sum"])
def test_modules_whose_numbers_say_what_they_do_stay_apart(op: str) -> None:
    """Over how far a convolution is spread, along which axis another works."""
    assert differing(dropping(6, op=op)) == []


def test_modules_that_differ_in_a_number_and_in_shapes_stay_apart() -> None:
    assert differing(dropping(6, shape=lambda place: 8 + place)) == []


def test_modules_that_differ_in_a_number_fold_only_if_they_are_wired_alike() -> None:
    assert differing(dropping(7, odd=3)) == [("module", 3, True)] * 2


def mixture(experts: int, *, called: bool = True, number: Callable[[int], str] = str, odd: int = -1) -> Graph:
    """Experts that are weighted by whether their number was chosen, and added up one after the other."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Mixture"):
        chosen = linear(sketch, x, "gate", 8)
        for name in ("softmax", "topk", "div"):  # the first round begins in the middle of a run of small ops
            chosen = sketch.op(name, chosen)
        total = sketch.op("zeros_like", x)
        for place in range(experts):
            (own,) = sketch.ops("eq", chosen, shapes=[(2, 8)], arguments=f"[[{number(place)}],{{}}]")
            weight = sketch.op("sum", sketch.op("mul", own, chosen), shape=(2, 1))
            if called:
                with sketch.module(f"experts.{place}", "Expert"):
                    y = sketch.op("relu", linear(sketch, x, width=8))
            else:
                y = sketch.op("relu", sketch.op("sin", x))
            total = sketch.op("add", total, sketch.op("mul", *((weight, y) if place == odd else (y, weight))))
    sketch.output(total)
    return sketch.graph()


@pytest.mark.parametrize(("count", "folds"), [(2, []), (3, [("loop", 3, True)]), (8, [("loop", 8, True)])])
def test_rounds_with_a_module_that_differ_in_a_number_fold_from_three_on(
    count: int, folds: list[tuple[str, int, bool]]
) -> None:
    assert differing(mixture(count)) == folds


def test_the_first_round_is_one_of_them_though_it_follows_other_small_ops() -> None:
    outline = outlined(mixture(8))
    (loop,) = (item for item in every_item(outline) if item.kind == "loop")
    titles = [BoxWords(outline).title(item) for item in outline.children(loop)]
    assert titles == ["eq", "mul", "sum", "Expert", "mul", "add"]


def test_rounds_without_a_module_or_wired_differently_stay_apart() -> None:
    assert differing(mixture(8, called=False)) == []
    assert differing(mixture(8, odd=4)) == [("loop", 4, True), ("loop", 3, True)]


def test_rounds_without_a_module_stay_apart_though_there_are_modules_beside_them() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        for width in (16, 24, 8):
            x = linear(sketch, x, f"to{width}", width)
        for place in range(6):
            (x,) = sketch.ops("mul", x, shapes=[(2, 8)], arguments=f"[[{place}],{{}}]")
            x = sketch.op("mm", x, x)
    sketch.output(x)
    assert differing(sketch.graph()) == []


def test_rounds_with_equal_numbers_are_equal() -> None:
    assert differing(mixture(8, number=lambda place: "1")) == [("loop", 8, False)]


def test_names_say_from_where_to_where() -> None:
    (folded,) = (item for item in every_item(outlined(tower(12))) if item.repeat > 1)
    assert folded.name == "layers.0 … layers.11"


def test_a_repeat_stands_for_all_its_leaves() -> None:
    item = Item("module", 10, 14, 0, repeat=5)
    assert item.end == 30


# -- side by side ------------------------------------------------------------------------------------------------------


def fan(count: int, *, width: Callable[[int], int] = lambda number: 8, odd: int = -1) -> Graph:
    """Branches of two ops each that read x and are joined; what the odd one makes is read once more."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        ends = [sketch.op("tanh", sketch.op("mul", x, shape=(2, width(number)))) for number in range(count)]
        joined = sketch.op("cat", *ends, shape=(2, sum(map(width, range(count)))))
        last = sketch.op("sum", ends[odd]) if odd >= 0 else joined
    sketch.output(joined, last)
    return sketch.graph()


def is_true(graph: Graph) -> bool:
    """Whether all that the graph holds is drawn, and nothing else, and well."""
    picture = drawn(graph)
    account = verify.account(picture.outline, picture.scene)
    lost = verify.hidden(picture.outline, picture.scene)
    return (account.missing, account.invented, lost, verify.defects(picture.scene)) == ([], [], [], [])


@pytest.mark.parametrize(("count", "folds"), [(11, []), (12, [("loop", "", 12)]), (300, [("loop", "", 300)])])
def test_equal_branches_fold_from_twelve_on(count: int, folds: list[tuple[str, str, int]]) -> None:
    assert repeats(fan(count)) == folds
    assert is_true(fan(count))


@pytest.mark.parametrize(("count", "folds"), [(39, False), (40, True)])
def test_branches_of_other_sizes_fold_from_forty_on(count: int, folds: bool) -> None:
    graph = fan(count, width=lambda number: 8 + number)
    found = [item for item in every_item(outlined(graph)) if item.repeat > 1]
    assert [(item.repeat, item.alike_only) for item in found] == ([(count, True)] if folds else [])
    assert is_true(graph)


def test_a_branch_that_is_read_elsewhere_breaks_the_run() -> None:
    assert [count for _, _, count in repeats(fan(40, odd=20))] == [20, 19]
    assert is_true(fan(40, odd=20))


def test_a_branch_that_reads_another_breaks_the_run() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    ends = [sketch.op("relu", x) for _ in range(20)]
    ends += [sketch.op("relu", ends[3])]
    ends += [sketch.op("relu", x) for _ in range(20)]
    sketch.output(sketch.op("cat", *ends))
    assert max(count for _, _, count in repeats(sketch.graph())) <= 20
    assert is_true(sketch.graph())


def test_what_reads_one_branch_each_folds_with_them() -> None:
    """ys = [layer(x) for layer in layers], and later the sum of ys."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    ends = [sketch.op("tanh", sketch.op("relu", x)) for _ in range(30)]
    total = x
    for end in ends:
        total = sketch.op("add", total, end)
    sketch.output(total)
    assert repeats(sketch.graph()) == [("loop", "", 30), ("leaf", "", 30)]
    assert is_true(sketch.graph())


def test_inputs_and_what_reads_one_each_stay_apart() -> None:
    sketch = Sketch()
    given = [sketch.input(f"x{number}", (2, 8)) for number in range(14)]
    sketch.output(sketch.op("cat", *(sketch.op("relu", x) for x in given)))
    assert repeats(sketch.graph()) == []
    assert is_true(sketch.graph())


def counting(steps: int, argument: Callable[[int], str]) -> Graph:
    """A loop with a number in every step."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(steps):
        (x,) = sketch.ops("add", sketch.op("sin", x), shapes=[(2, 8)], arguments=f"[[{argument(number)}],{{}}]")
    sketch.output(x)
    return sketch.graph()


def test_a_long_loop_with_another_number_in_every_step_is_one_box() -> None:
    assert repeats(counting(39, str)) == []
    assert repeats(counting(40, str)) == [("loop", "", 40)]
    assert is_true(counting(40, str))


def test_one_odd_step_does_not_make_equal_ones_differ() -> None:
    """As sum(...) begins with 0 + the first."""
    found = [item for item in every_item(outlined(counting(80, lambda number: str(number > 0)))) if item.repeat > 1]
    assert [(item.repeat, item.alike_only) for item in found] == [(79, False)]


def test_a_repeat_hands_on_or_lies_side_by_side() -> None:
    for graph, expected in ((tower(12), True), (dense_block(8), True), (fan(12), False)):
        outline = outlined(graph)
        (item,) = (item for item in every_item(outline) if item.repeat > 1)
        assert hands_on(outline.tree, item) == expected
