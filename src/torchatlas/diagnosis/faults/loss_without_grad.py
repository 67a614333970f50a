"""loss-without-grad: a loss that backward cannot start from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchatlas.diagnosis.events import RefusedBackward, diagnosis
from torchatlas.diagnosis.findings import Finding, Where, at
from torchatlas.diagnosis.gradient_cuts import GradientCuts, cut_by, gradients_were_disabled
from torchatlas.diagnosis.loss_graph import LossGraph

_MOST = 3  # cuts that are named


@diagnosis
class LossWithoutGrad(RefusedBackward):
    keys = loss_keys = ("loss-without-grad",)

    @staticmethod
    def check_loss(graph: LossGraph) -> Iterator[Finding]:
        for number, loss in enumerate(graph.losses):
            if loss.requires_grad:
                continue
            which = f"loss {number}" if len(graph.losses) > 1 else "the loss"
            if frozen := _frozen(graph, loss):
                yield Finding(
                    "loss-without-grad",
                    f"{which} does not require a gradient: all {frozen:,} parameters behind it are frozen",
                    (*_cuts_of(graph, loss), *_made_at(graph, loss), *graph.lines),
                    "requires_grad is False for each of them",
                    "unfreeze what is to be trained, after all freezing: model.requires_grad_(True), or its head's",
                )
            elif not (cuts := _cuts_of(graph, loss)) and (updates := _updates_by_hand(graph, loss)):
                yield Finding(
                    "loss-without-grad",
                    f"{which} does not require a gradient",
                    (*updates, *graph.lines),
                    "an update by hand made a new tensor in the place of the parameter, and that requires no gradient",
                    "write to the parameter itself: with torch.no_grad(): w -= rate * w.grad; then w.grad = None",
                )
            else:
                yield Finding(
                    "loss-without-grad",
                    f"{which} does not require a gradient",
                    (*cuts, *graph.lines),
                    "it was computed with gradients disabled (no_grad, inference_mode, set_grad_enabled(False)), from "
                    "detached or integer tensors, or from data alone",
                    "compute it from parameters, with gradients enabled; look for detach(), .data, .item() and numpy",
                )


def _frozen(graph: LossGraph, loss: torch.Tensor) -> int:
    """The number of parameters that a loss was computed from, if none of them requires a gradient."""
    if graph.forward is None or (storage := graph.recorded.storage_of(loss)) is None:
        return 0
    parameters, cuts = graph.parameters(), GradientCuts(graph.forward)
    before = cuts.before(cuts.last_writer(storage))
    used = [trained for each, trained in parameters.items() if not before.isdisjoint(cuts.users(each))]
    return 0 if any(used) or any(parameters.values()) else len(used)


def _made_at(graph: LossGraph, loss: torch.Tensor) -> list[Where]:
    """The line that made a loss."""
    if graph.forward is None or (storage := graph.recorded.storage_of(loss)) is None:
        return []
    makers = [node for node in GradientCuts(graph.forward).writers([storage]) if node >= 0]
    return [at("the loss was made by", graph.forward.nodes[min(makers)])] if makers else []


def _cuts_of(graph: LossGraph, loss: torch.Tensor) -> list[Where]:
    """The lines that cut a loss off from parameters."""
    if graph.forward is None or (storage := graph.recorded.storage_of(loss)) is None:
        return []
    leaves = {storage for storage, trained in graph.parameters().items() if trained}
    ops = GradientCuts(graph.forward).cuts_of_loss(storage, leaves)
    lines: dict[Any, Where] = {}  # one line may have many ops
    for node in ops:
        lines.setdefault(node.source or node.id, cut_by(node))
    calls = [graph.recorded.call_of(node) for node in ops[:_MOST] if gradients_were_disabled(node)]
    cuts = list(lines.values())[:_MOST]
    called = dict.fromkeys(line for line in calls if line is not None)
    return [*cuts, *(line for line in called if line.source not in [cut.source for cut in cuts])]


def _updates_by_hand(graph: LossGraph, loss: torch.Tensor) -> list[Where]:
    """The first line that updated by hand what a loss was computed from."""
    if graph.forward is None or (storage := graph.recorded.storage_of(loss)) is None:
        return []
    return [at("updated by", node) for node in GradientCuts(graph.forward).updates_by_hand(storage)[:1]]


def lines_of_new_loss(graph: LossGraph, loss: torch.Tensor) -> list[Where]:
    """The lines that cut off a loss, and the one that made it: of a loss that is itself a leaf, or was computed from
    numbers. Nothing of one that was computed from a leaf of another optimizer, or of none."""
    cuts = _cuts_of(graph, loss)
    if not cuts and not loss.is_leaf:
        return []
    made = [line for line in _made_at(graph, loss) if line.source not in [cut.source for cut in cuts]]
    return [*cuts, *made, *graph.lines]
