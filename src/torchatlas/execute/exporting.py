"""A model and example inputs -> torch.export's program, and that as a Program; or why there is none.

Export runs quietly and leaves torch as it was. It would count the steps of the example in recurrent layers, so for each
of torch.lstm, gru, rnn_tanh and rnn_relu there is an operator that only knows shapes: `AnyLength` calls it while export
runs, `restored` puts the operator of ATen back into the program.
"""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from torchatlas.capturing.exported import WrappedBlock, attribute, block_of
from torchatlas.capturing.frames import raising_line
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import CaptureError
from torchatlas.execute.free_sizes import Deadline, Size, first_line, freest
from torchatlas.execute.program import Mode, Program, ProgramBuilder
from torchatlas.inputs import advice, argument_names, bound_arguments, named_tensors
from torchatlas.interrupts import bracketed
from torchatlas.progress_line import ProgressLine
from torchatlas.torch_private import (
    functorch_depth,
    pytree,
    registration_hooks,
    restore_saved_tensor_hooks,
    saved_tensor_hooks_forbidden,
    undo_functorch,
)


@dataclass(frozen=True)
class Exported:
    """torch.export's program, and what must be said about it."""

    program: Any
    fixed: dict[Size, str]  # sizes that could not be freed, and why
    assigned: tuple[str, ...]  # tensors that forward assigns to attributes, which the program does not


def exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    *,
    budget_s: float,
    known: Mapping[Size, str],
    progress: ProgressLine,
) -> Exported:
    """Export a model with as many free sizes as torch.export can solve for; `known` sizes are fixed without an attempt.

    `dynamic_shapes` other than "auto" go to torch.export as they are, once and without a time limit.
    """
    name, leaves = type(model).__name__, pytree.tree_leaves((args, kwargs))
    sizes = {(n, dim): size for n, leaf in enumerate(leaves) for dim, size in _may_vary(leaf)}
    sizes = {size: count for size, count in sizes.items() if dynamic_shapes == "auto" and size not in known}

    named = bound(model, args, kwargs) if dynamic_shapes == "auto" else {}

    def attempt(free: frozenset[Size], strict: bool, seconds: float) -> tuple[Any, tuple[str, ...]]:
        progress.now(f"tracing {name}: {_described(free, sizes)}")
        shapes = dynamic_shapes
        if dynamic_shapes == "auto":
            chosen = {(id(leaves[n]), dim) for n, dim in free}
            shapes = _mapped(partial(_free, chosen=chosen), named)
        return _exported(model, args, kwargs, shapes, strict, seconds, progress)

    try:
        (program, assigned), fixed = freest(attempt, sizes, budget_s)
    except CaptureError:
        raise
    except Exception as error:  # export raises whatever the model, or the tracer, raises
        raise _refused(model, error, argument_names(model, args, kwargs)) from error
    restored(program)
    return Exported(program, {**known, **fixed}, assigned)


def _exported(
    model: nn.Module, args: Any, kwargs: Any, shapes: Any, strict: bool, seconds: float, progress: ProgressLine
) -> tuple[Any, tuple[str, ...]]:
    """Export once. Returns the program, and the attributes that forward assigns tensors to; restores all else."""
    parts = _parts(model)
    with Restorer(model, (args, kwargs)), _quietly() as messages, _torch_as_found((args, kwargs)):
        with Deadline(seconds, progress.tick) as deadline, nullcontext() if strict else AnyLength(deadline.check):
            program = torch.export.export(model, args, kwargs or None, dynamic_shapes=shapes, strict=strict)
        made = sorted(_parts(model) - parts)
    if made:
        raise CaptureError(
            f"{type(model).__name__} makes {', '.join(made)} in forward, which a traced program cannot do. "
            "Make them in __init__, or run the model once before."
        )
    return program, _assigned(messages)


@bracketed
def _torch_as_found(inputs: Any) -> Iterator[None]:
    """Undo what a failed export leaves behind: open transforms, the hooks that they forbid, and marks on inputs.

    Before torch 2.11 the hooks that watch modules for new buffers and parameters stay as well.
    """
    depth, hooks = functorch_depth(), saved_tensor_hooks_forbidden()
    marks = [(vars(tensor), dict(vars(tensor))) for _, tensor in named_tensors(inputs)]
    registered = [(registry, set(registry)) for registry in registration_hooks()]
    try:
        yield
    finally:
        undo_functorch(depth)
        restore_saved_tensor_hooks(hooks)
        for attributes, before in marks:
            if attributes != before:
                attributes.clear()
                attributes.update(before)
        for registry, known in registered:
            for added in set(registry) - known:
                del registry[added]


@bracketed
def _quietly() -> Iterator[list[str]]:
    """Silence torch.export, which warns even of attempts that it repeats in another way. Yields its warnings.

    When it fails it also prints its graph so far to stderr; what the model itself prints there gets lost with it.
    """
    messages: list[str] = []
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
                yield messages
            finally:
                messages += [str(warning.message) for warning in caught]
    finally:
        for handler in handlers:
            handler.removeFilter(_reject)


