"""One thing that is wrong, and all that were looked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, overload

from torchatlas.escapes import clean
from torchatlas.graph import GraphNode, SourceLine
from torchatlas.tables import text_lines

_TOLD_ONCE = ("no-gradient", "optimizer-misses")  # at the end, each: two of one line are two


@dataclass(frozen=True)
class Where:
    """A place in the program and what happened there."""

    what: str
    source: SourceLine | None = None

    def __str__(self) -> str:
        if self.source is None:
            return clean(self.what)
        text = f" ({self.source.text})" if self.source.text else ""
        return clean(f"{self.what}, {self.source}{text}")


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, why, and what to do about it."""

    key: str
    what: str
    where: tuple[Where, ...]  # as far as the forward pass was recorded
    why: str
    fix: str
    times: int = 1  # how often it was seen

    @property
    def lines(self) -> list[tuple[str, int]]:
        """The files and lines it names."""
        return [(place.source.file, place.source.line) for place in self.where if place.source is not None]

    def __str__(self) -> str:
        often = f" ({self.times:,} times)" if self.times > 1 else ""
        lines = [f"{self.key}: {self.what}{often}", *(f"  {place}" for place in self.where)]
        return text_lines([*lines, f"  why: {self.why}", f"  fix: {self.fix}"])


class Findings(Sequence[Finding]):
    """What was found, the checks that ran, and those that could not run to the end. False when nothing was found."""

    def __init__(self, found: Iterable[Finding], checks: tuple[str, ...], not_judged: tuple[str, ...] = ()) -> None:
        self._found, self.checks, self.not_judged = list(found), checks, not_judged

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    @property
    def keys(self) -> list[str]:
        return [finding.key for finding in self._found]

    def to_dict(self) -> dict[str, Any]:
        return {
            "findings": [asdict(finding) for finding in self._found],
            "checks": list(self.checks),
            "not_judged": list(self.not_judged),
        }

    def __str__(self) -> str:
        lines = list(map(str, self._found)) or [f"no fault found; looked for: {', '.join(self.checks)}"]
        if self.not_judged:
            lines.append(f"not judged, as the program did not run to its end: {', '.join(self.not_judged)}")
        return "\n".join(lines)

    __repr__ = __str__


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Each fault once: what a loop does wrong, it does wrong every time."""
    once: dict[Any, Finding] = {}
    for finding in found:
        same = finding.key, tuple(finding.lines) or finding.what, finding.what if finding.key in _TOLD_ONCE else ""
        once[same] = replace(once[same], times=once[same].times + finding.times) if same in once else finding
    return list(once.values())


def at(what: str, node: GraphNode) -> Where:
    """Where an op of a recording ran."""
    return Where(f"{what} {node.name}", node.source)


def some(names: Sequence[str], most: int = 3) -> str:
    """A few of them by name, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
