"""A call's arguments by name: the schema's own names and defaults, and the few numbers people expect beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchatlas.graph.arguments import Call, TensorRef, decode_value
from torchatlas.graph.columns import Operation

Shape = tuple[int | str, ...]


def attributes_of(operation: Operation, call: Call, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Non-tensor arguments by name, then what the shapes of the tensor arguments imply."""
    named = arguments_by_name(operation, call)
    found = {name: item for name, item in named.items() if not _holds_tensor(item)}
    tensors = {name: shapes[item.index] for name, item in named.items() if isinstance(item, TensorRef)}
    for implied in _IMPLIED:
        found.update(implied(operation.name, named, tensors))
    return found


def arguments_by_name(operation: Operation, call: Call) -> dict[str, Any]:
    """Every argument under its schema name, defaults filled in; positional ones without a name get their position."""
    found: dict[str, Any] = {}
    for position, parameter in enumerate(operation.parameters):
        if position < len(call.args) and not parameter.keyword_only:
            found[parameter.name] = call.args[position]
        elif call.kwargs and parameter.name in call.kwargs:
            found[parameter.name] = call.kwargs[parameter.name]
        elif parameter.default is not None:
            found[parameter.name] = decode_value(parameter.default)
    for position in range(len(operation.parameters), len(call.args)):
        found[f"argument_{position}"] = call.args[position]
    for name, item in (call.kwargs or {}).items():
        found.setdefault(name, item)
    return found


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
