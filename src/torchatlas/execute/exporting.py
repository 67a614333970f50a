"""A model and example inputs -> torch.export's program, or why there is none: quietly, and with torch left as found."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from torchatlas.capturing.frames import is_users
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import CaptureError
from torchatlas.execute.recurrent import AnyLength, restored
from torchatlas.inputs import bound_arguments
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import (
    functorch_depth,
    pytree,
    restore_saved_tensor_hooks,
    saved_tensor_hooks_forbidden,
    undo_functorch,
)

_BATCH_ONLY = "torch.export could not work out how the other sizes depend on each other: only the batch may vary"


def exported(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[Any, str | None]:
    """The program, and what must be said about it.

    Non-strict first: it is quicker and takes more. If neither way takes all sizes free, then only the batch's.
    """
    attempts: list[tuple[Any, bool, str | None]] = [(dynamic_shapes, False, None), (dynamic_shapes, True, None)]
    if dynamic_shapes == "auto":
        every, first_only = (_shapes_of(model, args, kwargs, partial(_free, most=most)) for most in (None, 1))
        attempts = [(every, False, None), (every, True, None)]
        if first_only != every:  # export must solve for sizes, and cannot always: googlenet's pools that round up, say
            attempts.append((first_only, False, _BATCH_ONLY))
    first: Exception | None = None
    for shapes, strict, note in attempts:
        depth, parts = functorch_depth(), _parts(model)
        hooks = saved_tensor_hooks_forbidden()
        lengths = nullcontext() if strict else AnyLength()
        with Restorer(model, (args, kwargs)), _quietly() as said:
            try:
                with lengths:
                    program = torch.export.export(model, args, kwargs or None, dynamic_shapes=shapes, strict=strict)
            except Exception as error:  # export raises whatever the model, or the tracer, raises
                first = first or error
                undo_functorch(depth)  # a transform that was interrupted stays on
                restore_saved_tensor_hooks(hooks)
                continue
            made = sorted(_parts(model) - parts)
        if made:
            raise CaptureError(
                f"{type(model).__name__} makes {', '.join(made)} in forward, which a traced program cannot do. "
                "Make them in __init__, or run the model once before."
            )
        _check_state(model, said)
        restored(program)
        return program, note
    assert first is not None
    raise _refused(model, first) from first


@bracketed
def _quietly() -> Iterator[list[str]]:
    """Export says much on its way, also of attempts that we make again otherwise. Yields its warnings.

    When it fails it also prints its graph so far to stderr; what the model itself prints there gets lost with it.
    """
    said: list[str] = []
    handlers = {
        handler
        for name in ("torch", *logging.root.manager.loggerDict)
        if name == "torch" or name.startswith("torch.")
        for handler in logging.getLogger(name).handlers
    }
    for handler in handlers:
        handler.addFilter(_reject)
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            try:
                yield said
            finally:
                said += [str(warning.message) for warning in caught]
    finally:
        for handler in handlers:
            handler.removeFilter(_reject)


def _reject(record: logging.LogRecord) -> bool:
    return False


def _parts(model: nn.Module) -> set[str]:
    """What a model consists of, by name."""
    groups: Any = (model.named_modules(), model.named_parameters(), model.named_buffers())
    return {name for group in groups for name, _ in group}


def _check_state(model: nn.Module, said: list[str]) -> None:
    """Tensors that forward assigns to attributes, not to buffers, would stay as they were, wrong in the second run."""
    for warning in said:
        head, found, _ = warning.partition(" assigned during export")
        names = [word.strip(",") for word in head.split() if word.startswith("self.")] if found else []
        # a recurrent module lists its weights once more; export puts its own in their place while it traces
        if names := [name for name in names if "._flat_weights[" not in name]:
            raise CaptureError(
                f"{type(model).__name__} assigns {', '.join(names)} in forward, which a traced program cannot do. "
                "Register such tensors with register_buffer and write to them."
            )


def _free(leaf: Any, most: int | None) -> Any:
    """The dimensions of a tensor that may vary, among the first `most`. Export would fix those of size 1."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return None
    return {dim: torch.export.Dim.AUTO for dim, size in enumerate(leaf.shape[:most]) if size != 1}


def _shapes_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], free: Callable[[Any], Any]) -> Any:
    """What may vary, in the structure that export wants: by name, as the model's signature binds the arguments."""
    return _mapped(free, bound(model, args, kwargs))


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """pytree's tree_map, but for classes of tuples that take nothing but tensors: PackedSequence, say."""

    def is_named(item: Any) -> bool:
        return isinstance(item, tuple) and hasattr(item, "_make")

    def each(item: Any) -> Any:
        return item._make(_mapped(change, part) for part in item) if is_named(item) else change(item)

    return pytree.tree_map(each, tree, is_leaf=is_named)


def bound(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    found = bound_arguments(model, args, kwargs)
    named = dict(found.arguments)
    for name, parameter in found.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in named:
            named.update(named.pop(name))
    return named


def _refused(model: nn.Module, error: Exception) -> CaptureError:
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__).rstrip(".")
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if frame.line and is_users(frame.filename)]
    where = f", at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    out = 'Follow the path that these inputs take with fallback="capture", or record it with atlas.capture.'
    if "data-dependent" in text or isinstance(error, GuardOnDataDependentSymNode):
        out = f"It depends on the values of tensors there: use torch.where or torch.cond. {out}"
    if "Cache'> in output" in text:  # a model of transformers returns its keys and values unless told not to
        out = f"Trace it without its cache: pass use_cache=False with the inputs. {out}"
    return CaptureError(
        f"torch.export cannot trace {type(model).__name__}: {type(error).__name__}: {first}{where}. {out}"
    )
