"""Everything in the process that a recorder could leave behind, as one snapshot that can be compared.

Modules and classes are looked at attribute by attribute, so that a patch shows wherever it was put; what lies outside
of any attribute (mode stacks, thread-local flags, random numbers, hooks of the user's own objects) is asked for.
"""

from __future__ import annotations

import atexit
import contextvars
import gc
import logging
import os
import random
import signal
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch._dynamo.utils
import torch.overrides
import torch.utils._python_dispatch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer

World = dict[str, Any]

# Patching is setting an attribute of one of these.
_PATCHABLE: tuple[Any, ...] = (
    torch,
    torch.Tensor,
    torch._C.TensorBase,
    torch.UntypedStorage,
    torch.TypedStorage,
    torch.Generator,
    torch.autograd,
    torch.autograd.Function,
    torch.autograd.graph,
    torch.autograd.graph.saved_tensors_hooks,
    torch.autograd.grad_mode,
    torch._dynamo.utils,
    torch._dynamo.variables.nn_module,
    torch._TorchCompileInductorWrapper,
    torch.library,
    torch.nn.functional,
    torch.overrides,
    torch.random,
    torch.serialization,
    torch.utils._python_dispatch,
    torch.utils._python_dispatch.TorchDispatchMode,
    torch.utils.checkpoint,
    torch._ops,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    FakeTensor,
    nn,
    nn.Module,
    nn.Parameter,
    nn.parameter.UninitializedTensorMixin,
    nn.Sequential,
    nn.Linear,
    sys.modules[nn.Module.__module__],
    Optimizer,
    sys.modules[Optimizer.__module__],
    torch.optim.SGD,
    torch.optim.AdamW,
    gc,
    threading,
    threading.Thread,
    weakref,
    warnings,
)
_NOT_OURS = {  # what Python and torch count or fill by themselves
    "threading._counter",
    "threading._dangling",
    "torch._dynamo.utils._cleanup_owners",  # since 2.15: owners of compiled code, until they are collected
    "warnings._filters_version",
    "warnings.onceregistry",
}
_PLAIN = (bool, int, float, str, bytes, type(None))
_SIZED = (dict, list, set, tuple)


def snapshot(*roots: Any) -> World:
    """The state of the process, and what hangs on the modules, tensors and optimizers that are given."""
    world: World = {_name(owner): Attributes(owner) for owner in (*_PATCHABLE, *_loaded_by_now())}
    world.update(_interpreter())
    world.update(_flags())
    for root in roots:
        world.update(_of_root(root))
    return world


def differences(before: World, after: World) -> list[str]:
    """What changed, in words; empty when the world is as it was."""
    found = []
    for key in dict.fromkeys([*before, *after]):
        one, other = before.get(key), after.get(key)
        if isinstance(one, Attributes) and isinstance(other, Attributes):
            found += [change for change in one.changes(other, key) if change.partition(": ")[0] not in _NOT_OURS]
        elif key not in before or key not in after or not _alike(one, other):
            found.append(f"{key}: {_short(one)} became {_short(other)}")
    return found


class Attributes:
    """All attributes of a module or class, and how long those are that have a length.

    It holds them, so that no address is used again; what was imported meanwhile is no change.
    """

    def __init__(self, owner: Any) -> None:
        self.items = dict(vars(owner))
        self.sizes = {name: len(item) for name, item in self.items.items() if isinstance(item, _SIZED)}

    def changes(self, other: Attributes, owner: str) -> Iterator[str]:
        for name in self.items | other.items:
            one, two = self.items.get(name, _ABSENT), other.items.get(name, _ABSENT)
            if one is two:
                if name in self.sizes and self.sizes[name] != other.sizes[name]:
                    yield f"{owner}.{name}: {self.sizes[name]} entries became {other.sizes[name]}"
            elif not isinstance(two, types.ModuleType) and not (isinstance(one, _PLAIN) and _alike(one, two)):
                yield f"{owner}.{name}: {_short(one)} became {_short(two)}"


