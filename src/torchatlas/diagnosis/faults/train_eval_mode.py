"""train-mode, eval-mode: dropout and batch norm are on while the model is evaluated, or off while it is trained."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.data_flow import reachable
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Where
from torchatlas.diagnosis.gradient_cuts import GradientCuts
from torchatlas.diagnosis.numeric_checks import tensors_in
from torchatlas.graph import Graph, Phase
from torchatlas.graph.columns import PHASES
from torchatlas.torch_private import functorch_depth

_DROPOUT = nn.modules.dropout._DropoutNd
_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_MOST_CALLS, _MOST_OF_A_LINE = 1_000, 20  # that are remembered
_MOST_PASSES = 10_000
_STEP = PHASES.index(Phase.OPTIMIZER)


@dataclass(eq=False)
class CalledModel:
    """A model that was called, without holding it."""

    name: str
    trained: bool = False
    storages: frozenset[int] = frozenset()  # of its parameters
    recording: int = 0  # in which they have these numbers


@dataclass(eq=False)
class ModelCall:
    """A call of a whole model in training mode."""

    model: CalledModel
    line: Where
    what: str  # what its layers did that behave differently in training
    inputs: tuple[weakref.ref[torch.Tensor], ...]  # an id could be another tensor's when that is gone
    steps: int  # that were taken before
    recording: int  # in which `results` have these numbers
    gradients: bool  # whether they were enabled: then it may have been made for a backward pass
    results: frozenset[int] = frozenset()  # storages
    repeated: bool = False

    def had(self, inputs: list[torch.Tensor]) -> bool:
        """True if it was given these tensors."""
        return len(inputs) == len(self.inputs) and all(
            reference() is tensor for reference, tensor in zip(self.inputs, inputs, strict=True)
        )


@diagnosis
class TrainEvalMode(Diagnosis):
    keys = ("train-mode", "eval-mode")
    needs_the_end = ("train-mode",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._judged: deque[ModelCall] = deque(maxlen=_MOST_CALLS)  # in training mode, without gradients
        self._with_gradients: dict[Where, deque[ModelCall]] = {}  # in training mode, with gradients, by line
        self._evaluations: dict[Where, list[ModelCall]] = {}  # by line, of old recordings: no backward pass used them
        self._other_lines: set[Where] = set()  # that have called a model for more than an evaluation
        self._before: ModelCall | None = None
        self._open: list[ModelCall | None] = []
        self._since_step: weakref.WeakKeyDictionary[nn.Module, list[tuple[bool, Where, str]]] = (
            weakref.WeakKeyDictionary()
        )
        self._models: weakref.WeakKeyDictionary[nn.Module, CalledModel] = weakref.WeakKeyDictionary()
        self._passes: deque[int] = deque(maxlen=_MOST_PASSES)  # autograd's numbers of what they began from
        self._stepped: dict[int, tuple[int, frozenset[int]]] = {}  # by optimizer: a recording, its storages in that

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        call = None
        gradients, line = torch.is_grad_enabled(), self.history.caller
        if line is None:
            return
        what = "" if module.training or not gradients else _differs(module, False)
        if gradients and (module.training or what):
            calls = self._since_step.setdefault(module, [])
            if not calls or not calls[-1][0]:  # one call in training mode is enough: no step is told of then
                calls.append((module.training, line, what))
        if module.training and functorch_depth() == 0 and (what := _differs(module, True)):
            inputs, model = list(tensors_in([args, kwargs])), self._model(module)
            seen = tuple(weakref.ref(tensor) for tensor in inputs)
            call = ModelCall(model, line, what, seen, self.history.steps, self.history.recordings, gradients)
            before, self._before = self._before, call
            if before is not None and (before.model, before.steps) == (model, call.steps) and before.had(inputs):
                call.repeated = before.repeated = True  # to see how much the results differ
        self._open.append(call)

    def _model(self, module: nn.Module) -> CalledModel:
        model = self._models.setdefault(module, CalledModel(type(module).__name__))
        if model.recording != self.history.recordings or not model.storages:  # lazy parameters have none at first
            model.storages, model.recording = self.history.storages_of(module.parameters()), self.history.recordings
        return model

    def module_returned(self, module: nn.Module, result: Any) -> None:
        call = self._open.pop() if self._open else None
        if call is not None:
            call.results = self.history.storages_of(tensors_in(result))
            if call.gradients:
                self._with_gradients.setdefault(call.line, deque(maxlen=_MOST_OF_A_LINE)).append(call)
            else:
                self._judged.append(call)

    def before_backward(self, backward: BackwardPass) -> None:
        self._passes += backward.root_numbers

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        with_gradients = {id(parameter) for parameter in parameters if parameter.grad is not None}
        if self._stepped.get(id(optimizer), (0,))[0] != self.history.recordings:
            storages = self.history.storages_of(parameter for parameter in parameters if parameter.grad is not None)
            self._stepped[id(optimizer)] = self.history.recordings, storages
        for module, calls in list(self._since_step.items()):
            if not any(id(parameter) in with_gradients for parameter in module.parameters()):
                continue
            self._model(module).trained = True
            del self._since_step[module]
            if calls and not any(training for training, _, _ in calls):
                _, line, what = calls[-1]
                self.report(
                    "eval-mode",
                    f"{type(module).__name__} was trained in eval mode",
                    (line,),
                    f"{what}, in a forward pass that a step followed",
                    "call model.train() before training, and again after each evaluation",
                )

    def recording_ends(self) -> None:
        # What came since the last step may have been made for the next: targets for a student, say.
        self._judge(self.history.steps)
        self._judged.clear()
        self._with_gradients.clear()

    def at_end(self, complete: bool) -> None:
        self._judge(self.history.steps + 1 if complete else self.history.steps)
        for line, calls in self._evaluations.items():
            if line not in self._other_lines:
                self._report(calls)

    def _judge(self, end: int) -> None:
        """Judge the calls of this recording that were made before step number `end`."""
        suspects = [call for call in self._judged if self._may_judge(call, end)]
        lines = {
            line: [call for call in calls if call.steps]  # before the first step, the loss to begin with is looked at
            for line, calls in self._with_gradients.items()
            if self._passes and calls[-1].steps  # without a pass, others have gradients of their own
        }
        if not suspects and not lines:
            return
        uses = ResultUses(self.history.graph, self._passes)
        trained = set().union(*(storages for of, storages in self._stepped.values() if of == self.history.recordings))
        models = {call.model for call in [*suspects, *(calls[-1] for calls in lines.values())]}
        judged = {model for model in models if model.trained or uses.is_copy(model.storages, trained)}
        self._report([call for call in suspects if call.model in judged and uses.only_looked_at(call.results)])
        for line, calls in lines.items():
            certain = all(self._may_judge(call, end) for call in self._with_gradients[line])
            if certain and all(uses.before_no_pass(call.results) for call in calls):
                self._evaluations.setdefault(line, []).extend(call for call in calls if call.model in judged)
            else:
                self._other_lines.add(line)

    def _report(self, calls: Iterable[ModelCall]) -> None:
        for call in calls:
            self.report(
                "train-mode",
                f"{call.model.name} was evaluated in training mode",
                (call.line,),
                f"{call.what}, as in training",
                "call model.eval() before evaluation and model.train() after it",
            )

    def _may_judge(self, call: ModelCall, end: int) -> bool:
        return (
            not call.repeated and bool(call.results) and call.recording == self.history.recordings and call.steps < end
        )


def _differs(module: nn.Module, training: bool) -> str:
    """What the layers in this mode that behave differently in training have done; empty if there are none."""
    parts = [part for part in module.modules() if part.training is training]
    dropouts = {type(part).__name__ for part in parts if isinstance(part, _DROPOUT) and part.p > 0}
    norms = {type(part).__name__ for part in parts if isinstance(part, _BATCH_NORM) and part.track_running_stats}
    dropped = "dropped units at random" if training else "dropped nothing"
    normalised = "used the statistics of the batch" if training else "used running statistics and did not update them"
    done = [(dropouts, dropped), (norms, normalised)]
    return ", and ".join(f"its {', '.join(sorted(names))} {what}" for names, what in done if names)


class ResultUses(GradientCuts):
    """What became of the results of models, and where parameters of models came from, read from a recording."""

    def __init__(self, graph: Graph, passes: Iterable[int]) -> None:
        super().__init__(graph)
        self._passes = passes

    def only_looked_at(self, storages: Collection[int]) -> bool:
        """True if something was computed from a result, and nothing of that went into a graph of autograd."""
        _, users = self._makers_and_users(storages)
        return bool(users) and not any(self.has_node[node] for node in self.after(users))

    def before_no_pass(self, storages: Collection[int]) -> bool:
        """True if something was computed from a result, and no backward pass or step saw that, not even as data, nor
        what the result was made of: a loss may be of what hooks have kept."""
        makers, users = self._makers_and_users(storages)
        after = self.after(users)
        stepped = any(self.graph.columns["node_phase"][node] == _STEP for node in after)
        return bool(users) and not stepped and self._before_passes.isdisjoint(self._graph_of(makers) | after)

    def is_copy(self, storages: Collection[int], trained: Collection[int]) -> bool:
        """True if the numbers in some storages are those of others, or averages of them, as the parameters of a copy
        are."""
        columns = self.graph.columns
        taken = np.isin(columns["value_storage"][columns["input_value"]], list(trained))
        from_trained = set(self.graph.index.node_of_input[taken].tolist())
        makers = (node for node in self.writers(storages) if node >= 0)
        ends = self.has_node
        behind = reachable(makers, lambda node: () if ends[node] or node in from_trained else self.before_op(node))
        return any(node in from_trained and not ends[node] for node in behind)

    @cached_property
    def _before_passes(self) -> set[int]:
        return self.before(self.makers(self._passes))

    def _makers_and_users(self, storages: Collection[int]) -> tuple[set[int], set[int]]:
        columns, makers = self.graph.columns, self.writers(storages)
        values = np.flatnonzero(np.isin(columns["value_storage"], list(storages)))
        takers = self.graph.index.node_of_input[np.isin(columns["input_value"], values)]
        return makers, set(takers.tolist()) - makers

    def _graph_of(self, nodes: set[int]) -> set[int]:
        """These ops, and those behind them that have nodes of autograd, back to the leaves."""
        return reachable(
            (node for node in nodes if node >= 0),
            lambda node: [each for each in self.before_op(node) if self.has_node[each]],
        )
