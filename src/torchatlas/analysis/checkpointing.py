"""Graph of a training step and a memory limit -> which modules to checkpoint, so that the least is computed again.

Exact where few enough sets are to be tried: of blocks that are alike the earliest are taken, as what they free is gone
for longest, and every number of them with every number of the others is tried. Where there are more sets, several
greedy ways compete, and `least_work` says what no set can do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np

from torchatlas.analysis.cost import cost
from torchatlas.analysis.devices import Device
from torchatlas.analysis.recompute import Candidate, Step
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph
from torchatlas.registry import near_names
from torchatlas.tables import text_lines, text_table
from torchatlas.units import format_bytes, format_flops, format_seconds

MEASURES = ("flops", "time")
_MOST_SETS = 4096  # that are tried, all of them or of those that look good
_LEAST_SHARE = 0.002  # of the peak, that all modules of a kind must save together to be worth a look
_MOST_ROWS = 30


@dataclass(frozen=True)
class CheckpointedModule:
    """One module to checkpoint. What runs again ends with the last tensor that backward needs."""

    path: str
    type: str
    saved_bytes: int  # inside it, that are freed in forward
    output_bytes: int
    flops: int  # computed again, 2 per multiply-add
    elementwise_flops: int
    seconds: float  # to do so, at best

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__}


@dataclass(frozen=True)
class CheckpointChoice:
    """What to checkpoint, and what that does as the graph of the plain step predicts it. Print it."""

    modules: tuple[CheckpointedModule, ...]
    limit_bytes: int
    plain_peak_bytes: int
    peak_bytes: int  # predicted
    by: str
    work: float  # what is computed again, in FLOPs of all kinds or best seconds, as `by` says
    step_work: float  # what the plain step takes, in the same
    exact: bool  # whether no other set of these candidates does it with less
    least_work: float  # no set does it with less than this; equal to `work` where the choice is exact
    candidates: int
    tried: int  # sets whose peak was predicted
    excluded: dict[str, str] = field(repr=False)  # modules that would save memory and must not run twice, and why
    notes: tuple[str, ...] = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.modules)

    @property
    def flops(self) -> int:
        """Computed again, 2 per multiply-add."""
        return sum(one.flops for one in self.modules)

    @property
    def elementwise_flops(self) -> int:
        return sum(one.elementwise_flops for one in self.modules)

    @property
    def seconds(self) -> float:
        """To compute it again, at best."""
        return sum(one.seconds for one in self.modules)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        plain = ("limit_bytes", "plain_peak_bytes", "peak_bytes", "by", "work", "step_work", "exact", "least_work")
        more = ("candidates", "tried", "flops", "elementwise_flops", "seconds")
        return {
            **{name: getattr(self, name) for name in (*plain, *more)},
            "modules": [one.to_dict() for one in self.modules],
            "excluded": self.excluded,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return choice_text(self)


def choose_checkpoints(
    graph: Graph,
    limit: float,
    *,
    by: str = "flops",
    device: Device | str | None = None,
    exclude: Iterable[str] = (),
    refused: Iterable[str] = (),
) -> CheckpointChoice:
    """Which modules of a recorded training step to checkpoint so that its peak is at most `limit` bytes.

    `by` says what to do least of again: "flops", all arithmetic, or "time", best seconds on `device`. Modules in
    `exclude` are not run twice, and so neither what is inside them nor what holds them is checkpointed; those in
    `refused` are not checkpointed themselves.
    """
    if not isinstance(graph, Graph):
        raise InvalidInputError(f"This takes a Graph, not {type(graph).__name__}; make one with atlas.capture(...).")
    if by not in MEASURES:
        raise InvalidInputError(f"by={by!r}: one of {', '.join(MEASURES)}.")
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < float("inf"):
        raise InvalidInputError(f"limit={limit!r} is no number of bytes; 8 GiB are 8 * 2**30.")
    exclude = frozenset(exclude)
    if unknown := sorted(path for path in exclude if path not in graph.scopes):
        near = " or ".join(repr(name) for name in near_names(unknown[0], graph.scopes))
        hint = f"did you mean {near}?" if near else "its modules are in graph.scopes."
        raise InvalidInputError(f"exclude: this graph has no module {unknown[0]!r}; {hint}")
    costs = cost(graph, device)
    search = _Search(Step(graph, costs), int(limit), by, exclude, frozenset(refused))
    total = costs.total
    step_work = total.seconds if by == "time" else total.flops + total.elementwise_flops
    notes = []
    if costs.uncosted:
        notes.append(f"without a cost formula, so in no figure of work: {', '.join(costs.uncosted)}")
    if search.step.storages.unknown.any():
        notes.append("some tensors do not tell their size: all peaks are at least what is said")
    chosen = search.best()
    fits = chosen is not None
    if chosen is None:
        chosen = search.smallest()
    work = search.work(chosen)
    choice = CheckpointChoice(
        modules=tuple(_module(one) for one in chosen),
        limit_bytes=int(limit),
        plain_peak_bytes=search.step.peak_bytes,
        peak_bytes=search.step.peak(chosen),
        by=by,
        work=work,
        step_work=step_work,
        exact=search.exact,
        least_work=work if search.exact else min(search.least_work(), work),
        candidates=len(search.candidates),
        tried=search.tried,
        excluded=search.step.excluded,
        notes=tuple(notes),
    )
    if not fits:
        error = AnalysisError(nothing_fits(choice, choice.peak_bytes))
        error.partial = choice
        raise error
    return choice


def nothing_fits(smallest: CheckpointChoice, peak_bytes: int) -> str:
    """What to tell a user whose limit no set meets, of the choice with the smallest peak, and that peak."""
    found = "The smallest peak reachable" if smallest.exact else f"The smallest peak of {smallest.tried:,} sets tried"
    left_out = f" {len(smallest.excluded):,} modules must not run twice." if smallest.excluded else ""
    return (
        f"No checkpointing of modules brings this training step from {format_bytes(smallest.plain_peak_bytes)} into "
        f"{format_bytes(smallest.limit_bytes)}.{left_out} {found} is {peak_bytes:,} bytes "
        f"({format_bytes(peak_bytes)}): limit={peak_bytes} works; for less, use a smaller batch, a lighter "
        "optimizer or a smaller dtype."
    )


def _module(one: Candidate) -> CheckpointedModule:
    return CheckpointedModule(
        one.path, one.type, one.saved_bytes, one.output_bytes, one.flops, one.elementwise_flops, one.seconds
    )


def _related(one: str, other: str) -> bool:
    """Whether one path is the other, inside it or around it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


