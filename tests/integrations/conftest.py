"""What the tests of integrations start from, and that they leave torch as they found it."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support
from native_build import built, native
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torchatlas.capturing import patches

__all__ = ["built", "native"]

if importlib.util.find_spec("torchvision") is not None:
    support.load_torchvision()  # lightning, transformers and their friends import it


def world() -> tuple[Any, ...]:
    """What a watch may not leave behind in torch and Python."""
    hooks = len(optimizers._global_optimizer_post_hooks), len(optimizers._global_optimizer_pre_hooks)
    modes = len(_get_current_dispatch_mode_stack())
    return modes, hooks, len(patches._UNDO), len(patches._WATCHES), gc.get_threshold(), nn.Module._call_impl


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = world()
    yield
    assert world() == before
