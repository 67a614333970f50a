"""Runs whose steps somebody else frames: a trainer's callback says when each begins and ends.

What lies between two steps (validation, logging, loading data, saving) is then in none of them.
"""

from __future__ import annotations

import time

from torchatlas.capturing import patches
from torchatlas.runs.run_recording import RunRecording


class FramedRunRecording(RunRecording):
    """Records what runs between `begin_step` and `end_step`. Optimizers end no step."""

    _framed = True

    @property
    def stepped(self) -> bool:
        """True if an optimizer of torch has stepped in the step that runs."""
        return self._stepped

    def begin_step(self, number: int | None = None) -> None:
        """Begin a step. Does nothing while one runs, or when the run is over.

        Args:
            number: Its number, where that is known; smaller ones than are due are not taken.
        """
        if self._in_step or self._state != "running":
            return
        self._number = max(self._number, number or 0)
        self._in_step, self._stepped = True, False
        if self._number < self._idle_until:
            self._paused_ns, self._step_began_ns = 0, time.perf_counter_ns()
        elif self._is_here():
            with self._guarded():
                self._begin_step()

    def end_step(self) -> None:
        """End the step that `begin_step` began. Does nothing if none runs."""
        if self._in_step and self._state == "running":
            if self._number < self._idle_until:
                self._end_pause()
                self._end_unrecorded()  # what most steps of a long run are
            elif self._is_here():
                with self._guarded():
                    self._end_step()
            self._in_step = False

    def pause(self) -> None:
        """Record nothing until `resume`: a validation in the middle of a step, say. Its time is not the step's."""
        if self._in_step and not self._pause_began_ns and self._is_here():
            self._pause_began_ns = time.perf_counter_ns()
            if self._recording is not None:
                with self._guarded():
                    patches.leave(self._recording._watch)
                    self._listen(False)
                    self._pause = self._recording.paused()
                    self._pause.__enter__()

    def resume(self) -> None:
        """End a `pause`. Does nothing if there is none."""
        if self._pause_began_ns and self._is_here():
            with self._guarded():
                self._end_pause()
