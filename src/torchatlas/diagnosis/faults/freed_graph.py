"""freed-graph: backward needs a graph, or a part of one that another loss shares, that a backward pass has freed."""

from __future__ import annotations

from collections.abc import Iterator

from torchatlas.autograd.saved_tensors import saved_by
from torchatlas.diagnosis.events import RefusedBackward, diagnosis
from torchatlas.diagnosis.findings import Finding, at
from torchatlas.diagnosis.loss_graph import LossGraph, short


@diagnosis
class FreedGraph(RefusedBackward):
    keys = loss_keys = ("freed-graph",)

    @staticmethod
    def check_loss(loss: LossGraph) -> Iterator[Finding]:
        saving = [(node, saved) for node in loss.nodes if (saved := saved_by(node))]
        freed = [node for node, saved in saving if any(each.state == "freed" for each in saved)]
        if not freed:
            return
        whole, op = len(freed) == len(saving), loss.op_of(freed[0])
        part = "the whole graph was freed" if whole else f"{len(freed)} of {len(saving)} nodes were freed"
        other = "from this loss" if whole else "from another loss, which shares these nodes,"
        yield Finding(
            "freed-graph",
            f"backward cannot run: {part} already, the first is {short(freed[0])}",
            (*loss.lines, *([] if op is None else [at("made by", op)])),
            f"an earlier backward pass {other} has freed the tensors that they saved",
            "detach what is carried over from an earlier step; or add losses that share nodes and run backward "
            "once; or compute the loss anew; or pass retain_graph=True to the first pass",
        )
