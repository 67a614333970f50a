"""Functional dropout that is on in eval mode: F.dropout without training=, and attention with a fixed dropout_p."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.walk import sequence_nr
from torchatlas.capturing.frames import is_users, variables_of
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where
from torchatlas.diagnosis.not_finite import plain, tensors_in
from torchatlas.graph.names import short_name
from torchatlas.torch_private import functorch_depth, next_sequence_nr, unobserved

# Dropout is one op in inference mode, and one or several elsewhere; attention with dropout, too.
_RANDOM = frozenset({"bernoulli_", "native_dropout"})
_ONE_OP = re.compile(r"(feature_)?dropout|_?scaled_dot_product_\w+")
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")  # whose `training` is True unless it is given
_ATTENTION = "scaled_dot_product_attention"
_MOST = 1_000  # that are remembered


@dataclass(eq=False)
class Model:
    """A model that was called, without holding it."""

    kind: type
    trained: bool = False


@dataclass(eq=False)
class Call:
    """A call of a whole model."""

    model: Model
    given: Any  # what tells its inputs from others
    repeated: bool = False  # to see how much the results differ


@dataclass(frozen=True)
class Dropped:
    """A dropout inside of a module in eval mode."""

    call: Call
    module: str
    attention: bool
    line: Where
    number: int | None  # the next of autograd, if gradients were enabled: of its node, or of the one after that

    @property
    def number_before(self) -> int | None:
        return None if self.number is None else self.number - 1


@diagnosis
class DropoutInEval(Diagnosis):
    keys = ("dropout-in-eval",)
    whole = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._models: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
        self._call: Call | None = None  # that runs
        self._before: Call | None = None
        self._dropped: deque[Dropped] = deque(maxlen=_MOST)
        self._trained: set[type] = set()  # copies of a model that is trained count, too

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._call = None
        if functorch_depth():
            return
        given = None if module.training else (self.visit.steps, *map(_told_apart, tensors_in([args, kwargs])))
        self._call = Call(self._model(module), given)
        before = self._before
        if given is not None:
            if before is not None and before.model is self._call.model and before.given == given:
                before.repeated = self._call.repeated = True
            self._before = self._call

    def module_returned(self, module: nn.Module, result: Any) -> None:
        self._call = None

    def op_ran(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self._call is None or not _may_drop(plan.name) or not _drops(plan, args, kwargs):
            return
        found = _caller(sys._getframe(1))
        if found is None:
            return
        frame, attention = found
        module = _module_of(frame)
        if module is None or module.training or type(module).__module__.startswith("torch."):
            return
        number = next_sequence_nr() if torch.is_grad_enabled() else None
        line = self.visit.line("dropped out")
        self._dropped.append(Dropped(self._call, type(module).__name__, attention, line, number))

    def before_backward(self, case: Case, found: Pass) -> None:
        """What backward goes through was made for training."""
        if any(each.number is not None for each in self._dropped):
            numbers = {sequence_nr(node) for node in found.nodes}
            left = [
                each for each in self._dropped if each.number is None or not {each.number - 1, each.number} & numbers
            ]
            self._dropped = deque(left, maxlen=_MOST)

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        stepped: set[int] | None = None
        for module in self.visit.roots():
            model = self._model(module)
            if not model.trained:
                stepped = stepped or {id(each) for each in parameters if each.grad is not None}
                model.trained = any(id(each) in stepped for each in module.parameters())
                self._trained |= {model.kind} if model.trained else set()

    def at_end(self, complete: bool) -> None:
        own = {kind for kind in self._trained if not kind.__module__.startswith("torch.")}
        for each in self._dropped:
            judged = not each.call.repeated and (complete or each.number is None)
            if judged and (each.call.model.trained or each.call.model.kind in own):
                self.visit.report(_finding(each))

    def _model(self, module: nn.Module) -> Model:
        model = self._models.get(module)
        if model is None:
            model = self._models[module] = Model(type(module))
        return model


def _finding(found: Dropped) -> Finding:
    if found.attention:
        why = "scaled_dot_product_attention drops out with its dropout_p, and knows nothing of train() and eval()"
        fix = "dropout_p=self.dropout_p if self.training else 0.0"
    else:
        why = "F.dropout is on unless it is given training=False, and knows nothing of train() and eval()"
        fix = "F.dropout(x, p, training=self.training), or an nn.Dropout module; training=True if it is meant"
    what = f"{found.module} is in eval mode, and drops out all the same: its results are random"
    return Finding("dropout-in-eval", what, (found.line,), why, fix)


def _told_apart(tensor: torch.Tensor) -> Any:
    """Something that differs for inputs that differ."""
    if not plain(tensor) or not tensor.numel():
        return id(tensor)
    with unobserved():
        return tuple(tensor.shape), float(tensor.detach().abs().sum()), float(tensor.detach().flatten()[0].abs())


@cache
def _may_drop(operation: str) -> bool:
    name = short_name(operation)
    return name in _RANDOM or _ONE_OP.fullmatch(name) is not None


def _drops(plan: Any, args: Any, kwargs: Any) -> bool:
    """Not if it is off: the probability is 0, or `train` is false."""
    names = [argument.name for argument in plan.operator._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs  # what has its default is left out
    if "dropout_p" in names:
        return bool(given.get("dropout_p", 0.0) > 0)
    return given.get("train") is not False and given.get("p") != 0.0


# -- who called --------------------------------------------------------------------------------------------------------


def _caller(frame: FrameType | None) -> tuple[FrameType, bool] | None:
    """The frame that called F.dropout without saying when, or attention (then True); None for all else."""
    function = ""
    while frame is not None and not is_users(frame.f_code.co_filename):
        name = str(frame.f_globals.get("__name__", ""))
        if name == "torch.nn.functional":
            function = frame.f_code.co_name
        elif name.startswith("torch.nn.modules"):
            return None  # nn.Dropout, nn.MultiheadAttention: they know their mode
        frame = frame.f_back
    if frame is None:
        return None
    if function in _DROPOUTS:
        call = _call_at(frame)
        given = call is None or len(call.args) > 2 or any(each.arg in ("training", None) for each in call.keywords)
        return None if given else (frame, False)
    if not function:  # attention is not written in Python
        call = _call_at(frame)
        return (frame, True) if call is not None and ast.unparse(call.func).endswith(_ATTENTION) else None
    return None


def _call_at(frame: FrameType) -> ast.Call | None:
    """The call that a frame is in, as it is written."""
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    first, last, begin, end = positions
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        written = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return None
    return written if isinstance(written, ast.Call) else None


def _module_of(frame: FrameType | None) -> nn.Module | None:
    """The module in whose call a frame runs."""
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and frame.f_globals.get("__name__") == "torch.nn.modules.module":
            module = variables_of(frame).get("self")
            return module if isinstance(module, nn.Module) else None
        frame = frame.f_back
    return None
