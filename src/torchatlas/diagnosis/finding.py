"""One thing that is wrong, and all that were looked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, why, and what to do about it."""

    key: str
    what: str
    where: tuple[str, ...]  # lines of the program, as far as a recording of the forward pass tells
    why: str
    fix: str

    def __str__(self) -> str:
        lines = [f"{self.key}: {self.what}", *(f"  {place}" for place in self.where)]
        return "\n".join([*lines, f"  why: {self.why}", f"  fix: {self.fix}"])


class Findings(Sequence[Finding]):
    """What was found, and the checks that ran. False when nothing was."""

    def __init__(self, found: list[Finding], checks: tuple[str, ...]) -> None:
        self._found, self.checks = found, checks

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
        return {"findings": [asdict(finding) for finding in self._found], "checks": list(self.checks)}

    def __str__(self) -> str:
        if not self._found:
            return f"no fault found; looked for: {', '.join(self.checks)}"
        return "\n".join(map(str, self._found))

    __repr__ = __str__
