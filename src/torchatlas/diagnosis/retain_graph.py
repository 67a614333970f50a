"""backward(retain_graph=True) for a graph that no later pass goes through."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from torchatlas.autograd.walk import leaf_of
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where


class Token:
    """Hangs on the nodes of a retained graph and learns if one of them runs again."""

    def __init__(self, line: Where, needed: dict[Where, bool]) -> None:
        self.line, self.needed = line, needed

    def __call__(self, *gradients: Any) -> None:
        self.needed[self.line] = True


@diagnosis
class RetainGraph(Diagnosis):
    keys = ("retain-graph",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._needed: dict[Where, bool] = {}  # by line: the last turn of a loop needs it as little as the others do
        self._times: Counter[Where] = Counter()
        self._handles: list[tuple[weakref.ref[Token], list[Any]]] = []

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        if not found.retains or error is not None or case.line is None:
            return
        self._needed.setdefault(case.line, False)
        self._times[case.line] += 1
        if self._needed[case.line]:
            return
        token = Token(case.line, self._needed)
        nodes = [node for node in found.nodes if leaf_of(node) is None]  # those of leaves serve the next graph as well
        self._handles = [(held, handles) for held, handles in self._handles if held() is not None]
        self._handles.append((weakref.ref(token), [node.register_prehook(token) for node in nodes]))

    def at_end(self, complete: bool) -> None:
        for _, handles in self._handles:
            for handle in handles:
                handle.remove()
        for line, needed in self._needed.items():
            if complete and not needed:
                self.visit.report(
                    Finding(
                        "retain-graph",
                        "retain_graph=True was not needed",
                        (line,),
                        "no later backward pass went through that graph, and what it saved was kept all the same",
                        "leave it out: memory is freed as backward goes",
                        self._times[line],
                    )
                )
