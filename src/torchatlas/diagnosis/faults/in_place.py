"""in-place: a tensor was saved for backward and written to since. Finds all of them; backward stops at the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from torchatlas.autograd.graph_walk import reached
from torchatlas.autograd.saved_tensors import saved_by
from torchatlas.capturing.tensors import shape_of
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Finding, Where, at
from torchatlas.diagnosis.history import raised_at
from torchatlas.diagnosis.loss_graph import LossGraph, short
from torchatlas.graph import GraphNode, Phase, SourceLine

_OF_LEAF = re.compile(r"leaf Variable that requires grad.*in-place operation")
_COPY = "write to a copy (x = x * 2 instead of x.mul_(2), x.clone() before x[...] =), or write after backward"
_AFTER_STEP = "run this backward pass before the optimizer's step, or compute the loss anew after it"


@diagnosis
class InPlace(Diagnosis):
    keys = loss_keys = ("in-place",)

    @staticmethod
    def check_loss(loss: LossGraph) -> Iterator[Finding]:
        # One by one: nobody may hold what is saved while backward runs.
        for node, saved in ((each, slot) for each in loss.nodes for slot in saved_by(each)):
            expected = saved.expected_version()
            if saved.data is None or expected is None or expected == saved.version:
                continue
            op, storage = loss.op_of(node), loss.recorded.storage_of(saved.data)
            writers = [] if op is None else loss.written_after(op, None if storage is None else {storage})
            yield Finding(
                "in-place",
                f"{short(node)} saved {saved.slot} {tuple(shape_of(saved.data))} at version {expected}; "
                f"it is at version {saved.version} now",
                (*([] if op is None else [at("saved by", op)]), *written_by(writers)),
                "backward needs the numbers that were there when it was saved, and refuses to run",
                _AFTER_STEP if any(writer.phase is Phase.OPTIMIZER for writer in writers) else _COPY,
            )

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        """Only after torch has refused: to look takes long. What ran before that was in order, and may be freed."""
        if error is not None:
            whole = LossGraph(backward.losses, backward.recorded, backward.line)
            whole.nodes = reached(list(backward.roots))  # a part of it may have been walked alone
            for finding in self.check_loss(whole):
                self.visit.report(finding)

    def at_end(self, complete: bool) -> None:
        """torch refuses a write to a leaf at once: that is no backward pass, but the end of the program."""
        error = self.visit.error
        if error is not None and _OF_LEAF.search(str(error)):
            line = raised_at(error).line
            self.report(
                "in-place",
                "a leaf that requires a gradient was written to in place",
                [] if line is None else [Where("written to", line)],
                "autograd needs the leaf as it was, to give it a gradient",
                "make a new tensor (x = x + 1 instead of x += 1); update a parameter by hand under torch.no_grad()",
            )


def written_by(writers: list[GraphNode]) -> Iterator[Where]:
    """The ops that wrote, each line once: a loop may write to one tensor a hundred times."""
    lines: dict[SourceLine | None, list[GraphNode]] = {}
    for writer in writers:
        lines.setdefault(writer.source, []).append(writer)
    for first, *more in lines.values():
        where = at("written by", first)
        yield replace(where, what=f"{where.what} and {len(more):,} more") if more else where
