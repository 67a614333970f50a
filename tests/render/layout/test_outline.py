"""The outline: items cover their group, single-op modules are boxes, small ops are gathered, too many are cut."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from render.graphs import Sketch, chain, linear, nested_graphs, tower, written
from render.layout.pages import every_item, outlined

from torchatlas.graph import Graph
from torchatlas.render.layout.outline import MOST_CHILDREN, Outline
from torchatlas.render.layout.wiring import OUTPUTS

FEW = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def kinds(outline: Outline) -> list[tuple[str, str, str]]:
    return [(item.kind, item.type, item.name) for item in outline.children(outline.root)]


@FEW
@given(nested_graphs())
def test_items_lie_side_by_side_and_cover_their_group(graph: Graph) -> None:
    outline = outlined(graph)
    for item in every_item(outline):
        if item.is_leaf:
            assert item.stop == item.start + 1
            continue
        at = item.start
        for child in outline.children(item):
            assert child.start == at
            assert child.parent is item
            assert child.depth == item.depth + 1
            at = child.end
        assert at == item.stop


@FEW
@given(nested_graphs())
def test_lines_join_items_and_what_leaves_a_group_comes_from_one(graph: Graph) -> None:
    outline = outlined(graph)
    for item in every_item(outline):
        if item.is_leaf:
            continue
        items, wiring = outline.children(item), outline.wiring(item)
        for come, to, _ in wiring.edges:
            assert -1 <= come < len(items)
            assert 0 <= to < len(items)
            assert come != to
        assert set(wiring.inside) == set(outline.ends(item).outputs)
        for place, tensor in wiring.inside.values():
            assert items[place].start <= tensor // OUTPUTS < items[place].stop
            assert tensor in outline.ends(items[place]).outputs
        entering = {tensor for come, _, tensor in wiring.edges if come < 0}
        assert entering <= set(outline.ends(item).inputs)


def test_the_page_is_the_frame_of_the_model() -> None:
    outline = outlined(tower(3, width=lambda number: 8 + number))
    assert outline.root.type == "Tower"
    assert kinds(outline) == [
        ("leaf", "", ""),
        ("module", "Block", "layers.0"),
        ("module", "Block", "layers.1"),
        ("module", "Block", "layers.2"),
        ("leaf", "", ""),
    ]


def test_modules_of_two_lists_have_different_names() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "UNet"):
        for name, width in (("d.0", 7), ("d.1", 6), ("u.0", 7), ("u.1", 8)):
            with sketch.module(name, "Res"):
                x = sketch.op("relu", linear(sketch, x, "a", width))
    sketch.output(x)
    outline = outlined(sketch.graph())
    modules = [item for item in outline.children(outline.root) if item.kind == "module"]
    assert [item.name for item in modules] == ["d.0", "d.1", "u.0", "u.1"]
    assert [part.name for part in outline.children(modules[2])] == ["a", ""]


def test_a_module_that_belongs_elsewhere_is_called_by_where() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        x = sketch.op("tanh", x)
        with sketch.module("decoder", "Decoder"):
            x = sketch.op("relu", linear(sketch, x, "own", 8))
    sketch.output(x)
    graph = sketch.graph()
    rows = graph.tables.modules
    rows[:] = [replace(row, path="encoder.embed") if row.path == "decoder.own" else row for row in rows]
    outline = outlined(graph)
    (decoder,) = (item for item in outline.children(outline.root) if item.kind != "leaf")
    assert [part.name for part in outline.children(decoder)] == ["encoder.embed", ""]


def test_a_module_with_one_op_is_that_op_and_one_with_one_module_is_that_module() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("outer", "Outer"), sketch.module("inner", "Inner"):
        x = sketch.op("add", sketch.op("relu", x), x)
    x = linear(sketch, x, "head", 4)
    sketch.output(x)
    assert kinds(outlined(sketch.graph()))[1:3] == [("module", "Inner", "outer.inner"), ("leaf", "Linear", "head")]


def test_small_ops_between_modules_are_gathered() -> None:
    def graph(count: int) -> Graph:
        sketch = Sketch()
        x = linear(sketch, sketch.input("x", (2, 8)), "first", 8)
        for number in range(4):
            x = linear(sketch, x, f"more{number}", 8 + number)
        for number in range(count):
            x = sketch.op(("exp", "sin", "cos", "neg", "abs", "log", "sqrt")[number], x)
        with sketch.module("last", "Last"):
            x = sketch.op("mul", sketch.op("relu", x), x)
        sketch.output(x)
        return sketch.graph()

    assert "functional" not in [kind for kind, _, _ in kinds(outlined(graph(3)))]
    outline = outlined(graph(7))
    (gathered,) = (item for item in outline.children(outline.root) if item.kind == "functional")
    assert gathered.stop - gathered.start == 7
    assert not outline.can_open(gathered)


def test_far_too_many_items_are_cut_into_segments() -> None:
    short, long = outlined(chain(MOST_CHILDREN - 2)), outlined(chain(3 * MOST_CHILDREN))
    assert {item.kind for item in short.children(short.root)} == {"leaf"}
    items = long.children(long.root)
    assert len(items) <= MOST_CHILDREN
    assert "segment" in {item.kind for item in items}
    assert sum(item.end - item.start for item in items) == 3 * MOST_CHILDREN + 2
    few = outlined(chain(40), most_children=8)
    assert len(few.children(few.root)) <= 9


def test_what_is_given_and_returned_is_in_no_segment_with_ops() -> None:
    def titles(inputs: int, ops: int, most: int) -> list[str]:
        sketch = Sketch()
        given = [sketch.input(f"x{number}", (2, 8)) for number in range(inputs)]
        x = sketch.op("stack", *given)
        for number in range(ops):
            x = sketch.op(f"op{number}", x)
        sketch.output(x)
        outline = outlined(sketch.graph(), most_children=most)
        names = []
        for item in outline.children(outline.root):
            inside = {outline.is_marker(leaf) for leaf in every_item(outline, item) if leaf.is_leaf}
            kind = {(True,): "marker", (False,): "op", (False, True): "both"}[tuple(sorted(inside))]
            names.append(kind if item.is_leaf else f"{kind}s")
        return names

    for most in (4, 8, 16, 30):
        assert titles(1, 60, most)[:2] == ["marker", "ops"]
        assert titles(1, 60, most)[-1] == "marker"
        assert len(titles(1, 60, most)) <= most + 1
    assert titles(3, 60, 8)[:4] == ["marker"] * 3 + ["ops"]
    many = titles(100, 60, 16)  # too many to show each
    assert set(many[:-1]) == {"markers", "ops"}
    assert len(many) <= 20
    assert titles(100, 60, 1) == ["boths"]  # a page for one box


def test_a_run_of_ops_in_one_segment_is_cut_again_inside() -> None:
    sketch = Sketch()
    x = sketch.op("exp", sketch.input("x", (2, 8)))
    for number in range(300):
        x = sketch.op(f"op{number}", x)
    sketch.output(x)
    outline = outlined(sketch.graph(), most_children=3)
    (segment,) = (item for item in outline.children(outline.root) if item.kind == "segment")
    assert all(len(outline.children(item)) <= 4 for item in every_item(outline, segment) if not item.is_leaf)


def test_markers_are_what_the_program_is_given_and_returns() -> None:
    outline = outlined(chain(3))
    assert [outline.is_marker(item) for item in outline.children(outline.root)] == [True, False, False, False, True]


def test_what_one_lane_takes_from_another_is_one_line() -> None:
    outline = outlined(written([("linear", 4), ("linear", 5), ("chain", 4, False)], training="optimizer"))
    wiring, items = outline.wiring(outline.root), outline.children(outline.root)
    lanes = {items[u].name: items[v].name for u, v, tensor in wiring.edges if tensor < 0}
    assert lanes == {"forward": "backward", "backward": "optimizer"}
    from_lanes = [leaf for leaf in outline.tree.kept_source if leaf >= items[1].start]  # what is given has no lane
    assert sum(wiring.bundles.values()) == len(from_lanes) == 7


def test_a_tensor_has_one_number_at_all_depths() -> None:
    outline = outlined(tower(12))
    block = next(item for item in every_item(outline) if item.repeat > 1)
    size = block.stop - block.start
    last = block.start + 11 * size + size - 1  # what the last block makes is drawn as what the first one does
    assert outline.net(last * OUTPUTS) == outline.net((block.start + size - 1) * OUTPUTS)
    assert outline.net(-3) == -3


def between_modules(*runs: tuple[str, ...], most: int = 6) -> Graph:
    """Runs of cheap ops, each a chain, between modules; a name with * reads nothing of its run."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(most):
        with sketch.module(f"layer{number}", "Layer"):
            x = sketch.op(f"sin{number}", sketch.op("mul", x))
    for run in runs:
        given = x
        for name in run:
            x = sketch.op(name.strip("*"), given if name.endswith("*") else x)
    with sketch.module("last", "Layer"):
        x = sketch.op("cos", sketch.op("mul", x))
    sketch.output(x)
    return sketch.graph()


