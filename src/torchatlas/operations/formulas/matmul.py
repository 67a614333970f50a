"""Products of matrices, vectors and tensors: multiply-adds, as torch.utils.flop_counter counts them.

What sums products is multiply-adds; a product without a sum (outer, kron) is elementwise, and so is the term that addmm
adds. A sparse factor counts as a dense one: a graph does not hold how many of its elements are not zero.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence, Set

from torchatlas.operations.work import FORMULAS, OpCall, Operand, Work, formula

Sizes = dict[str, int]  # of the axes of one factor, by name
_AXIS = re.compile(r"\.\.\.|[A-Za-z]")


def product(left: Operand, right: Operand) -> int:
    """Multiply-adds of [..., m, k] @ [..., k, n] without broadcasting: each element of the left one takes part in n."""
    return left.numel * (right.shape[-1] if len(right.shape) > 1 else 1)


@formula(
    "mm bmm mv dot vdot _int_mm _scaled_mm _scaled_mm_v2 _sparse_mm _sparse_mm_reduce_impl _sparse_sparse_matmul hspmm",
    "smm torch.mm torch.bmm torch.mv torch.dot .mm .bmm .mv .dot",
)
def two_factors(call: OpCall) -> Work:
    bias = call.get("bias")
    return Work(product(call.inputs[0], call.inputs[1]), call.outputs[0].numel if bias else 0)


@formula(
    "addmm addmv addbmm baddbmm _addmm_activation _sparse_addmm sspaddmm sparse_sampled_addmm torch.addmm torch.addmv",
    "torch.addbmm torch.baddbmm",
)
def two_factors_and_a_term(call: OpCall) -> Work:
    results = call.outputs[0].numel
    added = results if call.get("beta", 1) else 0
    activation = (5 if call.get("use_gelu") else 1) if "_activation" in call.operation else 0
    return Work(product(call.inputs[1], call.inputs[2]), added + activation * results)


@formula("_foreach_mm")
def pairs_of_factors(call: OpCall) -> Work:
    half = len(call.inputs) // 2
    return Work(sum(map(product, call.inputs[:half], call.inputs[half:])))


@formula("inductor._mm_plus_mm")
def sum_of_two_products(call: OpCall) -> Work:
    a, b, c, d = call.inputs[:4]
    return Work(product(a, b) + product(c, d))


@formula("matmul linalg_matmul quantized.matmul torch.matmul _operator.matmul .matmul")
def broadcast_product(call: OpCall) -> Work:
    return Work(call.outputs[0].numel * call.inputs[0].shape[-1])


@formula("inner torch.inner")
def inner(call: OpCall) -> Work:
    """Of the last axes; a scalar only scales."""
    left, right = call.inputs[:2]
    if left.shape and right.shape:
        return Work(call.outputs[0].numel * left.shape[-1])
    return Work(elementwise_flops=call.outputs[0].numel)


@formula("linalg_vecdot")
def dot_along_an_axis(call: OpCall) -> Work:
    """Of two vectors a dot product; of more axes torch multiplies and sums."""
    left, right = call.inputs[:2]
    if len(left.shape) == len(right.shape) == 1:
        return Work(left.numel)
    summed = left.shape[call.get("dim", -1)]
    return Work(elementwise_flops=2 * call.outputs[0].numel * summed)


@formula("outer ger kron torch.outer torch.kron .outer")
def products_of_all_pairs(call: OpCall) -> Work:
    return Work(elementwise_flops=call.outputs[0].numel)


@formula("addr torch.addr")
def outer_product_and_a_term(call: OpCall) -> Work:
    return Work(elementwise_flops=(2 if call.get("beta", 1) else 1) * call.outputs[0].numel)


@formula(
    "linear mkldnn_linear _mixed_dtypes_linear _sparse_semi_structured_linear _weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu _weight_int8pack_mm _weight_int4pack_mm_with_scales_and_zeros _dyn_quant_matmul_4bit",
    "_wrapped_quantized_linear_prepacked fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_int8_weight quantized.int4mm_packed_weight_cpu quantized.linear quantized.linear_relu",
    "quantized.linear_leaky_relu quantized.linear_tanh quantized.linear_dynamic quantized.linear_relu_dynamic",
    "quantized.linear_dynamic_fp16 quantized.linear_relu_dynamic_fp16 quantized.linear_dynamic_fp16_unpacked_weight",
    "quantized.linear_with_input_q_dq_qweight_dq_output_fp32 _quantized.linear _quantized.linear_dynamic",
    "_quantized.wrapped_fbgemm_linear_fp16_weight _quantized.wrapped_quantized_linear onednn.qlinear_pointwise",
    "onednn.linear_dynamic_fp16 onednn.linear_relu_dynamic_fp16 sparse.qlinear sparse.qlinear_dynamic",
    "sparse.qlinear_relu sparse.qlinear_relu_dynamic fbgemm_linear_int8_weight_fp32_activation mkl._mkl_linear",
    "mkldnn._linear_pointwise torch.nn.functional.linear torch._C._nn.linear nn.Linear",
    "quantized.linear_with_input_q_dq_qweight_dq_relu_output_fp32 _quantized._wrapped_quantized_linear_prepacked",
)
def linear(call: OpCall) -> Work:
    """The input's last axis against a weight that may be packed away: the shapes outside say all that is needed."""
    results = call.outputs[0].numel
    has_bias = call.get("bias", call.get("B")) is not None or call.operation.startswith(("nn.", "quantized."))
    return Work(results * call.inputs[0].shape[-1], results if has_bias else 0)


