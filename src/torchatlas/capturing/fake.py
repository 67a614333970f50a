"""Running a program on fake tensors: shapes, dtypes and devices flow, nothing is allocated or computed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torchatlas.errors import CaptureError
from torchatlas.inputs import named_tensors
from torchatlas.torch_private import FakeCopyMode, FakeTensor, FakeTensorMode

Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]


@contextmanager
def faked(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Any
) -> Iterator[Program]:
    """The same program with fake parameters and inputs, inside the mode that runs it.

    The model is copied without its data, so the user's own stays untouched. A function that takes no arguments and
    returns a module builds the model inside the mode: nothing is ever allocated.
    """
    mode = _mode_of(model, args, kwargs) or FakeTensorMode(allow_non_fake_inputs=True)
    state = torch.get_rng_state()
    try:
        with mode:
            built = _built(model, args, kwargs)
            target = model if built is None else built
            if not _is_fake(target):
                target, args, kwargs, optimizer = _copied(mode, target, args, kwargs, optimizer)
            else:
                args, kwargs = _fake_inputs(mode, args, kwargs)
            yield target, args, kwargs, optimizer
    except Exception as error:
        if "DataDependentOutput" in type(error).__name__ or "DynamicOutputShape" in type(error).__name__:
            raise CaptureError(
                f"This program reads the values of its tensors ({error}), which fake tensors do not have. "
                "Capture it with fake=False, or take the reading line out."
            ) from error
        raise
    finally:
        torch.set_rng_state(state)


def _built(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module | None:
    """The module a builder returns; None when `model` is no builder."""
    if isinstance(model, nn.Module):
        return None
    is_class = isinstance(model, type) and issubclass(model, nn.Module)
    if not is_class and (_binds(model, args, kwargs) or not _binds(model, (), {})):
        return None  # what takes the arguments is the program itself
    module = model()
    if not isinstance(module, nn.Module):
        raise CaptureError(f"The function given as model returned {type(module).__name__}, not a torch.nn.Module.")
    return module


def _binds(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _copied(mode: FakeTensorMode, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Any) -> Program:
    memo: dict[int, Any] = {}
    if isinstance(model, nn.Module):
        for tensor in [*model.parameters(), *model.buffers()]:
            memo[id(tensor)] = _fake(mode, tensor)
    for _, tensor in named_tensors((args, kwargs)):
        memo[id(tensor)] = _fake(mode, tensor)
    try:
        with FakeCopyMode(mode):
            return copy.deepcopy((model, args, kwargs, optimizer), memo)
    except Exception as error:
        raise CaptureError(
            f"This model cannot be copied without its data ({type(error).__name__}: {error}). "
            "Pass a function that builds it instead: atlas.capture(lambda: MyModel(...), *args, fake=True)."
        ) from error


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake twin. What lies on the meta device becomes a CPU tensor: it stands for one that is yet to be made."""
    if isinstance(tensor, FakeTensor):
        return tensor
    if tensor.device.type == "meta":
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    else:
        twin = mode.from_tensor(tensor.detach(), static_shapes=True)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)


def _fake_inputs(
    mode: FakeTensorMode, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    memo: dict[int, Any] = {id(tensor): _fake(mode, tensor) for _, tensor in named_tensors((args, kwargs))}
    with FakeCopyMode(mode):
        return copy.deepcopy((args, kwargs), memo)


def _is_fake(model: Any) -> bool:
    if not isinstance(model, nn.Module):
        return False
    return any(isinstance(tensor, FakeTensor) for tensor in [*model.parameters(), *model.buffers()])


def _mode_of(model: Any, args: Any, kwargs: Any) -> FakeTensorMode | None:
    """The mode that tensors given as fakes already belong to."""
    tensors = [tensor for _, tensor in named_tensors((args, kwargs))]
    if isinstance(model, nn.Module):
        tensors += [*model.parameters(), *model.buffers()]
    return next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)
