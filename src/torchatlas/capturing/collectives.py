"""What torch.distributed leaves unsaid: the group and the reduction of a collective, as words.

Process groups are described at the call, while they are alive. What waits for a collective is no op, so its result is
taken to be there when the call returns; only `wait_tensor` of the functional collectives is a node of its own.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchatlas.graph.arguments import Constant
from torchatlas.torch_private import current_autograd_node, process_group_named, process_groups

# Hands its argument on, wrapped in a tensor that waits when it is used and has no memory of its own.
WRAPS = "_c10d_functional::_wrap_tensor_autograd"

_OUTLIVED: weakref.WeakSet[Any] = weakref.WeakSet()  # by their process group: see keep_group

_GROUP, _REDUCTION = "__torch__.torch.classes.c10d.ProcessGroup", "__torch__.torch.classes.c10d.ReduceOp"


def is_group(argument: Any) -> bool:
    """True for an argument of a schema that is a process group, or the name of one."""
    return str(argument.type) == _GROUP or argument.name == "group_name"


def is_reduction(argument: Any) -> bool:
    return str(argument.type) == _REDUCTION


def note_process(metadata: dict[str, Any]) -> None:
    """Which of how many processes this is, if it is one of several."""
    if dist.is_available() and dist.is_initialized():
        metadata["rank"], metadata["world_size"] = dist.get_rank(), dist.get_world_size()


def noted_group(metadata: dict[str, Any], item: Any) -> Any:
    """A process group as a constant with its name; its description goes into the metadata. A name stays a name."""
    if isinstance(item, str) and item in metadata.get("groups", ()):
        return item
    group = _group(item)
    if group is not None and group.group_name not in metadata.get("groups", ()):
        note_process(metadata)
        metadata.setdefault("groups", {})[group.group_name] = {
            "description": group.group_desc,
            "backend": _backend(group),
            "size": group.size(),
            "ranks": _ranks(group),
        }
        if current_autograd_node() is not None:  # what reduces may have been called before the recording began
            keep_groups()
    return Constant("group", group.group_name) if group is not None and not isinstance(item, str) else item


def keep_group(attributes: Mapping[str, Any]) -> None:
    """Let the process group of a DistributedDataParallel module live until the module's C++ half is gone.

    Else letting go of a recorded module can deadlock. The C++ half (the reducer) may be the last to hold the group. It
    destroys it with the GIL taken and waits there for gloo's threads to end. One of them may just be dropping the last
    collective, for which it needs the GIL: tensors that a dispatch mode has seen have a Python object. And torch itself
    puts a `contextvars` context into what it starts during a backward pass (`autograd.graph._engine_run_backward`), so
    it deadlocks without a recording as well. A group that a Python object holds last is destroyed without the GIL.
    """
    group = attributes["process_group"]
    for half in (attributes.get("reducer"), attributes.get("logger")):  # the logger holds the reducer
        if half is not None and half not in _OUTLIVED:
            _OUTLIVED.add(half)
            weakref.finalize(half, _drop, group).atexit = False  # it holds the group until it runs


def keep_groups() -> None:
    """`keep_group` for all modules there are. It searches the objects of the garbage collector: some 50 ms."""
    groups = process_groups() if dist.is_available() and dist.is_initialized() else []
    for holder in gc.get_referrers(*groups) if groups else ():
        attributes = vars(holder) if issubclass(type(holder), DistributedDataParallel) else holder
        if isinstance(attributes, dict) and {"process_group", "reducer"} <= attributes.keys():
            keep_group(attributes)


def _drop(group: Any) -> None:
    """Called when a C++ half is gone: it only has to drop this reference to the group."""


def named_reduction(item: Any) -> Constant:
    """sum, avg, max ..."""
    return Constant("reduction", dist.ReduceOp.RedOpType(_real(item).op()).name.lower())


def over_gloo(metadata: dict[str, Any], arguments: tuple[Any, ...]) -> bool:
    """True if a call with these arguments went to a group of the gloo backend."""
    names = [item.name for item in arguments if isinstance(item, Constant) and item.kind == "group"]
    return any("gloo" in (metadata["groups"][name]["backend"] or "") for name in names)


def _real(item: Any) -> Any:
    """Under fake tensors script objects come wrapped."""
    return getattr(item, "real_obj", item)


def _group(item: Any) -> Any:
    item = _real(item)
    if isinstance(item, torch.ScriptObject):
        return dist.ProcessGroup.unbox(item)
    if isinstance(item, str):
        try:
            return process_group_named(item)
        except (RuntimeError, ValueError):
            return None
    return item if isinstance(item, dist.ProcessGroup) else None


def _backend(group: Any) -> str | None:
    try:
        return str(dist.get_backend(group))
    except ValueError:
        return None


def _ranks(group: Any) -> list[int] | None:
    """The ranks in the whole world, in the group's order; None for a group that Python does not know."""
    try:
        return list(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return None
