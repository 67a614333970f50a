"""A traced model -> files: a graph that holds program and weights as data, for `.atlas`; and `.onnx` by torch.onnx."""

from __future__ import annotations

import ast
import inspect
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import nn

from torchatlas.capturing.table_rows import dtype_name, portable
from torchatlas.errors import FileSystemError, NotAvailableError
from torchatlas.execute.program import Instruction, Mode, Program, Register
from torchatlas.execute.program_file import (
    BEGIN,
    END,
    FUNCTIONS,
    KEY,
    VERSION,
    Held,
    Saved,
    SavedCall,
    SavedLeaf,
    SavedVariant,
    structure_to_data,
)
from torchatlas.execute.trace_variant import ANY_NUMBER, Expected, Variant
from torchatlas.graph import Graph
from torchatlas.graph.arguments import Call, TensorRef, encode, encode_value
from torchatlas.graph.columns import Array
from torchatlas.graph.formats import as_path, check_folder, imported
from torchatlas.interrupts import whole
from torchatlas.torch_private import OpOverload

_NAMES: dict[Any, str] = {function: name for name, (function, _) in FUNCTIONS.items()} | {Mode: BEGIN, Mode.end: END}


def graph_with_program(variants: list[Variant], model: nn.Module, *, weights: bool) -> Graph:
    """A graph of the first trace that holds all of them, as data."""
    shelf = _Shelf()
    held, tensor_of = {}, variants[0].tensors_of(model)
    for name in {name for variant in variants for name in _program(variant).constants.values()}:
        constant = tensor_of(name)
        kind = "parameter" if isinstance(constant, nn.Parameter) else "buffer"
        held[name] = Held(shelf.put(constant, name) if weights else -1, kind, bool(constant.requires_grad))
    first, *others = [_saved_variant(variant, shelf) for variant in variants]
    saved = Saved(
        VERSION,
        type(model).__name__,
        _signature(model),
        weights,
        [(dtype_name(tensor.dtype), list(tensor.shape)) for tensor in shelf.tensors],
        dict(sorted(held.items())),
        first,
        len(others),
    )
    recorded = {f"{KEY}/tensor/{n}": _bytes(tensor) for n, tensor in enumerate(shelf.tensors)}
    for number, (variant, other) in enumerate(zip(variants[1:], others, strict=True)):
        recorded[f"{KEY}/variant/{number}"] = _nested(_with_program(variant.graph, other, {}))
    return _with_program(variants[0].graph, saved, recorded)


class _Shelf:
    """Tensors to be saved, each once: tied weights are one."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def put(self, tensor: Any, name: str) -> int:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_quantized:
            raise NotAvailableError(f"{name} cannot be saved: it is a {_what(tensor)}, not a plain tensor.")
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[id(tensor)]


def _what(item: Any) -> str:
    return f"{item.layout} tensor".removeprefix("torch.") if isinstance(item, torch.Tensor) else type(item).__name__


def _program(variant: Variant) -> Program:
    if not isinstance(variant.program, Program):
        raise NotAvailableError(
            "a model that is followed along a captured path cannot be saved: it runs its own Python code. "
            "Save its graph: traced.graph.save(path)."
        )
    return variant.program


def _saved_variant(variant: Variant, shelf: _Shelf) -> SavedVariant:
    program = _program(variant)
    steps = [
        SavedCall(each.name, each.result, _function_name(each), encode(Call(_plain(each.args), _plain(each.kwargs))))
        for each in program.instructions
    ]
    read = {register for each in program.instructions for register in each.reads}
    read |= {item.number for item in program.outputs if isinstance(item, Register)}
    return SavedVariant(
        program.names,
        program.inputs,
        {str(register): name for register, name in program.constants.items()},
        {str(r): shelf.put(item, "what the model made") for r, item in program.attached.items() if r in read},
        steps,
        encode_value(_plain(program.outputs)),
        {name: name for name in program.names if name},
        structure_to_data(variant.in_spec),
        structure_to_data(variant.out_spec),
        [_leaf(name, wanted) for name, wanted in variant.leaves],
        [text for text, _ in variant.guards],
    )


def _function_name(each: Instruction) -> str:
    if isinstance(each.function, OpOverload):
        return str(each.function)
    if each.function in _NAMES:
        return _NAMES[each.function]
    raise NotAvailableError(
        f"{each.name or 'a program'} cannot be saved: it calls {getattr(each.function, '__name__', each.function)}, "
        "which a file cannot hold. torch.export.save keeps such programs."
    )


def _plain(item: Any) -> Any:
    """An argument as a file holds it: registers in the place of tensors."""
    if isinstance(item, Register):
        return TensorRef(item.number)
    if isinstance(item, (list, tuple)):
        return type(item)(_plain(part) for part in item)
    if isinstance(item, Mapping):
        return {key: _plain(part) for key, part in item.items()}
    argument = portable(item)
    if getattr(argument, "kind", "") in ("opaque", "generator", "symbol"):
        raise NotAvailableError(f"an argument of the program, a {type(item).__name__}, cannot be saved.")
    return argument


def _leaf(name: str, wanted: Any) -> SavedLeaf:
    if isinstance(wanted, Expected):
        return SavedLeaf(name, "tensor", dtype_name(wanted.dtype), wanted.device, list(wanted.shape))
    if wanted is ANY_NUMBER:
        return SavedLeaf(name, "number")
    return SavedLeaf(name, "constant", value=encode_value(_plain(wanted)))


def _signature(model: nn.Module) -> list[tuple[str, int, bool, str]]:
    parameters = []
    for parameter in inspect.signature(model.forward).parameters.values():
        has_default = parameter.default is not parameter.empty
        value = encode_value(portable(parameter.default)) if has_default else "null"
        parameters.append((parameter.name, int(parameter.kind), has_default, value))
    return parameters


def _bytes(tensor: torch.Tensor) -> Array:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    flat: Array = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    return flat


def _with_program(graph: Graph, saved: Struct, recorded: dict[str, Array]) -> Graph:
    metadata = {**graph.metadata, KEY: msgspec.json.decode(msgspec.json.encode(saved))}
    return Graph(
        graph.columns, graph.tables, source=graph.source, notes=graph.notes, metadata=metadata, recorded=recorded
    )


def _nested(graph: Graph) -> Array:
    """A whole file as an array of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variant.atlas"
        graph.save(path)
        return np.frombuffer(path.read_bytes(), np.uint8)


