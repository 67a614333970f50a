"""`watch` for loops with Hugging Face accelerate: `atlas.watch` with the accelerator's trackers and ranks."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import InvalidInputError
from torchatlas.integrations.training_watch import TrainingWatch
from torchatlas.integrations.watch import watch as watch_optimizer


@explains_arguments
def watch(accelerator: Any, optimizer: Any, model: nn.Module | None = None, **options: Any) -> TrainingWatch:
    """Watch a loop with accelerate: `atlas.watch` for what `accelerator.prepare` returned.

    Figures and the page go to the accelerator's trackers. Of several processes the first records.

    Args:
        accelerator: The Accelerator; call its init_trackers before, if it has any.
        optimizer: The optimizer that `prepare` returned, or several.
        model: The model that `prepare` returned.
        **options: Those of `atlas.watch`.
    Returns:
        A TrainingWatch. It ends with its `end()`, with a `with` block, or with the program.
    Raises:
        InvalidInputError: This is no accelerator, or an argument does not fit.
    """
    if not hasattr(accelerator, "unwrap_model") or not hasattr(accelerator, "process_index"):
        raise InvalidInputError(
            f"watch(accelerator, optimizer) takes an Accelerator, not {type(accelerator).__name__}."
        )
    if options.get("loggers") is None:
        options["loggers"] = list(accelerator.trackers)
    inner = None if model is None else accelerator.unwrap_model(model)
    return watch_optimizer(optimizer, inner, rank=accelerator.process_index, **options)
