"""Example inputs and outputs of any structure: their tensors, their binding to a call, and the default loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import torch

from torchatlas.argument_errors import own_names
from torchatlas.errors import AtlasError, CaptureError, InvalidInputError, InvalidModelError
from torchatlas.registry import did_you_mean


def named_tensors(tree: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a structure with its path: batch.image, states.0."""
    return ((path, leaf) for path, leaf in _leaves(tree, name) if isinstance(leaf, torch.Tensor))


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


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are equal to the bit: NaN is NaN, and zeros have the same sign."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one is other or one == other)
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    if one.is_sparse:
        one, other = one.coalesce(), other.coalesce()
        return same_bits(one.indices(), other.indices()) and same_bits(one.values(), other.values())
    if one.layout is not torch.strided:
        return same_bits(one.to_dense(), other.to_dense())
    if one.is_quantized:
        return torch.equal(one, other)
    plain = (tensor.detach().resolve_conj().resolve_neg() for tensor in (one, other))
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in plain]
    return torch.equal(*bits)


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


def checked_loss(loss: Any) -> Any:
    """What a loss function returned, if backward can begin there."""
    if not hasattr(loss, "backward"):
        raise InvalidInputError(f"the loss is a {type(loss).__name__}, not a tensor: return one number as a tensor.")
    if isinstance(loss, torch.Tensor) and loss.numel() != 1:
        raise InvalidInputError(
            f"the loss is {described(loss)}, and backward begins at one number: return loss.mean() or loss.sum()."
        )
    return loss


def as_call(model: Callable[..., Any], example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One example as positional and keyword arguments.

    A tuple or list is the positional arguments, a dictionary whose keys are all parameters of `model` the keyword
    arguments; anything else, and a dictionary the model takes whole, is the only argument.
    """
    if isinstance(example, (tuple, list)) and not hasattr(example, "_fields"):
        args, kwargs = tuple(example), {}
    elif isinstance(example, Mapping) and all(isinstance(key, str) for key in example) and accepts(model, (), example):
        args, kwargs = (), dict(example)
    else:
        args, kwargs = (example,), {}
    check_call(model, args, kwargs)
    return args, kwargs


def check_call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a class of modules, and arguments that cannot be bound to the model's parameters, before anything runs."""
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise InvalidModelError(f"{_name(model)} is a class: pass a model, {_name(model)}(...), and its inputs.")
    signature = _signature(model)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        passed = described_call(args, kwargs)
        raise InvalidInputError(f"{_name(model)} takes {signature}, but was given ({passed}): {error}.") from None


def check_keywords(function: Callable[..., Any], model: Any, keywords: Mapping[str, Any]) -> None:
    """Refuse a keyword that neither `function` nor the model takes, and suggest the one of either that was meant.

    `keywords` are those that `function` hands on to the model. A model that takes any keyword takes all of them.
    """
    signature = _signature(model) if callable(model) else None
    if signature is None or any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return
    ours = [name for name in own_names(function) if name != "model"]
    for name in keywords:
        if name not in signature.parameters:
            hint = did_you_mean(name, [*ours, *signature.parameters])
            raise InvalidInputError(
                f"neither {function.__name__} nor {_name(model)}{_names(signature)} has an argument {name!r}"
                f"{hint or f'. {function.__name__} has ' + ', '.join(ours) + '.'}"
            )


def advice(error: BaseException, model: Any, inputs: Any) -> str | None:
    """What to do about an error of a model that its inputs explain: not tensors, on another device, of another dtype.

    Said after the failure only: many models take such inputs.
    """
    if isinstance(error, AtlasError) or not isinstance(error, (RuntimeError, TypeError, AttributeError, ValueError)):
        return None
    weights = [] if not isinstance(model, torch.nn.Module) else [*model.parameters(), *model.buffers()]
    tensors = dict(named_tensors(inputs))
    for name, leaf in _leaves(inputs):
        kind = f"{type(leaf).__module__.partition('.')[0]}.{type(leaf).__name__}".removeprefix("builtins.")
        if hasattr(leaf, "__array__") and not isinstance(leaf, (torch.Tensor, torch.nn.Module)):
            return f"{name} is a {kind}, not a tensor: pass torch.as_tensor(...) of it."
    for name, item in inputs.items():
        if isinstance(item, (list, tuple)) and isinstance(error, (TypeError, AttributeError)):
            if any(isinstance(part, torch.Tensor) for part in item):
                return f"{name} is a {type(item).__name__}: pass what is in it one by one, with a star: *inputs."
            shape = all(isinstance(part, int) for part in item) and f", or for a shape torch.randn({tuple(item)})"
            return f"{name} is a {type(item).__name__}: pass torch.tensor(...) of it{shape or ''}."
        if item is None and isinstance(error, (TypeError, AttributeError)):
            return f"{name} is None: did the function that makes it return anything?"
    meta = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    homes = {str(tensor.device) for tensor in weights}
    if "meta" in homes or meta:
        where = "the model is" if "meta" in homes else f"{meta[0]} is"
        return f"{where} on the meta device, which holds no numbers: pass fake=True to follow shapes and memory only."
    away = [name for name, tensor in tensors.items() if homes and str(tensor.device) not in homes]
    if away:
        home = min(homes)
        return f"{away[0]} is on {tensors[away[0]].device} and the model on {home}: move one, {away[0]}.to({home!r})."
    if is_about_dtypes(error):
        kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in weights if tensor.is_floating_point()}
        listed = ", ".join(f"{name} {described(tensor)}" for name, tensor in tensors.items())
        return (
            f"the inputs are {listed or 'no tensors'}; the model holds {' and '.join(sorted(kinds)) or 'no numbers'}. "
            "Ids are whole numbers, x.long(), on the command line --inputs int64:2,16; all else has the model's dtype."
        )
    return None


def is_about_dtypes(error: BaseException) -> bool:
    """Whether torch's message says that a dtype is wrong."""
    return "dtype" in str(error) or "scalar type" in str(error)


def _leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    parts = [] if isinstance(tree, torch.Tensor) else list(_parts(tree))
    for key, part in parts:
        yield from _leaves(part, f"{name}.{key}" if name else str(key))
    if not parts:
        yield name, tree


def _name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", repr(model))


def _names(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


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
        raise InvalidInputError(f"{type(model).__name__}.forward{signature} does not take these: {error}.") from None


def _signature(model: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):
        return None


def accepts(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if arguments can be bound to the model's parameters; False also for a model without a signature."""
    if (signature := _signature(model)) is None:
        return False
    try:
        signature.bind(*args, **kwargs)
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
    return f"the class {item.__name__}" if isinstance(item, type) else type(item).__name__


def described_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments in a message: float32[2, 3], mask=NoneType."""
    return ", ".join([*map(described, args), *(f"{name}={described(item)}" for name, item in kwargs.items())])
