"""Words on boxes: a class or an op, what tells it apart, and shapes."""

from __future__ import annotations

import re

import pytest
import torch
from render.graphs import Sketch, chain, dense_block, linear, recurrent_loop, tower, written
from render.layout.pages import every_item, labelled, outlined
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.box_words import BoxWords, _names_of_modules
from torchatlas.render.layout.outline import Item
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.text_fitting import joined, listed


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
        ("max_pool2d_with_indices", "max_pool2d"),
        ("max_pool2d_with_indices_backward", "max_pool2d_backward"),
        ("_native_batch_norm_legit_no_training", "batch_norm"),
        ("_log_softmax_backward_data", "log_softmax_backward"),
        ("mkldnn_rnn_layer", "rnn_layer"),
        ("_thnn_fused_gru_cell", "fused_gru_cell"),
        ("nll_loss_forward", "nll_loss"),
        ("nll_loss2d_backward", "nll_loss2d_backward"),
        ("_embedding_bag_forward_only", "embedding_bag"),
        ("embedding_dense_backward", "embedding_backward"),
        ("_weight_norm_interface", "weight_norm"),
        ("_local_scalar_dense", "item"),
        ("_to_copy", "to"),
        ("_index_put_impl_", "index_put"),
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
    assert labels.subtitle(block) == "layers.0 … 2 · 4 ops each · 128"
    assert labels.heading(block) == "layers.0 … 2 · 128"


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["0", "1", "2"], "0 … 2"),
        (["11", "10", "9"], "11 … 9"),  # backward
        (["layer1", "layer2"], "layer1 … layer2"),
        (["encoder.0", "encoder.1"], "encoder.0 … 1"),
        (["6.0", "6.1"], "6.0 … 6.1"),  # 6.0 … 1 would be a version
        (["features.6.0", "features.6.1"], "features.6.0 … 6.1"),
        (["layer1.0", "layer1.1"], "layer1.0 … 1"),
        (["block4-1", "block4-2", "block4-3"], "block4-1 … 3"),
        (["0.conv", "1.conv"], "0.conv … 1.conv"),
        (["q", "k", "v"], "q, k, v"),
        (["attention.q", "attention.k"], "attention.q, k"),
        (["stem", "body", "neck", "head"], "stem, body … head"),
        (["Mixed_6b", "Mixed_6c", "Mixed_6e"], "Mixed_6b, 6c, 6e"),
        (["layer_norm", "layer_scale"], "layer_norm, layer_scale"),
        (["0", "2", "4", "6"], "0, 2 … 6"),
        (["a1", "b2"], "a1, b2"),
        (["x" + "9" * 5000, "x1"], "x" + "9" * 5000 + ", x1"),
    ],
)
def test_many_names_are_one(names: list[str], said: str) -> None:
    assert listed(names) == said


