"""Architectures that people use are traced once and run with other sizes, equal to the model to the bit."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from support import sampled
from torch import Tensor, nn

import torchatlas as atlas
from benchmarks.architectures import (
    ARCHITECTURES,
    BEGIN,
    END,
    EQUAL,
    HEAD,
    PAGE,
    Architecture,
    counted_exports,
    difference,
    in_words,
    run,
    sequences,
    written,
)
from torchatlas.errors import InputMismatchError
from torchatlas.execute.exporting import exported
from torchatlas.progress_line import ProgressLine
from torchatlas.torch_private import pytree

# The others of the list take longer; python benchmarks/architectures.py runs them.
QUICK = [
    *("resnet18", "googlenet", "vit_l_16", "mc3_18"),
    *("bert", "roberta", "distilbert", "gpt2", "llama", "mixtral", "t5", "bart"),
    *("clip", "whisper", "vit (transformers)", "swin (transformers)", "beit"),
    *("LSTM", "GRU", "temporal convolution", "nn.Transformer", "U-Net", "MLP-Mixer", "GAN generator"),
    *("variational autoencoder", "perceptron", "graph convolution", "graph attention", "image and table", "clicks"),
    "PointNet",
]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # transformers, at import
@pytest.mark.parametrize("name", sampled(QUICK, 4))
def test_one_trace_serves_other_sizes(name: str) -> None:
    outcome = run(ARCHITECTURES[name])
    assert outcome.as_expected, outcome.result
    assert len(outcome.served) > 2


def test_the_page_has_a_line_for_every_architecture() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    assert table[0] == HEAD
    rows = {cells[1].strip(): cells[-2].strip() for cells in (row.split("|") for row in table[2:])}
    assert list(rows) == list(ARCHITECTURES)
    for name, result in rows.items():
        assert result.startswith(ARCHITECTURES[name].refused or EQUAL), name
        for sizes in ARCHITECTURES[name].beyond:
            assert f"; {in_words(sizes)}: " in result, name


def test_a_page_keeps_its_text_when_its_table_is_written() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written(page, [HEAD, "new"]) == f"before\n{BEGIN}\n{HEAD}\nnew\n{END}\nafter\n"


def test_what_is_not_equal_is_said() -> None:
    x = torch.randn(3, 4)
    nudged = x.clone()
    nudged[1, 2] += 1e-6
    assert difference({"y": x}, {"y": x.clone()}) == ""
    assert difference({"y": x}, {"y": nudged}) == "output 0 differs"
    assert difference([x], [x.double()]) == "output 0 differs"
    assert difference([x], (x,)) == "another structure"
    assert difference([x, 2], [x, 3]) == "output 1 differs"
    assert difference([x, None], [x, x]) != ""
    assert "nothing to compare" in difference(torch.zeros(3), torch.zeros(3))


def test_an_outcome_that_its_entry_does_not_expect_is_not_as_expected() -> None:
    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return sum((x[:, step] for step in range(x.shape[1])), x[:, 0])

    def entry(others: tuple[Any, ...], beyond: tuple[Any, ...] = (), refused: str = "") -> Architecture:
        return Architecture("counted", Counted, sequences, {"batch": 2, "length": 6}, others, beyond, refused=refused)

    longer = {"length": 9}
    assert run(entry(({"batch": 3},), (longer,))).as_expected
    assert not run(entry((longer,))).as_expected  # its length is fixed
    assert not run(entry((), ({"batch": 3},))).as_expected  # its batch is not
    assert not run(entry(({"batch": 3},), refused="cannot")).as_expected


# -- recurrent layers --------------------------------------------------------------------------------------------------


def leaves(result: Any) -> list[Tensor]:
    return list(pytree.tree_leaves(result))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"proj_size": 5}),
        (nn.GRU, {"bias": False}),
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_a_recurrent_layer_takes_any_length(
    kind: type[nn.RNNBase], options: dict[str, Any], bidirectional: bool, batch_first: bool
) -> None:
    torch.manual_seed(0)
    layer = kind(8, 12, 2, dropout=0.3, bidirectional=bidirectional, batch_first=batch_first, **options)
    traced = atlas.trace(layer, torch.randn(3, 6, 8))
    assert not any("torchatlas" in node.operation for node in traced.graph.nodes)
    parameters = list(layer.parameters())
    with counted_exports() as exports:
        for shape in ((3, 6, 8), (5, 9, 8), (2, 30, 8)):
            x = torch.randn(shape)
            torch.manual_seed(1)
            wanted = leaves(layer(x))
            torch.manual_seed(1)
            got = leaves(traced(x))
            for one, other in zip(got, wanted, strict=True):
                assert torch.equal(one, other)
                assert one.stride() == other.stride()
            gradients = torch.autograd.grad(wanted[0].sum(), parameters)
            for one, other in zip(torch.autograd.grad(got[0].sum(), parameters), gradients, strict=True):
                assert torch.equal(one, other)
    assert not exports
    with pytest.raises(InputMismatchError, match="dimension 2; this trace fixes it to 8"):
        traced(torch.randn(3, 6, 9))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_shapes_of_a_recurrent_layer_in_the_graph_are_those_that_it_makes(
    kind: type[nn.RNNBase], batch_first: bool
) -> None:
    layer, x = kind(8, 12, 2, bidirectional=True, batch_first=batch_first), torch.randn(3, 6, 8)
    with ProgressLine("tracing") as progress:
        program = exported(layer, (x,), {}, None, budget_s=math.inf, known={}, progress=progress).program
    made = next(node.meta["val"] for node in program.graph.nodes if str(node.target).endswith(".input"))
    for fake, real in zip(made, leaves(layer(x)), strict=True):
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_a_recurrent_layer_fixes_what_its_weights_and_states_fix() -> None:
    class Bare(nn.Module):
        """Calls the operator itself: nn.GRU would look at the sizes before."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(nn.GRU(8, 12).parameters())

        def forward(self, x: Tensor, state: Tensor) -> Any:
            return torch.gru(x, state, list(self.weights), True, 1, 0.0, False, False, False)

    model = Bare()
    traced = atlas.trace(model, torch.randn(6, 3, 8), torch.randn(1, 3, 12))
    x, state = torch.randn(9, 5, 8), torch.randn(1, 5, 12)
    for one, other in zip(traced(x, state), model(x, state), strict=True):
        assert torch.equal(one, other)
    (length, batch, features), (_, also, _) = traced.input_shapes.values()
    assert isinstance(length, str)
    assert batch == also != length
    assert features == 8
    with pytest.raises(InputMismatchError, match="must be 5, as elsewhere"):
        traced(x, torch.randn(1, 4, 12))


