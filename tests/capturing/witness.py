"""What really runs, seen by a dispatch mode of its own that knows nothing of the package, and bytes for comparing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import torchatlas as atlas

LEFT_OUT = ("prim.device", "prim.layout", "profiler.")


class Witness(TorchDispatchMode):
    """Lists the ops on plain tensors, and with `keep` what each took, wrote and made; wrappers come by unwrapped."""

    supports_higher_order_operators = True

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.rows: list[tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]] = []
        self.facts: list[list[tuple[Any, ...]]] = []  # of what each made: dtype, shape, bytes of its storage
        self._keep = keep

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper(kind) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        name = str(func) if isinstance(func, torch._ops.OpOverload) else f"higher_order.{func}"
        if not name.startswith(LEFT_OUT):
            self.operations.append(name)
            if self._keep:
                made = tensors(out)
                self.rows.append((tensors((args, kwargs or {})), written(func, args, kwargs or {}), made))
                self.facts.append([facts(tensor) for tensor in made])
        return out

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def is_wrapper(kind: type) -> bool:
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not issubclass(kind, FakeTensor)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that an operator's schema says it writes."""
    schema = getattr(func, "_schema", None)
    if schema is None or schema.name == "aten::set_":  # which only points elsewhere
        return []
    given = {argument.name: item for argument, item in zip(schema.arguments, args, strict=False)} | kwargs
    return tensors([given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write])


def storage_of(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return None


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """dtype, shape and bytes of the storage; None for what a tensor does not tell."""
    shape = None if tensor.is_nested else tuple(tensor.shape)
    size = None if storage_of(tensor) is None else tensor.untyped_storage().nbytes()
    return str(tensor.dtype).removeprefix("torch."), shape, size


def producers(witness: Witness) -> list[list[int | None]]:
    """For every op and input the op that made it so: the last that returned the tensor or wrote to its memory.

    A tensor object that nobody returned is a new name for what lies in the same place.
    """
    maker: dict[Any, int] = {}
    writer: dict[int, int] = {}
    found = []
    for number, (taken, changed, made) in enumerate(witness.rows):
        row: list[int | None] = []
        for tensor in taken:
            storage = storage_of(tensor)
            by = [maker.get(id(tensor), maker.get(place_of(tensor), maker.get(storage))), writer.get(storage or 0)]
            row.append(max((number for number in by if number is not None), default=None))
        found.append(row)
        for tensor in changed:
            writer[storage_of(tensor) or 0] = number
        for tensor in made:
            maker[id(tensor)] = maker[place_of(tensor)] = number
            maker.setdefault(storage_of(tensor), number)
    return found


def place_of(tensor: torch.Tensor) -> Any:
    if storage_of(tensor) is None or tensor.is_nested:
        return None
    return storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def operations(graph: atlas.Graph) -> list[str]:
    return [node.operation for node in graph.where(kind="op")]


def seeded(program: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return program()


def content(tree: Any) -> list[Any]:
    """A result as plain data: bytes, so that a nan equals itself and -0.0 is not 0.0."""
    with _disable_current_modes(), torch.no_grad():
        return [_content(leaf) for leaf in pytree.tree_leaves(tree)]


def _content(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.str, leaf.shape, leaf.tobytes()
    if not isinstance(leaf, torch.Tensor):
        return leaf
    head = (type(leaf).__name__, leaf.dtype, leaf.requires_grad)
    if leaf.is_nested:
        return (*head, [_content(part) for part in leaf.unbind()])
    head += (tuple(leaf.shape),)
    if leaf.is_meta or isinstance(leaf, FakeTensor):
        return head
    if leaf.layout is not torch.strided:
        return (*head, leaf.layout, _content(leaf.to_dense()))
    if leaf.is_quantized:
        return (*head, _content(leaf.dequantize()))
    flat = leaf.detach().resolve_conj().resolve_neg().reshape(-1)
    flat = flat.new_empty(len(flat)).copy_(flat)  # a single element may have any stride, and a view no other than 1
    return (*head, bytes(flat.view(torch.uint8).tolist()))
