"""A recorded training and what the doctor found -> a report: times and memory by module, findings, notes, files."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchatlas.analysis.memory import memory
from torchatlas.diagnosis.findings import Findings
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.runs.run import Run
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_bytes, format_ns

_TIME = "time_ns:"


@dataclass(frozen=True, repr=False)
class ModuleShare(ShownPart):
    """What a module takes in the recorded steps of a training."""

    path: str
    time_ns: int  # the median over all recorded steps that were finished, forward and backward
    peak_bytes: int | None  # of the last recorded step: what it and all below it hold at the peak; None if not known


@dataclass(frozen=True, eq=False, repr=False)
class TrainingReport(Shown):
    """What a watched training was: print it."""

    run: Run | None  # None if the training did not begin, or its folder cannot be read
    modules: tuple[ModuleShare, ...]  # that take the most time first
    findings: Findings | None  # of the doctor; None if it was not asked
    notes: tuple[str, ...]
    files: tuple[Path, ...]  # that were written
    graph: Graph | None = field(default=None, repr=False)  # of the last recorded step

    def _sections(self) -> Iterator[Section]:
        if self.run is None:
            yield Lines(["nothing was recorded"])
        else:
            yield from self.run._sections()
        if self.modules and self.run is not None:
            total = sum(module.time_ns for module in self.modules) or 1
            rows = [
                [
                    module.path,
                    format_ns(module.time_ns),
                    f"{100 * module.time_ns / total:.1f} %",
                    "" if module.peak_bytes is None else format_bytes(module.peak_bytes),
                ]
                for module in self.modules
            ]
            count = sum(one is not False for one in self.run._column("finished"))
            steps = f"median of {count:,} steps" if count > 1 else "one step"
            yield Table(["module", f">time ({steps})", ">share", ">bytes at the peak"], rows)
        if self.findings is not None:
            yield Lines(["what the doctor found:", *str(self.findings).splitlines()])
        yield Lines([f"written: {path}" for path in self.files], notes=self.notes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "run": None if self.run is None else self.run.to_dict(),
            "modules": [vars(module) for module in self.modules],
            "findings": None if self.findings is None else self.findings.to_dict(),
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }


def module_shares(run: Run, graph: Graph | None) -> tuple[ModuleShare, ...]:
    """Time by module as the table of steps has it, with what each holds at the peak of a step."""
    held = {} if graph is None else _held(graph)
    shares = []
    for name in run.columns:
        if name.startswith(_TIME):
            path, times = name.removeprefix(_TIME), run._of_finished(name)
            if times:
                shares.append(ModuleShare(path, int(statistics.median(times)), held.get(path)))
    return tuple(sorted(shares, key=lambda module: -module.time_ns))


def _held(graph: Graph) -> dict[str, int]:
    try:
        return {path: module.bytes for path, module in memory(graph).by_module.items() if not module.unknown}
    except AnalysisError:  # nothing was allocated
        return {}
