"""Which sizes are freed, within which time, and what is said of the others."""

from __future__ import annotations

import io
import itertools
import threading
from typing import Any

import pytest
import torch
from sympy import Symbol
from sympy.core.basic import Basic
from torch import Tensor, nn
from torch.nn import functional as F

import torchatlas as atlas
from torchatlas.errors import CaptureError, InvalidInputError
from torchatlas.execute import free_sizes
from torchatlas.execute.free_sizes import BUDGET_S, Deadline, Size, TimeIsUp, freest
from torchatlas.progress_line import ProgressLine

# -- the search --------------------------------------------------------------------------------------------------------

IMAGE = {(0, 0): 2, (0, 2): 32, (0, 3): 32}
TEXT = {(0, 0): 2, (0, 1): 16, (1, 0): 2, (1, 1): 16}  # ids and mask
BATCH, HEIGHT, WIDTH = (0, 0), (0, 2), (0, 3)


class Clock:
    """Stands still but for what is added to it."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(free_sizes, "now", made)
    return made


class Exporter:
    """Takes so many seconds for each of some sizes, and cannot do others, or not without being strict."""

    def __init__(self, clock: Clock, seconds: dict[Size, float], *, cannot: set[Size], strictly: bool = False) -> None:
        self.clock, self.seconds, self.cannot, self.strictly = clock, seconds, cannot, strictly
        self.attempts: list[tuple[list[Size], bool]] = []

    def __call__(self, free: frozenset[Size], strict: bool, seconds: float) -> list[Size]:
        self.attempts.append((sorted(free), strict))
        needed = sum(self.seconds.get(size, 0.0) for size in free)
        self.clock.time += min(needed, seconds)
        if needed > seconds:
            raise TimeIsUp
        if self.cannot & free and not (self.strictly and strict):
            raise NotImplementedError("The inequality cannot be solved.\nmore")
        return sorted(free)


@pytest.mark.parametrize(
    ("sizes", "seconds", "cannot", "strictly", "free", "reasons", "attempts"),
    [
        (IMAGE, {}, set(), False, IMAGE, {}, 1),
        (IMAGE, {}, {HEIGHT}, True, IMAGE, {}, 2),
        (IMAGE, {WIDTH: 99}, set(), False, [BATCH, HEIGHT], {WIDTH: "not solved for within 30 s"}, 3),
        (IMAGE, {HEIGHT: 99, WIDTH: 99}, set(), False, [BATCH], {HEIGHT: "not solved", WIDTH: "not solved"}, 3),
        (IMAGE, {HEIGHT: 15}, {WIDTH}, False, [BATCH], {WIDTH: "not solved", HEIGHT: "not solved"}, 4),
        (IMAGE, {BATCH: 99}, set(), False, [], dict.fromkeys(IMAGE, "not solved"), 3),
        (IMAGE, {}, {BATCH}, False, [HEIGHT, WIDTH], {BATCH: "fails with it free"}, 6),
        (TEXT, {}, {(0, 1)}, False, [(0, 0), (1, 0)], {(0, 1): "fails", (1, 1): "fails"}, 3),
        ({}, {}, set(), False, [], {}, 1),
    ],
    ids=["all", "strictly", "width long", "both long", "budget spent", "batch long", "batch fails", "text", "none"],
)
def test_what_can_be_freed_is(
    clock: Clock, sizes: Any, seconds: Any, cannot: Any, strictly: bool, free: Any, reasons: Any, attempts: int
) -> None:
    exporter = Exporter(clock, seconds, cannot=cannot, strictly=strictly)
    best, found = freest(exporter, sizes, 30.0)
    assert best == sorted(free)
    assert found.keys() == reasons.keys()
    assert all(reasons[size] in reason for size, reason in found.items())
    assert len(exporter.attempts) == attempts
    assert clock.time <= 30.0 + sum(seconds.get(size, 0.0) for size in free)


def test_what_cannot_be_exported_at_all_says_what_it_said_first(clock: Clock) -> None:
    tried = []

    def attempt(free: frozenset[Size], strict: bool, seconds: float) -> Any:
        tried.append(free)
        raise ValueError(f"attempt {len(tried)}")

    with pytest.raises(ValueError, match="attempt 1"):
        freest(attempt, IMAGE, 30.0)
    assert len(tried) == 4


def test_what_was_exported_and_cannot_be_used_is_not_tried_again(clock: Clock) -> None:
    def attempt(free: frozenset[Size], strict: bool, seconds: float) -> Any:
        tried.append(free)
        raise CaptureError("makes a layer in forward")

    tried: list[Any] = []
    with pytest.raises(CaptureError):
        freest(attempt, IMAGE, 30.0)
    assert len(tried) == 1


# -- the deadline ------------------------------------------------------------------------------------------------------


_numbers = itertools.count(100_000)


def express() -> None:
    """sympy at work, on something that it has not in its cache."""
    Symbol("s") + next(_numbers)


def test_time_is_up_inside_sympy_and_nothing_stays(clock: Clock) -> None:
    def work() -> None:
        with Deadline(1.0):
            for number in range(200):
                clock.time = number / 100
                express()

    new = vars(Basic)["__new__"]
    with pytest.raises(TimeIsUp):
        work()
    assert 1.0 < clock.time < 1.1
    assert vars(Basic)["__new__"] is new


def test_what_swallows_it_is_told_again_but_cleaning_up_is_left_in_peace(clock: Clock) -> None:
    told = 0
    with Deadline(1.0) as limit:
        clock.time = 2.0
        for _ in range(2):
            try:
                for _ in range(2 * limit._PAUSE):
                    express()
            except TimeIsUp:
                told += 1
                for _ in range(100):  # a `finally` of torch's
                    express()
    assert told == 2


def test_each_thread_has_its_own(clock: Clock) -> None:
    """Another thread's sympy is not stopped, and two deadlines at a time leave nothing."""
    new, patched = vars(Basic)["__new__"], []

    def other() -> None:
        for _ in range(10):
            express()
        with Deadline(100.0):
            patched.append(vars(Basic)["__new__"])

    def work() -> None:
        with Deadline(1.0):
            clock.time = 2.0
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(60)
            patched.append(vars(Basic)["__new__"])
            express()

    with pytest.raises(TimeIsUp):
        work()
    assert len(patched) == 2
    assert new not in patched
    assert vars(Basic)["__new__"] is new


