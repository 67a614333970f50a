"""Valid calls of operators that no sample reaches: made from calls of related operators, or from the schema alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

import torch

from probing.calls import CALLS_KEPT, loaded, saved

SHAPES = ((2, 3), (3, 3), (4,), (), (2, 3, 4), (2, 3, 4, 4), (2, 3, 4, 4, 4))
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
STRINGS = {"rounding_mode": "trunc", "reduce": "add", "ord": "fro"}  # by the name of the argument


def overload(name: str) -> Any:
    """aten.add.Tensor -> torch.ops.aten.add.Tensor"""
    namespace, packet, which = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which)


def related_calls(calls: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    """Calls of the in-place and out= forms of operators, from those of the form that returns something new."""
    made: dict[str, list[bytes]] = {}
    for name, known in calls.items():
        if not name.startswith("aten.") or name.count(".") != 2:
            continue
        operator = overload(name)
        for other in _other_forms(operator):
            if str(other) not in calls:
                found = [call for each in known if (call := _with_outputs(operator, other, each)) is not None]
                if found:
                    made.setdefault(str(other), []).extend(found)
    return made


def _other_forms(operator: Any) -> Iterator[Any]:
    """Operators of the same name, or with an underscore, that take the same and perhaps outputs to write to."""
    inputs = _inputs(operator)
    packet = operator._schema.name.partition("::")[2]
    for name in (packet, f"{packet}_"):
        found = getattr(torch.ops.aten, name, None)
        for which in found.overloads() if found is not None else ():
            other = getattr(found, which)
            if other is not operator and _inputs(other) == inputs:
                yield other


def _inputs(operator: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in operator._schema.arguments if not one.is_out]


def _with_outputs(operator: Any, other: Any, call: bytes) -> bytes | None:
    args, kwargs = loaded(call)
    outputs = [one.name for one in other._schema.arguments if one.is_out]
    try:
        if outputs:
            results = operator(*args, **kwargs)
            results = results if isinstance(results, tuple | list) else [results]
            args, kwargs = loaded(call)
            kwargs.update(zip(outputs, map(torch.zeros_like, results), strict=True))
    except Exception:
        return None
    return _if_it_runs(other, args, kwargs)


def _if_it_runs(operator: Any, args: list[Any], kwargs: dict[str, Any]) -> bytes | None:
    call = saved(args, kwargs)
    try:
        with torch.no_grad():
            operator(*args, **kwargs)
    except Exception:
        return None
    return call


# -- from the schema ---------------------------------------------------------------------------------------------------


def schema_calls(name: str) -> list[bytes]:
    """Calls that an operator accepts, with tensors of a few shapes and dtypes and with small numbers."""
    operator = overload(name)
    torch.manual_seed(0)
    if name in BY_HAND:
        calls = [_if_it_runs(operator, list(args), kwargs) for args, kwargs in BY_HAND[name]()]
    else:
        choices = product(DTYPES, SHAPES, (1, 2, 0), (False, True))
        calls = (_if_it_runs(operator, *_arguments(operator, *choice)) for choice in choices)
    return list(islice((call for call in calls if call is not None), CALLS_KEPT))


def _arguments(
    operator: Any, dtype: torch.dtype, shape: tuple[int, ...], number: int, optional: bool
) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for one in operator._schema.arguments:
        if one.has_default_value() and (not optional or one.kwarg_only):
            value = one.default_value
            if "ScalarType" in str(one.real_type) and value is not None:
                continue  # the schema has the number of a dtype
        else:
            value = _value(one, shape, dtype, number)
        if one.kwarg_only:
            kwargs[one.name] = value
        else:
            args.append(value)
    return args, kwargs


def _value(argument: Any, shape: tuple[int, ...], dtype: torch.dtype, number: int) -> Any:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if kind.startswith("List["):
        inner = kind.removeprefix("List[").removesuffix("]")
        if inner.startswith("Tensor"):
            return [_tensor(shape, dtype), _tensor(shape, dtype)]
        return [float(number) if inner in ("number", "float") else number] * (argument.N or 2)
    if kind == "Tensor":
        return _tensor(shape, dtype)
    if kind == "Generator" or argument.name == "memory_format":
        return None
    if kind == "Device":
        return torch.device("cpu")
    if kind == "str":
        return STRINGS.get(argument.name, "sum")
    if argument.name == "dtype":
        return dtype
    return {"bool": bool, "float": float}.get(kind, int)(number)


def _tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    random = torch.rand(shape) * 2 if dtype.is_floating_point or dtype.is_complex else torch.randint(0, 2, shape)
    return random.to(dtype)


# -- by hand: what fits together only if one knows the operator --------------------------------------------------------

r = torch.randn
Made = list[tuple[tuple[Any, ...], dict[str, Any]]]


def _recurrent(gates: int, states: int) -> Callable[[], Made]:
    def calls() -> Made:
        cells = [r(gates * 4, 3), r(gates * 4, 4), r(gates * 4), r(gates * 4)]
        deeper = [r(gates * 4, 8), r(gates * 4, 4), r(gates * 4), r(gates * 4)]
        one = [r(1, 2, 4)] * states if states > 1 else r(1, 2, 4)
        four = [r(4, 2, 4)] * states if states > 1 else r(4, 2, 4)
        return [
            ((r(5, 2, 3), one, cells, True, 1, 0.0, False, False, False), {}),
            ((r(2, 5, 3), four, [*cells * 2, *deeper * 2], True, 2, 0.0, True, True, True), {}),
        ]

    return calls


def _recurrent_cell(gates: int, states: int) -> Callable[[], Made]:
    def calls() -> Made:
        state = [r(2, 4)] * states if states > 1 else r(2, 4)
        return [((r(2, 3), state, r(gates * 4, 3), r(gates * 4, 4), r(gates * 4), r(gates * 4)), {})]

    return calls


def _windows() -> Made:
    return [((9,), {}), ((0,), {}), ((9,), {"dtype": torch.float64})]


def _convolution(*rest: Any) -> Callable[[], Made]:
    return lambda: [
        ((r(2, 4, 9, 9), r(6, 2, 3, 3), r(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 2, False, False, *rest), {}),
        ((r(2, 4, 9), r(4, 6, 3), None, [2], [1], [1], True, [1], 1, False, False, *rest), {}),
    ]


def _bags(rest: tuple[Any, ...]) -> Callable[[], Made]:
    indices, offsets = torch.tensor([1, 2, 9]), torch.tensor([0, 2])
    return lambda: [((r(10, 3), indices, offsets, False, mode, False, None, *rest), {}) for mode in (0, 1, 2)]


def _bags_backward() -> Made:
    gradient, indices, bag_of_index, bag_size = r(2, 3), torch.tensor([1, 2, 9]), torch.tensor([0, 0, 1]), [2, 1]
    given = gradient, indices, bag_of_index, torch.tensor(bag_size)
    largest = torch.tensor([[1, 2, 1], [9, 9, 9]])
    return [((*given, largest, 10, False, mode, None), {}) for mode in (0, 1, 2)]


def _optimizer(states: int, **settings: Any) -> Callable[[], Made]:
    def calls() -> Made:
        steps = [torch.tensor(1.0), torch.tensor(1.0)]
        lists = [[torch.rand(2, 3), torch.rand(4)] for _ in range(2 + states)]
        if "beta1" in settings:
            lists += [[], steps]
        elif "lr_decay" in settings:
            lists += [steps]
        return [(tuple(lists), {"lr": torch.tensor(0.1), "weight_decay": 0.0, "maximize": False, **settings})]

    return calls


def _rnn_layer_backward() -> Made:
    weights, states = (r(16, 3), r(16, 4), r(16), r(16)), (r(2, 4), r(2, 4))
    given = (r(5, 2, 3), *weights, *states)
    with torch.enable_grad():  # otherwise there is no workspace
        made = torch.ops.aten.mkldnn_rnn_layer.default(*given, False, [], 2, 4, 1, True, False, False, True)
    *outputs, workspace = (one.detach() for one in made)
    rest = (torch.ones_like(outputs[0]), None, None, False, 2, 4, 1, True, True, False, [], False, workspace)
    return [((*given, *outputs, *rest), {})]


def _batch_norm() -> Made:
    return [((r(2, 3, *spatial), *(torch.rand(3) for _ in range(4)), 0.1, 1e-5), {}) for spatial in ((4, 4), (5,), ())]


def _foreach_scaled() -> Made:
    lists = ([r(2, 3), r(4)] for _ in range(3))
    return [((*lists, torch.rand(2)), {})]


BY_HAND: dict[str, Callable[[], Made]] = {
    "aten.lstm.input": _recurrent(4, 2),
    "aten.gru.input": _recurrent(3, 1),
    "aten.rnn_tanh.input": _recurrent(1, 1),
    "aten.rnn_relu.input": _recurrent(1, 1),
    "aten.lstm_cell.default": _recurrent_cell(4, 2),
    "aten.gru_cell.default": _recurrent_cell(3, 1),
    "aten.rnn_tanh_cell.default": _recurrent_cell(1, 1),
    "aten.rnn_relu_cell.default": _recurrent_cell(1, 1),
    "aten._convolution.default": _convolution(True, True),
    "aten._convolution.deprecated": _convolution(True),
    "aten._convolution_mode.default": lambda: [
        ((r(2, 4, 9, 9), r(6, 2, 3, 3), r(6), [1, 1], mode, [1, 1], 2), {}) for mode in ("same", "valid")
    ],
    "aten.conv_tbc.default": lambda: [((r(9, 2, 4), r(3, 4, 6), r(6), 1), {})],
    "aten._addmm_activation.default": lambda: [((r(4), r(2, 3), r(3, 4)), {}), ((r(2, 4), r(2, 3), r(3, 4)), {})],
    "aten.chain_matmul.default": lambda: [(([r(2, 3), r(3, 4), r(4, 2)],), {})],
    "aten.linalg_matmul.default": lambda: [((r(2, 3), r(3, 4)), {}), ((r(5, 2, 3), r(3)), {})],
    "aten.embedding_bag.default": _bags(()),
    "aten._embedding_bag_forward_only.default": _bags(()),
    "aten._embedding_bag_dense_backward.default": _bags_backward,
    "aten._weight_norm.default": lambda: [((r(3, 4), r(3, 1), 0), {}), ((r(3, 4, 2), r(1, 1, 2), 2), {})],
    "aten.nll_loss.default": lambda: [((r(4, 3), torch.tensor([0, 1, 2, 1]), torch.rand(3)), {})],
    "aten.nll_loss2d.default": lambda: [((r(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64), torch.rand(3)), {})],
    "aten._pad_packed_sequence.default": lambda: [
        ((r(6, 3), torch.tensor([3, 2, 1]), first, 0.0, 4), {}) for first in (False, True)
    ],
    "aten._pack_padded_sequence.default": lambda: [
        ((r(3, 3, 4), torch.tensor([3, 2, 1]), False), {}),
        ((r(3, 3, 4), torch.tensor([3, 2, 1]), True), {}),
    ],
    "aten.pad_sequence.default": lambda: [(([r(3, 2), r(5, 2)], True, 0.0), {}), (([r(3), r(5)],), {})],
    "aten._pad_circular.default": lambda: [((r(2, 3, 4, 4), [1, 2, 1, 1]), {}), ((r(2, 3, 4), [1, 1]), {})],
    "aten._pad_enum.default": lambda: [((r(2, 3, 4, 4), [1, 2, 1, 1], mode), {}) for mode in (0, 1, 2, 3)],
    "aten._grid_sampler_2d_cpu_fallback.default": lambda: [
        ((r(2, 3, 4, 4), r(2, 5, 5, 2), mode, padding, False), {}) for mode in (0, 1, 2) for padding in (0, 1, 2)
    ],
    "aten._upsample_bicubic2d_aa.default": lambda: [((r(2, 3, 4, 4), [8, 3], align), {}) for align in (False, True)],
    "aten._upsample_bicubic2d_aa.vec": lambda: [((r(2, 3, 4, 4), None, False, [2.0, 0.5]), {})],
    "aten._upsample_nearest_exact3d.default": lambda: [((r(2, 3, 4, 4, 4), [8, 3, 4]), {})],
    "aten._upsample_nearest_exact3d.vec": lambda: [((r(2, 3, 4, 4, 4), None, [2.0, 0.5, 1.0]), {})],
    "aten._upsample_nearest_exact3d_backward.default": lambda: [((r(2, 3, 8, 3, 4), [8, 3, 4], [2, 3, 4, 4, 4]), {})],
    "aten.bartlett_window.default": _windows,
    "aten.blackman_window.default": _windows,
    "aten.hamming_window.default": _windows,
    "aten.hann_window.default": _windows,
    "aten.kaiser_window.default": _windows,
    "aten.frobenius_norm.dim": lambda: [((r(2, 3, 4), [0, 1]), {}), ((r(2, 3), [1], True), {})],
    "aten.nuclear_norm.dim": lambda: [((r(2, 3, 4), [0, 1]), {})],
    "aten.gradient.scalararray": lambda: [((r(4, 5),), {"spacing": 2.0, "dim": [0, 1]})],
    "aten.gradient.array": lambda: [((r(4, 5),), {"dim": [0, 1]})],
    "aten.gradient.tensorarrayint": lambda: [((r(4, 5),), {"spacing": [r(4)], "dim": 0})],
    "aten.matrix_power.default": lambda: [((r(3, 3), power), {}) for power in (0, 3, -2)],
    "aten.moveaxis.intlist": lambda: [((r(2, 3, 4), [0, 1], [2, 0]), {})],
    "aten.native_channel_shuffle.default": lambda: [((r(2, 6, 4, 4), 3), {})],
    "aten.split.sizes": lambda: [((r(5, 2), [2, 3]), {})],
    "aten.unsafe_split_with_sizes.default": lambda: [((r(5, 2), [2, 3]), {})],
    "aten.scatter.value_reduce": lambda: [
        ((r(3, 4), 1, torch.tensor([[0, 3], [1, 2]]), 2.0), {"reduce": reduce}) for reduce in ("add", "multiply")
    ],
    "aten.searchsorted.Scalar": lambda: [((torch.arange(5.0), 2.5), {})],
    "aten._batch_norm_no_update.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    **{f"aten._foreach_{which}.Tensor": _foreach_scaled for which in ("addcdiv", "addcdiv_", "addcmul", "addcmul_")},
    "aten.float_power_.Scalar": lambda: [((torch.rand(2, 3, dtype=torch.float64), 2), {})],
    "aten.float_power_.Tensor": lambda: [((torch.rand(2, 3, dtype=torch.float64), r(3)), {})],
    "aten.mkldnn_rnn_layer_backward.default": _rnn_layer_backward,
    "aten.randint.low_generator": lambda: [((-2, 9, [2, 3]), {"generator": None})],
    "aten.randint_like.low_generator_dtype": lambda: [((r(2, 3), -2, 9), {"generator": None})],
    "aten.random.from": lambda: [((r(2, 3), 1, 5), {}), ((torch.zeros(3, dtype=torch.int64), -1, None), {})],
    "aten.random_.from": lambda: [((r(2, 3), 1, 5), {}), ((torch.zeros(3, dtype=torch.int64), -1, None), {})],
    "aten.split_with_sizes_copy.out": lambda: [((r(5, 2), [2, 3]), {"out": [r(2, 2), r(3, 2)]})],
    "aten.linalg_norm.ord_str": lambda: [((r(3, 4), which), {}) for which in ("fro", "nuc")],
    "aten._fused_adam_.tensor_lr": _optimizer(2, beta1=0.9, beta2=0.9, eps=1e-8, amsgrad=False),
    "aten._fused_adamw_.tensor_lr": _optimizer(2, beta1=0.9, beta2=0.9, eps=1e-8, amsgrad=False),
    "aten._fused_sgd_.tensor_lr": _optimizer(1, momentum=0.9, dampening=0.0, nesterov=False, is_first_step=False),
    "aten._fused_adagrad_.tensor_lr": _optimizer(1, lr_decay=0.0, eps=1e-8),
}
BY_HAND["aten.scatter_.value_reduce"] = BY_HAND["aten.scatter.value_reduce"]