# -- .onnx -------------------------------------------------------------------------------------------------------------


_SCOPES = "pkg.torch.onnx.name_scopes"  # where torch.onnx keeps the modules around a node, as the text of a list


def save_onnx(variant: Variant, path: str | os.PathLike[str], *, weights: bool) -> Path:
    """Write the trace of the example. What is above 2 GiB goes into a file of data beside it, as torch.onnx does."""
    imported("onnxscript", "saving a traced model as .onnx needs", "onnx")
    imported("onnx", "saving a traced model as .onnx needs", "onnx")
    target = as_path(path)
    check_folder(target)
    if variant.exported is None:
        raise NotAvailableError(
            "a traced model that was loaded from a file, or that torch.export refused, cannot be saved as .onnx: trace "
            "the model itself, atlas.trace(model, ...).save('model.onnx'). traced.graph.save('model.onnx') writes the "
            "structure alone."
        )
    with whole(warnings.catch_warnings()):
        warnings.simplefilter("ignore")  # of torch.onnx about itself
        try:
            made: Any = torch.onnx.export(variant.exported, dynamo=True, verbose=False)
        except Exception as error:  # whatever a translation of an operator raises
            reason = str(error).strip().partition("\n")[0]
            raise NotAvailableError(
                f"torch.onnx cannot translate this model ({type(error).__name__}: {reason}). "
                "traced.graph.save('model.onnx') writes its structure for Netron."
            ) from error
        _name_by_module(made.model.graph)
        try:
            made.save(target, include_initializers=weights)
        except OSError as error:
            raise FileSystemError(f"Cannot write {target}: {error.strerror or error}.") from error
    return target


def _name_by_module(graph: Any) -> None:
    """Call each node by its module path and operator: layer1.0.conv1.Conv."""
    counts: dict[str, int] = {}
    for node in graph:
        path = _path(node.metadata_props.get(_SCOPES, ""))
        name = f"{path}.{node.op_type}" if path else node.op_type
        count = counts[name] = counts.get(name, -1) + 1
        node.name = f"{name}_{count}" if count else name


def _path(scopes: str) -> str:
    """The innermost module of a list of scopes, the last of which is the node itself."""
    try:
        names = ast.literal_eval(scopes) if scopes else []
    except (ValueError, SyntaxError):
        return ""
    path = str(names[-2]) if isinstance(names, list) and len(names) > 1 else ""
    return "" if path.startswith("_empty_nn_module_stack") else path  # what torch.export says of its own nodes
