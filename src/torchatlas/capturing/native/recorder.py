"""The recorder in C++ behind the interface of `Recorder`: its rows, its numbers for tensors, its threads.

recorder.cpp says what it sees. It writes the rows of row_schema.py whenever somebody asks for them; the few events that
Python notes itself (a result that was returned, a checkpoint that recomputes) are appended in between.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from torchatlas.capturing.collectives import is_group, is_reduction
from torchatlas.capturing.frames import code_kind, recomputes
from torchatlas.capturing.native import build
from torchatlas.capturing.op_listening import OpClock, OpListener
from torchatlas.capturing.record_op import plan_for
from torchatlas.capturing.recorder import Around, Recorder, Summary, describe_error, running_node
from torchatlas.capturing.row_schema import OMITTED, PLACE, Died, Plan, Reshaped, Resized
from torchatlas.capturing.table_rows import portable
from torchatlas.capturing.tensor_numbers import TensorNumbers
from torchatlas.capturing.tensors import layout_name, shape_of, storages_of
from torchatlas.errors import StateError
from torchatlas.graph.arguments import Constant
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import (
    dispatch_mode_stack,
    functorch_depth,
    never_compiled,
    next_sequence_nr,
    push_mode,
    push_mode_below,
    pytree,
    remove_mode,
    saved_tensors_hooked,
)


class ValueKeeper(Protocol):
    """Keeps what ops take and make. The recorder in Python calls `keep` or `around`, this one `before` and `after`."""

    @property
    def keep(self) -> Callable[[Any, list[Any]], None] | None: ...
    @property
    def around(self) -> Around | None: ...
    def before(self, plan: Plan, args: Any, kwargs: Any) -> None: ...
    def after(self, plan: Plan, args: Any, kwargs: Any, raised: bool, out: Any) -> None: ...


_ADDRESS = operator.attrgetter("_cdata")
_EVENTS = (Died, Resized, Reshaped)  # in the order of Row::Kind
_RECOMPUTES = 2
HOOKS = "hooks on saved tensors run inside of ops whose values are kept"
_NEVER_DISPATCHED = frozenset({"aten.detach_.default"})  # done by autograd itself: no dispatch mode sees it
_NOT_HERE, _ON, _BELOW = range(3)  # what Core.place says
_MOST_IDLE = 4
_MOST_KEPT = 2048
_IDLE: list[NativeRecorder] = []


def missing_here(keeps_values: bool) -> str | None:
    """Why the native recorder cannot record what runs here, in this thread at this moment; None if it can."""
    if keeps_values and saved_tensors_hooked():
        return HOOKS
    if dispatch_mode_stack():
        return "a dispatch mode is on"  # fake tensors are one
    if functorch_depth():
        return "a transform of torch.func runs"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return "torch.distributed is initialized"
    module = build.load()
    return None if module is None or module.has_room() else "sixteen native recordings run already"


class NativeRecorder(Recorder):
    """One recording by the recorder in C++."""

    kind = "native"
    knows_views = True
    touches_nodes = False

    def __init__(
        self,
        module: Any,
        *,
        guard: Callable[[Any], None] | None = None,
        listener: OpListener | None = None,
        values: ValueKeeper | None = None,
    ) -> None:
        self._module = module
        self._core = module.Core(
            describe=self._describe,
            classify=_classify,
            odd=_odd,
            watcher=self._watch_end,
            structure=_structure,
            opaque=_opaque,
            omitted=OMITTED,
            place=PLACE,
            events=_EVENTS,
            take_over=self.take_over,
            guard=guard,
            told=None if listener is None else self._told,
            before=None if values is None else self._before_op,
            after=None if values is None else self._after_op,
        )
        self._values = values
        self._written: list[Any] = []  # see `rows`
        self._switched = False  # whether the dispatch mode records this thread
        self._lifted = False  # whether another is about to take its place
        self._by_thread: dict[int, NativeRecorder] = {}  # the forks of other threads
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}  # address -> reference; see `_watch_end`
        self._raised: list[str] = []  # operators that raised in the dispatch mode
        self.taken_over: list[str] = []  # why the recorder in Python took over in the middle; see `take_over`
        self._stopped = False
        self._end: int | None = None
        super().__init__(
            guard=guard,
            keep=None if values is None else values.keep,
            around=None if values is None else values.around,
            listener=listener,
        )
        self.current: Any = module.Cell(self._core)
        self._extend = self._extend_after_core
        self.environment = self._make_environment()

    @classmethod
    def take(cls) -> NativeRecorder:
        try:
            return _IDLE.pop()
        except IndexError:
            return cls(build.load())

    def release(self) -> None:
        self._written.clear()
        self._watched.clear()
        self.numbers.clear()
        self.metadata.clear()
        self._raised.clear()
        self.taken_over.clear()
        self.current[:], self.failure, self._switched = (-1, None), None, False
        self._stopped, self._end = False, None
        _, codes, layouts, _ = self._core.counts()
        watched = self._guard is not None or self._listener is not None or self._values is not None
        failed = self._core.error() is not None  # and what it asked about an operator or a line was not answered
        ours_alone = not watched and not self._forked and not self._mode.over and not failed
        serves_again = ours_alone and len(_IDLE) < _MOST_IDLE and max(codes, layouts) <= _MOST_KEPT
        self._core.release(not serves_again)  # one that serves again keeps the code objects that it knows
        if serves_again:
            _IDLE.append(self)

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[Any]:
        """What happened so far. Whoever appends to it does so after what the recorder in C++ has seen until now."""
        self._core.drain(self._written)
        return self._written

    @rows.setter
    def rows(self, rows: list[Any]) -> None:
        self._written = rows

    @property
    def end(self) -> int | None:
        """The length of `rows` when the recording stopped. Nobody has to make the rows before somebody asks."""
        if self._stopped and self._end is None:
            self._end = len(self.rows)
        return self._end

    @end.setter
    def end(self, length: int | None) -> None: ...

    def summary(self) -> Summary | None:
        found: Summary | None = self._core.summary() if not self._written and not self.taken_over else None
        return found

    def callers_of(self, number: int) -> list[str]:
        return [_operator_name(*names) for names in self._module.callers_of(number)]

    def note(self, event: Any) -> None:
        self._core.note(event)

    def mark(self) -> int:
        number: int = self._core.mark()
        return number

    def positions(self, marks: list[int]) -> list[int]:
        found = self._core.marks() if self.rows else []
        return [found[mark] for mark in marks]

    def _make_numbers(self) -> TensorNumbers:
        return NativeNumbers(self._core, self)

    def _make_clock(self) -> OpClock:
        return NativeClock(self._core)

    @property
    def length(self) -> int:
        """How many ops it has seen so far."""
        count: int = self._core.counts()[0]
        return count

    # -- beginning and end -------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._core.start(self.current):
            raise StateError("Sixteen native recordings run already: use native=False for more.")
        self._note_beginning()

    def _note_beginning(self) -> None:
        self.thread, self._began_in = threading.current_thread().name, running_node()
        self.began_ns, self.first_sequence_nr = self._module.clock_ns(), next_sequence_nr()

    def stop(self) -> None:
        if self._switched:
            super().stop()
        self._core.stop()
        self._note_end()

    def hand_over(self, successor: Recorder) -> bool:
        if self._switched or self._forked or not isinstance(successor, NativeRecorder):
            return False
        if not self._core.hand_over(successor._core, successor.current):
            return False
        self._note_end()
        successor._note_beginning()
        return True

    def _note_end(self) -> None:
        self._stopped = True
        if self._forked:  # a thread that the recorder in Python took over may go on
            self._end = len(self.rows)
        peak = self._core.counts()[3]
        self.metadata["allocated_peak_bytes"] = peak if peak >= 0 else None  # unknown while a profiler listened

    def abandon(self) -> None:
        """Other threads may have been in the middle of writing rows: nobody may read them."""
        self._core.abandon()
        if self._switched:
            self._mode.silence()

    def own_error(self) -> BaseException | None:
        error: BaseException | None = self._core.error()
        return None if isinstance(error, KeyboardInterrupt) else error  # that one is the program's

    def is_on(self) -> bool:
        return bool(self._core.place() != _NOT_HERE)

    def is_innermost(self) -> bool:
        return self._lifted or bool(self._core.place() == _ON)

    @bracketed
    def _above_lifted(self) -> Iterator[None]:
        self._lifted = True  # recordings in C++ are independent of each other: only their order is watched
        try:
            with super().above_lifted():
                yield
        finally:
            self._lifted = False

    def above_lifted(self) -> AbstractContextManager[None]:
        return self._above_lifted()

    def succeed(self, other: Recorder) -> None:
        if isinstance(other, NativeRecorder):
            self._core.succeed(other._core)

    def take_off(self) -> None:
        """After a backward pass in which the recording ended: torch has put its callback back."""
        super().take_off()
        if self._stopped:
            self._core.detach()

    def paused(self) -> AbstractContextManager[None]:
        return _paused(self._core)

    def unrecorded(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return self._core.unrecorded(function, argument)

    @never_compiled
    def take_over(self, reason: str) -> None:
        """From here on, in this thread, the dispatch mode records: also called by the recorder in C++.

        Its rows follow what was recorded so far, with the same numbers.
        """
        here = self._by_thread.get(threading.get_ident(), self)
        if here.is_on() and not here._switched:
            here._switched = True
            self._core.pause(1)
            self.taken_over.append(reason)
            push_mode_below(here._mode)  # none was on when the recording began, and each ends by taking off the top

    def hooks_begin(self) -> None:
        """Whoever keeps values is told of ops one by one, and cannot be told of one inside of another."""
        if self._values is not None:
            self.take_over(HOOKS)

    def in_python(self, reason: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._switched or not self.is_on() else self._in_python(reason)

    @bracketed
    def _in_python(self, reason: str) -> Iterator[None]:
        self._switched = True
        self.taken_over.append(reason)
        self._core.pause(1)
        push_mode(self._mode)
        try:
            yield
        finally:
            remove_mode(self._mode)
            self._core.pause(-1)
            self._switched = False

    def _extend_after_core(self, row: Any) -> None:
        self.rows.extend(row)

    # -- threads -----------------------------------------------------------------------------------------------------

    def fork(self) -> Recorder:
        self._forked = True
        fork = NativeRecorder.__new__(NativeRecorder)
        vars(fork).update(vars(self))
        fork.current = self._module.Cell(self._core)
        fork._parent = self
        fork._switched = False
        fork.environment = fork._make_environment()
        fork._mode = type(self._mode)(fork)
        return fork

    def attach(self) -> None:
        self._by_thread[threading.get_ident()] = self
        self._core.attach(self.current)

    def detach(self) -> None:
        self._by_thread.pop(threading.get_ident(), None)
        self._core.detach()
        if self._mode in dispatch_mode_stack():
            super().detach()

    # -- failures ----------------------------------------------------------------------------------------------------

    @property
    def handled(self) -> list[str]:
        failures, _, _ = self._core.failures()
        # A checkpoint raises an exception of its own, in a hook inside of an op, when it has recomputed enough.
        raised = [self.plans[number].name for number, *_, recomputing in failures if not recomputing]
        return [*raised, *self._raised]

    @handled.setter
    def handled(self, names: list[str]) -> None: ...

    def _note_handled(self, name: str) -> None:
        self._raised.append(name)

    def failure_of(self, error: BaseException) -> tuple[str, str, int, types.CodeType | None, int] | None:
        """The exception becomes a Python object after the op has left: it is known by the frame that called the op."""
        if (found := super().failure_of(error)) is not None:
            return found
        failures, innermost, instruction = self._core.failures()
        chain: BaseException | None = error
        while chain is not None and failures:
            trace = chain.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None and id(trace.tb_frame.f_code) == innermost and trace.tb_lasti == instruction:
                number, call, code, at, _ = failures[-1]
                return self.plans[number].name, describe_error(chain), call, code, at
            chain = chain.__cause__ or chain.__context__
        return None

    # -- what the recorder in C++ asks -------------------------------------------------------------------------------
    # It asks while ops run, also between the pieces of what torch.compile compiles, which must not compile these.

    @never_compiled
    def _before_op(self, number: int, args: Any, kwargs: Any) -> None:
        assert self._values is not None
        self._values.before(self.plans[number], args, kwargs)

    @never_compiled
    def _after_op(self, number: int, args: Any, kwargs: Any, raised: bool, out: Any) -> None:
        assert self._values is not None
        self._values.after(self.plans[number], args, kwargs, raised, out)

    @never_compiled
    def _describe(self, name: str, overload: str) -> tuple[Any, ...]:
        """What the recorder in C++ has to know of an operator: the fields of its Plan, in the order of `described`."""
        space, _, rest = name.partition("::")
        try:
            operator = getattr(getattr(getattr(torch.ops, space), rest), overload or "default")
            plan = plan_for(operator)
        except (AttributeError, RuntimeError):  # known to the dispatcher alone
            plan = Plan(None, _operator_name(name, overload), others=(0,), readable=False)
        if plan.bookkeeping or plan.name in _NEVER_DISPATCHED:
            return -1, True, False, False, (), (), (), (), (), (), 0, 0, 0
        number = self.add_plan(plan)
        wants = 0 if self._listener is None else int(self._listener.wants(plan))
        schema = getattr(plan.operator, "_schema", None)
        if not plan.readable or schema is None:
            return number, False, False, False, (), (), (), (), (), (), 0, 2, wants
        arguments = schema.arguments
        places = {argument.name: index for index, argument in enumerate(arguments)}
        slots = tuple(places[slot.name] for slot in plan.slots)
        keywords = tuple(i for i, argument in enumerate(arguments) if argument.kwarg_only and i not in slots)
        positional = sum(not argument.kwarg_only for argument in arguments)
        words = any(_has_word(arguments[p]) for p in plan.others)
        sliced = bool(plan.others) and plan.others == tuple(range(plan.others[0], positional)) and not words
        hidden, flag = plan.hidden if plan.hidden is not None else ((), 0)
        kinds = [str(item.type) for item in schema.returns]
        result = 0 if not any("Tensor" in kind for kind in kinds) else 1 if len(kinds) == 1 else 2
        return (
            number,
            True,
            sliced,
            plan.has_keywords,
            slots,
            plan.others,
            keywords,
            tuple(places[slot.name] for slot in plan.slots if slot.written),
            hidden,
            tuple(i for i, argument in enumerate(arguments) if "Generator" in str(argument.type)),
            flag,
            result,
            wants,
        )

    @never_compiled
    def _watch_end(self, tensor: torch.Tensor, address: int) -> None:
        """Say when a tensor ends to which the recorder in C++ must have no weak reference: `lets_go` in tensors.h."""
        watched, gone = self._watched, self._core.gone

        @never_compiled
        def end(reference: weakref.ref[torch.Tensor]) -> None:
            del watched[address]
            gone(address)

        watched[address] = weakref.ref(tensor, end)

    @never_compiled
    def _told(self, number: int, why: int, args: Any, kwargs: Any, out: Any) -> None:
        if self._listener is not None:
            self._listener.told(self.plans[number], why, args, kwargs, out)


def _operator_name(name: str, overload: str) -> str:
    """aten::add and Tensor as aten.add.Tensor."""
    return f"{name.replace('::', '.')}.{overload or 'default'}"


def _has_word(argument: Any) -> bool:
    return is_group(argument) or is_reduction(argument) or str(argument.type) == "Storage"


@never_compiled
def _classify(code: types.CodeType) -> int:
    return code_kind(code.co_filename) | (_RECOMPUTES if recomputes(code) else 0)


@never_compiled
def _opaque(name: str) -> Constant:
    return Constant("opaque", name)


@never_compiled
def _odd(tensor: torch.Tensor) -> tuple[tuple[Any, str], list[int]]:
    """What stands in the row of a tensor that is no plain view of a storage, and the storages it lies in."""
    return (shape_of(tensor), layout_name(tensor)), [storage._cdata for storage in storages_of(tensor)]


@never_compiled
def _structure(args: Any, kwargs: Any) -> Any:
    return pytree.tree_map(lambda item: item if item is PLACE else portable(item), (args, kwargs))


@bracketed
def _paused(core: Any) -> Iterator[None]:
    core.pause(1)
    try:
        yield
    finally:
        core.pause(-1)


class NativeClock(OpClock):
    """The clock in C++; the recorder in Python counts what it records in between."""

    def __init__(self, core: Any) -> None:
        self._core = core

    @property
    def ops(self) -> int:
        count: int = self._core.ops()
        return count

    def count(self) -> None:
        self._core.count(torch.is_grad_enabled())

    def first_op(self, number: int, with_gradients: bool) -> int | None:
        first: int | None = self._core.first_op(number, with_gradients)
        return first


class NativeNumbers(TensorNumbers):
    """The numbers that the recorder in C++ gives out."""

    def __init__(self, core: Any, recorder: NativeRecorder) -> None:
        self._core = core
        self._watched = recorder._watched
        super().__init__(recorder._written)
        self._tensors: list[Any] = []
        self._storages: list[Any] = []

    @property
    def tensors(self) -> list[Any]:
        self._core.tensors(self._tensors)
        return self._tensors

    @tensors.setter
    def tensors(self, rows: list[Any]) -> None: ...

    @property
    def storages(self) -> list[Any]:
        self._core.storages(self._storages)
        return self._storages

    @storages.setter
    def storages(self, rows: list[Any]) -> None: ...

    def clear(self) -> None:
        for container in (self._tensors, self._storages, self.resized_early, self._strangers):
            container.clear()

    def _define(self) -> None:
        number, base = self._core.number, torch.Tensor

        def register(tensor: Any, external: bool = False) -> Any:
            return number(tensor._cdata, external) if isinstance(tensor, base) else (tensor,)

        def number_of(tensor: Any) -> Any:
            return register(tensor, True)

        def results(out: Any) -> Any:
            if isinstance(out, base):
                return register(out)
            return [results(item) for item in out] if isinstance(out, (list, tuple)) else None

        self.find: Any = lambda key: None
        self.register, self.made_without_memory = register, register
        self.number_of, self.number_of_result, self.results = number_of, register, results

    def look(self, tensors: list[Any], how: str) -> bytes | None:
        """The numbers of tensors and their gradients, without a word of Python each: four integers, see `_looked_up`.

        `how` says what gets a number: "register" all, "seen" none that has no number yet, "in known memory" what lies
        in a storage that is known. So do gradients, except with "register". None if a gradient is not a plain tensor.
        """
        found: bytes | None = self._core.look([*map(_ADDRESS, tensors)], how)
        return found

    def known_number(self, tensor: Any) -> int | None:
        known = self._core.known(tensor._cdata)
        return None if known is None else known[0]

    def storage_number(self, tensor: Any) -> int | None:
        known = self._core.known(tensor._cdata)
        if known is not None:
            return int(known[1])
        entry = self._storage_entry(tensor.untyped_storage()) if tensor.layout is torch.strided else None
        return None if entry is None else entry[1]

    def live_storages(self) -> list[int] | None:
        numbers: list[int] = self._core.live()
        return numbers

    def leaves_with_new_gradients(self) -> list[Any]:
        leaves = []
        watched = [tensor for reference in list(self._watched.values()) if (tensor := reference()) is not None]
        watched = [each for each in watched if each.requires_grad and each.is_leaf and each.grad is not None]
        for tensor in [*self._core.leaves(), *watched]:
            strided = tensor.grad.layout is torch.strided
            entry = self._storage_entry(tensor.grad.untyped_storage()) if strided else None
            if entry is None or not entry[2]:
                leaves.append(tensor)
        return leaves

    def _storage_entry(self, storage: Any) -> Any:
        entry = self._core.memory(storage._cdata)
        return None if entry is None else (None, *entry)

    def forget(self, tensor: Any) -> None:
        self._core.forget(tensor._cdata)

    def _note_size(self, storage: Any) -> None:
        self._core.note_size(storage._cdata)

    def _log(self, event: Any) -> None:
        self._core.note(event)
