"""A recorded step -> what is known of it without decoding: its structure, how long its ops took, which storages died.

Decoding a step takes ten times as long as recording it, and most steps of a run are like one that was decoded before.
A recorder that can summarize its rows itself (`Recorder.summary`) does; of any other the rows are read here.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.recorder import Recorder, Summary
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.row_schema import Died, OpRow, Plan, Reshaped, Resized, ResizedEarly, Returned, StorageRow
from torchatlas.graph.columns import Array

_FIXED = len(OpRow._fields)
_START, _END, _BACKWARD, _CALL, _GRAD_MODE = map(
    OpRow._fields.index, ("start_ns", "end_ns", "backward_nr", "call", "grad_mode")
)
_NUMBER, _REFERENCE, _BYTES = map(StorageRow._fields.index, ("number", "reference", "bytes"))


@dataclass(frozen=True, slots=True)
class StepRows:
    """What is known of a step before it is decoded."""

    signature: tuple[int, ...]  # equal for steps of equal structure, within this process
    times_ns: Array  # of every op, in order
    freed: tuple[tuple[int, int], ...]  # (ops before it, bytes) of every storage that died

    def freed_bytes(self) -> Array:
        """How many bytes had died when each op ended."""
        freed = np.zeros(len(self.times_ns) + 1, np.int64)
        for position, size in self.freed:
            freed[position] += size
        total: Array = np.cumsum(freed)[:-1]
        return total


class StepReader:
    """Reads the steps of one run.

    Most steps are like the one before, row by row. So a step is first compared with the last one that the same recorder
    made: a tuple of the fields that must be equal is compared as a whole, which takes a tenth of reading row by row.
    """

    def __init__(self) -> None:
        self._templates: weakref.WeakKeyDictionary[Recorder, _Template] = weakref.WeakKeyDictionary()

    def read(self, recording: Recording) -> StepRows:
        """Read a recording that has ended and was not decoded yet."""
        recorder, watch = recording._recorder, recording._watch
        if (summary := recorder.summary()) is not None:
            return _summarized(summary, watch)
        step = _Step(recorder, watch)
        template = self._templates.get(recorder)
        rows = None if template is None else template.read(step)
        if rows is None:
            template = _Template(step)
            self._templates[recorder] = template
            rows = template.first
        return rows


def _summarized(summary: Summary, watch: Watch) -> StepRows:
    structure, times, freed, events, odd_tensors = summary
    calls = hash((tuple(watch.call_owner), tuple(watch.call_parent)))
    others = hash((tuple(map(_event_hash, events)), tuple(map(repr, odd_tensors))))
    return StepRows((structure, watch.signature(), calls, others), np.frombuffer(times, np.int64), freed)


class _Step:
    """The lists of a recording that has ended. Threads may go on writing to them, after `end`."""

    def __init__(self, recorder: Recorder, watch: Watch) -> None:
        self.rows: list[Any] = recorder.rows
        self.end = len(self.rows) if recorder.end is None else recorder.end
        self.plans = recorder.plans
        self.tensors = list(recorder.numbers.tensors)
        width, storages = len(StorageRow._fields), list(recorder.numbers.storages)
        self.storages, self.references, self.sizes = (storages[at::width] for at in (_NUMBER, _REFERENCE, _BYTES))
        owners = [(owner.path, owner.type, owner.kind, owner.root) for owner in watch.owners]
        self.calls = list(watch.call_owner), list(watch.call_parent), owners

    @functools.cached_property
    def size_of_death(self) -> Callable[[Any], int]:
        """A function: the row of a storage's death -> the bytes that the storage had."""
        by_number = dict(zip(self.storages, self.sizes, strict=False))
        by_reference = dict(zip(map(id, self.references), self.sizes, strict=False))

        def size(row: Any) -> int:
            bytes_freed: int = by_number.get(row.storage, 0) if isinstance(row, Died) else by_reference.get(id(row), 0)
            return max(bytes_freed, 0)

        return size

    def let_go(self) -> None:
        """Keep what steps are compared with, and nothing of the recorder's, which will record another one."""
        self.rows, self.references = [], []
        del self.size_of_death


