"""Steps with gradients that an earlier step has used already."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, some
from torchatlas.diagnosis.leaves import Leaf
from torchatlas.torch_private import unobserved


@diagnosis
class NotZeroed(Diagnosis):
    """To gather gradients of several passes is no fault; to gather them over a step is.

    A gradient is used up by a step. It counts as renewed when a backward pass finds it gone, zero, or changed by the
    program, which then takes care of it itself.
    """

    keys = ("not-zeroed",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._used: dict[Leaf, tuple[weakref.ref[torch.Tensor], int]] = {}  # the gradient then, and its version
        self._added: set[Leaf] = set()  # to whose used gradient a pass has added
        self._closure: tuple[list[weakref.ref[torch.Tensor]], Where] | None = None  # parameters and line of a step

    def before_backward(self, case: Case, found: Pass) -> None:
        for leaf, (gradient, version) in list(self._used.items()):
            now = _gradient(leaf)
            changed = leaf not in self._added and now is not None and now._version != version
            if now is None or now is not gradient() or changed or not _any(now):
                del self._used[leaf]
                self._added.discard(leaf)

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        for leaf, (gradient, version) in self._used.items():
            now = _gradient(leaf)
            if now is not None and now is gradient() and now._version != version:
                self._added.add(leaf)
        if self._closure is not None and self.visit.in_closure:  # the optimizer takes a closure's gradients at once
            parameters = [p for reference in self._closure[0] if (p := reference()) is not None]
            self._tell_of(parameters, self._closure[1])
            self._use_up(parameters)

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        line = self.visit.line("step")
        self._tell_of(parameters, line)
        self._closure = [weakref.ref(parameter) for parameter in parameters], line

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self._closure = None
        self._use_up(parameters)

    def _tell_of(self, parameters: list[torch.Tensor], line: Where) -> None:
        leaves = [(parameter, self.visit.leaf(parameter)) for parameter in parameters]
        stale = [leaf for p, leaf in leaves if leaf in self._added and p.grad is self._used[leaf][0]()]
        if stale:
            self.visit.report(
                Finding(
                    "not-zeroed",
                    f"the gradients of {some([leaf.name for leaf in stale])} still hold those of an earlier step",
                    (line,),
                    "backward adds to .grad, and nothing has emptied it since the step before",
                    "call optimizer.zero_grad() between a step and the next backward pass, for all that it trains",
                )
            )

    def _use_up(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            leaf, gradient = self.visit.leaf(parameter), parameter.grad
            self._added.discard(leaf)
            self._used.pop(leaf, None)
            if gradient is not None and gradient.layout is torch.strided:
                self._used[leaf] = weakref.ref(gradient), gradient._version


def _gradient(leaf: Leaf) -> torch.Tensor | None:
    tensor = leaf.reference()
    return None if tensor is None else tensor.grad


def _any(tensor: torch.Tensor) -> bool:
    with unobserved():
        return bool(tensor.any())
