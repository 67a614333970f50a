"""backward(retain_graph=True) for a graph that no later pass goes through."""

from __future__ import annotations

import linecache
import sys
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torchatlas.autograd.walk import leaf_of
from torchatlas.capturing.frames import position_of, user_line
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Severity, Where

Asked = tuple[CodeType, int] | None  # a place in the program: a line may ask for several passes


@dataclass(eq=False)
class Retains:
    """The passes that one place in the program asked for, and kept the graphs of."""

    line: Where
    times: int = 0
    needed: bool = False  # in some turn of a loop: the last one needs it as little as others do


class Token:
    """Hangs on the nodes of a retained graph and learns if one of them runs again."""

    def __init__(self, place: Retains) -> None:
        self.place = place

    def __call__(self, *gradients: Any) -> None:
        self.place.needed = True


@diagnosis
class RetainGraph(Diagnosis):
    keys = ("retain-graph",)
    whole = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._places: dict[Asked, Retains] = {}
        self._handles: list[tuple[weakref.ref[Token], list[Any]]] = []

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        if not found.retains or error is not None or case.line is None:
            return
        place = self._places.setdefault(user_line(sys._getframe(1)), Retains(case.line))
        place.times += 1
        if place.needed:
            return
        token = Token(place)
        nodes = [node for node in found.nodes if leaf_of(node) is None]  # those of leaves serve the next graph as well
        self._handles = [(held, handles) for held, handles in self._handles if held() is not None]
        self._handles.append((weakref.ref(token), [node.register_prehook(token) for node in nodes]))

    def at_end(self, complete: bool) -> None:
        for _, handles in self._handles:
            for handle in handles:
                handle.remove()
        for asked, place in self._places.items():
            if complete and not place.needed:
                self.visit.report(
                    Finding(
                        "retain-graph",
                        f"retain_graph=True was not needed{self._which(asked, place)}",
                        (place.line,),
                        "no later backward pass went through that graph, and what it saved was kept all the same",
                        "leave it out: memory is freed as backward goes",
                        place.times,
                        severity=Severity.WARNING,
                    )
                )

    def _which(self, asked: Asked, place: Retains) -> str:
        """Of those that one line has."""
        if asked is None or sum(other.line == place.line for other in self._places.values()) == 1:
            return ""
        code, instruction = asked
        line, begin, end = position_of(code, instruction)
        text = linecache.getline(code.co_filename, line).encode()[begin:end].decode()
        return f" by {text}" if text else ""
