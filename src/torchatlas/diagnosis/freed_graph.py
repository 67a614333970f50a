"""A graph that a backward pass has gone through already, or a part of it that another loss shares."""

from __future__ import annotations

from collections.abc import Iterator

from torchatlas.autograd.saved import saved_by
from torchatlas.diagnosis.case import CHECKS, Case, short
from torchatlas.diagnosis.finding import Finding, at


@CHECKS.add("freed-graph")
def freed_graph(case: Case) -> Iterator[Finding]:
    saving = [(node, saved) for node in case.graph.nodes if (saved := saved_by(node))]
    freed = [node for node, saved in saving if any(each.state == "freed" for each in saved)]
    if not freed:
        return
    whole, op = len(freed) == len(saving), case.op_of(freed[0])
    part = "the whole graph" if whole else f"{len(freed)} of {len(saving)} nodes that saved something"
    shared = "by a backward pass from this loss" if whole else "by one from another loss that shares these nodes"
    yield Finding(
        "freed-graph",
        f"backward cannot run: {part} was freed, {short(freed[0])} the first",
        (*case.here(), *([] if op is None else [at("made by", op)])),
        f"what nodes saved was let go of {shared}",
        "compute the loss anew, add the losses and run backward once, detach what is carried over from an earlier "
        "step, or pass retain_graph=True to the first",
    )
