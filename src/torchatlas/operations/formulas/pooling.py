"""Resampling: pooling by the size of its windows, interpolation by the number of its taps (a product and a sum each).

Windows count whole, also where they reach over the edge. How the backward of a pool finds its shape is not a read.
"""

from __future__ import annotations

import math

from torchatlas.operations.formulas.operand_sizes import bytes_of, part_of, per_input, per_result, results, spread
from torchatlas.operations.work import OpCall, Operand, Work, formula, moves_everything

# -- pooling -----------------------------------------------------------------------------------------------------------


def _dimensions(operation: str) -> int:
    return next((count for count in (1, 2, 3) if f"{count}d" in operation), 2)


def _window(call: OpCall) -> int:
    return math.prod(spread(call["kernel_size"], _dimensions(call.operation)))


@formula(
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d mkldnn_max_pool2d mkldnn_max_pool3d",
    "quantized.max_pool1d quantized.max_pool2d",
    "quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d",
)
@formula(
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    "fractional_max_pool2d fractional_max_pool3d",
    backward_only=(1,),
)
def pool(call: OpCall) -> Work:
    """One operation per element of a window; an average divides, too. What no window reaches is not read."""
    x, out, window = call.inputs[0], results(call)[0], _window(call)
    flops = out.numel * (window + ("avg_pool" in call.operation))
    return Work(elementwise_flops=flops, bytes_read=part_of(x, out.numel * window), parallelism=out.numel)


@formula(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward",
)
def max_pool_backward(call: OpCall) -> Work:
    """Adds each gradient where its maximum was."""
    return Work(elementwise_flops=call["grad_output"].numel, bytes_read=bytes_of(call["grad_output"], call["indices"]))


@formula("max_pool2d_backward mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward")
def max_pool_backward_by_search(call: OpCall) -> Work:
    """The maxima are looked for again."""
    return Work(elementwise_flops=call["grad_output"].numel * (_window(call) + 1))


@formula("avg_pool2d_backward avg_pool3d_backward")
def avg_pool_backward(call: OpCall) -> Work:
    """Divides each gradient and adds it to its window."""
    gradient: Operand = call["grad_output"]
    return Work(elementwise_flops=gradient.numel * (_window(call) + 1), bytes_read=gradient.bytes)


formula("max_unpool2d max_unpool3d")(moves_everything)  # each value to where its index says, zeros elsewhere


