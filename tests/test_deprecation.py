"""Old spellings work for one minor version, and say what they are called now."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.deprecation import old_arguments

X = torch.randn(2, 4)


def graph() -> atlas.Graph:
    return atlas.capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), X, backward=True)


def growth(**options: Any) -> Any:
    return atlas.peak_for_batch(lambda batch: atlas.capture(nn.Linear(4, 8), torch.randn(batch, 4)), **options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            lambda: len(atlas.module_table(graph(), limit=1).rows),  # type: ignore[call-arg]
            lambda: len(atlas.module_table(graph(), rows=1).rows),
            "limit= of module_table is now called rows=",
        ),
        (
            lambda: atlas.pipeline_stages(graph(), 2, memory_limit="1GiB").limit_bytes,  # type: ignore[call-arg]
            lambda: atlas.pipeline_stages(graph(), 2, limit="1GiB").limit_bytes,
            "memory_limit= of pipeline_stages is now called limit=",
        ),
        (
            lambda: atlas.pipeline_stages(graph(), 2, limit="1GiB").memory_limit,
            lambda: 2**30,
            "PipelinePlan.memory_limit is now called limit_bytes",
        ),
        (
            lambda: growth(sizes=(1, 3)).batches,
            lambda: growth(batches=(1, 3)).batches,
            "sizes= of peak_for_batch is now called batches=",
        ),
        (lambda: growth().sizes, lambda: (2, 4), "BatchPeak.sizes is now called batches"),
        (
            lambda: growth().largest_batch(memory_bytes=10_000),
            lambda: growth().largest_batch(limit="10KB"),
            "memory_bytes= of largest_batch is now called limit=",
        ),
    ],
)
def test_an_old_spelling_does_what_the_new_one_does(
    old: Callable[[], Any], new: Callable[[], Any], message: str
) -> None:
    with pytest.warns(DeprecationWarning, match=message) as caught:
        found = old()
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found == new()


def test_both_spellings_at_once_are_refused() -> None:
    @old_arguments(sizes="batches")
    def function(batches: int = 0) -> int:
        return batches

    with pytest.raises(TypeError, match="both batches= and sizes="):
        function(batches=1, sizes=2)  # type: ignore[call-arg]
