"""Gradients that shrink or grow by orders of magnitude on their way back through the layers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case, short
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding
from torchatlas.diagnosis.not_finite import plain
from torchatlas.torch_private import unobserved

_FACTOR = 1e6
_SURE = 1e-12
_FEWEST_LAYERS = 6
_FEWEST_REPEATS = 8
_EACH_LAYER = "each layer multiplies them by its own factor"


@diagnosis
class GradientFlow(Diagnosis):
    keys = ("vanishing", "exploding")

    def before_backward(self, case: Case, found: Pass) -> None:
        self._weights: list[tuple[torch.Tensor, float]] = []  # as their gradients arrive: the last layer's first
        self._repeated: dict[tuple[str, tuple[int, ...]], list[float]] = {}
        kinds = Counter(type(node) for node in found.nodes)
        self._often = {kind for kind, count in kinds.items() if count >= _FEWEST_REPEATS}

    def node_runs(self, found: Pass, node: int, gradients: Any) -> None:
        gradient = next((grad for grad in gradients if grad is not None), None)
        if gradient is None or not plain(gradient) or not gradient.numel():
            return
        ran = found.nodes[node]
        leaf = leaf_of(ran)
        if leaf is not None and leaf.dim() >= 2:
            self._weights.append((leaf, rms(gradient)))
        elif leaf is None and type(ran) in self._often:
            self._repeated.setdefault((short(ran), tuple(gradient.shape)), []).append(rms(gradient))

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        weights = [(leaf, size) for leaf, size in self._weights if size > 0 and math.isfinite(size)]
        self._weights = []  # they are the program's to keep
        quarter = max(len(weights) // 4, 1)
        if len(weights) >= _FEWEST_LAYERS:
            late = statistics.median(size for _, size in weights[:quarter])
            early = statistics.median(size for _, size in weights[-quarter:])
            if early * _FACTOR <= late or early >= late * _FACTOR:
                self._report(case, weights[-1][0], weights[0][0], early, late)
                return
        for (name, _), sizes in self._repeated.items():
            known = [size for size in sizes if size > 0 and math.isfinite(size)]
            if len(known) >= _FEWEST_REPEATS and max(known[-len(known) // 4 :]) >= known[0] * _FACTOR:
                self._report_repeats(case, name, known, layers=len({id(leaf) for leaf, _ in weights}))
                return

    def _report(self, case: Case, first: torch.Tensor, last: torch.Tensor, early: float, late: float) -> None:
        what = "vanish" if early < late else "explode"
        self.visit.report(
            Finding(
                f"{what[:-1] if what == 'explode' else what}ing",
                f"gradients {what}: {late:.1e} at {self.visit.name(last)}, "
                f"{early:.1e} at {self.visit.name(first)} (root mean square)",
                case.here(),
                _EACH_LAYER,
                "residual connections, normalisation, an initialisation that fits the activation, ReLU or GELU "
                "instead of sigmoid or tanh",
            )
        )

    def _report_repeats(self, case: Case, name: str, sizes: list[float], layers: int) -> None:
        recurrent = 2 * layers < len(sizes)  # else every run may have weights of its own
        self.visit.report(
            Finding(
                "exploding",
                f"gradients explode: from {sizes[0]:.1e} to {max(sizes):.1e} over {len(sizes)} runs of {name}",
                case.here(),
                "the same step is applied again and again, and each multiplies them" if recurrent else _EACH_LAYER,
                "clip gradients, shorten the recurrence (detach), or use gates, normalisation or orthogonal weights"
                if recurrent
                else "an initialisation that fits the activation, normalisation, residual connections, clipping",
            )
        )


def rms(tensor: torch.Tensor) -> float:
    """The root of the mean square; squares of very small and very large numbers need the longer type.

    Not every device has that.
    """
    with unobserved():
        norm = float(torch.linalg.vector_norm(tensor))
        if not _SURE < norm < 1 / _SURE and not tensor.is_complex():
            norm = float(torch.linalg.vector_norm(tensor.cpu().double()))
        return norm / math.sqrt(tensor.numel())
