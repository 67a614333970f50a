"""retain-graph: backward(retain_graph=True) for a graph that no later pass goes through."""

from __future__ import annotations

import linecache
import sys
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torchatlas.autograd.graph_walk import leaf_of
from torchatlas.capturing.frames import position_of, user_line
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Severity, Where

CallSite = tuple[CodeType, int] | None  # an instruction of the program: a line may ask for several passes


@dataclass(eq=False)
class RetainingCall:
    """The passes of one call site that retained their graphs."""

    line: Where
    times: int = 0
    needed: bool = False  # in at least one iteration: the last of a loop never needs it


class RunsAgain:
    """A hook on the nodes of a retained graph, which learns if one of them runs again."""

    def __init__(self, call: RetainingCall) -> None:
        self.call = call

    def __call__(self, *gradients: Any) -> None:
        self.call.needed = True


@diagnosis
class RetainGraph(Diagnosis):
    keys = ("retain-graph",)
    needs_the_end = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._calls: dict[CallSite, RetainingCall] = {}
        self._handles: list[tuple[weakref.ref[RunsAgain], list[Any]]] = []

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        if not backward.retains or error is not None or backward.line is None:
            return
        call = self._calls.setdefault(user_line(sys._getframe(1)), RetainingCall(backward.line))
        call.times += 1
        if call.needed:
            return
        hook = RunsAgain(call)
        nodes = [node for node in backward.nodes if leaf_of(node) is None]  # leaves serve the next graph as well
        self._handles = [(held, handles) for held, handles in self._handles if held() is not None]
        self._handles.append((weakref.ref(hook), [node.register_prehook(hook) for node in nodes]))

    def at_end(self, complete: bool) -> None:
        for _, handles in self._handles:
            for handle in handles:
                handle.remove()
        for site, call in self._calls.items():
            if complete and not call.needed:
                self.report(
                    "retain-graph",
                    f"retain_graph=True was not needed{self._which(site, call)}",
                    (call.line,),
                    "no later backward pass went through that graph, and the tensors it saved were kept all the same",
                    "leave it out: backward then frees memory as it goes",
                    call.times,
                    Severity.WARNING,
                )

    def _which(self, site: CallSite, call: RetainingCall) -> str:
        """The text of the call, if its line has several."""
        if site is None or sum(each.line == call.line for each in self._calls.values()) == 1:
            return ""
        code, instruction = site
        line, begin, end = position_of(code, instruction)
        text = linecache.getline(code.co_filename, line).encode()[begin:end].decode()
        return f" by {text}" if text else ""
