"""Decompositions, solvers and Fourier transforms: the textbook count of their arithmetic.

None of it is multiply-adds here: neither the published tables nor torch.utils.flop_counter count it. Counts are of real
arithmetic (LAPACK working note 41; Golub and Van Loan, Matrix Computations; 5 n log n for a complex transform); a
complex matrix takes four times as much. Iterative methods count with their usual number of sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchatlas.operations.work import Formula, OpCall, Operand, Work, formula


def on_matrices(matrix: Operand, flops_of_one: Callable[[int, int], float]) -> Work:
    """The work on a batch of m x n matrices."""
    rows, columns = matrix.shape[-2:]
    batch = math.prod(matrix.shape[:-2])
    return Work(elementwise_flops=batch * round(flops_of_one(rows, columns) * _realness(matrix)))


def _of_matrix(flops_of_one: Callable[[int, int], float]) -> Formula:
    """The formula of operations on a batch of m x n matrices, the first argument."""
    return lambda call: on_matrices(call.inputs[0], flops_of_one)


formula("cholesky linalg_cholesky linalg_cholesky_ex linalg_ldl_factor linalg_ldl_factor_ex")(
    _of_matrix(lambda n, _: n**3 / 3)
)
formula("cholesky_inverse")(_of_matrix(lambda n, _: 2 * n**3 / 3))
formula("linalg_eig")(_of_matrix(lambda n, _: 25 * n**3))
formula("linalg_eigvals _linalg_eigvals")(_of_matrix(lambda n, _: 10 * n**3))
# A polynomial of degree 18 in five products; how often its result is squared depends on the values. Backward is the
# exponential of a matrix twice as wide.
formula("linalg_matrix_exp matrix_exp")(_of_matrix(lambda n, _: 5 * 2 * n**3))
formula("matrix_exp_backward")(_of_matrix(lambda n, _: 5 * 2 * (2 * n) ** 3))


@formula("linalg_lu linalg_lu_factor linalg_lu_factor_ex _lu_with_info det linalg_det logdet slogdet linalg_slogdet")
@formula("_linalg_det", backward_only=(1, 2))
@formula("_linalg_slogdet", backward_only=(2, 3))
def lu(call: OpCall) -> Work:
    """Gaussian elimination; a determinant is the diagonal of its result."""
    return on_matrices(call.inputs[0], _lu)


@formula("inverse linalg_inv linalg_inv_ex linalg_tensorinv")
def inverse(call: OpCall) -> Work:
    matrix = call.inputs[0]
    if call.operation.startswith("aten.linalg_tensorinv"):
        rows = math.prod(matrix.shape[: call.get("ind", 2)])
        matrix = Operand((rows, rows), matrix.dtype)
    return on_matrices(matrix, lambda n, _: 2 * n**3)


@formula("linalg_solve linalg_solve_ex")
@formula("_linalg_solve_ex", backward_only=(1, 2))
def solve(call: OpCall) -> Work:
    matrix, sides = call.inputs[:2]
    factored = on_matrices(matrix, _lu).elementwise_flops
    return Work(elementwise_flops=factored + _substitutions(matrix, sides, 2))


@formula("linalg_tensorsolve")
def tensor_solve(call: OpCall) -> Work:
    rows = call.inputs[1].numel
    matrix = Operand((rows, rows), call.inputs[0].dtype)
    return Work(elementwise_flops=on_matrices(matrix, lambda m, n: _lu(m, n) + 2 * m * m).elementwise_flops)


@formula("linalg_solve_triangular triangular_solve")
def solve_triangular(call: OpCall) -> Work:
    """The older operator has the right-hand sides first."""
    matrix, sides = call.inputs[:2] if call.operation.startswith("aten.linalg_") else (call["A"], call["self"])
    return Work(elementwise_flops=_substitutions(matrix, sides, 1))


@formula("linalg_lu_solve linalg_ldl_solve cholesky_solve _cholesky_solve_helper lu_solve")
def solve_factored(call: OpCall) -> Work:
    """The older operators have the right-hand sides first."""
    is_new = call.operation.startswith("aten.linalg_")
    matrix, sides = (call.inputs[0], call["B"]) if is_new else (call.inputs[1], call.inputs[0])
    return Work(elementwise_flops=_substitutions(matrix, sides, 2))


@formula("linalg_lstsq")
def least_squares(call: OpCall) -> Work:
    """A QR decomposition, its use on the right-hand sides, and a triangular solve."""
    matrix, sides = call.inputs[:2]
    columns = sides.shape[-1] if len(sides.shape) == len(matrix.shape) else 1
    return on_matrices(matrix, lambda m, n: _qr(m, n) + columns * (4 * m * n - min(m, n) ** 2))


@formula("geqrf")
def qr_packed(call: OpCall) -> Work:
    return on_matrices(call.inputs[0], _qr)


@formula("qr linalg_qr")
def qr(call: OpCall) -> Work:
    """Reflections, then the Q they make if it is wanted."""
    if call.get("mode") == "r":
        return qr_packed(call)
    columns = call.outputs[0].shape[-1]
    return on_matrices(call.inputs[0], lambda m, n: _qr(m, n) + _reflected(m, columns, min(m, n)))


@formula("orgqr linalg_householder_product")
def q_of_reflections(call: OpCall) -> Work:
    reflections = call.inputs[1].shape[-1]
    return on_matrices(call.inputs[0], lambda m, n: _reflected(m, n, reflections))


@formula("ormqr")
def times_q(call: OpCall) -> Work:
    reflections, target = call["input2"].shape[-1], call["input3"]
    length = target.shape[-2 if call.get("left", True) else -1]
    return on_matrices(target, lambda m, n: reflections * (m * n // length) * (4 * length - 2 * reflections))


@formula("_linalg_eigh linalg_eigh linalg_eigvalsh")
def symmetric_eigen(call: OpCall) -> Work:
    """To three diagonals and on: 9 n³ with vectors, 4/3 n³ without."""
    vectors = call.get("compute_v", "eigvalsh" not in call.operation)
    return on_matrices(call.inputs[0], lambda n, _: 9 * n**3 if vectors else 4 * n**3 / 3)


@formula("svd linalg_svd _linalg_svd prims.svd")
def svd(call: OpCall) -> Work:
    if not call.get("compute_uv", True):
        return singular_values(call)
    full = call.get("full_matrices", not call.get("some", True))
    return on_matrices(call.inputs[0], lambda m, n: _svd(m, n, full))


@formula("linalg_svdvals linalg_matrix_rank linalg_cond")
def singular_values(call: OpCall) -> Work:
    return on_matrices(call.inputs[0], lambda m, n: 4 * max(m, n) * min(m, n) ** 2 - 4 * min(m, n) ** 3 / 3)


@formula("linalg_pinv pinverse")
def pseudo_inverse(call: OpCall) -> Work:
    """Singular vectors, and their product over the singular values."""
    return on_matrices(call.inputs[0], lambda m, n: _svd(m, n, False) + 2 * m * n * min(m, n))


@formula("_compute_linear_combination")
def linear_combination(call: OpCall) -> Work:
    terms, coefficients = call.inputs[:2]
    return Work(elementwise_flops=2 * terms.numel * coefficients.shape[0])


def _lu(rows: int, columns: int) -> float:
    long, short = max(rows, columns), min(rows, columns)
    return long * short**2 - short**3 / 3


def _qr(rows: int, columns: int) -> float:
    long, short = max(rows, columns), min(rows, columns)
    return 2 * long * short**2 - 2 * short**3 / 3


def _reflected(rows: int, columns: int, reflections: int) -> float:
    return 4 * rows * columns * reflections - 2 * (rows + columns) * reflections**2 + 4 * reflections**3 / 3


def _svd(rows: int, columns: int, full: bool) -> float:
    long, short = max(rows, columns), min(rows, columns)
    return 4 * long**2 * short + 22 * short**3 if full else 6 * long * short**2 + 20 * short**3


def _substitutions(matrix: Operand, sides: Operand, passes: int) -> int:
    """Triangular solves: one multiply and one subtract for every element of the triangle and right-hand side."""
    size = matrix.shape[-1]
    batch = math.prod(matrix.shape[:-2])
    columns = -(-sides.numel // max(batch * size, 1))
    return passes * batch * size * size * columns * _realness(matrix)


def _realness(matrix: Operand) -> int:
    return 4 if matrix.dtype.startswith("complex") else 1


# -- Fourier transforms -----------------------------------------------------------------------------------------------


def transform(lengths: Sequence[int], numel: int, real: bool) -> Work:
    """A transform of `numel` elements along axes of these lengths: 5 n log2 n, half of it where one side is real."""
    size = math.prod(lengths)
    return Work(elementwise_flops=round(5 * numel * math.log2(size) / (2 if real else 1)) if size > 1 else 0)


@formula("_fft_c2c _fft_r2c _fft_c2r prims.fft_c2c prims.fft_r2c prims.fft_c2r")
def transform_of_axes(call: OpCall) -> Work:
    """Along `dim`; the real side, where there is one, has all the elements."""
    whole = call.outputs[0] if "c2r" in call.operation else call.inputs[0]
    return transform([whole.shape[axis] for axis in call["dim"]], whole.numel, "c2c" not in call.operation)


_BY_NAME = [f"aten.fft_{kind}fft{axes}" for kind in ("", "i", "r", "ir", "h", "ih") for axes in ("", "2", "n")]


@formula(*_BY_NAME)
def named_transform(call: OpCall) -> Work:
    """fft, rfft2, irfftn ...: the axes and lengths as torch.fft takes them."""
    data, result = call.inputs[0], call.outputs[0]
    name = call.operation.removeprefix("aten.fft_")
    to_half = name.startswith(("rfft", "ihfft"))
    lengths = call.get("n") if "n" in call.names else call.get("s")
    axes = call.get("dim")
    if axes is None:
        count = len(data.shape) if lengths is None else len(lengths)
        axes = list(range(-count, 0))
    axes = axes if isinstance(axes, list) else [axes]
    sizes = [result.shape[axis] for axis in axes]
    if to_half:  # the last axis of the result is half as long
        last = lengths[-1] if isinstance(lengths, list) and lengths else lengths
        sizes[-1] = last if isinstance(last, int) and last != -1 else data.shape[axes[-1]]
    rest = result.numel // max(math.prod(result.shape[axis] for axis in axes), 1)
    return transform(sizes, rest * math.prod(sizes), to_half or name.startswith(("irfft", "hfft")))


@formula("stft")
def short_time_transform(call: OpCall) -> Work:
    """One transform per frame of the result, after the window."""
    frames, size = call.outputs[0].numel // max(_bins(call), 1), call["n_fft"]
    spectra = transform([size], frames * size, "complex" not in call.inputs[0].dtype)
    return Work(elementwise_flops=spectra.elementwise_flops + frames * size)


@formula("istft")
def inverse_short_time_transform(call: OpCall) -> Work:
    """One transform per frame, the window, and the sum of what overlaps: of the frames and of the window's squares."""
    frames, size = call.inputs[0].numel // max(_bins(call), 1), call["n_fft"]
    spectra = transform([size], frames * size, not call.get("return_complex", False))
    return Work(elementwise_flops=spectra.elementwise_flops + 4 * frames * size)


def _bins(call: OpCall) -> int:
    """Elements of one frame's spectrum, which is stored as complex numbers or pairs."""
    spectrum = call.outputs[0] if "istft" not in call.operation else call.inputs[0]
    paired = "complex" not in spectrum.dtype
    return spectrum.shape[-3] * 2 if paired else spectrum.shape[-2]
