"""The program's own autograd Functions: which lines apply them, and for which leaves their backward returns None."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torchatlas.autograd.graph_walk import sequence_nr
from torchatlas.capturing.frames import is_users, user_line
from torchatlas.capturing.table_rows import source_row
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.data_flow import reachable
from torchatlas.diagnosis.leaf_tensors import Leaf
from torchatlas.graph import SourceLine
from torchatlas.torch_private import FunctionNode, applying_frames, next_sequence_nr

_MOST_APPLIED = 100_000  # Functions whose lines are remembered: what was applied long ago has no backward pass any more
Applied = tuple[type, SourceLine | None]  # a Function, and the line that applied it


class CustomFunctions:
    """Told of ops and of backward passes. `stopped` are the leaves that got no gradient, and the Functions to blame."""

    def __init__(self) -> None:
        self.stopped: dict[Leaf, list[Applied]] = {}
        self._lines: dict[int, SourceLine] = {}  # that applied Functions, by autograd's number of the node
        self._latest = -1  # number of the node at which `op_ran` last looked
        self._got_gradient: dict[int, bool] | None = None  # by place, of the nodes of the pass that have run

    def op_ran(self) -> None:
        """Remember the line that applied the Function in whose forward this op ran, if it did.

        The node of a Function is made before its forward runs, and without gradients nothing makes another one: the
        latest is its own. While the latest stays the same, so does the answer; an evaluation asks once.
        """
        number = next_sequence_nr() - 1
        if number == self._latest:
            return
        self._latest = number
        for frame in applying_frames(sys._getframe(1)):
            if (line := user_line(frame)) is not None:
                self._lines.setdefault(number, source_row(*line))
            number -= 1  # of a Function that applied this one first of all
        while len(self._lines) > _MOST_APPLIED:
            del self._lines[next(iter(self._lines))]

    def pass_begins(self, kinds: Iterable[type]) -> None:
        """A backward pass through nodes of some kinds begins."""
        self._got_gradient = {} if any(_function(kind) is not None for kind in kinds) else None

    @property
    def in_pass(self) -> bool:
        """True if the pass that runs goes through a Function of the program's."""
        return self._got_gradient is not None

    def node_runs(self, node: int, gradients: Iterable[Any]) -> None:
        if self._got_gradient is not None:
            self._got_gradient[node] = any(gradient is not None for gradient in gradients)

    def pass_ends(self, backward: BackwardPass, missing: Mapping[int, Leaf]) -> set[Leaf]:
        """The leaves of `missing`, by the places of their nodes, that got None because of such Functions alone."""
        got, self._got_gradient = self._got_gradient or {}, None
        missing = {number: leaf for number, leaf in missing.items() if got.get(number) is False}
        if not missing:
            return set()

        def without(node: int) -> list[int]:
            """The targets of a node that ran, too, and got no gradient."""
            return [target for target in backward.targets[node] if got.get(target) is False]

        last: dict[Applied, set[int]] = {}  # Functions that got a gradient -> the nodes to which they passed none
        others: set[int] = set()  # the nodes to which a node that is not the program's passed none on
        for number, came in got.items():
            if came and (to := without(number)):
                node = backward.nodes[number]
                function, line = _function(type(node)), self._lines.get(sequence_nr(node))
                (others if function is None else last.setdefault((function, line), set())).update(to)
        others = reachable(others, without)
        stopped: dict[Leaf, list[Applied]] = {}
        for applied, first in last.items():  # each walks the graph once; they are as few as the lines of the program
            behind = reachable(first, without) - others
            for number, leaf in missing.items():
                if number in behind:
                    stopped.setdefault(leaf, []).append(applied)
        self.stopped |= stopped
        return set(stopped)


def _function(kind: type) -> type | None:
    """The program's Function that nodes of a kind belong to."""
    function: Any = getattr(kind, "_forward_cls", None) if issubclass(kind, FunctionNode) else None
    module = sys.modules.get(getattr(function, "__module__", ""))
    return function if function is not None and is_users(getattr(module, "__file__", None) or "") else None
