"""What will run, decided before anything runs. Mirrors Engine::compute_dependencies and GraphTask::init_to_execute.

torch leaves out of both walks what was built before the oldest input it was asked for (topological_nr): nothing behind
it can lead there. That saves time and changes no answer, so it is not done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchatlas.autograd.engine.edge import Edge
from torchatlas.errors import AnalysisError

MOST_NODES = 20_000  # that it takes: a larger graph is for torch's own
Edges = dict[Any, tuple[Edge, ...]]  # of every node that can be reached; it also keeps their Python objects alive


def compute_dependencies(root: Any) -> tuple[dict[Any, int], Edges]:
    """How many gradients each node has to wait for: the edges that lead to it, from nodes that the root leads to.

    Counting edges, not nodes, is what makes x * x right: one node, two edges to the same input.

    Args:
        root: The node to begin at.
    Returns:
        The counts by node, and the edges of every node that can be reached.
    Raises:
        AnalysisError: There are more nodes than the engine in Python takes.
    Example:
        >>> import torch
        >>> from torchatlas.autograd import engine
        >>> x = torch.ones(3, requires_grad=True)
        >>> dependencies, edges = engine.compute_dependencies((x * x).sum().grad_fn)
        >>> sorted(dependencies.values())
        [1, 2]
    """
    dependencies: dict[Any, int] = {}
    edges: Edges = {}
    stack = [root]
    while stack:
        node = stack.pop()
        edges[node] = following = tuple(Edge(*pair) for pair in node.next_functions)
        for target, _ in following:
            if target is None:
                continue
            if target not in dependencies:
                dependencies[target] = 0
                stack.append(target)
            dependencies[target] += 1
        if len(dependencies) > MOST_NODES:
            raise AnalysisError(
                f"This autograd graph has more than {MOST_NODES:,} nodes, more than the engine in Python takes. Run "
                "a part of it, such as one step of the loop, or use torch.autograd.backward."
            )
    return dependencies, edges


class Capture(NamedTuple):
    """A gradient to be handed out: which input of the node, and its place in the result."""

    input_nr: int
    place: int


@dataclass
class ExecInfo:
    """What a selective task wants of a node: run it, hand out what has come for it, or both."""

    needed: bool = False  # it runs
    captures: list[Capture] = field(default_factory=list)  # gradients to hand out

    @property
    def should_execute(self) -> bool:
        """Whether the task takes the node from the queue at all."""
        return self.needed or bool(self.captures)


def init_to_execute(root: Any, inputs: Sequence[Edge], accumulate_grad: bool, edges: Edges) -> dict[Any, ExecInfo]:
    """Which nodes to run when gradients of some inputs only are asked for: those that lead to one of them.

    `backward(inputs=...)` runs the nodes of the inputs as well, since AccumulateGrad is what fills .grad. `grad` only
    hands out what arrives there, and the node of an input runs if it leads to another input.

    Args:
        root: The node to begin at.
        inputs: The edges of the inputs.
        accumulate_grad: True for backward, False for grad.
        edges: The edges of every node, from `compute_dependencies`.
    Returns:
        What is wanted of each node.
    Example:
        >>> import torch
        >>> from torchatlas.autograd import engine
        >>> x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        >>> root = (x.exp() + y.sin()).sum().grad_fn
        >>> edges = engine.compute_dependencies(root)[1]
        >>> info = engine.init_to_execute(root, [engine.gradient_edge(x, "x")], True, edges)
        >>> sorted(node.name() for node, wanted in info.items() if not wanted.should_execute)
        ['SinBackward0', 'torch::autograd::AccumulateGrad']
    """
    info: dict[Any, ExecInfo] = {}
    for position, (node, input_nr) in enumerate(inputs):
        wanted = info.setdefault(node, ExecInfo())
        if accumulate_grad:
            wanted.needed = True
        else:
            wanted.captures.append(Capture(input_nr, position))
    # Children first: a node is needed if one of those it leads to will be executed.
    seen = {root}
    stack = [(root, iter(edges[root]))]
    while stack:
        node, following = stack[-1]
        node_info = info.setdefault(node, ExecInfo())
        for target, _ in following:
            if target is not None and target not in seen:
                seen.add(target)
                stack.append((target, iter(edges[target])))
                break
        else:
            stack.pop()
            if any(target in info and info[target].should_execute for target, _ in edges[node]):
                node_info.needed = True
    return info
