"""Ways to write one operation cost the same: lists and single tensors, in place and out of place, `out=`, in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from operations.costing import LOGITS, MASK, SQUARE, TARGETS, Run, X, Y, cost_of, recorded, total, whole
from torch import Tensor
from torch.nn import functional as F

THREE, SHORT, TABLE = torch.rand(3), torch.rand(4, 3, 2), torch.randn(5, 4)
ONE = torch.ones(())
UNARY = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt
sigmoid sign sin sinh sqrt tan tanh trunc
"""
BINARY = "add sub mul div maximum minimum clamp_max clamp_min pow"
LISTS: dict[str, tuple[Callable[[list[Tensor]], Any], Callable[[Tensor], Any]]] = {
    "add scalar": (lambda xs: torch._foreach_add(xs, 2), lambda x: x + 2),
    "add alpha": (lambda xs: torch._foreach_add(xs, xs, alpha=2), lambda x: torch.add(x, x, alpha=2)),
    "sub_ alpha": (lambda xs: torch._foreach_sub_(xs, xs, alpha=2), lambda x: x.sub_(x, alpha=2)),
    "mul scalars": (lambda xs: torch._foreach_mul(xs, [2.0] * len(xs)), lambda x: x * 2.0),
    "mul tensor": (lambda xs: torch._foreach_mul_(xs, ONE), lambda x: x.mul_(ONE)),
    "addcmul": (lambda xs: torch._foreach_addcmul(xs, xs, xs), lambda x: torch.addcmul(x, x, x)),
    "addcmul_": (lambda xs: torch._foreach_addcmul_(xs, xs, xs, 0.5), lambda x: x.addcmul_(x, x, value=0.5)),
    "addcdiv_": (
        lambda xs: torch._foreach_addcdiv_(xs, xs, xs, [0.5] * len(xs)),
        lambda x: x.addcdiv_(x, x, value=0.5),
    ),
    "lerp": (lambda xs: torch._foreach_lerp(xs, xs, 0.5), lambda x: torch.lerp(x, x, 0.5)),
    "norm": (lambda xs: torch._foreach_norm(xs), lambda x: torch.linalg.vector_norm(x)),
    "norm 1": (lambda xs: torch._foreach_norm(xs, 1), lambda x: torch.linalg.vector_norm(x, 1)),
    "max": (lambda xs: torch._foreach_max(xs), lambda x: x.max()),
    "copy_": (lambda xs: torch._foreach_copy_(xs, [x.clone() for x in xs]), lambda x: x.copy_(x.clone())),
    "zero_": (lambda xs: torch._foreach_zero_(xs), lambda x: x.zero_()),
    **{
        name: (
            lambda xs, name=name: getattr(torch, f"_foreach_{name}")(xs),
            lambda x, name=name: getattr(torch, name)(x),
        )
        for name in UNARY.split()
    },
    **{
        name: (
            lambda xs, name=name: getattr(torch, f"_foreach_{name}")(xs, xs),
            lambda x, name=name: getattr(torch, name)(x, x),
        )
        for name in BINARY.split()
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_lists_cost_what_their_tensors_cost_one_by_one(name: str, dtype: torch.dtype) -> None:
    def values() -> list[Tensor]:
        return [torch.ones(2, 3, dtype=dtype), torch.ones(5, dtype=dtype), torch.ones((), dtype=dtype)]

    together, alone = LISTS[name]
    try:
        together(values())
    except (RuntimeError, NotImplementedError):
        assert dtype.is_complex, name  # not all of them are for complex numbers
        return
    one_call, tensors = values(), values()
    found = total(lambda: together(one_call))
    expected = total(lambda: [alone(one) for one in tensors])
    if name == "mul tensor":  # its one factor is read once
        expected = (expected[0], expected[1] - 2 * 4, expected[2])
    assert found == expected
    assert found[0] or name in ("copy_", "zero_")


IN_PLACE = """
abs_ acos_ add_ atan2_ ceil_ clamp_ copysign_ cumsum_ div_ eq_ exp_ floor_divide_ gt_ hypot_ index_add_ lerp_
logit_ masked_fill_ mul_ nan_to_num_ neg_ pow_ put_ reciprocal_ relu_ rsqrt_ scatter_add_ sigmoid_ sqrt_ sub_
tanh_ tril_ xlogy_
"""
MORE_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        [
            "add_",
            "atan2_",
            "copysign_",
            "div_",
            "eq_",
            "floor_divide_",
            "gt_",
            "hypot_",
            "mul_",
            "pow_",
            "sub_",
            "xlogy_",
        ],
        (Y,),
    ),
    "clamp_": (0, 1),
    "cumsum_": (0,),
    "index_add_": (0, TARGETS // 2, Y),
    "lerp_": (Y, 0.5),
    "masked_fill_": (MASK, 0.0),
    "put_": (TARGETS, torch.rand(2), True),
    "scatter_add_": (0, TARGETS[None] // 2, Y),
}


PARTED: dict[str, Run] = {
    "layer_norm": lambda: F.layer_norm(X, (3,), THREE, THREE),
    "group_norm": lambda: F.group_norm(SHORT, 3),
    "batch_norm": lambda: F.batch_norm(SHORT, THREE.clone(), THREE.clone(), THREE, THREE, training=True),
    "instance_norm": lambda: F.instance_norm(SHORT),
    "rms_norm": lambda: F.rms_norm(X, (3,), THREE, 1e-6),
    "softmax": lambda: X.softmax(-1),
    "cross_entropy": lambda: F.cross_entropy(LOGITS, TARGETS),
    "l1_loss": lambda: F.l1_loss(X, Y),
    "dropout": lambda: F.dropout(X),
    "pairwise_distance": lambda: F.pairwise_distance(X, Y),
    "max_pool2d": lambda: F.max_pool2d(SQUARE, 2),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(SQUARE, 3),
    "interpolate": lambda: F.interpolate(SQUARE, scale_factor=2, mode="bilinear"),
    "embedding_bag": lambda: F.embedding_bag(TARGETS[None], TABLE),
    "selu": lambda: F.selu(X),
    "log_sigmoid": lambda: F.logsigmoid(X),
    "cumulative": lambda: X.cumsum(0).diff(dim=0),
}


@pytest.mark.parametrize("name", PARTED)
def test_what_torch_takes_apart_costs_the_sum_of_its_parts(name: str) -> None:
    (one, together), (several, apart) = recorded(whole(PARTED[name])), recorded(PARTED[name])
    assert {node.operation for node in one.where(kind="op")} != {node.operation for node in several.where(kind="op")}
    assert together.elementwise_flops.sum() == apart.elementwise_flops.sum() > 0


@pytest.mark.parametrize("name", IN_PLACE.split())
def test_in_place_takes_the_arithmetic_of_out_of_place(name: str) -> None:
    more = MORE_ARGUMENTS.get(name, ())
    target, plain = X.clone(), name.removesuffix("_")
    inside = cost_of(lambda: getattr(target, name)(*more), name)
    outside = cost_of(lambda: getattr(X, plain)(*more), plain)
    assert inside[0] == outside[0] > 0


@pytest.mark.parametrize(
    "name", ["add", "mul", "exp", "sum", "mean", "amax", "softmax", "cumsum", "sort", "gather", "index_add"]
)
def test_out_costs_as_if_there_were_none(name: str) -> None:
    """What stands in the target of `out=` is not read."""
    more = {
        "softmax": (-1,),
        "cumsum": (0,),
        "amax": (1,),
        "sum": (1,),
        "mean": (1,),
        "gather": (0, TARGETS[None] // 2),
    }
    more |= {"add": (Y,), "mul": (Y,), "index_add": (0, TARGETS // 2, Y)}
    function = getattr(torch, name)
    made = function(X, *more.get(name, ()))
    into = tuple(map(torch.empty_like, made)) if isinstance(made, tuple) else torch.empty_like(made)
    assert total(lambda: function(X, *more.get(name, ()), out=into)) == total(lambda: function(X, *more.get(name, ())))
