"""A graph from a file that holds a program -> the traces of a model. Nothing is executed, and everything is checked."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
from torch import nn

from torchatlas.errors import FileFormatError, InvalidModelError, NewerVersionError, StateError
from torchatlas.escapes import quoted
from torchatlas.execute.exporting import STAND_INS
from torchatlas.execute.operators import argument, dtype_named, operator
from torchatlas.execute.preconditions import checked
from torchatlas.execute.program import Mode, Program, Register, block, instruction
from torchatlas.execute.program_file import (
    BEGIN,
    END,
    FUNCTIONS,
    KEY,
    VERSION,
    Saved,
    SavedLeaf,
    SavedVariant,
    condition,
    structure_of_data,
)
from torchatlas.execute.trace_variant import ANY_NUMBER, Expected, Variant, tensor_named
from torchatlas.graph import Graph
from torchatlas.graph.arguments import decode, decode_value
from torchatlas.graph.columns import Operation
from torchatlas.graph.nouns import OperationType

_MOST_DIMENSIONS = 64  # no more are taken by most of torch's kernels
_LONGEST_SIZE = 1000  # letters of a size, a formula of symbols perhaps
_MOST_NESTED = 100  # modules in modules: Python walks them recursively


def holds_program(graph: Graph) -> bool:
    return KEY in graph.metadata


def loaded(graph: Graph, model: nn.Module | None, allow: Iterable[str]) -> tuple[list[Variant], nn.Module, Saved]:
    """The traces of a graph from a file, a model, and what the file says.

    The model is the one given, or one made of the weights that were saved.
    """
    saved: Saved = _checked(graph.metadata[KEY], Saved)
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
    variants = [_variant(_without_program(graph), saved.variant, tensors, saved.held, constants, allowed)]
    for number in range(saved.variants):
        inner = _unnested(graph, number)
        other = _checked(inner.metadata.get(KEY), SavedVariant)
        variants.append(_variant(_without_program(inner), other, tensors, saved.held, constants, allowed))
    return variants, model, saved


class _Weights(nn.Module):
    """Parameters and buffers under the names that the traced model had, and nothing else."""

    def __init__(self, saved: Saved, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        made: dict[int, Any] = {}  # tied weights stay tied
        for name, held in saved.held.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    _check_free(owner, part, name)
                    owner.add_module(part, nn.Module())
                owner = cast("nn.Module", owner._modules[part])
            _check_free(owner, last, name)
            tensor = tensors[held.tensor]
            if held.requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
                raise FileFormatError(f"the weight {name!r} is {tensor.dtype}, which has no gradients.")
            if held.kind == "parameter":
                made.setdefault(held.tensor, nn.Parameter(tensor, requires_grad=held.requires_grad))
                owner.register_parameter(last, made[held.tensor])
            else:
                owner.register_buffer(last, tensor.requires_grad_(held.requires_grad))


def _check_free(owner: nn.Module, part: str, name: str) -> None:
    """Refuse a name that would hide an attribute of nn.Module."""
    if not part or hasattr(owner, part):
        raise FileFormatError(f"the weight {name!r} cannot be named so.")


def _check_weights(model: nn.Module, saved: Saved, tensors: list[torch.Tensor], constants: dict[str, Any]) -> None:
    """Check that the model has every weight that the program reads; a saved one that it lacks becomes a constant."""
    owners: dict[str, Any] = {"": model}
    for name, held in saved.held.items():
        try:
            tensor = tensor_named(name, owners)
        except InvalidModelError:
            if held.tensor < 0:
                raise InvalidModelError(
                    f"this model has no {name}: it is not the {saved.model} that was saved."
                ) from None
            constants[name] = tensors[held.tensor]
            continue
        if held.tensor >= 0 and list(tensor.shape) != saved.tensors[held.tensor][1]:
            raise InvalidModelError(
                f"{name} has the shape {tuple(tensor.shape)}; in the model that was saved it is "
                f"{tuple(saved.tensors[held.tensor][1])}."
            )


def signature_of(saved: Saved) -> inspect.Signature:
    """How the model that was saved is called."""
    try:
        return inspect.Signature([_parameter(*each) for each in saved.signature])
    except ValueError as error:
        raise FileFormatError(f"its program is damaged: {error}.") from error


def _parameter(name: str, kind: int, has_default: bool, default: str) -> inspect.Parameter:
    if not name.isidentifier():  # inspect looks at its first letter without asking whether it has one
        raise ValueError(f"{quoted(name)} cannot be the name of a parameter")
    value = argument(_decoded(decode_value, default)) if has_default else inspect.Parameter.empty
    return inspect.Parameter(name, inspect._ParameterKind(kind), default=value)


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
    for name, held in saved.held.items():
        if not (0 <= held.tensor < len(saved.tensors) or (held.tensor == -1 and not saved.weights)):
            raise FileFormatError("its program is damaged: a weight is missing.")
        if name.count(".") >= _MOST_NESTED:
            raise FileFormatError(f"its program is damaged: a weight lies in more than {_MOST_NESTED} modules.")
    return [_tensor(graph, number, dtype, shape) for number, (dtype, shape) in enumerate(saved.tensors)]


def _tensor(graph: Graph, number: int, dtype: str, shape: list[int]) -> torch.Tensor:
    content, kind = graph.recorded.get(f"{KEY}/tensor/{number}"), dtype_named(dtype)
    sound = len(shape) <= _MOST_DIMENSIONS and all(0 <= size < 2**63 for size in shape)
    size = math.prod(shape) * kind.itemsize if sound else -1
    if content is None or content.dtype != np.uint8 or content.ndim != 1 or len(content) != size:
        raise FileFormatError(f"its program is damaged: tensor {number} has not the {size} bytes that it should.")
    raw = torch.from_numpy(np.array(content)) if size else torch.empty(0, dtype=torch.uint8)
    try:
        return raw.view(kind).reshape(shape)
    except RuntimeError as error:  # a quantized dtype, say
        raise FileFormatError(f"its program is damaged: tensor {number} cannot be {dtype} {shape}.") from error


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
    held: Container[str],
    constants: dict[str, Any],
    allow: frozenset[str],
) -> Variant:
    count, registers = len(saved.registers), [Register(number) for number in range(len(saved.registers))]
    functions = {name: _function(name, allow) for name in dict.fromkeys(each.function for each in saved.calls)}
    instructions = []
    for each in saved.calls:
        call = _decoded(decode, each.call)
        args, kwargs = argument((call.args, call.kwargs or {}), registers)
        _check_register(each.result, count)
        function, target = functions[each.function]
        if function is Mode:
            args, kwargs = block(*args), {}
        name = saved.names.get(each.name, "")
        instructions.append(instruction(name, each.result, function, args, kwargs, target))
    for register in [*saved.inputs, *map(_number, saved.constants), *map(_number, saved.attached)]:
        _check_register(register, count)
    if unknown := [name for name in saved.names.values() if name not in graph]:
        raise FileFormatError(f"its program is damaged: the graph has no node {unknown[0]!r}.")
    if any(not 0 <= number < len(tensors) for number in saved.attached.values()):
        raise FileFormatError("its program is damaged: a tensor is missing.")
    if unheld := [name for name in saved.constants.values() if name not in held]:
        raise FileFormatError(f"its program is refused: it reads {unheld[0]!r}, which is no weight of the model.")
    outputs = argument(_decoded(decode_value, saved.outputs), registers)
    if not isinstance(outputs, list):
        raise FileFormatError("its program is damaged: it returns no list.")
    names = [saved.names.get(name, "") for name in saved.registers]
    if twice := next((name for name, number in Counter(filter(None, names)).items() if number > 1), None):
        raise FileFormatError(f"its program is damaged: two registers have the name {twice!r}.")
    program = Program(
        names,
        saved.inputs,
        {int(register): name for register, name in saved.constants.items()},
        instructions,
        outputs,
        {int(register): tensors[number] for register, number in saved.attached.items()},
    )
    _check_order(program)
    leaves = [(leaf.name, _expected(leaf)) for leaf in saved.leaves]
    guards = [(text, condition(text)) for text in saved.guards]
    in_spec, out_spec = structure_of_data(saved.in_spec), structure_of_data(saved.out_spec)
    is_call = not in_spec.is_leaf() and [child.type for child in in_spec.children()] == [tuple, dict]
    if not is_call or in_spec.num_leaves != len(saved.inputs) or len(leaves) != len(saved.inputs):
        raise FileFormatError("its program is damaged: it does not take what its inputs hold.")
    if out_spec.num_leaves != len(outputs):
        raise FileFormatError("its program is damaged: it does not return what its outputs hold.")
    return Variant(program, graph, in_spec, out_spec, leaves, guards, constants)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _check_register(register: int, count: int) -> None:
    if not 0 <= register < count:
        raise FileFormatError(f"its program is damaged: there is no register {register}.")


def _check_order(program: Program) -> None:
    """Registers are written once, before they are read; blocks are begun and ended in order and hold nothing else."""
    there = [*program.inputs, *program.constants, *program.attached]
    written, begun, blocks = set(there), list[int](), set[int]()
    if len(written) < len(there):
        raise FileFormatError("its program is damaged: a register is written twice.")
    for each in program.instructions:
        if early := [register for register in each.reads if register not in written]:
            raise FileFormatError(f"its program is damaged: register {early[0]} is read before it is written.")
        if each.result in written:
            raise FileFormatError(f"its program is damaged: register {each.result} is written twice.")
        written.add(each.result)
        if each.function is Mode:
            begun.append(each.result)
            blocks.add(each.result)
        elif each.function is Mode.end:
            if not begun or each.args != (Register(begun.pop()),) or each.kwargs:
                raise FileFormatError("its program is damaged: it ends a block that is not the one begun last.")
        elif not blocks.isdisjoint(each.reads):
            raise FileFormatError("its program is damaged: a block is used as a value.")
    if begun:
        raise FileFormatError("its program is damaged: a block is begun and not ended.")
    for item in program.outputs:
        if isinstance(item, (list, tuple, dict)):
            raise FileFormatError("its program is damaged: what it returns is not flat.")
        if isinstance(item, Register) and (item.number not in written or item.number in blocks):
            raise FileFormatError("its program is damaged: it returns what it does not compute.")


def _function(name: str, allow: frozenset[str]) -> tuple[Any, Any]:
    """What a name in a file stands for, and what is called when it runs: not always the same."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in (BEGIN, END):
        return (Mode, Mode) if name == BEGIN else (Mode.end, Mode.end)
    function = operator(Operation(name, OperationType.UNKNOWN), allow)
    return function, STAND_INS.get(function) or checked(function)


def _expected(leaf: SavedLeaf) -> Any:
    if any(len(size) > _LONGEST_SIZE for size in leaf.shape):
        raise FileFormatError(f"its program is damaged: a size of {leaf.name!r} has more than {_LONGEST_SIZE} letters.")
    if leaf.kind == "tensor":
        return Expected(dtype_named(leaf.dtype), leaf.device, tuple(leaf.shape))
    return ANY_NUMBER if leaf.kind == "number" else argument(_decoded(decode_value, leaf.value))