def named(*names: str) -> Graph:
    """Linear layers of one size, one after the other."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for name in names:
        x = linear(sketch, x, name, 8)
    sketch.output(x)
    return sketch.graph()


def test_a_repeat_has_the_names_of_all_its_modules() -> None:
    assert ("Linear", "q, k, v · 8→8") in words(named("q", "k", "v"))
    assert ("Linear", "stem, body … head · 8→8") in words(named("stem", "body", "neck", "head"))
    assert ("Linear", "fc1 … fc11 · 8→8") in words(named(*(f"fc{number + 1}" for number in range(11))))
    outline, labels = labelled(named("stem", "body", "neck", "head"))
    (box,) = (item for item in every_item(outline) if item.repeat > 1)
    assert "stem, body, neck, head" in labels.tooltip(box).splitlines()


def test_a_name_that_is_the_class_is_not_repeated() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return nn.CrossEntropyLoss()(x, x.argmax(1))  # belongs to no module

    found = words(atlas.capture(loss, torch.randn(3, 4)))
    assert [more for title, more in found if title == "CrossEntropyLoss"] == ["2 ops"]


def test_a_product_of_backward_says_what_it_turns_into_what_if_it_has_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.out.weight = self.table.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.out(self.table(x))
            return y

    found = words(atlas.capture(Tied(), torch.randint(0, 9, (5,)), backward=True))
    assert sorted(more for title, more in found if title == "mm") == ["", "9→4"]  # the other makes a part of a gradient


def test_a_module_that_runs_many_times_has_one_name() -> None:
    outline, labels = labelled(recurrent_loop(20))
    (cell,) = (item for item in every_item(outline) if item.type == "Cell")
    assert cell.repeat == 20
    assert labels.name(cell) == "cell"


def test_boxes_in_a_loop_have_the_names_of_all_rounds() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(3):
        x = linear(sketch, x, f"a{number}", 8)
        with sketch.module(f"b{number}", "ReLU"):
            x = sketch.op("relu", x)
    sketch.output(x)
    outline, labels = labelled(sketch.graph())
    (loop,) = (item for item in every_item(outline) if item.kind == "loop")
    assert labels.subtitle(loop) == "a0 … a2, b0 … b2 · 2 ops each"
    assert [labels.subtitle(item) for item in outline.children(loop)] == ["a0 … a2 · 8→8", "b0 … b2"]


def test_a_long_name_leaves_room_for_figures() -> None:
    (subtitle,) = (more for title, more in words(named("first" + "x" * 500 + "last")) if title == "Linear")
    assert subtitle.startswith("first")
    assert subtitle.endswith("last · 8→8")
    assert "…" in subtitle
    assert text_width(subtitle, STYLE.small_text) <= 190  # what boxes.py would cut
    (several,) = (more for title, more in words(named("q", "x" * 500, "v")) if title == "Linear")
    assert several == "q, xxx…xxx, v · 8→8"


def test_what_says_that_repeats_differ_leaves_room_for_their_names() -> None:
    outline, labels = labelled(dense_block(9, "denselayer"))
    (item,) = (item for item in every_item(outline) if item.alike_only)
    assert labels.heading(item) == "denselayer0 … 8 · not all equal"
    assert labels.subtitle(item).endswith("0 … 8 · 3 ops · not all equal")
    assert labels.subtitle(item, 400) == "denselayer0 … denselayer8 · 3 ops · sizes or numbers differ"
    for room in (*range(70, 200), 1000):
        assert re.search("differ$|not all equal$", labels.heading(item, room))  # never half of it


def test_names_cannot_turn_a_text_round_or_break_its_line() -> None:
    found = [more for title, more in words(named("a\u202eb\nc")) if title == "Linear"]
    assert found == ["a\\u202eb\\nc · 8→8"]


def test_kinds_without_a_class_have_plain_words() -> None:
    _, labels = labelled(recurrent_loop(5))
    plain = {kind: labels.title(Item(kind, 0, 2, 0, name="backward")) for kind in ("functional", "segment", "lane")}
    assert plain == {"functional": "functional ops", "segment": "ops", "lane": "backward"}


def test_a_stretch_of_a_program_says_which_modules_are_in_it() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(130):
        with sketch.module(f"part{number}", "Attention" if number < 65 else f"Mlp{number % 5}"):
            x = sketch.op(f"sin{number}", sketch.op(f"cos{number}", x))
    sketch.output(x)
    outline, labels = labelled(sketch.graph())
    segments = [item for item in outline.children(outline.root) if item.kind == "segment"]
    assert labels.title(segments[0]) == "Attention …"
    assert re.fullmatch(r"part0 … part\d · \d+ ops", labels.subtitle(segments[0]))
    assert re.fullmatch(r"Mlp\d, Mlp\d …", labels.title(segments[-1]))
    _, plain = labelled(chain(300, lambda number: f"op{number}"))
    stretch = plain.outline.children(plain.outline.root)[1]
    assert plain.title(stretch) == "ops"
    assert " op" in plain.subtitle(stretch)


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["0", "1.0 … 2"], ("0", "1.2")),
        (["4.conv", "8 … 10"], ("4.conv", "10")),
        (["stage.0 … stage.3", "head"], ("stage.0", "head")),
        (["first", "stage.0 … stage.3"], ("first", "stage.3")),
    ],
)
def test_a_stretch_is_called_from_the_first_to_the_last_though_they_repeat(
    names: list[str], ends: tuple[str, str]
) -> None:
    parts = [Item("module", place, place + 1, 0, name=name) for place, name in enumerate(names)]
    found = _names_of_modules(Item("segment", 0, len(parts), 0, parts=parts))
    assert (found[0], found[-1]) == ends


def test_ops_between_modules_name_what_says_most_of_them() -> None:
    sketch = Sketch()
    q, k, v = (linear(sketch, sketch.input(name, (2, 8)), f"to_{name}", 8) for name in "qkv")
    for _ in range(3):
        q = sketch.op("clone", q)
    x = sketch.op("_scaled_dot_product_flash_attention_for_cpu", q, k, v)
    sketch.output(linear(sketch, sketch.op("clone", sketch.op("mul", x)), "out", 8))
    outline = outlined(sketch.graph(), modules_only=True)
    (between,) = (item for item in every_item(outline) if item.kind == "functional")
    assert BoxWords(outline).subtitle(between) == "6 ops · attention, clone, mul"


def test_a_stretch_of_what_is_given_or_returned_says_how_many_tensors_are_in_it() -> None:
    sketch = Sketch()
    given = [sketch.input(f"x{number}", (2, 8)) for number in range(150)]
    made = [sketch.op(f"op{number}", x) for number, x in enumerate(given)]
    for number in range(150):
        sketch.output(made[number], given[number], name=f"y{number}")
    found = [(title, more) for title, more in words(sketch.graph()) if title.startswith(("inputs", "outputs"))]
    assert {title for title, _ in found} == {"inputs", "outputs"}
    for title, more in found:
        name, count = re.fullmatch(r"(.*) · ([0-9]+) tensors", more).groups()
        first, last = map(int, re.fullmatch("[xy]([0-9]+) … [xy]([0-9]+)", name).groups())
        assert int(count) == (last - first + 1) * (1 if title == "inputs" else 2)


def test_a_stretch_of_autograd_says_whose_gradients_are_made_in_it() -> None:
    turns = "thhtttthtthhhthtthhthtttthhhhthhtththttthh"  # no loop
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh() if turn == "t" else nn.GELU()) for turn in turns))
    outline, labels = labelled(atlas.autograd_graph(model(torch.randn(2, 4)).sum(), model=model))
    segments = [item for item in every_item(outline) if item.kind == "segment"]
    assert segments
    for item in segments:
        text = labels._main_leaves(item)
        assert text in labels.subtitle(item)
        assert text == labels.heading(item)
        leaves = [part for part in every_item(outline) if part.kind == "leaf" and item.start <= part.start < item.stop]
        accumulated = [labels.subtitle(part) for part in leaves if labels.title(part) == "AccumulateGrad"]
        assert bool(text) == bool(accumulated)
        assert all(name.rpartition(".")[0].split(".")[0] in text or " … " in text for name in accumulated)
    _, plain = labelled(chain(300, lambda number: f"op{number}"))
    assert plain.heading(plain.outline.children(plain.outline.root)[1]) == ""


def test_repeats_hand_on_or_lie_side_by_side() -> None:
    def titles(side_by_side: bool) -> set[str]:
        def many(x: torch.Tensor) -> torch.Tensor:
            made = []
            for _ in range(20):
                y = (x * 2).relu()
                made.append(y)
                x = x if side_by_side else y
            return torch.cat(made) if side_by_side else x

        return {title for title, _ in words(atlas.capture(many, torch.randn(3)))}

    assert "branch" in titles(True)
    assert "loop body" in titles(False)


def layers(rounds: int, parts: tuple[str, ...], beside: bool = False) -> Graph:
    """Rounds of modules with four ops each, and one op after them."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    made = []
    for number in range(rounds):
        y = x
        for part in parts:
            with sketch.module(f"{part.lower()}-{number}", part):
                for name in ("sin", "cos", "tan", "exp"):
                    y = sketch.op(name, y)
        made.append(sketch.op("neg", y))
        x = x if beside else made[-1]
    sketch.output(sketch.op("cat", *made) if beside else x)
    return sketch.graph()


