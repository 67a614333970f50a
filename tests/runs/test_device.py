"""Times and memory on an accelerator, on a stand-in for one: there is none on machines that run the tests."""

from __future__ import annotations

from typing import Any

import pytest
from runs.programs_with_steps import trained

import torchatlas as atlas
from torchatlas.runs import run_recording
from torchatlas.runs.device import DeviceMeter
from torchatlas.runs.run import Run


class Accelerator:
    """A device that is behind the host by what was launched: a step takes 3 ms on it and 100 bytes more."""

    def __init__(self) -> None:
        self.now_ms, self.allocated, self.waited = 0.0, 0, 0

    def is_available(self) -> bool:
        return True

    def memory_allocated(self) -> int:
        self.allocated += 100
        return self.allocated

    def max_memory_allocated(self) -> int:
        return self.allocated + 50

    def event(self, enable_timing: bool = False) -> Any:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, device: Accelerator) -> None:
        self._device, self._at = device, -1.0

    def record(self) -> None:
        self._at = self._device.now_ms
        self._device.now_ms += 3.0

    def synchronize(self) -> None:
        self._device.waited += 1

    def elapsed_time(self, end: Event) -> float:
        return end._at - self._at


def test_steps_on_a_device(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator()
    monkeypatch.setattr(run_recording, "DeviceMeter", lambda: DeviceMeter(device, device.event))
    model, _, step = trained()
    with atlas.recording(model, every=1, path=tmp_path / "run.atlas") as run:
        step()  # the first is written at once
        waited = device.waited
        step(), step()
        assert device.waited == waited, "no event is waited for before the figures are written"
    found = atlas.load(run.path or "")
    assert isinstance(found, Run)
    assert found.steps["device_ns"] == [3_000_000] * 3
    assert found.steps["device_bytes"] == [100, 200, 300]
    assert found.steps["device_peak_bytes"] == [150, 250, 350]
    assert "allocated on the device" in found.plot("memory").svg


def test_without_a_device_there_are_no_figures_of_one() -> None:
    class Nothing:
        def is_available(self) -> bool:
            return False

    meter = DeviceMeter(Nothing(), None)
    meter.begin()
    assert meter.end() is None