def _reject(record: logging.LogRecord) -> bool:
    return False


def _parts(model: nn.Module) -> set[str]:
    """The names of all modules, parameters and buffers of a model."""
    groups: Any = (model.named_modules(), model.named_parameters(), model.named_buffers())
    return {name for group in groups for name, _ in group}


def _assigned(messages: list[str]) -> tuple[str, ...]:
    """The attributes that forward assigns tensors to, as export's warning names them."""
    attributes: dict[str, None] = {}
    for warning in messages:
        head, separator, _ = warning.partition(" assigned during export")
        names = [word.strip(",") for word in head.split() if word.startswith("self.")] if separator else []
        # a recurrent module lists its weights once more; export puts its own in their place while it traces
        attributes.update(dict.fromkeys(name for name in names if "._flat_weights[" not in name))
    return tuple(sorted(attributes))


def _may_vary(leaf: Any) -> Iterator[Size]:
    """The dimensions of a tensor that may vary, and their sizes. Export would fix those of size 1."""
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
        yield from ((dim, size) for dim, size in enumerate(leaf.shape) if size != 1)


def _free(leaf: Any, chosen: set[Size]) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return None
    return {dim: torch.export.Dim.AUTO for dim in range(leaf.dim()) if (id(leaf), dim) in chosen}


def _described(free: frozenset[Size], sizes: Mapping[Size, int]) -> str:
    """The sizes that an attempt leaves free, in words, for the progress line."""
    if len(free) == len(sizes):
        return "all sizes free" if free else "all sizes as given"
    dims = sorted({dim for _, dim in free})
    return f"dimension{'s' * (len(dims) > 1)} {', '.join(map(str, dims))} free" if dims else "all sizes fixed"


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """pytree's tree_map that also maps named tuples, whose classes may take tensors only: PackedSequence, say."""

    def is_named(item: Any) -> bool:
        return isinstance(item, tuple) and hasattr(item, "_make")

    def each(item: Any) -> Any:
        return item._make(_mapped(change, part) for part in item) if is_named(item) else change(item)

    return pytree.tree_map(each, tree, is_leaf=is_named)


def bound(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    binding = bound_arguments(model, args, kwargs)
    named = dict(binding.arguments)
    for name, parameter in binding.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in named:
            named.update(named.pop(name))
    return named


def _refused(model: nn.Module, error: Exception, inputs: dict[Any, Any]) -> CaptureError:
    text, first = str(error), first_line(error)
    where = f", at {line}" if (line := raising_line(error)) else ""
    out = 'Follow the path that these inputs take with fallback="capture", or record it with atlas.capture.'
    if "data-dependent" in text or isinstance(error, GuardOnDataDependentSymNode):
        out = f"It depends on the values of tensors there: use torch.where or torch.cond. {out}"
    if hint := advice(error, model, inputs):
        out = f"{hint[0].upper()}{hint[1:]}"
    if "Cache'> in output" in text:  # a model of transformers returns its keys and values unless told not to
        out = f"Trace it without its cache: pass use_cache=False with the inputs. {out}"
    return CaptureError(
        f"torch.export cannot trace {type(model).__name__}: {type(error).__name__}: {first}{where}. {out}"
    )


# -- recurrent layers --------------------------------------------------------------------------------------------------


_STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}  # how many states a layer carries from step to step
_SCHEMA = (
    "{name}(Tensor input, Tensor{several} hx, Tensor[] params, bool has_biases, int num_layers, float dropout, "
    "bool train, bool bidirectional, bool batch_first) -> (Tensor{returns})"
)
_OPERATORS = torch.library.Library("torchatlas_recurrent", "DEF")


