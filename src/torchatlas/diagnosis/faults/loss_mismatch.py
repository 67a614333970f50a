"""loss-mismatch: a loss gets something else than it expects: probabilities for scores, scores for log-probabilities,
classes in another dimension, targets of another kind.

Read from the graph of autograd before each backward pass: a loss node, what lies right behind it, and what it saved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import torch

from torchatlas.autograd.graph_walk import sequence_nr
from torchatlas.autograd.saved_tensors import saved_by
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Finding, Where, at
from torchatlas.diagnosis.history import raised_at
from torchatlas.diagnosis.numeric_checks import has_numbers
from torchatlas.graph import GraphNode
from torchatlas.graph.names import short_name
from torchatlas.torch_private import unobserved

_KIND = re.compile(r"(\w+?)Backward\d+")
# Ops that hand numbers on as they are, in another order, shape or type. (On CPUs, dropout is a product.)
# fmt: off
_SHAPES = frozenset({
    "Alias", "Clone", "Expand", "Flatten", "NativeDropout", "Permute", "Reshape", "ReshapeAlias", "Select", "Slice",
    "Split", "Squeeze", "T", "ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View",
})
# fmt: on
_KEEPS_ROWS = frozenset({"Clone", "Expand", "NativeDropout", "ReshapeAlias", "ToCopy", "UnsafeView", "View"})
_LAYERS = {"Addmm": "a linear layer", "Mm": "a linear layer", "Convolution": "a convolution"}
_SQUASHED = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
_SCALED = frozenset({"Add", "Div", "MaskedFill", "Mul", "Sub", "Where"}) | _KEEPS_ROWS
_FOLLOW = ("zero-gradients", "nothing-changes")


@dataclass(frozen=True)
class Mismatch:
    """A wrong input of a loss, and the nodes of autograd whose ops made the input and the loss."""

    what: str
    nodes: tuple[tuple[str, Any], ...]
    why: str
    fix: str
    normalised_by: str = ""  # no fault if there is such a node: cross_entropy is nll_loss of scores and a logsumexp
    first_made_by: str = ""  # no fault if another op made the first input of the last op in `nodes`


@diagnosis
class LossMismatch(Diagnosis):
    keys = ("loss-mismatch",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._known: dict[Any, Finding] = {}  # each pass of a loop has the same: its lines are read once

    def before_backward(self, backward: BackwardPass) -> None:
        names = {kind: _kind(kind) for kind in backward.kinds}
        checked = [(_CHECKS[name], backward.kinds[kind]) for kind, name in names.items() if name in _CHECKS]
        for check, numbers in checked:
            for number in numbers:
                for mismatch in check(backward.nodes[number]):
                    if not (mismatch.normalised_by and mismatch.normalised_by in names.values()):
                        self._report(backward, mismatch)

    def _report(self, backward: BackwardPass, mismatch: Mismatch) -> None:
        first = sequence_nr(mismatch.nodes[0][1])
        between = tuple(sequence_nr(node) - first for _, node in mismatch.nodes)
        same = mismatch.what, backward.line, between
        if same not in self._known:
            makers = self.history.makers_of([sequence_nr(node) for _, node in mismatch.nodes])
            if mismatch.first_made_by and not _is_made_by(
                mismatch.first_made_by, makers.get(sequence_nr(mismatch.nodes[-1][1]))
            ):
                return
            ops = [(text, makers.get(sequence_nr(node))) for text, node in mismatch.nodes]
            where = [at(text, op) for text, op in ops if op is not None and op.source is not None]
            self._known[same] = Finding(
                "loss-mismatch",
                mismatch.what,
                tuple(dict.fromkeys(where)) or backward.lines,
                mismatch.why,
                mismatch.fix,
                explains=_FOLLOW,
            )
        self.visit.report(self._known[same])

    def at_end(self, complete: bool) -> None:
        if self.visit.error is not None and (finding := _refused(self.visit.error)) is not None:
            self.visit.report(finding)


# -- what lies behind a loss -------------------------------------------------------------------------------------------


def _check_nll(loss: Any) -> Iterator[Mismatch]:
    """nll_loss, also that of cross_entropy."""
    maker, direct = _maker(loss)
    kind, sizes = kind_of(maker), shape(maker)
    classes = 0 if len(sizes) == 1 else 1
    if kind == "LogSoftmax" and direct:
        if len(sizes) > 1 and sizes[classes] == 1 and sizes[0] > 1 and dim_of(maker) == classes:
            yield Mismatch(
                f"cross_entropy gets one class: {sizes}",
                (("loss by", loss),),
                "the softmax of a single score is always 1, so the loss is 0 whatever the model says",
                "give the model one output per class, or use binary_cross_entropy_with_logits for one output",
            )
        elif dim_of(maker) != classes and _is_classes_by_rows(sizes):
            yield _wrong_dim(maker, loss, "log_softmax", classes)
        made, _ = _maker(maker)
        if kind_of(made) == "Sigmoid":
            yield _squashed(made, loss, "cross_entropy", sizes[classes] if sizes else 0)
    elif kind == "Log" and direct:
        softmax = _without_eps(maker)
        if kind_of(softmax) == "Softmax" and dim_of(softmax) != classes and _is_classes_by_rows(sizes):
            yield _wrong_dim(softmax, loss, "softmax", classes)
    elif kind in _SQUASHED or (kind in _LAYERS and _is_no_log_probability(_saved(loss, "self"), classes)):
        name = _SQUASHED.get(kind) or _LAYERS[kind]
        yield Mismatch(
            f"nll_loss gets the result of {name}, and expects log-probabilities",
            ((f"{name}:", maker), ("loss by", loss)),
            "its loss is minus the number of the right class: without log_softmax that can fall without end, and no "
            "class is compared with the others",
            "use cross_entropy on the scores, or nll_loss on log_softmax(scores, dim=1)",
            "Logsumexp",
        )


def _check_log_softmax(node: Any) -> Iterator[Mismatch]:
    """Part of cross_entropy, whatever its targets are."""
    made, _ = _maker(node)
    if kind_of(made) == "Softmax":
        sizes = shape(node)
        yield _squashed(made, node, "cross_entropy (or log_softmax)", sizes[dim_of(node)] if sizes else 0)


def _check_bce_with_logits(loss: Any) -> Iterator[Mismatch]:
    made, _ = _maker(loss)
    if kind_of(made) in _SQUASHED:
        yield _squashed(made, loss, "binary_cross_entropy_with_logits", 0)
    target = _saved(loss, "target")
    masked = int(loss._saved_reduction) == 0 or _saved(loss, "weight") is not None  # some targets may not count
    if target is not None and target.numel() and not masked:
        with unobserved():
            low, high = float(target.min()), float(target.max())
        if low <= -1 or high >= 2:  # labels a little outside, as some GANs have, are on purpose
            yield Mismatch(
                f"binary_cross_entropy_with_logits gets targets in [{low:g}, {high:g}]",
                (("loss by", loss),),
                "a target is the probability of the class, in [0, 1]; with others the loss has no lower bound",
                "turn labels into 0 and 1 ((labels + 1) / 2 for -1 and 1), or use cross_entropy for more classes",
            )


def _check_elementwise(loss: Any) -> Iterator[Mismatch]:
    """mse_loss and binary_cross_entropy on a softmax."""
    softmax, direct = _maker(loss)
    if kind_of(softmax) != "Softmax":
        return
    sizes, dim = shape(softmax), dim_of(softmax)
    if len(sizes) > 1 and sizes[dim] == 1 and math.prod(sizes) > 1:
        yield Mismatch(
            f"the loss gets a softmax over a dimension of size 1: {sizes}",
            (("softmax:", softmax), ("loss by", loss)),
            "the softmax of a single score is always 1, and its gradient 0",
            "use sigmoid for one output, or one output per class",
        )
    elif direct and dim == 0 and len(sizes) == 2 and _has_class_rows(_saved(loss, "target"), sizes):
        yield _wrong_dim(softmax, loss, "softmax", 1)


def _check_attention(product: Any) -> Iterator[Mismatch]:
    """Weights (.., queries, keys) that sum to one over the queries, in a product that sums over the keys."""
    softmax = product.next_functions[0][0]
    while kind_of(softmax) in _KEEPS_ROWS or (kind_of(softmax) == "Mul" and len(_behind(softmax)) == 1):
        softmax = _behind(softmax)[0]
    if kind_of(softmax) != "Softmax":
        return
    sizes = shape(softmax)
    if len(sizes) < 3 or not sizes[-1] == sizes[-2] > 1 or dim_of(softmax) != len(sizes) - 2:
        return
    scores = _behind(softmax)
    while len(scores) == 1 and kind_of(scores[0]) in _SCALED:
        scores = _behind(scores[0])
    if len(scores) == 1 and kind_of(scores[0]) == "Bmm":
        yield Mismatch(
            f"attention weights {sizes} sum to one over the queries",
            (("softmax:", softmax), ("used by", product)),
            "the product sums over the last dimension, the keys, and their weights then do not sum to one",
            "call softmax(scores, dim=-1)",
        )


def _check_kl(loss: Any) -> Iterator[Mismatch]:
    """kl_div is xlogy(target, target) - target * input."""
    behind = [node for node, _ in loss.next_functions]
    if len(behind) != 2 or behind[0] is not None or kind_of(behind[1]) != "Mul":
        return
    factors = _behind(behind[1])
    if len(factors) == 1 and kind_of(factors[0]) in _SQUASHED:
        name = _SQUASHED[kind_of(factors[0])]
        yield Mismatch(
            f"kl_div gets the result of {name}, and expects log-probabilities",
            ((f"{name}:", factors[0]), ("loss by", loss)),
            "it subtracts its input from the logarithm of the target: with probabilities that is no divergence, and "
            "its lowest value is where all probability lies on one class",
            "use log_softmax(scores, dim=1) for the input; the target stays a probability, or pass log_target=True",
            first_made_by="xlogy",
        )


_CHECKS: dict[str, Callable[[Any], Iterator[Mismatch]]] = {
    "NllLoss": _check_nll,
    "NllLoss2D": _check_nll,
    "LogSoftmax": _check_log_softmax,
    "BinaryCrossEntropyWithLogits": _check_bce_with_logits,
    "BinaryCrossEntropy": _check_elementwise,
    "MseLoss": _check_elementwise,
    "Bmm": _check_attention,
    "Sub": _check_kl,
}


def _is_made_by(name: str, op: GraphNode | None) -> bool:
    made = None if op is None or not op.inputs else op.inputs[0].producer
    return made is not None and short_name(made[0].operation) == name


def _squashed(made: Any, loss: Any, name: str, classes: int) -> Mismatch:
    by = _SQUASHED[kind_of(made)]
    lowest = f": with {classes} classes never below {math.log1p((classes - 1) / math.e):.2f}" if classes > 1 else ""
    return Mismatch(
        f"{name} gets the result of {by}, and expects scores",
        ((f"{by}:", made), ("loss by", loss)),
        f"it applies {'sigmoid' if 'binary' in name else 'softmax'} itself; numbers in [0, 1] are nearly equal as "
        f"scores, so the loss stays high{lowest}, and its gradients small",
        f"remove the {by} before the loss, and apply it where probabilities are needed (predictions, metrics)",
    )


def _wrong_dim(softmax: Any, loss: Any, name: str, classes: int) -> Mismatch:
    sizes, dim = shape(softmax), dim_of(softmax)
    return Mismatch(
        f"{name} of {sizes} runs over dimension {dim}, and the classes are in dimension {classes}",
        ((f"{name}:", softmax), ("loss by", loss)),
        "the probabilities of one example do not sum to one: examples of a batch compete with each other",
        f"call {name}(scores, dim={classes})",
    )


def _is_classes_by_rows(sizes: tuple[int, ...]) -> bool:
    """(batch, classes); in a square of similarities, both directions are meant."""
    return len(sizes) >= 2 and sizes[0] != sizes[1] and sizes[1] > 1


def _is_no_log_probability(scores: torch.Tensor | None, classes: int) -> bool:
    if scores is None or not scores.numel():
        return False
    with unobserved():
        return bool((scores.detach().float().logsumexp(classes) > 0.01).any())


def _has_class_rows(target: torch.Tensor | None, sizes: tuple[int, ...]) -> bool:
    """True if the targets of each example, not of each class, are probabilities; also for a column of 0 and 1."""
    if target is None or tuple(target.shape) != sizes:
        return False
    with unobserved():
        rows, columns = target.float().sum(1), target.float().sum(0)
        by_columns = bool(((columns - 1).abs() < 1e-3).all())
        if sizes[1] == 1:
            return not by_columns and bool(((target == 0) | (target == 1)).all())
        return not by_columns and bool(((rows - 1).abs() < 1e-3).all())


# -- nodes of autograd -------------------------------------------------------------------------------------------------


def kind_of(node: Any) -> str:
    """LogSoftmax for a LogSoftmaxBackward0; empty for None and for what the program has defined."""
    kind: Any = type(node)
    return _kind(kind)


@cache
def _kind(kind: Any) -> str:
    match = _KIND.fullmatch(kind.__name__)
    return "" if match is None else match[1]


def shape(node: Any) -> tuple[int, ...]:
    """The shape of the first result of the op that made a node."""
    known = [] if node is None else node._input_metadata
    return () if not known or known[0].is_nested_tensor else tuple(known[0].shape)


def dim_of(node: Any) -> int:
    """The dimension of a softmax, from 0. torch saves negative ones without their sign."""
    saved = int(node._saved_dim)
    return (saved - (1 << 64) if saved >= 1 << 63 else saved) % max(len(shape(node)), 1)


def _behind(node: Any) -> list[Any]:
    return [after for after, _ in node.next_functions if after is not None]


def _maker(node: Any) -> tuple[Any, bool]:
    """The node that made the first argument of an op, and whether the argument has the shape it was made in."""
    maker: Any = node.next_functions[0][0] if node.next_functions else None
    direct = True
    while kind_of(maker) in _SHAPES and maker.next_functions:
        direct = direct and kind_of(maker) in ("Alias", "Clone", "ToCopy", "NativeDropout")
        maker = maker.next_functions[0][0]
    return maker, direct


def _without_eps(log: Any) -> Any:
    """The softmax in log(softmax(x) + eps) or of a clamp."""
    node = log.next_functions[0][0]
    while kind_of(node) in ("Add", "Clamp", "ClampMin") and len(_behind(node)) == 1:
        node = _behind(node)[0]
    return node


def _saved(node: Any, slot: str) -> torch.Tensor | None:
    saved = next((each.data for each in saved_by(node) if each.slot == slot), None)
    return saved if has_numbers(saved) else None


# -- what torch refuses ------------------------------------------------------------------------------------------------

_REFUSALS = (
    (
        r"all elements of input should be between 0 and 1",
        "binary_cross_entropy gets numbers outside of [0, 1]",
        "it expects probabilities",
        "use binary_cross_entropy_with_logits on the scores, or sigmoid before it",
    ),
    (
        r"all elements of target should be between 0 and 1",
        "binary_cross_entropy gets targets outside of [0, 1]",
        "a target is the probability of the class",
        "turn labels into 0 and 1, or use cross_entropy for more classes",
    ),
    (
        r"Target -?\d+ is out of bounds",
        "the loss gets a class number that the model has no output for",
        "class numbers run from 0 to the number of outputs - 1",
        "count classes from 0, give the model one output per class, or set ignore_index for padding",
    ),
    (
        r"expected target dtype to be Long|expected scalar type Long but found|not implemented for '(Float|Int)'",
        "the loss gets class numbers of another type than int64",
        "class numbers are int64; floating-point targets are probabilities, in the shape of the scores",
        "pass target.long(), in the shape of the batch",
    ),
    (
        r"multi-target not supported",
        "the loss gets class numbers with a dimension too many",
        "class numbers of (batch, classes) scores have the shape (batch,)",
        "pass target.squeeze(1); pass one-hot targets as floats, or as target.argmax(1)",
    ),
    (
        r"Using a target size .* that is different to the input size",
        "the loss gets targets of another shape than the input",
        "each number of the input has a target of its own",
        "squeeze(-1) the input, or unsqueeze(-1) the targets",
    ),
    (
        r"The size of tensor a \(\d+\) must match the size of tensor b",
        "the loss gets targets of another shape than the input",
        "each number of the input has a target of its own; class numbers are for cross_entropy",
        "give both the same shape, or use cross_entropy(scores, class numbers)",
    ),
)


def _refused(error: BaseException) -> Finding | None:
    """The reason why a loss function of torch has raised, and ended the program."""
    raised = raised_at(error)
    if raised.line is None or not any(map(_is_loss, raised.called)):
        return None
    for pattern, what, why, fix in _REFUSALS:
        if re.search(pattern, str(error)):
            return Finding("loss-mismatch", what, (Where("loss", raised.line),), f"{why} ({error})", fix)
    return None


def _is_loss(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    return frame.f_globals.get("__name__") == "torch.nn.functional" and ("cross_entropy" in name or "loss" in name)
