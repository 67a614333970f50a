"""Where gradients stop on their way from parameters to a loss, read from a recording.

An op that made a node of autograd has a sequence number; the first one on a path that has none is where it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property

import numpy as np

from torchatlas.diagnosis.finding import Where, at
from torchatlas.graph import Graph, GraphNode, Phase
from torchatlas.graph.columns import PHASES
from torchatlas.graph.names import short_name

_PROGRAM = [PHASES.index(phase) for phase in (Phase.FORWARD, Phase.OTHER, Phase.RECOMPUTE)]
_TO_PYTHON = "_local_scalar_dense"  # item(), float(), tolist(), bool()
_STEPS = ("round", "floor", "ceil", "trunc", "sign", "sgn")
_FROM_PYTHON = "lift_fresh"  # torch.tensor, as_tensor, from_numpy
_SHAPES = re.compile(r"(empty|zeros|ones|full|rand|randn|randint)_like|new_(empty|zeros|ones|full)(_strided)?")


class Cuts:
    """The ops of a recording, and where they cut gradients off. `parameters` are storages."""

    def __init__(self, graph: Graph, parameters: Iterable[int] = ()) -> None:
        self.graph, self._parameters = graph, set(parameters)
        self._forward = np.isin(graph.columns["node_phase"], _PROGRAM)
        self._carries = (graph.columns["node_sequence_nr"] >= 0) & self._forward

    @cached_property
    def _taken_from(self) -> dict[int, list[int]]:
        """The ops of the program that take something from a storage."""
        ptr, found = self.graph.columns["input_ptr"], dict[int, list[int]]()
        nodes = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
        storages = self.graph.columns["value_storage"][self.graph.columns["input_value"]]
        written = self.graph.columns["input_written"]  # then it is an initialisation, or an update by hand
        for node, storage, changed in zip(nodes.tolist(), storages.tolist(), written.tolist(), strict=True):
            if self._forward[node] and not changed:
                found.setdefault(storage, []).append(node)
        return found

    def users(self, storage: int | None) -> list[int]:
        return [] if storage is None else self._taken_from.get(storage, [])

    def makers(self, sequence_nrs: Iterable[int], storages: Iterable[int | None] = ()) -> list[int]:
        """The ops that made some nodes of autograd, and the last that made each of some storages."""
        numbers = self.graph.columns["node_sequence_nr"]
        found = np.flatnonzero(np.isin(numbers, list(sequence_nrs)) & self._forward).tolist()
        of_value = self.graph.columns["value_storage"], self.graph.columns["value_producer"]
        for storage in storages:
            producers = of_value[1][of_value[0] == (-2 if storage is None else storage)]
            found += [int(producers.max())] if len(producers) and producers.max() >= 0 else []
        return found

    @cached_property
    def _set_parameters(self) -> set[int]:
        """The ops that made or changed parameters: initialisations, copies, steps."""
        columns = self.graph.columns
        return set(columns["value_producer"][np.isin(columns["value_storage"], list(self._parameters))].tolist())

    @cached_property
    def _of_parameters_alone(self) -> set[int]:
        """The ops that took nothing but parameters, and what came of these: views, norms, copies."""
        columns, found = self.graph.columns, set[int]()
        ptr, inputs = columns["input_ptr"].tolist(), columns["input_value"]
        from_parameter = np.isin(columns["value_storage"][inputs], list(self._parameters)).tolist()
        producers = columns["value_producer"][inputs].tolist()
        for node in np.flatnonzero(self._forward).tolist():
            places = range(ptr[node], ptr[node + 1])
            if places and all(from_parameter[place] or producers[place] in found for place in places):
                found.add(node)
        return found

    def uses(self, storage: int | None) -> list[int]:
        """The ops that bring a parameter, or what came of it, together with data."""
        seen = set(self.users(storage))
        waiting, found = list(seen), []
        while waiting:
            node = waiting.pop()
            if node not in self._of_parameters_alone:
                found.append(node)
                continue
            after = {each for each in self.graph.index.successors(node).tolist() if self._forward[each]} - seen
            seen |= after
            waiting += after
        return sorted(found)

    def end_of(self, nodes: Collection[int]) -> int:
        """The last op that what some ops made led to, with gradients."""
        return max(self._carried_on(nodes) | set(nodes))

    def behind(self, storages: Iterable[int | None]) -> set[int]:
        """The ops that take, with gradients, what others made of some storages."""
        return self._carried_on({node for storage in storages for node in self.users(storage)})

    def _carried_on(self, nodes: Iterable[int]) -> set[int]:
        found, waiting = set[int](), [node for node in nodes if self._carries[node]]
        while waiting:
            after = {each for each in self.graph.index.successors(waiting.pop()).tolist() if self._carries[each]}
            waiting += after - found
            found |= after
        return found

    def before(self, nodes: Iterable[int]) -> set[int]:
        """These ops, and all whose data went into them; not into parameters."""
        found, waiting = set(nodes), list(nodes)
        while waiting:
            for node in self.graph.index.predecessors(waiting.pop()).tolist():
                if node not in found and node not in self._set_parameters:
                    found.add(node)
                    waiting.append(node)
        return found

    def after(self, users: Iterable[int], into: Collection[int]) -> GraphNode | None:
        """The first op that cuts off what some ops made, on the way to others."""
        cuts, seen, waiting = [], set(users), list(users)
        while waiting:
            node = waiting.pop()
            if not self._carries[node]:
                cuts += [] if self._takes_a_shape(node) or self._is_saved(node) else [node]
                continue
            for after in self.graph.index.successors(node).tolist():
                if after not in seen and self._forward[after]:
                    seen.add(after)
                    waiting.append(after)
        if found := [node for node in cuts if node in into]:
            return self.graph.nodes[min(found)]
        return self._through_python(cuts, into)

    def flattened(self, users: Iterable[int], into: Collection[int]) -> GraphNode | None:
        """The first op after some whose derivative is zero everywhere, on the way to others."""
        seen, waiting, found = set(users), list(users), []
        while waiting:
            node = waiting.pop()
            if any(self._is(node, name) for name in _STEPS) and node in into:
                found.append(node)
            for after in self.graph.index.successors(node).tolist():
                if after not in seen and self._carries[after]:
                    seen.add(after)
                    waiting.append(after)
        return self.graph.nodes[min(found)] if found else None

    def into(self, loss: Iterable[int], leaves: Collection[int]) -> list[GraphNode]:
        """The ops that cut a loss off from what carries gradients, the last first. `leaves` are storages."""
        before = self.before(loss)
        cuts = [node for node in before if not self._carries[node] and self._takes_gradients(node, leaves)]
        if not cuts:
            others = np.flatnonzero(self._forward & ~self._carries).tolist()
            through = self._through_python([node for node in others if self._takes_gradients(node, leaves)], before)
            if through is not None and self._is(through.id, _TO_PYTHON):
                return [through]
            # torch.tensor(tensors) asks for their numbers without an op: what was made of numbers after the first
            # op with a gradient
            first = int(self._carries.argmax()) if self._carries.any() else len(self._carries)
            cuts = [node for node in before if node > first and self._is(node, _FROM_PYTHON)]
            cuts += [] if through is None else [through.id]
        return [self.graph.nodes[node] for node in sorted(cuts, reverse=True)]

    def _takes_gradients(self, node: int, leaves: Collection[int]) -> bool:
        """Not if it writes there: an initialisation, or an update by hand."""
        values = self.graph.index.inputs(node)
        if len(self.graph.index.writes(node)) or self._takes_a_shape(node):
            return False
        columns = self.graph.columns
        makers, storages = columns["value_producer"][values].tolist(), columns["value_storage"][values].tolist()
        return any(m >= 0 and self._carries[m] for m in makers) or any(s in leaves for s in storages)

    def _through_python(self, cuts: Iterable[int], into: Collection[int]) -> GraphNode | None:
        """The last op that made a Python number, or an array, before one that came back from there."""
        back = [node for node in into if self._is(node, _FROM_PYTHON)]
        leaving = [node for node in cuts if self._is(node, _TO_PYTHON) or self._leaves_torch(node)]
        found = [node for node in leaving if back and node < max(back)]
        return self.graph.nodes[max(found)] if found else None

    def _leaves_torch(self, node: int) -> bool:
        """numpy() takes what was detached, and no op does but those that prepare it for numpy."""
        after = self.graph.index.successors
        return self._is(node, "detach") and not any(len(after(each)) for each in after(node).tolist())

    def _takes_a_shape(self, node: int) -> bool:
        """And no numbers, which have nothing to be cut off from: autograd.grad begins with the ones_like of a loss."""
        return _SHAPES.fullmatch(self._name(node)) is not None

    def _is_saved(self, node: int) -> bool:
        """Whether autograd detached it to save an op's own result: none but its backward takes that."""
        after = self.graph.index.successors(node)
        return self._is(node, "detach") and len(after) > 0 and not self._forward[after].any()

    def _is(self, node: int, operation: str) -> bool:
        return self._name(node) == operation

    def _name(self, node: int) -> str:
        return short_name(self.graph.tables.operations[int(self.graph.columns["node_operation"][node])].name)


_DISABLED = "cut because gradients were disabled (no_grad, inference_mode, set_grad_enabled(False)):"


def gradients_were_disabled(node: GraphNode) -> bool:
    """Whether an op cuts for no reason of its own."""
    return cut_by(node).what.startswith(_DISABLED)


def cut_by(node: GraphNode) -> Where:
    """Where it was cut, and by what."""
    name = short_name(node.operation)
    if name == "detach":
        return Where("cut by detach(), .data or numpy()", node.source)
    if name == _FROM_PYTHON:
        return Where("made of Python numbers or an array, which have no gradient", node.source)
    if name == _TO_PYTHON:
        return Where("cut by item(): a Python number has no gradient", node.source)
    made = [value.dtype for value in node.outputs]
    if made and not any(dtype.startswith(("float", "bfloat", "complex")) for dtype in made):
        return at(f"cut by a result of {made[0]}:", node)
    return at(_DISABLED, node)
