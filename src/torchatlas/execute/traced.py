"""A model -> a TracedModel: traced once by torch.export, run many times, with every node's value at hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.exported import graph_of_export
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import (
    CaptureError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    NodeNotFoundError,
    OutOfMemoryError,
)
from torchatlas.execute.exporting import exported
from torchatlas.execute.likeness import copied, difference, gradient_notes, gradients_of
from torchatlas.execute.matching import (
    FROM_TWO,
    broken_guard,
    check_device,
    described,
    guarded,
    looks,
    mismatch,
)
from torchatlas.execute.program import Failed, Program, Taken, compiled
from torchatlas.graph import Graph, GraphNode
from torchatlas.registry import near_names
from torchatlas.torch_private import FakeTensor, export_guards, pytree

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
            check_device(model, torch.device(device))
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
        seen = tuple(looks(leaf) for leaf in flat)
        if (known := self._served.get(seen)) is not None:
            return known, flat
        bound = guarded(self.model, *pytree.tree_unflatten(flat, first.in_spec))
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
            example = pytree.tree_unflatten(flat, first.in_spec)
            self._served[seen] = variant = self._again(*example, problem=problems[0][0])
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
            wanted, found = ", ".join(name for name, _ in variant.leaves), described(args, kwargs)
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
                reached.append(gradients_of(self.model, result))
                results.append(copied(result))
                left.append(pytree.tree_flatten(copied((args, kwargs))))
        apart = difference(*map(pytree.tree_leaves, results))
        if apart is None:
            raise CaptureError(
                f"the traced program does not compute what {name} computes: torch.export did not see all that its "
                "forward does, such as an assignment to .data, to a Python object, or numbers of its own generator."
            )
        if left[0][1] != left[1][1] or difference(left[0][0], left[1][0]) is None:
            self._note("the model changes a list or dictionary that it is given; the traced model leaves it as it is")
        for note in gradient_notes(*reached):
            self._note(note)
        if apart:
            note = f"differs from the model by up to {apart:.2g}: it takes a fused path there that is not traced"
            self._note(note)

    def _note(self, note: str) -> None:
        self.notes.append(note)
        for variant in self._variants:
            variant.graph.notes.append(note)

    def _variant(self, args: Any, kwargs: Any, example_args: Any, example_kwargs: Any) -> _Variant:
        program = exported(self.model, args, kwargs, self.dynamic_shapes)
        flat = pytree.tree_leaves((args, kwargs))
        graph, numbers = graph_of_export(program, self.model, pytree.tree_leaves((example_args, example_kwargs)))
        graph.notes += self.notes
        names = {fx_name: graph.nodes[number].name for fx_name, number in numbers.items()}
        specs = program.graph_signature.input_specs
        own = {spec.arg.name: spec.target for spec in specs if spec.kind.name != "USER_INPUT"}
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder" and n.name not in own]
        leaves = [(node.name, node.meta.get("val", given)) for node, given in zip(placeholders, flat, strict=True)]
        constants = dict(program.constants)
        example = guarded(self.model, args, kwargs)
        guards = [(text, compile(text, "<what export assumed>", "eval")) for text in export_guards(program)]
        if any(isinstance(constant, FakeTensor) for constant in constants.values()):
            raise CaptureError(
                f"{type(self.model).__name__} makes tensors while it is traced that would have to be kept, such as the "
                "parameters of a module made in forward. Make them in __init__."
            )
        spec, runs = program.call_spec, compiled(program.graph, own)
        variant = _Variant(runs, graph, names, spec.in_spec, spec.out_spec, leaves, guards, constants)
        if (broken := broken_guard(variant.guards, example)) is not None:
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