def loop_words(graph: Graph) -> tuple[str, str, str]:
    outline, labels = labelled(graph)
    (loop,) = (item for item in every_item(outline) if item.kind == "loop")
    return labels.title(loop), labels.subtitle(loop), labels.heading(loop)


def test_a_loop_is_named_after_the_module_that_it_mostly_is() -> None:
    assert loop_words(layers(5, ("Layer",))) == ("Layer", "layer-0 … 4 · 5 ops each", "loop body")
    assert loop_words(layers(20, ("Layer",), beside=True)) == ("Layer", "layer-0 … 19 · 5 ops each", "branch")
    title, subtitle, heading = loop_words(layers(5, ("Attention", "Mlp")))
    assert (title, heading) == ("loop body", "")
    assert subtitle == "attention-0 … 4, … · 9 ops each"  # there is no room for mlp-0 … 4


def test_a_loop_of_modules_of_one_class_says_which() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(9):
        with sketch.module(f"layers.{number}", "Layer"):
            for name in ("sin", "exp" if number % 3 else "cos"):
                x = sketch.op(name, x)
    sketch.output(x)
    title, subtitle, _ = loop_words(sketch.graph())
    assert (title, subtitle) == ("loop body", "3 Layer · 6 ops each")


def test_a_class_that_is_too_long_keeps_both_ends() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    name = "LegacyDebertaV2PredictionHeadTransformation"
    with sketch.module("head", name):
        x = sketch.op("sin", sketch.op("cos", x))
    sketch.output(x)
    outline, labels = labelled(sketch.graph())
    (item,) = (item for item in every_item(outline) if item.type == name)
    title = labels.title(item)
    assert title.startswith("LegacyDeberta")
    assert title.endswith("Transformation")
    assert text_width(title, STYLE.title_text, True) <= STYLE.widest_title
    assert labels.tooltip(item).splitlines()[0] == name