def _adaptive(whole: Operand, pooled: Operand, dimensions: int) -> int:
    """How many elements the windows have together: window i of n goes from floor(i s / n) to ceil((i + 1) s / n)."""
    planes = math.prod(pooled.shape[:-dimensions])
    sides = zip(whole.shape[-dimensions:], pooled.shape[-dimensions:], strict=True)
    return planes * math.prod(sum(-(-(i + 1) * size // n) - i * size // n for i in range(n)) for size, n in sides)


@formula(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    "mkldnn_adaptive_avg_pool2d",
)
@formula("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", backward_only=(1,))
def adaptive_pool(call: OpCall) -> Work:
    x, out = call.inputs[0], results(call)[0]
    divisions = out.numel if "avg_pool" in call.operation else 0
    flops = _adaptive(x, out, _dimensions(call.operation)) + divisions
    return Work(elementwise_flops=flops, parallelism=out.numel)


@formula(
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward",
    "mkldnn_adaptive_avg_pool2d_backward",
)
def adaptive_avg_pool_backward(call: OpCall) -> Work:
    gradient: Operand = call["grad_output"]
    added = _adaptive(results(call)[0], gradient, _dimensions(call.operation))
    return Work(elementwise_flops=gradient.numel + added, bytes_read=gradient.bytes)


# -- interpolation -----------------------------------------------------------------------------------------------------


@formula(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)
def nearest(call: OpCall) -> Work:
    """Copies."""
    x, out = call.inputs[0], results(call)[0]
    return Work(bytes_read=part_of(x, out.numel))


formula(
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward",
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward",
)(per_input(1))


_TAPS = {"linear1d": 2, "bilinear2d": 4, "trilinear3d": 8, "bicubic2d": 16}


@formula(*(f"aten.upsample_{kind}{suffix}" for kind in _TAPS for suffix in ("", "_backward")))
def interpolate(call: OpCall) -> Work:
    """Each element of the result is gathered from its taps, each of its gradient goes back to them: a product and a
    sum per tap."""
    taps = next(taps for kind, taps in _TAPS.items() if kind in call.operation)
    sampled = call.get("grad_output") or results(call)[0]
    return Work(elementwise_flops=2 * taps * sampled.numel)


@formula(
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa _upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa_backward",
)
def interpolate_smoothly(call: OpCall) -> Work:
    """Rows, then columns, each with as many taps as the scale asks for."""
    backward = call.get("grad_output")
    big, small = (results(call)[0], backward) if backward is not None else (call.inputs[0], results(call)[0])
    width = next(size for kind, size in (("bilinear", 2), ("bicubic", 4), ("lanczos", 6)) if kind in call.operation)
    across, down = (_support(width, big.shape[side], small.shape[side]) for side in (-1, -2))
    rows = math.prod(big.shape[:-1]) * small.shape[-1]
    return Work(elementwise_flops=2 * (rows * across + small.numel * down))


def _support(width: int, before: int, after: int) -> int:
    """Taps along one side: the filter is as much wider as the picture shrinks."""
    return math.ceil(width / 2 * max(before / max(after, 1), 1)) * 2 + 1


# -- sampling at positions of a grid -----------------------------------------------------------------------------------


def _taps(mode: int, dimensions: int) -> int:
    return int({0: 2, 1: 1, 2: 4}[mode] ** dimensions)


def _coordinates(grid: Operand, mode: int) -> int:
    """Per position: scale each coordinate (4), find its neighbours and weights (3), multiply the weights."""
    dimensions = grid.shape[-1]
    per_position = 4 * dimensions + (1 if mode == 1 else 3) * dimensions + (0 if mode == 1 else _taps(mode, dimensions))
    return grid.numel // max(dimensions, 1) * per_position


@formula("grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback cudnn_grid_sampler")
def grid_sample(call: OpCall) -> Work:
    grid, mode = call["grid"], call.get("interpolation_mode", 0)
    taps = _taps(mode, grid.shape[-1])
    sampled = 0 if mode == 1 else 2 * taps * results(call)[0].numel  # the nearest is copied
    return Work(elementwise_flops=_coordinates(grid, mode) + sampled)


@formula(
    "grid_sampler_2d_backward grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback_backward",
    "cudnn_grid_sampler_backward",
)
def grid_sample_backward(call: OpCall) -> Work:
    """To the picture: a product and a sum per tap. To the grid: as much, for each coordinate."""
    grid, mode = call["grid"], call.get("interpolation_mode", 0)
    wanted = call.get("output_mask", [True, True])
    dimensions, gradient = grid.shape[-1], call["grad_output"].numel
    taps = _taps(mode, dimensions)
    to_input = gradient if mode == 1 else 2 * taps * gradient
    to_grid = 0 if mode == 1 else 2 * taps * dimensions * gradient
    return Work(elementwise_flops=_coordinates(grid, mode) + wanted[0] * to_input + wanted[1] * to_grid)


@formula(
    "affine_grid_generator cudnn_affine_grid_generator",
    "affine_grid_generator_backward cudnn_affine_grid_generator_backward",
)
def affine_grid(call: OpCall) -> Work:
    """Each position of the grid times a small matrix; backward, each of its gradient."""
    grid = (call.inputs if "backward" in call.operation else results(call))[0]
    return Work(elementwise_flops=2 * (grid.shape[-1] + 1) * grid.numel)


# -- regions of interest: torchvision's -------------------------------------------------------------------------------


@formula("torchvision.roi_align torchvision.ps_roi_align")
def roi_align(call: OpCall) -> Work:
    """Per output the mean of sampled points, four taps each. Without a sampling ratio their number depends on the
    boxes: then one point per output is counted."""
    points = max(call.get("sampling_ratio", 1), 1) ** 2
    return Work(elementwise_flops=results(call)[0].numel * (points * 9 + 1))


@formula("torchvision._roi_align_backward torchvision._ps_roi_align_backward")
def roi_align_backward(call: OpCall) -> Work:
    points = max(call.get("sampling_ratio", 1), 1) ** 2
    return Work(elementwise_flops=call.inputs[0].numel * points * 8)


# Looks at each element of the boxes; how many they are is not known: at least one per output.
formula("torchvision.roi_pool torchvision.ps_roi_pool")(per_result(1))
formula("torchvision._roi_pool_backward torchvision._ps_roi_pool_backward")(per_input(1))
