"""A model and example inputs -> its traces, and checks of a traced model: its results and gradients are the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchatlas.capturing.deep_graphs import nodes_behind
from torchatlas.capturing.exported import graph_of_export
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import CaptureError
from torchatlas.execute.exporting import compiled, exported
from torchatlas.execute.free_sizes import Size, notes_of, why_fixed
from torchatlas.execute.trace_variant import Variant, broken_guard, expected, guard_arguments
from torchatlas.graph import Graph
from torchatlas.progress_line import ProgressLine
from torchatlas.torch_private import FakeTensor, export_guards, pytree

if TYPE_CHECKING:
    from torchatlas.execute.traced import TracedModel

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Tracer:
    """Traces one model, again where other sizes need it. Remembers the sizes that no attempt could free."""

    def __init__(self, model: nn.Module, dynamic_shapes: Any, budget_s: float, notes: list[str]) -> None:
        self._model, self._dynamic_shapes, self._budget_s = model, dynamic_shapes, budget_s
        self._notes = notes  # of the traced model: what is found out here is added
        self._fixed: dict[Size, str] = {}  # sizes that could not be freed, and why: not tried again
        self.assigned: set[str] = set()  # attributes in which forward keeps tensors

    def traces(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Variant]:
        """The trace of the example. Export fixes sizes of 1: if it has some, a trace of a wider example comes first."""
        variants = [self.trace(args, kwargs)]
        if self._dynamic_shapes != "auto":
            return variants
        leaves = pytree.tree_leaves((args, kwargs))
        ones = {(n, dim) for n, leaf in enumerate(leaves) for dim, size in enumerate(_shape(leaf)) if size == 1}
        for wanted in (ones, {(n, dim) for n, dim in ones if dim == 0}):
            while wanted:
                try:
                    wider_args, wider_kwargs = _widened((args, kwargs), wanted)
                    wider = self.trace(wider_args, wider_kwargs, example=(args, kwargs))
                except CaptureError:
                    break
                free = {(n, dim) for n, dim in wanted if not wider.leaves[n][1].shape[dim].isdecimal()}
                if free == wanted:
                    return [wider, *variants]
                wanted = free  # some were fixed all the same, by a loop over them say
        if ones:
            self._notes.append("sizes that are 1 in the example are fixed: the model does not take them wider")
            variants[0].graph.notes.append(self._notes[-1])
        return variants

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], example: Call | None = None) -> Variant:
        """One trace. Its graph shows the sizes of `example`, where that differs from the inputs to trace with."""
        with ProgressLine(f"tracing {type(self._model).__name__}") as progress:
            made = exported(
                self._model,
                args,
                kwargs,
                self._dynamic_shapes,
                budget_s=self._budget_s,
                known=self._fixed,
                progress=progress,
            )
        program, self._fixed = made.program, made.fixed
        self.assigned.update(made.assigned)
        flat = pytree.tree_leaves((args, kwargs))
        graph, numbers = graph_of_export(program, self._model, pytree.tree_leaves(example or (args, kwargs)))
        names = {fx_name: graph.nodes[number].name for fx_name, number in numbers.items()}
        specs = program.graph_signature.input_specs
        own = {spec.arg.name: spec.target for spec in specs if spec.kind.name != "USER_INPUT"}
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder" and n.name not in own]
        leaves = [
            (node.name, expected(node.meta.get("val", argument)))
            for node, argument in zip(placeholders, flat, strict=True)
        ]
        self._say_sizes(graph, [names.get(name, name) for name, _ in leaves], flat)
        constants = dict(program.constants)
        guards = [(text, compile(text, "<what export assumed>", "eval")) for text in export_guards(program)]
        if any(isinstance(constant, FakeTensor) for constant in constants.values()):
            raise CaptureError(
                f"{type(self._model).__name__} makes tensors while it is traced that would have to be kept, such as "
                "the parameters of a module made in forward. Make them in __init__."
            )
        spec, runs = program.call_spec, compiled(program.graph, own, names)
        variant = Variant(runs, graph, spec.in_spec, spec.out_spec, leaves, guards, constants, program)
        if (broken := broken_guard(guards, guard_arguments(self._model, args, kwargs))) is not None:
            raise CaptureError(f"torch.export assumed what its own example does not keep: {broken}")
        return variant

    def _say_sizes(self, graph: Graph, names: list[str], flat: list[Any]) -> None:
        """Write into the graph why sizes are fixed, and a note where it is not the model that fixes them."""
        known = {(n, dim): f"{names[n]}[{dim}]" for n, leaf in enumerate(flat) for dim in range(len(_shape(leaf)))}
        self._notes += [note for note in notes_of(known, self._fixed) if note not in self._notes]
        graph.notes += self._notes
        fixed = []
        for n, leaf in enumerate(flat):
            for dim, size in enumerate(graph[names[n]].outputs[0].shape if _shape(leaf) else ()):
                if not isinstance(size, str):
                    reason = self._fixed.get((n, dim)) or why_fixed(size, self._dynamic_shapes)
                    fixed.append([names[n], dim, reason])
        graph.metadata["fixed_sizes"] = fixed


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


# -- checks ------------------------------------------------------------------------------------------------------------


def check_trace(traced: TracedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Run the example both ways, under the same random numbers. Returns what to know before the trace is used."""
    model, name, reached, left = traced.model, type(traced.model).__name__, [], []

    def inspect(result: Any) -> None:
        reached.append(gradients_of(model, result))
        left.append(pytree.tree_flatten(_copied((args, kwargs))))

    results = [_called(traced, run, [(args, kwargs)], inspect)[0] for run in (model, traced)]
    for which, result in zip(("the model", "the traced program"), results, strict=True):
        if isinstance(result, Exception):
            raise CaptureError(f"{which} of {name} does not run on its own example: {result}") from result
    apart = difference(*map(pytree.tree_leaves, results))
    if apart is None:
        raise CaptureError(
            f"the traced program does not compute what {name} computes: torch.export did not see all that its "
            "forward does, such as an assignment to .data, to a Python object, or numbers of its own generator."
        )
    notes = []
    if left[0][1] != left[1][1] or difference(left[0][0], left[1][0]) is None:
        notes.append("the model changes a list or dictionary that it is given; the traced model leaves it as it is")
    notes += gradient_notes(*reached)
    if apart:
        notes.append(f"differs from the model by up to {apart:.2g}: it takes a fused path there that is not traced")
    return notes


