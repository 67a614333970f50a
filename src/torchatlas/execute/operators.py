"""Names in a graph -> operators and arguments of torch, and which operators a graph may call at all.

A graph may come from a file that somebody else wrote: then only loadable operators are run. A graph that this process
recorded itself runs whatever the program ran, except what would act outside of the program once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from torchatlas.capturing.compiled import GRAPH as INDUCTOR_GRAPH
from torchatlas.errors import FileFormatError, InvalidInputError, NotAvailableError
from torchatlas.graph.arguments import Constant, TensorRef
from torchatlas.graph.columns import Operation
from torchatlas.graph.nouns import OperationType
from torchatlas.operations import of
from torchatlas.torch_private import OpOverload

_CONSTANTS: dict[str, tuple[type, Callable[[str], Any]]] = {
    "dtype": (torch.dtype, vars(torch).get),  # getattr imports some modules of torch when it is asked for them
    "layout": (torch.layout, vars(torch).get),
    "memory_format": (torch.memory_format, vars(torch).get),
    "device": (torch.device, torch.device),
}


def operator(operation: Operation, allow: Collection[str] = (), *, own: bool = False) -> Any:
    """The operator of a row of the operation table; NotAvailableError says why there is none.

    `own` is true for a graph that this process recorded. `allow` adds operators, or all of a namespace, for graphs
    that are not but are trusted.
    """
    name = operation.name
    if name.startswith("higher_order."):
        raise NotAvailableError(
            f"{name} cannot be replayed: a higher-order operator is one node, and the functions it was given are not "
            "in the graph."
        )
    if name.startswith(f"{INDUCTOR_GRAPH}."):
        raise NotAvailableError(
            f"{name} cannot be replayed: what inductor compiled is one opaque node. Record the program without "
            'torch.compile, or with backend="aot_eager".'
        )
    if operation.type == OperationType.COMMUNICATION:
        raise NotAvailableError(
            f"{name} cannot be replayed: a collective takes part in what other processes do, and they are not here."
        )
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    if name not in allow and namespace not in allow and not of(name).loadable:
        if not own:
            raise NotAvailableError(
                f"{name} is not run: it is not on the list of operators that a file may call (SECURITY.md). If "
                f"you trust the file, pass allow=[{name!r}]."
            )
        if of(name).acts_outside:
            raise NotAvailableError(
                f"{name} is not run a second time: it acts outside of the program. Pass allow=[{name!r}] to run it."
            )
    resolved = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if not isinstance(resolved, OpOverload) or str(resolved) != name:
        raise NotAvailableError(
            f"{name} is not known to torch {torch.__version__} here. Import the package that defines it, or replay "
            "with the version of torch that recorded it."
        )
    return resolved


def argument(item: Any, tensors: Sequence[Any] = (), generator: torch.Generator | None = None) -> Any:
    """A decoded argument as torch takes it: tensors in place of references, torch's constants in place of names.

    Registers may stand for the tensors. A whole call is one argument: the tuple of `args` and `kwargs`.
    """
    if isinstance(item, TensorRef):
        if not 0 <= item.index < len(tensors):
            raise FileFormatError(f"an argument refers to tensor {item.index}, and there are {len(tensors)}.")
        return tensors[item.index]
    if isinstance(item, Constant):
        return _constant(item, generator)
    if isinstance(item, (list, tuple)):
        return type(item)(argument(part, tensors, generator) for part in item)
    if isinstance(item, dict):
        return {key: argument(part, tensors, generator) for key, part in item.items()}
    return item


def _constant(item: Constant, generator: torch.Generator | None) -> Any:
    if item.kind == "generator":
        if generator is not None:
            return generator
        device = _constant(Constant("device", item.name), None)
        try:
            return torch.Generator(device)  # it was passed, and nothing was drawn from it
        except RuntimeError as error:
            raise NotAvailableError(f"a generator of {item.name!r} cannot be made here: {error}") from error
    if item.kind in _CONSTANTS:
        kind, find = _CONSTANTS[item.kind]
        try:
            constant = find(item.name)
        except RuntimeError:  # of torch.device
            constant = None
        if not isinstance(constant, kind):
            raise InvalidInputError(f"torch has no {item.kind} named {item.name!r}.")
        return constant
    raise NotAvailableError(f"its argument, an object of {item.name}, is not in the graph: only its type was recorded.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype of torch with this name; InvalidInputError if there is none."""
    dtype: torch.dtype = _constant(Constant("dtype", name), None)
    return dtype
