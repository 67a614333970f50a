"""Recording what every node produced: whole tensors (values="all"), or a few statistics of each ("stats")."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchatlas.capturing.row_schema import Plan
from torchatlas.graph import Graph
from torchatlas.graph.columns import KINDS, Array
from torchatlas.graph.nouns import NodeKind
from torchatlas.operations import of
from torchatlas.torch_private import FakeTensor, no_dispatch_modes

VALUES = ("stats", "all", "replay")
_UNSIGNED = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_WHOLE = frozenset({*_UNSIGNED, torch.int8, torch.int16, torch.int32, torch.int64})  # not int4, not bits8


class ValueRecorder:
    """Copies outputs the moment they exist: a later op may overwrite their memory."""

    def __init__(self, what: str) -> None:
        self._read = _copied if what == "all" else _statistics
        self._values: list[list[Array | None]] = []
        self.around = None

    def keep(self, out: Any, written: list[Any]) -> None:
        """Called once per recorded op, in order, with what it returned and what it wrote."""
        made = tensors_of([out])
        made += [tensor for tensor in tensors_of(written) if not any(tensor is other for other in made)]
        with no_dispatch_modes():  # copying is no part of the program, whoever else is watching
            self._values.append([self._read(tensor) for tensor in made])

    def before(self, plan: Plan, args: Any, kwargs: Any) -> None:
        """The native recorder is about to let an op run."""

    def after(self, plan: Plan, args: Any, kwargs: Any, raised: bool, out: Any) -> None:
        """The native recorder has seen an op."""
        if not raised:
            asynchronous = of(plan.name).asynchronous
            self.keep(None if asynchronous else out, [] if asynchronous else written_tensors(plan, args, kwargs))

    def recorded(self, graph: Graph) -> dict[str, Array]:
        """The recorded arrays, by "node:output"."""
        nodes = np.flatnonzero(graph.columns["node_kind"] == KINDS.index(NodeKind.OP))
        return {
            f"{node}:{index}": array
            for node, arrays in zip(nodes, self._values, strict=False)
            for index, array in enumerate(arrays)
            if array is not None
        }


def tensors_of(items: Any) -> list[torch.Tensor]:
    tensors = []
    for item in items:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple)):
            tensors += tensors_of(item)
    return tensors


def written_tensors(plan: Plan, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors an op writes, as its schema and operations.of say."""
    arguments = [argument_at(slot.name, slot.position, args, kwargs) for slot in plan.slots if slot.written]
    if plan.hidden is not None and args[plan.hidden[1]]:
        arguments += [args[position] for position in plan.hidden[0]]
    return tensors_of(arguments)


def argument_at(name: str, position: int | None, args: Any, kwargs: Any) -> Any:
    return args[position] if position is not None and position < len(args) else kwargs.get(name)


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor in a dtype that numpy has; None for what has none: a layout of its own, no data, bits."""
    no_numbers = tensor.device.type == "meta" or isinstance(tensor, FakeTensor)
    if tensor.layout is not torch.strided or tensor.is_nested or no_numbers:
        return None
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64)
    if tensor.dtype is torch.bfloat16 or (tensor.is_floating_point() and tensor.dtype.itemsize == 1):
        return None if tensor.dtype is torch.float4_e2m1fn_x2 else tensor.float()
    return tensor if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype in _WHOLE else None


def _copied(tensor: torch.Tensor) -> Array | None:
    plain = _plain(tensor)
    return None if plain is None else plain.clone().resolve_conj().resolve_neg().numpy()


def _statistics(tensor: torch.Tensor) -> Array | None:
    """Minimum, maximum, mean and deviation of the finite numbers, and how many are not finite."""
    plain = _plain(tensor)
    if plain is None or not plain.numel():
        return None
    numbers = (plain.abs() if plain.is_complex() else plain).to(torch.float64)
    finite = numbers[numbers.isfinite()]
    missing = float(numbers.numel() - finite.numel())
    if not finite.numel():
        return np.array([np.nan, np.nan, np.nan, np.nan, missing])
    spread = finite.std(correction=0)
    return np.array([float(finite.min()), float(finite.max()), float(finite.mean()), float(spread), missing])
