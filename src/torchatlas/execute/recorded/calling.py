"""What a model is called with -> what its recorded operations take, and what they make -> what the model returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchatlas.capturing.replaying import fingerprint
from torchatlas.errors import InputMismatchError
from torchatlas.execute.recorded.guards import AGAIN
from torchatlas.execute.recorded.run import TENSOR, Given, rebuilt, structure_of
from torchatlas.inputs import argument_names, named_tensors


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
    """Operations as a module that takes flat inputs, and what leads from the model's inputs and outputs to them."""

    module: fx.GraphModule = field(repr=False)
    names: dict[str, str] = field(repr=False)  # nodes of torch.fx -> nodes of the graph
    draws: frozenset[str]  # nodes of torch.fx that take random numbers
    inputs: tuple[Input, ...]
    written: tuple[torch.Tensor, ...] = field(repr=False)  # tensors from outside that each run writes anew
    result: Any = field(repr=False)  # references in place of tensors
    given: Given | None = field(default=None, repr=False)  # None: from a file, which knows only names and tensors

    def call(self, whole: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model returns, computed by `whole`, a module that takes what this one takes."""
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
