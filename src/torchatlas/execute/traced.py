"""A model -> a TracedModel: traced once by torch.export, run many times, with every node's value at hand."""

from __future__ import annotations

import inspect
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, GuardOnDataDependentSymNode

from torchatlas.capturing.exported import graph_of_export
from torchatlas.capturing.restore import Restorer
from torchatlas.capturing.stream import is_users
from torchatlas.errors import (
    CaptureError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    NodeNotFoundError,
    OutOfMemoryError,
)
from torchatlas.execute.program import Failed, Program, Taken, compiled
from torchatlas.graph import Graph, GraphNode
from torchatlas.registry import near_names
from torchatlas.torch_private import FakeTensor, functorch_depth, pytree, undo_functorch

_MOST_TRACES = 8  # of one model, for inputs that the first one does not serve


@dataclass(frozen=True, eq=False)
class NodeIO:
    """What one node took and made in one run. Indexing by "inputs", "output", "hyperparameters" works as well."""

    inputs: tuple[Any, ...]
    output: Any
    _hyperparameters: Callable[[], dict[str, Any]] = field(repr=False)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What it was called with by name; weights and biases are the model's own."""
        return self._hyperparameters()

    def __getitem__(self, name: str) -> Any:
        if name not in ("inputs", "output", "hyperparameters"):
            raise KeyError(name)
        return getattr(self, name)


class NodeValues(Mapping[str, NodeIO]):
    """Node name -> what it took and made, in the order in which the nodes ran. `output` is the model's."""

    def __init__(self, entries: dict[str, NodeIO], output: Any) -> None:
        self._entries, self.output = entries, output

    def __getitem__(self, name: str) -> NodeIO:
        if name not in self._entries:
            near = " or ".join(map(repr, near_names(name, self._entries)))
            raise NodeNotFoundError(f"no value of {name!r} was kept" + (f"; did you mean {near}?" if near else ""))
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<values of {len(self)} nodes>"


@dataclass(frozen=True, eq=False)
class _Variant:
    """One trace: for sizes that differ from the example's where they may, or are 1 where the example's were."""

    program: Program
    graph: Graph
    names: dict[str, str]  # fx node -> node of the graph
    in_spec: Any
    out_spec: Any
    leaves: list[tuple[str, Any]]  # of the inputs: name, and a fake tensor or the constant it was
    guards: list[tuple[str, Any]]  # what export assumed of the sizes: as text and as code
    constants: dict[str, Any] = field(default_factory=dict)  # what is not the model's own


