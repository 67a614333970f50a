"""What a recorder writes and the decoder reads: the one description of the rows of a recording.

A recorder runs between a program and the dispatcher, so it must do as little as possible: it appends plain Python
objects to three flat lists and leaves all questions (which phase, which module, which edges) to the decoder
(decode.py), which runs when the graph is first asked for. The lists are flat because each tuple or object that stays
alive brings the garbage collector's next full run nearer. Any recorder that writes these lists gives the same graph.

`TensorNumbers.tensors` and `.storages` describe memory. Each tensor and each storage gets a number when it is first
seen; every other row refers to it by that number.

    TensorRow    one per tensor object      number, storage, shape, stride, offset, dtype
    StorageRow   one per piece of memory    number, reference, bytes, device

`Recorder.rows` is what happened, in order. What stands at the beginning of a row says what kind of row it is:

    an int             an op: the fields of OpRow, then one entry per tensor argument, then the other positional
                       arguments and the keyword arguments if the operator has any, then the results. The int is
                       the number of a Plan, which knows how many entries follow (`Plan.tail` reads them)
    a weak reference   its storage died (the weak reference appends itself)
    an event           one object: Died, Resized, ResizedEarly, Reshaped, Recomputed or Returned, below

An entry for a tensor argument is a tensor's number; None; a list of entries for a list of tensors; or `(scalar,)`
where Python passed a number for a tensor. Results are a number, None, or nested lists of numbers. Of an operator whose
schema cannot be read, the arguments are walked instead: the row has no entries, and its other arguments are
`(numbers, structure, *written)`: the tensors in the order of the walk, the arguments with PLACE for each of them, and
the positions in `numbers` of those that were written.

Threads share the three lists. A row is appended in one call (`extend`), so rows do not mix; tensors and storages draw
their numbers from counters, and their rows may be out of order (`by_number` sorts them).
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar


class OpRow(NamedTuple):
    """The fields that every op has."""

    plan: int  # position in Recorder.plans
    start_ns: int
    end_ns: int
    next_sequence_nr: int  # the next number that autograd would give out in this thread; 0 as for `code`
    backward_nr: int | None  # the sequence number of the backward node that runs
    call: int  # the running module call or optimizer step; -1 for none
    code: types.CodeType | None  # the user's line; None in a backward node with gradients disabled: it has none
    instruction: int  # in `code`, as frame.f_lasti counts
    grad_mode: int  # 0 gradients disabled, 1 enabled, RECOMPUTING
    needs_grad: int  # gradients are enabled and an argument requires one: 0 or 1, or WRITES_VIEW
    callers: int = -1  # which composite operators called it, see Recorder.callers_of; -1: unknown


WRITES_VIEW = 2  # 1, and what it writes is a view in the eyes of autograd; only from recorders that know
RECOMPUTING = 2  # a checkpoint runs its function again, inside a backward node


class NodeRow(NamedTuple):
    """What the decoder knows of a node when it has read the row of its op. `Decoder.nodes` holds these rows flat."""

    plan: Any
    start_ns: Any
    end_ns: Any
    sequence_nr: Any  # of the backward node that the op made, or that it runs in
    call: Any
    source: Any  # position in Decoder.source_lines
    phase: Any
    memory_bytes: Any  # live after it; see TensorStates.live_bytes
    iteration: Any
    forward: Any  # the node of the forward op that a backward op belongs to
    arguments: Any  # position in Decoder.argument_texts
    thread: Any
    callers: Any
    input_count: Any
    output_count: Any


class TensorRow(NamedTuple):
    number: Any
    storage: Any
    shape: Any
    stride: Any  # the name of the layout where a tensor has no strides
    offset: Any
    dtype: Any


class StorageRow(NamedTuple):
    number: Any
    reference: Any  # weak
    bytes: Any  # -1: unknown
    device: Any


class Died(NamedTuple):
    """A storage died. For recorders that have no weak reference to tell."""

    storage: int


class Resized(NamedTuple):
    """A storage has another size from here on."""

    storage: int
    bytes: int


class ResizedEarly(NamedTuple):
    """A storage was resized before any op took it: it has no number yet. See TensorNumbers.meet_strangers."""

    reference: Any
    bytes: int


class Reshaped(NamedTuple):
    """The next op resized its out= argument: which tensor it was, and which it is afterwards."""

    before: int
    after: int


class Recomputed(NamedTuple):
    """What ran in this backward node so far was a checkpoint's function, run again."""

    backward_nr: int


class Returned(NamedTuple):
    """The model, or the function, returned these tensors. It becomes an output node."""

    tensors: list[int]
    arguments: str  # the structure of the result, as graph/arguments.py writes it


