"""kept-state: a state is carried from iteration to iteration with its graph, which grows every time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchatlas.autograd.graph_walk import sequence_nr
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Severity, Where, at
from torchatlas.diagnosis.variable_names import running_tensors

_FEWEST = 3  # iterations in a row
_WRONG = ("in-place", "data-write")  # what makes gradients wrong, or backward refuse to run
_EXPLAINS = (*_WRONG, "graph-kept", "retain-graph", "freed-graph")


@dataclass(eq=False)
class CarriedState:
    """What graphs that backward retains at one line carry over from one iteration to the next."""

    line: Where
    times: int = 0  # iterations in a row
    most: int = 0
    steps: int = -1  # that had been taken at the last pass
    newest: int = -1  # the highest number of a node that was carried over to the last pass
    made_by: tuple[Where, ...] = ()
    held: dict[int, str] = field(default_factory=dict)  # at the last pass: autograd's number -> the variable
    name: str = ""  # of the variable that held it then, if it is known


@diagnosis
class KeptState(Diagnosis):
    keys = ("kept-state",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._lines: dict[Where, CarriedState] = {}
        self._raised = False

    def before_backward(self, backward: BackwardPass) -> None:
        if not backward.retains or backward.line is None:
            return
        carried = self._lines.setdefault(backward.line, CarriedState(backward.line))
        newest = max(map(sequence_nr, backward.carried), default=-1)
        if newest in (-1, carried.newest):  # nothing, or always the same: made before the loop, so that nothing grows
            carried.times = 0
            carried.most *= carried.steps > 0 or self.history.steps == 0
        elif self.history.steps == 0 or self.history.steps > carried.steps:  # several passes of one iteration may share
            if carried.steps == 0 and self.history.steps:  # what came before the first step was one iteration, too
                carried.times = carried.most = 0
            carried.times += 1
            carried.most = max(carried.most, carried.times)
            if carried.times <= _FEWEST:
                numbers = [number for node in backward.carried if (number := sequence_nr(node)) in carried.held]
                carried.name = carried.name or next((carried.held[number] for number in numbers), "")
            if carried.times == _FEWEST:
                self._find_lines(carried, backward)
        carried.steps, carried.newest = self.history.steps, newest
        carried.held = dict(_variables()) if carried.times <= _FEWEST and not carried.name else {}

    def _find_lines(self, carried: CarriedState, backward: BackwardPass) -> None:
        makers = self.history.makers_of(map(sequence_nr, backward.carried)).values()
        lines = {op.source: op for op in sorted(makers, key=lambda op: op.id)}
        carried.made_by = tuple(at("carried over from the iteration before: made by", op) for op in lines.values())

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        if error is not None and backward.carried and "modified by an inplace operation" in str(error):
            self._raised = True
            carried = None if backward.line is None else self._lines.get(backward.line)
            if carried is not None and 0 < carried.times < _FEWEST:
                self._find_lines(carried, backward)

    def at_end(self, complete: bool) -> None:
        for carried in self._lines.values():
            enough = carried.most >= _FEWEST and (carried.steps > 0 or self.history.steps == 0)  # or updates by hand
            if not enough and not (self._raised and carried.times):
                continue
            wrong = self._raised or any(finding.key in _WRONG for finding in self.visit.found)
            self.report(
                "kept-state",
                "a state is carried over with its graph, so that backward goes through all earlier iterations",
                (*carried.made_by, carried.line),
                "it was not detached: the graph grows, each pass takes longer, and its older part was computed with "
                "parameters that steps have changed since",
                f"detach the state at the start of each iteration ({_detached(carried.name)}), and leave out "
                "retain_graph=True",
                max(carried.most, 1),
                Severity.ERROR if wrong else Severity.WARNING,
                _EXPLAINS,
            )


def _variables() -> Iterator[tuple[int, str]]:
    """The variables that hold the result of an op, by autograd's number of the node; the innermost wins."""
    for name, tensor in reversed(list(running_tensors())):
        with contextlib.suppress(RuntimeError):  # a view whose base was written to refuses to tell
            if tensor.grad_fn is not None:
                yield sequence_nr(tensor.grad_fn), name


def _detached(name: str) -> str:
    """How to detach what a variable holds: `state[0]` is in a list or tuple."""
    variable, _, key = name.partition("[")
    if key[:1].isdigit():
        return f"{variable} = tuple(each.detach() for each in {variable})"
    return f"{name or 'hidden'} = {name or 'hidden'}.detach()"
