"""Tensors that were saved for backward and written to since: all of them, before backward stops at the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from torchatlas.autograd.saved import saved_by
from torchatlas.capturing.frames import is_installed, is_users
from torchatlas.capturing.portable import source_row
from torchatlas.capturing.tensors import shape_of
from torchatlas.diagnosis.case import CHECKS, Case, short
from torchatlas.diagnosis.finding import Finding, Where, at
from torchatlas.graph import GraphNode, Phase, SourceLine

_OF_LEAF = re.compile(r"leaf Variable that requires grad.*in-place operation")
_COPY = "write to a copy (x = x * 2 instead of x.mul_(2), x.clone() before x[...] =), or after backward"
_AFTER_STEP = "run this backward pass before the optimizer's step, or compute the loss anew after it"


@CHECKS.add("in-place")
def in_place(case: Case) -> Iterator[Finding]:
    for node in case.nodes:
        for saved in saved_by(node):
            expected = saved.expected_version()
            if saved.data is None or expected is None or expected == saved.version:
                continue
            op, storage = case.op_of(node), case.storage_of(saved.data)
            writers = [] if op is None else case.written_after(op, None if storage is None else {storage})
            yield Finding(
                "in-place",
                f"{short(node)} saved {saved.slot} {tuple(shape_of(saved.data))} at version {expected}; "
                f"it is at version {saved.version} now",
                (*([] if op is None else [at("saved by", op)]), *written_by(writers)),
                "backward needs the numbers that were there when it was saved, and refuses to run",
                _AFTER_STEP if any(writer.phase is Phase.OPTIMIZER for writer in writers) else _COPY,
            )


def written_leaf(error: BaseException | None) -> Iterator[Finding]:
    """An exception of torch about a leaf that was written to: that is raised at once, and by no backward pass."""
    if error is None or not _OF_LEAF.search(str(error)):
        return
    places, trace = list[Where](), error.__traceback__
    while trace is not None:  # it knows the instruction; its frame may have gone on since
        code = trace.tb_frame.f_code
        if is_users(code.co_filename) and not is_installed(code.co_filename):
            places = [Where("written to", source_row(code, trace.tb_lasti))]
        trace = trace.tb_next
    yield Finding(
        "in-place",
        "a leaf that requires a gradient was written to in place",
        tuple(places),
        "autograd needs the leaf as it was, to give it a gradient",
        "make a new tensor (x = x + 1 instead of x += 1); an update of a parameter by hand goes under torch.no_grad()",
    )


def written_by(writers: list[GraphNode]) -> Iterator[Where]:
    """The ops that wrote, each line once: a loop may write to one tensor a hundred times."""
    lines: dict[SourceLine | None, list[GraphNode]] = {}
    for writer in writers:
        lines.setdefault(writer.source, []).append(writer)
    for first, *more in lines.values():
        place = at("written by", first)
        yield replace(place, what=f"{place.what} and {len(more):,} more") if more else place