# -- a model that takes too long ---------------------------------------------------------------------------------------


class Halo(nn.Module):
    """Blocks of a picture attend to their surroundings, as in HaloNet: sizes are divided, rounded and multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(4, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).chunk(3, 1)
        q = q.unflatten(2, (h // 4, 4)).unflatten(4, (w // 4, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3, 4)
        k, v = (
            F.pad(part, [1] * 4).unfold(2, 6, 4).unfold(3, 6, 4).permute(0, 2, 3, 4, 5, 1).flatten(3, 4)
            for part in (k, v)
        )
        x = (q @ k.mT).softmax(-1) @ v
        return F.avg_pool2d(x.unflatten(3, (4, 4)).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w), 3, 2, 1)


@pytest.mark.slow
def test_a_model_that_takes_too_long_inside_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with every look at the clock: all sizes free take 30,000 looks, a free batch less than 1,000."""
    seconds = itertools.count()
    monkeypatch.setattr(free_sizes, "now", lambda: next(seconds))
    traced = atlas.trace(Halo().eval(), torch.randn(2, 4, 16, 16), budget_s=4000)
    assert [size.free for size in traced.input_sizes] == [True, False, False, False]


class Slow(nn.Module):
    """A hundred seconds pass for a free height or width."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.layer = clock, nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        free = sum(isinstance(size, torch.SymInt) for size in x.shape[2:])
        self.clock.time += 100 * free
        return self.layer(x)


def test_a_model_that_takes_too_long_is_traced_with_a_free_batch(clock: Clock, tmp_path: Any) -> None:
    model, x = Slow(clock).eval(), torch.randn(1, 4, 16, 16)
    traced = atlas.trace(model, x, budget_s=30)
    batch, channels, height, width = traced.input_sizes
    assert batch.free
    assert batch.size == 1
    assert str(channels) == "x[1] = 4: fixed, the model or an operator of torch fixes it"
    assert (height.symbol, width.symbol) == (None, None)
    assert str(width) == "x[3] = 16: fixed, not solved for within 30 s"
    (note,) = traced.notes
    assert note.startswith("x[2], x[3] are fixed: not solved for within 30 s; a faster machine")
    assert traced.graph.notes == traced.notes
    other = torch.randn(3, 4, 16, 16)
    assert torch.equal(traced(other), model(other))
    assert clock.time == 300  # all at once, and height alone; the second trace, of a wider batch, tries none again
    loaded = atlas.load(traced.save(tmp_path / "halo.atlas"))
    assert isinstance(loaded, atlas.TracedModel)
    assert loaded.input_sizes == traced.input_sizes


def test_a_budget_is_a_number_of_seconds() -> None:
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidInputError, match="budget_s"):
            atlas.trace(nn.Linear(2, 2), torch.ones(2, 2), budget_s=wrong)
    assert BUDGET_S > 0


@pytest.mark.parametrize(
    ("shape", "shapes", "reasons"),
    [
        ((3, 4), "auto", ["", "the model or an operator of torch fixes it"]),
        ((3, 4), None, ["dynamic_shapes=None fixes it"] * 2),
        ((3, 4), ({0: torch.export.Dim.AUTO},), ["", "dynamic_shapes, the model or an operator of torch fixes it"]),
        ((0, 4), "auto", ["torch.export fixes a size of 0", "the model or an operator of torch fixes it"]),
    ],
)
def test_every_size_says_what_it_is(shape: Any, shapes: Any, reasons: list[str]) -> None:
    traced = atlas.trace(nn.Linear(4, 2).eval(), torch.ones(shape), dynamic_shapes=shapes)
    assert [size.reason for size in traced.input_sizes] == reasons
    assert [size.free for size in traced.input_sizes] == [not reason for reason in reasons]
    assert [size.size for size in traced.input_sizes] == list(shape)


def test_a_size_of_one_that_the_model_does_not_take_wider() -> None:
    traced = atlas.trace(nn.Linear(1, 2).eval(), torch.ones(3, 1))
    assert [size.reason for size in traced.input_sizes] == [
        "",
        "1 in the example, and the model does not take it wider",
    ]


def test_a_followed_model_says_so() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    (size,) = atlas.trace(Branch(), torch.ones(3), fallback="capture").input_sizes
    assert "lead along the same path" in size.reason


# -- what is left behind, and shown ------------------------------------------------------------------------------------


def test_inputs_keep_their_marks_and_get_none() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    x, marked = torch.ones(3), torch.ones(3)
    torch._dynamo.mark_dynamic(marked, 0)
    before = dict(vars(marked))
    for given in (x, marked):
        with pytest.raises(CaptureError):
            atlas.trace(Branch(), given)
        atlas.trace(nn.Linear(3, 3), given)
    assert not vars(x)
    assert vars(marked) == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_on_a_terminal_and_nothing_elsewhere(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(ProgressLine, "PATIENCE_S", 0.0)
    monkeypatch.setattr("sys.stderr", screen)
    atlas.trace(nn.Linear(4, 2).eval(), torch.ones(3, 4))
    assert ("tracing Linear: all sizes free" in screen.getvalue()) is terminal


def test_what_is_soon_over_shows_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressLine, "PATIENCE_S", 1e9)
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    atlas.trace(nn.Linear(4, 2).eval(), torch.ones(3, 4))
    assert screen.getvalue() == ""