@formula("linear_backward mkldnn_linear_backward")
def linear_backward(call: OpCall) -> Work:
    _, gradient, weight = call.inputs[:3]
    wanted = call["output_mask"]
    each = gradient.numel * weight.shape[-1]
    return Work(each * (wanted[0] + wanted[1]), gradient.numel if wanted[2] else 0)


@formula("mkldnn_linear_backward_input mkldnn_linear_backward_weights")
def linear_backward_by_halves(call: OpCall) -> Work:
    return Work(call["grad_output"].numel * call["weight"].shape[-1])


@formula("matmul_backward")
def matmul_backward(call: OpCall) -> Work:
    gradient, left = call.inputs[:2]
    return Work(gradient.numel * left.shape[-1] * sum(call["mask"]))


@formula("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2")
def grouped_product(call: OpCall) -> Work:
    """Rows, columns or the summed axis are divided among the groups: two plain matrices divide the summed one."""
    left, right = call.inputs[:2]
    if len(left.shape) == len(right.shape) == 2:
        return Work(product(left, right))
    return Work(call.outputs[0].numel * left.shape[-1])


@formula("_sparse_semi_structured_mm _sparse_semi_structured_addmm _cslt_sparse_mm")
def half_empty_product(call: OpCall) -> Work:
    dense = call.get("mat2") or call["dense_B"]
    return Work(call.outputs[0].numel * dense.shape[0])


@formula("_sparse_mm_reduce_impl_backward")
def sparse_backward(call: OpCall) -> Work:
    sparse, gradient = call.inputs[:2]
    return Work(product(sparse, gradient) * sum(call["output_mask"]))


@formula("tensordot")
def tensordot(call: OpCall) -> Work:
    left, right = call.inputs[:2]
    pairs = list(zip(call["dims_self"], call["dims_other"], strict=True))
    rows = _without(left.shape, [one for one, _ in pairs])
    columns = _without(right.shape, [other for _, other in pairs])
    summed = math.prod(min(left.shape[one], right.shape[other]) for one, other in pairs)  # 1 is summed before
    return Work(rows * columns * summed)


@formula("chain_matmul linalg_multi_dot")
def chain(call: OpCall) -> Work:
    """In the order that takes least, as torch does it."""
    shapes = [one.shape for one in call.inputs]
    rows, columns = (shape[end] if len(shape) == 2 else 1 for shape, end in ((shapes[0], 0), (shapes[-1], 1)))
    sizes = [rows, *(shape[0] for shape in shapes[1:]), columns]
    count = len(shapes)
    least = [[0] * count for _ in range(count)]
    for width in range(1, count):
        for first in range(count - width):
            last = first + width
            least[first][last] = min(
                least[first][cut] + least[cut + 1][last] + sizes[first] * sizes[cut + 1] * sizes[last + 1]
                for cut in range(first, last)
            )
    return Work(least[0][-1])


@formula("matrix_power linalg_matrix_power")
def power(call: OpCall) -> Work:
    """By repeated squaring. A negative one inverts first."""
    matrix, exponent = call.inputs[0], call["n"]
    size, times = matrix.shape[-1], abs(exponent)
    products = max(times.bit_length() + times.bit_count() - 2, 0)
    return Work(products * matrix.numel * size, 2 * matrix.numel * size if exponent < 0 else 0)


@formula("_euclidean_dist")
def euclidean_distance(call: OpCall) -> Work:
    """|a|² - 2ab + |b|² as one product: the factors get two columns more."""
    left, right = call.inputs[:2]
    results = call.outputs[0].numel
    return Work(results * (left.shape[-1] + 2), 2 * (left.numel + right.numel) + left.numel + 2 * results)


