"""optimizer-misses, no-gradient: parameters that get gradients and are in no optimizer that steps, and parameters of an
optimizer that get none."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.op_listening import Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.custom_functions import CustomFunctions
from torchatlas.diagnosis.empty_optimizer import empty_optimizer
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.faults.loss_without_grad import lines_of_new_loss
from torchatlas.diagnosis.faults.no_gradient import (
    gradient_of_result,
    made_anew,
    no_pass,
    only_zeros,
    parameters_without_gradient,
    stopped_by_functions,
    without_gradient,
)
from torchatlas.diagnosis.findings import Finding, Severity, Where, some
from torchatlas.diagnosis.gradient_cuts import GradientCuts
from torchatlas.diagnosis.leaf_tensors import Leaf, NamedModel
from torchatlas.diagnosis.loss_graph import LossGraph
from torchatlas.diagnosis.numeric_checks import is_zero

_FEWEST_STEPS = 2
_MOST_PASSES = 1_000
_FEW = 0.25  # numbers that are trained, of those that are not


@diagnosis
class TrainedParameters(Diagnosis):
    """Judges at the end: a branch that is not taken every time gets its gradients another time."""

    keys = ("optimizer-misses", "no-gradient")
    needs_the_end = keys
    loss_keys = ("no-gradient",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._reached: dict[Leaf, None] = {}  # of models
        self._perhaps: set[Leaf] = set()  # behind a loss, and not asked for a gradient
        self._stepped: dict[Leaf, None] = {}
        self._optimizers: list[tuple[set[Leaf], Where]] = []
        self._stand_ins: set[Leaf] = set()  # in the place of parameters while they are used, as FSDP has them
        self._empty: dict[Where, list[int]] = {}  # by the step's line: steps after a pass, and those without gradients
        self._now: tuple[Where, bool] | None = None  # the step that runs: its line, and whether it has no gradient
        self._passes = 0  # since the last step
        self._came: dict[Leaf, tuple[int, bool]] = {}  # the last of these to reach a leaf; True if it was not zero
        self._roots: deque[int] = deque(maxlen=_MOST_PASSES)  # of backward passes, the latest: autograd's numbers
        self._in_pass: dict[int, Leaf] = {}  # the leaves of the pass that runs, by the node that adds to their gradient
        self._settled: set[Leaf] = set()  # with which a step has found gradients that were not zero: no hook any more
        self._functions = CustomFunctions()
        self._returned = False  # whether gradients were asked for that are not added to .grad
        self._passed = 0  # passes in all that are
        self._anew: dict[Where | None, list[Where]] = {}  # passes that began and ended at the loss: line -> why
        self._called: weakref.WeakKeyDictionary[nn.Module, Called] = weakref.WeakKeyDictionary()
        self._called_for: dict[Leaf, list[Called]] = {}  # of parameters that no optimizer has
        self._found: list[Finding] = []
        self._open: frozenset[Leaf] = frozenset()  # that `_found` is about

    @staticmethod
    def check_loss(loss: LossGraph) -> Iterable[Finding]:
        return parameters_without_gradient(loss)

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        called = self._called.setdefault(module, Called())
        if torch.is_grad_enabled():
            called.with_gradients += 1
            called.trains = called.trains and module.training
        else:
            called.without += 1

    def wants(self, plan: Plan) -> Wants:
        return Wants.FIRST_WITHOUT_GRADIENTS

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        if not self._in_pass and not torch.is_grad_enabled() and not self.history.in_step:
            self._functions.op_ran()

    def before_backward(self, backward: BackwardPass) -> None:
        self._now = None  # if a step runs, its closure asks for this pass, and what was there before does not count
        self._returned = self._returned or not backward.accumulates
        if not backward.accumulates:
            return
        self._passes, self._passed = self._passes + 1, self._passed + 1
        self._roots += backward.root_numbers
        self._in_pass = {number: self.history.leaf(leaf) for number, leaf in backward.leaves.items()}
        if backward.line not in self._anew and not any(leaf.of_module for leaf in self._in_pass.values()):
            losses = [loss for loss in backward.losses if loss.requires_grad]
            lost = [line for loss in losses for line in lines_of_new_loss(backward, loss)]
            self._anew |= {backward.line: lost} if lost else {}
        self._functions.pass_begins(backward.kinds)

    def nodes_wanted(self, backward: BackwardPass) -> Iterable[int]:
        if self._functions.in_pass:
            return range(len(backward.nodes))
        return [node for node, leaf in self._in_pass.items() if leaf not in self._settled]

    def node_runs(self, backward: BackwardPass, node: int, gradients: Any) -> None:
        self._functions.node_runs(node, gradients)
        leaf = self._in_pass.get(node)
        there = [gradient for gradient in gradients if gradient is not None]
        if leaf is None or leaf in self._settled or not there:
            return
        self._reaches(leaf)
        moves = not all(map(is_zero, there))
        leaf.moved, leaf.zero = leaf.moved or moves, leaf.zero or not moves
        self._came[leaf] = self._passes, moves

    def _reaches(self, leaf: Leaf) -> None:
        if not leaf.reached:
            leaf.reached, leaf.since = True, self.history.steps
        if leaf.of_module:
            self._reached.setdefault(leaf)

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        missing = {number: leaf for number, leaf in self._in_pass.items() if not leaf.reached}
        self._in_pass = {}
        stopped = self._functions.pass_ends(backward, missing)
        self._perhaps |= {leaf for leaf in missing.values() if leaf not in stopped}

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        leaves = {self.history.leaf(parameter): parameter for parameter in parameters}
        line = self.history.step_line
        self._optimizers = [entry for entry in self._optimizers if entry[0] != leaves.keys()]
        self._optimizers.append((set(leaves), line))
        if self._passes:
            self._judge_step(line, leaves)
        for leaf, parameter in leaves.items():
            leaf.storage = self.history.storage_of(parameter)
            self._stepped.setdefault(leaf)
            if parameter.grad is not None:  # whoever put it there
                self._reaches(leaf)
                leaf.moved = leaf.moved or (leaf.zero and not is_zero(parameter.grad))
            elif not leaf.reached and not leaf.listed:
                leaf.replaced = isinstance(parameter, nn.Parameter) and leaf.registered() is not parameter
        others = [(leaf, leaf.reference()) for leaf in self._reached if leaf not in self._stepped]
        missed = {leaf: tensor for leaf, tensor in others if tensor is not None}
        self._stand_ins |= {leaf for leaf, _ in others if self._is_stand_in(leaf)}
        self._look_at(missed)

    def _judge_step(self, line: Where, leaves: dict[Leaf, torch.Tensor]) -> None:
        """Note whether a step finds the gradients that backward has made for it. One line that did so once is settled.

        The gradients of settled leaves are not watched. When they come to another line, they are taken to have been
        made, as they always were, and are watched from then on: a fault shows at two steps at least.
        """
        steps, empty = self._empty.get(line, (0, 0))
        if empty < steps:
            self._settled.update(leaf for leaf in leaves if leaf.moved)
        else:
            self._now = line, self._emptied(leaves)
            self._settled.difference_update(leaves)

    def _look_at(self, missed: dict[Leaf, torch.Tensor]) -> None:
        """Note the storages and the calls of parameters that no optimizer has, while they are there."""
        for leaf, tensor in missed.items():
            leaf.storage = self.history.storage_of(tensor)
        new = {id(tensor): leaf for leaf, tensor in missed.items() if leaf not in self._called_for}
        self._called_for |= {leaf: [] for leaf in new.values()}
        for module, called in self._called.items() if new else ():
            for parameter in module.parameters():
                if id(parameter) in new:
                    self._called_for[new[id(parameter)]].append(called)

    def _emptied(self, leaves: dict[Leaf, torch.Tensor]) -> bool:
        """True if backward has made gradients for a step that now finds none, or zeros.

        The last pass decides: the one before may have been another model's, whose gradients here are rightly emptied.
        """
        _, made = max((self._came[leaf] for leaf in leaves if leaf in self._came), default=(0, False))
        made = made or not self._settled.isdisjoint(leaves)
        gradients = [parameter.grad for parameter in leaves.values()]
        return made and all(is_zero(gradient) for gradient in gradients if gradient is not None)

    def _is_stand_in(self, leaf: Leaf) -> bool:
        """True if its module has another parameter in its place by now, which was given a gradient and takes steps."""
        registered = leaf.registered()
        return registered is not None and registered.grad is not None and self.history.leaf(registered) in self._stepped

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self._passes, self._came = 0, {}  # also those of a closure: they were for the step that asked for them
        if self._now is not None:
            line, emptied = self._now
            counts = self._empty.setdefault(line, [0, 0])
            counts[0], counts[1] = counts[0] + 1, counts[1] + emptied
            self._now = None

    def recording_ends(self) -> None:
        self._judge()

    def at_end(self, complete: bool) -> None:
        if not complete:
            if (error := self.visit.error) is not None:
                finding = gradient_of_result(error, self.history) or empty_optimizer(error)
                if finding is not None:
                    self.visit.report(finding)
            return
        before, findings = self._open, self._found
        if self.history.steps_recorded >= _FEWEST_STEPS or before != self._suspects():
            self._judge()
            findings = self._found
        for finding in findings:
            self.visit.report(finding)

    def _suspects(self) -> frozenset[Leaf]:
        """The leaves that something is wrong with, as far as can be told without the recording."""
        missing = {leaf for leaf in self._stepped if not leaf.reached or (leaf.zero and not leaf.moved)}
        return frozenset(missing.union(self._missed()))

    def _missed(self) -> list[Leaf]:
        """The parameters that get gradients and that no optimizer has."""
        return [leaf for leaf in self._reached if leaf not in self._stepped and leaf not in self._stand_ins]

    def _judge(self) -> None:
        self._found, self._open = [], self._suspects()
        if not self._optimizers:
            return
        missed = [leaf for leaf in self._missed() if leaf.requires_grad]
        idle = [
            leaves
            for leaves, _ in self._optimizers
            if not any(leaf.reached or leaf in self._perhaps for leaf in leaves)
        ]
        program = LossGraph([], self.history)
        if missed and any(leaf.of_module for leaf in self._stepped):
            self._judge_missed(program, sorted(missed, key=lambda leaf: leaf.number), bool(idle))
        missing = [
            leaf
            for leaf in self._stepped
            if not leaf.reached and leaf not in self._perhaps and leaf.requires_grad
            if not (missed and _replaced(leaf, idle))
        ]
        judged: set[Leaf] = set()
        for leaves, line in self._optimizers:  # each parameter with the step that would change it
            own = [leaf for leaf in missing if leaf in leaves and leaf not in judged]
            judged.update(own)
            if own:
                self._judge_missing(LossGraph([], self.history, line), own, any(leaf.reached for leaf in leaves))
        zeros = [(leaf.name, leaf.storage) for leaf in self._stepped if leaf.of_module and leaf.zero and not leaf.moved]
        self._found += only_zeros(program, zeros, self._roots)
        for line, (steps, empty) in self._empty.items():
            if empty >= _FEWEST_STEPS and empty == steps:
                self._report_empty(line, steps)

    def _report_empty(self, line: Where, times: int) -> None:
        self._found.append(
            Finding(
                "no-gradient",
                "every step found no gradient at all, or only zeros",
                (line,),
                "backward made them, and something has emptied them before the step: zero_grad() in between",
                "call zero_grad(), backward() and step() in this order",
                times,
            )
        )

    def _judge_missing(self, program: LossGraph, missing: list[Leaf], others: bool) -> None:
        """Judge parameters of one optimizer that get no gradient; `others` of it may get some."""
        names = [leaf.name for leaf in missing]
        if not others and not self._passed and program.line is not None:
            self._found.append(no_pass(names, program.line, self._returned))
        elif not others and self._anew:
            self._found.append(made_anew(names, next(iter(self._anew.values()))))
        else:
            cut = [(leaf.name, leaf.storage) for leaf in missing if leaf not in self._functions.stopped]
            self._found += stopped_by_functions(self._functions.stopped, missing)
            self._found += without_gradient(program, cut, self._roots, others)

    def _judge_missed(self, program: LossGraph, missed: list[Leaf], idle: bool) -> None:
        """Judge parameters that no optimizer has. A net that is fixed on purpose gets gradients as well: a teacher, a
        loss network, what is before a head.

        It is a mistake if the optimizer holds what nobody uses, if the part is in a plain list or came later, or if
        parts that are nearer to the input are trained, and most of the model is.
        """
        mistakes = missed
        if not idle and not any(leaf.replaced and not leaf.reached for leaf in self._stepped):
            trained = [leaf for leaf in self._stepped if leaf.reached]
            models = {leaf.model for leaf in trained if leaf.model is not None}
            mistakes = [leaf for leaf in missed if leaf.model in models and (leaf.listed or leaf.since)]
            left = [leaf for leaf in missed if leaf not in mistakes]
            behind = _behind(program, left, trained) if left else []
            mistakes += [leaf for leaf in behind if leaf.model in models and not _few(leaf.model, trained, left)]
            forgotten = [leaf for leaf in behind if leaf.model not in models and self._is_used_as_trained(leaf)]
            if forgotten and not mistakes:
                self._report_missed(forgotten, *_FORGOTTEN, Severity.WARNING)
        if mistakes:
            self._report_missed(sorted(mistakes, key=lambda leaf: leaf.number), *(_REPLACED if idle else _NOT_GIVEN))

    def _is_used_as_trained(self, leaf: Leaf) -> bool:
        """True if a whole model runs in training mode, once for every pass. A loss network runs on two images; or on
        one, and has run on the other before."""
        calls = self._called_for.get(leaf, [])
        return bool(calls) and all(
            called.trains and called.with_gradients == self._passed and 2 * called.without < self._passed
            for called in calls
        )

    def _report_missed(self, missed: list[Leaf], why: str, fix: str, severity: Severity = Severity.ERROR) -> None:
        names = [leaf.name for leaf in missed]
        single = len(set(names)) == 1
        self._found.append(
            Finding(
                "optimizer-misses",
                f"{some(names)} {'gets' if single else 'get'} gradients, and no optimizer takes a step with them",
                tuple(line for _, line in self._optimizers),
                why.format(they_were="it was" if single else "they were"),
                fix.format(them="it" if single else "them"),
                severity=severity,
            )
        )


_FORGOTTEN = (
    "no optimizer holds any part of this model, which runs in training mode after one that is trained",
    "give its parameters to the optimizer, too: [*a.parameters(), *b.parameters()]; if it is fixed on purpose, say so: "
    "model.eval().requires_grad_(False), which saves time and memory",
)
_MAKE_IT_LATER = (
    "make the optimizer after the model is complete, from model.parameters(), with modules in an nn.ModuleList and "
    "parameters in an nn.ParameterList; or freeze {them} with requires_grad_(False)"
)
_REPLACED = (
    "the optimizer holds other parameters than the model: those of an earlier model, or of a copy",
    _MAKE_IT_LATER,
)
_NOT_GIVEN = (
    "{they_were} not among the parameters that the optimizer was given: made later, or in a plain list or dict",
    _MAKE_IT_LATER,
)


@dataclass
class Called:
    """How often a model was called, and how."""

    with_gradients: int = 0
    without: int = 0
    trains: bool = True  # in training mode, each time with gradients


def _behind(program: LossGraph, missed: list[Leaf], trained: list[Leaf]) -> list[Leaf]:
    """Those of `missed` that lie between trained parameters and the loss."""
    if program.forward is None:
        return []
    cuts = GradientCuts(program.forward)
    if not any(cuts.users(leaf.storage) for leaf in trained):  # others stand in for them: the order of layers tells
        first = {leaf.model: leaf.number for leaf in reversed(trained)}
        return [leaf for leaf in missed if leaf.number > first.get(leaf.model, leaf.number)]
    after = cuts.behind(leaf.storage for leaf in trained if leaf.of_module)
    return [leaf for leaf in missed if not after.isdisjoint(cuts.users(leaf.storage))]


def _few(model: NamedModel | None, trained: list[Leaf], missed: list[Leaf]) -> bool:
    """True if little of a model is trained, on purpose: a prompt, biases, or adapters in each of several layers."""
    trained = [leaf for leaf in trained if leaf.model is model]
    missed = [leaf for leaf in missed if leaf.model is model]
    prefixes = {prefix for leaf in trained for prefix in _prefixes(leaf.path)}
    parents = {next(prefix for prefix in _prefixes(leaf.path) if prefix in prefixes) for leaf in missed}
    share = sum(leaf.size for leaf in trained) / max(sum(leaf.size for leaf in missed), 1)
    return share < _FEW or (share < 1 and len(parents) > 1)


def _prefixes(path: str) -> list[str]:
    """The paths of the modules that a parameter is in, the innermost first; the model's own is empty."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, -1, -1)]


def _replaced(leaf: Leaf, idle: list[set[Leaf]]) -> bool:
    """True if a leaf belongs to a model, or a part of one, that was replaced."""
    return not leaf.of_module or any(leaf in leaves for leaves in idle)
