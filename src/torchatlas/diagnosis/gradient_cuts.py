"""Where gradients stop on their way from parameters to a loss, read from a recording.

An op that made a node of autograd has a sequence number; the first one on a path that has none is where it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property

import numpy as np

from torchatlas.diagnosis.data_flow import DataFlow, reachable
from torchatlas.diagnosis.findings import Where, at
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.names import short_name

_TO_PYTHON = "_local_scalar_dense"  # item(), float(), tolist(), bool()
_STEP_FUNCTIONS = ("round", "floor", "ceil", "trunc", "sign", "sgn")
_FROM_PYTHON = "lift_fresh"  # torch.tensor, as_tensor, from_numpy
_TAKES_SHAPE = re.compile(r"(empty|zeros|ones|full|rand|randn|randint)_like|new_(empty|zeros|ones|full)(_strided)?")


class GradientCuts(DataFlow):
    """The ops of a recording, and where they cut gradients off. `parameters` are storages."""

    def __init__(self, graph: Graph, parameters: Iterable[int] = ()) -> None:
        super().__init__(graph)
        self._parameters = set(parameters)
        self._carries = self.has_node & self.is_program

    @cached_property
    def _set_parameters(self) -> set[int]:
        """The ops that made or changed parameters: initialisations, copies, steps."""
        return self.writers(self._parameters)

    @cached_property
    def _of_parameters_alone(self) -> set[int]:
        """The ops that took nothing but parameters, or what such ops made: views, norms, copies."""
        columns, ops = self.graph.columns, set[int]()
        ptr, inputs = columns["input_ptr"].tolist(), columns["input_value"]
        from_parameter = np.isin(columns["value_storage"][inputs], list(self._parameters)).tolist()
        producers = columns["value_producer"][inputs].tolist()
        for node in np.flatnonzero(self.is_program).tolist():
            rows = range(ptr[node], ptr[node + 1])
            if rows and all(from_parameter[row] or producers[row] in ops for row in rows):
                ops.add(node)
        return ops

    def uses(self, storage: int | None) -> list[int]:
        """The ops that combine a parameter, or what was made of parameters alone, with data."""
        alone = self._of_parameters_alone
        reached = reachable(self.users(storage), lambda node: self._forward_after(node) if node in alone else ())
        return sorted(node for node in reached if node not in alone)

    def _forward_after(self, node: int) -> list[int]:
        return [each for each in self.after_op(node) if self.is_program[each]]

    def _carrying_after(self, node: int) -> list[int]:
        return [each for each in self.after_op(node) if self._carries[each]]

    def end_of(self, nodes: Collection[int]) -> int:
        """The last op that the results of some ops led to, with gradients."""
        return max(self._carried_on(nodes) | set(nodes))

    def behind(self, storages: Iterable[int | None]) -> set[int]:
        """The ops that follow, with gradients, after those that use some storages."""
        return self._carried_on({node for storage in storages for node in self.users(storage)})

    def _carried_on(self, nodes: Iterable[int]) -> set[int]:
        first = {each for node in nodes if self._carries[node] for each in self._carrying_after(node)}
        return reachable(first, self._carrying_after)

    def before(self, nodes: Iterable[int]) -> set[int]:
        """These ops, and all whose data went into them, but not by way of a parameter."""
        return reachable(
            nodes, lambda node: [each for each in self.before_op(node) if each not in self._set_parameters]
        )

    def first_cut(self, users: Iterable[int], into: Collection[int]) -> GraphNode | None:
        """The first op that cuts gradients off on the way from `users` to `into`."""
        reached = reachable(users, lambda node: self._forward_after(node) if self._carries[node] else ())
        cuts = [node for node in reached if not self._carries[node]]
        cuts = [node for node in cuts if not self._takes_a_shape(node) and not self._is_saved(node)]
        if on_path := [node for node in cuts if node in into]:
            return self.graph.nodes[min(on_path)]
        return self._through_python(cuts, into)

    def first_step_function(self, users: Iterable[int], into: Collection[int]) -> GraphNode | None:
        """The first op on the way from `users` to `into` whose derivative is zero everywhere."""
        reached = reachable(users, self._carrying_after)
        steps = [node for node in reached if self.name(node) in _STEP_FUNCTIONS and node in into]
        return self.graph.nodes[min(steps)] if steps else None

    def cuts_of_loss(self, storage: int, leaves: Collection[int]) -> list[GraphNode]:
        """The ops that cut a loss off from what carries gradients, the last first. `leaves` are storages."""
        before = self.before(self.last_writer(storage))
        program = self.is_program  # updates by hand lead from the loss to an earlier backward pass, which cuts nothing
        cuts = [n for n in before if program[n] and not self._carries[n] and self._takes_gradients(n, leaves)]
        if not cuts:
            others = np.flatnonzero(self.is_program & ~self._carries).tolist()
            through = self._through_python([node for node in others if self._takes_gradients(node, leaves)], before)
            if through is not None and self.name(through.id) == _TO_PYTHON:
                return [through]
            # torch.tensor(tensors) asks for their numbers without an op: what was made of numbers after the first
            # op with a gradient
            first = int(self._carries.argmax()) if self._carries.any() else len(self._carries)
            cuts = [node for node in before if node > first and self.name(node) == _FROM_PYTHON]
            cuts += [] if through is None else [through.id]
        return [self.graph.nodes[node] for node in sorted(cuts, reverse=True)]

    def updates_by_hand(self, storage: int) -> list[GraphNode]:
        """The program's ops on gradients, without gradients of their own, that a loss was computed from."""
        before, producers = self.before(self.last_writer(storage)), self.graph.columns["value_producer"]
        updates = []
        for node in sorted(before):
            makers = producers[self.graph.index.inputs(node)].tolist()
            of_backward = any(maker >= 0 and not self.is_program[maker] for maker in makers)
            if self.is_program[node] and not self._carries[node] and of_backward:
                updates.append(self.graph.nodes[node])
        return updates

    def last_writer(self, storage: int) -> list[int]:
        """The last op that made or changed what is in a storage, if it was recorded."""
        last = max(self.writers([storage]), default=-1)
        return [last] if last >= 0 else []

    def _takes_gradients(self, node: int, leaves: Collection[int]) -> bool:
        """True if an op takes what carries gradients; not if it writes: an initialisation, or an update by hand."""
        values = self.graph.index.inputs(node)
        if len(self.graph.index.writes(node)) or self._takes_a_shape(node):
            return False
        columns = self.graph.columns
        makers, storages = columns["value_producer"][values].tolist(), columns["value_storage"][values].tolist()
        return any(m >= 0 and self._carries[m] for m in makers) or any(s in leaves for s in storages)

    def _through_python(self, cuts: Iterable[int], into: Collection[int]) -> GraphNode | None:
        """The last op whose result left torch, as a number or an array, before an op that came back."""
        back = [node for node in into if self.name(node) == _FROM_PYTHON]
        leaving = [node for node in cuts if self.name(node) == _TO_PYTHON or self._leaves_torch(node)]
        returning = [node for node in leaving if back and node < max(back)]
        return self.graph.nodes[max(returning)] if returning else None

    def _leaves_torch(self, node: int) -> bool:
        """numpy() takes what was detached, and no op does but those that prepare it for numpy."""
        if self.name(node) != "detach" or any(self.after_op(each) for each in self.after_op(node)):
            return False
        return not self._is_torchs_own(node)

    def _is_torchs_own(self, node: int) -> bool:
        """True for a detach right after the op that made the tensor, in its line and call: torch does so itself
        to make a parameter and, under a dispatch mode, to save a result for backward."""
        calls, producers = self.graph.columns["node_call"], self.graph.columns["value_producer"]
        maker = int(producers[self.graph.index.inputs(node)[0]])
        between = range(maker + 1, node)  # of several results each is saved
        if maker < 0 or calls[maker] != calls[node] or any(self.name(each) != "detach" for each in between):
            return False
        return self.graph.nodes[maker].source == self.graph.nodes[node].source

    def _takes_a_shape(self, node: int) -> bool:
        """True for ops that take no numbers, such as the ones_like of a loss: nothing can be cut off there."""
        return _TAKES_SHAPE.fullmatch(self.name(node)) is not None

    def _is_saved(self, node: int) -> bool:
        """True if autograd detached it to save an op's own result: none but its backward takes that."""
        after = self.after_op(node)
        return self.name(node) == "detach" and bool(after) and not self.is_program[after].any()


_DISABLED = "cut because gradients were disabled (no_grad, inference_mode, set_grad_enabled(False)):"


def gradients_were_disabled(node: GraphNode) -> bool:
    """True if an op cuts only because gradients were disabled."""
    return cut_by(node).what.startswith(_DISABLED)


def cut_by(node: GraphNode) -> Where:
    """The line of an op that cuts gradients off, and how it does."""
    name = short_name(node.operation)
    if name == "detach":
        return Where("cut by detach(), .data or numpy()", node.source)
    if name == _FROM_PYTHON:
        return Where("made of Python numbers or an array, which have no gradient", node.source)
    if name == _TO_PYTHON:
        return Where("cut by item(): a Python number has no gradient", node.source)
    made = [value.dtype for value in node.outputs]
    if made and not any(dtype.startswith(("float", "bfloat", "complex")) for dtype in made):
        return at(f"cut because {made[0]} has no gradient:", node)
    return at(_DISABLED, node)
