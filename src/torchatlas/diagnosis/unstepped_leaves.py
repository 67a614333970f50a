"""Leaves that get gradients while no optimizer takes a step: is it never called, or do updates by hand go elsewhere?"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from torchatlas.autograd.graph_walk import leaf_of
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.data_flow import DataFlow, reachable
from torchatlas.diagnosis.events import is_power_of_two
from torchatlas.diagnosis.findings import Finding, Where, some
from torchatlas.diagnosis.history import History
from torchatlas.diagnosis.leaf_tensors import Leaf
from torchatlas.diagnosis.numeric_checks import is_zero
from torchatlas.diagnosis.parameter_changes import EarlierNumbers
from torchatlas.diagnosis.variable_names import name_of, running_instances
from torchatlas.garbage_collection import instances_of
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.names import short_name

FEWEST_PASSES = 3
_FEWEST_RESETS = 2  # without them gradients may be gathered for a step that has not come yet
_SAME_TENSOR = ("alias", "detach")
# fmt: off
_ARITHMETIC = frozenset({
    "_to_copy", "add", "add_", "addcdiv", "addcdiv_", "addcmul", "addcmul_", "alias", "clone", "detach", "div", "div_",
    "lerp", "lerp_", "mul", "mul_", "neg", "neg_", "rsub", "sub", "sub_",
})
# fmt: on


class UnsteppedLeaves:
    """Leaves that got gradients in the first backward passes, and with which no optimizer has taken a step."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._passes = self._resets = 0
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}  # by id
        self._parameters: dict[int, Leaf] = {}  # what is known of those that are parameters, by id
        self._before: EarlierNumbers | None = None
        self._same_at = 0  # the pass before which they were last seen to be as they were; -1 once they are not
        self._storages: dict[tuple[int, int], str] = {}  # storages of a leaf and its gradient -> name of the leaf
        self._recording = 0  # in which they have these numbers
        self._line: Where | None = None  # of backward
        self._held: tuple[str, list[str]] | None = None  # an optimizer that holds them, and which
        self._inputs = False  # gradients were asked for of something else, too: data, say
        self._stepped: set[int] = set()

    def names(self) -> list[str]:
        """The names of the parameters among them."""
        return _names(leaf for key, leaf in self._parameters.items() if key not in self._stepped)

    def pass_begins(self, backward: BackwardPass) -> None:
        self._passes += 1
        first = next((leaf for each in self._leaves.values() if (leaf := each()) is not None), None)
        if first is not None and self._resets < _FEWEST_RESETS:
            self._resets += first.grad is None or is_zero(first.grad)
        if self._passes <= 2:
            leaves = [leaf for node in backward.nodes if (leaf := leaf_of(node)) is not None]
            self._leaves |= {id(leaf): weakref.ref(leaf) for leaf in leaves}
            mine = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
            self._parameters |= {id(leaf): self._history.leaf(leaf) for leaf in mine}
            if self._before is None:
                self._before = EarlierNumbers(leaves)
        if self._passes == 1:
            self._same_at = 1
        elif is_power_of_two(self._passes):
            self._look()

    def _look(self) -> None:
        change = None if self._before is None or self._same_at < 0 else self._before.change(enough=0.0)
        if change is not None:
            self._same_at = -1 if change > 0 else self._passes

    def are_same(self, passes: int) -> bool:
        """True if the leaves still held their first numbers after at least `passes` passes."""
        self._look()
        return self._same_at >= passes

    def pass_ends(self, line: Where | None) -> None:
        self._line = self._line or line
        if self._history.steps or not (self.is_stale or is_power_of_two(self._passes)):
            return
        leaves = [leaf for each in self._leaves.values() if (leaf := each()) is not None and leaf.grad is not None]
        self._storages = {}
        for leaf in leaves:
            pair = self._history.storage_of(leaf), None if leaf.grad is None else self._history.storage_of(leaf.grad)
            if pair[0] is not None and pair[1] is not None:
                self._storages[pair[0], pair[1]] = self._history.name(leaf)
        self._recording = self._history.recordings
        if self._held is None and self._passes > 1:
            self._held = self._find_optimizer(leaves)

    def _find_optimizer(self, leaves: list[torch.Tensor]) -> tuple[str, list[str]] | None:
        known = self._holder(running_instances(torch.optim.Optimizer), leaves)
        return known or self._holder(instances_of(torch.optim.Optimizer), leaves)  # all objects: it takes long

    def _holder(
        self, optimizers: list[torch.optim.Optimizer], leaves: list[torch.Tensor]
    ) -> tuple[str, list[str]] | None:
        for item in optimizers:
            if "param_groups" not in vars(item):  # it is being made
                continue
            mine = {id(each) for group in item.param_groups for each in group["params"]}
            held = [leaf for leaf in leaves if id(leaf) in mine]
            if held:
                self._inputs = any(not isinstance(leaf, nn.Parameter) and id(leaf) not in mine for leaf in leaves)
                name = name_of(item) or "an optimizer"
                return f"{name} ({type(item).__name__})", _names(map(self._history.leaf, held))
        return None

    @property
    def is_stale(self) -> bool:
        """True if the recording in which they were looked at has been forgotten."""
        return self._recording != self._history.recordings

    def step(self, parameters: list[torch.Tensor]) -> None:
        self._stepped |= {id(each) for each in parameters if id(each) in self._leaves}

    def finding(self) -> Finding | None:
        if not self.are_same(FEWEST_PASSES):
            return None
        if self._held is not None and self._line is not None:
            if self._inputs or self._resets < _FEWEST_RESETS or self._are_read():
                return None
            optimizer, names = self._held
            return Finding(
                "nothing-changes",
                f"{some(names)} got gradients in {self._passes:,} backward passes, and no step was ever taken",
                (self._line,),
                f"{optimizer} holds them, and its step() is never called",
                "call optimizer.step() after loss.backward(), with parentheses",
            )
        return self._by_hand()

    def _are_read(self) -> bool:
        """True if gradients were used for something else than their norms: then they may be what it is all for."""
        if self.is_stale:
            return True
        flow = DataFlow(self._history.graph)
        users = [node for _, gradient in self._storages for node in flow.users(gradient)]
        takers = reachable(users, lambda node: flow.after_op(node) if flow.name(node) in _SAME_TENSOR else ())
        return any(flow.name(node) not in _SAME_TENSOR and "norm" not in flow.name(node) for node in takers)

    def _by_hand(self) -> Finding | None:
        """The finding if something was computed from parameters and their gradients, and nothing took it."""
        if self.is_stale or not self._storages:
            return None
        updates = dict(_updates(self._history.graph, self._storages))
        if not updates:
            return None
        last = max(updates.values(), key=lambda op: op.id)
        return Finding(
            "nothing-changes",
            f"{some(list(updates))} never changed: the updates went elsewhere",
            (Where(f"computed by {last.name}", last.source),),
            "the new numbers were given to a variable, or written to a copy; the parameters hold the old ones",
            "write to the parameters in place: with torch.no_grad(): p -= lr * p.grad",
        )


def _updates(graph: Graph, storages: dict[tuple[int, int], str]) -> Iterator[tuple[str, GraphNode]]:
    """The last op of what was computed from each parameter and its gradient together, if that is plain arithmetic."""
    flow = DataFlow(graph)
    for (parameter, gradient), name in storages.items():
        both = flow.after(flow.users(gradient)) & flow.after(flow.users(parameter))
        ops = [graph.nodes[node] for node in sorted(both)]
        if ops and all(short_name(op.operation) in _ARITHMETIC for op in ops):
            yield name, ops[-1]


def _names(leaves: Iterable[Leaf]) -> list[str]:
    return [leaf.name for leaf in sorted(leaves, key=lambda leaf: leaf.number)]
