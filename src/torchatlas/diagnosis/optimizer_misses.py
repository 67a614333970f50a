"""Parameters that get gradients and are in no optimizer that steps; those of an optimizer that get none."""

from __future__ import annotations

from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, some
from torchatlas.diagnosis.no_gradient import only_zeros, without_gradient
from torchatlas.torch_private import unobserved


@diagnosis
class Trained(Diagnosis):
    """Looks at the end: a branch that is not taken every time gets its gradients another time."""

    keys = ("optimizer-misses", "no-gradient")

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._reached: dict[int, torch.Tensor] = {}  # by id
        self._zeros: set[int] = set()  # of these, those whose gradient was zero so far
        self._stepped: dict[int, torch.Tensor] = {}
        self._optimizers: list[tuple[set[int], Where]] = []
        self._roots: list[int] = []  # of the backward passes: autograd's numbers
        self._losses: list[int | None] = []

    def before_backward(self, case: Case, found: Pass) -> None:
        if not found.accumulates:
            return
        self._roots += [sequence_nr(loss.grad_fn) for loss in found.losses if loss.grad_fn is not None]
        self._losses += [case.storage_of(loss) for loss in found.losses]
        for node in found.nodes:
            if (leaf := leaf_of(node)) is not None and id(leaf) not in self._reached and self.visit.is_parameter(leaf):
                self._reached[id(leaf)] = leaf
                self._zeros.add(id(leaf))

    def node_runs(self, found: Pass, node: int, gradients: Any) -> None:
        leaf = leaf_of(found.nodes[node])
        if leaf is not None and id(leaf) in self._zeros:
            with unobserved():
                if any(bool(gradient.any()) for gradient in gradients if gradient is not None):
                    self._zeros.discard(id(leaf))

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        keys = {id(parameter) for parameter in parameters}
        self._optimizers = [entry for entry in self._optimizers if entry[0] != keys]
        self._optimizers.append((keys, self.visit.line("step")))
        for parameter in parameters:
            self._stepped.setdefault(id(parameter), parameter)
            self.visit.name(parameter)
            if parameter.grad is not None:  # whoever put it there
                self._reached.setdefault(id(parameter), parameter)

    def at_end(self, complete: bool) -> None:
        if not self._optimizers or not complete:
            return
        missed = [p for key, p in self._reached.items() if key not in self._stepped and p.requires_grad]
        idle = [keys for keys, _ in self._optimizers if not keys & self._reached.keys()]
        if missed and any(self.visit.is_parameter(p) for p in self._stepped.values()):
            self._report_missed([self.visit.name(p) for p in missed], bool(idle))
        missing = {
            self.visit.name(p): p
            for key, p in self._stepped.items()
            if key not in self._reached and p.requires_grad and not (missed and self._replaced(p, idle))
        }
        case = Case([], None, lambda: self.visit.graph, self.visit.storage_of, self._optimizers[-1][1])
        zeros = {self.visit.name(p): p for key, p in self._stepped.items() if key in self._zeros}
        for finding in without_gradient(case, missing, self._roots, self._losses):
            self.visit.report(finding)
        for finding in only_zeros(case, zeros, self._roots, self._losses):
            self.visit.report(finding)

    def _replaced(self, parameter: torch.Tensor, idle: list[set[int]]) -> bool:
        """Whether it belongs to a model, or a part of one, in whose place there is another now."""
        return any(id(parameter) in keys for keys in idle) or not self.visit.is_parameter(parameter)

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