class _Template:
    """A step that was read row by row, `first`, and what a step must have in common with it to be of its structure.

    The structure is what ran, on tensors of which shapes, in which modules. Not part of it: lines, times, sequence
    numbers, what was freed when, and the value of a number that an op takes (a learning rate changes every step).
    """

    def __init__(self, step: _Step) -> None:
        self._step = step
        self._fixed: list[int] = []  # positions of fields that must be equal
        self._loose: list[tuple[int, _Form, int, Any]] = []  # of those that hold numbers: position, form, field, frozen
        self._starts: list[int] = []  # of ops
        self._deaths: list[tuple[int, int]] = []  # position, ops before it
        self._events: list[tuple[int, int]] = []  # position, hash
        keys = self._read_rows(step)
        self._values = _picked(self._fixed, step.rows)
        owners, parents, modules = step.calls
        signature = (
            hash(tuple(keys)),
            hash(_hashable(step.tensors)),
            hash(tuple(step.sizes)),
            hash((tuple(owners), tuple(parents))),
            hash(tuple(modules)),
        )
        self.first = self._rows_of(step, signature)
        step.let_go()

    def _read_rows(self, step: _Step) -> list[int]:
        """Note which fields are where. Returns a hash for every row that counts."""
        rows, forms, keys, at = step.rows, [_form(plan) for plan in step.plans], list[int](), 0
        while at < step.end:
            head = rows[at]
            if type(head) is int:
                form = forms[head]
                stop = at + form.width
                fields = [form.frozen(field, rows[at + _FIXED + field]) for field in range(form.width - _FIXED)]
                in_backward = rows[at + _BACKWARD] is not None
                keys.append(hash((form.name, rows[at + _CALL], in_backward, rows[at + _GRAD_MODE], tuple(fields))))
                self._starts.append(at)
                self._fixed += (at, at + _CALL, at + _GRAD_MODE) if in_backward else _forward_fields(at)
                for field, frozen in enumerate(fields):
                    position = at + _FIXED + field
                    if form.is_loose(field, rows[position]):
                        self._loose.append((position, form, field, frozen))
                    else:
                        self._fixed.append(position)
                at = stop
            else:
                if type(head) is weakref.ref or isinstance(head, Died):
                    self._deaths.append((at, len(self._starts)))
                else:
                    keys.append(_event_hash(head))
                    self._events.append((at, keys[-1]))
                at += 1
        return keys

    def read(self, step: _Step) -> StepRows | None:
        """What there is to know of a step like this one; None if it is another."""
        known, rows = self._step, step.rows
        if step.end != known.end or step.sizes != known.sizes or step.calls != known.calls:
            return None
        if step.tensors != known.tensors or _picked(self._fixed, rows) != self._values:
            return None
        if any(form.frozen(field, rows[position]) != frozen for position, form, field, frozen in self._loose):
            return None
        if any(type(rows[position]) not in (weakref.ref, Died) for position, _ in self._deaths):
            return None
        if any(type(rows[position]) is int or _event_hash(rows[position]) != key for position, key in self._events):
            return None
        return self._rows_of(step, self.first.signature)

    def _rows_of(self, step: _Step, signature: tuple[int, ...]) -> StepRows:
        rows = step.rows
        times = [rows[at + _END] - rows[at + _START] for at in self._starts]
        size = step.size_of_death
        freed = tuple([(count, size(rows[at])) for at, count in self._deaths])
        return StepRows(signature, np.array(times, np.int64), freed)


def _forward_fields(at: int) -> tuple[int, ...]:
    return at, at + _BACKWARD, at + _CALL, at + _GRAD_MODE


