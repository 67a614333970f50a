"""Words on boxes: a class or an op, what tells it apart, and shapes."""

from __future__ import annotations

import pytest
from render.graphs import Sketch, linear, recurrent_loop, tower, written
from render.layout.pages import every_item, labelled

from torchatlas.graph import Graph
from torchatlas.render.layout.outline import OUTPUTS, Item


def words(graph: Graph) -> list[tuple[str, str]]:
    """Title and subtitle of every item but the root, opened to the last."""
    outline, labels = labelled(graph)
    return [(labels.title(item), labels.subtitle(item)) for item in every_item(outline) if item is not outline.root]


def one_op(name: str, *, shape: tuple[int, ...] = (2, 3)) -> Graph:
    sketch = Sketch()
    sketch.output(sketch.op(name, sketch.input("tokens", (4, 5)), shape=shape))
    return sketch.graph()


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("relu", "relu"),
        ("add_", "add"),
        ("native_layer_norm", "layer_norm"),
        ("_softmax", "softmax"),
        ("_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "attention backward"),
        ("_", "_"),
    ],
)
def test_ops_are_called_what_people_call_them(name: str, title: str) -> None:
    assert words(one_op(name))[1][0] == title


def test_what_is_given_and_returned_has_its_name_and_shape() -> None:
    found = words(one_op("relu"))
    assert found[0] == ("tokens", "4×5")
    assert found[-1][0] == "output"


def test_a_layer_says_its_name_and_what_it_turns_into_what() -> None:
    sketch = Sketch()
    sketch.output(linear(sketch, sketch.input("x", (2, 64)), "fc1", 128))
    assert ("Linear", "fc1 · 64→128") in words(sketch.graph())


def test_a_convolution_says_channels_and_kernel() -> None:
    sketch = Sketch()
    x = sketch.input("x", (1, 3, 32, 32))
    with sketch.module("conv1", "Conv2d") as path:
        weight = sketch.parameter(f"{path}.weight", (64, 3, 7, 7))
        x = sketch.op("convolution", x, weight, shape=(1, 64, 16, 16))
    sketch.output(x)
    assert ("Conv2d", "conv1 · 3→64, 7×7") in words(sketch.graph())


def test_a_module_says_how_many_ops_and_parameters_it_has() -> None:
    outline, labels = labelled(tower(3))
    block = next(item for item in every_item(outline) if item.type == "Block")
    assert labels.operations(block) == 4
    assert labels.parameters(block) == 2 * 8 * 8
    assert labels.subtitle(block) == "0 … 2 · 4 ops · 128"
    assert labels.heading(block) == "0 … 2 · 128"


def test_shapes_are_of_the_output_asked_for() -> None:
    sketch = Sketch()
    one, two = sketch.ops("topk", sketch.input(), shapes=[(2, 7), ()])
    sketch.output(one, two)
    outline, labels = labelled(sketch.graph())
    leaf = next(item for item in every_item(outline) if labels.title(item) == "topk")
    first = leaf.start * OUTPUTS
    assert [labels.shape(first + output) for output in range(3)] == ["2×7", "scalar", ""]


def test_kinds_without_a_class_have_plain_words() -> None:
    _, labels = labelled(recurrent_loop(5))
    plain = {
        kind: labels.title(Item(kind, 0, 2, 0, name="backward")) for kind in ("functional", "loop", "segment", "lane")
    }
    assert plain == {"functional": "functional ops", "loop": "loop body", "segment": "ops", "lane": "backward"}


def test_lanes_are_named_by_their_phase() -> None:
    graph = written([("linear", 4), ("chain", 3, False)], training="optimizer")
    titles = [title for title, _ in words(graph)]
    assert {"forward", "backward", "optimizer"} <= set(titles)
