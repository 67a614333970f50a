"""Dropout and batch normalisation that train while the model is judged, or rest while it is trained."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where
from torchatlas.diagnosis.not_finite import tensors_in
from torchatlas.graph import Graph

_DROPOUT = nn.modules.dropout._DropoutNd
_BATCH_NORM = nn.modules.batchnorm._BatchNorm


@dataclass(eq=False)
class Model:
    """A model that was called, without holding it."""

    name: str
    trained: bool = False


@dataclass(eq=False)
class Call:
    """A call of a whole model."""

    model: Model
    line: Where
    what: str  # the layers that behave differently in training
    inputs: tuple[int, ...]  # the tensors that it was given, by id
    steps: int  # that were taken before
    recording: int  # the storages of another are others
    results: list[int] = field(default_factory=list)  # storages
    repeated: bool = False


@diagnosis
class Modes(Diagnosis):
    keys = ("train-mode", "eval-mode")

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._judged: list[Call] = []  # in training mode, without gradients
        self._open: list[Call | None] = []
        self._since_step: weakref.WeakKeyDictionary[nn.Module, list[tuple[bool, Where, str]]] = (
            weakref.WeakKeyDictionary()
        )
        self._models: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        call = None
        gradients, line = torch.is_grad_enabled(), self.visit.line("called")
        if gradients and (module.training or _differs(module, False)):
            calls = self._since_step.setdefault(module, [])
            calls.append((module.training, line, _differs(module, False)))
        elif module.training and (what := _differs(module, True)):
            inputs = tuple(id(tensor) for tensor in tensors_in([args, kwargs]))
            model = self._models.setdefault(module, Model(type(module).__name__))
            call = Call(model, line, what, inputs, self.visit.steps, self.visit.recordings)
            before = self._judged[-1] if self._judged else None
            same = before is not None and (before.model, before.inputs, before.steps) == (model, inputs, call.steps)
            if before is not None and same:
                call.repeated = before.repeated = True  # to see how much the results differ
        self._open.append(call)

    def module_returned(self, module: nn.Module, result: Any) -> None:
        call = self._open.pop() if self._open else None
        if call is not None:
            found = [self.visit.storage_of(tensor) for tensor in tensors_in(result)]
            call.results = [storage for storage in found if storage is not None]
            self._judged = [*self._judged[-999:], call]

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        with_gradients = {id(parameter) for parameter in parameters if parameter.grad is not None}
        for module, calls in list(self._since_step.items()):
            if not any(id(parameter) in with_gradients for parameter in module.parameters()):
                continue
            self._models.setdefault(module, Model(type(module).__name__)).trained = True
            del self._since_step[module]
            if calls and not any(training for training, _, _ in calls):
                _, line, what = calls[-1]
                self.visit.report(
                    Finding(
                        "eval-mode",
                        f"{type(module).__name__} was trained in eval mode",
                        (line,),
                        f"{what} of it did nothing, or used old statistics, in a forward pass that a step followed",
                        "call model.train() before training, and again after each evaluation",
                    )
                )

    def at_end(self, complete: bool) -> None:
        last = self.visit.recordings
        suspects = [c for c in self._judged if c.model.trained and not c.repeated and c.results and c.recording == last]
        if not complete:  # what came since the last step may have been made for the next: targets for a student, say
            suspects = [call for call in suspects if call.steps < self.visit.steps]
        graph = self.visit.graph if suspects else None
        for call in suspects:
            if graph is not None and _only_looked_at(graph, call.results):
                self.visit.report(
                    Finding(
                        "train-mode",
                        f"{call.model.name} was evaluated in training mode",
                        (call.line,),
                        f"{call.what} of it acted as in training: results are random, or change running statistics",
                        "call model.eval() before evaluation and model.train() after it",
                    )
                )


def _differs(module: nn.Module, training: bool) -> str:
    """The kinds of layers that behave differently in training, and are in this mode."""
    kinds = {
        type(part).__name__
        for part in module.modules()
        if part.training is training
        and (
            (isinstance(part, _DROPOUT) and part.p > 0) or (isinstance(part, _BATCH_NORM) and part.track_running_stats)
        )
    }
    return ", ".join(sorted(kinds))


def _only_looked_at(graph: Graph, storages: list[int]) -> bool:
    """Whether something was computed of a result, and nothing of that went into a graph of autograd."""
    columns = graph.columns
    values = np.flatnonzero(np.isin(columns["value_storage"], storages))
    taken = np.isin(columns["input_value"], values)
    nodes = np.repeat(np.arange(len(columns["input_ptr"]) - 1), np.diff(columns["input_ptr"]))[taken]
    made = set(columns["value_producer"][values].tolist())
    first = [node for node in set(nodes.tolist()) if node not in made]
    seen, waiting = set(first), list(first)
    while waiting:
        node = waiting.pop()
        if columns["node_sequence_nr"][node] >= 0:
            return False
        for after in graph.index.successors(node).tolist():
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return bool(first)
