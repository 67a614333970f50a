"""Sizes on boxes are those of the layers: whatever is said was compared with what the modules say of themselves."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from render.graphs import Sketch
from render.layout.pages import drawn, every_item, labelled
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import torchatlas as atlas
from torchatlas.errors import FileFormatError
from torchatlas.graph import Graph, Phase
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.style import STYLE


def leaves(graph: Graph, room: float = STYLE.widest_text) -> list[tuple[str, str, Phase]]:
    """Title, subtitle and phase of every box that is no group."""
    outline, labels = labelled(graph)
    return [
        (labels.title(item), labels.subtitle(item, room), graph.nodes[int(outline.tree.node[item.start])].phase)
        for item in every_item(outline)
        if item.is_leaf and not outline.is_marker(item)
    ]


def said(graph: Graph, title: str, phase: Phase = Phase.FORWARD) -> list[str]:
    """What boxes of a title say after their name, in full."""
    return [more.rpartition(" · ")[2] for one, more, when in leaves(graph, 1000) if (one, when) == (title, phase)]


def channels(module: Any) -> str:
    """What a convolution says of itself."""
    words = f"{module.in_channels}→{module.out_channels}, {'×'.join(map(str, module.kernel_size))}"
    stride, dilation = (
        "×".join(map(str, sizes if len(set(sizes)) > 1 else sizes[:1])) for sizes in (module.stride, module.dilation)
    )
    if stride != "1":
        words += f"/{stride}" if len(module.kernel_size) > 1 else f", stride {stride}"
    words += f", d{dilation}" if dilation != "1" else ""
    if module.groups == 1:
        return words
    return words + (", depthwise" if module.groups == module.in_channels else f", groups {module.groups}")


def convolutions() -> Iterator[tuple[nn.Module, torch.Tensor]]:
    for dims, transposed, lazy in itertools.product((1, 2, 3), (False, True), (False, True)):
        for into, out, groups in ((6, 4, 1), (6, 4, 2), (6, 6, 6), (6, 12, 6), (4, 8, 4), (1, 3, 1), (2, 2, 2)):
            name = f"{'Lazy' if lazy else ''}Conv{'Transpose' if transposed else ''}{dims}d"
            sizes = (out, 2) if lazy else (into, out, 2)
            yield getattr(nn, name)(*sizes, groups=groups, bias=out % 3 > 0), torch.randn(2, into, *(5,) * dims)


def test_convolutions_say_their_channels_kernel_and_groups() -> None:
    for module, x in convolutions():
        with torch.no_grad():
            module(x)  # a lazy one becomes another class, and learns its channels
        (words,) = said(atlas.capture(nn.Sequential(module), x), type(module).__name__)
        assert words == channels(module), module
        (words,) = said(atlas.capture(nn.Sequential(module), x[0]), type(module).__name__)  # without a batch
        assert words == channels(module), module


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_convolutions_say_a_stride_and_dilation(name: str, dims: int) -> None:
    """Without, the branches of a pyramid that differ in nothing else look the same."""
    layer = getattr(nn, f"{name}{dims}d")
    for stride, dilation in itertools.product((1, 2, (2, 1, 3)[:dims]), (1, 2, (1, 2, 3)[:dims])):
        module = layer(2, 4, 2, stride=stride, dilation=dilation, groups=2).requires_grad_(False)
        graph = atlas.capture(nn.Sequential(module), torch.randn(1, 2, *(9,) * dims).requires_grad_(), backward=True)
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert said(graph, type(module).__name__, phase) == [channels(module)], module


def test_a_lazy_convolution_says_what_it_became() -> None:
    """Its first run has its weights made: a group of ops, of which one is the convolution."""
    graph = atlas.capture(nn.Sequential(nn.LazyConv2d(8, 3, groups=4)), torch.randn(1, 4, 9, 9))
    assert said(graph, "convolution") == ["4→8, 3×3, depthwise"]
    assert said(atlas.capture(nn.Sequential(nn.LazyLinear(8)), torch.randn(2, 4)), "addmm") == ["4→8"]


def test_convolutions_in_backward_are_those_of_forward() -> None:
    for module, x in itertools.islice(convolutions(), 0, None, 5):
        with torch.no_grad():
            module(x)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        graph = atlas.capture(nn.Sequential(module), x.requires_grad_(), backward=True)
        assert said(graph, type(module).__name__, Phase.BACKWARD) == [channels(module)], module


def test_a_convolution_that_is_no_module_says_its_sizes() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(x, torch.ones(8, 2, 3, 3), groups=2)
        return F.conv_transpose2d(x, torch.ones(8, 3, 2, 2), groups=4)

    graph = atlas.capture(model, torch.randn(1, 4, 9, 9))
    assert said(graph, "convolution") == ["4→8, 3×3, groups 2", "8→12, 2×2, groups 4"]


def test_a_convolution_whose_weight_is_computed_says_its_sizes() -> None:
    module = nn.Sequential(weight_norm(nn.Conv1d(4, 8, 3, groups=2)))
    assert "4→8, 3, groups 2" in said(atlas.capture(module, torch.randn(1, 4, 9)), "convolution")


def test_convolutions_in_another_order_say_nothing() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.conv_tbc(x, torch.ones(3, 4, 8), torch.ones(8))

    assert said(atlas.capture(model, torch.randn(7, 4, 4)), "conv_tbc") == [""]


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (260, "1 · 240→240, 3×3/2, depthwise · 2.64K"),
        (190, "1 · 240→240, 3×3/2, dw · 2.64K"),
        (140, "1 · 240→240, 3×3/2, dw"),
        (100, "1 · 3 ops · 2.64K"),  # 240→240, 3×3 would be another convolution
    ],
)
def test_groups_are_said_or_no_sizes(room: float, words: str) -> None:
    part = nn.Sequential(nn.Conv2d(240, 240, 3, 2, groups=240, bias=False), nn.BatchNorm2d(240), nn.ReLU())
    outline, labels = labelled(atlas.capture(nn.Sequential(nn.Sigmoid(), part, nn.Tanh()), torch.randn(2, 240, 5, 5)))
    (item,) = (item for item in every_item(outline) if item.name == "1" and not item.is_leaf)
    assert labels.subtitle(item, room) == words


def test_a_name_gives_way_to_groups() -> None:
    model = nn.Sequential(OrderedDict(a_name_that_is_long=nn.Conv3d(1024, 1024, 3, groups=32, device="meta")))
    graph = atlas.capture(model, torch.randn(1, 1024, 4, 4, 4, device="meta"), fake=True)
    outline, labels = labelled(graph)
    (item,) = (item for item in every_item(outline) if item.type == "Conv3d")
    assert labels.subtitle(item, STYLE.widest_text).endswith(" · 1024→1024, 3×3×3, g32")
    assert labels.subtitle(item, 140).endswith("ng")  # of a_name_that_is_long: no sizes rather than wrong ones
    for room in range(40, 400, 7):
        assert text_width(subtitle := labels.subtitle(item, room), STYLE.small_text) <= room
        assert ("3×3×3" in subtitle) == ("32" in subtitle), subtitle


class Similarity(nn.Module):
    """A product, but no layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.T


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], -1)