class TracedModel:
    """A model as a graph that runs. Parameters are the model's own: training one trains the other.

    `input_for_graph` are example inputs: a tensor, or a tuple of them. `dynamic_shapes="auto"` lets every size that the
    model does not fix be another one later; None fixes all; otherwise it is what torch.export takes. `device` says
    where to trace and run: the example is moved there, and the model must be there. `check` runs the example once both
    ways: what export did not see, an assignment to `.data` say, is an error then and not a wrong number later.

    Sizes of 0 or 1, and sizes for which the model takes another path, need a trace of their own: it is made when they
    come, in the mode (training or not) of the first. `graph` is that of the first.
    """

    def __init__(
        self,
        model: nn.Module,
        input_for_graph: Any,
        device: Any = None,
        dynamic_shapes: Any = "auto",
        *,
        kwargs: Mapping[str, Any] | None = None,
        check: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidModelError(f"a traced model is made of a torch.nn.Module, not {type(model).__name__}.")
        args = tuple(input_for_graph) if isinstance(input_for_graph, (tuple, list)) else (input_for_graph,)
        named = dict(kwargs or {})
        if device is not None:
            args, named = _moved((args, named), torch.device(device))
            _check_device(model, torch.device(device))
        self.model, self.dynamic_shapes = model, dynamic_shapes
        self.notes: list[str] = []
        if model.training:
            self.notes.append("traced in training mode: dropout and batch statistics are part of the graph")
        self._modes = {name: module.training for name, module in model.named_modules()}
        self._served: dict[Any, _Variant] = {}  # what inputs look like -> the trace that serves them
        self._variants = self._traced(args, named)
        if check:
            self._check(args, named)

    @property
    def graph(self) -> Graph:
        """The traced computation, with the sizes that may vary as symbols."""
        return self._variants[0].graph

    @property
    def input_shapes(self) -> dict[str, tuple[int | str, ...]]:
        """The shape of each tensor given, with symbols for the sizes that may be others: {"x": ("s0", 3, 224, 224)}."""
        return {node.name: tuple(node.outputs[0].shape) for node in self.graph.where(kind="input")}

    @property
    def topological_order(self) -> list[GraphNode]:
        return self.graph.topological_order()

    # -- running -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs."""
        return self._run(args, kwargs)[0]

    def predict(
        self,
        *args: Any,
        nodes: Iterable[str] | None = None,
        callback: Callable[[str, Any], None] | None = None,
        **kwargs: Any,
    ) -> NodeValues:
        """Run it and give what every node took and made, or only `nodes`, by name or by module path.

        With a `callback` nothing is kept: it is called with each node's name and value as they come.
        """
        output, variant, taken = self._run(args, kwargs, nodes=nodes, everything=nodes is None, callback=callback)
        entries = {}
        for fx_name, entry in taken.items():
            if fx_name in variant.names:
                name = variant.names[fx_name]
                made = output if fx_name == "output" else entry.output
                entries[name] = NodeIO(entry.inputs, made, partial(self._hyperparameters, variant, name))
        return NodeValues(entries, output)

    def run(self, *args: Any, edit: Mapping[str, Callable[[Any], Any]] | None = None, **kwargs: Any) -> Any:
        """What the model returns when the values of some nodes, or outputs of modules, are changed on the way."""
        return self._run(args, kwargs, edit=edit)[0]

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        nodes: Iterable[str] | None = None,
        everything: bool = False,
        edit: Mapping[str, Callable[[Any], Any]] | None = None,
        callback: Callable[[str, Any], None] | None = None,
    ) -> tuple[Any, _Variant, dict[str, Taken]]:
        variant, flat = self._matching(args, kwargs)
        keep = None
        if not everything or callback is not None:
            keep = {found for name in nodes or () for found in self._fx_names(variant, name)}
        edits: dict[str, Callable[[Any], Any]] = {}
        for name, change in (edit or {}).items():
            edits.update(dict.fromkeys(self._fx_names(variant, name, edited=True), change))
        watch = None
        if callback is not None:

            def watch(name: str, value: Any) -> None:
                if name in variant.names:
                    callback(variant.names[name], value)

        constants = _constants(self.model, variant.constants)
        try:
            results, taken = variant.program.run(flat, constants, keep=keep, edits=edits, watch=watch)
        except Failed as failed:
            raise self._explained(variant, failed) from failed.error
        return pytree.tree_unflatten(results, variant.out_spec), variant, taken

    def _explained(self, variant: _Variant, failed: Failed) -> Exception:
        node = variant.graph[variant.names[failed.name]] if failed.name in variant.names else None
        where = failed.name if node is None else f"{node.name} ({node.operation})"
        if node is not None and node.scope.path:
            where += f" in module {node.scope.path}"
        if node is not None and node.source is not None:
            where += f", {node.source}"
        first = (str(failed.error).splitlines() or [""])[0]
        text = f"running the traced model failed at {where}: {type(failed.error).__name__}: {first}"
        if isinstance(failed.error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in first:
            return OutOfMemoryError(f"{text}. Keep fewer values, with nodes=[...], or take smaller inputs.")
        if isinstance(failed.error, (RuntimeError, IndexError)):
            return InputMismatchError(text)
        return CaptureError(text)

    def _hyperparameters(self, variant: _Variant, name: str) -> dict[str, Any]:
        """What a node was called with by name: its attributes, and weights and biases as tensors."""
        node = variant.graph[name]
        found: dict[str, Any] = dict(node.attributes)
        for value in node.inputs:
            if value.parameter:
                constants = _constants(self.model, variant.constants)
                found[value.parameter.rpartition(".")[2]] = constants(value.parameter)
        return found

    def _fx_names(self, variant: _Variant, name: str, *, edited: bool = False) -> list[str]:
        """The node of a name; for a module path the nodes that make the output of each of its calls."""
        graph = variant.graph
        if name in graph:
            found = [name]
        elif name in graph.scopes:
            made = _outputs_of(graph, name)
            if edited and any(len(nodes) > 1 for nodes in made):
                several = next(nodes for nodes in made if len(nodes) > 1)
                raise InvalidInputError(f"module {name!r} makes several values; edit one of its nodes: {several}.")
            found = [node for nodes in made for node in nodes]
        else:
            near = " or ".join(map(repr, near_names(name, [*(node.name for node in graph.nodes), *graph.scopes])))
            raise NodeNotFoundError(
                f"no node or module is named {name!r}" + (f"; did you mean {near}?" if near else "")
            )
        return [fx_name for fx_name, ours in variant.names.items() if ours in found]

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _matching(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Variant, list[Any]]:
        """The trace that serves these inputs, and the inputs in its order."""
        flat, spec = pytree.tree_flatten((args, kwargs))
        first = self._variants[0]
        if spec != first.in_spec:
            flat = self._flat(first, args, kwargs)
        looks = tuple(_looks(leaf) for leaf in flat)
        if (known := self._served.get(looks)) is not None:
            return known, flat
        bound = _guarded(self.model, *pytree.tree_unflatten(flat, first.in_spec))
        problems = []
        for variant in self._variants:
            problem, again = _mismatch(variant, flat), False
            if problem is None:
                problem, again = _broken_guard(variant, bound), True
            if problem is None:
                self._served[looks] = variant
                return variant, flat
            problems.append((problem, again or problem.endswith(_FROM_TWO)))
        if self.dynamic_shapes == "auto" and any(again for _, again in problems):
            example = pytree.tree_unflatten(flat, first.in_spec)
            self._served[looks] = variant = self._again(*example, problem=problems[0][0])
            return variant, flat
        raise InputMismatchError(problems[0][0])

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, problem: str) -> _Variant:
        """One more trace, in the mode of the first."""
        if len(self._variants) >= _MOST_TRACES:
            raise InputMismatchError(
                f"{problem} The model was traced {_MOST_TRACES} times already, for other sizes: make a new TracedModel."
            )
        with Restorer(self.model, (args, kwargs)):
            for name, module in self.model.named_modules():
                module.training = self._modes.get(name, module.training)
            try:
                variant = self._variant(args, kwargs, args, kwargs)
            except CaptureError as error:
                raise InputMismatchError(f"{problem} It cannot be traced for these either: {error}") from error
        self._variants.append(variant)
        return variant

    def _flat(self, variant: _Variant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The same call, written otherwise, in the order of the trace."""
        traced_args, traced_kwargs = pytree.tree_unflatten([None] * len(variant.leaves), variant.in_spec)
        signature = inspect.signature(self.model.forward)
        positional = list(signature.parameters)[: len(traced_args)]
        try:
            given = signature.bind(*args, **kwargs).arguments
            again = tuple(given[name] for name in positional), {name: given[name] for name in traced_kwargs}
            flat, spec = pytree.tree_flatten(again)
            same = spec == variant.in_spec and not set(given) - {*positional, *traced_kwargs}
        except (TypeError, KeyError):
            same = False
        if not same:
            wanted, found = ", ".join(name for name, _ in variant.leaves), _described(args, kwargs)
            raise InvalidInputError(f"the model was traced with the inputs {wanted or 'none'}; these are {found}.")
        return list(flat)

    # -- tracing -----------------------------------------------------------------------------------------------------

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[_Variant]:
        """The trace of the example; before it, if a size of it is 1, which export would fix, that of a wider one."""
        found = [self._variant(args, kwargs, args, kwargs)]
        if self.dynamic_shapes != "auto":
            return found
        leaves = pytree.tree_leaves((args, kwargs))
        ones = {(n, dim) for n, leaf in enumerate(leaves) for dim, size in enumerate(_shape(leaf)) if size == 1}
        for wanted in (ones, {(n, dim) for n, dim in ones if dim == 0}):
            while wanted:
                try:
                    wider_args, wider_kwargs = _widened((args, kwargs), wanted)
                    wider = self._variant(wider_args, wider_kwargs, args, kwargs)
                except CaptureError:
                    break
                free = {(n, dim) for n, dim in wanted if not str(_shape(wider.leaves[n][1])[dim]).isdecimal()}
                if free == wanted:
                    return [wider, *found]
                wanted = free  # some were fixed all the same, by a loop over them say
        if ones:
            self.notes.append("sizes that are 1 in the example are fixed: the model does not take them wider")
            found[0].graph.notes.append(self.notes[-1])
        return found

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare with the model itself, under the same random numbers; both are left as found."""
        name, results, reached, left = type(self.model).__name__, [], [], []
        for run in (self.model, self):
            with Restorer(self.model, (args, kwargs), None, whole=True), torch.random.fork_rng(devices=[]):
                try:
                    result = run(*args, **kwargs)
                except Exception as error:
                    which = "the model" if run is self.model else "the traced program"
                    raise CaptureError(f"{which} of {name} does not run on its own example: {error}") from error
                reached.append(_gradients_of(self.model, result))
                results.append(_copied(result))
                left.append(pytree.tree_flatten(_copied((args, kwargs))))
        difference = _difference(*map(pytree.tree_leaves, results))
        if difference is None:
            raise CaptureError(
                f"the traced program does not compute what {name} computes: torch.export did not see all that its "
                "forward does, such as an assignment to .data, to a Python object, or numbers of its own generator."
            )
        if left[0][1] != left[1][1] or _difference(left[0][0], left[1][0]) is None:
            self._note("the model changes a list or dictionary that it is given; the traced model leaves it as it is")
        for note in _gradient_notes(*reached):
            self._note(note)
        if difference:
            note = f"differs from the model by up to {difference:.2g}: it takes a fused path there that is not traced"
            self._note(note)

    def _note(self, note: str) -> None:
        self.notes.append(note)
        for variant in self._variants:
            variant.graph.notes.append(note)

    def _variant(self, args: Any, kwargs: Any, example_args: Any, example_kwargs: Any) -> _Variant:
        program = _exported(self.model, args, kwargs, self.dynamic_shapes)
        flat = pytree.tree_leaves((args, kwargs))
        graph, numbers = graph_of_export(program, self.model, pytree.tree_leaves((example_args, example_kwargs)))
        graph.notes += self.notes
        names = {fx_name: graph.nodes[number].name for fx_name, number in numbers.items()}
        specs = program.graph_signature.input_specs
        own = {spec.arg.name: spec.target for spec in specs if spec.kind.name != "USER_INPUT"}
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder" and n.name not in own]
        leaves = [(node.name, node.meta.get("val", given)) for node, given in zip(placeholders, flat, strict=True)]
        constants = dict(program.constants)
        example = _guarded(self.model, args, kwargs)
        guards = [(text, compile(text, "<what export assumed>", "eval")) for text in program._guards_code]
        if any(isinstance(constant, FakeTensor) for constant in constants.values()):
            raise CaptureError(
                f"{type(self.model).__name__} makes tensors while it is traced that would have to be kept, such as the "
                "parameters of a module made in forward. Make them in __init__."
            )
        spec, runs = program.call_spec, compiled(program.graph, own)
        variant = _Variant(runs, graph, names, spec.in_spec, spec.out_spec, leaves, guards, constants)
        if (broken := _broken_guard(variant, example)) is not None:
            raise CaptureError(f"torch.export assumed what its own example does not keep: {broken}")
        return variant

    def __repr__(self) -> str:
        return f"<TracedModel of {type(self.model).__name__}: {len(self.graph):,} nodes>"


def trace(
    model: nn.Module,
    *args: Any,
    dynamic_shapes: Any = "auto",
    kwargs: Mapping[str, Any] | None = None,
    **model_kwargs: Any,
) -> TracedModel:
    """Trace a model with example inputs; see TracedModel."""
    return TracedModel(model, args, dynamic_shapes=dynamic_shapes, kwargs={**(kwargs or {}), **model_kwargs})


def _copied(tree: Any) -> Any:
    """A result that outlives the restoring of what it may share memory with."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def _difference(wanted: list[Any], got: list[Any]) -> float | None:
    """The largest difference of two results, 0 for equal ones; None if they are not the same result at all."""
    if len(wanted) != len(got):
        return None
    most = 0.0
    for one, other in zip(wanted, got, strict=True):
        if not isinstance(one, torch.Tensor) or one.layout is not torch.strided or one.is_nested or one.is_quantized:
            continue
        if not isinstance(other, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return None
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            return None
        if one.numel() and one.is_floating_point():
            apart = (one.double() - other.double()).abs().nan_to_num()
            most = max(most, float(apart.max()))
    return most


def _constants(model: nn.Module, others: Mapping[str, Any]) -> Callable[[str], Any]:
    """Parameters and buffers by name, as the model has them now, and what the trace itself holds."""
    owners: dict[str, Any] = {"": model}  # each module is looked up once in a run

    def owner_of(path: str) -> Any:
        if path not in owners:
            parent, _, name = path.rpartition(".")
            owners[path] = getattr(owner_of(parent), name)
        return owners[path]

    def constant(name: str) -> Any:
        if name in others:
            return others[name]
        path, _, last = name.rpartition(".")
        owner = owners[path] if path in owners else owner_of(path)
        found = owner._parameters.get(last) if isinstance(owner, nn.Module) else None
        return getattr(owner, last) if found is None else found

    return constant


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Any:
    """Non-strict first: it is quicker and takes more."""
    shapes = dynamic_shapes
    if dynamic_shapes == "auto":
        automatic = torch.export.Dim.AUTO

        def free(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return None
            return {dim: automatic for dim, size in enumerate(leaf.shape) if size != 1}  # export would fix those at 1

        shapes = _shapes_of(model, args, kwargs, free)
    first: Exception | None = None
    for strict in (False, True):
        depth, parts = functorch_depth(), _parts(model)
        hooks = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        with Restorer(model, (args, kwargs)), _quietly() as said:
            try:
                program = torch.export.export(model, args, kwargs or None, dynamic_shapes=shapes, strict=strict)
            except Exception as error:  # export raises whatever the model, or the tracer, raises
                first = first or error
                undo_functorch(depth)  # a transform that was interrupted stays on
                _allow_saved_tensor_hooks(hooks)
                continue
            made = sorted(_parts(model) - parts)
        if made:
            raise CaptureError(
                f"{type(model).__name__} makes {', '.join(made)} in forward, which a traced program cannot do. "
                "Make them in __init__, or run the model once before."
            )
        _check_state(model, said)
        return program
    assert first is not None
    raise _refused(model, first) from first


def _allow_saved_tensor_hooks(message: str | None) -> None:
    """As they were before an interrupted transform forbade them, for the whole thread."""
    if message is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(message)


@contextmanager
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


def _shapes_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], free: Callable[[Any], Any]) -> Any:
    """What may vary, in the structure that export wants: by name, as the model's signature binds the arguments."""
    return pytree.tree_map(free, _bound(model, args, kwargs))


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    signature = inspect.signature(model.forward)
    try:
        bound = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise InvalidInputError(f"{type(model).__name__}.forward{signature} does not take these: {error}.") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in bound:
            bound.update(bound.pop(name))
    return bound


def _guarded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What guards speak of: arguments by name, and all of them flat, as those of strict export do."""
    return {"flat_args": pytree.tree_leaves((args, kwargs)), **_bound(model, args, kwargs)}


def _refused(model: nn.Module, error: Exception) -> CaptureError:
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__).rstrip(".")
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if frame.line and is_users(frame.filename)]
    where = f", at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    out = "Record what it does with atlas.capture instead."
    if "data-dependent" in text or isinstance(error, GuardOnDataDependentSymNode):
        out = f"It depends on the values of tensors there: use torch.where or torch.cond. {out}"
    return CaptureError(
        f"torch.export cannot trace {type(model).__name__}: {type(error).__name__}: {first}{where}. {out}"
    )


def _mismatch(variant: _Variant, flat: list[Any]) -> str | None:
    """What is wrong with inputs, in words."""
    known: dict[str, int] = {}
    small: str | None = None  # said last: another trace helps there
    for (name, wanted), given in zip(variant.leaves, flat, strict=True):
        if not isinstance(wanted, torch.Tensor):
            if not isinstance(wanted, (torch.SymInt, torch.SymFloat, torch.SymBool)) and wanted != given:
                return f"input {name} is {given!r}, but {wanted!r} was traced and is part of the graph: trace again."
            continue
        if not isinstance(given, torch.Tensor):
            return f"input {name} is a {type(given).__name__}, not a tensor."
        if given.dtype != wanted.dtype:
            return f"input {name} has dtype {given.dtype}; the model was traced with {wanted.dtype}."
        if given.device.type != wanted.device.type:
            return f"input {name} is on {given.device}; the model was traced on {wanted.device}."
        if given.dim() != wanted.dim():
            return f"input {name} has {given.dim()} dimensions; the model was traced with {wanted.dim()}."
        for dim, (size, fixed) in enumerate(zip(given.shape, map(str, wanted.shape), strict=True)):
            if fixed.isdecimal():
                if size != int(fixed):
                    return f"input {name} has size {size} in dimension {dim}; the model fixes it to {fixed}."
            elif fixed.isidentifier():
                if known.setdefault(fixed, size) != size:
                    other = known[fixed]
                    return f"input {name} has size {size} in dimension {dim}, which must be {other}, as elsewhere."
                if size < 2:
                    small = f"input {name} has size {size} in dimension {dim}; {_FROM_TWO}"
    return small


_FROM_TWO = "it was traced for sizes from 2."


def _broken_guard(variant: _Variant, bound: dict[str, Any]) -> str | None:
    """What export assumed of the sizes, on the way through the model that the example took, and is not so here."""
    names = {**SYMPY_INTERP, "L": bound}
    for text, code in variant.guards:
        if not eval(code, names):
            said = text.replace("L['", "").replace("']", "").replace(".size()", ".shape")
            return f"the model was traced where {said}, and takes another path for these sizes."
    return None


def _looks(leaf: Any) -> Any:
    """All that a trace may depend on."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device.type
    return type(leaf), leaf if isinstance(leaf, (bool, int, float, str, type(None))) else repr(leaf)


def _shape(leaf: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else ()


def _widened(tree: Any, ones: set[tuple[int, int]]) -> Any:
    """Tensors with some of their sizes of 1 doubled: (which leaf, which dimension)."""
    leaves, spec = pytree.tree_flatten(tree)
    wider = [
        leaf.repeat([2 if (n, dim) in ones else 1 for dim in range(leaf.dim())])
        if any(leaf_number == n for leaf_number, _ in ones)
        else leaf
        for n, leaf in enumerate(leaves)
    ]
    return pytree.tree_unflatten(wider, spec)


def _moved(tree: Any, device: torch.device) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _outputs_of(graph: Graph, path: str) -> list[list[str]]:
    """For each call of a module, the nodes that make what others take from it; the last node if nobody does."""
    columns, paths = graph.columns, [module.path for module in graph.tables.modules]
    parents, modules = columns["call_parent"].tolist(), columns["call_module"].tolist()
    inside: list[int] = []  # call -> the outermost call of the module that it is a part of, or -1
    for call, parent in enumerate(parents):
        outer = inside[parent] if parent >= 0 else -1
        inside.append(outer if outer >= 0 or paths[modules[call]] != path else call)
    of_node = [inside[call] if call >= 0 else -1 for call in columns["node_call"].tolist()]
    leaving: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for node, call in enumerate(of_node):
        if call >= 0:
            last[call] = node
    for source, target in zip(columns["edge_source"].tolist(), columns["edge_target"].tolist(), strict=True):
        if of_node[source] >= 0 and of_node[source] != of_node[target]:
            leaving.setdefault(of_node[source], []).append(source)
    return [[graph.nodes[n].name for n in sorted({*leaving.get(call, [last[call]])})] for call in last]


def _gradients_of(model: nn.Module, result: Any) -> tuple[set[str], set[str]]:
    """Which parameters gradients of a result reach, and which autograd Functions written in Python they pass."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    waiting = [leaf.grad_fn for leaf in leaves if leaf.grad_fn is not None]
    reached, own, seen = set(), set(), set()
    while waiting:
        node: Any = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            reached.add(names.get(id(variable), "an input"))
        elif isinstance(node, torch.autograd.function.BackwardCFunction):
            own.add(type(node).__name__.removesuffix("Backward"))
        waiting += [other for other, _ in node.next_functions if other is not None]
    return reached, own


def _gradient_notes(model: tuple[set[str], set[str]], traced: tuple[set[str], set[str]]) -> Iterator[str]:
    """What to know before a traced model is trained."""
    if more := sorted(traced[0] - model[0]):
        yield f"gradients reach {', '.join(more)}, unlike the model's: torch.inference_mode is not traced, no_grad is"
    if fewer := sorted(model[0] - traced[0]):
        yield f"gradients do not reach {', '.join(fewer)}, as the model's do"
    if own := sorted(model[1] - traced[1]):
        yield f"gradients are those of the ops inside {', '.join(own)}, whose own backward, or hook, is not traced"


def _check_device(model: nn.Module, device: torch.device) -> None:
    elsewhere = {p.device.type for p in [*model.parameters(), *model.buffers()]} - {device.type}
    if elsewhere:
        raise InvalidInputError(
            f"device={str(device)!r}, but the model is on {', '.join(sorted(elsewhere))}. "
            f"Move it first: model.to({str(device)!r})."
        )


def _described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    def one(item: Any) -> str:
        return f"a tensor of {tuple(item.shape)}" if isinstance(item, torch.Tensor) else type(item).__name__

    parts = [one(item) for item in args] + [f"{name}={one(item)}" for name, item in kwargs.items()]
    return ", ".join(parts) if parts else "none"
