"""Steps with gradients that an earlier step has used already."""

from __future__ import annotations

from typing import Any

import torch

from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, some
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
        self._used: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}  # parameter, its gradient then, version
        self._added: set[int] = set()  # parameters to whose used gradient a pass has added

    def before_backward(self, case: Case, found: Pass) -> None:
        for key, (parameter, gradient, version) in list(self._used.items()):
            now = parameter.grad
            changed = key not in self._added and now is not None and now._version != version
            if now is not gradient or changed or not _any(now):
                del self._used[key]
                self._added.discard(key)

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        for key, (parameter, gradient, version) in self._used.items():
            if parameter.grad is gradient and gradient._version != version:
                self._added.add(key)

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        stale = [p for p in parameters if id(p) in self._added and p.grad is self._used[id(p)][1]]
        if stale:
            self.visit.report(
                Finding(
                    "not-zeroed",
                    f"the gradients of {some([self.visit.name(p) for p in stale])} still hold those of an earlier step",
                    (self.visit.line("step"),),
                    "backward adds to .grad, and nothing has emptied it since the step before",
                    "call optimizer.zero_grad() between a step and the next backward pass, for all that it trains",
                )
            )

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            self._added.discard(id(parameter))
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                self._used[id(parameter)] = parameter, parameter.grad, parameter.grad._version
            else:
                self._used.pop(id(parameter), None)


def _any(tensor: torch.Tensor) -> bool:
    with unobserved():
        return bool(tensor.any())
