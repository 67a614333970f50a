"""What a run hears of the program while a step is recorded: calls of modules, backward passes, the loss, gradients."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch

from torchatlas.capturing import patches
from torchatlas.torch_private import never_compiled

if TYPE_CHECKING:
    from torchatlas.runs.run_recording import RunRecording


def scalar(tensors: Any) -> float | None:
    """The number that backward was called on; None where it was no single one."""
    items = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(items) != 1 or items[0].numel() != 1 or items[0].is_complex():
        return None
    try:
        return float(items[0].item())
    except (RuntimeError, NotImplementedError):  # it has no number: fake, meta, or another rank's
        return None


def has_closure(args: Any, kwargs: Any) -> bool:
    """True if an optimizer's step was given a function that computes the loss and its gradients."""
    return kwargs.get("closure") is not None or any(callable(argument) for argument in args[1:])


def gradient_norms(optimizer: Any, names: dict[int, str]) -> dict[str, float]:
    """L2 norms of the gradients that an optimizer is about to use, by the module of the parameter."""
    paths: list[str] = []
    norms: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                values = gradient.coalesce().values() if gradient.is_sparse else gradient
                norms.append(torch.linalg.vector_norm(values, dtype=torch.float32 if values.itemsize < 4 else None))
                paths.append(names.get(id(parameter), "").rpartition(".")[0])
    by_module: dict[str, float] = {}
    for path, norm in zip(paths, norms, strict=True):
        by_module[path] = math.hypot(by_module.get(path, 0.0), float(norm))
    return by_module


class Listener:
    """Tells a run of backward passes and of modules that the program calls; see capturing/patches.py."""

    touches_nodes = False  # of autograd
    hears_schedulers = is_native = False
    outermost_only = True

    def __init__(self, run: RunRecording) -> None:
        self._run = weakref.ref(run)

    def module_called(self, inner: Any, cell: patches.Cell, module: Any, args: Any, kwargs: Any) -> Any:
        outer = cell[0]
        if outer < 0:
            self._arrives()
        cell[0] = 0
        try:
            return inner(module, *args, **kwargs)
        except BaseException as error:
            if outer < 0:
                self._raised(error)
            raise
        finally:
            cell[0] = outer

    @never_compiled
    def _arrives(self) -> None:
        if (run := self._run()) is not None:
            run._before_call()

    @never_compiled
    def _raised(self, error: BaseException) -> None:
        if (run := self._run()) is not None:
            run._after_error(error)

    def backward_called(self, inner: Any, cell: patches.Cell, tensors: Any, args: Any, kwargs: Any) -> Any:
        try:
            result = inner(tensors, *args, **kwargs)
        except BaseException as error:
            self._raised(error)
            raise
        if (run := self._run()) is not None:
            run._after_backward(tensors)
        return result

    def graph_called(self, inner: Any, cell: patches.Cell, graph: Any, args: Any, kwargs: Any) -> Any:
        return inner(graph, *args, **kwargs)

    def function_operator_called(self, inner: Any, cell: patches.Cell, operator: Any, args: Any, kwargs: Any) -> Any:
        return inner(operator, *args, **kwargs)

    def step_begins(self, cell: patches.Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    def step_ends(self, cell: patches.Cell, optimizer: Any) -> None: ...
    def hooks_begin(self, cell: patches.Cell) -> None: ...
    def may_have_recomputed(self) -> None: ...
    def scheduler_stepped(self, scheduler: Any) -> None: ...
    def data_set(self, tensor: Any) -> None: ...
    def before_resize(self, storage: Any) -> None: ...
    def after_resize(self, storage: Any) -> None: ...

    def join_thread(self, cell: patches.Cell, thread: Any) -> tuple[patches.Cell, Any]:
        return [0, None], None
