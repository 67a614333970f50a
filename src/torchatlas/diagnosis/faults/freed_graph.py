"""freed-graph: backward needs a graph, or a part of one that another loss shares, that a backward pass has freed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchatlas.autograd.saved_tensors import saved_by
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import RefusedBackward, diagnosis
from torchatlas.diagnosis.findings import Finding, at
from torchatlas.diagnosis.loss_graph import LossGraph, short
from torchatlas.torch_private import next_sequence_nr


@diagnosis
class FreedGraph(RefusedBackward):
    keys = loss_keys = ("freed-graph",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._newest = -1  # node that was there when a backward pass last ended: younger ones have freed nothing

    def before_backward(self, backward: BackwardPass) -> None:
        self._suspected = []
        if backward.nodes and backward.oldest <= self._newest:
            super().before_backward(backward)

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        super().after_backward(backward, error)
        self._newest = next_sequence_nr() - 1

    @staticmethod
    def check_loss(loss: LossGraph) -> Iterator[Finding]:
        saving = [(node, saved) for node in loss.nodes if (saved := saved_by(node))]
        freed = [node for node, saved in saving if any(each.state == "freed" for each in saved)]
        if not freed:
            return
        whole, op = len(freed) == len(saving), loss.op_of(freed[0])
        part = "the whole graph was freed" if whole else f"{len(freed)} of {len(saving)} nodes were freed"
        origin = "from this loss" if whole else "from another loss, which shares these nodes,"
        yield Finding(
            "freed-graph",
            f"backward cannot run: {part} already, the first is {short(freed[0])}",
            (*loss.lines, *([] if op is None else [at("made by", op)])),
            f"an earlier backward pass {origin} has freed the tensors that they saved",
            "detach what is carried over from an earlier step; or add losses that share nodes and run backward "
            "once; or compute the loss anew; or pass retain_graph=True to the first pass",
        )