class _Search:
    """Looks for the set of least work whose peak is within the limit. Sets are tuples in order of execution."""

    def __init__(self, step: Step, limit: int, by: str, exclude: frozenset[str], refused: frozenset[str]) -> None:
        self.step, self.limit, self.by = step, limit, by
        self.tried, self.exact = 0, True
        self._peaks: dict[tuple[int, ...], int] = {}
        kinds: dict[Any, list[Candidate]] = {}
        for one in step.candidates:
            if one.path not in refused and not any(_related(one.path, path) for path in exclude):
                kinds.setdefault(one.is_like(), []).append(one)
        least = _LEAST_SHARE * step.peak_bytes
        self.groups = [group for group in kinds.values() if sum(one.saved_bytes for one in group) >= least]
        self.candidates = sorted((one for group in self.groups for one in group), key=lambda one: one.first)

    def best(self) -> tuple[Candidate, ...] | None:
        """The set to take: empty where the plain step fits; None where nothing does."""
        sizes = [len(group) + 1 for group in self.groups]
        self.exact = int(np.prod(sizes, dtype=object)) <= _MOST_SETS
        if self.step.peak_bytes <= self.limit:
            self.exact = True
            return ()
        return self._cheapest(self._counted(range(len(self.groups)))) if self.exact else self._competed()

    def smallest(self) -> tuple[Candidate, ...]:
        """The set of the smallest peak, of those with the least work; of all sets, or of those that look good."""
        if self.exact:
            sets = self._counted(range(len(self.groups)))
        else:
            sets = [one for number in range(len(self.groups)) for one in self._counted([number])]
            sets += [one for power in (0.0, 1.0) if (one := self._greedy(power, all_the_way=True)) is not None]
        return min(sets, key=lambda one: (self.peak(one), self.work(one)))

    def work(self, chosen: Sequence[Candidate]) -> float:
        return sum(self._work(one) for one in chosen)

    def _work(self, one: Candidate) -> float:
        return one.seconds if self.by == "time" else one.work

    def peak(self, chosen: tuple[Candidate, ...]) -> int:
        key = tuple(one.first * len(self.step.graph) + one.last for one in chosen)
        if key not in self._peaks:
            self.tried += 1
            self._peaks[key] = self.step.peak(chosen)
        return self._peaks[key]

    # -- all sets ------------------------------------------------------------------------------------------------------

    def _counted(self, numbers: Iterable[int]) -> list[tuple[Candidate, ...]]:
        """So many of each of these groups, the earliest that are in none taken before, for all numbers of them."""
        groups = sorted((self.groups[number] for number in numbers), key=lambda group: group[0].first - group[0].last)
        found = []
        for counts in product(*(range(len(group) + 1) for group in groups)):
            chosen: list[Candidate] = []
            for count, group in zip(counts, groups, strict=True):  # the longest first: inner ones have to give way
                free = [one for one in group if not any(one.meets(other) for other in chosen)]
                if count > len(free):
                    break
                chosen += free[:count]
            else:
                found.append(tuple(sorted(chosen, key=lambda one: one.first)))
        return found

    def _cheapest(self, sets: list[tuple[Candidate, ...]], below: float = float("inf")) -> tuple[Candidate, ...] | None:
        """The first in order of work, and of peak among equals, that fits."""
        node = int(self.step.live.argmax())
        need = int(self.step.live[node]) - self.limit
        freed = {id(one): self.step.freed_at(one, node) for one in self.candidates}
        ranked = sorted(((self.work(one), len(one), number) for number, one in enumerate(sets)))
        for work, _, number in ranked:
            if work >= below:
                return None
            enough = sum(freed[id(one)] for one in sets[number]) >= need  # without that its peak need not be predicted
            if enough and self.peak(sets[number]) <= self.limit:
                return sets[number]
        return None

    # -- some sets -----------------------------------------------------------------------------------------------------

    def _competed(self) -> tuple[Candidate, ...] | None:
        """The cheapest of: as much as needed of one or two kinds, and greedy sets, each without what it can spare."""
        found = [self._greedy(power) for power in (0.0, 0.5, 1.0, 2.0)]
        found += [self._cheapest(self._counted([number])) for number in range(len(self.groups))]
        within = [self._spared(one) for one in found if one is not None]
        best = min(within, key=self.work, default=None)
        by_value = sorted(range(len(self.groups)), key=lambda number: -sum(c.saved_bytes for c in self.groups[number]))
        for pair in combinations(by_value[:8], 2):
            if self.tried > _MOST_SETS:
                break
            below = float("inf") if best is None else self.work(best)
            better = self._cheapest(self._counted(pair), below)
            if better is not None:
                best = self._spared(better)
        return None if best is None else self._improved(best)

    def _improved(self, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The same with one exchanged for one or two that take less together, as long as that helps."""
        for one in sorted(chosen, key=lambda one: -self._work(one)):
            rest, work = tuple(other for other in chosen if other is not one), self._work(one)
            cheaper = [
                other
                for other in self.candidates
                if self._work(other) < work and not any(other.meets(kept) for kept in rest) and other is not one
            ]
            pairs = [pair for pair in combinations(cheaper, 2) if not pair[0].meets(pair[1])]
            more = [pair for pair in pairs if self.work(pair) < work] if len(pairs) < _MOST_SETS else []
            sets = [tuple(sorted((*rest, *new), key=lambda c: c.first)) for new in (*((c,) for c in cheaper), *more)]
            better = self._cheapest(sets, self.work(chosen))
            if better is not None and self.tried <= _MOST_SETS:
                return self._improved(self._spared(better))
        return chosen

    def _greedy(self, power: float, *, all_the_way: bool = False) -> tuple[Candidate, ...] | None:
        """Where it is fullest, take what frees most there for its work (to a power), until it fits."""
        chosen: list[Candidate] = []
        while True:
            peak, place = self.step.peak_and_place(chosen)
            if peak <= self.limit and not all_the_way:
                return tuple(chosen)
            best, best_value = None, 0.0
            for one in self.candidates:
                if any(other.contains(one) for other in chosen):
                    continue
                inner = [other for other in chosen if one.contains(other)]
                gain = self.step.freed_at(one, place) - sum(self.step.freed_at(other, place) for other in inner)
                price = max(self._work(one) - self.work(inner), 1e-30)
                if gain > 0 and (value := gain / price**power) > best_value * (1 + 1e-9):
                    best, best_value = one, value
            if best is None:
                return tuple(chosen) if all_the_way else None
            chosen = sorted([one for one in chosen if not best.contains(one)] + [best], key=lambda one: one.first)

    def _spared(self, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The same without what is not needed, the dearest first."""
        for one in sorted(chosen, key=lambda one: -self._work(one)):
            fewer = tuple(other for other in chosen if other is not one)
            if self.peak(fewer) <= self.limit:
                chosen = fewer
        return chosen

    def least_work(self) -> float:
        """What any set must take: at each node enough has to be freed, at the best price if parts could be bought."""
        over = np.flatnonzero(self.step.live > self.limit)
        most = 0.0
        for node in {int(self.step.live.argmax()), *over[:: max(1, len(over) // 32)].tolist()}:
            need, price = int(self.step.live[node]) - self.limit, 0.0
            freeing = [(one, freed) for one in self.candidates if (freed := self.step.freed_at(one, node))]
            for rate, freed in sorted((self._work(one) / freed, freed) for one, freed in freeing):
                price += rate * min(freed, need)
                need -= min(freed, need)
            most = max(most, price)
        return most


# -- as text -----------------------------------------------------------------------------------------------------------


def choice_text(choice: CheckpointChoice, more: Sequence[str] = ()) -> str:
    """The choice as plain text. Lines of `more` come under its head."""
    limit, plain = format_bytes(choice.limit_bytes), format_bytes(choice.plain_peak_bytes)
    if not choice.modules:
        return text_lines([f"nothing to checkpoint: the peak of {plain} is within {limit} as it is", *more])
    head = [
        f"checkpoint {len(choice.modules):,} of {choice.candidates:,} modules: the peak goes from {plain} to "
        f"{format_bytes(choice.peak_bytes)}, within {limit}",
        f"computed again: {format_flops(choice.flops)} and {format_flops(choice.elementwise_flops)} of other "
        f"arithmetic, {format_seconds(choice.seconds)} at best, {_share(choice.work, choice.step_work)} of the step",
    ]
    if choice.exact:
        head.append(f"no other set does it with less ({choice.tried:,} sets were looked at)")
    else:
        head.append(
            f"the best of {choice.tried:,} sets; no set does it with less than "
            f"{_share(choice.least_work, choice.step_work)} of the step"
        )
    rows = [
        [
            one.path,
            one.type,
            format_bytes(one.saved_bytes),
            format_bytes(one.output_bytes),
            format_flops(one.flops + one.elementwise_flops),
            format_seconds(one.seconds),
        ]
        for one in choice.modules[:_MOST_ROWS]
    ]
    table = text_table(["module", "type", ">freed", ">output", ">computed again", ">at best"], rows)
    notes = list(choice.notes)
    if (left := len(choice.modules) - _MOST_ROWS) > 0:
        notes.append(f"{left:,} more modules are not listed")
    if choice.excluded:
        reasons: dict[str, list[str]] = {}
        for path, reason in choice.excluded.items():
            reasons.setdefault(reason, []).append(path)
        for reason, paths in reasons.items():
            listed = ", ".join(paths[:5]) + (f" and {len(paths) - 5:,} more" if len(paths) > 5 else "")
            notes.append(f"left out, as each {reason}: {listed}")
    parts = [text_lines([*head, *more]), table, text_lines(f"note: {note}" for note in notes)]
    return "\n\n".join(part for part in parts if part)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
