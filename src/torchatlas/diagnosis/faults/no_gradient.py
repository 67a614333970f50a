"""no-gradient: why parameters get no gradient, or only zeros. optimizer_misses.py finds out which."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchatlas.autograd.graph_walk import leaf_of, sequence_nr
from torchatlas.capturing.frames import variables_of
from torchatlas.diagnosis.custom_functions import Applied
from torchatlas.diagnosis.findings import Finding, Severity, Where, at, some
from torchatlas.diagnosis.gradient_cuts import GradientCuts, cut_by, gradients_were_disabled
from torchatlas.diagnosis.history import History, raised_at
from torchatlas.diagnosis.leaf_tensors import Leaf
from torchatlas.diagnosis.loss_graph import LossGraph
from torchatlas.diagnosis.variable_names import attributes_of
from torchatlas.graph import Graph, GraphNode

_MOST = 3  # cuts that are named
_GRADIENT = re.compile(r"(?<![.\w\])])([\w.]+)\.grad\b")  # of a variable, or of an attribute of one
Named = tuple[str, int | None]  # a parameter and its storage; tensors of their own may share a name
_LOOK_FOR = (
    "look for detach(), no_grad, argmax or a cast to integers between them and the loss; or freeze what is not to be "
    "trained"
)
_CUT_OFF = "what was computed from {them} was cut off from the loss"
_NOT_IN_LOSS = "{they} {were} used, but the result does not lead to the loss"
_USE_IT = "add the result to the loss, or call backward() of it, or leave it out; or freeze what is not to be trained"
_NEVER = "{they} {were} never used"
_NOT_LATELY = "{they} {were} not used lately; what is older is forgotten"


def parameters_without_gradient(loss: LossGraph) -> Iterator[Finding]:
    """The parameters of the model that require a gradient and that no path from the loss leads to."""
    if loss.recorded.model is None:
        return
    reached = {id(leaf) for node in loss.nodes if (leaf := leaf_of(node)) is not None}
    missing = [
        (name, _storage(loss, name, parameter))
        for name, parameter in loss.recorded.model.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached
    ]
    yield from without_gradient(loss, missing, loss.root_numbers)


def without_gradient(
    loss: LossGraph, missing: Sequence[Named], roots: Iterable[int], others: bool = True
) -> Iterator[Finding]:
    """Why some parameters get no gradient; those with one cause are one finding.

    `others`: their optimizer has gradients for others. If not, the loss they lead to may have been forgotten.
    """
    if not missing:
        return
    if loss.forward is None:
        names = [name for name, _ in missing]
        yield _finding(names, loss.lines, "no path from the loss leads to {them}", _LOOK_FOR)
        return
    known = {storage for _, storage in missing if storage is not None}
    cuts = GradientCuts(loss.forward, loss.parameters().keys() | known)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Any, tuple[list[str], list[Where], str, str]] = {}
    ends: dict[Any, list[int]] = {}  # the last uses of what leads nowhere, by the line where that ends
    for name, storage in missing:
        cut = cuts.first_cut(cuts.users(storage), into)
        if cut is not None and (others or not _ends_in_a_number(cuts, cuts.uses(storage), into)):
            key, line = _cut_at(loss, cut), cut_by(cut)
            called = loss.recorded.caller_of(cut)  # for a model of a library the program's own line comes first
            lines = [*([] if called is None else [called]), line]
            cause = causes.setdefault(key, ([], lines, _CUT_OFF, _LOOK_FOR))
            if line.source not in [each.source for each in cause[1]] and len(cause[1]) < _MOST:
                cause[1].append(line)
        elif uses := cuts.uses(storage) or _in_a_model(loss, loss.forward, cuts.users(storage)):
            end = loss.forward.nodes[cuts.end_of(uses)]
            key = "leads nowhere", end.source or end.id
            ends.setdefault(key, [end.id]).append(max(uses))
            cause = causes.setdefault(key, ([], [], _NOT_IN_LOSS, _USE_IT))
        else:
            why = _NEVER if loss.recorded.is_whole else _NOT_LATELY
            fix = "compute the loss from it (call its module in forward); or remove or freeze it"
            cause = causes.setdefault("never", ([], list(loss.lines), why, fix))
        cause[0].append(name)
    for key, (last, *uses) in ends.items():
        used, ended = loss.forward.nodes[max(uses)], loss.forward.nodes[last]
        lines = [at("last used by", used), at("the result ends at", ended)]
        causes[key][1].extend(lines[:1] if lines[0].source == lines[1].source else lines)
    for cause, (names, lines, why, fix) in causes.items():
        finding = _finding(names, tuple(lines), why, fix)
        # The rest learns: often the head of a backbone whose features alone are used.
        yield replace(finding, severity=Severity.WARNING) if cause == "never" and others else finding


def _ends_in_a_number(cuts: GradientCuts, uses: list[int], into: Collection[int]) -> bool:
    """True if some ops lead, with gradients, to a loss that no backward pass began from."""
    end = cuts.graph.nodes[cuts.end_of(uses)] if uses else None
    return end is not None and end.id not in into and [math.prod(value.shape) for value in end.outputs] == [1]


def _in_a_model(loss: LossGraph, graph: Graph, users: list[int]) -> list[int]:
    """The last of some ops if a model ran it: code outside of models (state_dict, a norm for the log, a copy) looks at
    parameters and does not use them."""
    return users[-1:] if users and loss.recorded.call_of(graph.nodes[users[-1]]) is not None else []


def _cut_at(loss: LossGraph, cut: GraphNode) -> Any:
    """A key for the cause: one line may cut many parameters off, and disabled gradients cut every layer off."""
    if gradients_were_disabled(cut):
        called = loss.recorded.call_of(cut)
        return "disabled", cut.source if called is None else called.source
    return "cut", cut.source or cut.id


def no_pass(names: list[str], step: Where, returned: bool) -> Finding:
    """The finding if no backward pass has added to any gradient."""
    if returned:
        why = "torch.autograd.grad returns gradients, and nobody has put them into .grad, where the step looks for them"
        return _finding(names, (step,), why, "call loss.backward(), or set .grad of each parameter before the step")
    why = "no backward pass ran, so the step has no gradients to use"
    return _finding(names, (step,), why, "call loss.backward() before optimizer.step()")


def made_anew(names: list[str], lines: Iterable[Where]) -> Finding:
    """The finding if the loss that backward began from was a new leaf."""
    return _finding(
        names,
        tuple(lines),
        "the loss was made anew from its numbers, or from results without gradients, and only then told to require a "
        "gradient: backward began and ended there",
        "call backward() of the loss itself: leave out torch.tensor(loss, requires_grad=True), requires_grad_(), "
        "detach() and .data; compute it with gradients enabled",
    )


def only_zeros(loss: LossGraph, zeros: Sequence[Named], roots: Iterable[int]) -> Iterator[Finding]:
    """The parameters whose gradient is zero because of a function that is flat between its steps."""
    if not zeros or loss.forward is None:
        return
    cuts = GradientCuts(loss.forward)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Any, tuple[Where, list[str]]] = {}
    for name, storage in zeros:
        op = cuts.first_step_function(cuts.users(storage), into)
        if op is not None:
            causes.setdefault(op.source or op.id, (at("flattened by", op), []))[1].append(name)
    for where, names in causes.values():
        why = "the derivative of a function that rounds is zero wherever it has one"
        fix = "let the gradient pass straight through: x + (x.round() - x).detach()"
        yield replace(_finding(names, (where,), why, fix), what=f"the gradient of {some(names)} is always zero")


def _storage(loss: LossGraph, name: str, parameter: torch.Tensor) -> int | None:
    """The storage of a parameter, found by itself or by the name that the recording knows it by."""
    known = loss.recorded.storage_of(parameter)
    if known is not None or loss.forward is None:
        return known
    names = loss.forward.tables.names
    values = loss.forward.columns["value_parameter"]
    rows = (values == names.index(name)).nonzero()[0] if name in names else []
    return int(loss.forward.columns["value_storage"][rows[0]]) if len(rows) else None


def stopped_by_functions(stopped: Mapping[Leaf, list[Applied]], missing: Iterable[Leaf]) -> Iterator[Finding]:
    """The leaves that get no gradient because a custom Function returned None."""
    causes: dict[tuple[Applied, ...], list[str]] = {}
    for leaf in missing:
        if leaf in stopped:
            causes.setdefault(tuple(stopped[leaf][:_MOST]), []).append(leaf.name)
    for applied, names in causes.items():
        functions = " and ".join(dict.fromkeys(function.__name__ for function, _ in applied))
        yield _finding(
            names,
            tuple(
                Where(f"cut by the backward of {function.__name__}, which returned no gradient", line)
                for function, line in applied
            ),
            f"the backward of {functions} returned None for {{them}}, or for what was computed from {{them}}",
            "return a gradient for each argument of forward that needs one, in their order; or freeze what is not to "
            "be trained",
        )


def _finding(names: list[str], where: tuple[Where, ...], why: str, fix: str) -> Finding:
    single = len(set(names)) == 1  # as `some` counts them
    words = {"they": "it", "them": "it", "were": "was"} if single else {"they": "they", "them": "them", "were": "were"}
    what = f"{some(names)} {'gets' if single else 'get'} no gradient"
    return Finding("no-gradient", what, where, why.format(**words), fix)


def gradient_of_result(error: BaseException, history: History) -> Finding | None:
    """The finding if a program ended because it took None for the gradient of a tensor that is the result of an op.

    It is an activation, or `w = w - rate * w.grad` has put a new tensor in the place of a leaf.
    """
    raised = raised_at(error)
    line = raised.line
    if line is None or not isinstance(error, (TypeError, AttributeError)) or "NoneType" not in str(error):
        return None
    frame = raised.frames[-1]
    variables = {**frame.f_globals, **variables_of(frame)}
    for name in _GRADIENT.findall(line.text):
        for tensor in _values(name, line.text, variables):
            if not isinstance(tensor, torch.Tensor) or tensor.is_leaf or tensor.retains_grad:
                continue
            maker = None if tensor.grad_fn is None else history.maker_of(sequence_nr(tensor.grad_fn))
            made = "" if maker is None or maker.source is None else maker.source.text
            if _updates(made, name, of_leaf=_first_is_leaf(tensor.grad_fn)):
                why = f"an update by hand has put a new tensor in the place of {name}, computed with gradients enabled"
                fix = (
                    f"write to the leaf itself: with torch.no_grad(): {name} -= rate * {name}.grad; {name}.grad = None"
                )
            else:
                why = f"backward passes the gradient of {name} on and does not keep it"
                fix = f"call {name}.retain_grad() before backward()"
            return Finding(
                "no-gradient",
                f"{name}.grad is None: {name} is the result of an op, and only leaves get a gradient",
                (Where("used", line), *([] if maker is None or maker.source == line else [at("made by", maker)])),
                why,
                fix,
            )
    return None


def _values(path: str, text: str, variables: Mapping[str, Any]) -> Iterator[Any]:
    """What a variable or an attribute in a line may have been.

    Since Python 3.12 the variable of a comprehension is gone when that has raised an error. The list that it went over
    is still there.
    """
    for loop in (each for each in _parsed(text) if isinstance(each, ast.comprehension)):
        variable, items = ast.unparse(loop.target), _named(ast.unparse(loop.iter), variables)
        if variable == path.partition(".")[0] and type(items) in (list, tuple):
            yield from (_named(path, {variable: item}) for item in items)
    yield _named(path, variables)


def _parsed(text: str) -> list[ast.AST]:
    """All of the syntax tree of a line; nothing of one that is a part of a statement."""
    try:
        return list(ast.walk(ast.parse(text.strip())))
    except SyntaxError:
        return []


def _named(path: str, variables: Mapping[str, Any]) -> Any:
    """The value of a variable or an attribute, such as net.w, without running code of the program's classes."""
    name, *attributes = path.split(".")
    value = variables.get(name)
    for attribute in attributes:
        value = attributes_of(value).get(attribute)
    return value


