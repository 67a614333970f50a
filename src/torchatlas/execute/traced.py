"""A model -> a TracedModel: traced once by torch.export, run many times, with every node's value at hand."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import (
    CaptureError,
    FileFormatError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    NotFiniteError,
)
from torchatlas.escapes import clean
from torchatlas.execute.capture_fallback import NOTE, Followed, captured_path
from torchatlas.execute.free_sizes import BUDGET_S, FOLLOWED, InputSize, input_sizes
from torchatlas.execute.loading import holds_program, loaded, signature_of
from torchatlas.execute.node_values import NodeIO, NodeValues, RunOptions, Taken, ValueFile
from torchatlas.execute.saving import graph_with_program, save_onnx
from torchatlas.execute.trace_variant import (
    FROM_TWO,
    Variant,
    broken_guard,
    check_device,
    guard_arguments,
    looks,
    mismatch,
    node_location,
    structured,
    usable_device,
)
from torchatlas.execute.tracing import Tracer, check_assigned, check_trace
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.formats import as_path
from torchatlas.graph.shown import Shown
from torchatlas.inputs import check_keywords, described_call
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import pytree
from torchatlas.units import format_count

_MOST_TRACES = 8  # of one model, for inputs that the first one does not serve


class TracedModel(Shown):
    """A model that was traced into a graph, and runs from it. Both share parameters: training one trains the other.

    A size of 0 or 1, or one for which the model takes another path, needs a trace of its own. It is made at the first
    call with such a size, in the mode (training or not) of the first trace. `graph` is the graph of the first trace.

    Args:
        model: The model.
        input_for_graph: Example inputs: a tensor, or a tuple of them.
        device: Where to trace and run: the example is moved there, and the model must be there. None leaves it.
        dynamic_shapes: "auto" lets every size that the model does not fix be another one later; None fixes all;
            otherwise it is what torch.export takes.
        kwargs: Example inputs that are passed by keyword.
        check: Run the example once both ways: what export did not see, such as an assignment to `.data`, is an error
            then and not a wrong number later.
        fallback: "capture" takes a model that torch.export refuses: it then runs itself, along the path that the
            example took, and inputs for which it takes another one are refused.
        budget_s: Seconds of computing that tracing may take longer than with all sizes fixed: which sizes can be free
            is found by trying. `input_sizes` says what came of it.
    Raises:
        InvalidModelError: `model` is not a module.
        InvalidInputError: An argument cannot be understood.
        CaptureError: torch.export refuses the model with this example, or what it made of it computes something else.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> traced = atlas.TracedModel(model, torch.ones(3, 4))
        >>> traced.predict(torch.ones(5, 4))["1.relu"].output.shape
        torch.Size([5, 8])
    """

    @explains_arguments
    def __init__(
        self,
        model: nn.Module,
        input_for_graph: Any,
        device: Any = None,
        dynamic_shapes: Any = "auto",
        *,
        kwargs: Mapping[str, Any] | None = None,
        check: bool = True,
        fallback: str | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidModelError(f"a traced model is made of a torch.nn.Module, not {type(model).__name__}.")
        args = tuple(input_for_graph) if isinstance(input_for_graph, (tuple, list)) else (input_for_graph,)
        if fallback not in (None, "capture"):
            raise InvalidInputError(f"fallback={fallback!r} is not one of None, 'capture'.")
        if not budget_s >= 0:
            raise InvalidInputError(f"budget_s={budget_s!r} is no number of seconds.")
        named = dict(kwargs or {})
        if device is not None:
            check_device(model, usable_device(device))
            args, named = moved((args, named), torch.device(device))
        self.model, self.dynamic_shapes, self._name = model, dynamic_shapes, type(model).__name__
        self.notes: list[str] = []
        if model.training:
            self.notes.append("traced in training mode: dropout and batch statistics are part of the graph")
        self._modes = {name: module.training for name, module in model.named_modules()}
        self._served: dict[Any, Variant] = {}  # what inputs look like -> the trace that serves them
        self._tracer = Tracer(model, dynamic_shapes, budget_s, self.notes)
        try:
            self._variants = self._tracer.traces(args, named)
            if check:
                for note in check_trace(self, args, named):
                    self._note(note)
            self._check_assigned(args, named)
        except CaptureError:
            if fallback is None:
                raise
            self._variants = [self._followed(args, named)]

    @property
    def graph(self) -> Graph:
        """The traced computation, with the sizes that may vary as symbols."""
        return self._variants[0].graph

    @property
    def first(self) -> Variant:
        """The trace of the example: what `graph` shows."""
        return self._variants[0]

    def flattened(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call as the first trace takes them, one after another."""
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        return flat if spec == self.first.in_spec else self._reordered(args, kwargs)

    def structured(self, results: Iterable[Any]) -> Any:
        """What the first trace computes, in the structure that the model returns."""
        return structured(list(results), self.first.out_spec)

    @property
    def input_shapes(self) -> dict[str, tuple[int | str, ...]]:
        """The shape of each tensor given, with symbols for the sizes that may be others: {"x": ("s0", 3, 224, 224)}."""
        return {node.name: tuple(node.outputs[0].shape) for node in self.graph.where(kind="input")}

    @property
    def input_sizes(self) -> tuple[InputSize, ...]:
        """Every size of every tensor given: free, under which symbol, or fixed, and why."""
        return input_sizes(self.graph)

    @property
    def topological_order(self) -> list[GraphNode]:
        """The nodes in the order in which they run."""
        return self.graph.topological_order()

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> Path:
        """Write program, graph and weights to an `.atlas` file; `atlas.load(path)` reads it, without this model's code.

        An `.onnx` file is for other runtimes and for Netron; its nodes are named after the modules of the model.

        Args:
            path: Where.
            weights: False leaves the weights out: loading then takes a model that has them, `atlas.load(path,
                model=model)`.
        Returns:
            The path.
        Raises:
            InvalidInputError: The suffix is neither .atlas nor .onnx.
            FileSystemError: The file cannot be written.
            NotAvailableError: A file cannot hold it, or torch.onnx cannot translate it.
            MissingDependencyError: .onnx files need the extra `onnx`.
        """
        suffix = as_path(path).suffix.lower()
        if suffix == ".onnx":
            return save_onnx(self.first, path, weights=weights)
        if suffix != ".atlas":
            raise InvalidInputError(
                f"a traced model is saved as .atlas or .onnx, not {Path(path).name!r}; its graph as anything."
            )
        return graph_with_program(self._variants, self.model, weights=weights).save(path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, model: nn.Module | None = None, allow: Iterable[str] = ()
    ) -> TracedModel:
        """Read what `save` wrote. Nothing is executed, and the program may call only operators that were reviewed.

        Args:
            path: The file.
            model: Where the weights come from, if not from the file.
            allow: Operators to allow besides: names ("my_ops.scale.default") or namespaces ("my_ops"). For files that
                you trust; see SECURITY.md.
        Returns:
            The traced model.
        Raises:
            FileFormatError: The file is damaged, holds no traced model, or asks for an operator that nobody reviewed.
            FileSystemError: The file cannot be read.
        """
        graph = Graph.load(path)
        if not holds_program(graph):
            raise FileFormatError(
                f"{path}: this is a graph and no traced model, which atlas.trace(...).save writes; Graph.load reads it."
            )
        return cls.of_graph(graph, path, model=model, allow=allow)

    @classmethod
    def of_graph(
        cls,
        graph: Graph,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        allow: Iterable[str] = (),
    ) -> TracedModel:
        """The traced model that a graph holds which was read from a file."""
        traced = cls.__new__(cls)
        try:
            traced._variants, traced.model, saved = loaded(graph, model, allow)
            if model is None:
                traced.model.forward = called_as(traced, signature_of(saved))
        except (FileFormatError, InvalidInputError) as error:
            raise type(error)(f"{path}: {error}") from error
        traced._name = saved.model
        traced.dynamic_shapes, traced.notes = None, list(traced.graph.notes)  # it cannot be traced again
        traced._modes, traced._served = {}, {}
        return traced

    # -- running -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs.

        Args:
            *args: The positional arguments of the model.
            **kwargs: Its keyword arguments.
        Returns:
            What the model returns, in the same structure.
        Raises:
            InputMismatchError: A size that the trace fixed is another one, or torch refused the inputs.
        """
        return self._run(args, kwargs)[0]

    def predict(
        self,
        *args: Any,
        nodes: Iterable[str] | None = None,
        callback: Callable[[str, Any], None] | None = None,
        save: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> NodeValues:
        """Run it and give what every node took and made. With a callback or a file nothing is kept.

        Args:
            *args: The positional arguments of the model.
            nodes: The nodes to give, by name or by module path; None gives all.
            callback: Called with each node's name and value as they come.
            save: Write what these nodes make to this .safetensors file, for models whose values do not fit.
            **kwargs: The keyword arguments of the model.
        Returns:
            NodeValues: by node name, what it took and made; `output` is the model's.
        Raises:
            NodeNotFoundError: There is no such node or module; the message lists near names.
            InputMismatchError: The inputs do not fit the trace.
        """
        if save is not None:
            return self._saved(save, args, kwargs, nodes, callback)
        wanted = () if nodes is None and callback is not None else nodes
        output, variant, taken = self._run(args, kwargs, nodes=wanted, callback=callback)
        entries = {}
        for name, entry in taken.items():
            made = output if name == "output" else entry.output
            known = partial(variant.hyperparameters, name, self.model)
            entries[name] = NodeIO(entry.inputs, made, known, variant.graph[name])
        return NodeValues(entries, output, variant.graph, self.model)

    def _saved(
        self, path: str | os.PathLike[str], args: Any, kwargs: Any, nodes: Iterable[str] | None, callback: Any
    ) -> NodeValues:
        variant, _ = self._matching(args, kwargs)
        wanted = None
        if nodes is not None:
            wanted = {node for name in nodes for node in variant.node_names(name, self.model)}
        with ValueFile(path) as file:

            def write(name: str, value: Any) -> None:
                if wanted is None or name in wanted:
                    file.write(name, value)
                if callback is not None:
                    callback(name, value)

            output, _, _ = self._run(args, kwargs, callback=write)
        return NodeValues({}, output)

    def run(
        self,
        *args: Any,
        edit: Mapping[str, Callable[[Any], Any]] | None = None,
        check_finite: bool = False,
        **kwargs: Any,
    ) -> Any:
        """What the model returns when the values of some nodes, or outputs of modules, are changed on the way.

        Args:
            *args: The positional arguments of the model.
            edit: Functions from a value to the value to take instead, by node name or module path.
            check_finite: Make the first node that makes NaN or infinity an error that names it.
            **kwargs: The keyword arguments of the model.
        Returns:
            What the model returns then.
        Raises:
            NotFiniteError: A node made NaN or infinity, and `check_finite` is set.
            NodeNotFoundError: There is no such node or module.
            CaptureError: A function of `edit` failed. The message names the place; `__cause__` is its own error.
        """
        if not check_finite:
            return self._run(args, kwargs, edit=edit)[0]
        variant, _ = self._matching(args, kwargs)

        def check(name: str, value: Any) -> None:
            for tensor in pytree.tree_leaves(value):
                if isinstance(tensor, torch.Tensor) and (bad := _count_not_finite(tensor)):
                    where = node_location(variant.graph[name])
                    raise NotFiniteError(f"{bad:,} of {tensor.numel():,} numbers are not finite after {where}.")

        return self._run(args, kwargs, edit=edit, callback=check)[0]

    def run_between(self, values: Mapping[str, Any], to: str) -> Any:
        """What a node makes, or a module returns, computed from the values of other nodes alone.

        Only what leads from them to it is run. A module that returns several values takes and gives a tuple of them.

        Args:
            values: Values by node name, input name or module path: `run_between({"layer1": hidden}, "layer3")`.
            to: The node or module to compute.
        Returns:
            Its value.
        Raises:
            InvalidInputError: The values do not determine it, past a skip connection say; the message names what is
                missing.
            NodeNotFoundError: There is no such node or module.
        """
        results = self.first.run_between(values, to, self.model)
        return results[0] if len(results) == 1 else tuple(results)

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        nodes: Iterable[str] | None = (),
        edit: Mapping[str, Callable[[Any], Any]] | None = None,
        callback: Callable[[str, Any], None] | None = None,
    ) -> tuple[Any, Variant, dict[str, Taken]]:
        variant, flat = self._matching(args, kwargs)
        keep = None
        if nodes is not None:
            keep = {node for name in nodes for node in variant.node_names(name, self.model)}
        edits: dict[str, Callable[[Any], Any]] = {}
        for name, change in dict[str, Any](edit or {}).items():
            if not callable(change):
                kind = type(change).__name__
                raise InvalidInputError(f"edit[{name!r}] is a {kind}: pass a function of the value, lambda x: 2 * x.")
            for node in variant.node_names(name, self.model, edited=True):
                edits[node] = _explained_edit(change, name, variant.graph[node])
        output, taken = variant.run(flat, self.model, RunOptions(keep, edits, callback))
        return output, variant, taken

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _matching(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, list[Any]]:
        """The trace that serves these inputs, and the inputs in its order."""
        first = self.first
        if isinstance(first.program, Followed):
            flat, spec = pytree.tree_flatten((args, kwargs))
            return replace(first, in_spec=spec), flat
        flat = self.flattened(args, kwargs)
        seen = tuple(looks(leaf) for leaf in flat)
        if (known := self._served.get(seen)) is not None:
            return known, flat
        bound = guard_arguments(self.model, *structured(flat, first.in_spec))
        problems = []
        for variant in self._variants:
            problem, again = mismatch(variant.leaves, flat), False
            if problem is None:
                problem, again = broken_guard(variant.guards, bound), True
            if problem is None:
                self._served[seen] = variant
                return variant, flat
            problems.append((problem, again or problem.endswith(FROM_TWO)))
        if self.dynamic_shapes == "auto" and any(again for _, again in problems):
            example = structured(flat, first.in_spec)
            self._served[seen] = variant = self._again(*example, problem=problems[0][0])
            return variant, flat
        raise InputMismatchError(problems[0][0])

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, problem: str) -> Variant:
        """One more trace, in the mode of the first."""
        if len(self._variants) >= _MOST_TRACES:
            raise InputMismatchError(
                f"{problem} The model was traced {_MOST_TRACES} times already, for other sizes: make a new TracedModel."
            )
        variant = None
        with Restorer(self.model, (args, kwargs)):
            for name, module in self.model.named_modules():
                module.training = self._modes.get(name, module.training)
            try:
                variant = self._tracer.trace(args, kwargs)
                self._variants.append(variant)
                self._check_assigned(args, kwargs)
            except CaptureError as error:
                self._variants = [other for other in self._variants if other is not variant]
                raise InputMismatchError(f"{problem} It cannot be traced for these either: {error}") from error
        return variant

    def _reordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs in the order of the first trace, for a call that passes them differently, by keyword say."""
        variant = self.first
        traced_args, traced_kwargs = structured([None] * len(variant.leaves), variant.in_spec)
        signature = inspect.signature(self.model.forward)
        positional = list(signature.parameters)[: len(traced_args)]
        try:
            arguments = signature.bind(*args, **kwargs).arguments
            again = tuple(arguments[name] for name in positional), {name: arguments[name] for name in traced_kwargs}
            flat, spec = pytree.tree_flatten(again)
            same = spec == variant.in_spec and not set(arguments) - {*positional, *traced_kwargs}
        except (TypeError, KeyError):
            same = False
        if not same:
            inputs = [name for name, _ in variant.leaves]
            named = f" ({', '.join(inputs)})" if inputs else ""
            wanted = f"{len(inputs):,} input{'s' * (len(inputs) != 1)}{named}"
            raise InvalidInputError(
                f"the model was traced with {wanted} and called with "
                f"{described_call(args, kwargs) or 'nothing'}: pass as many tensors, in the structure of the example."
            )
        return list(flat)

    # -- tracing -----------------------------------------------------------------------------------------------------

    def _followed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        """The path that the example takes, for what export refuses."""
        graph = captured_path(self.model, args, kwargs)
        shapes = {node.name: node.outputs[0].shape for node in graph.where(kind="input")}
        graph.metadata["fixed_sizes"] = [
            [name, dim, FOLLOWED] for name, shape in shapes.items() for dim in range(len(shape))
        ]
        self.notes.append(NOTE)
        return Variant(Followed(self.model, graph), graph, in_spec=None, out_spec=None, leaves=[], guards=[])

    def _check_assigned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._tracer.assigned:
            self._note(check_assigned(self, sorted(self._tracer.assigned), args, kwargs))

    def _note(self, note: str) -> None:
        if note in self.notes:
            return
        self.notes.append(note)
        for variant in self._variants:
            variant.graph.notes.append(note)

    def __repr__(self) -> str:
        inputs = [f"{name} ({', '.join(map(str, shape))})" for name, shape in self.input_shapes.items()]
        return clean(f"<TracedModel of {self._name}: {len(self.graph):,} nodes; {', '.join(inputs) or 'no inputs'}>")

    def _sections(self) -> Iterator[Section]:
        root = self.graph.scopes[""]
        counts = f"{len(self.graph):,} nodes, {format_count(root.parameters)} parameters"
        yield Lines([f"traced model of {self._name}: {counts}"], self.notes)
        rows = [
            [
                one.input,
                f"{one.dim}",
                "?" if one.size is None else f"{one.size:,}",
                "only that" if one.symbol is None else f"any {one.symbol}",
                one.reason,
            ]
            for one in self.input_sizes
        ]
        if rows:
            yield Table(["input", ">dim", ">size of the example", "takes", "why"], rows)


