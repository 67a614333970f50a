"""One line on a terminal about work that takes long; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from torchatlas.escapes import clean
from torchatlas.interrupts import Bracket


class ProgressLine(Bracket["ProgressLine"]):
    """Says what is being done, and for how long. Call `tick` often; from the first line on, it refreshes by itself."""

    PATIENCE_S = 2.0  # work that ends sooner needs no line
    _shown: Any = None

    def __init__(self, text: str, *, patience_s: float | None = None) -> None:
        self._text = text
        self._patience_s = self.PATIENCE_S if patience_s is None else patience_s

    def _begin(self) -> ProgressLine:
        self._stream = sys.stderr  # others may replace sys.stderr while the work runs
        self._since = time.monotonic() if self._stream is not None and self._stream.isatty() else None
        return self

    def now(self, text: str) -> None:
        """Change the text."""
        self._text = text
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], description=clean(text))

    def tick(self) -> None:
        """Show the line if it is time."""
        if self._since is None or self._shown is not None or time.monotonic() - self._since < self._patience_s:
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        # The program's own stdout and stderr stay as they are: what runs inside may look at them.
        line = Progress(
            *columns,
            console=Console(file=self._stream),
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
            get_time=time.monotonic,
        )
        line.add_task(clean(self._text), total=None)
        line.tasks[0].start_time = self._since
        self._shown = line
        line.start()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None
