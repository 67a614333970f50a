"""Pointwise operations: so many per element of the result, by table, for one tensor or for a list (`_foreach_`).

A rate is a number, or a function of the arguments of one call; lists are split into one call per tensor first, so that
a list costs what its tensors cost one by one. Guards against NaN, infinity or a pole are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchatlas.operations.formulas.operand_sizes import elements, is_complex, results
from torchatlas.operations.work import OpCall, Operand, Work, formula, moves_everything

Arguments = dict[str, Any]
Rate = Callable[[Arguments], int]

# An elementary or special function is one operation, however the kernel approximates it.
_ONE = """
abs absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil cos cosh deg2rad
digamma erf erfc erfinv exp exp2 expm1 fix floor i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p
log2 logical_not bitwise_not neg negative polygamma rad2deg reciprocal rsqrt sgn sign signbit sin sinh sqrt square tan
trunc

__and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__ arctan2 atan2 bitwise_and
bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor clamp_max clamp_min copysign eq float_power fmax fmin fmod
gcd ge greater greater_equal gt heaviside igamma igammac lcm le less less_equal logical_and logical_or logical_xor lt
masked_fill maximum minimum ne nextafter not_equal pow remainder tril triu where

special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_digamma special_erf
special_erfc special_erfcx special_erfinv special_exp2 special_expm1 special_gammainc special_gammaincc special_gammaln
special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e
special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p special_log_ndtr special_modified_bessel_i0
special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtr special_ndtri
special_polygamma special_psi special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_zeta _dirichlet_grad _standard_gamma_grad
"""
_MORE = {
    2: "floor_divide frac frexp ldexp special_xlog1py special_xlogy xlogy _masked_scale _saturate_weight_to_fp16",
    3: "cross linalg_cross lerp logit_backward sinc special_entr special_sinc",  # cross: two products, a difference
    4: "hypot logaddexp logaddexp2 polar sigmoid special_expit",
    6: "isclose nan_to_num",  # three tests, three choices
}
# Where complex numbers take other than twice as much, counted in real operations.
_COMPLEX = {
    "abs": 4, "absolute": 4, "angle": 1, "cos": 6, "cosh": 6, "eq": 3, "exp": 5, "log": 6, "ne": 3, "pow": 17,
    "reciprocal": 6, "rsqrt": 16, "sgn": 6, "sin": 6, "sinh": 6, "sqrt": 10, "square": 6, "tan": 23, "tanh": 23,
    "masked_fill": 1, "where": 1, "tril": 1, "triu": 1, "polar": 4,
}  # fmt: skip
_IN_LISTS = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma
log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
"""


def file_rate(names: str, rate: int | Rate, backward_only: tuple[int, ...] = ()) -> None:
    """File a rate under ATen names, and under the name of the list version where there is one."""
    lists = _IN_LISTS.split()
    for name in names.split():
        one = _constant(name, rate) if isinstance(rate, int) else rate
        formula(name, backward_only=backward_only)(_single(one))
        if name in lists:
            formula(f"_foreach_{name}")(_listed(one))


def rate_of(names: str) -> Callable[[Rate], Rate]:
    """File the decorated function as the rate of these operations."""

    def file(rate: Rate) -> Rate:
        file_rate(names, rate)
        return rate

    return file


def _constant(name: str, rate: int) -> Rate:
    in_complex = _COMPLEX.get(name, 2 * rate)
    return lambda arguments: in_complex if any(map(is_complex, arguments.values())) else rate


def _single(rate: Rate) -> Callable[[OpCall], Work]:
    def pointwise(call: OpCall) -> Work:
        return Work(elementwise_flops=rate(_arguments(call)) * results(call)[0].numel)

    return pointwise


def _listed(rate: Rate) -> Callable[[OpCall], Work]:
    def pointwise_of_lists(call: OpCall) -> Work:
        named = _arguments(call)
        made = results(call)
        return Work(elementwise_flops=sum(rate(_at(named, index)) * one.numel for index, one in enumerate(made)))

    return pointwise_of_lists