def check_assigned(traced: TracedModel, assigned: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Check that tensors which forward keeps in attributes do not change later results: the program keeps none.

    So the model is called several times in a row: with the example, with other values, and with a larger batch.
    Returns a note that says so.
    """
    listed = f"{', '.join(assigned[:3])}{' ...' * (len(assigned) > 3)}"
    calls = [(args, kwargs), *_others((args, kwargs), traced.first.leaves)]
    apart: list[float | None] = []
    for wanted, got in zip(*(_called(traced, run, calls) for run in (traced.model, traced)), strict=False):
        if isinstance(wanted, Exception):  # inputs that the model does not take tell nothing
            break
        failed = isinstance(got, Exception)
        apart.append(None if failed else difference(*map(pytree.tree_leaves, (wanted, got))))
    if None in apart or (apart[0] == 0.0 and any(apart)):  # what was exact stays exact
        raise CaptureError(
            f"{type(traced.model).__name__} assigns {listed} in forward, and what it returns depends on them, which a "
            "traced program cannot do. Register such tensors with register_buffer and write to them."
        )
    return f"the model keeps tensors in {listed}; the traced model keeps none, and computes them every time"


def _called(
    traced: TracedModel, run: Callable[..., Any], calls: list[Call], inspect: Callable[[Any], None] | None = None
) -> list[Any]:
    """The results of calls one after another, copied; an exception ends them. Model and inputs are left as found."""
    made: list[Any] = []
    with Restorer(traced.model, calls[0], None, whole=True), torch.random.fork_rng(devices=[]):
        for args, kwargs in calls:
            try:
                result = run(*args, **kwargs)
                made.append(_copied(result))
            except Exception as error:
                return [*made, error]
            if inspect is not None:
                inspect(result)
    return made


def _copied(tree: Any) -> Any:
    """A result that outlives the restoring of what it may share memory with."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def difference(wanted: list[Any], got: list[Any]) -> float | None:
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
            apart = (one.cpu().double() - other.cpu().double()).abs().nan_to_num()
            most = max(most, float(apart.max()))
    return most


def gradients_of(model: nn.Module, result: Any) -> tuple[set[str], set[str]]:
    """Which parameters gradients of a result reach, and which autograd Functions written in Python they pass."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    reached, own = set[str](), set[str]()
    for node in nodes_behind(leaf.grad_fn for leaf in leaves if leaf.grad_fn is not None):
        if (variable := getattr(node, "variable", None)) is not None:
            reached.add(names.get(id(variable), "an input"))
        elif isinstance(node, torch.autograd.function.BackwardCFunction):
            own.add(type(node).__name__.removesuffix("Backward"))
    return reached, own


def gradient_notes(model: tuple[set[str], set[str]], traced: tuple[set[str], set[str]]) -> Iterator[str]:
    """What to know before a traced model is trained."""
    if more := sorted(traced[0] - model[0]):
        yield f"gradients reach {', '.join(more)}, unlike the model's: torch.inference_mode is not traced, no_grad is"
    if fewer := sorted(model[0] - traced[0]):
        yield f"gradients do not reach {', '.join(fewer)}, as the model's do"
    if own := sorted(model[1] - traced[1]):
        yield f"gradients are those of the ops inside {', '.join(own)}, whose own backward, or hook, is not traced"


def _others(tree: Any, expectations: list[tuple[str, Any]]) -> list[Any]:
    """The arguments with other values, and then with twice the batch if its size is free."""
    leaves, spec = pytree.tree_flatten(tree)
    other = [_other(leaf) for leaf in leaves]
    first = [
        expectation.shape[0] if isinstance(leaf, torch.Tensor) and leaf.dim() else ""
        for leaf, (_, expectation) in zip(leaves, expectations, strict=True)
    ]
    batch = next((size for size in first if size and not size.isdecimal()), None)
    twice = [torch.cat([leaf, leaf]) if size == batch else leaf for leaf, size in zip(other, first, strict=True)]
    return [pytree.tree_unflatten(made, spec) for made in ([other, twice] if batch else [other])]


def _other(leaf: Any) -> Any:
    """Other values of the same kind: indices stay in their range."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return leaf
    moved = leaf.detach().flatten().roll(1).view(leaf.shape)
    return moved * 0.5 if moved.is_floating_point() else moved
