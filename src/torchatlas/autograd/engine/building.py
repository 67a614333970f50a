"""What the forward pass does for backward, as readable Python: make a node, link it, hang it onto its output.

Mirrors Node of node.h (function.h in older versions), collect_next_edges of function.h, set_history of
functions/utils.h, gradient_edge and grad_accumulator of variable.cpp, SavedVariable, and what torch generates for every
op (VariableType).

The other files of this folder run torch's own nodes. These nodes are Python all through; `GraphTask(direct=True)` runs
them as well, in the same order and with the same gradients.

>>> x, w = Variable(torch.tensor([2.0]), requires_grad=True), Variable(torch.tensor([3.0]))
>>> loss = call(SumBackward, call(MulBackward, x, w))
>>> loss.grad_fn.topological_nr, loss.grad_fn.next_functions[0].node.next_functions[1]
(2, Edge(node=None, input_nr=0))
>>> loss.backward().order
[SumBackward, MulBackward, AccumulateGrad]
>>> x.grad
tensor([3.])
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from torchatlas.autograd.engine.buffer import Gradient
from torchatlas.autograd.engine.edge import Edge
from torchatlas.autograd.engine.node import HIGHEST
from torchatlas.autograd.engine.task import GraphTask
from torchatlas.errors import AnalysisError, StateError


class _Count(threading.local):
    """Every thread counts its own nodes, from 0."""

    next_nr = 0


_COUNT = _Count()


def next_sequence_nr() -> int:
    """The number of a node that is made now: those of one thread count up."""
    number = _COUNT.next_nr
    _COUNT.next_nr = number + 1
    return number


class InputMetadata(NamedTuple):
    """What a gradient that comes to an input must look like: as the forward op's output did."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    is_nested_tensor: bool = False
    is_cpp_nested_tensor: bool = False


class SavedVariable:
    """A tensor that backward needs, with the version it had when it was saved. Nothing is copied."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data: torch.Tensor | None = data
        self.version = data._version

    def unpack(self) -> torch.Tensor:
        """The tensor, if it is still there and was not written to."""
        if self.data is None:
            raise StateError("What this node saved was let go of when it ran. Build the graph again.")
        if self.data._version != self.version:
            raise AnalysisError(
                f"A saved tensor is at version {self.data._version}; version {self.version} was saved. Write to a copy."
            )
        return self.data


class Node:
    """The backward of one op: the gradients of the op's outputs go in, those of its inputs come out."""

    def __init__(self, sequence_nr: int | None = None) -> None:
        self.sequence_nr = next_sequence_nr() if sequence_nr is None else sequence_nr
        self.topological_nr = 0  # the longest way to a leaf
        self.has_parent = False
        self.next_functions: list[Edge] = []  # torch calls them next_edges, and shows them to Python by this name
        self.saved: list[SavedVariable] = []
        self._input_metadata: list[InputMetadata] = []

    def update_topological_nr(self, edge: Edge) -> None:
        """Stay above what the edge leads to. Forbidden once the node has a parent, whose number would be too low."""
        if self.has_parent:
            raise StateError(f"{self!r} already has a parent, whose number was made from this one.")
        if edge.node is not None:
            edge.node.has_parent = True
            self.topological_nr = max(self.topological_nr, edge.node.topological_nr + 1)

    def add_next_edge(self, edge: Edge) -> None:
        self.update_topological_nr(edge)
        self.next_functions.append(edge)

    def set_next_edges(self, edges: Sequence[Edge]) -> None:
        self.next_functions = []
        for edge in edges:
            self.add_next_edge(edge)

    def add_input_metadata(self, output: torch.Tensor) -> int:
        """Note what the next input looks like; its index."""
        self._input_metadata.append(InputMetadata(output.shape, output.dtype, output.device))
        return len(self._input_metadata) - 1

    def should_compute_output(self, index: int) -> bool:
        """True if a node waits for this gradient."""
        return self.next_functions[index].node is not None

    def release_variables(self) -> None:
        for saved in self.saved:
            saved.data = None

    def apply(self, *gradients: Gradient) -> tuple[Gradient, ...]:
        """The formula: one gradient for each input of the op."""
        raise NotImplementedError

    def __call__(self, *gradients: Gradient) -> tuple[Gradient, ...]:
        return self.apply(*gradients)

    def name(self) -> str:
        return type(self).__name__

    def _sequence_nr(self) -> int:
        return self.sequence_nr

    def __repr__(self) -> str:
        return self.name()


