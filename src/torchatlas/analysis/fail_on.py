"""Conditions on two graphs, such as "flops>+1%" -> which of them hold. The grammar, and how a figure is judged.

    structure                an operation was added, removed or changed
    FIGURE OPERATOR AMOUNT   FIGURE is flops, macs, parameters, ops, peak_bytes or time; OPERATOR is > >= < <= or !=

An AMOUNT with a sign is a change from the first graph (+1%, -5%, +1000, +16MiB, +2ms); one without is the second
graph's own figure (4.2e9, 4.2G, 80GB, 20ms). What is unknown is refused: no condition passes because of it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchatlas.analysis.reports import Report
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean, quoted
from torchatlas.graph.timing import Measured
from torchatlas.registry import did_you_mean
from torchatlas.units import format_bytes, format_count, format_flops, format_ns, parse_bytes

STRUCTURE, TIME = "structure", "time"
FIGURES: dict[str, Callable[[float | None], str]] = {  # and how each is shown
    "flops": format_flops,
    "macs": format_count,
    "parameters": format_count,
    "ops": lambda n: "unknown" if n is None else f"{n:,}",
    "peak_bytes": format_bytes,
    TIME: format_ns,
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_PARTS = re.compile(r"\s*(\w+)\s*([<>=!~]*)\s*(.*?)\s*")
_AMOUNT = re.compile(r"([+-]?)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(%|[a-zµ]*)", re.IGNORECASE)
_COUNT_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_TIME_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, parsed. `structure` has no amount."""

    text: str
    figure: str
    operator: str = ""
    amount: float = 0.0  # per cent, or in the figure's own unit
    signed: bool = False  # whether it is a change from the first graph
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one graph. None is unknown; `uncosted` operations, by name, are missing in it."""

    number: float | None
    uncosted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Violation(Report):
    """A condition that holds although it should not, and the figures that say so."""

    condition: str  # as it was written
    before: float | None  # None of the structure, and where there is no first graph
    after: float | None
    what: str  # what was found, in words

    def __str__(self) -> str:
        return clean(f"{self.condition}: {self.what}")


def parse_condition(text: str) -> Condition:
    """A condition as it was written, or an InvalidInputError that says what is wrong with it.

    >>> parse_condition("flops > +1%").amount, parse_condition("peak_bytes>1GiB").amount
    (1.0, 1073741824.0)
    """
    if not isinstance(text, str):
        raise InvalidInputError(f'a condition is text, such as "flops>+1%", not {type(text).__name__}.')
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise InvalidInputError(f'{quoted(text)} is no condition. Write "flops>+1%", or "structure".')
    figure, compare, amount = parts.groups()
    if figure == STRUCTURE:
        if compare or amount:
            raise InvalidInputError(f"{quoted(text)}: structure stands alone: it holds if any operation differs.")
        return Condition(text, STRUCTURE)
    if figure not in FIGURES:
        known = ", ".join([*FIGURES, STRUCTURE])
        hint = did_you_mean(figure, [*FIGURES, STRUCTURE])
        raise InvalidInputError(f"{quoted(text)}: {figure!r} is no figure{hint or '.'} There are {known}.")
    if compare not in _COMPARE:
        wrong = f"{compare!r} is no operator" if compare else "an operator and an amount are missing"
        raise InvalidInputError(f'{quoted(text)}: {wrong}. Write "{figure}>+1%"; operators are >, >=, <, <= and !=.')
    condition = Condition(text, figure, compare, *_amount(text, figure, amount))
    if math.isinf(condition.amount):  # no figure is beyond it: the condition could never hold
        raise InvalidInputError(f"{quoted(text)}: {quoted(amount)} is more than can be compared.")
    return condition


def _amount(text: str, figure: str, amount: str) -> tuple[float, bool, bool]:
    """The amount, whether it is a change, and whether in per cent."""
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        raise InvalidInputError(f"{quoted(text)}: {quoted(amount)} is no amount. Write +1%, +1000 or 4.2e9.")
    sign, number, unit = match.groups()
    value = float(sign + number)
    if unit == "%":
        if not sign:
            raise InvalidInputError(
                f"{quoted(text)}: per cent are a change from the first graph and need a sign: +{number}% or -{number}%."
            )
        return value, True, True
    if figure == "peak_bytes":
        try:
            return float(f"{sign}{parse_bytes(number + unit)}"), bool(sign), False
        except ValueError as error:
            raise InvalidInputError(f"{quoted(text)}: {error}.") from None
    units = _TIME_UNITS if figure == TIME else _COUNT_UNITS
    if unit.lower() not in units:
        known = "ns, us, ms and s" if figure == TIME else "K, M, G and T"
        missing = f"{unit!r} is no unit of {figure}" if unit else "a time needs a unit"
        raise InvalidInputError(f"{quoted(text)}: {missing}; there are {known}.")
    return value * units[unit.lower()], bool(sign), False


def judged(condition: Condition, before: Figure | None, after: Figure) -> Violation | None:
    """The violation if the condition holds. Raises AnalysisError where an unknown figure would decide.

    `before` may be None for a condition on the second graph alone.
    """
    new = _known(condition, after, "second")
    compare = _COMPARE[condition.operator]
    if not condition.signed:
        holds = compare(new, condition.amount)
        if after.uncosted and not (holds and condition.operator in (">", ">=")):
            raise AnalysisError(f"{condition.text}: cannot be judged, since {_uncosted_text(after)}")
        return Violation(condition.text, None, new, _number(condition, new)) if holds else None
    assert before is not None
    old = _known(condition, before, "first")
    if before.uncosted != after.uncosted:
        raise AnalysisError(
            f"{condition.text}: cannot be judged, since not the same operations have a cost formula in both: "
            f"{_uncosted_text(after if after.uncosted else before)}"
        )
    if not _holds(condition, old, new):
        return None
    return Violation(condition.text, old, new, change_text(condition.figure, old, new))


def _holds(condition: Condition, before: float, after: float) -> bool:
    """Whether a condition on the change holds."""
    compare, change = _COMPARE[condition.operator], after - before
    # 100 * change is exact for whole numbers; a limit of before * 1.01 would be rounded
    return compare(100 * change, condition.amount * before) if condition.percent else compare(change, condition.amount)


def _known(condition: Condition, figure: Figure, which: str) -> float:
    if figure.number is None:
        raise AnalysisError(
            f"{condition.text}: cannot be judged: {condition.figure} of the {which} graph is unknown. It was not "
            "recorded, or the file does not hold it."
        )
    return figure.number


def _uncosted_text(figure: Figure) -> str:
    listed = ", ".join(f"{name} ({count:,})" for name, count in figure.uncosted.items())
    return f"these have none: {listed}. atlas.register_operator gives them one."


def judged_time(condition: Condition, before: Measured | None, after: Measured | None) -> Violation | None:
    """The violation if a condition on the time holds beyond the spread of both.

    Raises:
        AnalysisError: A time has no spread: it is of one run, or there is none.
    """
    needed = [before, after] if condition.signed else [after]
    if any(one is None or one.spread_ns is None for one in needed):
        raise AnalysisError(
            f"{condition.text}: times of one run, or of none, are not compared. Capture with repeat=10 (torchatlas "
            "capture --repeat 10): then the program's own time is a median with a spread."
        )
    assert after is not None
    assert after.spread_ns is not None
    compare = _COMPARE[condition.operator]
    if not condition.signed:
        least = after.ns - after.spread_ns if condition.operator in (">", ">=") else after.ns + after.spread_ns
        surely = compare(least, condition.amount) and compare(after.ns, condition.amount)
        return Violation(condition.text, None, after.ns, str(after)) if surely else None
    assert before is not None
    assert before.spread_ns is not None
    change = after.ns - before.ns
    holds = _holds(condition, before.ns, after.ns)
    if not holds or abs(change) <= before.spread_ns + after.spread_ns:
        return None
    return Violation(condition.text, before.ns, after.ns, f"{before} -> {after}, {per_cent(before.ns, after.ns)}")


def _number(condition: Condition, number: float) -> str:
    return FIGURES[condition.figure](number)


def change_text(figure: str, before: float | None, after: float | None) -> str:
    """A figure in both graphs, in words: rounded, or exactly where rounding hides the change.

    >>> change_text("ops", 100, 110), change_text("parameters", 11_689_512, 11_689_513)
    ('100 -> 110 (+10 %)', '11,689,512 -> 11,689,513 (+0.0000086 %)')
    """
    old, new = FIGURES[figure](before), FIGURES[figure](after)
    if before is None or after is None or before == after:
        return new if before == after else f"{old} -> {new}"
    if old == new:
        old, new = f"{before:,}", f"{after:,}"
    return f"{old} -> {new} ({per_cent(before, after)})"


def per_cent(before: float, after: float) -> str:
    """A change in per cent, with two digits that say something.

    >>> per_cent(100, 110), per_cent(3, 2), per_cent(0, 5)
    ('+10 %', '-33 %', 'from zero')
    """
    if not before:
        return "from zero"
    change = 100 * (after - before) / before
    if abs(change) >= 10:
        return f"{change:+,.0f} %"
    shown = f"{change:+.2g}"
    return f"{change:+.7f}".rstrip("0") + " %" if "e" in shown else f"{shown} %"
