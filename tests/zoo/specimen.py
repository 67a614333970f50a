"""What a specimen is, the list they are all in, and how the tests read a specimen's result."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Specimen:
    """A small program named after the difficulty it stands for.

    ``build`` returns ``(model or function, args, kwargs)`` and seeds torch first: two builds run alike.
    """

    name: str
    build: Callable[[], Call]
    stands_for: str
    trains: bool = True
    fakes: bool = True

    def __str__(self) -> str:
        return self.name


ZOO: list[Specimen] = []


def specimen(stands_for: str, *, trains: bool = True, fakes: bool = True) -> Callable[[Callable[[], Call]], Specimen]:
    """Put the decorated builder into ZOO under its own name."""

    def add(builder: Callable[[], Call]) -> Specimen:
        def build() -> Call:
            torch.manual_seed(0)
            return builder()

        entry = Specimen(builder.__name__, build, stands_for, trains, fakes)
        ZOO.append(entry)
        return entry

    return add


def specimens(**filters: Any) -> list[Specimen]:
    """The specimens whose fields equal the filters: ``specimens(trains=True, fakes=True)``."""
    return [entry for entry in ZOO if all(getattr(entry, field) == wanted for field, wanted in filters.items())]


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested lists, tuples, mappings and dataclasses (registered with pytree or not), in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_in(item)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from tensors_in(getattr(tree, field.name))


def loss_of(outputs: Any) -> Tensor:
    """The sum of the floating outputs: the loss every training specimen can be differentiated from."""
    sums = [out.sum() for out in tensors_in(outputs) if out.is_floating_point()]
    return torch.stack([total.to(torch.float64) for total in sums]).sum()


def leaves_of(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """What gradients arrive at, each once, by name: trainable parameters, then inputs that require grad."""
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    named: list[tuple[str, Tensor]] = list(owner.named_parameters()) if isinstance(owner, nn.Module) else []
    named += [(f"input {index}", tensor) for index, tensor in enumerate(tensors_in((args, kwargs)))]
    first_name = {id(tensor): name for name, tensor in reversed(named)}
    return {
        name: tensor
        for name, tensor in named
        if tensor.requires_grad and tensor.is_leaf and first_name[id(tensor)] == name
    }
