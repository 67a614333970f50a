"""What torch's kernels take for granted, checked before a graph from a file calls them.

Most kernels check their arguments. Some trust their caller, which is autograd: that indices lie inside of a tensor, or
that the statistics which a forward pass saved have the size of its channels. A file may say anything. What such a
kernel needs is said here, one function an operator; benchmarks/probe_operators.py finds the kernels. They also count on
memory for every element: a tensor that shows some of its memory several times, an expanded one, is copied for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from torchatlas.errors import InvalidInputError
from torchatlas.registry import Registry
from torchatlas.torch_private import OpOverload, pytree

# More elements than a process can address. Larger numbers overflow in the arithmetic of kernels.
LARGEST_SIZE = 2**47
_UNBOUNDED = ("slice", "slice_backward", "slice_copy", "slice_scatter", "random_", "random", "randint")  # "to the end"
# Kinds of arguments that torch also takes as numbers, with which it then looks up tables.
_ENUMERATIONS = ("ScalarType", "Layout", "MemoryFormat", "QScheme")
# Kernels believe the index tensors of compressed layouts, which torch.empty leaves as memory happens to be; views of
# quantized tensors, and mkldnn's, end the process.
_LAYOUTS = (torch.strided, torch.sparse_coo)
_QUANTIZED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)

# Kernels that need nothing else but memory for every element: they ignore that a stride is 0.
_DENSE = ("median", "nanmedian")
# Kernels that follow a stride of 0, and sum in another order than with a copy: they get memory that they do not read.
_STRIDED = ("native_batch_norm", "native_batch_norm_backward")

_PRECONDITIONS: Registry[Callable[[Any], None]] = Registry("precondition")


def checked(operator: OpOverload) -> Callable[..., Any]:
    """An operator as a function that checks what its kernel does not, and raises InvalidInputError."""
    name, packet = str(operator), operator._schema.name.partition("::")[2]
    precondition = _PRECONDITIONS.get(f"{operator.namespace}.{packet}")
    if packet.startswith("_foreach_"):
        precondition = _equal_lengths
    bounded, kernel = packet not in _UNBOUNDED, operator._op if type(operator) is OpOverload else operator
    returns_views = any(one.alias_info is not None for one in operator._schema.returns)
    needs_memory = packet in _DENSE or (precondition is not None and not returns_views)
    with_memory = _roomy if packet in _STRIDED else _dense
    outputs = [one.name for one in operator._schema.arguments if one.is_out]
    enumerations = [
        (position, one.name) for position, one in enumerate(operator._schema.arguments) if _is_enumeration(one)
    ]

    def run(*args: Any, **kwargs: Any) -> Any:
        for position, key in enumerations:
            if isinstance(args[position] if position < len(args) else kwargs.get(key), int):
                raise InvalidInputError(f"{name} is not run: its argument {key} is a number.")
        if why := _unfit(args, bounded) or _unfit(kwargs.values(), bounded):
            raise InvalidInputError(f"{name} is not run: {why}.")
        if precondition is not None:
            try:
                precondition(_bound(operator, args, kwargs))
            except Exception as error:  # whatever the arguments are: what cannot be checked is not run
                raise InvalidInputError(f"{name} is not run: its arguments do not fit each other ({error}).") from error
        if needs_memory:
            args = tuple(map(with_memory, args))
            kwargs = {key: item if key in outputs else with_memory(item) for key, item in kwargs.items()}
        return _run_with_outputs(kernel, outputs, args, kwargs) if outputs else kernel(*args, **kwargs)

    run.__name__ = run.__qualname__ = f"checked_{name.replace('.', '_')}"  # torch.fx writes it into code
    return run


def _is_enumeration(argument: Any) -> bool:
    return str(argument.real_type).removeprefix("Optional[").removesuffix("]") in _ENUMERATIONS


def _unfit(items: Any, bounded: bool) -> str:
    """What no kernel is to see among arguments, in words; "" if there is nothing."""
    for item in items:
        kind = type(item)
        if kind is int:
            if bounded and not -LARGEST_SIZE <= item <= LARGEST_SIZE:
                return "a number among its arguments is no size of a tensor"
        elif kind is list or kind is tuple:
            if why := _unfit(item, bounded):
                return why
        elif kind is torch.layout or isinstance(item, torch.Tensor):
            if (layout := item if kind is torch.layout else item.layout) not in _LAYOUTS:
                return f"a tensor of the layout {layout} is among its arguments or would be made"
            if kind is not torch.layout and item.is_quantized:
                return "a quantized tensor is among its arguments"
        elif kind is torch.dtype and item in _QUANTIZED:
            return f"it would make a tensor of {item}"
    return ""


def _run_with_outputs(kernel: Any, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator that writes into tensors which its caller brings (out=).

    Kernels give these their shape before they read their inputs, and some ignore their strides. So that neither an
    input changes under their hands nor an element lies outside, a new tensor is written to and then copied.
    """
    out_arguments = {name: kwargs[name] for name in names if name in kwargs}
    made = pytree.tree_map_only(torch.Tensor, _contiguous_like, out_arguments)
    results = kernel(*args, **{**kwargs, **made})
    outputs = {}
    for new, output in zip(pytree.tree_leaves(made), pytree.tree_leaves(out_arguments), strict=True):
        outputs[id(new)] = _laid_out_like(new, output).copy_(new) if new is not output else output
    return pytree.tree_map(lambda item: outputs.get(id(item), item), results)


