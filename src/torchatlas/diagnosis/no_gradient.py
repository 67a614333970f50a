"""A loss that backward cannot start from, and parameters that it does not reach."""

from __future__ import annotations

from collections.abc import Iterator

from torchatlas.autograd.walk import leaf_of
from torchatlas.diagnosis.case import CHECKS, Case, place
from torchatlas.diagnosis.finding import Finding
from torchatlas.graph import GraphNode


@CHECKS.add("loss-without-grad")
def loss_without_grad(case: Case) -> Iterator[Finding]:
    for number, loss in enumerate(case.losses):
        if not loss.requires_grad:
            which = f"loss {number}" if len(case.losses) > 1 else "the loss"
            yield Finding(
                "loss-without-grad",
                f"{which} does not require a gradient",
                (),
                "it was computed under no_grad or inference_mode, from detached or integer tensors, or from data alone",
                "compute it from parameters, with gradients enabled; look for detach(), .data, .item() and numpy",
            )


@CHECKS.add("no-gradient")
def no_gradient(case: Case) -> Iterator[Finding]:
    """Parameters that require a gradient and that no path from the loss leads to."""
    if case.model is None:
        return
    reached = {id(leaf) for node in case.graph.nodes if (leaf := leaf_of(node)) is not None}
    for name, parameter in case.model.named_parameters():
        if parameter.requires_grad and id(parameter) not in reached:
            used = [] if case.forward is None else _users(case, name)
            known = "it was used, but what came of it does not lead to the loss" if used else "it was never used"
            yield Finding(
                "no-gradient",
                f"{name} gets no gradient from this loss",
                tuple(f"used by {place(op)}" for op in used),
                known if case.forward is not None else "no path from the loss leads to it",
                "look for detach(), no_grad, argmax or a cast to integers after its use; or freeze it",
            )


def _users(case: Case, name: str) -> list[GraphNode]:
    assert case.forward is not None
    return [op for op in case.forward.where(kind="op") if any(value.parameter == name for value in op.inputs)][:3]
