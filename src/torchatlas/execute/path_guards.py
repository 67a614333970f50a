"""What keeps pieces of a recorded run on its path: their inputs and the results of their ops are compared with it.

A recorded run is one path. Numbers that the program read, and results whose size depends on what is in a tensor, have
decided it; where one of them differs, nothing that comes after would be what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchatlas.capturing.tensor_bytes import fingerprint
from torchatlas.errors import InputMismatchError
from torchatlas.execute.program import Program
from torchatlas.execute.recorded_program import RecordedOperator
from torchatlas.execute.recorded_run import TENSOR, CallStructure, rebuilt, structure_of
from torchatlas.inputs import argument_names, named_tensors

AGAIN = "Partition the model again with these inputs."

# -- inputs and outputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """One tensor that the program takes, as it was when recorded."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    digest: bytes | None  # if its numbers decide the path, or may: then it must be equal
    reader: str = "the program reads them past the operators"

    def refused(self, tensor: torch.Tensor) -> str | None:
        """Why a tensor cannot take its place."""
        if tuple(tensor.shape) != self.shape or tensor.dtype is not self.dtype:
            return f"is {tensor.dtype} {list(tensor.shape)}, and was {self.dtype} {list(self.shape)}"
        if tensor.layout is not torch.strided or tensor.device != torch.device(self.device):
            return f"is {tensor.layout} on {tensor.device}, and was torch.strided on {self.device}"
        if any(a != b for a, b, size in zip(tensor.stride(), self.stride, self.shape, strict=True) if size > 1):
            return f"has the strides {tensor.stride()}, and had {self.stride}"
        if self.digest is not None and fingerprint(tensor) != self.digest:
            return f"holds other numbers, and {self.reader}"
        return None


@dataclass(frozen=True, eq=False)
class RecordedProgram:
    """A program that takes flat inputs, and what leads from the model's inputs and outputs to it.

    Its instructions are named after the nodes of the graph.
    """

    program: Program = field(repr=False)
    constants: dict[str, torch.Tensor] = field(repr=False)  # what the program takes by name: parameters, say
    draws: frozenset[str]  # nodes that take random numbers
    inputs: tuple[Input, ...]
    written: tuple[torch.Tensor, ...] = field(repr=False)  # tensors from outside that each run writes anew
    result: Any = field(repr=False)  # references in place of tensors
    given: CallStructure | None = field(default=None, repr=False)  # None: of a graph alone

    def call(self, whole: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model returns, computed by `whole`, a module that takes what the program takes."""
        flat = self._flat(args, kwargs)
        for one, tensor in zip(self.inputs, flat, strict=True):
            if (why := one.refused(tensor)) is not None:
                raise InputMismatchError(f"Pieces of a recorded run take what was recorded: {one.name} {why}. {AGAIN}")
        made = whole(*flat, *(tensor.clone() for tensor in self.written))
        return rebuilt(self.result, lambda reference: made[reference.index])

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call in the order of the inputs."""
        if self.given is None:
            found = [tensor for _, tensor in named_tensors((args, kwargs))]
            if len(found) != len(self.inputs):
                expected = ", ".join(one.name for one in self.inputs)
                raise InputMismatchError(f"{len(found)} tensors, and the run takes {len(self.inputs)}: {expected}.")
            return found
        named = argument_names(self.given.model, args, kwargs)
        if (found := structure_of(self.given.model, named)) != self.given.structure:
            raise InputMismatchError(
                "Pieces of a recorded run take what was recorded: there the inputs were "
                f"{_described(self.given.structure)}, these are {_described(found)}. {AGAIN}"
            )
        tensors = dict(named_tensors(named))
        for later, first in self.given.aliases.items():
            if tensors[later] is not tensors[first]:
                raise InputMismatchError(f"{later} and {first} were one tensor when it was recorded. {AGAIN}")
        return [tensors[one.name] for one in self.inputs]


def _described(structure: Any) -> str:
    return repr(structure).replace(repr(TENSOR), "tensor")


# -- results of ops ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedResults:
    """What an operator returned when it was recorded."""

    place: str  # the node, its operation and its line
    tensors: tuple[tuple[tuple[int, ...] | None, torch.dtype], ...]  # shape (None: not compared) and dtype
    digests: tuple[bytes, ...]  # of all it returned, in order
    read: frozenset[int] = frozenset()  # which tensors among them the program read: these must be equal to the bit


def guarded(operator: RecordedOperator, expected: ExpectedResults, *, grad: bool, device: str) -> Callable[..., Any]:
    """An operator as a function that checks what it returned. Several results come as a flat tuple.

    Autocast is off: its casts were recorded as operators. Where no gradients were wanted none are.
    """
    target, several = operator.target, operator.several

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(device) or (not grad and torch.is_grad_enabled()):
            with torch.autocast(device, enabled=False), torch.set_grad_enabled(grad and torch.is_grad_enabled()):
                out = target(*args, **kwargs)
        else:
            out = target(*args, **kwargs)
        leaves: list[Any] = []
        _flatten(out, leaves)
        _check(leaves, expected)
        return tuple(one for one in leaves if isinstance(one, torch.Tensor)) if several else out

    run.__name__ = run.__qualname__ = "".join(char if char.isalnum() else "_" for char in operator.name)
    return run


def _flatten(item: Any, leaves: list[Any]) -> None:
    if isinstance(item, (list, tuple)):
        for part in item:
            _flatten(part, leaves)
    elif item is not None:
        leaves.append(item)


def _check(leaves: list[Any], expected: ExpectedResults) -> None:
    """Refuse results that differ from the recorded ones in what decides the path."""
    number = 0
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            if index < len(expected.digests) and fingerprint(leaf) != expected.digests[index]:
                raise _left(expected, f"reads {leaf!r}, which was another number")
            continue
        if number >= len(expected.tensors):
            raise _left(expected, f"returns more than {number} tensors")
        shape, dtype = expected.tensors[number]
        if shape is not None and leaf.shape != shape:
            raise _left(expected, f"makes a tensor of the shape {list(leaf.shape)}, which was {list(shape)}")
        if leaf.dtype is not dtype:
            raise _left(expected, f"makes a tensor of {leaf.dtype}, which was {dtype}")
        if number in expected.read and fingerprint(leaf) != expected.digests[index]:
            raise _left(expected, "makes other numbers, and the program read these past the operators")
        number += 1


def _left(expected: ExpectedResults, what: str) -> InputMismatchError:
    return InputMismatchError(f"These inputs take another path than the recorded run: {expected.place} {what}. {AGAIN}")