def _laid_out_like(new: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """A tensor with the layout that a kernel has given to another: with strides of its own only if it resized it."""
    if output.shape == new.shape:
        return output
    output.resize_(new.shape)
    reach = sum((size - 1) * step for size, step in zip(new.shape, new.stride(), strict=True))
    return output.as_strided_(new.shape, new.stride()) if reach < new.numel() else output


def _contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, device=tensor.device)


@cache
def _formal(operator: OpOverload) -> tuple[list[str], dict[str, Any]]:
    arguments = operator._schema.arguments
    return [one.name for one in arguments], {one.name: one.default_value for one in arguments}


def _bound(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SimpleNamespace:
    """Arguments by name."""
    names, defaults = _formal(operator)
    return SimpleNamespace(**{**defaults, **dict(zip(names, args, strict=False)), **kwargs})


# -- what preconditions are made of ------------------------------------------------------------------------------------


def _need(holds: Any, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _shape(name: str, tensor: Any, shape: Sequence[int]) -> None:
    """A tensor that may be absent has this shape."""
    _need(tensor is None or list(tensor.shape) == list(shape), f"{name} has not the shape {list(shape)}")


def _inside(name: str, indices: Any, size: int) -> None:
    """Every index is at least 0 and less than `size`."""
    if indices.numel():
        low, high = (int(one) for one in torch.aminmax(indices))
        _need(low >= 0 and high < size, f"{name} from {low} to {high}, of {size}")


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without bytes: an operator that is given such only finds out the shapes of its results."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_overlapping(tensor: torch.Tensor) -> bool:
    """Whether a tensor has more elements than the memory that it shows."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.numel() > reach


def _dense(item: Any) -> Any:
    plain = isinstance(item, torch.Tensor) and item.layout is torch.strided and not item.is_nested
    return item.contiguous() if plain and _is_overlapping(item) else item


def _roomy(item: Any) -> Any:
    """An expanded tensor with the same strides, on memory with room for all its elements."""
    if _dense(item) is item:
        return item
    once = item[tuple(slice(0, 1) if step == 0 else slice(None) for step in item.stride())]
    if _is_overlapping(once):
        return _dense(item)
    room = item.new_zeros(item.numel())
    room.as_strided(once.shape, once.stride()).copy_(once)
    return room.as_strided(item.shape, item.stride())


def _equal_lengths(a: Any) -> None:
    """Where gradients are recorded, torch takes the elements of all lists before it compares how many they are."""
    lists = [item for item in vars(a).values() if isinstance(item, (list, tuple))]
    _need(len({len(item) for item in lists}) <= 1, "its lists are not of one length")


# -- memory ------------------------------------------------------------------------------------------------------------


@_PRECONDITIONS.add("aten.as_strided", "aten.as_strided_", "aten.as_strided_copy", "aten.as_strided_scatter")
def _as_strided(a: Any) -> None:
    offset = a.self.storage_offset() if a.storage_offset is None else a.storage_offset
    _need(len(a.size) == len(a.stride) and min([0, offset, *a.size, *a.stride]) == 0, "negative sizes or strides")
    reach = offset + sum((size - 1) * step for size, step in zip(a.size, a.stride, strict=True)) + 1
    held = a.self.untyped_storage().nbytes() // a.self.element_size()
    _need(0 in a.size or reach <= held, f"it reaches to {reach} of {held}")


@_PRECONDITIONS.add("aten.empty_strided", "aten.new_empty_strided")
def _empty_strided(a: Any) -> None:
    _need(len(a.size) == len(a.stride) and min([0, *a.size, *a.stride]) == 0, "negative sizes or strides")
    reach = sum((size - 1) * step for size, step in zip(a.size, a.stride, strict=True)) + 1
    _need(0 in a.size or reach <= LARGEST_SIZE, f"it takes {reach} elements")


@_PRECONDITIONS.add("aten.unfold_backward")
def _unfold_backward(a: Any) -> None:
    made = torch.empty(list(a.input_sizes), device="meta").unfold(a.dim, a.size, a.step)
    _shape("gradient", a.grad_in, made.shape)


@_PRECONDITIONS.add("aten._chunk_cat")
def _chunk_cat(a: Any) -> None:
    _need(all(one.dim() for one in a.tensors), "a tensor without dimensions")


# -- arithmetic --------------------------------------------------------------------------------------------------------


@_PRECONDITIONS.add("aten.div", "aten.div_", "aten.divide", "aten.divide_")
def _divide(a: Any) -> None:
    """The least number divided by -1 ends the process, if it is rounded toward zero."""
    if getattr(a, "rounding_mode", None) == "trunc" and not (a.self.is_floating_point() or a.self.is_complex()):
        least = a.self.dtype != torch.bool and bool((a.self == torch.iinfo(a.self.dtype).min).any())
        other = a.other if isinstance(a.other, torch.Tensor) else torch.tensor(a.other)
        _need(not least or not bool((other == -1).any()), "the least number is divided by -1")


@_PRECONDITIONS.add("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def _softmax_backward(a: Any) -> None:
    _shape("gradient", a.grad_output, a.output.shape)


@_PRECONDITIONS.add("aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r")
def _fft(a: Any) -> None:
    _need(a.dim and len({*a.dim}) == len(a.dim), "a dimension is named twice")
    _need(min(a.dim) >= 0 and max(a.dim) < a.self.dim(), "the dimensions are not of the input")
    if hasattr(a, "last_dim_size"):
        needed = a.last_dim_size // 2 + 1
        _need(a.last_dim_size > 0 and a.self.size(a.dim[-1]) == needed, f"the last size is not {needed}")


@_PRECONDITIONS.add("aten.linalg_lu_solve")
def _lu_solve(a: Any) -> None:
    rows = a.LU.size(-1)
    _shape("LU", a.LU, [*a.LU.shape[:-2], rows, rows])
    _shape("pivots", a.pivots, a.LU.shape[:-1])
    _inside("pivots", a.pivots - 1, rows)
    _need(a.B.dim() >= 2 and a.B.size(-2 if a.left else -1) == rows, f"B has not {rows} rows")


@_PRECONDITIONS.add("aten.linalg_lstsq")
def _least_squares(a: Any) -> None:
    _need(a.driver != "gelss" or a.b.numel() or not a.self.numel(), "no right-hand side")  # LAPACK reads one


@_PRECONDITIONS.add("aten.pdist")
def _pdist(a: Any) -> None:
    _need(a.self.numel(), "no elements")  # its backward kernel divides by their number


@_PRECONDITIONS.add("aten.rrelu_with_noise", "aten.rrelu_with_noise_")
def _rrelu(a: Any) -> None:
    _shape("noise", a.noise, a.self.shape)
    _need(not _is_overlapping(a.noise), "noise has more elements than memory")


# -- normalisation -----------------------------------------------------------------------------------------------------


@_PRECONDITIONS.add(
    "aten._batch_norm_no_update",
    "aten._batch_norm_with_update",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
    "aten.native_batch_norm",
)
def _batch_norm(a: Any) -> None:
    _need(a.input.dim() >= 1, "no channels")
    for name in ("weight", "bias", "running_mean", "running_var"):
        _shape(name, getattr(a, name, None), a.input.shape[1:2])
    if not getattr(a, "training", False):  # some forms have statistics of the batch alone, or none of it
        _need(getattr(a, "running_mean", None) is not None and a.running_var is not None, "no running statistics")


@_PRECONDITIONS.add("aten.batch_norm")
def _batch_norm_unless_empty(a: Any) -> None:
    if a.input.numel():  # otherwise no kernel runs
        _batch_norm(a)


@_PRECONDITIONS.add("aten.native_batch_norm_backward", "aten.batch_norm_backward")
def _batch_norm_backward(a: Any) -> None:
    trains, deviation = (a.train, a.save_invstd) if hasattr(a, "train") else (a.update, a.save_var)
    _need(a.input.dim() >= 2 and (a.input.numel() or hasattr(a, "train")), "no channels or no elements")
    _shape("gradient", a.grad_out, a.input.shape)
    used = (a.save_mean, deviation) if trains else (a.running_mean, a.running_var)
    _need(all(one is not None for one in used), "no statistics")
    for one in (a.weight, a.running_mean, a.running_var, *used):
        _shape("weight or statistic", one, a.input.shape[1:2])


@_PRECONDITIONS.add("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
def _layer_norm_backward(a: Any) -> None:
    normalized = list(a.normalized_shape)
    outer = a.input.dim() - len(normalized)
    _need(normalized and list(a.input.shape[outer:]) == normalized, "the normalized shape is not the input's")
    _shape("gradient", a.grad_out, a.input.shape)
    for one in (getattr(a, "mean", None), a.rstd):
        _shape("statistic", one, [*a.input.shape[:outer], *[1] * len(normalized)])
    for one in (a.weight, getattr(a, "bias", None)):
        _shape("weight or bias", one, normalized)


@_PRECONDITIONS.add("aten.native_group_norm")
def _group_norm(a: Any) -> None:
    _need(a.group > 0, "no groups")


@_PRECONDITIONS.add("aten.native_group_norm_backward")
def _group_norm_backward(a: Any) -> None:
    _need(a.group > 0 and a.C % a.group == 0, f"{a.C} channels are not in {a.group} groups")
    # torch 2.13 writes the gradient of a channels-last input even if it is not wanted, and there is no memory for it.
    _need(a.output_mask[0] or a.input.is_contiguous(), "no gradient of a channels-last input is wanted")
    _need(
        list(a.input.shape[:2]) == [a.N, a.C] and math.prod(a.input.shape[2:]) == a.HxW, "the sizes are not the input's"
    )
    _shape("gradient", a.grad_out, a.input.shape)
    for one in (a.mean, a.rstd):
        _shape("statistic", one, [a.N, a.group])
    _shape("weight", a.weight, [a.C])


@_PRECONDITIONS.add("aten._weight_norm", "aten._weight_norm_interface", "aten._weight_norm_interface_backward")
def _weight_norm(a: Any) -> None:
    v, g = (a.v, a.g) if hasattr(a, "v") else (a.saved_v, a.saved_g)
    _need(v.numel() and a.dim in (0, v.dim() - 1), "it norms the first or the last dimension")
    for one in (g, getattr(a, "saved_norms", None)):
        _need(one is None or one.numel() == v.size(a.dim), "there is not one norm for each row")
    _shape("gradient", getattr(a, "grad_w", None), v.shape)


# -- pooling, padding, resampling --------------------------------------------------------------------------------------


@_PRECONDITIONS.add("aten.max_pool1d", "aten.max_pool1d_with_indices")
def _max_pool1d(a: Any) -> None:
    size, padding = a.self.size(-1), max([0, *a.padding])
    _need(max(a.kernel_size) <= size + 2 * padding and padding <= max(a.kernel_size), "the kernel exceeds the input")


@_PRECONDITIONS.add(
    "aten._adaptive_avg_pool2d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d",
    "aten.adaptive_avg_pool3d",
    "aten.adaptive_max_pool1d",
    "aten.adaptive_max_pool2d",
    "aten.adaptive_max_pool3d",
)
def _adaptive_pool(a: Any) -> None:
    _need(min(a.output_size) > 0, "an output without elements")


def _max_pool_backward(forward: Any, spatial: int) -> Callable[[Any], None]:
    def check(a: Any) -> None:
        made, _ = forward(_meta(a.self), a.kernel_size, a.stride, a.padding, a.dilation, a.ceil_mode)
        _shape("gradient", a.grad_output, made.shape)
        _shape("indices", a.indices, made.shape)
        _inside("indices", a.indices, math.prod(a.self.shape[-spatial:]))

    return check


def _avg_pool_backward(forward: Any) -> Callable[[Any], None]:
    def check(a: Any) -> None:
        rest = (a.ceil_mode, a.count_include_pad, a.divisor_override)
        made = forward(_meta(a.self), a.kernel_size, a.stride, a.padding, *rest)
        _shape("gradient", a.grad_output, made.shape)

    return check


def _adaptive_backward(spatial: int) -> Callable[[Any], None]:
    def check(a: Any) -> None:
        _need(a.self.dim() in (spatial + 1, spatial + 2), f"not {spatial} dimensions")
        _shape("gradient", a.grad_output, [*a.self.shape[:-spatial], *a.grad_output.shape[-spatial:]])
        _need(0 not in (*a.self.shape[-spatial:], *a.grad_output.shape[-spatial:]), "no elements")
        if hasattr(a, "indices"):
            _shape("indices", a.indices, a.grad_output.shape)
            _inside("indices", a.indices, math.prod(a.self.shape[-spatial:]))

    return check


def _pad(spatial: int) -> Callable[[Any], None]:
    def check(a: Any) -> None:
        _need(len(a.padding) == 2 * spatial and min(a.padding) >= 0, f"the padding is not {2 * spatial} sizes")
        _need(a.self.dim() in (spatial + 1, spatial + 2), f"not {spatial} dimensions")
        if hasattr(a, "grad_output"):
            pads = reversed([sum(a.padding[at : at + 2]) for at in range(0, 2 * spatial, 2)])
            made = [size + pad for size, pad in zip(a.self.shape[-spatial:], pads, strict=True)]
            _shape("gradient", a.grad_output, [*a.self.shape[:-spatial], *made])

    return check


for _dimensions in (1, 2, 3):
    for _kind in ("reflection", "replication"):
        _named = f"aten.{_kind}_pad{_dimensions}d"
        _PRECONDITIONS.add(_named, f"{_named}_backward")(_pad(_dimensions))
    if _dimensions > 1:
        _max_pool = getattr(torch.ops.aten, f"max_pool{_dimensions}d_with_indices").default
        _avg_pool = getattr(torch.ops.aten, f"avg_pool{_dimensions}d").default
        _PRECONDITIONS.add(f"aten.max_pool{_dimensions}d_with_indices_backward")(
            _max_pool_backward(_max_pool, _dimensions)
        )
        _PRECONDITIONS.add(f"aten.avg_pool{_dimensions}d_backward")(_avg_pool_backward(_avg_pool))
        _PRECONDITIONS.add(
            f"aten._adaptive_avg_pool{_dimensions}d_backward", f"aten.adaptive_max_pool{_dimensions}d_backward"
        )(_adaptive_backward(_dimensions))


@_PRECONDITIONS.add("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def _grid_sampler_backward(a: Any) -> None:
    _shape("gradient", a.grad_output, [*a.input.shape[:2], *a.grid.shape[1:-1]])


@_PRECONDITIONS.add("aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa")
def _upsample_antialiased(a: Any) -> None:
    scales = a.scale_factors if hasattr(a, "scale_factors") else [a.scales_h, a.scales_w]
    image = a.input if hasattr(a, "input") else a.self
    for size, made, scale in zip(image.shape[-2:], a.output_size or [0, 0], scales or [None, None], strict=True):
        if scale is not None and a.output_size is not None:
            _need(made == math.floor(size * scale), f"{size} scaled by {scale} is not {made}")


# -- attention and recurrent layers ------------------------------------------------------------------------------------


@_PRECONDITIONS.add("aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention_for_cpu")
def _attention(a: Any) -> None:
    query, key, value = a.query, a.key, a.value
    _need(min(query.dim(), key.dim(), value.dim()) >= 2, "fewer than two dimensions")
    _need(query.size(-1) == key.size(-1), "queries and keys differ in size")
    _shape("value", value, [*key.shape[:-1], value.size(-1)])
    _need(query.numel() and key.numel() and value.numel(), "no elements")
    if query.dim() == 4 == key.dim():
        _need(query.size(0) == key.size(0) and query.size(1) % max(1, key.size(1)) == 0, "the heads do not fit")
    if a.attn_mask is not None:
        torch.broadcast_to(_meta(a.attn_mask), [*query.shape[:-1], key.size(-2)])


@_PRECONDITIONS.add("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(a: Any) -> None:
    _attention(a)
    _need(a.query.dim() == a.key.dim() == 4 and a.value.size(-1) == a.query.size(-1), "not four dimensions")
    _shape("output", a.out, a.query.shape)
    _shape("gradient", a.grad_out, a.query.shape)
    _shape("logsumexp", a.logsumexp, a.query.shape[:-1])


def _recurrent(gates: int) -> Callable[[Any], None]:
    def check(a: Any) -> None:
        states = list(a.hx) if isinstance(a.hx, (list, tuple)) else [a.hx]
        directions, hidden, made = 2 if a.bidirectional else 1, states[-1].size(-1), states[0].size(-1)
        _need(a.input.dim() == 3 and len(states) == (2 if gates == 4 else 1), "it takes sequences and states")
        batch, size = a.input.size(0 if a.batch_first else 1), a.input.size(2)
        _shape("hidden state", states[0], [a.num_layers * directions, batch, made])
        _shape("cell state", states[-1], [a.num_layers * directions, batch, hidden])
        weights = iter(a.params)
        for layer in range(a.num_layers):
            for _ in range(directions):
                _shape("weight", next(weights), [gates * hidden, made * directions if layer else size])
                _shape("weight", next(weights), [gates * hidden, made])
                for _ in range(2 if a.has_biases else 0):
                    _shape("bias", next(weights), [gates * hidden])
                if made != hidden:
                    _shape("projection", next(weights), [made, hidden])
        _need(next(weights, None) is None, "it has more weights than layers")

    return check


for _cell, _gates in {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}.items():
    _PRECONDITIONS.add(f"aten.{_cell}")(_recurrent(_gates))


@_PRECONDITIONS.add("aten._pad_packed_sequence")
def _pad_packed_sequence(a: Any) -> None:
    sizes = a.batch_sizes
    _need(sizes.dim() == 1 and sizes.numel() and int(sizes[-1]) > 0, "no batch sizes")
    _need(bool((sizes[1:] <= sizes[:-1]).all()), "batch sizes grow")
    _need(int(sizes.sum()) == a.data.size(0), "batch sizes are not of the data")


@_PRECONDITIONS.add("aten.mkldnn_rnn_layer")
def _rnn_layer(a: Any) -> None:
    _rnn_shapes(a, (a.weight0, a.weight1, a.weight2, a.weight3), (a.hx_, a.cx_))


def _rnn_shapes(a: Any, weights: Sequence[Any], states: Sequence[Any]) -> None:
    gates, hidden, first = {2: 4, 3: 3}[a.mode], a.hidden_size, a.input
    _need(first.dim() == 3 and not a.batch_sizes and hidden > 0, "it takes sequences of one length")
    expected = ([gates * hidden, first.size(2)], [gates * hidden, hidden], [gates * hidden], [gates * hidden])
    for weight, shape in zip(weights, expected, strict=True):
        if len(shape) == 2 or a.has_biases:
            _shape("weight", weight, shape)
    for state in states:
        _need(list(state.shape[-2:]) == [first.size(1), hidden], "a state has not the size of the batch")
        _need(state.numel() == first.size(1) * hidden, "a state is of more than one layer")


@_PRECONDITIONS.add("aten.mkldnn_rnn_layer_backward")
def _rnn_layer_backward(a: Any) -> None:
    """The workspace is bytes that only the forward kernel knows how to lay out: it is run once more to see how many."""
    weights = (a.weight1, a.weight2, a.weight3, a.weight4)
    _rnn_shapes(a, weights, (a.hx_, a.cx_tmp))
    settings = (a.mode, a.hidden_size, a.num_layers, a.has_biases, a.bidirectional, a.batch_first, True)
    forward = torch.ops.aten.mkldnn_rnn_layer.default
    with torch.enable_grad():  # without it there is no workspace
        made = forward(*map(_dense, (a.input, *weights, a.hx_, a.cx_tmp)), a.reverse, a.batch_sizes, *settings)
    for name, one, like in zip(
        ("output", "hy_", "cy_", "workspace"), (a.output, a.hy_, a.cy_, a.workspace), made, strict=True
    ):
        _need(one.numel() == like.numel() and one.dtype is like.dtype, f"{name} has not the size that it had")
    for name, one, like in zip(("output", "hy", "cy"), (a.grad_output, a.grad_hy, a.grad_cy), made, strict=False):
        _shape(f"the gradient of {name}", one, like.shape)


# -- embeddings and losses ---------------------------------------------------------------------------------------------


@_PRECONDITIONS.add("aten.embedding_dense_backward")
def _embedding_backward(a: Any) -> None:
    _shape("gradient", a.grad_output, [*a.indices.shape, a.grad_output.size(-1)])
    _inside("indices", a.indices, a.num_weights)


@_PRECONDITIONS.add("aten._embedding_bag", "aten._embedding_bag_forward_only", "aten.embedding_bag")
def _embedding_bag(a: Any) -> None:
    _need(a.indices.dim() == 1 and a.offsets.dim() == 1 and a.weight.dim() == 2, "indices and offsets are lists")
    _need(a.offsets.numel() > int(a.include_last_offset), "no bags")
    _inside("indices", a.indices, a.weight.size(0))
    _offsets(a)
    _shape("per_sample_weights", a.per_sample_weights, a.indices.shape)


def _offsets(a: Any) -> None:
    if a.offsets.numel():
        _inside("offsets", a.offsets, a.indices.numel() + 1)
        _need(bool((a.offsets[1:] >= a.offsets[:-1]).all()) and int(a.offsets[0]) == 0, "offsets are not in order")


@_PRECONDITIONS.add("aten._embedding_bag_backward", "aten._embedding_bag_dense_backward")
def _embedding_bag_backward(a: Any) -> None:
    bags, size = a.grad.shape
    _inside("indices", a.indices, a.num_weights)
    if hasattr(a, "offsets"):
        _offsets(a)
    if a.offset2bag.numel() or not hasattr(a, "offsets"):
        _shape("offset2bag", a.offset2bag, a.indices.shape)
        _inside("offset2bag", a.offset2bag, bags)
    else:  # the kernel finds the bag of each index by itself; offsets may also say where the last bag ends
        filled = int((a.offsets < a.indices.numel()).sum())
        _need(0 < filled <= bags or not a.indices.numel(), "offsets are not of the bags")
    _shape("bag_size", a.bag_size, [bags])
    _shape("per_sample_weights", a.per_sample_weights, a.indices.shape)
    if a.mode == 2:
        _shape("maximum_indices", a.maximum_indices, [bags, size])
        _need(not a.maximum_indices.numel() or int(a.maximum_indices.max()) < a.num_weights, "a maximum is outside")
        _need(not a.maximum_indices.numel() or int(a.maximum_indices.min()) >= -1, "a maximum is outside")


@_PRECONDITIONS.add("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def _nll_loss_backward(a: Any) -> None:
    scores = a.self if a.self.dim() > 1 else a.self.unsqueeze(0)
    target = a.target.reshape(1) if a.self.dim() == 1 else a.target
    _shape("target", target, [*scores.shape[:1], *scores.shape[2:]])
    _inside("target", target[target != a.ignore_index], scores.size(1))
    _shape("weight", a.weight, scores.shape[1:2])
    each = a.reduction == 0 and a.self.dim() > 1
    _need(a.grad_output.numel() == (target.numel() if each else 1), "the gradient is not of the loss")
    _need(not each or a.grad_output.shape == a.target.shape, "the gradient is not of the loss")
    _need(a.total_weight.numel() == 1, "the total weight is not one number")


@_PRECONDITIONS.add("aten.smooth_l1_loss_backward")
def _smooth_l1_loss_backward(a: Any) -> None:
    _need(
        a.self.is_floating_point() and a.target.is_floating_point(), "whole numbers"
    )  # divided by beta, which is 0 then


# -- optimizers --------------------------------------------------------------------------------------------------------


@_PRECONDITIONS.add("aten._fused_adam_", "aten._fused_adamw_", "aten._fused_sgd_", "aten._fused_adagrad_")
def _fused_optimizer(a: Any) -> None:
    """These walk over the memory of a parameter, its gradient and its state with one index."""
    names = "grads exp_avgs exp_avg_sqs max_exp_avg_sqs momentum_buffer_list state_sums"
    optional = () if getattr(a, "amsgrad", False) else ("max_exp_avg_sqs",)
    optional = (*optional, "momentum_buffer_list") if getattr(a, "momentum", 0) == 0 else optional
    for name in names.split():
        tensors = getattr(a, name, None)
        if tensors is None or (not tensors and name in optional):
            continue
        _need(len(tensors) == len(a.self), f"{name} are not as many as parameters")
        for tensor, parameter in zip(tensors, a.self, strict=True):
            _shape(name, tensor, parameter.shape)
            strides = zip(tensor.stride(), parameter.stride(), tensor.shape, strict=True)
            same = all(one == other for one, other, size in strides if size > 1)
            _need(same and tensor.dtype is parameter.dtype, f"{name} do not lie in memory like their parameters")
    _need(all(_is_dense(one) for one in a.self), "a parameter has gaps or shows memory twice")
    if hasattr(a, "state_steps"):
        steps = [one.numel() == 1 for one in a.state_steps]
        _need(len(steps) == len(a.self) and all(steps), "there is not one step for each parameter")
    for one in (a.grad_scale, a.found_inf, getattr(a, "lr", None)):
        _need(not isinstance(one, torch.Tensor) or one.numel() == 1, "a scale is not one number")


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills a stretch of memory without gaps."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.numel() == 0 or reach == tensor.numel()
