"""A logger that a program uses -> a Sink that takes figures of steps, and the page and the graph at the end.

The package of a logger is known by the module of its class, so that none has to be imported to find out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.integrations.training_report import TrainingReport
from torchatlas.runs.journal import Number

_NS_PER_MS = 1_000_000
_BY_PACKAGE = {  # where the class of a logger is defined -> the file here that knows it
    "torch.utils.tensorboard": "tensorboard",
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
_OF_TRAINERS = ("lightning", "pytorch_lightning", "accelerate")


@dataclass(frozen=True)
class Sink:
    """Where figures of a training go, beside its folder."""

    name: str
    log: Callable[[dict[str, float], int], None]  # figures of a step, and its number
    finish: Callable[[TrainingReport], None]


def sinks_of(loggers: Iterable[Any]) -> list[Sink]:
    """The sinks of some loggers. InvalidInputError if one of them is no logger that we know."""
    if isinstance(loggers, (str, bytes)) or not isinstance(loggers, Iterable):
        raise InvalidInputError(f"loggers={loggers!r}: give a list of loggers, such as [SummaryWriter()].")
    return [sink_of(logger) for logger in loggers]


def sink_of(logger: Any) -> Sink:
    """The sink of a SummaryWriter, a run of W&B or MLflow, a logger of Lightning or a tracker of accelerate."""
    if logger is None:
        raise InvalidInputError(
            "loggers holds None: wandb.run and mlflow.active_run() are None until wandb.init() or mlflow.start_run()."
        )
    defined_in = [one.__module__ for one in type(logger).__mro__]
    if any(module.partition(".")[0] in _OF_TRAINERS for module in defined_in):
        return _of_a_trainer(logger)
    for package, name in _BY_PACKAGE.items():
        if any(module == package or module.startswith(f"{package}.") for module in defined_in):
            sink: Sink = import_module(f"torchatlas.integrations.{name}").sink(logger)
            return sink
    known = "a SummaryWriter, a run of wandb or mlflow, a logger of Lightning or a tracker of accelerate"
    raise InvalidInputError(f"loggers holds {type(logger).__name__}, which is no logger that we know: {known}.")


def _of_a_trainer(logger: Any) -> Sink:
    """Figures go through the trainer's own logger, as its others do; files to what that logger writes to."""
    name = type(logger).__name__
    if hasattr(logger, "log_metrics"):  # Lightning

        def log(figures: dict[str, float], step: int) -> None:
            logger.log_metrics(figures, step=step)

        inner = logger if hasattr(logger, "run_id") else getattr(logger, "experiment", None)
    else:

        def log(figures: dict[str, float], step: int) -> None:
            logger.log(figures, step=step)

        inner = logger.tracker
    defined_in = [one.__module__.partition(".")[0] for one in type(inner).__mro__] if inner is not None else []
    if hasattr(logger, "run_id") and "mlflow" in type(getattr(logger, "experiment", None)).__module__:
        from torchatlas.integrations.mlflow import sink_of_client

        return replace(sink_of_client(logger.experiment, logger.run_id), name=name, log=log)
    if inner is not None and inner is not logger and not set(defined_in) & set(_OF_TRAINERS):
        try:
            sink = replace(sink_of(inner), name=name)
            # accelerate's would move the step of the run on, and W&B drops what the program logs with a smaller one
            own_step = "wandb" in defined_in and not hasattr(logger, "log_metrics")
            return sink if own_step else replace(sink, log=log)
        except InvalidInputError:  # a package without artifacts of ours: the figures alone
            pass
    return Sink(name, log, _nothing)


def _nothing(report: TrainingReport) -> None:
    """For loggers that take no files: these are on the disk."""


def figures_of(row: Mapping[str, Number]) -> dict[str, float]:
    """A row of the table of steps as scalars, under names that every logger takes.

    >>> figures_of({"number": 3, "wall_ns": 2_500_000, "peak_bytes": 40, "time_ns:(top level)": 1_000_000})
    {'atlas/wall_ms': 2.5, 'atlas/peak_bytes': 40.0, 'atlas/time_ms_by_module/top level': 1.0}
    """
    figures: dict[str, float] = {}
    for column, number in row.items():
        name, _, module = column.partition(":")
        if number is None or name in ("number", "start_ns", "structure", "finished", "ops", "loss"):
            continue
        scaled = number / _NS_PER_MS if name.endswith("_ns") else float(number)
        name = name.removesuffix("_ns") + "_ms" * name.endswith("_ns")
        suffix = f"_by_module/{safe_name(module)}" if module else ""
        figures[f"atlas/{name}{suffix}"] = scaled
    return figures


def safe_name(text: str) -> str:
    """A name of letters that all loggers take.

    >>> safe_name("layers.0"), safe_name("(top level)")
    ('layers.0', 'top level')
    """
    return re.sub(r"[^A-Za-z0-9_.\- ]", "_", text.strip("()")) or "_"
