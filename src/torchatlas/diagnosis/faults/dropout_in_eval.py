"""dropout-in-eval: functional dropout in eval mode: F.dropout without training=, attention with a fixed dropout_p."""

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

from torchatlas.autograd.graph_walk import sequence_nr
from torchatlas.capturing.frames import is_users, variables_of
from torchatlas.capturing.op_listening import Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Where
from torchatlas.diagnosis.history import running_line
from torchatlas.diagnosis.numeric_checks import has_numbers, tensors_in
from torchatlas.graph.names import short_name
from torchatlas.torch_private import functorch_depth, next_sequence_nr, unobserved

# Dropout is one op in inference mode, and one or several elsewhere; attention with dropout, too.
_RANDOM = frozenset({"bernoulli_", "native_dropout"})
_ONE_OP = re.compile(r"(feature_)?dropout|_?scaled_dot_product_\w+")
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")  # whose `training` is True unless it is given
_ATTENTION = "scaled_dot_product_attention"
_MOST = 1_000  # that are remembered


@dataclass(eq=False)
class DroppingModel:
    """A model that was called, without holding it."""

    kind: type
    trained: bool = False


@dataclass(eq=False)
class EvalCall:
    """A call of a whole model."""

    model: DroppingModel
    inputs: Any  # what tells its inputs from others
    repeated: bool = False  # the same inputs again: to see how much the results differ


@dataclass(frozen=True)
class DropoutRan:
    """A dropout inside of a module in eval mode."""

    call: EvalCall
    module: str
    attention: bool
    line: Where
    number: int | None  # the next of autograd, if gradients were enabled: of its node, or of the one after that


@diagnosis
class DropoutInEval(Diagnosis):
    keys = ("dropout-in-eval",)
    needs_the_end = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._models: weakref.WeakKeyDictionary[nn.Module, DroppingModel] = weakref.WeakKeyDictionary()
        self._call: EvalCall | None = None  # that runs
        self._before: EvalCall | None = None
        self._dropped: deque[DropoutRan] = deque(maxlen=_MOST)
        self._trained: set[type] = set()  # copies of a model that is trained count, too

    def module_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._call = None
        if functorch_depth():
            return
        inputs = None if module.training else (self.history.steps, *map(_fingerprint, tensors_in([args, kwargs])))
        self._call = EvalCall(self._model(module), inputs)
        before = self._before
        if inputs is not None:
            if before is not None and before.model is self._call.model and before.inputs == inputs:
                before.repeated = self._call.repeated = True
            self._before = self._call

    def module_returned(self, module: nn.Module, result: Any) -> None:
        self._call = None

    def wants(self, plan: Plan) -> Wants:
        return Wants.ALWAYS if _may_drop(plan.name) else Wants.NOTHING

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        if self._call is None or not _drops(plan, args, kwargs):
            return
        caller = _caller(sys._getframe(1))
        if caller is None:
            return
        frame, attention = caller
        module = _module_of(frame)
        if module is None or module.training or type(module).__module__.startswith("torch."):
            return
        number = next_sequence_nr() if torch.is_grad_enabled() else None
        line = running_line("dropped out")
        self._dropped.append(DropoutRan(self._call, type(module).__name__, attention, line, number))

    def before_backward(self, backward: BackwardPass) -> None:
        """Forget the dropouts that backward goes through: they were made for training."""
        if any(each.number is not None for each in self._dropped):
            numbers = {sequence_nr(node) for node in backward.nodes}
            left = (
                each for each in self._dropped if each.number is None or not {each.number - 1, each.number} & numbers
            )
            self._dropped = deque(left, maxlen=_MOST)

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        stepped: set[int] | None = None
        for module in self.history.roots():
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
                why, fix = _ATTENTION_REASON if each.attention else _DROPOUT_REASON
                what = f"{each.module} is in eval mode, and drops out all the same: its results are random"
                self.report("dropout-in-eval", what, (each.line,), why, fix)

    def _model(self, module: nn.Module) -> DroppingModel:
        return self._models.setdefault(module, DroppingModel(type(module)))


_ATTENTION_REASON = (
    "scaled_dot_product_attention drops out with its dropout_p, and knows nothing of train() and eval()",
    "pass dropout_p=self.dropout_p if self.training else 0.0",
)
_DROPOUT_REASON = (
    "F.dropout is on unless it is given training=False, and knows nothing of train() and eval()",
    "call F.dropout(x, p, training=self.training), or use an nn.Dropout module; pass training=True if it is meant",
)


def _fingerprint(tensor: torch.Tensor) -> Any:
    """A key that differs for inputs that differ."""
    if not has_numbers(tensor) or not tensor.numel():
        return id(tensor)
    with unobserved():
        return tuple(tensor.shape), float(tensor.detach().abs().sum()), float(tensor.detach().flatten()[0].abs())


@cache
def _may_drop(operation: str) -> bool:
    name = short_name(operation)
    return name in _RANDOM or _ONE_OP.fullmatch(name) is not None


def _drops(plan: Any, args: Any, kwargs: Any) -> bool:
    """False if the dropout is off: its probability is 0, or `train` is false."""
    names = [argument.name for argument in plan.operator._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs  # what has its default is left out
    if "dropout_p" in names:
        return bool(arguments.get("dropout_p", 0.0) > 0)
    return arguments.get("train") is not False and arguments.get("p") != 0.0


# -- who called --------------------------------------------------------------------------------------------------------


def _caller(frame: FrameType | None) -> tuple[FrameType, bool] | None:
    """The frame that called F.dropout without `training=`, or attention (then True); None for all else."""
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
        training_given = (
            call is None or len(call.args) > 2 or any(each.arg in ("training", None) for each in call.keywords)
        )
        return None if training_given else (frame, False)
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
