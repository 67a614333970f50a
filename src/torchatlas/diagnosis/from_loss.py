"""The diagnoses that a loss alone allows, made before every backward pass of a visit."""

from __future__ import annotations

from dataclasses import replace

from torchatlas.autograd.tasks import reached
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding
from torchatlas.diagnosis.in_place import written_leaf


@diagnosis
class FailsInBackward(Diagnosis):
    """What backward refuses to run. Only if it did refuse: a pass that wants few gradients may do without the rest."""

    keys = ("in-place", "freed-graph", "loss-without-grad")

    def before_backward(self, case: Case, found: Pass) -> None:
        self._suspected: list[Finding] = [finding for key in self.keys for finding in CHECKS[key](case)]

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        if error is not None:
            if found.partial:
                whole = replace(case, known_nodes=reached(list(found.roots)))
                self._suspected += CHECKS["in-place"](whole)
            for finding in self._suspected:
                self.visit.report(finding)

    def at_end(self, complete: bool) -> None:
        for finding in written_leaf(self.visit.error):
            self.visit.report(finding)


@diagnosis
class SavedMemory(Diagnosis):
    keys = ("saved-memory",)

    def before_backward(self, case: Case, found: Pass) -> None:
        for finding in CHECKS["saved-memory"](case):
            self.visit.report(finding)
