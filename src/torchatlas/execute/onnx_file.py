"""A trace -> an `.onnx` file that runtimes of ONNX run and Netron shows, by torch.onnx. Nodes are named by module."""

from __future__ import annotations

import ast
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from torchatlas.errors import FileSystemError, NotAvailableError
from torchatlas.execute.trace_variant import Variant
from torchatlas.graph.formats import as_path, check_folder, imported
from torchatlas.interrupts import whole

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
        found = ast.literal_eval(scopes) if scopes else []
    except (ValueError, SyntaxError):
        return ""
    path = str(found[-2]) if isinstance(found, list) and len(found) > 1 else ""
    return "" if path.startswith("_empty_nn_module_stack") else path  # what torch.export says of its own nodes
