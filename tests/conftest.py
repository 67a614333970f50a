"""What every test starts from and must leave behind."""

import gc
import os
import tempfile
from collections.abc import Iterator

import children
import pytest
import torch
from native_build import in_python
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

__all__ = ["in_python"]

_EMPTY_CACHE = tempfile.TemporaryDirectory(prefix="torchatlas-cache-")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(children.plugin(), "children")
    # Tests use the recorder in Python unless they say otherwise, whatever the user has built. All of them can be run
    # with the native one by naming a cache that holds a build.
    os.environ["TORCHATLAS_CACHE"] = os.environ.get("TORCHATLAS_TEST_CACHE", _EMPTY_CACHE.name)


def pytest_collection_finish() -> None:
    # Torch and 15,000 collected tests are 800,000 objects, which the collector and the doctor would look through again
    # and again.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_torch() -> Iterator[None]:
    """One thread and a known seed before each test; no dispatch mode left after it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    left = _get_current_dispatch_mode_stack()
    for mode in reversed(left):
        mode.__exit__(None, None, None)  # so that only the test that leaked it fails
    assert not left, f"dispatch modes left on the stack: {left}"