class Same:
    """An object that must be the same one. Holding it keeps its address from being used again."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.item is other.item

    def __repr__(self) -> str:
        return repr(self.item)


_ABSENT = types.SimpleNamespace()


def _loaded_by_now() -> list[Any]:
    compiled = sys.modules.get("torch._inductor.output_code")
    return [] if compiled is None else [compiled, compiled.CompiledFxGraph]


def _name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _short(state: Any) -> str:
    return "nothing" if state is _ABSENT else repr(state)[:120]


def _interpreter() -> World:
    loggers = [logging.getLogger(), logging.getLogger("torch"), logging.getLogger("torchatlas")]
    descriptors = "/proc/self/fd"
    return {
        "gc.threshold": gc.get_threshold(),
        "gc.enabled": gc.isenabled(),
        "gc.frozen": gc.get_freeze_count() > 0,  # how many falls as they die
        "gc.callbacks": list(gc.callbacks),
        "gc.debug": gc.get_debug(),
        "sys.hooks": [sys.gettrace(), sys.getprofile(), sys.excepthook, sys.unraisablehook, sys.displayhook],
        "sys.imports": [*sys.meta_path, *sys.path_hooks],
        "sys.limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "warnings.filters": list(warnings.filters),
        "logging": [(logger.level, list(logger.handlers), list(logger.filters)) for logger in loggers],
        "atexit": atexit._ncallbacks(),
        "threads": set(threading.enumerate()),
        "context variables": dict(contextvars.copy_context().items()),
        "open files": len(os.listdir(descriptors)) if os.path.isdir(descriptors) else None,
        "random": random.getstate(),
        "numpy random": np.random.get_state()[1].tobytes(),  # noqa: NPY002  # the one a user may have seeded
    }


def _flags() -> World:
    devices = ("cpu", "cuda")
    return {
        "dispatch modes": list(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        "function modes": list(torch.overrides._get_current_function_mode_stack()),
        "dispatch keys": (
            str(torch._C._dispatch_tls_local_include_set()),
            str(torch._C._dispatch_tls_local_exclude_set()),
        ),
        "saved tensors hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_fwd_grad_enabled()),
        "multithreaded backward": torch._C._is_multithreading_enabled(),
        "view replay": torch._C._is_view_replay_enabled(),
        "autograd node": torch._C._current_autograd_node(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "profiler": torch.autograd._profiler_enabled(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "backends": (
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.flash_sdp_enabled(),
        ),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch random": bytes(torch.get_rng_state().numpy()),
        "libraries": (len(torch.library._defs), len(torch.library._impls)),
    }


def _of_root(root: Any) -> Iterator[tuple[str, Any]]:
    for name, item in _parts(root):
        yield from ((f"{name}: {what}", state) for what, state in _traces(item))
        yield from ((f"{name}: {what}", state) for what, state in _identities(item))


def traces(*roots: Any) -> World:
    """What a recorder could have hung on modules, tensors and optimizers: the same for two that are built alike."""
    return {f"{name}: {what}": state for root in roots for name, item in _parts(root) for what, state in _traces(item)}


def _parts(root: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every module, tensor and optimizer in a structure, with a name."""
    if isinstance(root, nn.Module):
        for path, module in root.named_modules():
            yield f"module {path}", module
        yield from [*root.named_parameters(), *root.named_buffers()]
    elif isinstance(root, (Optimizer, torch.Tensor)):
        yield name or type(root).__name__, root
    elif isinstance(root, (list, tuple, dict)):
        for key, part in root.items() if isinstance(root, dict) else enumerate(root):
            yield from _parts(part, f"{name}.{key}")


def _traces(item: Any) -> Iterator[tuple[str, Any]]:
    yield "class", (type(item).__qualname__, type(item).__bases__)  # weight norm makes a class for each module
    yield "weak references", weakref.getweakrefcount(item)
    if isinstance(item, nn.parameter.UninitializedTensorMixin):
        return
    yield "attributes", sorted(vars(item))
    hooks = {name: len(part) for name, part in vars(item).items() if "hooks" in name}
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):  # of tensors: not in vars
        hooks[name] = len(getattr(item, name, None) or ())
    yield "hooks", hooks
    if isinstance(item, Optimizer):
        yield "step", getattr(item.step, "__func__", item.step)
    elif isinstance(item, torch.Tensor):
        if not item.is_inference():
            yield "version", item._version
        if _is_plain(item):
            yield "weak references to the storage", weakref.getweakrefcount(item.untyped_storage())


def _identities(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, nn.Module):
        for name, part in vars(item).items():
            yield name, Same(part)
            if isinstance(part, (list, tuple, dict)):  # hooks, parameters, children, and the user's own
                entries = part.items() if isinstance(part, dict) else enumerate(part)
                yield f"in {name}", [(key, Same(entry)) for key, entry in entries]
    elif isinstance(item, Optimizer):
        for number, group in enumerate(item.param_groups):
            yield f"group {number}", [(name, Same(part)) for name, part in group.items()]
        for number, (parameter, state) in enumerate(item.state.items()):
            for name, part in state.items():
                yield f"state {number} {name}", (Same(parameter), Same(part), _contents(part))
    elif not isinstance(item, nn.parameter.UninitializedTensorMixin):
        yield "requires grad", (item.requires_grad, Same(item.grad_fn))
        yield "contents", _contents(item)
        if item.is_leaf:
            yield "gradient", (Same(item.grad), _contents(item.grad))
        if _is_plain(item):
            yield "layout", (item.untyped_storage().data_ptr(), item.shape, item.stride(), item.storage_offset())


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, nn.Parameter)


def _contents(item: Any) -> bytes | None:
    if not isinstance(item, torch.Tensor) or not _is_plain(item) or item.device.type == "meta":
        return None
    return bytes(item.detach().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy())
