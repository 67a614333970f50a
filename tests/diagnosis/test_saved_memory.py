"""Which passes are looked at for what they have saved."""

from __future__ import annotations

import pytest
import torch

import torchatlas as atlas
from torchatlas.diagnosis.faults import saved_memory


def test_the_last_of_three_passes_in_turn_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_memory, "_LARGE", 4_000)
    w = torch.ones(10, requires_grad=True)
    with atlas.doctor(only="saved-memory") as visit:
        for _ in range(2):
            (w * 2).sum().backward()
            (w * 3).sum().backward()
            w.expand(200, 10).exp().sum().backward()
    (finding,) = visit.findings
    assert finding.key == "saved-memory"
