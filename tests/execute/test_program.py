"""Programs: instructions over registers, what is freed, what is kept although it is overwritten, modes that end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchatlas.capturing.exported import graph_of_export
from torchatlas.execute.exporting import compiled, copy_unless_same
from torchatlas.execute.node_values import RunOptions, ValueObserver
from torchatlas.execute.program import Failed, Program


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def program_of(function: Callable[..., Any], *args: Any) -> Program:
    return _compiled(torch.export.export(Function(function), args))


def _compiled(exported: Any) -> Program:
    constants = {s.arg.name: s.target for s in exported.graph_signature.input_specs if s.kind.name != "USER_INPUT"}
    _, numbers = graph_of_export(exported, torch.nn.Module(), [])
    return compiled(exported.graph, constants, {name: name for name in numbers})


def nothing(name: str) -> Any:
    raise AssertionError(name)


def run(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    recorder = ValueObserver(RunOptions(**options))
    return program_of(function, *args).run(list(args), nothing, recorder), recorder.values()


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda x: (x * 2).relu_() + 1,
    "through a view that outlives its base": lambda x: (x * 2).view(-1).relu_().sum(),
    "chain of writes": lambda x: (x * 2).relu_().add_(1).mul_(3).sub_(x),
    "two views of one memory": lambda x: _two_views(x),
    "whole read after a part was written": lambda x: _part(x),
    "without gradients": lambda x: _without_gradients(x),
    "einsum that is a view": lambda x: _einsum(x),
    "dropout that does nothing": lambda x: _dropout(x),
}


def _two_views(x: Tensor) -> Tensor:
    y = x * 2
    first, second = y[0], y.t()
    first.mul_(5)
    second.add_(1)
    return first.sum() + second.sum() + y.sum()


def _part(x: Tensor) -> Tensor:
    y = x.clone()
    before = y.sum()
    y[:, 0].fill_(9)
    return y * before


def _without_gradients(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        z = y + 1
        y.relu_()
    return y + z


def _einsum(x: Tensor) -> Tensor:
    y = x * 2
    z = torch.einsum("ij->ji", y)
    y.zero_()
    return z + 1


def _dropout(x: Tensor) -> Tensor:
    y = x * 2
    z = torch.nn.functional.dropout(y, 0.5, training=False)
    y.zero_()
    return z + 1


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("some", [False, True], ids=["all kept", "one kept"])
def test_a_kept_value_is_what_the_node_made(name: str, some: bool) -> None:
    from execute.tracing import Cloning

    x = torch.randn(3, 3)
    exported = torch.export.export(Function(WRITES[name]), (x,))
    expected: dict[str, Any] = {}
    (wanted,) = Cloning(exported.graph_module, expected).run(x.clone())
    program = _compiled(exported)
    names = [instruction.name for instruction in program.instructions if instruction.name]
    for keep in [{one} for one in names] if some else [None]:
        recorder = ValueObserver(RunOptions(keep))
        (result,) = program.run([x.clone()], nothing, recorder)
        kept = recorder.values()
        assert torch.equal(result, wanted)
        for node in keep or names:
            inputs, output = expected[node]
            assert torch.equal(kept[node].output, output), node
            assert all(map(torch.equal, kept[node].inputs, inputs)), node


def test_what_is_not_kept_is_not_returned() -> None:
    assert run(lambda x: x.sin().cos(), torch.randn(2))[1] == {}
    assert set(run(lambda x: x.sin().cos(), torch.randn(2), keep={"sin"})[1]) == {"sin"}


def test_arguments_of_every_kind() -> None:
    def everything(x: Tensor, pair: list[Tensor]) -> Any:
        parts = torch.cat([x, *pair], 0).split([2, 4])
        return torch.stack(parts[1].unbind()[:2]), x.sum(dim=[0], keepdim=True), None, 3

    x, pair = torch.randn(2, 3), [torch.randn(2, 3), torch.randn(2, 3)]
    results = program_of(everything, x, pair).run([x, *pair], nothing)
    wanted = everything(x, pair)
    assert torch.equal(results[0], wanted[0])
    assert torch.equal(results[1], wanted[1])
    assert results[2:] == [None, 3]


def test_an_edit_changes_what_comes_after() -> None:
    (result,), kept = run(
        lambda x: x.sin() * 2, torch.randn(3), edits={"sin": lambda value: torch.ones_like(value)}, keep={"mul"}
    )
    assert torch.equal(result, torch.full((3,), 2.0))
    assert torch.equal(kept["mul"].inputs[0], torch.ones(3))


def test_modes_end_also_after_an_error() -> None:
    def inside(x: Tensor, index: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return torch.mm(x, x)[index]

    x = torch.randn(3, 3, requires_grad=True)
    program = program_of(inside, x, torch.tensor([0]))
    assert any(instruction.name.endswith("mm") for instruction in program.instructions)  # its values can be kept
    (result,) = program.run([x, torch.tensor([1])], nothing)
    assert not result.requires_grad
    assert result.dtype == torch.bfloat16
    with pytest.raises(Failed) as caught:
        program.run([x, torch.tensor([7])], nothing)
    assert caught.value.name.endswith("index")
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_casts_are_kept_for_the_next_use_as_in_the_model() -> None:
    """The gradient of a weight that is cast once and used twice is summed in bfloat16."""

    def twice(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.mm(torch.mm(x, w), w)

    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    (result,), _ = run(twice, x, w)
    ours = torch.autograd.grad(result.float().sum(), w)[0]
    assert torch.equal(ours, torch.autograd.grad(twice(x, w).float().sum(), w)[0])


def test_a_copy_to_itself_is_left_out() -> None:
    x = torch.zeros(2)
    version = x._version
    assert copy_unless_same(x, x) is x
    assert x._version == version
    assert torch.equal(copy_unless_same(x, torch.ones(2)), torch.ones(2))
