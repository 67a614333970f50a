"""Recurrent layers under torch.export: traced for any length, where export itself counts the steps of the example.

For each of torch.lstm, gru, rnn_tanh and rnn_relu there is an operator that only knows shapes. `AnyLength` puts it in
the place of the call while export runs; `restored` puts the operator of ATen back into the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}  # what a layer hands on from step to step
_SCHEMA = (
    "{name}(Tensor input, Tensor{several} hx, Tensor[] params, bool has_biases, int num_layers, float dropout, "
    "bool train, bool bidirectional, bool batch_first) -> (Tensor{returns})"
)
_OPERATORS = torch.library.Library("torchatlas_recurrent", "DEF")


class AnyLength(TorchFunctionMode):
    """While it is open, calls of recurrent layers look at shapes only.

    Export runs a layer in Python, step by step, and so assumes as many steps as the example has. `check` is called
    before every torch function.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._check = check

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._check()
        name = getattr(func, "__name__", "")
        if name in _STATES and func == getattr(torch, name) and _is_padded(args, kwargs):
            func = getattr(torch.ops.torchatlas_recurrent, name).default
        return func(*args, **(kwargs or {}))


def restored(program: Any) -> None:
    """Put the operators of ATen in the place of ours, in the parts of an exported program as well."""
    for part in program.graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            if getattr(node.target, "namespace", "") == "torchatlas_recurrent":
                name = node.target.name().partition("::")[2]
                node.target = getattr(torch.ops.aten, name).input


def _is_padded(args: Any, kwargs: Any) -> bool:
    """Not a packed sequence, which has another signature; nor under autocast, which casts for operators it knows."""
    if len(args) != 9 or kwargs or not isinstance(args[3], bool):
        return False
    return not torch.is_autocast_enabled(args[0].device.type)


def _shapes(states: int) -> Callable[..., tuple[Tensor, ...]]:
    """What a layer returns: the outputs of all steps, and the last states."""

    def returned(x: Tensor, hx: Any, params: list[Tensor], *options: Any) -> tuple[Tensor, ...]:
        *_, bidirectional, batch_first = options
        last = list(hx) if states > 1 else [hx]
        batch, length = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
        for given, wanted in ((x.shape[2], params[0].shape[1]), *((state.shape[1], batch) for state in last)):
            if given != wanted:  # asking makes export remember it
                raise RuntimeError(f"a recurrent layer got an input or state of size {given} where it takes {wanted}")
        output = x.new_empty((length, batch, last[0].shape[2] * (2 if bidirectional else 1)))
        return output.transpose(0, 1) if batch_first else output, *(state.new_empty(state.shape) for state in last)

    return returned


for _name, _count in _STATES.items():
    _OPERATORS.define(
        _SCHEMA.format(name=_name, several="[]" if _count > 1 else "", returns=", Tensor" * _count),
    )
    torch.library.register_fake(f"torchatlas_recurrent::{_name}", _shapes(_count), lib=_OPERATORS)
