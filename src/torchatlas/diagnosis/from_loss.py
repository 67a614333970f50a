"""The diagnoses that a loss alone allows, made before every backward pass of a visit."""

from __future__ import annotations

from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding


@diagnosis
class FailsInBackward(Diagnosis):
    """What backward refuses to run. Only if it did refuse: a pass that wants few gradients may do without the rest."""

    keys = ("in-place", "freed-graph", "loss-without-grad")

    def before_backward(self, case: Case, found: Pass) -> None:
        self._suspected: list[Finding] = [finding for key in self.keys for finding in CHECKS[key](case)]

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        if error is not None:
            for finding in self._suspected:
                self.visit.report(finding)


@diagnosis
class SavedMemory(Diagnosis):
    keys = ("saved-memory",)

    def before_backward(self, case: Case, found: Pass) -> None:
        for finding in CHECKS["saved-memory"](case):
            self.visit.report(finding)
