"""Inputs against what a trace was made for: in words, what does not fit, and whether another trace would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from torchatlas.errors import CaptureError, InvalidInputError
from torchatlas.execute.exporting import bound
from torchatlas.torch_private import pytree


def guard_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What guards speak of: arguments by name, and all of them flat, as those of strict export do."""
    return {"flat_args": pytree.tree_leaves((args, kwargs)), **bound(model, args, kwargs)}


@dataclass(frozen=True)
class Expected:
    """What a tensor given must look like. Sizes that may vary are symbols, or what is computed from symbols."""

    dtype: torch.dtype
    device: str  # its type
    shape: tuple[str, ...]


ANY_NUMBER = object()  # an input that may be any number


def expected(traced: Any) -> Any:
    """What to expect of an input, from what export says of it: a constant is itself."""
    if isinstance(traced, torch.Tensor):
        return Expected(traced.dtype, traced.device.type, tuple(map(str, traced.shape)))
    return ANY_NUMBER if isinstance(traced, (torch.SymInt, torch.SymFloat, torch.SymBool)) else traced


def mismatch(leaves: list[tuple[str, Any]], flat: list[Any]) -> str | None:
    """What is wrong with inputs, in words."""
    known: dict[str, int] = {}
    small: str | None = None  # said last: another trace helps there
    for (name, wanted), given in zip(leaves, flat, strict=True):
        if not isinstance(wanted, Expected):
            if wanted is not ANY_NUMBER and (isinstance(given, torch.Tensor) or wanted != given):
                return f"input {name} is {given!r}, but {wanted!r} was traced and is part of the graph: trace again."
            continue
        if not isinstance(given, torch.Tensor):
            return f"input {name} is a {type(given).__name__}, not a tensor: pass torch.as_tensor(...) of it."
        if given.dtype != wanted.dtype:
            return f"input {name} has dtype {given.dtype}; the model was traced with {wanted.dtype}."
        if given.device.type != wanted.device:
            return f"input {name} is on {given.device}; the model was traced on {wanted.device}."
        if given.dim() != len(wanted.shape):
            return f"input {name} has {given.dim()} dimensions; the model was traced with {len(wanted.shape)}."
        for dim, (size, fixed) in enumerate(zip(given.shape, wanted.shape, strict=True)):
            if fixed.isdecimal():
                if size != int(fixed):
                    why = "(traced.input_sizes says why)"
                    return f"input {name} has size {size} in dimension {dim}; this trace fixes it to {fixed} {why}."
            elif fixed.isidentifier():
                if known.setdefault(fixed, size) != size:
                    other = known[fixed]
                    return f"input {name} has size {size} in dimension {dim}, which must be {other}, as elsewhere."
                if size < 2:
                    small = f"input {name} has size {size} in dimension {dim}; {FROM_TWO}"
    return small


FROM_TWO = "it was traced for sizes from 2."


def broken_guard(guards: list[tuple[str, Any]], given: dict[str, Any]) -> str | None:
    """The first assumption of export about sizes, made for the example, that does not hold for these inputs."""
    names = {**SYMPY_INTERP, "L": given}
    for text, code in guards:
        try:
            holds = bool(eval(code, names))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CaptureError(f"what was assumed of the sizes cannot be computed: {text}: {error}.") from error
        if not holds:
            said = text.replace("L['", "").replace("']", "").replace(".size()", ".shape")
            return f"the model was traced where {said}, and takes another path for these sizes."
    return None


def looks(leaf: Any) -> Any:
    """All that a trace may depend on."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device.type
    return type(leaf), leaf if isinstance(leaf, (bool, int, float, str, type(None))) else repr(leaf)


def usable_device(device: Any) -> torch.device:
    """The device that was asked for, if torch knows it and can use it here."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (AssertionError, RuntimeError, TypeError) as error:  # torch has no error class of its own for any of them
        first = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise InvalidInputError(
            f"device={str(device)!r} cannot be used here: {first}. Leave device= out to trace the model where it is."
        ) from error
    return found


def check_device(model: nn.Module, device: torch.device) -> None:
    elsewhere = {p.device.type for p in [*model.parameters(), *model.buffers()]} - {device.type}
    if elsewhere:
        raise InvalidInputError(
            f"device={str(device)!r}, but the model is on {', '.join(sorted(elsewhere))}. "
            f"Move it first: model.to({str(device)!r})."
        )


def described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    def one(item: Any) -> str:
        return f"a tensor of {tuple(item.shape)}" if isinstance(item, torch.Tensor) else type(item).__name__

    parts = [one(item) for item in args] + [f"{name}={one(item)}" for name, item in kwargs.items()]
    return ", ".join(parts) if parts else "none"
