"""Parameters that get gradients and are in no optimizer that steps; those of an optimizer that get none."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, some
from torchatlas.diagnosis.leaves import Leaf
from torchatlas.diagnosis.no_gradient import Functions, only_zeros, without_gradient
from torchatlas.diagnosis.not_finite import plain
from torchatlas.torch_private import unobserved

_FEWEST_STEPS = 2
_MOST_PASSES = 1_000


@diagnosis
class Trained(Diagnosis):
    """Looks at the end: a branch that is not taken every time gets its gradients another time."""

    keys = ("optimizer-misses", "no-gradient")

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._reached: dict[Leaf, None] = {}  # of models
        self._perhaps: set[Leaf] = set()  # behind a loss, and not asked for a gradient
        self._stepped: dict[Leaf, None] = {}
        self._optimizers: list[tuple[set[Leaf], Where]] = []
        self._stand_ins: set[Leaf] = set()  # in the place of parameters while they are used, as FSDP has them
        self._empty: dict[Where, list[bool]] = {}  # of each step's line: whether it found no gradient after a pass
        self._now: tuple[Where, bool] | None = None  # the same of the step that runs
        self._passes = 0  # since the last step
        self._came: dict[Leaf, tuple[int, bool]] = {}  # of these: the last to a leaf, and whether it was not zero there
        self._roots: deque[int] = deque(maxlen=_MOST_PASSES)  # of backward passes, the latest: autograd's numbers
        self._in_pass: dict[int, Leaf] = {}  # the leaves of the pass that runs, by the node that adds to their gradient
        self._functions = Functions()

    def op_ran(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not self._in_pass and not torch.is_grad_enabled() and not self.visit.in_step:
            self._functions.op_ran()

    def before_backward(self, case: Case, found: Pass) -> None:
        self._now = None  # if a step runs, its closure asks for this pass, and what was there before does not count
        if not found.accumulates:
            return
        self._passes += 1
        self._roots += [sequence_nr(loss.grad_fn) for loss in found.losses if loss.grad_fn is not None]
        tensors = {number: leaf_of(node) for number, node in enumerate(found.nodes)}
        self._in_pass = {number: self.visit.leaf(leaf) for number, leaf in tensors.items() if leaf is not None}
        self._functions.pass_begins(found.nodes)

    def node_runs(self, found: Pass, node: int, gradients: Any) -> None:
        self._functions.node_runs(node, gradients)
        leaf = self._in_pass.get(node)
        there = [gradient for gradient in gradients if gradient is not None]
        if leaf is None or not there:
            return
        self._reaches(leaf)
        moves = any(map(_moves, there))
        leaf.moved, leaf.zero = leaf.moved or moves, leaf.zero or not moves
        self._came[leaf] = self._passes, moves

    def _reaches(self, leaf: Leaf) -> None:
        leaf.reached = True
        if leaf.of_module:
            self._reached.setdefault(leaf)

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        missing = {number: leaf for number, leaf in self._in_pass.items() if not leaf.reached}
        self._in_pass = {}
        stopped = self._functions.pass_ends(found.nodes, missing)
        self._perhaps |= {leaf for leaf in missing.values() if leaf not in stopped}

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        leaves = {self.visit.leaf(parameter): parameter for parameter in parameters}
        line = self.visit.line("step")
        self._optimizers = [entry for entry in self._optimizers if entry[0] != leaves.keys()]
        self._optimizers.append((set(leaves), line))
        if self._passes:
            self._now = line, self._emptied(leaves)
        for leaf, parameter in leaves.items():
            leaf.storage = self.visit.storage_of(parameter)
            self._stepped.setdefault(leaf)
            if parameter.grad is not None:  # whoever put it there
                self._reaches(leaf)
                leaf.moved = leaf.moved or (leaf.zero and _moves(parameter.grad))
        self._stand_ins |= {leaf for leaf in self._reached if leaf not in self._stepped and self._is_stand_in(leaf)}

    def _emptied(self, leaves: dict[Leaf, torch.Tensor]) -> bool:
        """Whether backward has made gradients for a step that now finds none, or zeros.

        The last pass decides: the one before may have been another model's, whose gradients here are rightly emptied.
        """
        _, made = max((self._came[leaf] for leaf in leaves if leaf in self._came), default=(0, False))
        gradients = [parameter.grad for parameter in leaves.values()]
        return made and not any(_moves(gradient) for gradient in gradients if gradient is not None)

    def _is_stand_in(self, leaf: Leaf) -> bool:
        """Whether its module has another parameter in its place by now, which was given a gradient and takes steps."""
        registered = leaf.registered()
        return registered is not None and registered.grad is not None and self.visit.leaf(registered) in self._stepped

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self._passes, self._came = 0, {}  # also those of a closure: they were for the step that asked for them
        if self._now is not None:
            line, emptied = self._now
            self._empty.setdefault(line, []).append(emptied)
            self._now = None

    def at_end(self, complete: bool) -> None:
        if not self._optimizers or not complete:
            return
        missed = [
            leaf
            for leaf in self._reached
            if leaf not in self._stepped and leaf not in self._stand_ins and leaf.requires_grad
        ]
        idle = [
            leaves
            for leaves, _ in self._optimizers
            if not any(leaf.reached or leaf in self._perhaps for leaf in leaves)
        ]
        if missed and any(leaf.of_module for leaf in self._stepped):
            self._report_missed([leaf.name for leaf in sorted(missed, key=lambda leaf: leaf.number)], bool(idle))
        missing = [
            leaf
            for leaf in self._stepped
            if not leaf.reached and leaf not in self._perhaps and leaf.requires_grad
            if not (missed and _replaced(leaf, idle))
        ]
        case = Case(
            [],
            None,
            lambda: self.visit.graph,
            self.visit.storage_of,
            self._optimizers[-1][1],
            caller_of=self.visit.caller_of,
            whole=self.visit.recordings == 1,
        )
        zeros = [(leaf.name, leaf.storage) for leaf in self._stepped if leaf.of_module and leaf.zero and not leaf.moved]
        cut = [(leaf.name, leaf.storage) for leaf in missing if leaf not in self._functions.stopped]
        for finding in self._functions.findings(missing):
            self.visit.report(finding)
        for finding in without_gradient(case, cut, self._roots):
            self.visit.report(finding)
        for finding in only_zeros(case, zeros, self._roots):
            self.visit.report(finding)
        for line, empty in self._empty.items():
            if len(empty) >= _FEWEST_STEPS and all(empty):
                self._report_empty(line, len(empty))

    def _report_empty(self, line: Where, times: int) -> None:
        self.visit.report(
            Finding(
                "no-gradient",
                "every step found no gradient at all, or only zeros",
                (line,),
                "backward made them, and something has emptied them before the step: zero_grad() in between",
                "zero_grad(), backward(), step(): in this order",
                times,
            )
        )

    def _report_missed(self, names: list[str], idle: bool) -> None:
        one = len(set(names)) == 1
        self.visit.report(
            Finding(
                "optimizer-misses",
                f"{some(names)} {'gets' if one else 'get'} gradients, and no optimizer takes a step with them",
                tuple(line for _, line in self._optimizers),
                "the optimizer holds other parameters than the model: one from before, or a copy"
                if idle
                else f"{'it was' if one else 'they were'} not among the parameters that the optimizer was given: made "
                "later, or in a plain list or dict",
                "make the optimizer after the model is complete, from model.parameters(), with modules in an "
                "nn.ModuleList and parameters in an nn.ParameterList; or freeze "
                f"{'it' if one else 'them'} with requires_grad_(False)",
            )
        )


def _replaced(leaf: Leaf, idle: list[set[Leaf]]) -> bool:
    """Whether it belongs to a model, or a part of one, in whose place there is another now."""
    return not leaf.of_module or any(leaf in leaves for leaves in idle)


def _moves(gradient: torch.Tensor) -> bool:
    """Whether it is not zero everywhere; those that cannot be asked (sparse, nested, meta ...) are taken not to be."""
    if not plain(gradient):
        return True
    with unobserved():
        return bool(gradient.sum().item() != 0 or gradient.any())  # a sum takes a tenth of the time