def test_a_recurrent_layer_under_autocast_is_left_to_export() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.RNN(8, 12)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.layer(x)[0]

    model, x = Cast().eval(), torch.randn(6, 3, 8)
    traced = atlas.trace(model, x)
    assert torch.equal(traced(x), model(x))
    (made,) = (value for node in traced.graph.nodes if "rnn" in node.operation for value in node.outputs[:1])
    assert made.dtype == str(model(x).dtype).removeprefix("torch.") == "bfloat16"


# -- sizes that export cannot solve for --------------------------------------------------------------------------------


def test_what_export_cannot_do_for_all_sizes_it_does_for_the_batch() -> None:
    export = torch.export.export

    def weak(*args: Any, dynamic_shapes: Any, **options: Any) -> Any:
        if any(len(free) > 1 for free in dynamic_shapes.values()):
            raise NotImplementedError("The inequality cannot be solved")  # as sympy says of googlenet
        return export(*args, dynamic_shapes=dynamic_shapes, **options)

    model, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    with mock.patch("torch.export.export", weak):
        traced = atlas.trace(model, x)
    batch, *rest = traced.input_shapes["input"]
    assert isinstance(batch, str)
    assert rest == [3, 8, 8]
    note = "input[1], input[2], input[3] are fixed: torch.export fails with it free: The inequality cannot be solved"
    assert traced.notes[-1] == note
    assert note in traced.graph.notes
    x = torch.randn(5, 3, 8, 8)
    assert torch.equal(traced(x), model(x))
