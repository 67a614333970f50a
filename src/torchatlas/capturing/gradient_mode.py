"""How a model runs when it is run in order to be costed: as inference, or with autograd on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchatlas.interrupts import bracketed


def wants_gradients(model: Any, gradients: bool | None) -> bool:
    """True if a model is to run with autograd on. `gradients` decides; None leaves it to the model.

    In eval mode it runs as inference, in training mode as torch is set at the moment.
    """
    if gradients is not None:
        return gradients
    return bool(getattr(model, "training", True)) and torch.is_grad_enabled()


@bracketed
def running(gradients: bool) -> Iterator[None]:
    """A context that runs code with autograd on, or as inference.

    Inference takes no fused fast path of MultiheadAttention and TransformerEncoderLayer: it would be one opaque
    operator, where torch.export, and a run with autograd, have several.
    """
    grad, fast_path = torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()
    torch.set_grad_enabled(gradients)
    torch.backends.mha.set_fastpath_enabled(fast_path and gradients)
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.backends.mha.set_fastpath_enabled(fast_path)