def _picked(positions: list[int], rows: list[Any]) -> tuple[Any, ...]:
    if len(positions) < 2:
        return tuple(rows[position] for position in positions)
    picked: tuple[Any, ...] = operator.itemgetter(*positions)(rows)
    return picked


def _event_hash(event: Any) -> int:
    if isinstance(event, Returned):
        return hash(("returned", *event.tensors, event.arguments))
    if isinstance(event, ResizedEarly):
        return hash(("resized early", event.bytes))
    if not isinstance(event, (Resized, Reshaped)):  # Recomputed: with a sequence number, which is another every time
        return hash(type(event).__name__)
    return hash((type(event).__name__, *event))


def _hashable(tensors: list[Any]) -> tuple[Any, ...]:
    """Number, storage, shape, stride, offset and dtype of every tensor that ops took or made."""
    key = tuple(tensors)
    try:
        hash(key)
    except TypeError:  # a shape with symbols in it
        return tuple(map(repr, key))
    return key


@dataclass(frozen=True, slots=True)
class _Form:
    """How the rows of an operator are read."""

    name: str
    width: int  # of a whole row
    entries: int  # how many tensor arguments
    others: bool
    keywords: bool
    numbers: frozenset[int | str]  # arguments that are numbers: positions among the other arguments, names

    def frozen(self, field: int, item: Any) -> Any:
        """A field after the fixed ones, in a form that can be hashed and without the values of numbers."""
        if field < self.entries:
            return _kind(item) if type(item) is tuple else _frozen(item)
        if self.others and field == self.entries:
            return tuple([_kind(one) if at in self.numbers else _frozen(one) for at, one in enumerate(item)])
        if self.keywords and field == self.entries + self.others:
            pairs = item.items()
            return tuple([(name, _kind(one) if name in self.numbers else _frozen(one)) for name, one in pairs])
        return _frozen(item)

    def is_loose(self, field: int, item: Any) -> bool:
        """True for a field that may differ in the value of a number."""
        if field < self.entries:
            return type(item) is tuple
        return field < self.entries + self.others + self.keywords and (bool(self.numbers) or _has_number(item))


@functools.lru_cache(4096)  # a plan is made once per process, but for those of compiled graphs
def _form(plan: Plan) -> _Form:
    numbers: set[int | str] = set()
    schema = getattr(plan.operator, "_schema", None)
    if plan.readable and schema is not None:
        is_number = [str(argument.type) in _NUMBERS for argument in schema.arguments]
        numbers |= {at for at, position in enumerate(plan.others) if is_number[position]}
        numbers |= {one.name for one, number in zip(schema.arguments, is_number, strict=True) if number}
    others, keywords = bool(plan.others), plan.has_keywords
    width = _FIXED + plan.entry_count + others + keywords + 1
    return _Form(plan.name, width, plan.entry_count, others, keywords, frozenset(numbers))


_NUMBERS = {"number", "float", "Optional[number]", "Optional[float]", "List[number]", "List[float]"}


def _kind(item: Any) -> Any:
    """What kind of number it is, or how many of which kinds."""
    return tuple([_kind(part) for part in item]) if isinstance(item, (list, tuple)) else type(item).__name__


def _has_number(item: Any) -> bool:
    """True if there is a real number anywhere in an argument."""
    if isinstance(item, (float, complex)):
        return True
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
    return any(map(_has_number, parts))


def _frozen(item: Any) -> Any:
    """Something that can be hashed, in place of an entry, argument or result."""
    kind = type(item)
    if kind is int or item is None or kind is bool or kind is str:
        return item
    if kind is float or kind is complex:
        return kind.__name__
    if isinstance(item, (list, tuple)):
        return tuple([_frozen(part) for part in item])
    if isinstance(item, dict):
        return tuple([(str(key), _frozen(part)) for key, part in item.items()])
    try:
        hash(item)
    except TypeError:
        return repr(item)
    return item