class Activated(nn.Module):
    """A layer, or two, with what comes after."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sigmoid().neg()


@pytest.mark.parametrize(
    ("layers", "shape", "words"),
    [
        ([nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)], (2, 4, 9, 9), "part · 4→8, 3×3, groups 2 · 168"),
        ([nn.ConvTranspose1d(4, 8, 3, bias=False)], (2, 4, 9), "part · 4→8, 3 · 96"),
        ([nn.LayerNorm(4), nn.Linear(4, 8)], (2, 4), "part · 4→8 · 48"),
        ([nn.Linear(4, 8), nn.Linear(8, 4)], (2, 4), "part · 4 ops · 76"),
        ([nn.LayerNorm(4)], (2, 4), "part · 3 ops · 8"),
        ([Similarity(), nn.LayerNorm(2)], (2, 4), "part · 4 ops · 4"),
        ([Twice(), nn.Linear(8, 5)], (2, 4), "part · 4 ops · 45"),  # 8→5 would not be what it takes
        ([nn.Linear(4, 8), nn.GLU()], (2, 4), "part · 4 ops · 40"),  # nor 4→8 what it makes
        ([nn.Linear(4, 8), *(nn.Tanh() for _ in range(8))], (2, 4), "part · 11 ops · 40"),
    ],
)
def test_a_small_closed_module_says_what_its_one_layer_does(
    layers: list[nn.Module], shape: tuple[int, ...], words: str
) -> None:
    model = nn.Sequential(OrderedDict(part=Activated(*layers), last=nn.Tanh()))
    outline, labels = labelled(atlas.capture(model, torch.randn(shape)))
    (item,) = (item for item in every_item(outline) if item.name == "part")
    assert labels.subtitle(item) == words


# -- other layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_say_their_features(shape: tuple[int, ...], bias: bool) -> None:
    """The same in backward: without gradients of its parameters, that is one product, with the weight turned."""
    model = nn.Sequential(nn.Linear(5, 7, bias=bias).requires_grad_(False))
    graph = atlas.capture(model, torch.randn(shape, requires_grad=True), backward=True)
    assert said(graph, "Linear", Phase.BACKWARD) == said(graph, "Linear") == ["5→7"]


@pytest.mark.parametrize("product", [torch.mm, torch.matmul, lambda x, y: torch.einsum("ij,jk->ik", x, y)])
def test_a_product_of_two_activations_is_no_layer(product: Any) -> None:
    """512→2 would be the features of the text and how many images there are."""

    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.image, self.bias = nn.Linear(4, 5), nn.Linear(6, 5), nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            one, two = self.text(x), self.image(y)
            return product(one, two.T) + torch.addmm(self.bias, one, two.T)

    graph = atlas.capture(Compared(), torch.randn(3, 4), torch.randn(2, 6), backward=True)
    found = [(title, more) for title, more, _ in leaves(graph) if title in ("mm", "bmm", "addmm", "Linear")]
    assert found[:2] == [("Linear", "text · 4→5"), ("Linear", "image · 6→5")]
    assert len(found) > 4
    assert not [more for title, more in found[2:] if "→" in more and title != "Linear"]


def test_a_product_with_a_tensor_that_a_function_has_is_a_layer() -> None:
    weight = torch.ones(5, 7)
    assert said(atlas.capture(lambda x: x @ weight, torch.randn(2, 5)), "mm") == ["5→7"]


def test_a_batch_of_products_is_no_layer_but_with_a_weight() -> None:
    class Batches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 5, 7))

        def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
            return torch.baddbmm(start, x, self.weight) + torch.baddbmm(start, x, start[:, :, :5].mT.exp().mT @ start)

    found = leaves(atlas.capture(Batches(), torch.randn(2, 5, 5), torch.randn(2, 5, 7)))
    assert [more for title, more, _ in found if title == "baddbmm"] == ["5→7", ""]


@pytest.mark.parametrize("how", ["a cast", "weight norm"])
def test_a_weight_that_is_made_of_parameters_is_one(how: str) -> None:
    layer: nn.Module = nn.Linear(5, 7)
    layer = weight_norm(layer) if how == "weight norm" else layer

    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=how == "a cast"):
            y: torch.Tensor = layer(x)
        return y

    assert "5→7" in said(atlas.capture(model, torch.randn(2, 5)), "addmm")


class Weighted(nn.Module):
    """A layer with a weight of its own, laid out its own way."""

    def __init__(self, how: str, *shape: int) -> None:
        super().__init__()
        self.weight, self.how = nn.Parameter(torch.ones(shape)), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.how:
            case "input first":  # as Conv1D of GPT-2
                return x @ self.weight
            case "one vector":
                return x[0] @ self.weight
            case "weight first":
                return self.weight @ x.T
            case "onto a matrix":
                return torch.addmm(x[:, :1].expand(2, 7), x, self.weight)
            case "not its own":
                return F.conv1d(x[None], x[None, :, :1].expand(3, 2, 1))
            case _:
                raise AssertionError(self.how)


@pytest.mark.parametrize(
    ("how", "shape", "words"),
    [
        ("input first", (5, 7), "5→7"),
        ("one vector", (5, 7), "5→7"),
        ("weight first", (7, 5), ""),  # 5→2 would be of the batch
        ("onto a matrix", (5, 7), "5→7"),
        ("not its own", (7,), "2→3, 1"),
    ],
)
def test_layers_with_weights_of_their_own_are_not_taken_for_others(
    how: str, shape: tuple[int, ...], words: str
) -> None:
    graph = atlas.capture(nn.Sequential(Weighted(how, *shape)), torch.randn(2, 5))
    (found,) = (more for title, more, _ in leaves(graph) if title == "Weighted")
    assert found == " · ".join(filter(None, ("0", words)))


@pytest.mark.parametrize(
    ("module", "x", "words"),
    [
        (nn.Embedding(11, 3), torch.randint(0, 11, (2, 4)), "11×3"),
        (nn.Embedding(11, 3, padding_idx=0), torch.randint(0, 11, (4,)), "11×3"),
        (nn.EmbeddingBag(11, 3), torch.randint(0, 11, (2, 4)), None),  # also makes offsets
        (nn.LayerNorm(6), torch.randn(2, 6), "6"),
        (nn.LayerNorm((4, 6)), torch.randn(2, 4, 6), ""),
        (nn.LayerNorm(6, elementwise_affine=False), torch.randn(2, 6), ""),
        (nn.GroupNorm(2, 6), torch.randn(2, 6, 5), "6"),
        (nn.BatchNorm2d(6), torch.randn(2, 6, 5, 5), "6"),
        (nn.BatchNorm1d(6, affine=False), torch.randn(2, 6), ""),
        (nn.PReLU(6), torch.randn(2, 6), "6"),
        (nn.PReLU(), torch.randn(2, 6), "1"),
        (nn.Bilinear(5, 5, 7), torch.randn(2, 5), None),
        (nn.LSTM(5, 7, 2), torch.randn(3, 2, 5), None),
        (nn.GRU(5, 7), torch.randn(3, 2, 5), None),
        (nn.LSTMCell(5, 7), torch.randn(2, 5), None),
        (nn.MultiheadAttention(6, 2), torch.randn(3, 2, 6), None),
        (nn.TransformerEncoderLayer(6, 2, 9), torch.randn(3, 2, 6), None),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, nn.Module) else "",
)
@pytest.mark.parametrize("training", [True, False])
def test_other_layers_say_nothing_that_is_not_so(
    module: nn.Module, x: torch.Tensor, words: str | None, training: bool
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = module

        def forward(self, x: torch.Tensor) -> Any:
            times = {nn.Bilinear: 2, nn.MultiheadAttention: 3}.get(type(module), 1)
            return self.part(*[x] * times)

    graph = atlas.capture(Model().train(training), x)
    found = [more for title, more, _ in leaves(graph) if title == type(module).__name__]
    assert found in ([], ["part"]) if words is None else found == [" · ".join(filter(None, ("part", words)))]


def test_layers_of_a_recurrent_module_are_told_apart() -> None:
    graph = atlas.capture(nn.LSTM(5, 7, 2, bidirectional=True).eval(), torch.randn(3, 2, 5), backward=False)
    found = [more for title, more, _ in leaves(graph) if title == "rnn_layer"]
    assert found == ["layer 0, 5→7", "layer 0, reverse, 5→7", "layer 1, 14→7", "layer 1, reverse, 14→7"]


def test_a_recurrent_module_of_one_layer_has_no_number() -> None:
    graph = atlas.capture(nn.Sequential(nn.LSTM(5, 7)).eval(), torch.randn(3, 2, 5))
    assert [more for title, more, _ in leaves(graph) if title == "rnn_layer"] == ["5→7"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('"num_layers":2,"bidirectional":true', "5→14, 2 layers, both directions"),
        ('"num_layers":1,"bidirectional":false', "5→14"),
        ('"num_layers":"x","bidirectional":[]', "5→14"),
    ],
)
def test_recurrent_layers_that_are_one_op_say_how_many_they_are(more: str, words: str) -> None:
    """As on a GPU, here written down."""
    sketch = Sketch()
    call = f'[[],{{"input":{{"tensor":0}},{more}}}]'
    sketch.output(*sketch.ops("_cudnn_rnn", sketch.input("x", (3, 2, 5)), shapes=[(3, 2, 14)], arguments=call))
    assert [said for title, said, _ in leaves(sketch.graph()) if title == "rnn"] == [words]


def test_an_embedding_says_its_sizes_in_backward() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.table(x), self.table(x + 1)])

    graph = atlas.capture(Twice(), torch.randint(0, 9, (4,)), backward=True)
    found = said(graph, "Embedding", Phase.BACKWARD)
    assert found
    assert set(found) <= {"11×3", "grad of weight"}


def test_a_graph_that_does_not_say_how_its_ops_were_called_has_the_sizes_of_their_tensors() -> None:
    sketch = Sketch()
    x = sketch.input("x", (1, 64, 32, 32))
    with sketch.module("deep", "Conv2d") as path:
        x = sketch.op("convolution", x, sketch.parameter(f"{path}.weight", (64, 1, 3, 3)))
    with sketch.module("norm", "BatchNorm2d") as path:
        x = sketch.op("native_batch_norm", x, sketch.parameter(f"{path}.weight", (64,)))
    sketch.output(x)
    found = leaves(sketch.graph())
    assert [more for _, more, _ in found] == ["deep · 64→64, 3×3, depthwise", "norm · 64"]


def called(call: str, name: str, shape: tuple[int, ...]) -> Graph:
    sketch = Sketch()
    x = sketch.input("x", shape)
    with sketch.module("layer", "Layer") as path:
        weight = sketch.parameter(f"{path}.weight", shape)
        (x,) = sketch.ops(name, x, weight, shapes=[shape], arguments=call)
    sketch.output(x)
    return sketch.graph()


@pytest.mark.parametrize("call", ["[[],{}]", '[[{"tensor":7},{"tensor":9}],{}]', '[[3,4,5],{"groups":"x"}]'])
def test_what_a_file_says_of_a_call_may_be_anything(call: str) -> None:
    for name, shape in (("convolution", (1, 8, 4, 4)), ("addmm", (8, 8)), ("embedding", (8, 8))):
        assert leaves(called(call, name, shape))


@pytest.mark.parametrize(
    "call",
    [
        "7",
        "null",
        "[]",
        "[1,2]",
        "[[],[]]",
        '["ab",{}]',
        "[[],{}",
        '[[{"tensor":"x"}],{}]',
        '[[{"tensor":-1}],{}]',
        "[" * 10_000,
    ],
)
def test_what_is_no_call_is_refused_by_name(call: str, tmp_path: Path) -> None:
    graph = called(call, "convolution", (1, 8, 4, 4))
    with pytest.raises(FileFormatError, match="not a call"):
        drawn(graph)
    with pytest.raises(FileFormatError, match=r"arguments\[0\]: not a call"):
        graph.save(tmp_path / "graph.atlas")