class AnyLength(TorchFunctionMode):
    """While it is open, calls of recurrent layers look at shapes only.

    Export runs a layer in Python, step by step, and so assumes as many steps as the example has. `check` is called
    before every torch function.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._check = check

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._check()
        name = getattr(func, "__name__", "")
        if name in _STATES and func == getattr(torch, name) and _is_padded(args, kwargs):
            func = getattr(torch.ops.torchatlas_recurrent, name).default
        return func(*args, **(kwargs or {}))


def restored(program: Any) -> None:
    """Put the operators of ATen in the place of ours, in the parts of an exported program as well."""
    for part in program.graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            if getattr(node.target, "namespace", "") == "torchatlas_recurrent":
                name = node.target.name().partition("::")[2]
                node.target = getattr(torch.ops.aten, name).input


def _is_padded(args: Any, kwargs: Any) -> bool:
    """Whether a call has a padded sequence (packed ones have another signature) and no autocast, which only casts for
    operators it knows."""
    if len(args) != 9 or kwargs or not isinstance(args[3], bool):
        return False
    return not torch.is_autocast_enabled(args[0].device.type)


def _shapes(states: int) -> Callable[..., tuple[Tensor, ...]]:
    """What a layer returns: the outputs of all steps, and the last states."""

    def returned(x: Tensor, hx: Any, params: list[Tensor], *options: Any) -> tuple[Tensor, ...]:
        *_, bidirectional, batch_first = options
        last = list(hx) if states > 1 else [hx]
        batch, length = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
        for size, wanted in ((x.shape[2], params[0].shape[1]), *((state.shape[1], batch) for state in last)):
            if size != wanted:  # asking makes export remember it
                raise RuntimeError(f"a recurrent layer got an input or state of size {size} where it takes {wanted}")
        output = x.new_empty((length, batch, last[0].shape[2] * (2 if bidirectional else 1)))
        return output.transpose(0, 1) if batch_first else output, *(state.new_empty(state.shape) for state in last)

    return returned


for _name, _count in _STATES.items():
    _OPERATORS.define(
        _SCHEMA.format(name=_name, several="[]" if _count > 1 else "", returns=", Tensor" * _count),
    )
    torch.library.register_fake(f"torchatlas_recurrent::{_name}", _shapes(_count), lib=_OPERATORS)


# -- its graph as a Program --------------------------------------------------------------------------------------------


def compiled(graph: Any, constants: Mapping[str, str], names: Mapping[str, str]) -> Program:
    """A program of an fx graph of functions. `constants` says which placeholders are the model's own, by name.

    `names` leads from the nodes of the fx graph to those of ours. Sizes and parts of results are no nodes of ours.
    """
    compiler = _Compiler(constants, names)
    return compiler.builder.program(list(compiler.read(graph, "")))


class _Compiler:
    def __init__(self, constants: Mapping[str, str], names: Mapping[str, str]) -> None:
        self.constants, self.names, self.builder = constants, names, ProgramBuilder()
        self.values: dict[Any, Any] = {}  # fx node -> a register, or what it stands for in an argument

    def read(self, graph: Any, prefix: str) -> Any:
        """Append the instructions of a graph; returns what the graph returns, with registers in place of nodes."""
        for node in graph.nodes:
            name = prefix + node.name
            if node.op == "placeholder" and not prefix:  # those of an inner graph stand for its operands
                register = self.values[node] = self.builder.register(self.names.get(name, ""))
                if node.name in self.constants:
                    self.builder.constants[register.number] = self.constants[node.name]
                else:
                    self.builder.inputs.append(register.number)
            elif node.op == "get_attr":
                register = self.values[node] = self.builder.register()
                self.builder.attached[register.number] = attribute(graph.owning_module, str(node.target))
            elif node.op == "call_function" and (block := block_of(node)) is not None:
                self._block(node, block, name)
            elif node.op == "call_function" and not _is_check(node.target):
                self._call(node, name)
            elif node.op == "output":
                return self._resolved(node.args[0])
        return ()

    def _call(self, node: Any, name: str) -> None:
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):  # of the results of a block
            self.values[node] = args[0][args[1]]
            return
        ours, stand_in = self.names.get(name, ""), STAND_INS.get(node.target)
        self.values[node] = self.builder.add(ours, node.target, args, kwargs, stand_in)

    def _block(self, node: Any, block: WrappedBlock, name: str) -> None:
        """Inline the nodes of a block between its beginning and its end, so that their values can be seen as well."""
        for inner, operand in zip(
            (inner for inner in block.body.graph.nodes if inner.op == "placeholder"), block.operands, strict=True
        ):
            self.values[inner] = self._resolved(operand)
        mode = self.builder.add("", Mode, (block.kind, block.settings))
        self.values[node] = self.read(block.body.graph, f"{name}.")
        self.builder.add("", Mode.end, (mode,))

    def _resolved(self, item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return self.values[item]
        if isinstance(item, list):
            return [self._resolved(part) for part in item]
        if isinstance(item, tuple):
            return tuple(self._resolved(part) for part in item)
        if isinstance(item, Mapping):
            return {key: self._resolved(part) for key, part in item.items()}
        if isinstance(item, slice):
            return slice(*(self._resolved(part) for part in (item.start, item.stop, item.step)))
        return item


def _is_check(target: Any) -> bool:
    """Whether export added this call to assert its assumptions; not needed, as inputs are checked before the run."""
    return str(target).startswith(("aten._assert_tensor_metadata", "aten.sym_constrain_range"))


def copy_unless_same(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Copy a tensor, but not to itself.

    Export ends with a copy to each buffer that forward assigned. After `self.count += 1` that copies the buffer to
    itself, and autograd would believe that what it saved was overwritten.
    """
    return target if source is target else torch.ops.aten.copy_.default._op(target, source, non_blocking)


STAND_INS = {torch.ops.aten.copy_.default: copy_unless_same}  # operator -> what a program calls in its place
