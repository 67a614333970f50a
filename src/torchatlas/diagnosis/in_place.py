"""Tensors that were saved for backward and written to since: all of them, before backward stops at the first."""

from __future__ import annotations

from collections.abc import Iterator

from torchatlas.autograd.saved import saved_by
from torchatlas.diagnosis.case import CHECKS, Case, place
from torchatlas.diagnosis.finding import Finding


@CHECKS.add("in-place")
def in_place(case: Case) -> Iterator[Finding]:
    for node in case.graph.nodes:
        for saved in saved_by(node):
            expected = saved.expected_version()
            if saved.data is None or expected is None or expected == saved.version:
                continue
            name, shape = node.name().rpartition("::")[2], tuple(saved.data.shape)
            op = case.op_of(node)
            where = [f"saved by {place(op)}"] if op is not None else []
            writers = case.written_after(op) if op is not None else []
            yield Finding(
                "in-place",
                f"{name} saved {saved.slot} {shape} at version {expected}; it is at version {saved.version} now",
                (*where, *(f"written by {place(writer)}" for writer in writers)),
                "backward needs the numbers that were there when it was saved, and refuses to run",
                "write to a copy (x = x * 2 instead of x.mul_(2), x.clone() before x[...] =), or after backward",
            )
