"""Running a program on fake tensors: shapes, dtypes and devices flow, nothing is allocated or computed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.frames import raising_line
from torchatlas.capturing.tensors import parts
from torchatlas.errors import CaptureError
from torchatlas.graph import Graph
from torchatlas.inputs import accepts, named_tensors
from torchatlas.interrupts import whole
from torchatlas.operations import of
from torchatlas.torch_private import FakeCopyMode, FakeTensor, FakeTensorMode, fake_number, no_dispatch_modes

Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]

_NOTE = "ran on fake tensors: shapes, memory and structure are real, nothing was computed, so there are no times"


def fake_mode(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeTensorMode:
    """The mode in which `faked` makes a program, and that runs it."""
    return _mode_of(model, args, kwargs) or FakeTensorMode(allow_non_fake_inputs=True)


def faked(
    mode: FakeTensorMode, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Any
) -> Program:
    """The program with fake parameters and inputs.

    The model is copied without its data, so the user's own stays untouched. A function that takes no arguments and
    returns a module builds the model inside the mode: nothing is ever allocated.
    """
    built = _built(model, args, kwargs)
    target = model if built is None else built
    if _mode_of(target, (), {}) is None:
        return _copied(mode, target, args, kwargs, optimizer)
    return target, *_fake_inputs(mode, args, kwargs), optimizer


@contextmanager
def values_refused() -> Iterator[None]:
    """Say what to do about a program that reads what fake tensors do not have."""
    try:
        yield
    except Exception as error:
        if "DataDependentOutput" in type(error).__name__ or "DynamicOutputShape" in type(error).__name__:
            where = f" at {line}" if (line := raising_line(error)) else ""
            raise CaptureError(
                f"This program reads the values of its tensors ({error}){where}. Fake tensors have none: capture it "
                "with fake=False, or take the reading line out."
            ) from error
        raise


def without_pretence(graph: Graph) -> None:
    """Take out of a recorded graph what fake tensors made up, and say that they ran. Once: again changes nothing."""
    if graph.metadata.get("fake"):
        return
    for column in ("node_time_ns", "node_start_ns"):  # how long it takes to pretend means nothing
        graph.columns[column][:] = -1
    # A fake kernel returns no bytes as workspace, whose size only the real one knows: unknown is never zero.
    for name in {operation.name for operation in graph.tables.operations if of(operation.name).has_workspace}:
        for node in graph.where(operation=name):
            for value in node.outputs:
                if value.shape == (0,) and value.dtype == "uint8" and value.storage is not None:
                    graph.columns["storage_bytes"][value.storage.id] = -1
    graph.notes.append(_NOTE)
    graph.metadata["fake"] = True


def _built(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module | None:
    """The module a builder returns; None when `model` is no builder."""
    if isinstance(model, nn.Module):
        return None
    is_class = isinstance(model, type) and issubclass(model, nn.Module)
    if not is_class and (accepts(model, args, kwargs) or not accepts(model, (), {})):
        return None  # what takes the arguments is the program itself
    try:
        with whole(warnings.catch_warnings()):
            # torch copies layers so itself, as nn.TransformerEncoder does; nothing comes of it.
            warnings.filterwarnings(
                "ignore", "Accessing the data pointer of FakeTensor is deprecated", UserWarning, r"torch\._tensor$"
            )
            module = model()
    except RuntimeError as error:
        if "Couldn't swap" not in str(error) and "DataDependentOutput" not in type(error).__name__:
            raise
        # torch cannot convert modules made of fake tensors (.to, .half, .bfloat16) nor draw their parameters where it
        # looks at what it drew (nn.init.trunc_normal_); on the meta device it can.
        try:
            with no_dispatch_modes(), torch.device("meta"):
                module = model()
        except RuntimeError:  # it reads values there too
            raise error from None
    if not isinstance(module, nn.Module):
        raise CaptureError(f"The function given as model returned {type(module).__name__}, not a torch.nn.Module.")
    return module


def _copied(mode: FakeTensorMode, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Any) -> Program:
    memo: dict[int, Any] = {}
    if isinstance(model, nn.Module):
        for tensor in _tensors(model):
            memo[id(tensor)] = _fake(mode, tensor)
    for _, tensor in named_tensors((args, kwargs)):
        memo[id(tensor)] = _fake(mode, tensor)
    for number in _numbers_of(optimizer):
        memo[id(number)] = fake_number(mode, number)
    try:
        with FakeCopyMode(mode), whole(warnings.catch_warnings()):
            # How torch copies its own exported modules.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            return copy.deepcopy((model, args, kwargs, optimizer), memo)
    except Exception as error:
        raise CaptureError(
            f"This model cannot be copied without its data ({type(error).__name__}: {error}). "
            "Pass a function that builds it instead: atlas.capture(lambda: MyModel(...), *args, fake=True)."
        ) from error


def _numbers_of(optimizer: Any) -> Iterator[torch.Tensor]:
    """The tensors of one element in the state of an optimizer: Adam counts its steps so, and reads how many it took."""
    for state in getattr(optimizer, "state", {}).values() if isinstance(optimizer, torch.optim.Optimizer) else ():
        for item in state.values() if isinstance(state, dict) else ():
            plain = isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor)
            if plain and item.numel() == 1 and item.device.type == "cpu":
                yield item


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake twin. What lies on the meta device becomes a CPU tensor: it stands for one that is yet to be made."""
    if isinstance(tensor, FakeTensor):
        return tensor
    if tensor.device.type == "meta":
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    else:
        with no_dispatch_modes():  # fake ones take long to say what this is
            plain = tensor.detach()
        twin = mode.from_tensor(plain, static_shapes=True)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    twin.requires_grad_(tensor.requires_grad)
    return twin if tensor.is_leaf else twin.clone()  # a leaf that requires a gradient may not be written to


def _fake_inputs(
    mode: FakeTensorMode, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    memo: dict[int, Any] = {id(tensor): _fake(mode, tensor) for _, tensor in named_tensors((args, kwargs))}
    with FakeCopyMode(mode):
        return copy.deepcopy((args, kwargs), memo)


def _mode_of(model: Any, args: Any, kwargs: Any) -> FakeTensorMode | None:
    """The mode that tensors given as fakes already belong to."""
    tensors = [tensor for _, tensor in named_tensors((args, kwargs))]
    if isinstance(model, nn.Module):
        tensors += _tensors(model)
    held = [part for tensor in tensors for _, part in parts(tensor)]
    return next((part.fake_mode for part in held if isinstance(part, FakeTensor)), None)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
