"""The user's own line of every op: file, line number, function and text."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import load_torchvision, tiny_gpt2
from torch import nn

import torchatlas as atlas
from torchatlas.graph import SourceLine


def source(graph: atlas.Graph, operation: str) -> SourceLine:
    found = {node.source for node in graph.where(operation=operation, kind="op")}
    assert len(found) == 1, f"{operation} has the lines {found}"
    (line,) = found
    assert line is not None
    return line


def here(line: SourceLine, function: str, text: str) -> None:
    """It is that function of this file, and the line number is the one that text has."""
    assert line.file == __file__
    assert line.function.rpartition(".")[2] == function
    assert line.text == text == linecache.getline(__file__, line.line).strip()


def test_layers_of_torch_are_at_the_line_that_calls_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()))
    x = torch.ones(1, 2)
    with atlas.recording(model) as rec:
        y = model(x)
    here(source(rec.graph, "addmm"), "test_layers_of_torch_are_at_the_line_that_calls_the_model", "y = model(x)")
    assert source(rec.graph, "tanh") == source(rec.graph, "addmm")
    del y


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return torch.nn.functional.softmax(
            hidden * 3,
            dim=-1,
        )

    @torch.no_grad()
    def without_gradient(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


def test_a_forward_of_ones_own() -> None:
    graph = atlas.capture(Custom(), torch.ones(1, 2))
    here(source(graph, "addmm"), "forward", "hidden = self.linear(x)")
    here(source(graph, "mul"), "forward", "hidden * 3,")
    assert source(graph, "mul").function == "Custom.forward"
    assert source(graph, "_softmax").line == source(graph, "mul").line - 1


def test_backward_has_the_line_of_the_forward() -> None:
    graph = atlas.capture(Custom(), torch.ones(1, 2), backward=True)
    here(source(graph, "_softmax_backward_data"), "forward", "return torch.nn.functional.softmax(")


def test_a_lambda() -> None:
    double = lambda x: x * 2  # noqa: E731
    with atlas.recording() as rec:
        double(torch.ones(1))
    here(source(rec.graph, "mul"), "<lambda>", "double = lambda x: x * 2  # noqa: E731")


def test_code_that_was_executed_from_text() -> None:
    space: dict[str, Any] = {"torch": torch}
    exec(compile("def f(x):\n    return x.sin()\n", "<made up>", "exec"), space)
    with atlas.recording() as rec:
        space["f"](torch.ones(1))
    assert source(rec.graph, "sin") == SourceLine("<made up>", 2, "f", "")


def test_a_function_wrapped_by_torch() -> None:
    model = Custom()
    with atlas.recording(model) as rec:
        model.without_gradient(torch.ones(1))
    here(source(rec.graph, "cos"), "without_gradient", "return x.cos()")


def test_a_deprecated_function_of_torch() -> None:
    """Its wrapper stands in typing_extensions, which torch installs."""
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    with atlas.recording() as rec, pytest.warns(FutureWarning, match="deprecated"):
        torch.nn.utils.clip_grad_norm(layer.parameters(), 1.0)
    lines = {node.source.function for node in rec.graph.where(kind="op") if node.source}
    assert lines == {"test_a_deprecated_function_of_torch"}


def test_a_function_wrapped_by_the_standard_library() -> None:
    @functools.cache
    def cached() -> torch.Tensor:
        return torch.zeros(1).exp()

    generic = functools.singledispatch(torch.sin)  # a function of functools.py calls torch.sin
    with atlas.recording() as rec:
        generic(torch.ones(1))
        cached()
    here(source(rec.graph, "exp"), "cached", "return torch.zeros(1).exp()")
    here(source(rec.graph, "sin"), "test_a_function_wrapped_by_the_standard_library", "generic(torch.ones(1))")


def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x.sin()
    yield x.cos()


def test_a_generator() -> None:
    with atlas.recording() as rec:
        for part in parts(torch.ones(1)):
            part.exp()
    here(source(rec.graph, "sin"), "parts", "yield x.sin()")
    here(source(rec.graph, "cos"), "parts", "yield x.cos()")
    here(source(rec.graph, "exp"), "test_a_generator", "part.exp()")


def test_an_optimizer_is_at_the_line_that_steps() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with atlas.recording(model) as rec:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    lines = {node.source for node in rec.graph.where(phase="optimizer")}
    assert len(lines) == 1
    here(next(iter(lines)), "test_an_optimizer_is_at_the_line_that_steps", "optimizer.step()")


def test_a_capture_is_at_the_line_that_asks_for_it() -> None:
    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), backward=True)
    text = "graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), backward=True)"
    here(source(graph, "addmm"), "test_a_capture_is_at_the_line_that_asks_for_it", text)
    assert {node.source and node.source.file for node in graph.where(kind="op")} == {__file__}


def test_models_of_other_packages_are_at_their_own_lines() -> None:
    model = load_torchvision().models.resnet18(num_classes=2).eval()
    graph = atlas.capture(model, torch.randn(1, 3, 32, 32))
    line = graph["layer1.0.conv1.convolution"].source
    assert line is not None
    assert line.file.endswith("torchvision/models/resnet.py")
    assert (line.function, line.text) == ("BasicBlock.forward", "out = self.conv1(x)")


def test_models_of_transformers_are_at_their_own_lines() -> None:
    model, inputs = tiny_gpt2()
    graph = atlas.capture(model, **inputs)
    line = graph["transformer.h.0.mlp.c_fc.addmm"].source
    assert line is not None
    assert "transformers" in line.file
    assert "torch.addmm" in line.text


def test_recompute_has_the_line_of_the_forward() -> None:
    from torch.utils.checkpoint import checkpoint

    def block(x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()

    with atlas.recording() as rec:
        checkpoint(block, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    here(source(rec.graph, "sin"), "block", "return x.sin().exp()")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_test_runner_or_script_makes_no_difference(wrapped: bool) -> None:
    def work() -> torch.Tensor:
        return torch.ones(1).tan()

    with atlas.recording() as rec:
        torch.no_grad()(work)() if wrapped else work()
    here(source(rec.graph, "tan"), "work", "return torch.ones(1).tan()")
