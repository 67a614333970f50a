"""The autograd graph behind a tensor as text: a tree, in which a node that several lead to is written out once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.autograd.check_arguments import Params, counted, names_by_id
from torchatlas.autograd.graph_walk import leaf_of, roots_of, sequence_nr, walk
from torchatlas.autograd.saved_tensors import saved_by
from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.units import format_bytes

_MOST_LINES = 400


@explains_arguments
def print_graph(
    tensor: Any,
    indent: int = 0,
    *,
    params: Params = None,
    model: nn.Module | None = None,
    most: int = _MOST_LINES,
) -> str:
    """Print the autograd graph behind a tensor as an indented list, and return the text.

    Below the tensor's shape and its `grad_fn` stands a line per node: its name, the shape that arrives, what it saved.
    A single next node stands right below its node; several are indented. A node that several lead to is written out
    once, and is "(above)" from then on.

    Args:
        tensor: The tensor to begin at.
        indent: How far the text is indented, in steps of two spaces.
        params: Names of leaves: a dictionary from name to tensor, or `model.named_parameters()`.
        model: Names the leaves as the model does.
        most: The most nodes to print; a line says how many were left out.
    Returns:
        What was printed.
    Raises:
        InvalidInputError: It is no tensor, or `indent` or `most` is no whole number.
    Example:
        >>> import torch, torchatlas as atlas
        >>> x = torch.ones(3, requires_grad=True)
        >>> text = atlas.print_graph((x * 2).sum(), params={"x": x})
        Tensor shape: [] float32
        grad_fn: SumBackward0 #... []
          ↑ MulBackward0 #... [3]; saved other (8 B)
          ↑ AccumulateGrad x [3]
    """
    if not isinstance(indent, int):
        raise InvalidInputError(
            f"`indent` is a number, not {type(indent).__name__}; a model that names the leaves is named itself: "
            "print_graph(loss, model=model)."
        )
    roots = roots_of(tensor, "print_graph")
    names, walked = names_by_id(params, model), walk(roots)
    lines: list[str] = []
    seen: set[Any] = set()
    if isinstance(tensor, torch.Tensor):
        lines.append(f"Tensor shape: {shape_text(tensor)} {str(tensor.dtype).removeprefix('torch.')}")
    stack = [(root, 0) for root in reversed(list(dict.fromkeys(roots)))]
    while stack and len(lines) < most:
        node, depth = stack.pop()
        start = f"{'  ' * depth}↑ " if depth else "grad_fn: "
        if node in seen:
            lines.append(f"{start}{_title(node, names)} (above)")
            continue
        seen.add(node)
        lines.append(f"{start}{_described(node, names)}")
        following = [target for target, _ in node.next_functions if target is not None]
        deeper = max(depth + (len(following) > 1), 1)  # a chain goes straight down
        stack += [(target, deeper) for target in reversed(following)]
    if stack:
        lines.append(f"... {counted(len(walked.nodes) - len(seen), 'more node')}")
    prefix = "  " * indent
    text = "\n".join(prefix + line for line in lines)
    sys.stdout.write(f"{text}\n")
    return text


def shape_text(tensor: torch.Tensor) -> str:
    """A shape, with * where the parts of a nested tensor differ: a strided one has no `shape`."""
    if not tensor.is_nested or tensor.layout is torch.jagged:
        return f"{list(tensor.shape)}"
    return f"[{', '.join(_size_text(tensor, dim) for dim in range(tensor.dim()))}]"


def _size_text(nested: torch.Tensor, dim: int) -> str:
    try:
        return f"{nested.size(dim)}"
    except RuntimeError:  # "irregular and does not have a size"
        return "*"


def _shape_that_arrives(metadata: Any) -> str:
    return "[nested]" if metadata.is_cpp_nested_tensor else f"[{', '.join(map(str, metadata.shape))}]"


def _title(node: Any, names: Mapping[int, str]) -> str:
    name = node.name().rpartition("::")[2]
    leaf = leaf_of(node)
    if leaf is None:
        return clean(f"{name} #{sequence_nr(node)}")
    called = names.get(id(leaf), "")
    return clean(f"{name} {called or 'leaf'} {shape_text(leaf)}")


def _described(node: Any, names: Mapping[int, str]) -> str:
    if leaf_of(node) is not None:
        return _title(node, names)
    shapes = ", ".join(map(_shape_that_arrives, node._input_metadata))
    saved = [each for each in saved_by(node) if each.state != "none"]
    held = ""
    if saved:
        size = sum(each.data.numel() * each.data.element_size() for each in saved if each.data is not None)
        slots = ", ".join(each.slot for each in saved)
        states = {each.state for each in saved}
        held = f"; saved {slots} ({'freed' if states == {'freed'} else format_bytes(size)})"
    return clean(f"{_title(node, names)} {shapes}{held}")