@dataclass(eq=False)
class Variable:
    """A tensor with its AutogradMeta: what autograd knows of it."""

    data: torch.Tensor
    requires_grad: bool = False
    grad: torch.Tensor | None = None
    grad_fn: Node | None = None
    output_nr: int = 0  # which input of grad_fn its gradient goes to
    accumulator: weakref.ref[Node] | None = None  # weak: the node holds the tensor, and not the other way round

    def backward(self) -> GraphTask:
        """Run the graph behind it, beginning with a gradient of ones; the task that did."""
        edge = gradient_edge(self)
        task = GraphTask(GradientEdge(edge.node, edge.input_nr), torch.ones_like(self.data), direct=True)
        task.run()
        return task


class AccumulateGrad(Node):
    """The node of a leaf: it makes nothing, and adds to .grad."""

    def __init__(self, variable: Variable) -> None:
        super().__init__(sequence_nr=HIGHEST)
        self.variable = variable
        self.add_input_metadata(variable.data)

    def apply(self, *gradients: Gradient) -> tuple[Gradient, ...]:
        (gradient,) = gradients
        if gradient is not None:
            there = self.variable.grad
            self.variable.grad = gradient if there is None else there + gradient
        return ()


def gradient_edge(variable: Variable) -> Edge:
    """Where the gradient of a tensor goes: to its grad_fn, or for a leaf to the one node that adds to its .grad."""
    if variable.grad_fn is not None:
        return Edge(variable.grad_fn, variable.output_nr)
    node = variable.accumulator() if variable.accumulator is not None else None
    if node is None:
        node = AccumulateGrad(variable)
        variable.accumulator = weakref.ref(node)
    return Edge(node, 0)


def collect_next_edges(*inputs: Variable) -> list[Edge]:
    """One edge for each input of an op; to no node where no gradient is wanted."""
    return [gradient_edge(variable) if variable.requires_grad else Edge(None, 0) for variable in inputs]


def compute_requires_grad(*inputs: Variable) -> bool:
    """True if an op on these has to leave a node behind."""
    return torch.is_grad_enabled() and any(variable.requires_grad for variable in inputs)


def set_history(output: Variable, node: Node) -> None:
    """Tell the node what its input looks like, and the tensor which node it comes from."""
    output.output_nr = node.add_input_metadata(output.data)
    output.grad_fn = node
    output.requires_grad = True


class OperationNode(Node):
    """The node of an op with one output. torch writes such a class, and `call`, for every op of derivatives.yaml."""

    saves: ClassVar[tuple[int, ...]] = ()  # the inputs that the formula needs

    @staticmethod
    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def call(operation: type[OperationNode], *inputs: Variable) -> Variable:
    """Run an op as the autograd dispatch key does: prepare the node, compute below autograd, set the history."""
    node: OperationNode | None = None
    if compute_requires_grad(*inputs):
        node = operation()
        node.set_next_edges(collect_next_edges(*inputs))
        node.saved = [SavedVariable(inputs[index].data) for index in operation.saves]
    with torch.no_grad():
        output = Variable(operation.forward(*(variable.data for variable in inputs)))
    if node is not None:
        set_history(output, node)
    return output


class MulBackward(OperationNode):
    saves = (0, 1)

    @staticmethod
    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0] * inputs[1]

    def apply(self, *gradients: Any) -> tuple[Gradient, ...]:
        (gradient,) = gradients
        first = gradient * self.saved[1].unpack() if self.should_compute_output(0) else None
        second = gradient * self.saved[0].unpack() if self.should_compute_output(1) else None
        return first, second


class AddBackward(OperationNode):
    @staticmethod
    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0] + inputs[1]

    def apply(self, *gradients: Any) -> tuple[Gradient, ...]:
        return gradients * 2  # the same gradient for both: nothing is copied


class SinBackward(OperationNode):
    saves = (0,)

    @staticmethod
    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0].sin()

    def apply(self, *gradients: Any) -> tuple[Gradient, ...]:
        return (gradients[0] * self.saved[0].unpack().cos(),)


class SumBackward(OperationNode):
    @staticmethod
    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0].sum()

    def apply(self, *gradients: Any) -> tuple[Gradient, ...]:
        (edge,) = self.next_functions
        return (gradients[0].expand(edge.node._input_metadata[edge.input_nr].shape),)
