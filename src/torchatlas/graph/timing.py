"""What the times of a graph are: one run, or the median of several with its spread.

The spread of n runs is their interquartile range: the middle half of the runs lies within a range this wide. A time is
shown as median ± spread. The time of several operations is the sum of their medians, and its spread the sum of their
spreads, as if they all slowed down together: more than that it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchatlas.graph.shown import ShownPart
from torchatlas.units import format_ns


@dataclass(frozen=True, slots=True)
class Measured(ShownPart):
    """A measured time that says what it is. `spread_ns` is None for one run, and where it is unknown.

    >>> print(Measured(19_900_000)), print(Measured(19_900_000, 10, 640_000))
    19.9 ms (one run)
    19.9 ms (median of 10 ± 3.2 %)
    (None, None)
    """

    ns: int  # nanoseconds
    runs: int = 1
    spread_ns: int | None = None  # the interquartile range; None of one run

    @classmethod
    def of(cls, samples: Sequence[int]) -> Measured | None:
        """The median of some runs.

        Args:
            samples: Their times in nanoseconds.
        Returns:
            The median with its spread; None of none.
        """
        if not samples:
            return None
        low, middle, high = np.percentile(np.array(samples, np.float64), (25, 50, 75))
        return cls(round(middle), len(samples), round(high - low) if len(samples) > 1 else None)

    @property
    def what(self) -> str:
        """What this time is, in words."""
        if self.runs == 1:
            return "one run"
        if self.spread_ns is None:
            return f"median of {self.runs:,}, spread unknown"
        return f"median of {self.runs:,} ± {self._spread_text()}"

    def _spread_text(self) -> str:
        assert self.spread_ns is not None
        if not self.ns:
            return format_ns(self.spread_ns)
        share = 100 * self.spread_ns / self.ns
        return f"{share:.0f} %" if share >= 9.95 or not share else f"{max(share, 0.1):.1f} %"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"ns": self.ns, "runs": self.runs, "spread_ns": self.spread_ns}

    def __str__(self) -> str:
        return f"{format_ns(self.ns)} ({self.what})"


@dataclass(frozen=True, slots=True)
class Timing(ShownPart):
    """How the times of a graph were measured.

    `runs` were recorded: the times of the nodes are of these. `warmup` runs came before them and are in no figure. The
    tuples hold the time of each whole run, in nanoseconds; they are empty where it is unknown.
    """

    runs: int = 1
    warmup: int = 0
    recorded_ns: tuple[int, ...] = ()  # wall time of the recorded runs: the cost of recording is in it
    eager_ns: tuple[int, ...] = ()  # wall time of runs that nothing recorded

    @property
    def recorded(self) -> Measured | None:
        """Wall time of a run while it was recorded, which takes longer than the program alone."""
        return Measured.of(self.recorded_ns)

    @property
    def eager(self) -> Measured | None:
        """Wall time of a run of the program alone."""
        return Measured.of(self.eager_ns)

    def of_part(self) -> Timing:
        """The timing of a part of the graph, whose wall time was not measured."""
        return replace(self, recorded_ns=(), eager_ns=())
