"""Parameters that get gradients and are in no optimizer that steps; those of an optimizer that get none."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, some
from torchatlas.diagnosis.leaves import Leaf
from torchatlas.diagnosis.no_gradient import only_zeros, without_gradient
from torchatlas.torch_private import unobserved

_FEWEST_STEPS = 2
_MOST_PASSES = 1_000


@diagnosis
class Trained(Diagnosis):
    """Looks at the end: a branch that is not taken every time gets its gradients another time."""

    keys = ("optimizer-misses", "no-gradient")

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._reached: set[Leaf] = set()
        self._zeros: set[Leaf] = set()  # of these, those whose gradient was zero so far
        self._stepped: dict[Leaf, None] = {}
        self._optimizers: list[tuple[set[Leaf], Where]] = []
        self._empty: dict[Where, list[bool]] = {}  # of each step's line: whether it found no gradient after a pass
        self._since_step = 0  # backward passes
        self._roots: deque[int] = deque(maxlen=_MOST_PASSES)  # of backward passes, the latest: autograd's numbers

    def before_backward(self, case: Case, found: Pass) -> None:
        if not found.accumulates:
            return
        self._since_step += 1
        self._roots += [sequence_nr(loss.grad_fn) for loss in found.losses if loss.grad_fn is not None]
        for node in found.nodes:
            leaf = None if (tensor := leaf_of(node)) is None else self.visit.leaf(tensor)
            if leaf is not None and leaf.of_module and leaf not in self._reached:
                self._reached.add(leaf)
                self._zeros.add(leaf)

    def node_runs(self, found: Pass, node: int, gradients: Any) -> None:
        tensor = leaf_of(found.nodes[node])
        if tensor is not None and (leaf := self.visit.leaf(tensor)) in self._zeros:
            with unobserved():
                if any(bool(gradient.any()) for gradient in gradients if gradient is not None):
                    self._zeros.discard(leaf)

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        leaves = {self.visit.leaf(parameter) for parameter in parameters}
        line = self.visit.line("step")
        self._optimizers = [entry for entry in self._optimizers if entry[0] != leaves]
        self._optimizers.append((leaves, line))
        if self._since_step and not self.visit.in_closure:
            nothing = all(parameter.grad is None for parameter in parameters)
            self._empty.setdefault(line, []).append(nothing and not leaves.isdisjoint(self._reached))
        self._since_step = 0
        for parameter in parameters:
            leaf = self.visit.leaf(parameter)
            leaf.storage = self.visit.storage_of(parameter)
            self._stepped.setdefault(leaf)
            if parameter.grad is not None:  # whoever put it there
                self._reached.add(leaf)

    def at_end(self, complete: bool) -> None:
        if not self._optimizers or not complete:
            return
        missed = [leaf for leaf in self._reached if leaf not in self._stepped and leaf.requires_grad]
        idle = [leaves for leaves, _ in self._optimizers if leaves.isdisjoint(self._reached)]
        if missed and any(leaf.of_module for leaf in self._stepped):
            self._report_missed([leaf.name for leaf in missed], bool(idle))
        missing = {
            leaf.name: leaf.storage
            for leaf in self._stepped
            if leaf not in self._reached and leaf.requires_grad and not (missed and _replaced(leaf, idle))
        }
        case = Case(
            [],
            None,
            lambda: self.visit.graph,
            self.visit.storage_of,
            self._optimizers[-1][1],
            caller_of=self.visit.caller_of,
            whole=self.visit.recordings == 1,
        )
        zeros = {leaf.name: leaf.storage for leaf in self._stepped if leaf in self._zeros}
        for finding in without_gradient(case, missing, self._roots):
            self.visit.report(finding)
        for finding in only_zeros(case, zeros, self._roots):
            self.visit.report(finding)
        for line, empty in self._empty.items():
            if len(empty) >= _FEWEST_STEPS and all(empty):
                self._report_empty(line, len(empty))

    def _report_empty(self, line: Where, times: int) -> None:
        self.visit.report(
            Finding(
                "no-gradient",
                "every step found no gradient at all",
                (line,),
                "backward made them, and something has emptied them before the step: zero_grad() in between",
                "zero_grad(), backward(), step(): in this order",
                times,
            )
        )

    def _report_missed(self, names: list[str], idle: bool) -> None:
        self.visit.report(
            Finding(
                "optimizer-misses",
                f"{some(names)} {'gets' if len(names) == 1 else 'get'} gradients, and no optimizer takes a step with "
                "them",
                tuple(line for _, line in self._optimizers),
                "the optimizer holds other parameters than the model: one from before, or a copy"
                if idle
                else "they were not among the parameters that the optimizer was given: made later, or in a plain list",
                "make the optimizer after the model is complete, from model.parameters(), with modules in an "
                "nn.ModuleList; or freeze them with requires_grad_(False)",
            )
        )


def _replaced(leaf: Leaf, idle: list[set[Leaf]]) -> bool:
    """Whether it belongs to a model, or a part of one, in whose place there is another now."""
    return not leaf.of_module or any(leaf in leaves for leaves in idle)