def test_ops_that_do_not_depend_on_each_other_are_in_no_box_together() -> None:
    chain_of = ("exp", "neg", "abs", "sqrt", "log", "floor")
    for graph, sizes in (
        (between_modules(chain_of), [6]),
        (between_modules((*chain_of, "exp*", "neg", "abs", "tanh", "log")), [6, 5]),
        (between_modules((*chain_of, "tanh*")), [6]),  # one alone needs no box
        (between_modules(("exp", "neg*", "abs*", "sqrt*", "log*", "tan*")), []),
    ):
        outline = outlined(graph)
        found = [item for item in outline.children(outline.root) if item.kind == "functional"]
        assert [item.stop - item.start for item in found] == sizes
        assert not any(outline.can_open(item) for item in found)


def test_ops_between_modules_are_opened_if_they_are_most_of_a_model() -> None:
    outline = outlined(between_modules(tuple(f"op{number}" for number in range(30))))
    (glue,) = (item for item in outline.children(outline.root) if item.kind == "functional")
    assert outline.can_open(glue)
    modules = outlined(between_modules(tuple(f"op{number}" for number in range(30))), modules_only=True)
    assert not any(modules.can_open(item) for item in modules.children(modules.root) if item.kind == "functional")


def test_ops_before_and_after_a_loop_are_in_no_box_with_those_of_a_round() -> None:
    def graph(before: int, after: int) -> Graph:
        sketch = Sketch()
        x = sketch.input("x", (2, 8))
        with sketch.module("stem", "Stem"):
            x = sketch.op("cos", sketch.op("mul", x))
        for number in range(before):
            x = sketch.op(f"early{number}", x)
        for _ in range(6):
            for name in ("exp", "neg", "abs", "sqrt", "log", "floor"):
                x = sketch.op(name, x)
            with sketch.module("layer", "Layer"):
                x = sketch.op("sin", sketch.op("mul", x))
            for name in ("tan", "sign", "ceil", "round", "trunc", "erf"):
                x = sketch.op(name, x)
            x = sketch.op("mm", x)  # large: in no box with others
        for number in range(after):
            x = sketch.op(f"late{number}", x)
        sketch.output(x)
        return sketch.graph()

    for before, after in ((0, 0), (7, 0), (2, 0), (0, 7), (7, 7)):
        outline = outlined(graph(before, after))
        (loop,) = (item for item in outline.children(outline.root) if item.repeat > 1)
        assert (loop.repeat, len(outline.children(loop))) == (6, 4), (before, after)


