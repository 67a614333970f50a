"""A trace of torch.profiler (`.json`, `.json.gz`) -> its ops, kernels and steps. All of it is checked."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.escapes import quoted
from torchatlas.export.file_checks import in_words
from torchatlas.files import open_to_read

MOST_TRACE_BYTES = 2**31  # of text; more takes ten times as much memory when it is read
_EVALUATE = "autograd::engine::evaluate_function: "
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "hip_runtime")
_STEP = "ProfilerStep#"
# Text packs to a twentieth or so, a bomb to a thousandth.
MOST_EXPANSION = 100
# Ops in ops; a few dozen are usual. To find the op of a kernel takes a step for each.
MOST_NESTED = 1000
_MOST_US = 2.0**53  # microseconds; a larger one is no time


class _Arguments(Struct):
    """The arguments of an event that link it to others. Older traces write numbers as text."""

    external_id: int | str | None = msgspec.field(name="External id", default=None)
    sequence: int | str | None = msgspec.field(name="Sequence number", default=None)
    correlation: int | str | None = None
    dims: Any = msgspec.field(name="Input Dims", default=None)


class _Event(Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | float = 0
    tid: int | str | float = 0
    ts: float | None = None
    dur: float | None = None
    args: _Arguments | None = None


class _Distributed(Struct):
    rank: int | None = None


class _Document(Struct):
    trace_events: list[_Event] = msgspec.field(name="traceEvents")
    distributed: _Distributed | None = msgspec.field(name="distributedInfo", default=None)


@dataclass(slots=True, eq=False)
class TraceOp:
    """One call of an operator, or of a node of autograd, on the host."""

    name: str
    thread: tuple[Any, Any]
    start_ns: int
    end_ns: int
    external_id: int | None = None
    sequence: int | None = None  # of an op of forward: the number that autograd would give out next
    dims: Any = None
    parent: TraceOp | None = None
    backward_of: int | None = None  # the sequence number of the node of autograd that it runs in


@dataclass(frozen=True, slots=True)
class TraceKernel:
    """What ran on a device: a kernel, a copy or a fill."""

    name: str
    time_ns: int
    external_id: int | None
    correlation: int | None


@dataclass(slots=True)
class ProfilerTrace:
    """The parts of a trace that can be joined to a graph."""

    path: Path
    ops: list[TraceOp] = field(default_factory=list)  # by start; outer ones before what is in them
    kernels: list[TraceKernel] = field(default_factory=list)
    launches: dict[int, TraceOp] = field(default_factory=dict)  # by correlation: the op that launched it
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # number, start, end
    rank: int | None = None


def read_profiler_trace(path: Path) -> ProfilerTrace:
    """Read a trace that torch.profiler exported, or one of ours."""
    data = _text(path)
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (ValueError, RecursionError) as error:
        text = str(error)
        if "truncated" in text:
            what = "it ends in the middle: the program was ended while it was written, or the copy is not whole."
        elif "missing required field `traceEvents`" in text or ("got `array`" in text and "- at" not in text):
            what = "it has no traceEvents: not a trace that torch.profiler exported with export_chrome_trace."
        else:
            what = in_words(error)
        raise FileFormatError(f"{path}: not a profiler's trace: {what}") from error
    trace = ProfilerTrace(path, rank=None if document.distributed is None else document.distributed.rank)
    launches: list[tuple[int, _Event]] = []
    for event in document.trace_events:
        if event.ph != "X" or event.ts is None or event.dur is None:
            continue
        if event.cat == "cpu_op":
            trace.ops.append(_op(path, event))
        elif event.cat == "user_annotation" and event.name.startswith(_STEP):
            number = event.name.removeprefix(_STEP)
            if number.isdecimal() and len(number) < 10:
                trace.steps.append((int(number), *_bounds(path, event)))
        elif event.cat in _KERNELS:
            args = event.args or _Arguments()
            begin, end = _bounds(path, event)
            trace.kernels.append(
                TraceKernel(event.name, end - begin, _whole(args.external_id), _whole(args.correlation))
            )
        elif event.cat in _LAUNCHES and event.args is not None:
            correlation = _whole(event.args.correlation)
            if correlation is not None:
                launches.append((correlation, event))
    if not trace.ops:
        raise FileFormatError(
            f"{path}: not a profiler's trace: there is no operator in it (events of the category cpu_op). Profile with "
            "activities=[ProfilerActivity.CPU, ...], and export with export_chrome_trace."
        )
    _merge_steps(trace)
    _nest(trace)
    _attribute_launches(trace, launches)
    return trace


def _merge_steps(trace: ProfilerTrace) -> None:
    """One row per step, in order: several threads may have marked it."""
    bounds: dict[int, tuple[int, int]] = {}
    for number, begin, end in trace.steps:
        low, high = bounds.get(number, (begin, end))
        bounds[number] = min(low, begin), max(high, end)
    trace.steps = [(number, *bounds[number]) for number in sorted(bounds)]


def _text(path: Path) -> bytes:
    """The text of the trace, unpacked; never more than MOST_TRACE_BYTES."""
    try:
        with open_to_read(path) as file:
            data = file.read(MOST_TRACE_BYTES + 1)
    except FileNotFoundError as error:
        raise FileSystemError(f"Cannot read {path}: there is no such file.") from error
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot read {path}: {error.strerror or error}.") from error
    if data[:2] == b"\x1f\x8b":
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        most = min(MOST_TRACE_BYTES, MOST_EXPANSION * len(data))
        try:
            data = unpacker.decompress(data, most + 1)
        except zlib.error as error:
            raise FileFormatError(f"{path}: it cannot be unpacked ({error}).") from error
        if most < len(data) <= MOST_TRACE_BYTES:
            raise FileFormatError(f"{path}: it unpacks to more than {MOST_EXPANSION} times its size, as no trace does.")
        if not unpacker.eof and len(data) <= most:
            raise FileFormatError(f"{path}: it ends in the middle of what was packed: the copy is not whole.")
    if len(data) > MOST_TRACE_BYTES:
        raise FileFormatError(
            f"{path}: more than {MOST_TRACE_BYTES:,} bytes of text. Profile fewer steps: "
            "torch.profiler.schedule(wait=1, warmup=1, active=1), and leave with_stack out."
        )
    return data


def _op(path: Path, event: _Event) -> TraceOp:
    args = event.args or _Arguments()
    sequence = _whole(args.sequence)
    return TraceOp(
        event.name,
        (event.pid, event.tid),
        *_bounds(path, event),
        _whole(args.external_id),
        sequence if sequence is not None and 0 <= sequence < 2**62 else None,
        args.dims,
    )


def _bounds(path: Path, event: _Event) -> tuple[int, int]:
    """When it began and ended, in nanoseconds."""
    assert event.ts is not None
    assert event.dur is not None
    if not 0 <= event.ts <= _MOST_US or not 0 <= event.dur <= _MOST_US:
        raise FileFormatError(f"{path}: {quoted(event.name)} at {event.ts} for {event.dur} microseconds: no such time.")
    return round(event.ts * 1000), round((event.ts + event.dur) * 1000)


def _whole(number: int | str | None) -> int | None:
    if isinstance(number, str):
        return int(number) if number.isascii() and number.isdecimal() and len(number) < 20 else None
    return number


def _nest(trace: ProfilerTrace) -> None:
    """Sort the ops and set the parent of each: on one thread, ops are nested or disjoint."""
    trace.ops.sort(key=lambda op: (op.start_ns, -op.end_ns))
    stacks: dict[tuple[Any, Any], list[TraceOp]] = {}
    for op in trace.ops:
        stack = stacks.setdefault(op.thread, [])
        while stack and stack[-1].end_ns <= op.start_ns and op.end_ns > stack[-1].end_ns:
            stack.pop()
        if len(stack) >= MOST_NESTED:
            raise FileFormatError(f"{trace.path}: {quoted(op.name)} lies in more than {MOST_NESTED:,} other ops.")
        op.parent = stack[-1] if stack else None
        if op.name.startswith(_EVALUATE):
            op.backward_of = op.sequence
        elif op.parent is not None:
            op.backward_of = op.parent.backward_of
        stack.append(op)


def ops_by_id(trace: ProfilerTrace) -> dict[int | None, TraceOp]:
    """External id -> the op that has it."""
    return {op.external_id: op for op in trace.ops if op.external_id is not None}


def _attribute_launches(trace: ProfilerTrace, launches: list[tuple[int, _Event]]) -> None:
    """Set `trace.launches`: per launch the op of its external id, else the innermost op that was running then."""
    by_id = ops_by_id(trace)
    on_thread: dict[tuple[Any, Any], list[TraceOp]] = {}
    for op in trace.ops:
        on_thread.setdefault(op.thread, []).append(op)
    starts = {thread: [op.start_ns for op in ops] for thread, ops in on_thread.items()}
    for correlation, event in launches:
        assert event.args is not None
        launcher = by_id.get(_whole(event.args.external_id))
        if launcher is None and (event.pid, event.tid) in on_thread:
            thread, (begin, _) = (event.pid, event.tid), _bounds(trace.path, event)
            before = bisect_right(starts[thread], begin) - 1
            launcher = on_thread[thread][before] if before >= 0 else None
            while launcher is not None and launcher.end_ns < begin:
                launcher = launcher.parent
        if launcher is not None:
            trace.launches[correlation] = launcher
