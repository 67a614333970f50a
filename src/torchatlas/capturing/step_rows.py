"""A recorded step -> what can be told of it without decoding: which structure it has, how long its ops took, what died.

Decoding a step takes ten times as long as recording it, and most steps of a run are like one that was decoded before.
A recorder that can answer for itself has a method `step_rows(watch)`; for the Python recorder its rows are read here.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.row_schema import Died, OpRow, Plan, ResizedEarly, Returned, StorageRow, TensorRow
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
        found = np.zeros(len(self.times_ns) + 1, np.int64)
        for position, size in self.freed:
            found[position] += size
        total: Array = np.cumsum(found)[:-1]
        return total


def step_rows(recording: Recording) -> StepRows:
    """Read a recording that has ended and was not decoded yet."""
    recorder, watch = recording._recorder, recording._watch
    own = getattr(recorder, "step_rows", None)
    rows: StepRows = _read(recorder, watch) if own is None else own(watch)
    return rows


def _read(recorder: Recorder, watch: Watch) -> StepRows:
    """The structure is what ran, on tensors of which shapes, in which modules. Not part of it: lines, times, sequence
    numbers, what was freed when, and the value of a number that an op takes (a learning rate changes every step)."""
    rows, end = recorder.rows, len(recorder.rows) if recorder.end is None else recorder.end
    forms = [_form(plan) for plan in recorder.plans]
    width = len(StorageRow._fields)
    storages = list(recorder.numbers.storages)
    numbers, references, sizes = (storages[at::width] for at in (_NUMBER, _REFERENCE, _BYTES))
    size_of = dict(zip(numbers, sizes, strict=False))
    size_of_reference = dict(zip(map(id, references), sizes, strict=False))
    keys: list[int] = []
    times: list[int] = []
    freed: list[tuple[int, int]] = []
    at = 0
    while at < end:
        head = rows[at]
        if type(head) is int:
            form = forms[head]
            stop = at + form.width
            fields = form.frozen(rows[at + _FIXED : stop])
            in_backward = rows[at + _BACKWARD] is not None
            keys.append(hash((form.name, rows[at + _CALL], in_backward, rows[at + _GRAD_MODE], fields)))
            times.append(rows[at + _END] - rows[at + _START])
            at = stop
        else:
            if type(head) is weakref.ref:
                freed.append((len(times), max(size_of_reference.get(id(head), 0), 0)))
            elif isinstance(head, Died):
                freed.append((len(times), max(size_of.get(head.storage, 0), 0)))
            elif isinstance(head, Returned):
                keys.append(hash(("returned", *head.tensors, head.arguments)))
            elif isinstance(head, ResizedEarly):
                keys.append(hash(("resized early", head.bytes)))
            else:
                keys.append(hash((type(head).__name__, *head)))
            at += 1
    signature = (
        hash(tuple(keys)),
        hash(_tensors(recorder)),
        hash(tuple(sizes)),
        hash((tuple(watch.call_owner), tuple(watch.call_parent))),
        hash(tuple([(owner.path, owner.type, owner.kind, owner.root) for owner in watch.owners])),
    )
    return StepRows(signature, np.array(times, np.int64), tuple(freed))


def _tensors(recorder: Recorder) -> tuple[Any, ...]:
    """Number, storage, shape, stride, offset and dtype of every tensor that ops took or made."""
    try:
        found = tuple(recorder.numbers.tensors)
        hash(found)
        return found
    except TypeError:  # a shape with symbols in it
        width = len(TensorRow._fields)
        rows = recorder.numbers.tensors
        return tuple(repr(rows[at : at + width]) for at in range(0, len(rows), width))


@dataclass(frozen=True, slots=True)
class _Form:
    """How the rows of an operator are read."""

    name: str
    width: int  # of a whole row
    entries: int  # how many tensor arguments
    only_tensors: bool  # neither other arguments nor lists
    others: bool
    keywords: bool
    numbers: frozenset[int | str]  # arguments that are numbers: positions among the other arguments, names

    def frozen(self, fields: list[Any]) -> tuple[Any, ...]:
        """What follows the fixed fields, to be hashed: without the values of numbers."""
        found = tuple(fields)
        if self.only_tensors and tuple not in map(type, found):
            return found
        entries = self.entries
        result: list[Any] = [_kind(one) if type(one) is tuple else _frozen(one) for one in found[:entries]]
        if self.others:
            given = enumerate(found[entries])
            result.append(tuple([_kind(one) if at in self.numbers else _frozen(one) for at, one in given]))
            entries += 1
        if self.keywords:
            named = found[entries].items()
            result.append(tuple([(name, _kind(one) if name in self.numbers else _frozen(one)) for name, one in named]))
        result.append(_frozen(found[-1]))
        return tuple(result)


@functools.lru_cache(4096)  # a plan is made once per process, but for those of compiled graphs
def _form(plan: Plan) -> _Form:
    numbers: set[int | str] = set()
    schema = getattr(plan.operator, "_schema", None)
    if plan.readable and schema is not None:
        is_number = [str(argument.type) in _NUMBERS for argument in schema.arguments]
        numbers |= {at for at, position in enumerate(plan.others) if is_number[position]}
        numbers |= {one.name for one, number in zip(schema.arguments, is_number, strict=True) if number}
    others, keywords = bool(plan.others), plan.has_keywords
    several = plan.takes_lists or schema is None or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor"
    width = _FIXED + plan.entry_count + others + keywords + 1
    only_tensors = not (others or keywords or several)
    return _Form(plan.name, width, plan.entry_count, only_tensors, others, keywords, frozenset(numbers))


_NUMBERS = {"number", "float", "Optional[number]", "Optional[float]", "List[number]", "List[float]"}


def _kind(item: Any) -> Any:
    """What kind of number it is, or how many of which kinds."""
    return tuple([_kind(part) for part in item]) if isinstance(item, (list, tuple)) else type(item).__name__


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