def test_a_dotted_name_gives_up_its_first_parts() -> None:
    def said(name: str, figures: str) -> str:
        return joined(name, figures)

    assert said("encoder.layer.0 … 11", "128 ops each · 1.77M") == "…layer.0 … 11 · 128 ops each · 1.77M"
    assert said("encoder.attention.self.query, key", "28 ops each · 1.77M") == "…query, key · 28 ops each · 1.77M"
    assert said("encoder.0.conv … encoder.1.conv", "28 ops each · 1.77M").startswith("enc")  # 0 … 1 would be lost
    assert said("attention, intermediate, output …", "17 ops each · 1.77M") == "attention, … · 17 ops each · 1.77M"


def test_a_module_counts_the_weights_that_it_shares() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out, self.free = nn.Embedding(90, 4), nn.Linear(4, 90), nn.Linear(90, 90)
            self.out.weight = self.table.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.free(self.out(self.table(x).relu()))
            return y

    outline, labels = labelled(atlas.capture(Tied(), torch.randint(0, 90, (5,)), backward=True))
    counts = {item.name: labels.parameters(item) for item in every_item(outline) if item.call >= 0 and item.name}
    assert counts == {"table": 360, "out": 360 + 90, "free": 90 * 90 + 90}
    assert labels.parameters_of("") == 360 + 90 + 90 * 90 + 90
    assert "out · 450" in [labels.heading(item) for item in every_item(outline) if item.kind == "module"]


def test_lanes_are_named_by_their_phase() -> None:
    graph = written([("linear", 4), ("chain", 3, False)], training="optimizer")
    titles = [title for title, _ in words(graph)]
    assert {"forward", "backward", "optimizer"} <= set(titles)
