"""A callback for Lightning's Trainer, of `lightning` or of `pytorch_lightning`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torchatlas.graph.formats import imported
from torchatlas.integrations.callback import TrainingCallback
from torchatlas.integrations.loggers import Sink, sinks_of

# Two packages hold the same code under two names. A program uses one of them: the one that it has imported.
_NAME = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
_lightning: Any = imported(_NAME, "AtlasCallback for Lightning needs", "lightning")


class AtlasCallback(TrainingCallback, _lightning.Callback):  # type: ignore[misc]
    __doc__ = TrainingCallback.__doc__

    # A step is one batch, or several: it ends with the batch in which an optimizer has stepped.

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._first = trainer.global_step  # of a training that is resumed; later ones are counted from there

        def own_sinks(path: Path) -> list[Sink]:
            return sinks_of(trainer.loggers)

        self._begin(trainer, pl_module, lambda: _folder(trainer), trainer.global_rank, own_sinks)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step, or go on with one: gradients are accumulated."""
        if (frame := self._frame) is not None:
            frame.resume()
            frame.begin_step(self._first)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the step if an optimizer has stepped; else pause until the next batch: validation may come first."""
        if (frame := self._frame) is None:
            return
        if frame.stepped:
            frame.end_step()
        else:
            frame.pause()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the watch."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the watch: what was recorded until then stays."""
        self._end(exception)


def _folder(trainer: Any) -> str:
    """Where the trainer's first logger writes. `trainer.log_dir` would wait for the other ranks."""
    logger = next(iter(trainer.loggers), None)
    folder = getattr(logger, "log_dir", None) or getattr(logger, "save_dir", None)
    return str(folder or trainer.default_root_dir)
