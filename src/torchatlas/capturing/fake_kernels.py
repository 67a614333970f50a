"""An error that torch's fake kernel of an operator raised -> one that says so, where the real kernel may raise none."""

from __future__ import annotations

import traceback

from torchatlas.errors import CaptureError
from torchatlas.inputs import is_about_dtypes
from torchatlas.torch_private import FakeTensorMode


def raise_for_fake_kernel(error: Exception, where: str) -> None:
    """Raise if a fake kernel refused a dtype. torch's own list fewer dtypes than the real kernels take: that of
    aten._grouped_mm took bfloat16 alone in torch 2.13, and the real one float32 as well."""
    if isinstance(error, RuntimeError) and is_about_dtypes(error) and _is_of_fake_mode(error):
        first = (str(error).splitlines() or [""])[0]
        raise CaptureError(
            f"the fake kernel of {where} refuses a dtype: {first.rstrip('.')}. The real kernel may take it: capture "
            "with fake=False. Or use a dtype that both take, such as model.bfloat16()."
        ) from error


def _is_of_fake_mode(error: Exception) -> bool:
    dispatch = FakeTensorMode.dispatch.__code__
    return any(frame.f_code is dispatch for frame, _ in traceback.walk_tb(error.__traceback__))
