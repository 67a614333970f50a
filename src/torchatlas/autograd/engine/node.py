"""How one node is run. Mirrors call_function and call_tensor_pre_hooks of engine.cpp, by having torch run the node.

Calling a node as a function, `node(*gradients)`, is not what the engine does: hooks do not run, outputs are neither
summed to shape nor cast, saved tensors are not let go of, and the node of a custom Function cannot be called. Hooks on
tensors cannot even be seen from the node. So by default torch's own engine runs the node, and is stopped right after.

How to stop it: the node and a full stop, a Function whose backward raises, are both roots of a small backward. Both
get the highest sequence number there is. The node is queued first and taken first; what it makes ready (at most as
urgent) lies below the full stop in the heap; the full stop is taken next, and raises. Thus the node has run with all
its hooks, and has let go of what it saved, and no other node has been touched.

Naming the following edges as `inputs` would not do instead: it runs their hooks, and runs nodes between them. It is
named here only where the task itself is selective, so that the node skips the same gradients, and the full stop comes
before anything can be captured.

The price is that torch counts the dependencies of all that follows the node, at each step: about a microsecond for
each of those nodes. `call_directly` is the cheap way, for nodes without hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from torchatlas.autograd.engine.buffer import Gradient, InputBuffer
from torchatlas.autograd.engine.edge import Edge
from torchatlas.autograd.engine.output_validation import validate_outputs
from torchatlas.torch_private import FunctionNode, run_engine

HIGHEST = 2**64 - 1


class _Stopped(Exception):
    """Raised by the full stop, and caught here."""


class _FullStop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise _Stopped


class NodeRunner:
    """Runs nodes one at a time, as a task with these settings would."""

    def __init__(self, keep_graph: bool, create_graph: bool, accumulate_grad: bool) -> None:
        self.keep_graph = keep_graph
        self.create_graph = create_graph
        self.accumulate_grad = accumulate_grad
        with torch.enable_grad():
            leaf = torch.zeros((), requires_grad=True)
            self._stop: Any = _FullStop.apply(leaf)  # type: ignore[no-untyped-call]  # the tensor is kept: it owns the node
        self._stop.grad_fn._set_sequence_nr(HIGHEST)
        self._roots = (GradientEdge(self._stop.grad_fn, 0),)
        self._below_stop = (GradientEdge(self._stop.grad_fn.next_functions[0][0], 0),)
        self._gradients = (torch.zeros(()),)

    def call_function(
        self, node: Any, buffer: InputBuffer, edges: Sequence[Edge], wanted: Sequence[Edge] | None
    ) -> Sequence[Gradient]:
        """Hooks of its tensors, its prehooks, the node, validate_outputs, its posthooks; then its saved tensors go.

        `wanted` are the edges whose gradients a selective task needs: the node computes no other gradient.
        """
        came = buffer.gradients
        if not came and not isinstance(node, FunctionNode):
            return self.call_directly(node, buffer, edges)  # torch's own nodes make nothing out of nothing
        silent = _silence(node) if not came else None
        if silent is not None:
            came = {0: silent[1]}
        made: list[Sequence[Gradient]] = []
        watch = node.register_hook(lambda outputs, inputs: made.append(outputs))  # registered last: it sees the final
        number = node._sequence_nr()
        node._set_sequence_nr(HIGHEST)
        try:
            self._run(node, came, edges, wanted)
        except _Stopped:
            pass
        finally:
            node._set_sequence_nr(number)
            watch.remove()
            if silent is not None:
                silent[0].remove()
            self._sweep()
        return made[0] if edges else ()

    def _sweep(self) -> None:
        """Empty the queue of this thread: torch drops the nodes that were made ready when it next takes a task."""
        run_engine(self._below_stop, self._gradients, True, False, (), allow_unreachable=True, accumulate_grad=True)

    def _run(
        self, node: Any, came: dict[int, torch.Tensor], edges: Sequence[Edge], wanted: Sequence[Edge] | None
    ) -> None:
        roots = tuple(GradientEdge(node, input_nr) for input_nr in came)
        inputs: tuple[GradientEdge, ...] = ()
        if wanted is not None:
            inputs = tuple(GradientEdge(*edge) for edge in wanted) or (roots[0],)
            inputs += self._below_stop
        run_engine(
            roots + self._roots,
            tuple(came.values()) + self._gradients,
            self.keep_graph,
            self.create_graph,
            inputs,
            allow_unreachable=True,
            accumulate_grad=self.accumulate_grad,
        )

    def call_tensor_pre_hooks(self, node: Any, buffer: InputBuffer) -> InputBuffer:
        """The gradients that have come, after the hooks of the tensors they are for; the node does not run.

        A task whose only inputs are those of its only node captures at once, and torch runs these hooks when it does.
        """
        came = buffer.gradients
        hooked = InputBuffer()
        if came:
            edges = tuple(GradientEdge(node, input_nr) for input_nr in came)
            values = tuple(came.values())
            gradients = run_engine(
                edges, values, True, self.create_graph, edges, allow_unreachable=True, accumulate_grad=False
            )
            for input_nr, gradient in zip(came, gradients, strict=True):
                hooked.add(input_nr, gradient)
        return hooked

    def call_directly(self, node: Any, buffer: InputBuffer, edges: Sequence[Edge]) -> Sequence[Gradient]:
        """The node as a function: no hooks, nothing is let go of. Not for nodes of custom Functions."""
        inputs = [buffer[input_nr] for input_nr in range(len(node._input_metadata))]
        with torch.set_grad_enabled(self.create_graph):
            outputs = node(*inputs)
            if not edges:
                return ()
            return validate_outputs(edges, outputs if isinstance(outputs, tuple) else (outputs,))


def _silence(node: Any) -> tuple[Any, torch.Tensor]:
    """A zero to start a node with that no gradient has come for, and a prehook that takes it away again.

    torch does run such a node, and a Function may make something out of nothing. A root cannot be given without a
    gradient, though. A hook on its tensor sees the zero where torch would show it None.
    """
    known = node._input_metadata
    handle = node.register_prehook(lambda gradients: (None,) * len(known))
    hooks = handle.hooks_dict_ref()
    for other in [key for key in hooks if key != handle.id]:
        hooks[other] = hooks.pop(other)  # behind ours: torch goes by the plain order of insertion
    return handle, torch.zeros(known[0].shape, dtype=known[0].dtype, device=known[0].device)