class Placeholder:
    """Stands in the arguments of a row for what is not there."""

    def __repr__(self) -> str:
        return "%"


PLACE = Placeholder()  # a tensor, in the arguments of an operator without a readable schema
OMITTED = Placeholder()  # a positional argument that was not passed


@dataclass(frozen=True)
class Slot:
    """One tensor argument of an operator."""

    name: str
    position: int | None  # None: keyword only
    many: bool  # a list of tensors
    written: bool
    overwritten: bool  # written and not read
    nested: bool = False  # a list of lists of tensors


_NO_KEYWORDS: dict[str, Any] = {}
Target = tuple[int, int, bool]  # a written argument: its position among the inputs, its tensor, whether it is not read


@dataclass(frozen=True, eq=False, slots=True)  # one per operator: equal only to itself
class Plan:
    """What is known of an operator before it runs. One without an operator stands for a compiled graph or a module."""

    operator: Any
    name: str  # aten.add.Tensor
    slots: tuple[Slot, ...] = ()
    others: tuple[int, ...] = ()  # positions of the arguments that are no tensors
    has_keywords: bool = False
    hidden: tuple[tuple[int, ...], int] | None = None  # arguments written if a flag is set: positions, and the flag's
    changes_layout: bool = False  # an in-place view op: the same tensor object has another shape afterwards
    required: int = 0  # how many positional arguments have no default
    readable: bool = True  # False: the operator has no schema we can read, its arguments are walked instead
    bookkeeping: bool = False  # not part of the program: let it run, record nothing
    # What follows from these, computed once because the decoder asks for every op
    writes: bool = field(init=False)  # it writes an argument, or may, for all we know
    takes_lists: bool = field(init=False)
    entry_count: int = field(init=False)
    detaches: bool = field(init=False)  # its result needs no gradient though its argument does
    clones: bool = field(init=False)

    def __post_init__(self) -> None:
        derive = functools.partial(object.__setattr__, self)
        derive("writes", not self.readable or self.hidden is not None or any(slot.written for slot in self.slots))
        derive("takes_lists", any(slot.many for slot in self.slots))
        derive("entry_count", len(self.slots))
        derive("detaches", self.name == "aten.detach.default")
        derive("clones", self.name == "aten.clone.default")

    def tail(self, rows: list[Any], at: int) -> tuple[list[Any], Any, Any, Any, int]:
        """The fields after those of OpRow, which end at `at`: entries, other arguments, keyword arguments, results.
        Last comes the position of the next row."""
        end = at + self.entry_count
        entries = rows[at:end]
        others: Any = ()
        keywords: Any = _NO_KEYWORDS
        if self.others:
            others = rows[end]
            end += 1
        if self.has_keywords:
            keywords = rows[end]
            end += 1
        return entries, others, keywords, rows[end], end + 1

    def inputs(self, entries: list[Any], others: Any) -> tuple[list[int], list[Target]]:
        """The tensors of a row one by one, and which of them the operator writes."""
        if not self.readable:
            return list(others[0]), [(index, others[0][index], False) for index in others[2:]]
        numbers: list[int] = []
        targets: list[Target] = []
        hidden = self.hidden[0] if self.hidden is not None and others[self.others.index(self.hidden[1])] else ()
        for slot, entry in zip(self.slots, entries, strict=True):
            written = slot.written or slot.position in hidden
            for number in (entry,) if type(entry) is int else flat_numbers(entry) if type(entry) is list else ():
                if written:
                    targets.append((len(numbers), number, slot.overwritten))
                numbers.append(number)
        return numbers, targets


def flat_numbers(entries: Any) -> list[int]:
    """The tensor numbers in entries or results, in order."""
    numbers: list[int] = []
    for entry in entries:
        if type(entry) is int:
            numbers.append(entry)
        elif type(entry) is list:
            numbers += flat_numbers(entry)
    return numbers


_Row = TypeVar("_Row", TensorRow, StorageRow, NodeRow)


def columns_of(rows: list[Any], schema: type[_Row]) -> _Row:
    """The columns of flat rows: each field of the result is a list."""
    width = len(schema._fields)
    return schema._make(rows[position::width] for position in range(width))


def by_number(rows: list[Any], schema: type[TensorRow | StorageRow], missing: list[Any]) -> list[Any]:
    """Flat rows, sorted by the number they begin with.

    A thread that goes on after the recording may have drawn a number and not yet written its row: `missing` stands in.
    """
    width = len(schema._fields)
    rows = list(rows)  # a thread may be writing just now
    if rows[0::width] == list(range(len(rows) // width)):
        return rows
    known = {rows[at]: rows[at : at + width] for at in range(0, len(rows), width)}
    return [field for number in range(max(known) + 1) for field in known.get(number, missing)]
