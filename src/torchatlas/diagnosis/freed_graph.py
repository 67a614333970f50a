"""A graph that a backward pass has gone through already, or a part of it that another loss shares."""

from __future__ import annotations

from collections.abc import Iterator

from torchatlas.autograd.saved import saved_by
from torchatlas.diagnosis.case import CHECKS, Case, short
from torchatlas.diagnosis.finding import Finding, at


@CHECKS.add("freed-graph")
def freed_graph(case: Case) -> Iterator[Finding]:
    saving = [(node, saved) for node in case.nodes if (saved := saved_by(node))]
    freed = [node for node, saved in saving if any(each.state == "freed" for each in saved)]
    if not freed:
        return
    whole, op = len(freed) == len(saving), case.op_of(freed[0])
    part = "the whole graph was freed already" if whole else f"{len(freed)} of {len(saving)} nodes were freed already"
    shared = "an earlier backward pass from this loss" if whole else "one from another loss, through the same nodes,"
    yield Finding(
        "freed-graph",
        f"backward cannot run: {part}, first {short(freed[0])}",
        (*case.here(), *([] if op is None else [at("made by", op)])),
        f"{shared} has let go of what they saved",
        "detach what is carried over from an earlier step, add losses that share something and run backward once, "
        "compute the loss anew, or pass retain_graph=True to the first",
    )
