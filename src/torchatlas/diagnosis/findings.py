"""The report: findings with line, reason and fix; equal ones merged, consequences below their cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from traceback import extract_tb
from typing import Any, overload

from torchatlas.diagnosis.findings_html import findings_html
from torchatlas.escapes import clean
from torchatlas.graph import GraphNode, SourceLine
from torchatlas.graph.shown import ShownPart
from torchatlas.tables import text_lines

_NEVER_REPEATED = ("no-gradient", "optimizer-misses")  # reported once, at the end: two of one line are two faults
_IGNORE = re.compile(r"#\s*atlas:\s*ignore\b([\w\s,-]*)")  # a comment of the program, with keys or for all of them


class Severity(StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"  # results are wrong, or nothing is learnt
    WARNING = "warning"  # waste or risk
    NOTE = "note"  # good to know


@dataclass(frozen=True)
class Where(ShownPart):
    """A line of the program and what happened there."""

    what: str  # what happened there
    source: SourceLine | None = None
    library: SourceLine | None = None  # the line of an installed package that the program's line led to

    def __str__(self) -> str:
        if self.source is None:
            return clean(self.what)
        text = f" ({self.source.text})" if self.source.text else ""
        library = f", by {self.library}" if self.library is not None else ""
        return clean(f"{self.what}, {self.source}{text}{library}")


@dataclass(frozen=True, repr=False)
class Finding:
    """One fault: what is wrong, where, why, and how to mend it."""

    key: str  # the name of the fault: not-zeroed
    what: str  # what is wrong
    where: tuple[Where, ...]  # empty if the forward pass was not recorded
    why: str  # why that is wrong
    fix: str  # how to mend it
    times: int = 1  # how often it was seen
    severity: Severity = Severity.ERROR
    explains: tuple[str, ...] = ()  # keys of findings that follow from this one
    follows: tuple[Finding, ...] = ()  # findings that this one explains

    @property
    def lines(self) -> list[tuple[str, int]]:
        """The files and lines it names."""
        return [(line.source.file, line.source.line) for line in self.where if line.source is not None]

    def __str__(self) -> str:
        often = f" ({self.times:,} times)" if self.times > 1 else ""
        lines = [f"{self.severity}[{self.key}]: {self.what}{often}", *(f"  {line}" for line in self.where)]
        lines += [f"  why: {self.why}", f"  fix: {self.fix}"]
        return text_lines([*lines, *(f"  so also {each.key}: {each.what}" for each in self.follows)])

    def __repr__(self) -> str:
        return clean(f"<Finding {self.severity}[{self.key}]: {self.what}>")

    def _repr_html_(self) -> str:
        return findings_html(Findings([self], (self.key,)))


@dataclass(frozen=True)
class OwnFailure:
    """An exception of torchatlas itself, and the faults that it did not look for after that."""

    keys: tuple[str, ...]
    error: Exception

    def __str__(self) -> str:
        frame = extract_tb(self.error.__traceback__)[-1]
        position = f"{Path(frame.filename).name}:{frame.lineno}"
        return clean(
            f"{type(self.error).__name__}: {self.error} ({position}), while it looked for {', '.join(self.keys)}"
        )


class Findings(Sequence[Finding]):
    """What was found, which faults were looked for, and which could not be judged. False if nothing was found."""

    def __init__(
        self,
        found: Iterable[Finding],
        checks: tuple[str, ...],
        not_judged: tuple[str, ...] = (),
        failures: tuple[OwnFailure, ...] = (),
        ended_by: str = "",
        cells: Mapping[str, str] | None = None,
    ) -> None:
        self._found, self.checks, self.not_judged = list(found), checks, not_judged
        self.failures = failures  # of torchatlas itself
        self.ended_by = ended_by  # the class of the exception that ended the program
        self.cells = dict(cells or {})  # of a notebook: file -> id of the cell

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        """A finding by its position, or several."""
        return self._found[index]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._found)

    def __iter__(self) -> Iterator[Finding]:
        """The findings, the worst first."""
        return iter(self._found)

    @property
    def keys(self) -> list[str]:
        """The keys of the findings, such as "not-zeroed"."""
        return [finding.key for finding in self._found]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst; None if there is no finding."""
        return next(
            (severity for severity in Severity if any(finding.severity is severity for finding in self._found)), None
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "findings": [asdict(finding) for finding in self._found],
            "checks": list(self.checks),
            "not_judged": list(self.not_judged),
            "own_failures": list(map(str, self.failures)),
        }

    def __str__(self) -> str:
        return "\n".join([*map(str, self._found), *self.closing_lines])

    def _repr_html_(self) -> str:
        return findings_html(self)

    @property
    def closing_lines(self) -> list[str]:
        """The end of the report: what failed, what was not judged, and the summary."""
        lines = [f"torchatlas itself failed, not the program: {failure}" for failure in self.failures]
        if self.not_judged:
            why = "the program did not run to its end" if self.ended_by else "torchatlas failed"
            lines.append(f"not judged, as {why}: {', '.join(self.not_judged)}")
        return [*lines, self.summary]

    @property
    def summary(self) -> str:
        """The last line of the report."""
        counts = [(severity, sum(finding.severity is severity for finding in self._found)) for severity in Severity]
        counted = ", ".join(f"{count:,} {severity}{'s' * (count > 1)}" for severity, count in counts if count)
        if self.ended_by:
            ended = clean(f"the program ended with {self.ended_by}")
            return f"{counted}; {ended}" if counted else f"{ended}; no fault was found that explains it"
        if counted:
            return counted
        return f"no fault found; looked for: {', '.join(self.checks)}" if self.checks else "nothing was looked for"

    __repr__ = __str__


def sorted_findings(findings: Iterable[Finding], checks: Sequence[str]) -> list[Finding]:
    """Each fault once, without ignored ones, the worst first and then in the order of `checks`."""
    shown = explained(finding for finding in merged(findings) if not _is_ignored(finding))
    return sorted(shown, key=lambda finding: (list(Severity).index(finding.severity), checks.index(finding.key)))


def _is_ignored(finding: Finding) -> bool:
    """True if a line that it names has a comment `# atlas: ignore`, or `# atlas: ignore not-zeroed`."""
    comments = (_IGNORE.search(line.source.text) for line in finding.where if line.source is not None)
    keys = [comment[1].replace(",", " ").split() for comment in comments if comment is not None]
    return any(not named or finding.key in named for named in keys)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of one key and the same lines become one, with their count: a loop repeats its faults."""
    once: dict[Any, Finding] = {}
    for finding in findings:
        own = finding.what if finding.key in _NEVER_REPEATED else ""
        same = finding.key, tuple(finding.lines) or finding.what, own
        once[same] = replace(once[same], times=once[same].times + finding.times) if same in once else finding
    return list(once.values())


def explained(findings: Iterable[Finding]) -> list[Finding]:
    """Move findings below the one that explains them, so that one cause is reported once."""
    findings = list(findings)
    below: set[int] = set()
    causes: dict[int, Finding] = {}
    for finding in findings:
        if finding.explains and id(finding) not in below:
            follows = [other for other in findings if other.key in finding.explains and other is not finding]
            follows = [other for other in follows if id(other) not in below and id(other) not in causes]
            below |= set(map(id, follows))
            causes[id(finding)] = replace(finding, follows=(*finding.follows, *follows))
    return [causes.get(id(finding), finding) for finding in findings if id(finding) not in below]


def at(what: str, node: GraphNode) -> Where:
    """The line of an op of a recording."""
    return Where(f"{what} {node.name}", node.source)


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
