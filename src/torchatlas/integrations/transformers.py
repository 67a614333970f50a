"""A callback for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchatlas.graph.formats import imported
from torchatlas.integrations.callback import TrainingCallback
from torchatlas.integrations.loggers import Sink, sink_of
from torchatlas.integrations.training_report import TrainingReport
from torchatlas.integrations.training_watch import warn

_transformers: Any = imported("transformers.trainer_callback", "AtlasCallback for transformers needs", "transformers")


class AtlasCallback(TrainingCallback, _transformers.TrainerCallback):  # type: ignore[misc]
    __doc__ = TrainingCallback.__doc__

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        self._arguments, self._state, self._model = args, state, kwargs.get("model")
        self._begin_watch()

    def _begin_watch(self) -> None:
        args = self._arguments

        def own_sinks(path: Path) -> list[Sink]:
            return _sinks(args, path)

        end = weakref.WeakMethod(self._end)  # the recording must not keep the callback: the run ends with it

        def after_error(error: BaseException) -> None:
            if (known := end()) is not None:
                known(error)

        # The Trainer tells callbacks of no exception, so the recording does. And it logs the first step as step 1.
        rank = 0 if self._state.is_world_process_zero else args.process_index
        options: dict[str, Any] = {"after_error": after_error, "first_logged": 1}
        self._begin(self._state, self._model, lambda: args.output_dir, rank, own_sinks, **options)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a step, of all batches whose gradients are accumulated."""
        if self.watch is not None and not self.watch.running:  # an exception, and the program goes on after it
            self._begin_watch()
        if (frame := self._frame) is not None:
            frame.begin_step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step."""
        if (frame := self._frame) is not None:
            frame.end_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the watch."""
        self._end()
        self._arguments = self._state = self._model = None


def _sinks(args: Any, path: Path) -> list[Sink]:
    """Those of `report_to`. The Trainer's callbacks for them are called before ours, and have begun their runs."""
    sinks = []
    for name in [args.report_to] if isinstance(args.report_to, str) else args.report_to or ():
        if name == "tensorboard":
            sinks.append(_own_writer(args, path))
        elif name in ("wandb", "mlflow"):
            package = imported(name, f"report_to={name!r} needs")
            run = package.run if name == "wandb" else package.active_run()
            if run is None:
                warn(f"report_to={name!r}, and there is no run of it: nothing is logged there")
            else:
                sinks.append(sink_of(run))
    return sinks


def _own_writer(args: Any, path: Path) -> Sink:
    """TensorBoard reads one event file of a folder at a time, and the Trainer writes one: ours has its own folder."""
    tensorboard = imported("torch.utils.tensorboard", "report_to='tensorboard' needs", "tensorboard")
    folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR") or Path(args.output_dir) / "runs")
    writer = tensorboard.SummaryWriter(str(folder / f"torchatlas-{path.stem}"))
    sink = sink_of(writer)

    def finish(report: TrainingReport) -> None:
        try:
            sink.finish(report)
        finally:
            writer.close()

    return replace(sink, finish=finish)