def _arguments(call: OpCall) -> Arguments:
    return {name: call[name] for name in call.names}


def _at(arguments: Arguments, index: int) -> Arguments:
    return {name: item[index] if isinstance(item, list) else item for name, item in arguments.items()}


file_rate(_ONE, 1)
for _rate, _names in _MORE.items():
    file_rate(_names, _rate)


def _times(*factors: Any) -> int:
    """A product: 6 real operations if both factors are complex, 2 if one is."""
    return (1, 2, 6)[min(sum(map(is_complex, factors)), 2)]


def _plus(arguments: Arguments) -> int:
    return 2 if any(map(is_complex, arguments.values())) else 1


def _scaled(arguments: Arguments, *names: str) -> int:
    """What multiplying by a factor takes: nothing when it is 1."""
    factor = next((arguments[name] for name in names if name in arguments), 1)
    return 0 if not isinstance(factor, Operand) and factor == 1 else _plus(arguments)


@rate_of("add sub subtract rsub")
def added(arguments: Arguments) -> int:
    return _plus(arguments) + _scaled(arguments, "alpha")


@rate_of("_add_relu")
def added_then_relu(arguments: Arguments) -> int:
    return added(arguments) + 1


@rate_of("mul multiply")
def multiplied(arguments: Arguments) -> int:
    factors = [item for name, item in arguments.items() if name != "out"]
    return _times(*factors)


@rate_of("div divide true_divide")
def divided(arguments: Arguments) -> int:
    divisor = next((arguments[name] for name in ("other", "scalar", "scalars") if name in arguments), 1)
    rounds = arguments.get("rounding_mode") is not None
    return (11 if is_complex(divisor) else _plus(arguments)) + rounds


@rate_of("addcmul")
def product_added(arguments: Arguments) -> int:
    product = _times(arguments["tensor1"], arguments["tensor2"])
    return product + _plus(arguments) + _scaled(arguments, "value", "scalars")


@rate_of("addcdiv")
def quotient_added(arguments: Arguments) -> int:
    quotient = 11 if is_complex(arguments["tensor2"]) else _plus(arguments)
    return quotient + _plus(arguments) + _scaled(arguments, "value", "scalars")


@rate_of("clamp clip")
def bounded(arguments: Arguments) -> int:
    return sum(arguments.get(name) is not None for name in ("min", "max"))


@rate_of("round special_round")
def rounded(arguments: Arguments) -> int:
    return 3 if arguments.get("decimals", 0) else 1  # times a power of ten, round, divide


@rate_of("logit special_logit")
def logit(arguments: Arguments) -> int:
    return 3 if arguments.get("eps") is None else 5  # log(x / (1 - x)), between two bounds


@rate_of("conj_physical _conj_physical")
def conjugated(arguments: Arguments) -> int:
    return 1 if any(map(is_complex, arguments.values())) else 0


@rate_of("mvlgamma special_multigammaln")
def gamma_of_several(arguments: Arguments) -> int:
    return 3 * int(arguments["p"])  # so many shifted arguments, each into lgamma, summed


@rate_of("diff")
def differences(arguments: Arguments) -> int:
    return int(arguments["n"]) * _plus(arguments)


formula("complex")(moves_everything)  # two real tensors side by side


@formula("gradient")
def central_differences(call: OpCall) -> Work:
    """A difference and a division per element of each result."""
    return Work(elementwise_flops=2 * elements(*call.outputs))


@formula("isin")
def isin(call: OpCall) -> Work:
    """All against all, or by sorting both: whichever takes fewer comparisons."""
    one, other = call.get("elements"), call.get("test_elements")
    left, right = elements(one) or 1, elements(other) or 1
    together = left + right
    return Work(elementwise_flops=min(left * right, together * max(together.bit_length(), 1)))
