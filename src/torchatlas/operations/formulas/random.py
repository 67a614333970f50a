"""Random numbers: drawing one counts one operation, shaping it as many as its formula has. Targets are not read."""

from __future__ import annotations

from typing import Any

from torchatlas.operations.formulas.operand_sizes import bytes_of, comparisons, elements, per_result, results, rows
from torchatlas.operations.work import Formula, OpCall, Work, formula, moves_everything

# Per element; a tensor of parameters is read, the target of a method in place and the model of `_like` are not.
_DRAWS = {
    1: "rand rand_like randint randint_like randn randn_like random _philox_normal _philox_uniform"
    " _philox_key_fold_in _philox_key_split _fill_mem_eff_dropout_mask",
    3: "exponential geometric",  # log(u), negated and divided
    4: "cauchy log_normal",  # m + s tan(pi (u - 1/2)); exp(m + s z)
}


def _drawn(rate: int) -> Formula:
    def drawn(call: OpCall) -> Work:
        return Work(elementwise_flops=rate * results(call)[0].numel, bytes_read=0)

    return drawn


for _rate, _names in _DRAWS.items():
    formula(_names)(_drawn(_rate))


@formula("uniform prims.uniform")
def uniform(call: OpCall) -> Work:
    """Scaled and shifted unless between 0 and 1."""
    plain = call.get("from", call.get("low", 0)) == 0 and call.get("to", call.get("high", 1)) == 1
    return Work(elementwise_flops=(1 if plain else 3) * results(call)[0].numel, bytes_read=0)


@formula("normal normal_functional prims.normal")
def normal(call: OpCall) -> Work:
    """Scaled and shifted unless they are 0 and 1; both may be tensors."""
    shaped = [call.get("mean", 0), call.get("std", 1)]
    rate = 1 + _other_than(shaped[0], 0) + _other_than(shaped[1], 1)
    return Work(elementwise_flops=rate * results(call)[0].numel, bytes_read=bytes_of(*shaped))


def _other_than(number: Any, plain: float) -> bool:
    return not isinstance(number, (int, float)) or number != plain


@formula("bernoulli")
def bernoulli(call: OpCall) -> Work:
    """Draw and compare. The probabilities are a number, a tensor, or the only argument."""
    probabilities = call.get("p", call.get("self"))
    return Work(elementwise_flops=2 * results(call)[0].numel, bytes_read=bytes_of(probabilities))


formula("poisson binomial _standard_gamma _sample_dirichlet")(per_result(2))  # at least one draw and one comparison
formula("randperm")(per_result(1))
formula("native_dropout_backward")(per_result(2))  # g mask scale
formula("quantized.dropout")(moves_everything)


@formula("multinomial")
def multinomial(call: OpCall) -> Work:
    """With replacement: sums of the weights, then a bisection per draw. Without: a race, the k first of w / e."""
    weights, drawn = call["self"], results(call)[0]
    if call.get("replacement"):
        steps = round(drawn.numel * (1 + comparisons(weights.shape[-1])))
        return Work(elementwise_flops=2 * weights.numel + steps)
    return Work(elementwise_flops=5 * weights.numel)


@formula("_sobol_engine_draw _sobol_engine_ff _sobol_engine_initialize_state _sobol_engine_scramble")
def sobol(call: OpCall) -> Work:
    """One exclusive or per number."""
    return Work(elementwise_flops=elements(*results(call)[:1]))


# -- dropout -----------------------------------------------------------------------------------------------------------


@formula("dropout alpha_dropout")
@formula("native_dropout _fused_dropout", backward_only=(1,))
def dropout(call: OpCall) -> Work:
    """Draw, compare, select, scale; of alpha dropout also shift. Outside training a copy at most."""
    rate = 5 if "alpha" in call.operation else 4
    return Work(elementwise_flops=rate * call.inputs[0].numel if _trains(call) else 0)


@formula("feature_dropout feature_alpha_dropout")
def feature_dropout(call: OpCall) -> Work:
    """One draw per channel; select and scale each element."""
    x = call.inputs[0]
    channels = rows(x, list(range(2, len(x.shape)))) if len(x.shape) > 2 else x.numel
    per_element = 3 if "alpha" in call.operation else 2
    return Work(elementwise_flops=per_element * x.numel + 2 * channels if _trains(call) else 0)


def _trains(call: OpCall) -> bool:
    return call.get("train", True) is not False