def _updates(text: str, name: str, of_leaf: bool) -> bool:
    """True if a line puts a variable less its gradient in the variable's place: w = w - rate * w.grad, or all of a list
    in the place of the list: ws = [w - rate * w.grad for w in ws].

    The gradient may have another name, as in w = w - rate * g. Then the old w has to be a leaf: h = h + block(h) is no
    update.
    """
    for statement in _parsed(text):
        if not isinstance(statement, ast.Assign):
            continue
        loops = [each for each in ast.walk(statement.value) if isinstance(each, ast.comprehension)]
        assigned = {ast.unparse(each) for target in statement.targets for each in ast.walk(target)}
        if name in assigned or any(name == ast.unparse(loop.target) for loop in loops):
            read = list(ast.walk(statement.value))
            sums = [each for each in read if isinstance(each, ast.BinOp) and isinstance(each.op, (ast.Add, ast.Sub))]
            return any(isinstance(each, ast.Attribute) and ast.unparse(each) == f"{name}.grad" for each in read) or (
                of_leaf and name in assigned and any(ast.unparse(each.left) == name for each in sums)
            )
    return False


def _first_is_leaf(node: Any) -> bool:
    """True if the first input of the op that made a node of autograd is a leaf."""
    return node is not None and any(
        leaf_of(each) is not None for each, _ in node.next_functions[:1] if each is not None
    )