@formula("cdist")
def all_distances(call: OpCall) -> Work:
    """Of more than 25 points, Euclidean ones are a product unless asked not to be."""
    left, right = call.inputs[:2]
    mode, many = call.get("compute_mode") or 0, max(left.shape[-2], right.shape[-2]) > 25
    if call.get("p", 2) == 2 and (mode == 1 or (mode == 0 and many)):
        return euclidean_distance(call)
    return FORMULAS["aten._cdist_forward"](call)


# -- products of tensors whose axes have names ------------------------------------------------------------------------


def pairwise(left: Sizes, right: Sizes, summed: Set[str]) -> tuple[Sizes, Work]:
    """Multiply two factors and sum over some axes: what is left, and the work. Axes of one factor are summed first."""
    both = summed & left.keys() & right.keys()
    alone = summed - both
    before = sum(math.prod(one.values()) for one in (left, right) if alone & one.keys())
    union = {**left, **right}
    size = math.prod(length for name, length in union.items() if name not in alone)
    result = {name: length for name, length in union.items() if name not in summed}
    return result, Work(size, before) if both else Work(0, before + size)


@formula("einsum torch.einsum torch.functional.einsum")
def einsum(call: OpCall) -> Work:
    """Two factors at a time, from the left or along `path`; an axis is summed as soon as no other factor has it."""
    equation = next(call[name] for name in call.names if isinstance(call[name], str))
    factors, output = _named_axes(equation, call.inputs)
    path = iter(call.get("path") or ())
    macs = elementwise = 0
    while len(factors) > 1:
        first, second = sorted((next(path, 0), next(path, 1)))
        right, left = factors.pop(second), factors.pop(first)
        done = (left.keys() | right.keys()) - set(output).union(*factors)
        result, work = pairwise(left, right, done)
        macs, elementwise = macs + work.macs, elementwise + work.elementwise_flops
        factors = [*factors, result] if call.get("path") else [result, *factors]
    if factors[0].keys() - set(output):  # of one factor alone
        elementwise += math.prod(factors[0].values())
    return Work(macs, elementwise)


def _named_axes(equation: str, operands: Sequence[Operand]) -> tuple[list[Sizes], list[str]]:
    """The axes of every factor that are longer than 1, and those of the result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [_AXIS.findall(term) for term in left.split(",")]
    hidden = [len(one.shape) - len(term) + 1 if "..." in term else 0 for term, one in zip(terms, operands, strict=True)]
    dots = [f"...{axis}" for axis in range(max(hidden))]

    def names(term: list[str], count: int) -> list[str]:
        return [name for part in term for name in (dots[len(dots) - count :] if part == "..." else [part])]

    factors = [
        {name: size for name, size in zip(names(term, count), one.shape, strict=True) if size != 1}
        for term, count, one in zip(terms, hidden, operands, strict=True)
    ]
    if arrow:
        return factors, names(_AXIS.findall(right), len(dots))
    times = Counter(name for term in terms for name in term)
    return factors, [*dots, *sorted(name for name, count in times.items() if count == 1)]


@formula("_trilinear")
def trilinear(call: OpCall) -> Work:
    """The first two factors, then the third, one slice after another along one axis: as torch's Linear.cpp does it."""
    operands, expanded = call.inputs[:3], [call["expand1"], call["expand2"], call["expand3"]]
    axes = [str(axis) for axis in range(len(operands[0].shape) + len(expanded[0]))]
    factors = []
    for operand, added in zip(operands, expanded, strict=True):
        own = [axis for axis in axes if int(axis) not in added]
        factors.append(dict(zip(own, operand.shape, strict=True)))
    unrolled = str(call.get("unroll_dim", 1))
    times = max(one.get(unrolled, 1) for one in factors)
    first, second, third = ({**one, unrolled: 1} for one in factors)  # one slice
    summed = {str(axis) for axis in call["sumdim"]}
    result, work = pairwise(first, second, summed - factors[2].keys())
    _, more = pairwise(result, third, summed & factors[2].keys())
    added = call.outputs[0].numel * (times if unrolled in summed else 1)
    elementwise = times * (work.elementwise_flops + more.elementwise_flops) + added
    return Work(times * (work.macs + more.macs), elementwise)


@formula("bilinear torch.nn.functional.bilinear nn.Bilinear")
def bilinear(call: OpCall) -> Work:
    """Two steps: the weight with one input, the result with the other."""
    left, right = call.inputs[:2]
    results = call.outputs[0].numel
    has_bias = call.get("bias") is not None or call.operation.startswith("nn.")
    return Work(results * right.shape[-1] * (left.shape[-1] + 1), results if has_bias else 0)


def _without(shape: Sequence[int], axes: Sequence[int]) -> int:
    dropped = {axis % len(shape) for axis in axes}
    return math.prod(size for axis, size in enumerate(shape) if axis not in dropped)
