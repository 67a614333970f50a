"""A graph from a file that holds a program -> the traces of a model. Nothing is executed, and little is believed."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from torchatlas.errors import FileFormatError, InvalidModelError, NewerVersionError, StateError
from torchatlas.execute import structures
from torchatlas.execute.conditions import condition
from torchatlas.execute.file_format import FUNCTIONS, KEY, VERSION, Leaf, Saved, SavedVariant
from torchatlas.execute.matching import ANY_NUMBER, Expected
from torchatlas.execute.ops import argument, dtype_named, operator
from torchatlas.execute.program import Program, Register, instruction
from torchatlas.execute.variant import Variant
from torchatlas.graph import Graph
from torchatlas.graph.arguments import TensorRef, decode, decode_value
from torchatlas.graph.columns import Operation
from torchatlas.graph.nouns import OperationType


def holds_program(graph: Graph) -> bool:
    return KEY in graph.metadata


def loaded(graph: Graph, model: nn.Module | None, allow: Iterable[str]) -> tuple[list[Variant], nn.Module]:
    """The traces in a graph that was loaded, and a model: the one given, or one made of the weights saved with it."""
    saved = _checked(graph.metadata[KEY], Saved)
    tensors = _tensors(graph, saved)
    allowed = frozenset(allow)
    constants: dict[str, Any] = {}
    if model is None:
        if not saved.weights:
            raise StateError(
                f"the weights of this {saved.model} were not saved: pass a model that has them, "
                "atlas.load(path, model=model)."
            )
        model = _Weights(saved, tensors)
    _check_weights(model, saved, tensors, constants)
    variants = [_variant(_without_program(graph), saved.variant, tensors, constants, allowed)]
    for number in range(saved.variants):
        inner = _unnested(graph, number)
        found = _checked(inner.metadata.get(KEY), SavedVariant)
        variants.append(_variant(_without_program(inner), found, tensors, constants, allowed))
    return variants, model


class _Weights(nn.Module):
    """Parameters and buffers under the names that the traced model had, and nothing else."""

    def __init__(self, saved: Saved, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        made: dict[int, Any] = {}  # tied weights stay tied
        for name, held in saved.held.items():
            path, _, last = name.rpartition(".")
            owner: Any = self
            for part in path.split(".") if path else ():
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner._modules[part]
            if not last or hasattr(owner, last):
                raise FileFormatError(f"the weight {name!r} cannot be named so.")
            if held.kind == "parameter":
                made.setdefault(held.tensor, nn.Parameter(tensors[held.tensor], requires_grad=held.requires_grad))
                owner.register_parameter(last, made[held.tensor])
            else:
                owner.register_buffer(last, tensors[held.tensor].requires_grad_(held.requires_grad))


def _check_weights(model: nn.Module, saved: Saved, tensors: list[torch.Tensor], constants: dict[str, Any]) -> None:
    """A model must have every weight that the program reads; what it has not, and was saved, is a constant of it."""
    for name, held in saved.held.items():
        found: Any = model
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, torch.Tensor):
            if held.tensor >= 0 and list(found.shape) != saved.tensors[held.tensor][1]:
                raise InvalidModelError(
                    f"{name} has the shape {tuple(found.shape)}; in the model that was saved it is "
                    f"{tuple(saved.tensors[held.tensor][1])}."
                )
        elif held.tensor >= 0:
            constants[name] = tensors[held.tensor]
        else:
            raise InvalidModelError(f"this model has no {name}: it is not the {saved.model} that was saved.")


def signature_of(graph: Graph) -> inspect.Signature:
    """How the model that was saved is called."""
    saved: Saved = _checked(graph.metadata[KEY], Saved)
    try:
        return inspect.Signature([_parameter(*each) for each in saved.signature])
    except ValueError as error:
        raise FileFormatError(f"its program is damaged: {error}.") from error


def _parameter(name: str, kind: int, given: bool, default: str) -> inspect.Parameter:
    value = argument(_decoded(decode_value, default), [], None) if given else inspect.Parameter.empty
    return inspect.Parameter(name, inspect._ParameterKind(kind), default=value)


def model_name(graph: Graph) -> str:
    saved: Saved = _checked(graph.metadata[KEY], Saved)
    return saved.model


def _checked(data: Any, kind: Any) -> Any:
    version = data.get("version", VERSION) if isinstance(data, dict) else VERSION
    if isinstance(version, int) and version > VERSION:
        raise NewerVersionError(f"its program has version {version}, and this torchatlas reads {VERSION}. Update it.")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise FileFormatError(f"its program is damaged: {error}.") from error


def _decoded(read: Any, text: str) -> Any:
    try:
        return read(text)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"its program is damaged: {text[:60]!r} is no argument.") from error


def _tensors(graph: Graph, saved: Saved) -> list[torch.Tensor]:
    found = []
    for number, (dtype, shape) in enumerate(saved.tensors):
        content, kind = graph.recorded.get(f"{KEY}/tensor/{number}"), dtype_named(dtype)
        size = math.prod(shape) * kind.itemsize if min(shape, default=0) >= 0 else -1
        if content is None or content.dtype != np.uint8 or content.ndim != 1 or len(content) != size:
            raise FileFormatError(f"its program is damaged: tensor {number} has not the {size} bytes that it should.")
        raw = torch.from_numpy(np.array(content)) if size else torch.empty(0, dtype=torch.uint8)
        found.append(raw.view(kind).reshape(shape))
    numbers = [held.tensor for held in saved.held.values()] if saved.weights else []
    if any(not 0 <= number < len(found) for number in [*numbers, *saved.variant.attached.values()]):
        raise FileFormatError("its program is damaged: a weight is missing.")
    return found


def _unnested(graph: Graph, number: int) -> Graph:
    content = graph.recorded.get(f"{KEY}/variant/{number}")
    if content is None:
        raise FileFormatError(f"its program is damaged: trace {number + 1} is missing.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variant.atlas"
        path.write_bytes(np.ascontiguousarray(content).tobytes())
        return Graph.load(path)


def _without_program(graph: Graph) -> Graph:
    metadata = {key: item for key, item in graph.metadata.items() if key != KEY}
    return Graph(graph.columns, graph.tables, source=graph.source, notes=graph.notes, metadata=metadata)


def _variant(
    graph: Graph,
    saved: SavedVariant,
    tensors: list[torch.Tensor],
    constants: dict[str, Any],
    allow: frozenset[str],
) -> Variant:
    count = len(saved.registers)
    functions = {name: _function(name, allow) for name in dict.fromkeys(each.function for each in saved.calls)}
    instructions = []
    for each in saved.calls:
        call = _decoded(decode, each.call)
        args, kwargs = _rich(call.args, count), _rich(call.kwargs or {}, count)
        _check_register(each.result, count)
        instructions.append(instruction(each.name, each.result, functions[each.function], args, kwargs))
    for register in [*saved.inputs, *map(_number, saved.constants), *map(_number, saved.attached)]:
        _check_register(register, count)
    if unknown := [name for name in saved.names.values() if name not in graph]:
        raise FileFormatError(f"its program is damaged: the graph has no node {unknown[0]!r}.")
    if any(not 0 <= number < len(tensors) for number in saved.attached.values()):
        raise FileFormatError("its program is damaged: a tensor is missing.")
    program = Program(
        saved.registers,
        saved.inputs,
        {int(register): name for register, name in saved.constants.items()},
        instructions,
        _rich(_decoded(decode_value, saved.outputs), count),
        {int(register): tensors[number] for register, number in saved.attached.items()},
    )
    _check_order(program)
    leaves = [(leaf.name, _expected(leaf)) for leaf in saved.leaves]
    guards = [(text, condition(text)) for text in saved.guards]
    in_spec, out_spec = structures.read(saved.in_spec), structures.read(saved.out_spec)
    return Variant(program, graph, saved.names, in_spec, out_spec, leaves, guards, constants)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _check_register(register: int, count: int) -> None:
    if not 0 <= register < count:
        raise FileFormatError(f"its program is damaged: there is no register {register}.")


def _check_order(program: Program) -> None:
    """Nothing is read before it is there."""
    there = {*program.inputs, *program.constants, *program.attached}
    for each in program.instructions:
        if early := [register for register in each.reads if register not in there]:
            raise FileFormatError(f"its program is damaged: register {early[0]} is read before it is written.")
        there.add(each.result)
    if any(item.number not in there for item in program.outputs if isinstance(item, Register)):
        raise FileFormatError("its program is damaged: it returns what it does not compute.")


def _function(name: str, allow: frozenset[str]) -> Any:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    return operator(Operation(name, OperationType.UNKNOWN), allow)


def _rich(item: Any, count: int) -> Any:
    """An argument as a program takes it."""
    if isinstance(item, TensorRef):
        _check_register(item.index, count)
        return Register(item.index)
    if isinstance(item, (list, tuple)):
        return type(item)(_rich(part, count) for part in item)
    if isinstance(item, dict):
        return {key: _rich(part, count) for key, part in item.items()}
    return argument(item, [], None)


def _expected(leaf: Leaf) -> Any:
    if leaf.kind == "tensor":
        return Expected(dtype_named(leaf.dtype), leaf.device, tuple(leaf.shape))
    return ANY_NUMBER if leaf.kind == "number" else argument(_decoded(decode_value, leaf.value), [], None)
