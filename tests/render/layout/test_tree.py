"""The tree: groups are intervals, views become lines, bookkeeping disappears, equal blocks have equal hashes."""

from __future__ import annotations

import itertools
from pathlib import Path

import children
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from render.graphs import Sketch, linear, nested_graphs, recurrent_loop, tower, written
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph, OperationType, Phase
from torchatlas.graph.columns import KINDS
from torchatlas.graph.nouns import NodeKind, Role
from torchatlas.render.layout.tree import Tree, build

FEW = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def operations(tree: Tree) -> list[str]:
    """The ops that have boxes, in order."""
    columns = tree.graph.columns
    rows = [tree.graph.tables.operations[row].name for row in columns["node_operation"][tree.node]]
    return [name.split(".")[1] if "." in name else name for name in rows]


def edges(tree: Tree) -> set[tuple[str, int, str]]:
    names = operations(tree)
    every = zip(tree.source.tolist(), tree.output.tolist(), tree.target.tolist(), strict=True)
    return {(names[source], output, names[target]) for source, output, target in every}


def types(tree: Tree) -> list[str]:
    """The classes of the groups, or the numbers of lanes, parents first."""
    modules = tree.graph.tables.modules
    calls = tree.graph.columns["call_module"]
    return [
        modules[calls[call]].type if call >= 0 else f"lane {lane}" if lane >= 0 else "all"
        for call, lane in zip(tree.call.tolist(), tree.lane.tolist(), strict=True)
    ]


@FEW
@given(nested_graphs())
def test_every_group_is_an_interval_within_its_parent(graph: Graph) -> None:
    tree = build(graph)
    assert (tree.start[0], tree.stop[0], tree.parent[0], tree.depth[0]) == (0, len(tree.node), -1, 0)
    inner = np.arange(1, len(tree.start))
    above = tree.parent[inner]
    assert (above < inner).all()
    assert (tree.start[inner] < tree.stop[inner]).all()
    assert (tree.start[above] <= tree.start[inner]).all()
    assert (tree.stop[inner] <= tree.stop[above]).all()
    assert (tree.depth[inner] == tree.depth[above] + 1).all()
    for one, other in itertools.pairwise(inner):  # neighbours do not overlap: parents first, in order
        assert tree.start[other] >= tree.start[one]
        assert tree.stop[one] <= tree.start[other] or tree.stop[other] <= tree.stop[one]


@FEW
@given(nested_graphs())
def test_every_leaf_lies_in_the_groups_of_its_call(graph: Graph) -> None:
    tree = build(graph)
    assert sorted(tree.node.tolist()) == np.flatnonzero(tree.is_leaf).tolist()
    columns = graph.columns
    deepest = np.full(len(tree.node), -1)
    for group in range(len(tree.start)):  # parents first: the innermost is written last
        deepest[tree.start[group] : tree.stop[group]] = tree.call[group]
    is_op = columns["node_kind"][tree.node] == KINDS.index(NodeKind.OP)
    assert (deepest[is_op] == columns["node_call"][tree.node[is_op]]).all()


@FEW
@given(nested_graphs())
def test_edges_go_forward_and_none_is_lost(graph: Graph) -> None:
    tree, columns = build(graph), graph.columns
    assert (np.diff(tree.target) >= 0).all()
    if not tree.lanes:  # leaves are in the order of execution, unless calls interleave
        assert (tree.source < tree.target).all() or (np.diff(tree.node) < 0).any()
    into = tree.is_leaf[columns["edge_target"]] & (tree.leaf_of_node[columns["edge_source"]] >= 0)
    into &= columns["edge_kind"] == 0
    assert len(tree.source) + len(tree.kept_source) == int(into.sum())
    for leaf in range(len(tree.node)):
        entering = slice(tree.first_edge[leaf], tree.first_edge[leaf + 1])
        assert (tree.target[entering] == leaf).all()
        leaving = tree.by_source[tree.first_read[leaf] : tree.first_read[leaf + 1]]
        assert (tree.source[leaving] == leaf).all()


