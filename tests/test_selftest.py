"""The selftest says what works, and what does not and why."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from torchatlas import selftest, torch_private
from torchatlas.canaries import CANARIES
from torchatlas.cli import main
from torchatlas.errors import UntestedVersionWarning
from torchatlas.registry import Registry


def test_every_piece_of_work_works() -> None:
    found = {check.name: check for check in selftest._tried(selftest.WORK.items())}
    assert not [check for check in found.values() if not check.works]
    assert len(found) == 5
    assert "same bits" in found["training step with replay"].detail


def test_what_fails_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        assert torch.ones(1).item() == 2

    def refused() -> str:
        raise RuntimeError("torch says\nno")

    few: Registry[object] = Registry("canary")
    few.add("push_mode")(broken)
    few.add("pytree")(CANARIES["pytree"])
    monkeypatch.setattr("torchatlas.canaries.CANARIES", few)
    monkeypatch.setattr(selftest, "WORK", {"picture": refused, "doctor": lambda: "healthy"})
    shown = CliRunner().invoke(main, ["selftest"])
    assert shown.exit_code == 1
    first, canaries, canary, picture, doctor = shown.output.splitlines()
    assert first.startswith(f"torch {torch.__version__}, Python 3.")
    assert canaries == "FAILS  private symbols of torch: 1 of 2 canaries"
    assert canary.startswith("  FAILS  push_mode: AssertionError: ")
    assert picture == "FAILS  picture: RuntimeError: torch says no"
    assert doctor == "works  doctor: healthy"
    told = json.loads(CliRunner().invoke(main, ["selftest", "--json"]).stdout)
    assert told["works"] is False
    assert [check["works"] for check in told["canaries"] + told["work"]] == [False, True, False, True]


@pytest.mark.parametrize(
    ("version", "tested"),
    [("2.10.0", True), ("2.15.3+cpu", True), ("2.9.1", False), ("2.16.0a0+git1234", False), ("3.0.0", False)],
)
def test_an_untested_version_warns(monkeypatch: pytest.MonkeyPatch, version: str, tested: bool) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    if tested:
        torch_private._warn_if_untested()
        return
    with pytest.warns(
        UntestedVersionWarning, match=f"2.10 to 2.15, not with {version[:5]}.*torchatlas selftest"
    ) as told:
        torch_private._warn_if_untested()
    assert told[0].filename == __file__  # the user's line, not ours
