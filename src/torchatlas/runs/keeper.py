"""Recorded steps -> the folder of a run: which structure each has, its figures, and the last ones in full."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchatlas.capturing.recording import Recording
from torchatlas.capturing.step_rows import StepReader, StepRows
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.runs.device import Reading
from torchatlas.runs.journal import (
    MOST_COLUMNS,
    STEPS,
    STRUCTURES,
    Beginning,
    End,
    Journal,
    Line,
    Note,
    Number,
    Structure,
    columns_line,
    make_folder,
)
from torchatlas.runs.structure import (
    OTHERS,
    KnownStructure,
    allocated_bytes,
    at_level,
    difference,
    module_level,
    peak_bytes,
    structure_hash,
    structure_of,
)

FLUSH_S = 5.0  # between two flushes; longer where flushing takes long
_FLUSH_SHARE = 50  # a flush takes at most this part of the time
MOST_PENDING = 10_000  # steps whose figures wait to be written
MOST_STRUCTURES = 100  # that are decoded and kept: more take memory, and every new one takes time
_MOST_SIGNATURES = 1000  # several may have one structure: a gradient was there before the step, or was not
_MOST_NOT_FINITE = 3  # steps with a loss or gradient that is not finite, kept in full
_MOST_MODULE_COLUMNS = (MOST_COLUMNS - 100) // 2


@dataclass
class RecordedStep:
    """A step that was recorded: what the program did and what was measured around it."""

    number: int
    recording: Recording
    finished: bool
    figures: dict[str, Number]  # of the table, as far as they are known without the recording
    device: Reading | None = None
    gradients: dict[str, float] | None = None  # norms by module


@dataclass
class _Kept:
    """One of the last steps. Its recording is let go of as soon as it is on disk."""

    number: int
    step: RecordedStep | None
    stays: bool = False  # in the folder, when it is no longer among the last


class Keeper:
    """Writes one run. Any method may raise OSError, or whatever decoding raises: then the run is no longer recorded."""

    def __init__(self, folder: Path, beginning: Beginning) -> None:
        make_folder(folder)
        (folder / STRUCTURES).mkdir()
        (folder / STEPS).mkdir()
        self.folder = folder
        self.count = 0  # steps in the table
        self.notes: list[str] = []
        self._journal = Journal(folder)
        self._journal.append([beginning])
        self._keeps_all = beginning.keep == "full"
        self._last: deque[_Kept] = deque()
        self._most_last = beginning.last
        self._old: list[Path] = []  # steps in full that are no longer among the last
        self._rows: list[dict[str, Number]] = []
        self._reader = StepReader()
        self.resident = ResidentMemory()
        self._devices: list[tuple[dict[str, Number], Reading]] = []
        self._structures: list[KnownStructure] = []
        self._by_signature: dict[tuple[int, ...], tuple[KnownStructure, Array | None]] = {}
        self._before: KnownStructure | None = None  # of the step before
        self._level: int | None = None
        self._modules: dict[str, None] = {}
        self._columns: dict[int, list[str]] = {}  # of times, by the number of the structure
        self._last_peak: tuple[Any, int | None] = None, None
        self._not_finite = 0
        self._flushed_at, self._pause_s = -math.inf, FLUSH_S

    # -- a step --------------------------------------------------------------------------------------------------------

    def take(self, step: RecordedStep) -> dict[str, Number]:
        """Keep a step. Writes to the disk from time to time. Returns its row of the table, so far as it is known."""
        rows = self._reader.read(step.recording)
        structure, allocated = self._structure(step, rows) if step.finished else (None, None)
        row = dict(step.figures)
        row |= {"number": step.number, "finished": step.finished, "ops": len(rows.times_ns)}
        if len(rows.times_ns):
            row["ops_ns"] = int(rows.times_ns.sum())
        if structure is not None:
            row |= {"structure": structure.number, "peak_bytes": self._peak(allocated, rows)}
            row.update(self._times(structure, rows))
        elif not step.finished:
            row["peak_bytes"] = self._graph(step).peak_bytes
        if step.gradients is not None:
            row["gradient_norm"] = math.hypot(*step.gradients.values())
            row |= self._norms(self._at_level(step.gradients))
        if step.device is not None:
            self._devices.append((row, step.device))
        self._rows.append(row)
        self.count += 1
        self._before = structure or self._before
        self._remember(step, row)
        due = time.monotonic() - self._flushed_at >= self._pause_s
        if due or len(self._rows) >= MOST_PENDING:
            self.flush()
        return row

    def _peak(self, allocated: Array | None, rows: StepRows) -> int | None:
        """The peak of a step: that of the step before if the same ops ran and freed the same memory, as most do."""
        key = rows.signature, rows.freed
        if self._last_peak[0] != key:
            self._last_peak = key, peak_bytes(allocated, rows)
        return self._last_peak[1]

    def _structure(self, step: RecordedStep, rows: StepRows) -> tuple[KnownStructure | None, Array | None]:
        """The structure of a step, None if it is one too many, and what its ops allocate."""
        entry = self._by_signature.get(rows.signature)
        if entry is not None:
            return entry
        if len(self._structures) >= MOST_STRUCTURES:
            self.note(
                f"more than {MOST_STRUCTURES} structures: further ones are not kept; their steps have no structure, no"
                " peak and no times by module in the table. Inputs of many sizes, such as sentences, do this."
            )
            return None, None
        graph = self._graph(step)
        key = structure_hash(graph)
        known = next((structure for structure in self._structures if structure.hash == key), None)
        if known is None:
            if self._level is None:
                self._level = module_level([*graph.index.paths])
            known = structure_of(graph, len(self._structures), key, self._level)
            words = "" if self._before is None else difference(self._before, known)
            graph.save(self.folder / STRUCTURES / f"{key}.atlas")
            self._journal.append([Structure(known.number, key, step.number, known.ops, words)])
            self._structures.append(known)
        if len(self._by_signature) >= _MOST_SIGNATURES:
            self._by_signature.clear()
        entry = self._by_signature[rows.signature] = known, allocated_bytes(graph, rows)
        return entry

    def _graph(self, step: RecordedStep) -> Graph:
        graph = step.recording.graph
        graph.metadata["step"] = step.number
        return graph

    def _times(self, structure: KnownStructure, rows: StepRows) -> Iterable[tuple[str, int]]:
        """How long the ops of each module took, as columns."""
        columns, times = self._columns.get(structure.number), structure.times(rows)
        if columns is None:
            columns = self._columns[structure.number] = [f"time_ns:{self._column(path)}" for path in structure.modules]
        if len(set(columns)) == len(columns):
            return zip(columns, times, strict=True)
        sums = Counter[str]()
        for column, time_ns in zip(columns, times, strict=True):
            sums[column] += time_ns
        return sums.items()

    def _norms(self, norms: dict[str, float]) -> dict[str, Number]:
        """Norms of gradients by module, as columns."""
        columns: dict[str, float] = {}
        for path, norm in norms.items():
            column = f"gradient_norm:{self._column(path)}"
            columns[column] = math.hypot(columns.get(column, 0.0), norm)
        return {**columns}

    def _column(self, path: str) -> str:
        """The module under whose name a module's figures are kept: those beyond a limit share one."""
        if path not in self._modules and len(self._modules) >= _MOST_MODULE_COLUMNS:
            path = OTHERS
        self._modules[path] = None
        return path

    def _at_level(self, norms: dict[str, float]) -> dict[str, float]:
        by_module: dict[str, float] = {}
        for path, norm in norms.items():
            key = at_level(path, self._level or 1)
            by_module[key] = math.hypot(by_module.get(key, 0.0), norm)
        return by_module

    def _remember(self, step: RecordedStep, row: dict[str, Number]) -> None:
        """Keep a step among the last ones; for good if all are kept, or if it is unfinished or not finite."""
        watched = [row[name] for name in ("loss", "gradient_norm") if row.get(name) is not None]
        is_odd = any(isinstance(number, float) and not math.isfinite(number) for number in watched)
        self._not_finite += is_odd
        stays = self._keeps_all or not step.finished or (is_odd and self._not_finite <= _MOST_NOT_FINITE)
        entry = _Kept(step.number, step, stays)
        if stays:
            self._write(entry)
        self._last.append(entry)
        while len(self._last) > self._most_last:
            old = self._last.popleft()
            if old.step is None and not old.stays:
                self._old.append(self._file(old))

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _file(self, entry: _Kept) -> Path:
        return self.folder / STEPS / f"{entry.number}.atlas"

    def _write(self, entry: _Kept) -> None:
        if entry.step is not None:
            self._graph(entry.step).save(self._file(entry))
            entry.step = None

    def note(self, text: str) -> None:
        """Add a note to the run, once."""
        if text not in self.notes:
            self.notes.append(text)
            self._journal.append([Note(text)])

    def flush(self) -> None:
        """Write what waits to the disk: a process that is killed later loses nothing of it."""
        began = time.monotonic()
        for row, read in self._devices:
            row |= read()
        self._devices.clear()
        lines: list[Line] = [columns_line(self._rows)] if self._rows else []
        self._journal.append(lines)
        self._rows.clear()
        for entry in self._last:
            self._write(entry)
        while self._old:  # not before others are there
            self._old.pop().unlink(missing_ok=True)
        self._flushed_at = time.monotonic()
        self._pause_s = max(FLUSH_S, _FLUSH_SHARE * (self._flushed_at - began))

    def end(self, how: str, text: str) -> None:
        """Write what waits, and how it ended."""
        self.flush()
        self._journal.append([End(how, text, time.time())])  # type: ignore[arg-type]
        self._close()

    def abandon(self, text: str) -> None:
        """After a method has raised: say so in the journal, if it can still be written."""
        self._rows.clear()
        self._last.clear()
        with contextlib.suppress(OSError, ValueError):
            self._journal.append([End("stopped", text, time.time())])
        self._close()

    def _close(self) -> None:
        self._journal.close()
        self.resident.close()


class ResidentMemory:
    """How much memory this process has, where the system tells: Linux."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # kept open: asking takes 2 us then
        except OSError:
            self._file = -1

    def bytes(self) -> int | None:
        if self._file < 0:
            return None
        return int(os.pread(self._file, 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
