"""A diagnosis and the events it is told of while a program runs. Each diagnosis overrides the events it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torchatlas.capturing.op_listening import Wants
from torchatlas.diagnosis.findings import Finding, Severity, Where
from torchatlas.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from torchatlas.autograd.engine_observer import Gradients
    from torchatlas.capturing.row_schema import Plan
    from torchatlas.diagnosis.backward_passes import BackwardPass
    from torchatlas.diagnosis.loss_graph import LossGraph
    from torchatlas.diagnosis.visit import Visit


class Diagnosis:
    """Finds one kind of fault, or a few that show in the same events."""

    keys: ClassVar[tuple[str, ...]]
    # Keys that only a program that ran to its end shows: a step, a gradient or a use of a result may be yet to come.
    needs_the_end: ClassVar[tuple[str, ...]] = ()
    loss_keys: ClassVar[tuple[str, ...]] = ()  # keys that `check_loss` finds

    def __init__(self, visit: Visit) -> None:
        self.visit, self.history = visit, visit.history

    def report(
        self,
        key: str,
        what: str,
        where: Iterable[Where],
        why: str,
        fix: str,
        times: int = 1,
        severity: Severity = Severity.ERROR,
        explains: tuple[str, ...] = (),
    ) -> None:
        self.visit.report(Finding(key, what, tuple(where), why, fix, times, severity, explains))

    @staticmethod
    def check_loss(loss: LossGraph) -> Iterable[Finding]:
        """The faults that a loss shows before backward runs: what `doctor(loss)` reports."""
        return ()

    def wants(self, plan: Plan) -> Wants:
        """When `op_ran` is to be called for an operator. Asked once: whatever is not wanted costs next to nothing."""
        return Wants.NOTHING

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        """After an op that is wanted; also of backward, of optimizers, and of code without gradients."""

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before a module is called that no other module calls."""

    def module_returned(self, module: nn.Module, result: Any) -> None: ...

    def before_backward(self, backward: BackwardPass) -> None: ...

    def nodes_wanted(self, backward: BackwardPass) -> Iterable[int]:
        """The nodes of a pass that `node_runs` is to be called for, by place. Asked after `before_backward`."""
        return ()

    def node_runs(self, backward: BackwardPass, node: int, gradients: Gradients) -> None:
        """Before a node of backward runs that is wanted; `node` is its place in `backward.nodes`."""

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None: ...

    def before_step(self, optimizer: Optimizer, parameters: list[Tensor]) -> None: ...

    def after_step(self, optimizer: Optimizer, parameters: list[Tensor]) -> None: ...

    def scheduler_stepped(self, scheduler: LRScheduler) -> None:
        """After a step of a learning-rate scheduler that the program asked for."""

    def recording_ends(self) -> None:
        """Before the running recording is replaced by the next one, which happens now and then in a long program."""

    def at_end(self, complete: bool) -> None:
        """When the program ends; `complete` is False after an exception, when much has only not happened yet."""


class RefusedBackward(Diagnosis):
    """A fault for which torch refuses to run backward. It is reported only if torch did refuse: a pass that wants few
    gradients may not need the node with the fault."""

    def before_backward(self, backward: BackwardPass) -> None:
        self._suspected = list(self.check_loss(backward))

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        if error is not None:
            for finding in self._suspected:
                self.visit.report(finding)


DIAGNOSES: Registry[type[Diagnosis]] = Registry("diagnosis")
LOSS_CHECKS: Registry[Callable[[LossGraph], Iterable[Finding]]] = Registry("check of a loss")


def diagnosis(kind: type[Diagnosis]) -> type[Diagnosis]:
    """Register a diagnosis under each of its keys."""
    DIAGNOSES.add(*kind.keys)(kind)
    if kind.loss_keys:
        LOSS_CHECKS.add(*kind.loss_keys)(kind.check_loss)
    return kind


def is_power_of_two(count: int) -> bool:
    """True for 1, 2, 4, 8 ...: looks that take long are taken at these events, so that they stay rare."""
    return count & (count - 1) == 0


class Doublings:
    """Counts events of each kind, to look at the 1st, 2nd, 4th, 8th ... of each.

    Backward passes are counted by the line that calls backward: of three passes in turn, one count for all would never
    come to a power of two at the third.
    """

    def __init__(self) -> None:
        self._counts = Counter[Any]()

    def count(self, kind: Hashable) -> bool:
        """Count an event; True if it is one to look at."""
        self._counts[kind] += 1
        return is_power_of_two(self._counts[kind])