def test_views_fold_into_lines_through_chains_of_them() -> None:
    sketch = Sketch()
    x = sketch.input()
    one, two = sketch.ops("topk", x, shapes=[(2, 3), (2, 4)])
    for name in ("view", "transpose", "unsqueeze", "expand", "squeeze"):
        two = sketch.op(name, two)
    sketch.output(sketch.op("add", one, two))
    tree = build(sketch.graph())
    assert operations(tree) == ["input", "topk", "add", "output"]
    assert edges(tree) == {("input", 0, "topk"), ("topk", 0, "add"), ("topk", 1, "add"), ("add", 0, "output")}
    assert tree.leaf_of_node.tolist() == [0, 1, 1, 1, 1, 1, 1, 2, 3]


def test_a_view_of_what_nobody_made_has_no_line() -> None:
    sketch = Sketch()
    weight = sketch.parameter("weight", (3, 2))
    x = sketch.op("mm", sketch.input(), sketch.op("t", weight, shape=(2, 3)))
    sketch.output(x)
    tree = build(sketch.graph())
    assert operations(tree) == ["input", "mm", "output"]
    assert edges(tree) == {("input", 0, "mm"), ("mm", 0, "output")}


def test_a_view_after_a_partial_write_stays() -> None:
    """Its data comes from two ops: a line has one beginning."""
    sketch = Sketch()
    base = sketch.op("zeros")
    part = sketch.op("fill_", base)
    view = sketch.op("view", base)
    sketch.rows["edge_source"].append(sketch.producer(part))
    for name, cell in (("target", sketch.producer(view)), ("output_index", 0), ("input_index", 0), ("value", base)):
        sketch.rows[f"edge_{name}"].append(cell)
    sketch.rows["edge_kind"].append(0)
    sketch.output(sketch.op("relu", view))
    assert "view" in operations(build(sketch.graph()))


def test_flatten_stays_where_it_is_all_a_module_does() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 3, 4))
    with sketch.module("flatten", "Flatten"):
        x = sketch.op("view", sketch.op("unsqueeze", x), shape=(2, 12))
    with sketch.module("head", "Head"):
        x = sketch.op("relu", sketch.op("view", x))
    sketch.output(x)
    tree = build(sketch.graph())
    assert operations(tree) == ["input", "view", "relu", "output"]
    assert types(tree) == ["all", "Flatten", "Head"]


def test_the_counter_of_batch_norm_disappears() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("bn", "BatchNorm1d") as path:
        counter = sketch.parameter(f"{path}.num_batches_tracked", (), Role.BUFFER)
        sketch.ops("add_", counter, shapes=[()], writes=1)
        sketch.ops("empty", shapes=[(0,)])
        mean = sketch.parameter(f"{path}.running_mean", (8,), Role.BUFFER)
        x, *_ = sketch.ops("native_batch_norm", x, mean, shapes=[(2, 8), (8,), (8,)])
    sketch.output(x)
    tree = build(sketch.graph())
    assert operations(tree) == ["input", "native_batch_norm", "output"]


def test_room_for_the_mask_of_dropout_disappears() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout()), torch.randn(2, 4))
    assert operations(build(graph)) == ["input", "addmm", "bernoulli_", "div_", "mul", "output"]

    def in_parts(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)  # is read: each write leaves a part of it
        made[:1], made[1:] = x[:1].sin(), x[1:]
        return made

    assert "empty_like" in operations(build(atlas.capture(in_parts, torch.randn(2, 4))))


def test_a_write_to_an_activation_stays() -> None:
    sketch = Sketch()
    x = sketch.op("relu", sketch.input())
    x = sketch.ops("add_", x, shapes=[(2, 3)], writes=1)[0]
    sketch.output(x)
    assert operations(build(sketch.graph())) == ["input", "relu", "add_", "output"]


def test_order_edges_are_not_drawn() -> None:
    sketch = Sketch()
    x = sketch.input()
    one, two = sketch.op("relu", x), sketch.op("tanh", x)
    sketch.order(sketch.producer(one), sketch.producer(two))
    sketch.output(two)
    assert ("relu", 0, "tanh") not in edges(build(sketch.graph()))


# -- hashes ------------------------------------------------------------------------------------------------------------


def blocks(tree: Tree, type: str = "Block") -> list[int]:
    return [group for group, name in enumerate(types(tree)) if name == type]


def test_equal_blocks_have_equal_hashes() -> None:
    tree = build(tower(5))
    assert len(set(tree.group_hash[blocks(tree)].tolist())) == 1
    assert len(set(tree.leaf_hash.tolist())) < len(tree.leaf_hash)