@explains_arguments
def trace(
    model: nn.Module,
    *args: Any,
    dynamic_shapes: Any = "auto",
    fallback: str | None = None,
    budget_s: float = BUDGET_S,
    kwargs: Mapping[str, Any] | None = None,
    **model_kwargs: Any,
) -> TracedModel:
    """Trace a model with example inputs: torch.export turns it into a graph that runs by itself.

    Args:
        model: The model.
        *args: Example inputs.
        dynamic_shapes: "auto" lets every size that the model does not fix be another one later; None fixes all;
            otherwise it is what torch.export takes.
        fallback: "capture" takes a model that torch.export refuses: it then runs itself, along the path that the
            example took, and inputs for which it takes another one are refused.
        budget_s: Seconds of computing that finding the free sizes may take.
        kwargs: Keyword arguments of the model whose names are also names of this function.
        **model_kwargs: All other keyword arguments of the model.
    Returns:
        A TracedModel, to be called like the model.
    Raises:
        InvalidModelError: `model` is not a module.
        CaptureError: torch.export refuses the model with this example, or what it made of it computes something else.
    Example:
        >>> import torch, torchatlas as atlas
        >>> traced = atlas.trace(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> traced(torch.ones(7, 4)).shape, traced.input_shapes
        (torch.Size([7, 2]), {'input': ('s...', 4)})
    """
    check_keywords(trace, model, model_kwargs)
    named = {**(kwargs or {}), **model_kwargs}
    return TracedModel(model, args, dynamic_shapes=dynamic_shapes, kwargs=named, fallback=fallback, budget_s=budget_s)


def called_as(traced: TracedModel, signature: inspect.Signature) -> Any:
    """The forward of a model that is only its weights: it runs the program."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return traced(*args, **kwargs)

    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def moved(tree: Any, to: torch.device | torch.dtype) -> Any:
    """A tree with its tensors on a device, or those of floating point in a dtype."""

    def each(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or (isinstance(to, torch.dtype) and not leaf.is_floating_point()):
            return leaf
        return leaf.to(to)

    return pytree.tree_map(each, tree)


def _count_not_finite(tensor: torch.Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    values = tensor._values() if tensor.is_sparse else tensor
    return values.numel() - int(values.isfinite().sum())


def _explained_edit(change: Callable[[Any], Any], name: str, node: GraphNode) -> Callable[[Any], Any]:
    """The function of an edit, whose errors say which edit it is and at which node it was called."""

    def changed(value: Any) -> Any:
        try:
            return change(value)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            text = f"edit[{name!r}] failed at {node_location(node)}: {type(error).__name__}: {first}"
            if isinstance(value, (tuple, list)):  # of a module that returns one of them, a surprise
                text = f"{text.rstrip('.')}. The value there is a {type(value).__name__} of {len(value)}."
            raise CaptureError(text) from error

    return changed
