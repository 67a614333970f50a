"""The order in which each rank runs stages and microbatches, as torch's schedules have it, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchatlas.errors import InvalidInputError
from torchatlas.graph.shown import Shown
from torchatlas.registry import Registry
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_seconds


class Action(NamedTuple):
    """One microbatch through one stage, forward or backward."""

    stage: int
    kind: str  # "F" or "B"
    microbatch: int


Order = list[list[Action]]  # per rank
SCHEDULES: Registry[Callable[[int, int, int], Order]] = Registry("schedule")


@SCHEDULES.add("gpipe")
def gpipe(ranks: int, stages: int, microbatches: int) -> Order:
    """All forwards, then all backwards."""
    return [[Action(rank, kind, mb) for kind in "FB" for mb in range(microbatches)] for rank in range(ranks)]


@SCHEDULES.add("1f1b")
def one_forward_one_backward(ranks: int, stages: int, microbatches: int) -> Order:
    """As many forwards as there are stages from here on, then one backward and one forward in turn."""
    order: Order = []
    for rank in range(ranks):
        ahead = min(ranks - rank, microbatches)
        mine = [Action(rank, "F", mb) for mb in range(ahead)]
        for mb in range(microbatches):
            mine.append(Action(rank, "B", mb))
            if mb + ahead < microbatches:
                mine.append(Action(rank, "F", mb + ahead))
        order.append(mine)
    return order


@SCHEDULES.add("interleaved")
def interleaved(ranks: int, stages: int, microbatches: int) -> Order:
    """1F1B with several stages per rank, in rounds of as many microbatches as there are ranks."""
    local, total = stages // ranks, stages // ranks * microbatches
    order: Order = []
    for rank in range(ranks):
        ahead = min((local - 1) * ranks + 2 * (ranks - 1 - rank), total)

        def action(kind: str, turn: int, rank: int = rank) -> Action:
            turns, within = divmod(turn, ranks * local)
            chunk, mb = divmod(within, ranks)
            chunk = chunk if kind == "F" else local - 1 - chunk
            return Action(chunk * ranks + rank, kind, turns * ranks + mb)

        mine = [action("F", turn) for turn in range(ahead)]
        for turn in range(total):
            if turn + ahead < total:
                mine.append(action("F", turn + ahead))
            mine.append(action("B", turn))
        order.append(mine)
    return order


def order_of(schedule: str, ranks: int, stages: int, microbatches: int) -> Order:
    """What each rank does, in order. Says what does not fit together."""
    make_order = SCHEDULES[schedule]
    if schedule == "interleaved":
        if stages % ranks or stages == ranks:
            raise InvalidInputError(
                f"interleaved gives each of {ranks} ranks as many stages, and more than one: {stages} do not fit."
            )
        if microbatches % ranks:
            raise InvalidInputError(
                f"interleaved goes in rounds of {ranks} microbatches, one per rank: {microbatches} is no multiple."
            )
    elif stages != ranks:
        raise InvalidInputError(f"{schedule} has one stage per rank: {stages} stages for {ranks} ranks do not fit.")
    return make_order(ranks, stages, microbatches)


@dataclass(frozen=True)
class Timeline(Shown):
    """When everything is done, and how long each rank worked until then."""

    span: float  # seconds until everything is done
    busy: tuple[float, ...]  # seconds that each rank worked

    @property
    def bubble(self) -> float:
        """The part of their time that ranks wait."""
        return 1 - sum(self.busy) / (len(self.busy) * self.span) if self.span else 0.0

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{len(self.busy):,} ranks, done after {format_seconds(self.span)}; they wait {self.bubble:.0%}"])
        yield Table([">rank", ">works"], [[f"{rank}", format_seconds(busy)] for rank, busy in enumerate(self.busy)])


def simulated(order: Order, forward: Sequence[float], backward: Sequence[float], send: Sequence[float]) -> Timeline:
    """Run an order with given times: of each stage forward and backward, and of each cut to send across it."""
    last, done = len(forward) - 1, dict[Action, float]()
    positions, clocks, busy = [0] * len(order), [0.0] * len(order), [0.0] * len(order)
    remaining = sum(map(len, order))
    while remaining:
        before = remaining
        for rank, mine in enumerate(order):
            while positions[rank] < len(mine):
                action = mine[positions[rank]]
                ready = _ready(action, done, last, send)
                if ready is None:
                    break
                takes = (forward if action.kind == "F" else backward)[action.stage]
                clocks[rank] = done[action] = max(clocks[rank], ready) + takes
                busy[rank] += takes
                positions[rank] += 1
                remaining -= 1
        if remaining == before:
            raise InvalidInputError("this order waits for itself: no rank can go on.")
    return Timeline(max(clocks), tuple(busy))


def _ready(action: Action, done: dict[Action, float], last: int, send: Sequence[float]) -> float | None:
    """When the inputs of an action have arrived; None if they are not computed yet."""
    stage, kind, mb = action
    if kind == "F":
        if stage == 0:
            return 0.0
        made = done.get(Action(stage - 1, "F", mb))
        return None if made is None else made + send[stage - 1]
    own = done.get(Action(stage, "F", mb))
    if own is None or stage == last:
        return own
    made = done.get(Action(stage + 1, "B", mb))
    return None if made is None else max(own, made + send[stage])
