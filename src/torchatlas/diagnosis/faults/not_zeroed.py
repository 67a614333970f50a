"""not-zeroed: a step with gradients that an earlier step has used already."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Where, some
from torchatlas.diagnosis.leaf_tensors import Leaf
from torchatlas.diagnosis.numeric_checks import is_zero


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

    def before_backward(self, backward: BackwardPass) -> None:
        for leaf, (gradient, version) in list(self._used.items()):
            now = _gradient(leaf)
            changed = leaf not in self._added and now is not None and now._version != version
            if now is None or now is not gradient() or changed or is_zero(now):
                del self._used[leaf]
                self._added.discard(leaf)

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        for leaf, (gradient, version) in self._used.items():
            now = _gradient(leaf)
            if now is not None and now is gradient() and now._version != version:
                self._added.add(leaf)
        if self._closure is not None and self.visit.in_closure:  # the optimizer takes a closure's gradients at once
            parameters = [p for reference in self._closure[0] if (p := reference()) is not None]
            self._report_stale(parameters, self._closure[1])
            self._use_up(parameters)

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        line = self.history.step_line
        self._report_stale(parameters, line)
        self._closure = [weakref.ref(parameter) for parameter in parameters], line

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self._closure = None
        self._use_up(parameters)

    def _report_stale(self, parameters: list[torch.Tensor], line: Where) -> None:
        leaves = [(parameter, self.history.leaf(parameter)) for parameter in parameters]
        stale = [leaf for p, leaf in leaves if leaf in self._added and p.grad is self._used[leaf][0]()]
        if stale:
            self.report(
                "not-zeroed",
                f"the gradients of {some([leaf.name for leaf in stale])} still hold those of an earlier step",
                (line,),
                "backward adds to .grad, and nothing has emptied it since the step before",
                "call optimizer.zero_grad() between a step and the next backward pass, for all that it trains",
            )

    def _use_up(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            leaf, gradient = self.history.leaf(parameter), parameter.grad
            self._added.discard(leaf)
            self._used.pop(leaf, None)
            if gradient is not None and gradient.layout is torch.strided:
                self._used[leaf] = weakref.ref(gradient), gradient._version


def _gradient(leaf: Leaf) -> torch.Tensor | None:
    tensor = leaf.reference()
    return None if tensor is None else tensor.grad