def test_blocks_of_other_sizes_are_alike_but_not_equal() -> None:
    tree = build(tower(5, width=lambda number: 8 + number))
    assert len(set(tree.group_hash[blocks(tree)].tolist())) == 5
    assert len(set(tree.alike[blocks(tree)].tolist())) == 1


@pytest.mark.parametrize("difference", ["op", "wiring", "shape", "class", "argument", "output", "order"])
def test_what_differs_has_another_hash(difference: str) -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(2):
        odd = number == 1
        with sketch.module(f"block{number}", "Other" if odd and difference == "class" else "Block"):
            one, more = sketch.ops("topk", x, shapes=[(2, 8), (2, 8)])
            two = sketch.op("relu" if not (odd and difference == "op") else "tanh", one)
            reads = [two, one] if odd and difference == "order" else [one, two]
            if odd and difference == "wiring":
                reads = [two, two]
            if odd and difference == "output":
                reads = [more, two]
            shape = (2, 9) if odd and difference == "shape" else (2, 8)
            x = sketch.op("add", *reads, shape=shape, arguments="[1]" if odd and difference == "argument" else "[0]")
    sketch.output(x)
    tree = build(sketch.graph())
    one, two = (group for group, name in enumerate(types(tree)) if name != "all")
    if difference == "order":  # which input is which does not show in a picture
        assert tree.group_hash[one] == tree.group_hash[two]
    else:
        assert tree.group_hash[one] != tree.group_hash[two]


def all_hashes() -> str:
    program = [("repeat", 3, [("linear", 4), ("view", 1), ("op", "cat", (2, 3), [0, 1, 2])], True), ("mesh", 4, 9)]
    trees = [build(tower(4)), build(recurrent_loop(5)), build(written(program, training="optimizer"))]
    return repr([(tree.leaf_hash.tolist(), tree.group_hash.tolist(), tree.alike.tolist()) for tree in trees])


def test_hashes_are_the_same_in_another_process() -> None:
    tests = Path(__file__).resolve().parents[2]
    program = (
        f"import sys; sys.path.insert(0, {str(tests)!r});"
        "from render.layout.test_tree import all_hashes; print(all_hashes())"
    )
    assert children.python(program, PYTHONHASHSEED="7").strip() == all_hashes()


# -- lanes -------------------------------------------------------------------------------------------------------------


def training_step() -> Graph:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        call = sketch.call
        h = linear(sketch, x, "one", 8)
        y = sketch.op("tanh", h)
    with sketch.inside(call, Phase.BACKWARD):
        g = sketch.op("tanh_backward", y, forward=sketch.producer(y))
        g = sketch.op("mm", g, h)
    sketch.phase = Phase.OPTIMIZER
    with sketch.module("SGD", "SGD", "optimizer"):
        sketch.ops("add_", sketch.parameter("one.weight", (8, 8)), g, shapes=[(8, 8)], writes=1)
    sketch.output(y)
    return sketch.graph()


def test_phases_are_lanes_and_what_one_takes_from_another_is_kept() -> None:
    tree = build(training_step())
    assert tree.lanes == (0, 1, 2)
    assert types(tree) == ["all", "lane 0", "Net", "Linear", "lane 1", "Net", "lane 2", "SGD"]
    names = operations(tree)
    kept = {(names[s], names[t]) for s, t in zip(tree.kept_source, tree.kept_target, strict=True)}
    assert kept == {("tanh", "tanh_backward"), ("addmm", "mm"), ("mm", "add_")}
    assert edges(tree) == {
        ("input", 0, "addmm"),
        ("addmm", 0, "tanh"),
        ("tanh", 0, "output"),
        ("tanh_backward", 0, "mm"),
    }


def test_what_forward_is_not_given_has_lines_to_what_it_is_given_to() -> None:
    """A moving average of parameters, a gradient given to backward: no box may stand alone."""
    model, average, gradient = nn.Linear(3, 3), torch.randn(3), torch.randn(2, 3)
    with atlas.recording(model, native=False) as rec:
        model(torch.randn(2, 3)).backward(gradient)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with torch.no_grad():
            average.lerp_(model.bias, 0.1)
    tree = build(rec.graph)
    assert len(tree.lanes) > 1
    is_input = tree.graph.columns["node_kind"][tree.node] == KINDS.index(NodeKind.INPUT)
    assert is_input.sum() == 2
    assert set(np.flatnonzero(is_input)) <= set(tree.source)


