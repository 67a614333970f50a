"""A loss that backward cannot start from, and parameters that it does not reach."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.capturing.describe import source_row
from torchatlas.capturing.frames import is_users, user_line
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.cuts import Cuts, cut_by
from torchatlas.diagnosis.finding import Finding, Where, at, some
from torchatlas.diagnosis.leaves import Leaf, variables_of
from torchatlas.torch_private import FunctionNode

_MOST = 3  # cuts that are named
Cause = tuple[tuple[Where, ...], str, str]  # where, why, and the fix
_LOOK_FOR = "look for detach(), no_grad, argmax or a cast to integers on that way; or freeze what is not to be trained"
_APPLY: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_USE_IT = "add it to the loss, or leave it out; or freeze what is not to be trained"


@CHECKS.add("loss-without-grad")
def loss_without_grad(case: Case) -> Iterator[Finding]:
    for number, loss in enumerate(case.losses):
        if not loss.requires_grad:
            which = f"loss {number}" if len(case.losses) > 1 else "the loss"
            yield Finding(
                "loss-without-grad",
                f"{which} does not require a gradient",
                (*_cuts(case, loss), *case.here()),
                "it was computed with gradients disabled (no_grad, inference_mode, set_grad_enabled(False)), from "
                "detached or integer tensors, or from data alone",
                "compute it from parameters, with gradients enabled; look for detach(), .data, .item() and numpy",
            )


def _cuts(case: Case, loss: torch.Tensor) -> list[Where]:
    if case.forward is None or (storage := case.storage_of(loss)) is None:
        return []
    cuts = Cuts(case.forward)
    found = cuts.into(cuts.makers((), [storage]), case.leaves())
    lines: dict[Any, Where] = {}  # one line may have many ops
    for node in found:
        lines.setdefault(node.source or node.id, cut_by(node))
    return list(lines.values())[:_MOST]


@CHECKS.add("no-gradient")
def no_gradient(case: Case) -> Iterator[Finding]:
    """Parameters that require a gradient and that no path from the loss leads to."""
    if case.model is None:
        return
    reached = {id(leaf) for node in case.nodes if (leaf := leaf_of(node)) is not None}
    missing = {
        name: _storage(case, name, parameter)
        for name, parameter in case.model.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached
    }
    roots = [sequence_nr(loss.grad_fn) for loss in case.losses if loss.grad_fn is not None]
    yield from without_gradient(case, missing, roots)


def without_gradient(case: Case, missing: Mapping[str, int | None], roots: Iterable[int]) -> Iterator[Finding]:
    """Why some parameters, of some storages, get none; those with one cause are one finding."""
    if not missing:
        return
    if case.forward is None:
        yield _finding(list(missing), case.here(), "no path from the loss leads to {it}", _LOOK_FOR)
        return
    cuts = Cuts(case.forward)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Any, tuple[list[str], tuple[Where, ...], str, str]] = {}
    for name, storage in missing.items():
        users = cuts.users(storage)
        cut = cuts.after(users, into)
        if cut is not None:
            called = case.caller_of(cut)  # for a model of a library the program's own line comes first
            places = (*([] if called is None else [called]), cut_by(cut))
            cause: Cause = places, "what came of {it} was cut off from the loss", _LOOK_FOR
        elif users:
            last = case.forward.nodes[max(users)]
            cause = (at("last used by", last),), "{it} {was} used, but the result does not lead to the loss", _USE_IT
        else:
            never = "{it} {was} never used" if case.whole else "{it} {was} not used lately; what is older is forgotten"
            cause = case.here(), never, "call the module in forward; or remove or freeze it"
        lines = tuple(place.source or place.what for place in cause[0][:1])  # one line may use many parameters
        causes.setdefault((lines, cause[1]), ([], *cause))[0].append(name)
    for names, places, why, fix in causes.values():
        yield _finding(names, places, why, fix)


def only_zeros(case: Case, zeros: Mapping[str, int | None], roots: Iterable[int]) -> Iterator[Finding]:
    """Parameters whose gradient is there, and zero because of a function that is flat between its steps."""
    if not zeros or case.forward is None:
        return
    cuts = Cuts(case.forward)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Any, tuple[Where, list[str]]] = {}
    for name, storage in zeros.items():
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
    words = {"it": "it", "was": "was"} if len(names) == 1 else {"it": "them", "was": "were"}
    words = words if not why.startswith("{it} {was}") or len(names) == 1 else {"it": "they", "was": "were"}
    get = "gets" if len(names) == 1 else "get"
    return Finding("no-gradient", f"{some(names)} {get} no gradient", where, why.format(**words), fix)


class Functions:
    """The program's own autograd Functions: where they are applied, and for which leaves backward returns None."""

    def __init__(self) -> None:
        self.stopped: dict[Leaf, type] = {}  # by which Function
        self._applied: dict[type, dict[Where, None]] = {}
        self._seen: set[tuple[CodeType, int]] = set()  # lines whose ops were looked at
        self._given: dict[int, bool] | None = (
            None  # the nodes of the pass that ran, and whether a gradient came to them
        )

    def op_ran(self) -> None:
        """Remember the line that applied the Function in whose forward this op ran, if it did."""
        frame: FrameType | None = sys._getframe(1)
        line = user_line(frame)
        if line is None or line in self._seen:
            return
        self._seen.add(line)
        while frame is not None and frame.f_code is not _APPLY:
            frame = frame.f_back
        if frame is None or (outer := user_line(frame.f_back)) is None:
            return
        self._seen.discard(line)  # another line may apply it, too
        self._applied.setdefault(variables_of(frame)["cls"], {}).setdefault(Where("applied", source_row(*outer)))

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
        sources: dict[Any, list[int]] = {}
        for number, node in enumerate(nodes):
            for target, _ in node.next_functions:
                sources.setdefault(target, []).append(number)
        found = set()
        for number, leaf in nothing.items():
            by = [_function(nodes[source]) for source in _last_given(number, nodes, sources, given)]
            if by and (first := by[0]) is not None and None not in by:
                found.add(leaf)
                self.stopped[leaf] = first
        return found

    def findings(self, missing: Iterable[Leaf]) -> Iterator[Finding]:
        causes: dict[type, list[str]] = {}
        for leaf in missing:
            if leaf in self.stopped:
                causes.setdefault(self.stopped[leaf], []).append(leaf.name)
        for function, names in causes.items():
            lines = list(self._applied.get(function, ()))[:_MOST]
            what = f"cut by the backward of {function.__name__}, which returned no gradient"
            yield _finding(
                names,
                tuple(replace(line, what=what) for line in lines) or (Where(what),),
                f"{function.__name__}.backward returned None for {{it}}, or for what came of {{it}}",
                "return a gradient for each argument of forward that needs one, in their order; or freeze what is not "
                "to be trained",
            )


def _function(node: Any) -> type | None:
    """The program's Function that a node of autograd belongs to."""
    found: Any = getattr(type(node), "_forward_cls", None) if isinstance(node, FunctionNode) else None
    module = sys.modules.get(getattr(found, "__module__", ""))
    return found if found is not None and is_users(getattr(module, "__file__", None) or "") else None


def _last_given(node: int, nodes: list[Any], sources: Mapping[Any, list[int]], given: Mapping[int, bool]) -> list[int]:
    """The nodes before one, on the way of the gradients, that were the last to get some."""
    found, seen, waiting = list[int](), {node}, [node]
    while waiting:
        for source in sources.get(nodes[waiting.pop()], ()):
            if source not in seen and source in given:
                seen.add(source)
                (found if given[source] else waiting).append(source)
    return found
