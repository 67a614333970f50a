"""One backward, in three phases: plan, run, finish. Mirrors graph_task.h, and Engine::execute of engine.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from torchatlas.autograd.engine.buffer import Gradient, InputBuffer
from torchatlas.autograd.engine.edge import Edge, GraphRoot, gradient_edge
from torchatlas.autograd.engine.gradient_memory import GradientMemory, Moment
from torchatlas.autograd.engine.node import NodeRunner
from torchatlas.autograd.engine.output_validation import validate_outputs
from torchatlas.autograd.engine.plan import ExecInfo, compute_dependencies, init_to_execute
from torchatlas.autograd.engine.queue import NodeTask, ReadyQueue
from torchatlas.errors import InvalidInputError, NotAvailableError, StateError
from torchatlas.torch_private import FunctionNode, make_grads

Tensors = torch.Tensor | GradientEdge | Iterable[torch.Tensor | GradientEdge]


@dataclass(frozen=True, eq=False)
class Step:
    """One node that was taken from the queue."""

    node: Any  # torch's own
    name: str  # what it is called: MulBackward0
    received: dict[int, torch.Tensor]  # by input; before hooks
    made: Sequence[Gradient]  # by edge; after hooks
    executed: bool  # False: what had come was captured, and the node did not run


class GraphTask:
    """All that one call of backward or grad knows. Making it is the first phase; `step` and `run` are the others.

    Phase 1, plan: give each root its gradient, count the dependencies of all nodes (`dependencies`) and, if `inputs`
    are given, decide which of them run at all (`exec_info`).

    Phase 2, run: take the first of `ready`, run it, and add what it made to the buffers of the nodes that follow. A
    node whose buffer still misses something waits in `not_ready`.

    Phase 3, finish, when the queue is empty: no node may be left waiting, and `captured` holds what `grad` returns.

    Args:
        tensors: The roots: tensors, or edges.
        grad_tensors: The gradient of each root; None for those that are single numbers.
        inputs: The tensors whose gradients are wanted; None wants those of all leaves.
        retain_graph: Keep what nodes saved; None does so with `create_graph`.
        create_graph: Make a graph of the gradients themselves.
        accumulate_grad: False is grad: gradients of the inputs are captured instead of added to .grad.
        direct: Call torch's own nodes as functions, which is faster by far in large graphs: hooks do not run and
            nothing that nodes saved is let go of (see node.py).
    Raises:
        NotAvailableError: Anomaly mode is on.
        InvalidInputError: There are not as many gradients as tensors.
        AnalysisError: A tensor does not require a gradient, or the graph is too large.
    """

    def __init__(
        self,
        tensors: Tensors,
        grad_tensors: torch.Tensor | Iterable[Gradient] | None = None,
        inputs: Tensors | None = None,
        *,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        accumulate_grad: bool = True,
        direct: bool = False,
    ) -> None:
        if torch.is_anomaly_enabled():
            raise NotAvailableError(
                "The engine in Python stops torch's after each node by an exception, and anomaly mode would report "
                "every one. Use torch.autograd.backward under detect_anomaly."
            )
        self.keep_graph = create_graph if retain_graph is None else retain_graph
        self.create_graph = create_graph
        self.accumulate_grad = accumulate_grad
        self.direct = direct
        self.order: list[Any] = []  # the nodes that ran
        self.timeline: list[Moment] = []
        self.ready = ReadyQueue()
        self.not_ready: dict[Any, InputBuffer] = {}
        self.error: BaseException | None = None
        self._memory = GradientMemory()
        self._runner = NodeRunner(self.keep_graph, create_graph, accumulate_grad)
        self._roots = several(tensors, "tensors")  # kept: the tensor owns the node of a custom Function
        self._inputs = None if inputs is None else several(inputs, "inputs")
        self._plan(grad_tensors)

    def _plan(self, grad_tensors: torch.Tensor | Iterable[Gradient] | None) -> None:
        roots = [gradient_edge(tensor, f"Output {position}") for position, tensor in enumerate(self._roots)]
        if grad_tensors is None or isinstance(grad_tensors, torch.Tensor):
            initial: list[Gradient] = [grad_tensors] * len(roots) if grad_tensors is None else [grad_tensors]
        else:
            initial = list(grad_tensors)
        if len(initial) != len(roots):
            raise InvalidInputError(f"{len(roots)} tensors and {len(initial)} gradients were given. Give one for each.")
        gradients = validate_outputs(roots, make_grads(self._roots, initial, is_grads_batched=False))
        self.root: Any = roots[0].node if len(roots) == 1 else GraphRoot(roots, gradients)
        self.dependencies, self.edges = compute_dependencies(self.root)
        self.exec_info: dict[Any, ExecInfo] | None = None
        self.captured: list[Gradient] = []
        if self._inputs is not None:
            asked = [self._edge_of_input(tensor, position) for position, tensor in enumerate(self._inputs)]
            self.exec_info = init_to_execute(self.root, asked, self.accumulate_grad, self.edges)
            self.captured = [] if self.accumulate_grad else [None] * len(asked)
        buffer = InputBuffer()
        if len(roots) == 1:
            self._add(buffer, roots[0].input_nr, gradients[0])
        self._queue(self.root, buffer)

    def _edge_of_input(self, tensor: Any, position: int) -> Edge:
        edge = gradient_edge(tensor, f"Input {position}")
        if self.accumulate_grad and isinstance(tensor, torch.Tensor):
            tensor.retain_grad()  # backward(inputs=[an intermediate]) is to fill its .grad
        return edge

    @property
    def done(self) -> bool:
        """Whether nothing is left to run."""
        return not len(self.ready)

    def run(self) -> None:
        """All remaining steps."""
        while not self.done:
            self.step()

    def step(self) -> Step:
        """Take the first ready node, and do with it what the task wants. Mirrors Engine::evaluate_function.

        Raises:
            StateError: The task has failed, or is at its end.
        """
        if self.error is not None:
            raise StateError("This backward has failed, and cannot go on. Build the graph again.") from self.error
        if self.done:
            raise StateError("This backward has come to its end. Make a new GraphTask for another.")
        node, buffer, _ = self.ready.pop()
        received = dict(buffer.gradients)
        executed = self._is_needed(node)
        try:
            self._capture(node, buffer, executed)
            made = self._call(node, buffer) if executed else ()
            self._memory.let_go_of(buffer)
            for edge, gradient in zip(self.edges[node], made, strict=executed):
                self._deliver(edge, gradient)
        except BaseException as error:  # an error node, a hook that raised, a saved tensor that was freed or changed
            self.error = error
            raise
        step = Step(node, node.name(), received, made, executed)
        if executed and not isinstance(node, GraphRoot):
            self.order.append(node)
        self.timeline.append(Moment(step.name, self._memory.held_bytes))
        if not len(self.ready):
            self._finish()
        return step

    def _is_needed(self, node: Any) -> bool:
        return self.exec_info is None or self.exec_info[node].needed

    def _should_execute(self, node: Any) -> bool:
        return self.exec_info is None or (node in self.exec_info and self.exec_info[node].should_execute)

    def _capture(self, node: Any, buffer: InputBuffer, executed: bool) -> None:
        """Before the node runs, and before hooks, unless it does not run: then this is the place for those of tensors.

        So a hook on a tensor changes what `grad` returns for it only if no other input lies behind it.
        """
        captures = self.exec_info[node].captures if self.exec_info is not None else []
        if captures and not executed:
            buffer = self._runner.call_tensor_pre_hooks(node, buffer)
        for input_nr, place in captures:
            self._memory.let_go(self.captured[place])
            self._memory.hold(buffer[input_nr])
            self.captured[place] = buffer[input_nr]

    def _call(self, node: Any, buffer: InputBuffer) -> Sequence[Gradient]:
        if isinstance(node, GraphRoot):
            return node.gradients
        edges = self.edges[node]
        if self.direct and not isinstance(node, FunctionNode):
            return self._runner.call_directly(node, buffer, edges)
        wanted = None
        if self.exec_info is not None:
            wanted = [edge for edge in edges if edge.node is not None and self._should_execute(edge.node)]
        return self._runner.call_function(node, buffer, edges, wanted)

    def _deliver(self, edge: Edge, gradient: Gradient) -> None:
        """Add a gradient to the buffer it is for. None counts as well: it is one less to wait for."""
        node, input_nr = edge
        if node is None:
            return
        self.dependencies[node] -= 1
        is_ready = not self.dependencies[node]
        if is_ready:
            del self.dependencies[node]
        if not self._should_execute(node):
            return
        buffer = self.not_ready.setdefault(node, InputBuffer())
        self._add(buffer, input_nr, gradient)
        if is_ready:
            self._queue(node, self.not_ready.pop(node))

    def _add(self, buffer: InputBuffer, input_nr: int, gradient: Gradient) -> None:
        self._memory.let_go(buffer[input_nr])
        with torch.set_grad_enabled(self.create_graph):  # a sum of gradients can be differentiated as well
            buffer.add(input_nr, gradient)
        self._memory.hold(buffer[input_nr])

    def _queue(self, node: Any, buffer: InputBuffer) -> None:
        self.ready.push(NodeTask(node, buffer, node._sequence_nr()))

    def _finish(self) -> None:
        if self.not_ready:
            names = ", ".join(node.name() for node in self.not_ready)
            self.error = StateError(f"The queue is empty, and these still wait for a gradient: {names}.")
            raise self.error


def several(tensors: Tensors, what: str) -> tuple[Any, ...]:
    """One or several as a tuple. A GradientEdge is itself a tuple, but one."""
    listed = (tensors,) if isinstance(tensors, torch.Tensor | GradientEdge) else tuple(tensors)
    if not listed or not all(isinstance(tensor, torch.Tensor | GradientEdge) for tensor in listed):
        raise InvalidInputError(f"`{what}` is a tensor or several: backward(loss).")
    return listed