def test_one_phase_needs_no_lanes() -> None:
    tree = build(tower(2))
    assert tree.lanes == ()
    assert (tree.lane == -1).all()
    assert len(tree.kept_source) == 0


def test_steps_of_a_loop_have_lanes_of_their_own() -> None:
    tree = build(written([("linear", 4), ("chain", 2, False)], training="two steps"))
    assert tree.lanes == (0, 1, 2, 4, 5, 6)


def test_interleaved_calls_are_gathered() -> None:
    """Two calls that take turns, as in threads or generators, are still one interval each."""
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("a", "A"):
        first = sketch.call
        x = sketch.op("relu", x)
    with sketch.module("b", "B"):
        x = sketch.op("tanh", x)
    with sketch.inside(first, Phase.FORWARD):
        x = sketch.op("exp", x)
    sketch.output(x)
    tree = build(sketch.graph())
    assert types(tree) == ["all", "A", "B"]
    assert operations(tree) == ["input", "relu", "exp", "tanh", "output"]


def test_an_empty_graph_is_one_empty_group() -> None:
    tree = build(Graph())
    assert (len(tree.node), tree.start.tolist(), tree.stop.tolist()) == (0, [0], [0])


def test_views_are_recognised() -> None:
    """The other tests lean on these categories."""
    sketch = Sketch()
    sketch.op("view", sketch.op("topk", sketch.input()))
    found = {row.name.split(".")[1]: row.type for row in sketch.tables.operations if "." in row.name}
    assert found["view"] == OperationType.VIEW
    assert found["topk"] != OperationType.VIEW


def in_two_phases(*, returned: bool = False) -> Graph:
    """x is read by both phases, w through a view by backward only, y by forward, z by an unread view, u by nothing."""
    sketch = Sketch()
    x, y, w = (sketch.input(name, (2, 8)) for name in "xyw")
    z = sketch.input("z", (2, 8))
    sketch.input("u", (2, 8))
    seen = sketch.op("view", w)
    sketch.op("view", z)
    given = sketch.op("mul", x, y)
    sketch.phase = Phase.BACKWARD
    grad = sketch.op("exp", sketch.op("mm", x, seen))
    sketch.phase = Phase.OPTIMIZER
    sketch.op("sqrt", grad)
    sketch.phase = Phase.FORWARD
    if returned:  # as it was given: an input and an output that only each other's neighbours tell about
        sketch.output(sketch.input("t", (2, 8)), given)
    else:
        sketch.output(given)
    return sketch.graph()


def markers(graph: Graph, *phases: Phase) -> str:
    """The names of what is given and returned, in order."""
    tree = build(graph, phases or None)
    columns, names = graph.columns, graph.tables.names
    is_op = columns["node_kind"][tree.node] == KINDS.index(NodeKind.OP)
    return " ".join(names[columns["node_name"][node]] for node in tree.node[~is_op])


def test_what_only_other_phases_are_given_or_return_is_not_drawn() -> None:
    graph, returned = in_two_phases(), in_two_phases(returned=True)
    assert markers(graph) == "x y w z u output"  # everything, read or not
    assert markers(graph, *Phase) == "x y w z u output"
    assert markers(graph, Phase.FORWARD) == "x y w z u output"  # views of w and z are made there, though none is read
    assert markers(graph, Phase.BACKWARD) == "x w u"  # what no op reads is nobody's
    assert markers(graph, Phase.OPTIMIZER) == "u"
    assert markers(graph, Phase.BACKWARD, Phase.OPTIMIZER) == "u"  # lanes have no lines from what is given to forward
    assert markers(returned, Phase.FORWARD) == "x y w z u t output"
    assert markers(returned, Phase.BACKWARD) == "x w u"


def test_what_has_no_lines_stays_in_a_picture_of_everything() -> None:
    sketch = Sketch()
    sketch.op("view", sketch.input("y", (2, 8)))
    sketch.output(sketch.input("x", (2, 8)))
    assert markers(sketch.graph()) == markers(sketch.graph(), Phase.FORWARD) == "y x output"
    assert markers(sketch.graph(), Phase.BACKWARD) == "x output"