def test_the_last_round_ends_before_what_follows_the_loop() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for _ in range(6):
        with sketch.module("layer", "Layer"):
            x = sketch.op("sin", sketch.op("mul", x))
        for name in ("tan", "sign", "ceil", "round", "trunc", "erf"):
            x = sketch.op(name, x)
    for number in range(7):
        x = sketch.op(f"late{number}", x)
    sketch.output(x)
    outline = outlined(sketch.graph())
    assert [(item.kind, item.repeat) for item in outline.children(outline.root)] == [
        ("leaf", 1),
        ("loop", 6),
        ("functional", 1),
        ("leaf", 1),
    ]


def test_of_modules_only_an_op_without_lines_is_left_out() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    sketch.input("unused", (2, 8))
    for number in range(4):
        if number != 1:
            sketch.op("view", sketch.op("arange"))  # the view disappears, and nothing else reads it
        with sketch.module(f"layer{number}", "Layer"):
            x = sketch.op("sin", sketch.op("mul", x))
    x = sketch.op("add", x, x)  # this one joins what is around it
    with sketch.module("last", "Last"):
        sketch.op("view", sketch.op("arange"))
        x = sketch.op("cos", x)
    sketch.output(x)
    for modules_only, lone in ((False, 3), (True, 0)):
        outline = outlined(sketch.graph(), modules_only=modules_only)
        ops = [item for item in outline.children(outline.root) if item.is_leaf and not outline.is_marker(item)]
        assert len(ops) == lone + 1
        assert sum(outline.is_marker(item) for item in outline.children(outline.root)) == 3
    last = next(item for item in outline.children(outline.root) if item.name == "last")
    assert len(outline.children(last)) == 2  # there is no module in it
    left_out = next(leaf for leaf in range(len(outline.tree.node)) if not list(outline.around(leaf)))
    assert outline.tree.first_edge[left_out] == outline.tree.first_edge[left_out + 1]


@FEW
@given(nested_graphs())
def test_the_items_around_a_leaf_lead_to_it_or_to_its_first_round(graph: Graph) -> None:
    outline = outlined(graph)
    for leaf in range(len(outline.tree.node)):
        above, at, is_first = outline.root, leaf, True
        for item, first, turn in outline.around(leaf):
            assert item in outline.children(above)
            assert item.start <= first < item.stop
            assert first + turn * (item.stop - item.start) == at
            above, at, is_first = item, first, is_first and turn == 0
        assert above.is_leaf
        assert above.start == at
        assert is_first == (at == leaf)
