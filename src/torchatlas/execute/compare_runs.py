"""Two runs on the same input -> the first node at which they differ, and how the difference grows with depth."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import CaptureError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.execute.node_values import NodeIO, NodeValues
from torchatlas.execute.trace_variant import usable_device
from torchatlas.execute.traced import TracedModel, moved, trace
from torchatlas.graph import GraphNode, OperationType
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import pytree

_MOST_ROWS = 40  # that a report prints


@dataclass(frozen=True, repr=False)
class NodeDifference(ShownPart):
    """One node in both runs. Values that are no numbers, or differ in shape, count as infinitely far apart."""

    node: str
    module: str
    operation: str
    operation_type: OperationType
    depth: int  # how many nodes lie before it on the longest way from an input
    largest: float  # difference of two numbers
    relative: float  # norm of the difference by the norm of the first run's value
    differing: int  # how many numbers differ by more than allowed
    numbers: int  # how many numbers it made
    reason: str = ""  # why they cannot be compared number by number
    inputs_differ: bool = False  # whether what it takes from other nodes differs already

    @property
    def same(self) -> bool:
        """Whether it made the same in both runs, within the tolerances."""
        return not self.differing and not self.reason

    def __str__(self) -> str:
        what = self.reason or f"{self.differing:,} of {self.numbers:,} numbers differ, by up to {self.largest:.3g}"
        before = "its inputs differ already" if self.inputs_differ else "its inputs are the same"
        return clean(f"{self.node}: {what}; {before}")


@dataclass(frozen=True, eq=False, repr=False)
class RunComparison(Shown):
    """Every node that both runs have, in the order of the first."""

    one: str  # what the first run is
    other: str  # what the other run is
    nodes: list[NodeDifference] = field(repr=False)
    only_one: list[str] = field(repr=False)  # nodes that the other run has not
    only_other: list[str] = field(repr=False)  # names of nodes that only the other has

    @cached_property
    def first(self) -> NodeDifference | None:
        """The first node that differs."""
        return next((node for node in self.nodes if not node.same), None)

    @property
    def same(self) -> bool:
        """Whether no node differs."""
        return self.first is None

    @property
    def worst(self) -> NodeDifference | None:
        """The node with the largest relative difference."""
        return max((node for node in self.nodes if not node.same), key=lambda node: node.relative, default=None)

    def __bool__(self) -> bool:
        return self.same

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "one": self.one,
            "other": self.other,
            "same": self.same,
            "first": None if self.first is None else asdict(self.first),
            "nodes": [asdict(node) for node in self.nodes],
            "only_one": self.only_one,
            "only_other": self.only_other,
        }

    def _sections(self) -> Iterator[Section]:
        lines = [f"{self.one} against {self.other}: {len(self.nodes):,} nodes compared"]
        if self.only_one or self.only_other:
            lines.append(f"only in one of them: {len(self.only_one):,} and {len(self.only_other):,} nodes")
        if self.first is None or self.worst is None:
            yield Lines([*lines, "no difference"])
            return
        lines += [
            f"first difference: {self.first}",
            f"largest: {self.worst.node}, {self.worst.relative:.2g} of its norm",
        ]
        rows = [
            [str(n.depth), n.node, n.operation, n.reason or f"{n.largest:.2g}", f"{n.relative:.2g}", f"{n.differing:,}"]
            for n in self._shown()
        ]
        headings = [">depth", "node", "operation", ">largest", ">relative", ">differing"]
        hidden = len(self.nodes) - len(rows)
        yield Lines(lines)
        yield Table(headings, rows, below=f"{hidden:,} more nodes in .nodes" if hidden else "")

    def _shown(self) -> list[NodeDifference]:
        """Nodes at even steps through the whole depth, without views; and the first, the worst and the last one."""
        nodes = [node for node in self.nodes if node.operation_type != OperationType.VIEW]
        step = max(1, -(-len(nodes) // _MOST_ROWS))
        always = [node for node in (self.first, self.worst, self.nodes[-1]) if node is not None]
        shown = {id(node) for node in [*nodes[::step], *always]}
        return [node for node in self.nodes if id(node) in shown]


@explains_arguments
def compare_runs(
    one: TracedModel,
    other: Any,
    *args: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
    kwargs: Mapping[str, Any] | None = None,
    **model_kwargs: Any,
) -> RunComparison:
    """Run a traced model and another one on the same input, and say where they first differ.

    Numbers of different dtypes are compared as they are. NaN equals NaN.

    Args:
        one: The traced model.
        other: Another traced model; a dtype or a device, to which a copy of the model and the input are moved; or
            anything that can be called, such as a compiled or quantized model, of which only the outputs are compared.
        *args: The input of both.
        rtol: The relative difference up to which numbers count as the same; 0 asks for the same bits.
        atol: The absolute difference that is added to it.
        kwargs: Keyword arguments of the model whose names are also names of this function.
        **model_kwargs: All other keyword arguments of the model.
    Returns:
        A RunComparison: every node that both have, `first` and `worst` among those that differ.
    Raises:
        InvalidInputError: `other` is nothing that can be run.
        CaptureError: A copy in another dtype, or on another device, does not run.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
        >>> traced = atlas.trace(model, x)
        >>> atlas.compare_runs(traced, model, x).same, atlas.compare_runs(traced, torch.bfloat16, x).same
        (True, False)
    """
    if not isinstance(one, TracedModel):
        raise InvalidInputError(
            f"compare_runs takes a traced model first, not {type(one).__name__}: atlas.trace(model, x)."
        )
    named = {**(kwargs or {}), **model_kwargs}
    first = one.predict(*args, **named)
    depth = _depths(one)
    if isinstance(other, str) and isinstance(getattr(torch, other, None), torch.dtype):
        other = getattr(torch, other)
    if isinstance(other, str):
        try:
            other = usable_device(other)
        except InvalidInputError as error:
            raise InvalidInputError(f"{other!r} is no dtype, such as 'float16', and {error}") from error
    if isinstance(other, (torch.dtype, torch.device)):
        model, (other_args, other_named) = copy.deepcopy(one.model).to(other), moved((args, named), other)
        called = str(other)
        try:
            second = trace(model, *other_args, kwargs=other_named).predict(*other_args, **other_named)
        except CaptureError as error:
            casts = ". What forward casts by itself, to a dtype that it names, is not moved" if error.__cause__ else ""
            name, why = type(model).__name__, error.__cause__ or error
            raise CaptureError(f"a copy of {name} moved to {called} cannot be traced: {why}{casts}") from error
    elif isinstance(other, TracedModel):
        second, called = other.predict(*args, **named), repr(other)
    elif callable(other):
        output, called = other(*args, **named), type(other).__name__
        second = NodeValues({"output": NodeIO((), output, dict)}, output)
    else:
        raise InvalidInputError(f"the other run is a traced model, a dtype, a device or a callable, not {other!r}.")
    common = [node for node in first if node in second]
    if not common:
        raise InvalidInputError("these models have no node in common: nothing can be compared.")
    nodes: list[NodeDifference] = []
    differing: set[str] = set()
    for name in common:
        before = any(earlier.name in differing for earlier in one.graph[name].predecessors)
        nodes.append(_difference(one.graph[name], depth[name], first[name], second[name], rtol, atol, before))
        if not nodes[-1].same:
            differing.add(name)
    only = [node for node in first if node not in second], [node for node in second if node not in first]
    return RunComparison(repr(one), called, nodes, *only)


def _depths(traced: TracedModel) -> dict[str, int]:
    depth: dict[int, int] = {}
    for edge in traced.graph.edges:  # nodes are in the order in which they run
        depth[edge.target.id] = max(depth.get(edge.target.id, 0), depth.get(edge.source.id, 0) + 1)
    return {node.name: depth.get(node.id, 0) for node in traced.graph.nodes}


def _difference(
    node: GraphNode, depth: int, one: NodeIO, other: NodeIO, rtol: float, atol: float, inputs_differ: bool
) -> NodeDifference:
    apart = how_far_apart(one.output, other.output, rtol, atol)
    about = node.name, node.scope.path, node.operation, node.operation_type, depth
    if isinstance(apart, str):
        return NodeDifference(*about, torch.inf, torch.inf, 0, 0, apart, inputs_differ)
    return NodeDifference(*about, *apart, inputs_differ=inputs_differ)


def how_far_apart(one: Any, other: Any, rtol: float, atol: float) -> tuple[float, float, int, int] | str:
    """Largest and relative difference, how many numbers differ and how many there are; or why there are none."""
    largest = square = norm = 0.0
    differing = numbers = 0
    mine, theirs = pytree.tree_leaves(one), pytree.tree_leaves(other)
    if len(mine) != len(theirs):
        return f"{len(mine)} values in one run, {len(theirs)} in the other"
    for a, b in zip(mine, theirs, strict=True):
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            if type(a) is not type(b) or a != b:
                return f"{_in_words(a)} in one run, {_in_words(b)} in the other"
            continue
        if a.shape != b.shape:
            return f"shape {tuple(a.shape)} in one run, {tuple(b.shape)} in the other"
        a, b = _numbers(a, b)
        wrong = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        apart = torch.where(wrong, (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf), 0.0)
        largest = max(largest, float(apart.max()) if apart.numel() else 0.0)
        square, norm = square + float(apart.square().sum()), norm + float(a.abs().square().nan_to_num().sum())
        differing, numbers = differing + int(wrong.sum()), numbers + a.numel()
    relative = 0.0 if not square else (square / norm) ** 0.5 if norm else torch.inf
    return largest, relative, differing, numbers


def _in_words(item: Any) -> str:
    return f"a tensor of {tuple(item.shape)}" if isinstance(item, torch.Tensor) else repr(item)


def _numbers(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().cpu()
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        return (tensor.to_dense() if tensor.layout is not torch.strided else tensor).to(dtype)

    return plain(a), plain(b)
