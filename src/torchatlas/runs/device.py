"""Times and memory of a step on an accelerator, by torch's device-generic API: torch.Event and torch.accelerator.

What ran on a GPU is still running when the host has gone on, so a step has a time on the device beside its wall time:
the time between two events that are recorded into the current stream. No event is waited for before the figures are
written. The allocator is asked how much is allocated and how much has been at most; its counters are left as they are,
since the program may read and reset them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Reading = Callable[[], dict[str, int | None]]  # waits for the device if it must


class DeviceMeter:
    """Measures one step at a time on the current accelerator; where there is none, nothing."""

    def __init__(self, accelerator: Any = torch.accelerator, event: Any = torch.Event) -> None:
        self._accelerator, self._event = accelerator, event
        self._is_there = bool(accelerator.is_available())
        self._began: Any = None

    def begin(self) -> None:
        if self._is_there:
            self._began = self._recorded()

    def end(self) -> Reading | None:
        """The figures of the step that `begin` began, to be read later; None where there is no accelerator."""
        began, self._began = self._began, None
        if began is None:
            return None
        ended = self._recorded()
        allocated, most = self._accelerator.memory_allocated(), self._accelerator.max_memory_allocated()

        def read() -> dict[str, int | None]:
            ended.synchronize()
            elapsed_ns = round(began.elapsed_time(ended) * 1e6)
            return {"device_ns": elapsed_ns, "device_bytes": allocated, "device_peak_bytes": most}

        return read

    def _recorded(self) -> Any:
        event = self._event(enable_timing=True)
        event.record()
        return event
