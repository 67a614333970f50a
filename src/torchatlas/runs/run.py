"""`atlas.load("run.atlas")`: a recorded run, read from its folder. Needs no torch."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchatlas.errors import FileFormatError, InvalidInputError, NodeNotFoundError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.formats import as_path, check_folder, suffix_of
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.runs import journal
from torchatlas.runs.journal import Beginning, End, Note, Number, Steps
from torchatlas.runs.step_table import StepTable
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_bytes, format_ns

if TYPE_CHECKING:
    from torchatlas.render.drawing import Drawing
    from torchatlas.render.viewer.content import Viewed

# The columns that steps of every run have; those of a run without a step.
_ALWAYS = ("number", "start_ns", "wall_ns", "process_bytes", "loss", "finished", "ops", "peak_bytes", "structure")
_SLOW, _LARGE = 1.5, 1.05  # times the median of its structure
_RARE = 0.05  # of all steps: a structure of fewer makes a step stand out
_LEAST_ALIKE = 5  # steps, before one of them can stand out


@dataclass(frozen=True, repr=False)
class RunStructure(ShownPart):
    """A structure that steps of a run have."""

    number: int
    step: int  # the first that has it
    count: int  # how many steps have it
    ops: int
    change: str  # what is different from the structure of the step before the first
    hash: str = field(repr=False)


class Run(Shown):
    """The steps of a program: `steps` is their table, `graph(step)` one of them."""

    def __init__(
        self,
        path: Path,
        beginning: Beginning,
        columns: dict[str, list[Number]],
        structures: list[journal.Structure],
        notes: list[str],
        end: End | None,
    ) -> None:
        self.path, self.model, self.every = path, beginning.model, beginning.every
        self.steps = StepTable(columns)
        self.notes = notes
        self._beginning, self._end, self._structures = beginning, end, structures

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read the folder of a run, also while it is recorded. Nothing in it is ever executed.

        Args:
            path: The folder.
        Returns:
            The run.
        Raises:
            FileFormatError: It is not the folder of a run, or is damaged.
        """
        folder = as_path(path)
        if folder.is_dir() and not journal.is_run(folder):
            raise FileFormatError(f"{folder} is a folder, and holds no run: there is no {journal.JOURNAL} in it.")
        columns: dict[str, list[Number]] = {}
        structures: list[journal.Structure] = []
        notes: list[str] = []
        beginning: Beginning | None = None
        end: End | None = None
        for line in journal.journal_lines(folder):
            if isinstance(line, Beginning):
                beginning = line
            elif isinstance(line, Steps):
                journal.add_columns(folder, columns, line.columns)
            elif isinstance(line, journal.Structure):
                if line.number != len(structures):
                    raise FileFormatError(f"{folder}: structure {line.number} stands where {len(structures)} is due.")
                structures.append(line)
            elif isinstance(line, Note):
                notes.append(line.text)
            else:
                end = line
        if beginning is None:
            raise FileFormatError(f"{folder}: its journal is empty: the run was ended before it began.")
        for number in columns.get("structure", ()):
            if number is not None and not 0 <= number < len(structures):
                raise FileFormatError(f"{folder}: a step has structure {number}, and there are {len(structures)}.")
        if end is None:
            notes.append("the run has not ended: it is still being recorded, or its process was killed")
        elif end.text:
            notes.append(f"{'ended early at ' if end.how == 'failed' else ''}{end.text}")
        return cls(folder, beginning, columns or {name: [] for name in _ALWAYS}, structures, notes, end)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many steps were recorded."""
        return len(self.steps)

    @property
    def columns(self) -> dict[str, list[Number]]:
        """The table of steps: numbers by name, in order; None where one is not known."""
        return self.steps.columns

    @property
    def ended(self) -> str:
        """How it ended: "finished", "failed", "stopped" (the recording alone), or "" if it did not."""
        return self._end.how if self._end is not None else ""

    @property
    def structures(self) -> list[RunStructure]:
        """Every structure that was met, in the order of first steps."""
        counts = [0] * len(self._structures)
        for number in self._column("structure"):
            if number is not None:
                counts[int(number)] += 1
        return [
            RunStructure(each.number, each.step, counts[each.number], each.ops, each.words, each.hash)
            for each in self._structures
        ]

    @property
    def changes(self) -> dict[int, str]:
        """The steps that have another structure than the recorded step before, and what is different."""
        changes: dict[int, str] = {}
        before: Number = None
        for number, structure in zip(self.steps.numbers, self._column("structure"), strict=True):
            if structure is None:
                continue
            if before is not None and structure != before:
                known = self._structures[int(structure)]
                again = f"structure {known.number} again, first met in step {known.step:,}"
                changes[number] = known.words if known.step == number else again
            before = structure
        return changes

    @property
    def kept(self) -> list[int]:
        """The numbers of the steps that are there in full."""
        return journal.kept_steps(self.path)

    def graph(self, step: int = -1) -> Graph:
        """A step as a graph.

        One that was not kept in full is given the graph of its structure: the same ops, with the times and the memory
        of the first step that had it. `graph.notes` says so, and `graph.metadata["step"]` which step it is of.

        Args:
            step: The number of the step; -1 is the last one.
        Returns:
            The graph.
        Raises:
            InvalidInputError: It is no number.
            NodeNotFoundError: There is no such step, or it was not recorded.
        """
        numbers = self.steps.numbers
        if isinstance(step, bool) or not isinstance(step, int):
            raise InvalidInputError(f"step={step!r}: a step has a number; run.steps lists them.")
        if step < 0:
            if -step > len(numbers):
                raise NodeNotFoundError(f"the run has {len(numbers):,} steps, so there is no step {step}.")
            step = numbers[step]
        full = self.path / journal.STEPS / f"{step}.atlas"
        if full.is_file():
            return Graph.load(full)
        if step not in numbers:
            every = f" One in {self.every:,} was." if self.every > 1 else ""
            raise NodeNotFoundError(f"step {step:,} was not recorded.{every} run.steps.numbers has those that were.")
        number = self._column("structure")[numbers.index(step)]
        if number is None:
            raise NodeNotFoundError(f"step {step:,} was not kept in full, nor was its structure: see run.notes.")
        known = self._structures[int(number)]
        graph = Graph.load(self.path / journal.STRUCTURES / f"{known.hash}.atlas")
        if known.step != step:
            graph.notes.append(
                f"step {step:,} was not kept in full: this is step {known.step:,}, which has the same structure, "
                "with its own times and memory"
            )
        return graph

    def slowest(self, count: int = 5) -> StepTable:
        """The steps that took longest.

        Args:
            count: How many.
        Returns:
            Their table, the slowest first.
        """
        times = [(-1 if wall is None else wall, -at) for at, wall in enumerate(self._column("wall_ns"))]
        places = [-at for wall, at in sorted(times, reverse=True)[: max(count, 0)] if wall >= 0]
        return self.steps._at(places)

    def odd(self) -> StepTable:
        """The steps that stand out, and why. Those come first whose loss or gradient is not finite or that did not end,
        then those of a structure that few have, then those with much memory or a long time for their structure."""
        reasons: dict[int, list[tuple[int, str]]] = {}  # place -> rank, words

        def stands_out(at: int, rank: int, words: str) -> None:
            reasons.setdefault(at, []).append((rank, words))

        for name in ("loss", "gradient_norm"):
            for at, count, value in _not_finite(self._column(name)):
                words = f"{name.replace('_', ' ')} is {value}" + (f", for {count:,} steps" if count > 1 else "")
                stands_out(at, 0, words)
        for at, finished in enumerate(self._column("finished")):
            if finished is False:
                stands_out(at, 0, "did not end")
        rare = {structure.number: structure for structure in self._rare()}
        for at, number in enumerate(self._column("structure")):
            if number in rare:
                structure = rare[int(number)]
                words = f"structure {structure.number}, of {structure.count:,} of {len(self):,} steps"
                stands_out(at, 1, f"{words}: {structure.change}" if structure.change else words)
        for at, figure, usual in self._outstanding("peak_bytes", _LARGE):
            stands_out(at, 2, f"peak of {format_bytes(figure)}; {format_bytes(usual)} is usual")
        for at, figure, usual in self._outstanding("wall_ns", _SLOW):
            stands_out(at, 3, f"took {format_ns(figure)}; {format_ns(usual)} is usual")
        places = sorted(reasons, key=lambda at: (reasons[at][0][0], at))
        return self.steps._at(places, ["; ".join(words for _, words in reasons[at]) for at in places])

    def _rare(self) -> list[RunStructure]:
        """Structures of few steps."""
        return [structure for structure in self.structures if 0 < structure.count < _RARE * len(self)]

    def _outstanding(self, name: str, factor: float) -> Iterator[tuple[int, float, float]]:
        """Places of steps with a figure far above the median of their structure: place, figure, median."""
        by_structure: dict[int, list[tuple[int, float]]] = {}
        for at, (figure, structure) in enumerate(zip(self._column(name), self._column("structure"), strict=True)):
            if figure is not None and structure is not None:
                by_structure.setdefault(int(structure), []).append((at, float(figure)))
        for group in by_structure.values():
            if len(group) < _LEAST_ALIKE:
                continue
            usual = statistics.median(figure for _, figure in group)
            spread = statistics.median(abs(figure - usual) for _, figure in group)
            for at, figure in group:
                if figure > usual * factor and figure > usual + 6 * spread:
                    yield at, figure, usual

    def _column(self, name: str) -> list[Number]:
        return self.columns.get(name) or [None] * len(self.steps)

    def _of_finished(self, name: str) -> list[float]:
        """The known numbers of a column, without steps that an exception cut short."""
        return [
            float(value)
            for value, finished in zip(self._column(name), self._column("finished"), strict=True)
            if value is not None and finished is not False
        ]

    # -- showing -------------------------------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per recorded step."""
        return self.steps.to_pandas()

    def plot(self, kind: str = "time", *, width: int = 1200, height: int = 700, theme: str = "light") -> Drawing:
        """Plot something over steps. Thin lines mark where the structure changed.

        Args:
            kind: "time", the time by module ("modules"), "memory", the "loss", or gradient norms ("gradients").
            width: Pixels.
            height: Pixels.
            theme: "light" or "dark".
        Returns:
            A Drawing.
        """
        from torchatlas.runs.plots import plot_run

        return plot_run(self, kind, width=width, height=height, theme=theme)

    def save(self, path: str | os.PathLike[str], *, step: int | None = None, title: str = "") -> Path:
        """Write a page of the viewer with a timeline of all steps and the graph of one, or the table of steps.

        Args:
            path: Where: .html is the viewer, .csv and .parquet are the table.
            step: The step whose graph the page shows; None is the last one.
            title: The heading of the page.
        Returns:
            The path.
        Raises:
            FileFormatError: It has another suffix.
        """
        target = as_path(path)
        if suffix_of(target) in (".csv", ".parquet"):
            return self.steps.save(target)
        if suffix_of(target) not in (".html", ".htm"):
            raise FileFormatError(f"{target.name}: a run is saved as a page (.html) or a table (.csv, .parquet).")
        check_folder(target)
        from torchatlas.runs.page import write_page

        return write_page(self, target, step=step, title=title)

    def show(self, *, step: int | None = None, title: str = "") -> Path:
        """Open the viewer in a browser.

        Args:
            step: The step whose graph the page shows; None is the last one.
            title: The heading of the page.
        Returns:
            The path of its page.
        """
        from torchatlas.runs.page import show_page

        return show_page(self, step=step, title=title)

    def _viewed(self) -> Viewed:
        """What `atlas.view(run)` shows."""
        from torchatlas.runs.page import viewed_run

        return viewed_run(self)

    def to_dict(self) -> dict[str, Any]:
        """What the run is, as JSON can hold it."""
        walls = self._of_finished("wall_ns")
        return {
            "path": str(self.path),
            "model": self.model,
            "every": self.every,
            "steps": len(self),
            "last_step": self.steps.numbers[-1] if len(self) else None,
            "median_wall_ns": int(statistics.median(walls)) if walls else None,
            "structures": len(self._structures),
            "changes": {str(number): words for number, words in self.changes.items()},
            "kept": self.kept,
            "ended": self.ended,
            "notes": self.notes,
        }

    def _headline(self) -> str:
        name = f" of {clean(self.model)}" if self.model else ""
        return f"run{name}: {len(self):,} step{'s' * (len(self) != 1)} recorded"

    def _sections(self) -> Iterator[Section]:
        lines = [self._headline()]
        walls = self._of_finished("wall_ns")
        if walls:
            cost = [float(time_ns) for time_ns in self._column("unrecorded_ns") if time_ns is not None]
            beside = f", {format_ns(statistics.median(cost))} without recording" if cost else ""
            lines.append(
                f"a step takes {format_ns(statistics.median(walls))} while recorded (median of {len(walls):,}){beside}"
            )
        losses = [loss for loss in self._column("loss") if loss is not None]
        if losses:
            lines.append(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
        lines.append(f"in full: {_numbers(self.kept)}")
        yield Lines(lines, notes=self.notes)
        if self._structures:
            yield Table(
                [">structure", ">first step", ">steps", ">ops", "what is different"],
                [
                    [str(each.number), f"{each.step:,}", f"{each.count:,}", f"{each.ops:,}", each.change]
                    for each in self.structures[:10]
                ],
                widest=100,
                below=f"{len(self._structures) - 10:,} more in run.structures" if len(self._structures) > 10 else "",
            )
        if len(odd := self.odd()):
            table = odd._table()
            yield Lines([f"{len(odd):,} step{'s' * (len(odd) != 1)} that stand{'s' * (len(odd) == 1)} out (run.odd())"])
            yield table


def _not_finite(column: list[Number]) -> Iterator[tuple[int, int, float]]:
    """Where a column begins to be NaN or infinite, for how long, and what it is first."""
    first = 0
    for is_odd, group in groupby(column, key=lambda value: isinstance(value, float) and not math.isfinite(value)):
        items = list(group)
        if is_odd:
            yield first, len(items), float(items[0] or 0)
        first += len(items)


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(f"{number:,}" for number in numbers[:12])
    return (shown + (" ..." if len(numbers) > 12 else "")) or "no step"
