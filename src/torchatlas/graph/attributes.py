"""The attributes of a node: its arguments by name with defaults, and what people expect beside them.

That is what the shapes of its tensors imply (kernel_size, in_features ...) and, of a collective, with whom it
communicates, how many bytes and by which reduction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchatlas.graph.arguments import Call, Constant, TensorRef, decode_value
from torchatlas.graph.columns import Layout, Operation

Shape = tuple[int | str, ...]
# They hand over nothing: the tensor they take only says on which device to wait, or is passed on.
# fmt: off
WITHOUT_PAYLOAD = (
    "c10d.barrier", "c10d.check_for_nan", "c10d.monitored_barrier_", "c10d_functional.wait_tensor",
    "_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd",
)
# fmt: on
_FUNCTIONAL = ("c10d_functional.", "_c10d_functional.", "_c10d_functional_autograd.", "_dtensor.")
_COUNTED = ("c10d.", *_FUNCTIONAL)


def attributes_of(operation: Operation, call: Call, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Non-tensor arguments by name, then what the shapes of the tensor arguments imply."""
    named = arguments_by_name(operation, call)
    attributes = {name: item for name, item in named.items() if not _holds_tensor(item)}
    tensors = {name: shapes[item.index] for name, item in named.items() if isinstance(item, TensorRef)}
    for implied in _IMPLIED:
        attributes.update(implied(operation.name, named, tensors))
    return attributes


def arguments_by_name(operation: Operation, call: Call) -> dict[str, Any]:
    """Every argument under its schema name, defaults filled in; positional ones without a name get their position."""
    arguments: dict[str, Any] = {}
    for position, parameter in enumerate(operation.parameters):
        if position < len(call.args) and not parameter.keyword_only:
            arguments[parameter.name] = call.args[position]
        elif call.kwargs and parameter.name in call.kwargs:
            arguments[parameter.name] = call.kwargs[parameter.name]
        elif parameter.default is not None:
            arguments[parameter.name] = decode_value(parameter.default)
    for position in range(len(operation.parameters), len(call.args)):
        arguments[f"argument_{position}"] = call.args[position]
    for name, item in (call.kwargs or {}).items():
        arguments.setdefault(name, item)
    return arguments


def _holds_tensor(item: Any) -> bool:
    if isinstance(item, (list, tuple)):
        return any(_holds_tensor(part) for part in item)
    return isinstance(item, TensorRef)


def _convolution(operation: str, named: dict[str, Any], tensors: dict[str, Shape]) -> dict[str, Any]:
    weight = tensors.get("weight")
    if "conv" not in operation or weight is None or len(weight) < 3:
        return {}
    if "conv_tbc" in operation:  # the kernel comes first
        return {"kernel_size": [weight[0]], "in_channels": weight[1], "out_channels": weight[2]}
    if "depthwise" in operation and "groups" not in named:  # a group for every channel of what it reads
        read = tensors.get("input", tensors.get("self", ()))
        known = {"in_channels": read[1 - len(weight)]} if len(read) >= len(weight) - 1 else {}
        return {"kernel_size": list(weight[2:]), **known, "out_channels": weight[0]}
    groups, transposed = named.get("groups", 1), named.get("transposed", "transpose" in operation)
    first, second = weight[0], weight[1]
    scaled = second * groups if isinstance(second, int) and isinstance(groups, int) else second
    channels = (first, scaled) if transposed else (scaled, first)
    return {"kernel_size": list(weight[2:]), "in_channels": channels[0], "out_channels": channels[1]}


def _linear(operation: str, named: dict[str, Any], tensors: dict[str, Shape]) -> dict[str, Any]:
    if operation.startswith("aten.addmm.") and len(tensors.get("mat2", ())) == 2:
        return {"in_features": tensors["mat2"][0], "out_features": tensors["mat2"][1]}
    if "linear" in operation and len(tensors.get("weight", ())) == 2:
        return {"in_features": tensors["weight"][1], "out_features": tensors["weight"][0]}
    return {}


def _embedding(operation: str, named: dict[str, Any], tensors: dict[str, Shape]) -> dict[str, Any]:
    weight = tensors.get("weight", ())
    if "embedding" not in operation or len(weight) != 2:
        return {}
    return {"num_embeddings": weight[0], "embedding_dim": weight[1]}


_IMPLIED: tuple[Callable[[str, dict[str, Any], dict[str, Shape]], dict[str, Any]], ...] = (
    _convolution,
    _linear,
    _embedding,
)


# -- collectives -------------------------------------------------------------------------------------------------------


def collective_attributes(
    operation: str,
    named: Mapping[str, Any],
    taken: Sequence[Layout],
    writes: Sequence[int],
    made: Sequence[Layout],
    groups: Mapping[str, Any],
) -> dict[str, Any]:
    """`named` are the arguments by name, `taken` and `made` the layouts of inputs and outputs, `groups` by name."""
    attributes: dict[str, Any] = {}
    name = named.get("process_group", named.get("group_name"))
    name = name.name if isinstance(name, Constant) else name
    if isinstance(name, str):
        attributes["group"] = {"name": name, **groups.get(name, {})}
    if not operation.startswith(_COUNTED):
        return attributes
    moves = operation.rpartition(".")[0] not in WITHOUT_PAYLOAD
    attributes["bytes"] = _payload(taken, writes, made) if moves else 0
    if moves and "async_op" not in named:  # send and isend are the same op: it does not tell
        attributes["async_op"] = True if operation.startswith(_FUNCTIONAL) else None
    reduction = named.get("reduce_op")
    if isinstance(reduction, Constant):
        attributes["reduce_op"] = reduction.name
    ranks = attributes.get("group", {}).get("ranks")
    for argument in ("dst", "src", "root_rank"):
        position = named.get(argument)
        if isinstance(position, int):
            word = "root" if argument == "root_rank" or "broadcast" in operation else "peer"
            known = ranks is not None and 0 <= position < len(ranks)
            attributes[word] = ranks[position] if known else None
    return attributes


def _payload(taken: Sequence[Layout], writes: Sequence[int], made: Sequence[Layout]) -> int | None:
    """The larger of what this process hands in and what it gets back, in bytes."""
    sent = [_bytes(layout) for position, layout in enumerate(taken) if position not in writes]
    received = [_bytes(taken[position]) for position in writes] if writes else [_bytes(layout) for layout in made]
    if None in sent or None in received:
        return None
    return max(sum(part or 0 for part in sent), sum(part or 0 for part in received))


def _bytes(layout: Layout) -> int | None:
    bits = re.search(r"\d+", layout.dtype)
    if layout.kind != "strided" or not all(isinstance(size, int) for size in layout.shape):
        return None
    if bits is None and layout.dtype != "bool":
        return None
    return math.prod(int(size) for size in layout.shape) * (1 if bits is None else max(int(bits[0]) // 8, 1))
