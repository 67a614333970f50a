"""What a diagnosis is told during a visit. Each overrides what it needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torchatlas.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from torchatlas.autograd.tasks import Gradients
    from torchatlas.capturing.row_schema import Plan
    from torchatlas.diagnosis.backward import Pass
    from torchatlas.diagnosis.case import Case
    from torchatlas.diagnosis.visit import Visit


class Diagnosis:
    """One kind of fault, or a few that show in the same events. What it finds goes to `visit.report`."""

    keys: ClassVar[tuple[str, ...]]
    # Those that only a program that ran to its end shows: a step, a gradient or a use of a result may be yet to come.
    whole: ClassVar[tuple[str, ...]] = ()

    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        """After every op; also of backward, of optimizers, and of code without gradients."""

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before a module is called that no other module calls."""

    def module_returned(self, module: nn.Module, result: Any) -> None: ...

    def before_backward(self, case: Case, found: Pass) -> None: ...

    def node_runs(self, found: Pass, node: int, gradients: Gradients) -> None:
        """Before a node of backward runs."""

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None: ...

    def before_step(self, optimizer: Optimizer, parameters: list[Tensor]) -> None: ...

    def after_step(self, optimizer: Optimizer, parameters: list[Tensor]) -> None: ...

    def scheduler_stepped(self, scheduler: LRScheduler) -> None:
        """After a step of a learning-rate scheduler that the program asked for."""

    def recording_ends(self) -> None:
        """Before the recording that runs is forgotten, and another begins: in a long program, now and then."""

    def at_end(self, complete: bool) -> None:
        """When the visit ends; `complete` unless by an exception: then much may only not have happened yet."""


DIAGNOSES: Registry[type[Diagnosis]] = Registry("diagnosis")


def diagnosis(kind: type[Diagnosis]) -> type[Diagnosis]:
    """Add a diagnosis under each of its keys."""
    for key in kind.keys:
        DIAGNOSES.add(key)(kind)
    return kind
