"""A loss that backward cannot start from, and parameters that it does not reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchatlas.autograd.walk import leaf_of, sequence_nr
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.cuts import Cuts, cut_by
from torchatlas.diagnosis.finding import Finding, Where, at, some

_MOST = 3  # cuts that are named
Cause = tuple[tuple[Where, ...], str, str]  # where, why, and the fix
_LOOK_FOR = "look for detach(), no_grad, argmax or a cast to integers on that way; or freeze what is not to be trained"
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
                "it was computed under no_grad or inference_mode, from detached or integer tensors, or from data alone",
                "compute it from parameters, with gradients enabled; look for detach(), .data, .item() and numpy",
            )


def _cuts(case: Case, loss: torch.Tensor) -> list[Where]:
    if case.forward is None or (storage := case.storage_of(loss)) is None:
        return []
    cuts = Cuts(case.forward)
    found = cuts.into(cuts.makers((), [storage]), case.leaves())
    return [cut_by(node) for node in found[:_MOST]]


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
        causes.setdefault((cause[0][:1], cause[1]), ([], *cause))[0].append(name)
    for names, places, why, fix in causes.values():
        yield _finding(names, places, why, fix)


def only_zeros(case: Case, zeros: Mapping[str, int | None], roots: Iterable[int]) -> Iterator[Finding]:
    """Parameters whose gradient is there, and zero because of a function that is flat between its steps."""
    if not zeros or case.forward is None:
        return
    cuts = Cuts(case.forward)
    into = cuts.before(cuts.makers(roots))
    causes: dict[Where, list[str]] = {}
    for name, storage in zeros.items():
        found = cuts.flattened(cuts.users(storage), into)
        if found is not None:
            causes.setdefault(at("flattened by", found), []).append(name)
    for where, names in causes.items():
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
