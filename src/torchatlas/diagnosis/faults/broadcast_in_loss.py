"""broadcast-in-loss: (n, 1) against (n,): torch compares every prediction with every target, and the mean hides it.

Before a backward pass the graph of autograd is followed from the loss through means, sums and arithmetic. Only where
that meets a square, the recording tells which op made it of what, and whether somebody asked for it: an unsqueeze in
the loss itself, a sum that keeps its dimension, or two views of the same tensor are pairs on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchatlas.autograd.graph_walk import sequence_nr
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.faults.loss_mismatch import kind_of, shape
from torchatlas.diagnosis.findings import Finding, at
from torchatlas.graph import GraphNode
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import NodeKind
from torchatlas.graph.objects import Value

_MOST = 200  # nodes next to a loss
# They lead from a loss back to what it compares. Not exp, relu or min: kernels and rankings compare pairs.
# fmt: off
_NODES = frozenset({
    "Abs", "Add", "Div", "Expand", "HuberLoss", "Log", "Maximum", "Mean", "Minimum", "MseLoss", "Mul", "Neg", "Pow",
    "Rsub", "SmoothL1Loss", "Sqrt", "Sub", "Sum", "View", "Where",
})
_ARITHMETIC = frozenset({
    "abs", "add", "div", "huber_loss", "log", "maximum", "minimum", "mse_loss", "mul", "neg", "pow", "rsub",
    "smooth_l1_loss", "sqrt", "sub", "where",
})
# What keeps the shape of its argument, whatever it computes.
_KEEPS_SHAPE = _ARITHMETIC | {
    "_log_softmax", "_softmax", "_to_copy", "alias", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "clamp", "clone", "copy_", "detach", "div_", "exp", "gelu", "leaky_relu", "log1p", "mul_", "native_dropout", "relu",
    "sigmoid", "softplus", "sub_", "tanh",
}
_SHAPES = frozenset({
    "_unsafe_view", "as_strided", "permute", "reshape", "select", "slice", "squeeze", "t", "transpose", "unsqueeze",
    "view",
})
_MAKES_COLUMNS = frozenset({  # (n, 1) as layers and data have it
    "_native_batch_norm_legit", "addmm", "cat", "convolution", "embedding", "gather", "index", "index_select", "mm",
    "native_batch_norm", "native_layer_norm", "stack",
})
_GRIDS = frozenset({"arange", "eye", "linspace", "logspace"})
# fmt: on


@diagnosis
class BroadcastInLoss(Diagnosis):
    keys = ("broadcast-in-loss",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._judged: dict[Any, list[Finding]] = {}  # each pass of a loop has the same findings: it is judged once

    def before_backward(self, backward: BackwardPass) -> None:
        squares = list(_squares([loss.grad_fn for loss in backward.losses if loss.grad_fn is not None]))
        if not squares:
            return
        first = sequence_nr(squares[0])
        same = backward.line, *((kind_of(node), sequence_nr(node) - first) for node in squares)
        if same not in self._judged:
            makers = self.history.makers_of([sequence_nr(node) for node in squares])
            self._judged[same] = list(_accidents(list(makers.values())))
        for finding in self._judged[same]:
            self.visit.report(finding)


def _squares(roots: list[Any]) -> Iterator[Any]:
    """The nodes nearest to the loss whose ops may have broadcast two arguments to (n, n, ..)."""
    waiting, seen = list(roots), set(roots)
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if kind_of(node) not in _NODES:
            continue
        behind = [after for after, _ in node.next_functions if after is not None]
        if _is_square(shape(node)):
            yield node
        elif any(kind_of(after) == "Expand" and _is_square(shape(after)) for after in behind):
            yield node  # mse_loss expands its arguments first
        else:
            waiting += [after for after in behind if after not in seen]
            seen.update(behind)


def _is_square(sizes: tuple[int, ...]) -> bool:
    return len(sizes) > 1 and sizes[0] == sizes[1] > 1


def _accidents(ops: list[GraphNode]) -> Iterator[Finding]:
    waiting, seen = list(ops), {op.id for op in ops}
    while waiting:
        op = waiting.pop()
        if short_name(op.operation) not in _ARITHMETIC:
            continue
        operands = [_before_expand(value, op) for value in op.inputs]
        pair = next(((a, b) for a in operands for b in operands if _is_pair(a, b) and _by_accident(a, b, op)), None)
        if pair is not None:
            yield _finding(op, *pair)
            continue
        for made in _squares_behind(operands):
            if made.id not in seen:
                seen.add(made.id)
                waiting.append(made)


def _squares_behind(operands: list[Value]) -> list[GraphNode]:
    """The ops to look at next. Targets that are squares themselves are no accident if the predictions are, too."""
    squares = [value for value in operands if _is_square(_sizes(value))]
    trained = [value for value in squares if _has_gradient(value)]
    return [made for value in trained or squares if (made := _producer(value)) is not None]


def _is_pair(column: Value, row: Value) -> bool:
    """(n, 1, ..) and (n, ..)."""
    a, b = _sizes(column), _sizes(row)
    return len(b) > 0 and len(a) == len(b) + 1 and a[0] == b[0] > 1 and a[1] == 1 and a[2:] == b[1:]


def _by_accident(column: Value, row: Value, op: GraphNode) -> bool:
    sides = _has_gradient(column) + _has_gradient(row)
    if sides == 2 or (sides == 0 and op.sequence_nr is not None and op.sequence_nr >= 0):
        return False  # pairs of what the model made; or a trained tensor has one entry for each row
    if any(op is not None and short_name(op.operation) in _GRIDS for op in _origins(row)):
        return False
    return _root(column) != _root(row) and any(_is_accidental(made, row, op) for made in _origins(column))


def _is_accidental(made: GraphNode | None, row: Value, op: GraphNode) -> bool:
    """True if a column was not made in order to compare pairs."""
    if made is None:
        return True
    name = short_name(made.operation)
    if name in _SHAPES:
        return _shaped_elsewhere(made, row, op)
    return name in _MAKES_COLUMNS or (not made.inputs and name not in _GRIDS)  # rand, zeros, from numbers


def _shaped_elsewhere(made: GraphNode, row: Value, op: GraphNode) -> bool:
    """True if a view became a column for another purpose than this op: in a model, or with the data."""
    here, there = op.source, made.source
    if here is None or there is None:
        return False
    if (there.file, there.function) != (here.file, here.function):
        return there.function.rpartition(".")[2] == "forward"
    prepared = row.producer is not None and made.id < row.producer[0].id
    return prepared and not any(map(_has_gradient, made.outputs))


def _finding(op: GraphNode, column: Value, row: Value) -> Finding:
    a, b = _sizes(column), _sizes(row)
    return Finding(
        "broadcast-in-loss",
        f"{a} and {b} are broadcast to {(a[0], *b)} in the loss",
        (at("broadcast by", op),),
        "every row of one is combined with every row of the other, instead of with its own; the mean or sum hides it, "
        "and the model learns the mean of all targets",
        f"give both the same shape: squeeze(1) what is {a}, or unsqueeze(1) what is {b}",
    )


# -- what a value was made of ------------------------------------------------------------------------------------------


def _sizes(value: Value) -> tuple[Any, ...]:
    return tuple(value.shape)


def _producer(value: Value) -> GraphNode | None:
    """The op that made a value; None for data and parameters."""
    made = value.producer
    return None if made is None or made[0].kind is not NodeKind.OP else made[0]


def _has_gradient(value: Value) -> bool:
    made = _producer(value)
    return made is not None and made.sequence_nr is not None and made.sequence_nr >= 0


def _before_expand(value: Value, op: GraphNode) -> Value:
    """The value before an expand of mse_loss and its like. An expand that the program wrote is on purpose."""
    made = _producer(value)
    if made is None or short_name(made.operation) != "expand" or made.source != op.source:
        return value
    return value if op.source is None or "expand" in op.source.text else made.inputs[0]


def _origins(value: Value) -> list[GraphNode | None]:
    """The ops that gave a value its shape; None for data and parameters."""
    waiting, seen, origins = [value], {value.id}, list[GraphNode | None]()
    while waiting:
        value = waiting.pop()
        made = _producer(value)
        same: list[Value] = []
        if made is not None and short_name(made.operation) in _KEEPS_SHAPE:
            same = [each for each in made.inputs if _sizes(each) == _sizes(value)]
        origins += [] if same else [made]
        waiting += [each for each in same if each.id not in seen]
        seen |= {each.id for each in same}
    return origins


def _root(value: Value) -> int:
    """The value that another is a view of, or was computed from element by element."""
    made = _producer(value)
    while made is not None and short_name(made.operation) in _SHAPES | _KEEPS_SHAPE and made.inputs:
        value = next((each for each in made.inputs if _has_gradient(each)), made.inputs[0])
        made = _producer(value)
    return value.id
