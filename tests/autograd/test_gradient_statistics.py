"""Figures of many gradients are those of each, whatever their size and scale."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torchatlas.autograd import gradient_statistics
from torchatlas.autograd.gradient_statistics import GradientFigures


def figures_of(gradients: list[torch.Tensor]) -> GradientFigures:
    figures = GradientFigures(len(gradients))
    for edge, gradient in enumerate(gradients):
        figures.add(edge, gradient)
    figures.flush()
    return figures


@pytest.mark.parametrize("size", [1, 3, 256, 8_192, 8_193, 16_384, 65_536, 65_537, 3_000_000])
@pytest.mark.parametrize("scale", [1.0, 0.0, 1e-30, 1e-44, 1e30, 3e38])
def test_norm_and_extremes_at_every_scale(size: int, scale: float) -> None:
    gradients = [(torch.randn(size, dtype=torch.float64).clamp(-1, 1) * scale).float() for _ in range(5)]
    figures = figures_of(gradients)
    for edge, gradient in enumerate(gradients):
        norm, smallest, largest, not_finite = figures[edge]
        assert norm == pytest.approx(float(gradient.double().norm()), rel=1e-6, abs=0)
        assert (smallest, largest, not_finite) == (gradient.min(), gradient.max(), 0)


@pytest.mark.parametrize(
    "gradient",
    [
        torch.randn(300, 400).t(),
        torch.randn(2, 30, 40, 50).to(memory_format=torch.channels_last),
        torch.randn(400, 1).expand(400, 300),
        torch.randn(600, 400)[::2, 1::2],
        torch.randn(300, 400).double().t(),
        torch.randn(300, 400).bfloat16().t(),
    ],
)
def test_large_ones_however_their_numbers_lie(gradient: torch.Tensor) -> None:
    before = gradient.clone()
    norm, smallest, largest, not_finite = figures_of([gradient])[0]
    assert norm == pytest.approx(float(gradient.double().norm()), rel=1e-6, abs=0)
    assert (smallest, largest, not_finite) == (gradient.min(), gradient.max(), 0)
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_looking_leaves_the_numbers_alone(scale: float) -> None:
    gradients = [torch.randn(size) * scale for size in (4, 20_000, 100_000)]
    before = [gradient.clone() for gradient in gradients]
    figures_of(gradients)
    assert all(map(torch.equal, gradients, before))


def test_scales_that_differ_wait_together() -> None:
    gradients = [torch.full((4, 64), value) for value in (1e-38, 1.0, 1e38, 0.0)]
    figures = figures_of(gradients)
    assert [figures[edge][0] for edge in range(4)] == pytest.approx([16e-38, 16.0, 16e38, 0.0], rel=1e-6, abs=0)


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    gradients = [torch.tensor([3.0, math.nan, -4.0, math.inf]), torch.ones(4), torch.full((4,), math.nan)]
    figures = figures_of(gradients)
    assert figures[0] == (5.0, -4.0, 3.0, 2)
    assert figures[1] == (2.0, 1.0, 1.0, 0)
    assert math.isnan(figures[2][0])
    assert figures[2][3] == 4


def test_a_gradient_on_several_edges_is_looked_at_once_and_told_of_on_each() -> None:
    shared = torch.full((3,), 2.0)
    figures = figures_of([shared, torch.zeros(3), shared])
    assert figures[0] == figures[2] == pytest.approx((math.sqrt(12), 2.0, 2.0, 0))


def test_what_is_overwritten_while_it_waits_is_counted_and_what_came_after_is_seen() -> None:
    figures, gradient = GradientFigures(2), torch.ones(4)
    figures.add(0, gradient)
    gradient.mul_(3)
    figures.add(1, gradient)
    figures.flush()
    assert (0 in figures, 1 in figures, figures.overwritten) == (False, True, 1)
    assert figures[1] == (6.0, 3.0, 3.0, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_kinds_of_numbers(dtype: torch.dtype) -> None:
    gradient = torch.randn(8, 9).to(dtype)
    size = gradient.abs() if dtype.is_complex else gradient
    for given in (gradient, gradient.t()):
        norm, smallest, largest, _ = figures_of([given, torch.ones(8, 9)])[0]
        assert norm == pytest.approx(float(size.double().norm()), rel=1e-6, abs=0)
        assert (smallest, largest) == pytest.approx((float(size.min()), float(size.max())), rel=1e-6, abs=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_default_kind_of_numbers_does_not_matter(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        norm, *_ = figures_of([torch.full((4,), 1e-9, dtype=torch.float32)])[0]
    finally:
        torch.set_default_dtype(before)
    assert norm == pytest.approx(2e-9, rel=1e-6, abs=0)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200])
def test_numbers_that_only_float64_holds(scale: float) -> None:
    norm, *_ = figures_of([torch.full((4,), scale, dtype=torch.float64)])[0]
    assert norm == pytest.approx(2 * scale, rel=1e-12, abs=0)


class Elsewhere(torch.Tensor):
    """On a device that has no float64, as Apple's has none."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        result = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(result, cls) and result.dtype is torch.float64:
            raise TypeError("no float64 here")
        return result


@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_a_device_without_float64(scale: float) -> None:
    numbers = torch.randn(2, 20_000) * scale
    with pytest.raises(TypeError, match="no float64"):
        numbers.as_subclass(Elsewhere).double()
    norms, smallest, largest, _ = gradient_statistics._of_rows(numbers.as_subclass(Elsewhere))
    assert norms == pytest.approx(numbers.double().norm(dim=1).numpy(), rel=1e-6, abs=0)
    assert (smallest.tolist(), largest.tolist()) == (numbers.amin(1).tolist(), numbers.amax(1).tolist())
    numbers[0, 0] = math.nan
    assert gradient_statistics._of_finite(numbers.as_subclass(Elsewhere))[3] == 1
