"""Graph of a training step and a memory limit -> which modules to checkpoint, so that the least is computed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchatlas.analysis.checkpoint_candidates import Candidate, TrainingStep
from torchatlas.analysis.checkpoint_search import Search
from torchatlas.analysis.checkpoint_trial import Trial
from torchatlas.analysis.cost import cost
from torchatlas.analysis.devices import Device
from torchatlas.analysis.reports import Report, fields_as_json
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.graph_like import as_graph
from torchatlas.registry import check_choice, did_you_mean
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import byte_limit, format_bytes, format_flops, format_seconds

MEASURES = ("flops", "time")
_MOST_ROWS = 30


@dataclass(frozen=True, repr=False)
class CheckpointedModule(Report):
    """One module to checkpoint. What runs again ends with the last tensor that backward needs."""

    path: str
    type: str
    saved_bytes: int  # inside it, that are freed in forward
    output_bytes: int
    flops: int  # computed again, 2 per multiply-add
    elementwise_flops: int
    seconds: float  # to do so, at best

    def _headline(self) -> str:
        again = format_flops(self.flops + self.elementwise_flops)
        return clean(f"{self.path} ({self.type}): {format_bytes(self.saved_bytes)} freed, {again} computed again")


@dataclass(frozen=True, repr=False)
class CheckpointChoice(Report):
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
    candidates: int  # how many modules could be chosen
    tried: int  # sets whose peak was predicted
    excluded: dict[str, str] = field(repr=False)  # modules that would save memory and must not run twice, and why
    notes: tuple[str, ...] = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the modules."""
        return tuple(one.path for one in self.modules)

    @property
    def flops(self) -> int:
        """Computed again, 2 per multiply-add."""
        return sum(one.flops for one in self.modules)

    @property
    def elementwise_flops(self) -> int:
        """Other arithmetic that is computed again."""
        return sum(one.elementwise_flops for one in self.modules)

    @property
    def seconds(self) -> float:
        """To compute it again, at best."""
        return sum(one.seconds for one in self.modules)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        sums = {name: getattr(self, name) for name in ("flops", "elementwise_flops", "seconds")}
        return {**fields_as_json(self), **sums}

    def _sections(self) -> Iterator[Section]:
        return choice_sections(self)


def choose_checkpoints(
    graph: Graph,
    limit: float | str,
    *,
    by: str = "flops",
    device: Device | str | None = None,
    exclude: Iterable[str] = (),
    refused: Iterable[str] = (),
) -> CheckpointChoice:
    """Which modules of a recorded training step to checkpoint so that its peak is at most `limit`.

    `limit` is in bytes or text such as "8GiB". `by` says what to do least of again: "flops", all arithmetic, or "time",
    best seconds on `device`. Modules in `exclude` are not run twice, and so neither what is inside them nor what holds
    them is checkpointed; those in `refused` are not checkpointed themselves.
    """
    graph = as_graph(graph, "choose_checkpoints")
    check_choice("by", by, MEASURES)
    limit_bytes = byte_limit(limit)
    exclude = frozenset(exclude)
    if unknown := sorted(path for path in exclude if path not in graph.scopes):
        hint = did_you_mean(unknown[0], graph.scopes) or "; its modules are in graph.scopes."
        raise InvalidInputError(f"exclude: this graph has no module {unknown[0]!r}{hint}")
    costs = cost(graph, device)
    search = Search(TrainingStep(graph, costs), limit_bytes, by, exclude, frozenset(refused))
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
        limit_bytes=limit_bytes,
        plain_peak_bytes=search.step.peak_bytes,
        peak_bytes=Trial(search.step, chosen).peak(),
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
    """The message for a limit that no set meets, from the choice with the smallest peak, and that peak."""
    smallest_peak = (
        "The smallest peak reachable" if smallest.exact else f"The smallest peak of {smallest.tried:,} sets tried"
    )
    excluded = len(smallest.excluded)
    left_out = f" {excluded:,} module{'s' * (excluded != 1)} must not run twice." if excluded else ""
    return (
        f"No checkpointing of modules brings this training step from {format_bytes(smallest.plain_peak_bytes)} into "
        f"{format_bytes(smallest.limit_bytes)}.{left_out} {smallest_peak} is {peak_bytes:,} bytes "
        f"({format_bytes(peak_bytes)}): limit={peak_bytes} works; for less, use a smaller batch, a lighter "
        "optimizer or a smaller dtype."
    )


def _module(one: Candidate) -> CheckpointedModule:
    return CheckpointedModule(
        one.path, one.type, one.saved_bytes, one.output_bytes, one.flops, one.elementwise_flops, one.seconds
    )


# -- as text -----------------------------------------------------------------------------------------------------------


def choice_sections(choice: CheckpointChoice, more: Sequence[str] = ()) -> Iterator[Section]:
    """What to checkpoint and what that takes. Lines of `more` come under its head."""
    limit, plain = format_bytes(choice.limit_bytes), format_bytes(choice.plain_peak_bytes)
    if not choice.modules:
        yield Lines([f"nothing to checkpoint: the peak of {plain} is within {limit} as it is", *more])
        return
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
    yield Lines([*head, *more])
    yield Table(["module", "type", ">freed", ">output", ">computed again", ">at best"], rows)
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
    yield Lines([], notes)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
