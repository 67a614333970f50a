"""Example inputs and outputs of any structure: their tensors, their binding to a call, and the default loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import torch

from torchatlas.errors import CaptureError, InvalidInputError


def named_tensors(tree: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a structure with its path: batch.image, states.0."""
    if isinstance(tree, torch.Tensor):
        yield name, tree
    else:
        for key, part in _parts(tree):
            yield from named_tensors(part, f"{name}.{key}" if name else str(key))


def mapped_tensors(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The structure as plain lists, tuples and dictionaries with every tensor replaced; other leaves as they are."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        parts = [mapped_tensors(part, change) for part in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    if isinstance(tree, Mapping) or _is_dataclass(tree):
        return {key: mapped_tensors(part, change) for key, part in _parts(tree)}
    return tree


def hiding_tensors(tree: Any) -> Iterator[Any]:
    """Objects in a structure that hold tensors and are neither container nor module, such as a cache."""
    if isinstance(tree, (Mapping, list, tuple)) or _is_dataclass(tree):
        for _, part in _parts(tree):
            yield from hiding_tensors(part)
    elif not isinstance(tree, (torch.Tensor, torch.nn.Module, type)) and _hides(tree, set()):
        yield tree


def _hides(item: Any, seen: set[int]) -> bool:
    if isinstance(item, torch.Tensor):
        return True
    if id(item) in seen or isinstance(item, (torch.nn.Module, type)):
        return False
    seen.add(id(item))
    inside = [part for _, part in _parts(item)] or list(getattr(item, "__dict__", {}).values())
    return any(_hides(part, seen) for part in inside)


def differentiable(result: Any) -> list[torch.Tensor]:
    """The floating outputs that require a gradient."""
    tensors = (tensor for _, tensor in named_tensors(result))
    return [one for one in tensors if one.requires_grad and (one.is_floating_point() or one.is_complex())]


def default_loss(result: Any) -> torch.Tensor:
    """The loss where none is given, everywhere: the sum of all floating outputs that require a gradient."""
    parts = [(tensor.abs() if tensor.is_complex() else tensor).sum() for tensor in differentiable(result)]
    if not parts:
        raise CaptureError(
            "backward was asked for, but no output requires a gradient. Leave torch.no_grad(), make a parameter or "
            "input require one, or pass loss=."
        )
    return reduce(torch.add, parts)


def as_call(model: Callable[..., Any], example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One example as positional and keyword arguments.

    A tuple or list is the positional arguments, a dictionary whose keys are all parameters of `model` the keyword
    arguments; anything else, and a dictionary the model takes whole, is the only argument.
    """
    if isinstance(example, (tuple, list)) and not hasattr(example, "_fields"):
        args, kwargs = tuple(example), {}
    elif isinstance(example, Mapping) and _accepts(model, example):
        args, kwargs = (), dict(example)
    else:
        args, kwargs = (example,), {}
    check_call(model, args, kwargs)
    return args, kwargs


def check_call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that cannot be bound to the model's parameters, before anything runs."""
    signature = _signature(model)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([*(described(arg) for arg in args), *(f"{k}={described(v)}" for k, v in kwargs.items())])
        name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", repr(model))
        raise InvalidInputError(
            f"{name} takes {signature}, but was given ({given}): {error}. "
            "Pass a tuple for several positional arguments, a dictionary for keyword arguments."
        ) from None


def argument_names(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the names the model gives them."""
    signature = _signature(model)
    if signature is not None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return {**{f"input_{i}": arg for i, arg in enumerate(args)}, **kwargs}
        named: dict[str, Any] = {}
        for name, item in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named.update(item)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                named.update({f"{name}.{i}": part for i, part in enumerate(item)})
            else:
                named[name] = item
        return named
    return {**{f"input_{i}" if i else "input": arg for i, arg in enumerate(args)}, **kwargs}


def bound_arguments(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments as the model's forward takes them."""
    signature = _signature(model)
    if signature is None:
        raise CaptureError(
            f"{type(model).__name__} has no Python signature, as models of torch.jit have none, and cannot be traced. "
            "Trace the model that it was made of, or record it with atlas.capture."
        )
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInputError(f"{type(model).__name__}.forward{signature} does not take these: {error}.") from error


def _signature(model: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):
        return None


def _accepts(model: Callable[..., Any], example: Mapping[Any, Any]) -> bool:
    signature = _signature(model)
    if signature is None or not all(isinstance(key, str) for key in example):
        return False
    try:
        signature.bind(**example)
    except TypeError:
        return False
    return True


def _parts(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        yield from zip(getattr(tree, "_fields"), tree, strict=True)  # noqa: B009  # a named tuple
    elif isinstance(tree, (list, tuple)):
        yield from enumerate(tree)
    elif _is_dataclass(tree):
        for field in dataclasses.fields(tree):
            yield field.name, getattr(tree, field.name)


def _is_dataclass(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def described(item: Any) -> str:
    """An argument in a message: float32[2, 3], or its class."""
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    return type(item).__name__
