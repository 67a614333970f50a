"""A loss that backward cannot start from, and parameters that it does not reach."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.capturing.frames import is_users, user_line
from torchatlas.capturing.portable import source_row
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.cuts import Cuts, cut_by, gradients_were_disabled
from torchatlas.diagnosis.finding import Finding, Where, at, some
from torchatlas.diagnosis.leaves import Leaf
from torchatlas.graph import Graph, GraphNode, SourceLine
from torchatlas.torch_private import FunctionNode, applying_frames, next_sequence_nr

_MOST = 3  # cuts that are named
_MOST_APPLIED = 100_000  # Functions whose lines are remembered: what was applied long ago has no backward pass any more
Named = tuple[str, int | None]  # a parameter and its storage; tensors of their own may share a name
_LOOK_FOR = "look for detach(), no_grad, argmax or a cast to integers on that way; or freeze what is not to be trained"
_NOT_IN_LOSS = "{it} {was} used, but the result does not lead to the loss"
_USE_IT = "add it to the loss, or call backward() of it, or leave it out; or freeze what is not to be trained"


@CHECKS.add("loss-without-grad")
def loss_without_grad(case: Case) -> Iterator[Finding]:
    for number, loss in enumerate(case.losses):
        if not loss.requires_grad:
            which = f"loss {number}" if len(case.losses) > 1 else "the loss"
            if frozen := _frozen(case, loss):
                yield Finding(
                    "loss-without-grad",
                    f"{which} does not require a gradient: all {frozen:,} parameters behind it are frozen",
                    (*cut_off(case, loss), *_made(case, loss), *case.here()),
                    "requires_grad is False for each of them",
                    "unfreeze what is to be trained, after all freezing: model.requires_grad_(True), or its head's",
                )
                continue
            yield Finding(
                "loss-without-grad",
                f"{which} does not require a gradient",
                (*cut_off(case, loss), *case.here()),
                "it was computed with gradients disabled (no_grad, inference_mode, set_grad_enabled(False)), from "
                "detached or integer tensors, or from data alone",
                "compute it from parameters, with gradients enabled; look for detach(), .data, .item() and numpy",
            )


def _frozen(case: Case, loss: torch.Tensor) -> int:
    """How many parameters a loss was computed from, if none of them requires a gradient."""
    if case.forward is None or (storage := case.storage_of(loss)) is None:
        return 0
    parameters, cuts = case.parameters(), Cuts(case.forward)
    before = cuts.before(cuts.makers((), [storage]))
    used = [trained for each, trained in parameters.items() if not before.isdisjoint(cuts.users(each))]
    return 0 if any(used) or any(parameters.values()) else len(used)


def _made(case: Case, loss: torch.Tensor) -> list[Where]:
    """The line that made a loss."""
    if case.forward is None or (storage := case.storage_of(loss)) is None:
        return []
    columns = case.forward.columns
    makers = [node for node in columns["value_producer"][columns["value_storage"] == storage].tolist() if node >= 0]
    return [at("the loss was made by", case.forward.nodes[min(makers)])] if makers else []


def cut_off(case: Case, loss: torch.Tensor) -> list[Where]:
    """The lines that cut a loss off from parameters."""
    if case.forward is None or (storage := case.storage_of(loss)) is None:
        return []
    cuts = Cuts(case.forward)
    found = cuts.into(cuts.makers((), [storage]), case.leaves())
    lines: dict[Any, Where] = {}  # one line may have many ops
    for node in found:
        lines.setdefault(node.source or node.id, cut_by(node))
    calls = [case.call_of(node) for node in found[:_MOST] if gradients_were_disabled(node)]
    told = list(lines.values())[:_MOST]
    called = dict.fromkeys(line for line in calls if line is not None)
    return [*told, *(line for line in called if line.source not in [place.source for place in told])]


@CHECKS.add("no-gradient")
def no_gradient(case: Case) -> Iterator[Finding]:
    """Parameters that require a gradient and that no path from the loss leads to."""
    if case.model is None:
        return
    reached = {id(leaf) for node in case.nodes if (leaf := leaf_of(node)) is not None}
    missing = [
        (name, _storage(case, name, parameter))
        for name, parameter in case.model.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached
    ]
    roots = [sequence_nr(loss.grad_fn) for loss in case.losses if loss.grad_fn is not None]
    yield from without_gradient(case, missing, roots)


def loss_was_made(case: Case, loss: torch.Tensor) -> list[Where]:
    """The line that made a loss which is a leaf, and those that cut it off."""
    places = cut_off(case, loss)
    places += [place for place in _made(case, loss) if place.source not in [each.source for each in places]]
    return [*places, *case.here()]


def without_gradient(
    case: Case, missing: Sequence[Named], roots: Iterable[int], others: bool = True
) -> Iterator[Finding]:
    """Why some parameters get none; those with one cause are one finding.

    If there are no `others` that their optimizer has gradients for, a loss that they lead to may have been forgotten.
    """
    if not missing:
        return
    if case.forward is None:
        names = [name for name, _ in missing]
        yield _finding(names, case.here(), "no path from the loss leads to {it}", _LOOK_FOR)
        return
    known = {storage for _, storage in missing if storage is not None}
    cuts = Cuts(case.forward, case.parameters().keys() | known)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Any, tuple[list[str], list[Where], str, str]] = {}
    ends: dict[Any, list[int]] = {}  # the last uses of what leads nowhere, by the line where that ends
    for name, storage in missing:
        cut = cuts.after(cuts.users(storage), into)
        if cut is not None and (others or not _ends_in_a_number(cuts, cuts.uses(storage), into)):
            key, place = _cut_at(case, cut), cut_by(cut)
            called = case.caller_of(cut)  # for a model of a library the program's own line comes first
            places = [*([] if called is None else [called]), place]
            cause = causes.setdefault(key, ([], places, "what came of {it} was cut off from the loss", _LOOK_FOR))
            if place.source not in [each.source for each in cause[1]] and len(cause[1]) < _MOST:
                cause[1].append(place)
        elif uses := cuts.uses(storage) or _in_a_model(case, case.forward, cuts.users(storage)):
            end = case.forward.nodes[cuts.end_of(uses)]
            key = "leads nowhere", end.source or end.id
            ends.setdefault(key, [end.id]).append(max(uses))
            cause = causes.setdefault(key, ([], [], _NOT_IN_LOSS, _USE_IT))
        else:
            never = "{it} {was} never used" if case.whole else "{it} {was} not used lately; what is older is forgotten"
            fix = "call the module in forward; or remove or freeze it"
            cause = causes.setdefault("never", ([], list(case.here()), never, fix))
        cause[0].append(name)
    for key, (last, *uses) in ends.items():
        used, ended = case.forward.nodes[max(uses)], case.forward.nodes[last]
        places = [at("last used by", used), at("the result ends at", ended)]
        causes[key][1].extend(places[:1] if places[0].source == places[1].source else places)
    for names, places, why, fix in causes.values():
        yield _finding(names, tuple(places), why, fix)


def _ends_in_a_number(cuts: Cuts, uses: list[int], into: Collection[int]) -> bool:
    """Whether what came of some ops ends in a loss, with gradients, that no backward pass began from."""
    end = cuts.graph.nodes[cuts.end_of(uses)] if uses else None
    return end is not None and end.id not in into and [math.prod(value.shape) for value in end.outputs] == [1]


def _in_a_model(case: Case, graph: Graph, users: list[int]) -> list[int]:
    """The last of some ops if a model ran it: whoever looks at parameters from outside of it (state_dict, a norm for
    the log, a copy) does not use them."""
    return users[-1:] if users and case.call_of(graph.nodes[users[-1]]) is not None else []


def _cut_at(case: Case, cut: GraphNode) -> Any:
    """One line may cut many parameters off; where gradients are disabled, every layer of a model does."""
    if gradients_were_disabled(cut):
        called = case.call_of(cut)
        return "disabled", cut.source if called is None else called.source
    return "cut", cut.source or cut.id


def no_pass(names: list[str], step: Where, returned: bool) -> Finding:
    """No backward pass has added to any gradient."""
    if returned:
        why = "torch.autograd.grad returns gradients, and nobody has put them into .grad, where the step looks for them"
        return _finding(names, (step,), why, "call loss.backward(), or set .grad of each parameter before the step")
    why = "no backward pass ran: the step has nothing to go by"
    return _finding(names, (step,), why, "call loss.backward() before optimizer.step()")


def made_anew(names: list[str], places: Iterable[Where]) -> Finding:
    """The loss that backward began from was a new leaf."""
    return _finding(
        names,
        tuple(places),
        "the loss was made anew of its numbers, or of results without gradients, and only then told to require a "
        "gradient: backward began and ended there",
        "call backward() of the loss itself: leave out torch.tensor(loss, requires_grad=True), requires_grad_(), "
        "detach() and .data; compute it with gradients enabled",
    )


def only_zeros(case: Case, zeros: Sequence[Named], roots: Iterable[int]) -> Iterator[Finding]:
    """Parameters whose gradient is there, and zero because of a function that is flat between its steps."""
    if not zeros or case.forward is None:
        return
    cuts = Cuts(case.forward)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Any, tuple[Where, list[str]]] = {}
    for name, storage in zeros:
        found = cuts.flattened(cuts.users(storage), into)
        if found is not None:
            causes.setdefault(found.source or found.id, (at("flattened by", found), []))[1].append(name)
    for where, names in causes.values():
        why = "the derivative of a function that rounds is zero wherever it has one"
        fix = "let the gradient pass straight through: x + (x.round() - x).detach()"
        yield replace(_finding(names, (where,), why, fix), what=f"the gradient of {some(names)} is always zero")


def _storage(case: Case, name: str, parameter: torch.Tensor) -> int | None:
    """Of a parameter, by itself or by the name that the recording knows it by."""
    known = case.storage_of(parameter)
    if known is not None or case.forward is None:
        return known
    names = case.forward.tables.names
    values = case.forward.columns["value_parameter"]
    found = (values == names.index(name)).nonzero()[0] if name in names else []
    return int(case.forward.columns["value_storage"][found[0]]) if len(found) else None


def _finding(names: list[str], where: tuple[Where, ...], why: str, fix: str) -> Finding:
    one = len(set(names)) == 1  # as `some` counts them
    words = {"it": "it", "was": "was"} if one else {"it": "them", "was": "were"}
    words = words if not why.startswith("{it} {was}") or one else {"it": "they", "was": "were"}
    get = "gets" if one else "get"
    return Finding("no-gradient", f"{some(names)} {get} no gradient", where, why.format(**words), fix)


class Functions:
    """The program's own autograd Functions: where they are applied, and for which leaves backward returns None."""

    def __init__(self) -> None:
        self.stopped: dict[Leaf, list[_Applied]] = {}  # by what
        self._lines: dict[int, SourceLine] = {}  # that applied Functions, by autograd's number of the node
        self._latest = -1  # node at which an op was looked at
        self._given: dict[int, bool] | None = None  # the nodes of the pass that runs: whether a gradient came to them

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

    def pass_begins(self, nodes: list[Any]) -> None:
        self._given = {} if any(_function(node) is not None for node in nodes) else None

    def node_runs(self, node: int, gradients: Iterable[Any]) -> None:
        if self._given is not None:
            self._given[node] = any(gradient is not None for gradient in gradients)

    def pass_ends(self, nodes: list[Any], missing: Mapping[int, Leaf]) -> set[Leaf]:
        """Those of some leaves, by the numbers of their nodes, that got None because of such Functions alone."""
        given, self._given = self._given, None
        nothing = {number: leaf for number, leaf in missing.items() if given is not None and given.get(number) is False}
        if given is None or not nothing:
            return set()
        targets = _targets(nodes, given)
        last: dict[_Applied, set[int]] = {}  # what got a gradient and passed none on, and to which nodes
        others: set[int] = set()  # to which what is not the program's passed none on
        for number, came in given.items():
            if came and targets[number]:
                function = _function(nodes[number])
                line = self._lines.get(sequence_nr(nodes[number]))
                (others if function is None else last.setdefault((function, line), set())).update(targets[number])
        others = _behind(others, targets)
        found: dict[Leaf, list[_Applied]] = {}
        for applied, first in last.items():  # each walks the graph once; they are as few as the lines of the program
            behind = _behind(first, targets)
            for number, leaf in nothing.items():
                if number in behind and number not in others:
                    found.setdefault(leaf, []).append(applied)
        self.stopped |= found
        return set(found)

    def findings(self, missing: Iterable[Leaf]) -> Iterator[Finding]:
        causes: dict[tuple[_Applied, ...], list[str]] = {}
        for leaf in missing:
            if leaf in self.stopped:
                causes.setdefault(tuple(self.stopped[leaf][:_MOST]), []).append(leaf.name)
        for applied, names in causes.items():
            functions = " and ".join(dict.fromkeys(function.__name__ for function, _ in applied))
            yield _finding(
                names,
                tuple(
                    Where(f"cut by the backward of {function.__name__}, which returned no gradient", line)
                    for function, line in applied
                ),
                f"the backward of {functions} returned None for {{it}}, or for what came of {{it}}",
                "return a gradient for each argument of forward that needs one, in their order; or freeze what is not "
                "to be trained",
            )


_Applied = tuple[type, SourceLine | None]  # a Function, and the line that applied it


def _function(node: Any) -> type | None:
    """The program's Function that a node of autograd belongs to."""
    found: Any = getattr(type(node), "_forward_cls", None) if isinstance(node, FunctionNode) else None
    module = sys.modules.get(getattr(found, "__module__", ""))
    return found if found is not None and is_users(getattr(module, "__file__", None) or "") else None


def _targets(nodes: list[Any], given: Mapping[int, bool]) -> dict[int, list[int]]:
    """Of each node that ran: those it passes gradients on to that ran, too, and got none."""
    numbers = {nodes[number]: number for number, came in given.items() if not came}
    return {
        number: [numbers[target] for target, _ in nodes[number].next_functions if target in numbers] for number in given
    }


def _behind(first: Collection[int], targets: Mapping[int, list[int]]) -> set[int]:
    """These nodes, and all on the way from them to the leaves."""
    found, waiting = set(first), list(first)
    while waiting:
        for target in targets[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found
