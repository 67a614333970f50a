"""The recorder: a dispatch mode that hands every op to its recording function, and the rows these functions write.

row_schema.py describes the rows, record_op.py makes the functions, tensor_numbers.py numbers the tensors.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchatlas.capturing import pausing
from torchatlas.capturing.collectives import named_reduction, noted_group
from torchatlas.capturing.frames import GENERATED, code_kind, recomputing
from torchatlas.capturing.op_listening import OpClock, OpListener
from torchatlas.capturing.record_op import plan_for, recording_function
from torchatlas.capturing.row_schema import OMITTED, PLACE, OpRow, Plan
from torchatlas.capturing.table_rows import portable
from torchatlas.capturing.tensor_numbers import TensorNumbers
from torchatlas.graph.arguments import Constant
from torchatlas.torch_private import (
    FakeTensor,
    TorchDispatchMode,
    current_autograd_node,
    dispatch_mode_stack,
    never_compiled,
    next_sequence_nr,
    push_mode,
    pytree,
    remove_mode,
)

_NONE: dict[str, Any] = {}


_IDLE: list[Recorder] = []  # recorders whose recording was decoded: their operators are bound and warm
_MOST_IDLE = 4
_MOST_KEPT = 2048  # a recorder that has met more code objects or shapes is not used again: it keeps them all
_PLAN_LOCK = threading.Lock()
_ROW_LENGTH = len(OpRow._fields) + 4  # of an op: it takes a tensor or two


# Hash of the structure, times of ops as bytes, (ops before it, bytes) of what died, events, shapes of unusual tensors
Summary = tuple[int, bytes, tuple[tuple[int, int], ...], list[Any], list[Any]]
Around = Callable[[Plan, Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]  # wraps what records an operator


class Recorder:
    """One recording. `start` and `stop` put it on and off the dispatcher of this thread."""

    kind = "python"
    knows_views = False  # whether rows tell writes to views from others: WRITES_VIEW
    touches_nodes = True  # Python asks for every op which node of autograd runs: see deep_graphs.py
    taken_over: list[str] = []  # noqa: RUF012  # why another recorder took over in the middle

    def __init__(
        self,
        *,
        guard: Callable[[Any], None] | None = None,
        keep: Callable[[Any, list[Any]], None] | None = None,
        around: Around | None = None,
        listener: OpListener | None = None,
    ) -> None:
        self.rows: list[Any] = []  # see row_schema.py
        self.numbers = self._make_numbers()
        self.plans: list[Plan] = []
        self.end: int | None = None  # the length of `rows` when the recording stopped: what dies later is not in it
        self.current: list[Any] = [-1, None]  # the running module call; the user's line when it is known beforehand
        self.failure: tuple[str, int, str, int, types.CodeType | None, int] | None = None
        self._marks: list[Any] = []  # what the profiler has begun to mark: for an optimizer step, `current` before it
        self.handled: list[str] = []  # operators that raised
        self.metadata: dict[str, Any] = {}  # of the graph: which process this is, and the groups it is part of
        self.thread = ""
        self.began_ns = 0
        self.first_sequence_nr = 0
        self.codes: dict[int, int] = {}
        self._kept_codes: list[types.CodeType] = []
        self._guard, self._keep = guard, keep
        self._around = around  # wraps the recording function of every operator
        self._listener = listener
        self.clock = self._make_clock()  # runs only if there is a listener
        self._extend: Any = self.rows.extend
        self.environment = self._make_environment()
        self._mode = _Mode(self)
        self._parent: Recorder | None = None
        self._began_in: int | None = None  # the backward node that ran
        self._forked = False

    def _make_numbers(self) -> TensorNumbers:
        return TensorNumbers(self.rows)

    def _make_clock(self) -> OpClock:
        return OpClock()

    @classmethod
    def take(cls) -> Recorder:
        """A recorder that may have served before; `release` gives it back."""
        try:
            return _IDLE.pop()
        except IndexError:
            return cls()

    def release(self) -> None:
        """Forget the recording. Nothing may refer to its lists any more."""
        containers: tuple[Any, ...] = (self.rows, self.numbers, self.handled, self.metadata, self._marks)
        for container in containers:
            container.clear()
        self.current[:], self.end, self.failure = (-1, None), None, None
        # Not one that a thread may still be writing to, nor one whose tables have grown.
        watched = (self._guard, self._keep, self._around, self._listener)
        ours_alone = all(each is None for each in watched) and not self._forked and not self._mode.over
        if ours_alone and len(_IDLE) < _MOST_IDLE and max(len(self.codes), len(self.numbers.sizes)) <= _MOST_KEPT:
            _IDLE.append(self)

    def start(self) -> None:
        for mode in dispatch_mode_stack():
            if type(mode) is _Mode and mode.over:
                remove_mode(mode)
        self.thread, self._began_in = threading.current_thread().name, running_node()
        self.began_ns, self.first_sequence_nr = time.perf_counter_ns(), next_sequence_nr()
        push_mode(self._mode)

    def stop(self) -> None:
        stack, node = dispatch_mode_stack(), running_node()
        if self._mode not in stack or (node is not None and node != self._began_in):
            # It lies on the stack of another thread, or on the one that torch puts back at the end of a backward node.
            self._mode.silence()
            self._mode.over = True
        else:  # it may lie below modes that an exception kept from being ended
            remove_mode(self._mode)
        self.end = len(self.rows)

    def hand_over(self, successor: Recorder) -> bool:
        """End, and let another one begin in the same moment. False, and nothing has happened, if that cannot be."""
        return False

    def abandon(self) -> None:
        """In a process that was just forked: stop, and leave the rows as they are."""
        self.stop()

    def paused(self) -> AbstractContextManager[None]:
        """A context in which nothing that this thread runs is recorded."""
        return pausing.paused(self._mode)

    def unrecorded(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """What a function returns that runs here and is not recorded."""
        with self.paused():
            return function(argument)

    def above_lifted(self) -> AbstractContextManager[None]:
        """A context in which no mode is on the dispatcher above this recorder's: another may take its place."""
        return pausing.lifted_above(self._mode)

    def succeed(self, other: Recorder) -> None:
        """Called when it has begun in the place of another recorder."""

    def take_off(self) -> None:
        """After a backward pass: take off the mode of a recording that ended in it."""
        if self._mode.over and self._mode in dispatch_mode_stack():
            remove_mode(self._mode)

    @property
    def mode(self) -> TorchDispatchMode:
        return self._mode

    @property
    def length(self) -> int:
        """Roughly how many ops it has seen so far."""
        return len(self.rows) // _ROW_LENGTH

    def is_on(self) -> bool:
        """True if it records what this thread runs."""
        return self._mode in dispatch_mode_stack()

    def is_innermost(self) -> bool:
        """True if no recording that began later is on in this thread."""
        return self._mode not in dispatch_mode_stack()[:-1]

    def fork(self) -> Recorder:
        """A recorder for another thread that writes into this one's lists, with a running call of its own."""
        self._forked = True
        fork = Recorder.__new__(Recorder)
        vars(fork).update(vars(self))
        fork.current, fork._marks = [-1, None], []
        fork._parent = self
        fork.environment = fork._make_environment()
        fork._mode = _Mode(fork)
        return fork

    def in_python(self, reason: str) -> AbstractContextManager[None]:
        """A context in which the dispatch mode records; that of this recorder always does."""
        return contextlib.nullcontext()

    def hooks_begin(self) -> None:
        """The program is about to put hooks on saved tensors. In the dispatch mode they run after the op."""

    def attach(self) -> None:
        """Record what this thread runs: called in a new thread, with a fork."""
        push_mode(self._mode)

    def detach(self) -> None:
        remove_mode(self._mode)

    def silence(self) -> None:
        """Let a thread that outlives the recording go on unrecorded."""
        self._mode.silence()

    def own_error(self) -> BaseException | None:
        """What code of ours raised while it recorded, where that could not be raised: in C++ ops cannot be stopped."""
        return None

    def failure_of(self, error: BaseException) -> tuple[str, str, int, types.CodeType | None, int] | None:
        """The op that raised an exception, or its cause: name, message, module call, and the user's line."""
        chain: BaseException | None = error
        while chain is not None and self.failure is not None:
            name, raised, message, call, code, instruction = self.failure
            if id(chain) == raised:
                return name, message, call, code, instruction
            chain = chain.__cause__ or chain.__context__
        return None

    def plan(self, operator: Any) -> Callable[[Any, Any], Any]:
        """The recording function of an operator, bound to this recorder."""
        plan = plan_for(operator)
        if plan.bookkeeping:
            return _device_of if operator is torch.ops.prim.device.default else self._unrecorded(operator)
        run = recording_function(plan, self.add_plan(plan), self.environment)
        if self._listener is not None:
            run = self._listener.around(plan, run, self.clock)
        return run if self._around is None else self._around(plan, run)

    def add_plan(self, plan: Plan) -> int:
        """The number that rows of a plan begin with."""
        with _PLAN_LOCK:
            self.plans.append(plan)
            return len(self.plans) - 1

    def summary(self) -> Summary | None:
        """What a run has to know of a step of known structure; None if the rows have to be read: see step_rows.py."""
        return None

    def callers_of(self, number: int) -> list[str]:
        """The composite operators that OpRow.callers stands for, outermost first. A dispatch mode sees none."""
        raise NotImplementedError

    def note(self, event: Any) -> None:
        """Add an event of row_schema.py to the rows, here and now."""
        self.rows.append(event)

    def mark(self) -> int:
        """Remember this place among the rows; `positions` says later where it is."""
        return len(self.rows)

    def positions(self, marks: list[int]) -> list[int]:
        """The positions among `rows` of places that were marked."""
        return marks

    def _note_handled(self, name: str) -> None:
        self.handled.append(name)

    def before_resize(self, storage: Any) -> None:
        """A storage is about to be resized without an op: what is in it may be lost."""
        if self._guard is not None:
            self._guard(storage)
        self.numbers.before_resize(storage)

    def _unrecorded(self, operator: Any) -> Callable[[Any, Any], Any]:
        """Run an operator unrecorded. The profiler's marks tell when an optimizer step ends, also one that raised."""
        current, marks, call = self.current, self._marks, getattr(operator, "_op", operator)
        begins = operator._schema.name.startswith("profiler::_record_function_enter")
        ends = operator._schema.name.startswith("profiler::") and not begins

        def run(args: Any, kwargs: Any) -> Any:
            if begins:
                marks.append(tuple(current) if args[0].startswith("Optimizer.step#") else None)
            elif ends and marks and (before := marks.pop()) is not None:
                current[:] = before
            return call(*args, **kwargs)

        return run

    def _make_environment(self) -> dict[str, Any]:
        """The variables that the recording functions read, by name."""
        numbers, codes = self.numbers, self.codes

        def classify(code: types.CodeType) -> int:
            kind = codes[id(code)] = code_kind(code.co_filename)
            self._kept_codes.append(code)  # so that its id stays its own
            return kind

        def tensors_out(tree: Any, numbers_found: list[Any]) -> Any:
            def place(item: Any) -> Any:
                if isinstance(item, torch.Tensor):
                    numbers_found.append(numbers.number_of(item))
                    return PLACE
                return portable(item)  # not a branch of torch.cond itself: it may hold tensors

            return pytree.tree_map(place, tree)

        def failed(number: int, error: BaseException, call: int, code: types.CodeType | None, instruction: int) -> None:
            name = self.plans[number].name
            # Not the exception itself: it holds the frames, and they hold tensors.
            main = self._parent or self
            main.failure = (name, id(error), describe_error(error), call, code, instruction)
            self._note_handled(name)

        return {
            "OMITTED": OMITTED,
            "classify": classify,
            "current": self.current,
            "current_node": current_autograd_node,
            "extend": self._extend,
            "failed": failed,
            "forget": numbers.forget,
            "frame_at": sys._getframe,
            "grad_enabled": torch.is_grad_enabled,
            "group": functools.partial(noted_group, self.metadata),
            "guard": self._guard,
            "keep": self._keep,
            "kind_of_code": codes.get,
            "known": numbers.find,
            "made_without_memory": numbers.made_without_memory,
            "next_number": next_sequence_nr,
            "now": time.perf_counter_ns,
            "number_of": numbers.number_of,
            "number_of_result": numbers.number_of_result,
            "recomputing": recomputing,
            "reduction": named_reduction,
            "register": numbers.register,
            "reshaped": numbers.reshaped,
            "results": numbers.results,
            "storage": lambda item: Constant("opaque", f"{type(item).__module__}.{type(item).__qualname__}"),
            "tensors_out": tensors_out,
        }


class _Mode(TorchDispatchMode):
    """The dispatch mode. Its method is set per instance, so that the hot path is one closure."""

    supports_higher_order_operators = True
    records = True  # what tells it from the modes of others
    over = False  # whether its recording has ended and it is still on a stack

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        functions: dict[int, Callable[[Any, Any], Any]] = {}
        kept: list[Any] = []
        find, plan = functions.get, recorder.plan

        @never_compiled
        def dispatch(self: _Mode, operator: Any, types: Any, args: Any = (), kwargs: Any = _NONE) -> Any:
            if types and not all(map(_is_plain, types)):
                return NotImplemented  # a wrapper subclass: what runs inside it comes back here, op by op
            run = find(id(operator))
            if run is None:
                run = functions[id(operator)] = plan(operator)
                kept.append(operator)
            return run(args, kwargs)

        # torch insists on a bound method; bound by hand it costs nothing more than a class's own.
        self.__torch_dispatch__ = types.MethodType(dispatch, self)  # type: ignore[method-assign]

    def silence(self) -> None:
        """From now on only pass ops on, unrecorded."""

        @never_compiled
        def dispatch(self: _Mode, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return operator(*args, **(kwargs or {}))

        self.__torch_dispatch__ = types.MethodType(dispatch, self)  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around every op

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def running_node() -> int | None:
    """The number of the backward node that runs."""
    node = current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def _device_of(args: Any, kwargs: Any) -> Any:
    """prim.device. Fake tensors are asked for it more often than there are ops: answer without dispatching."""
    tensor = args[0]
    if isinstance(tensor, FakeTensor) and not tensor.fake_mode.in_kernel_invocation:
        return tensor.fake_device
    return torch.ops.prim.device.default(*args, **kwargs)


@functools.cache
def _is_plain(kind: type) -> bool:
    """True for classes of tensors without a __torch_dispatch__ of their own: ops on them are recorded as they are."""
    own = getattr(kind, "__torch_dispatch__", None)
    plain = own == torch.Tensor.__torch_dispatch__ or issubclass(kind, FakeTensor)
    if not plain:
        pausing.pause_in_dtensor()
    return plain


def let_go(error: BaseException) -> None:
    """Empty our frames in a traceback: they hold the arguments of an op that raised, and keep them alive."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        cause = chain.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        chain += (cause.__cause__, cause.__context__)
        trace = cause.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file == __file__ or file.startswith(GENERATED):
                with contextlib.suppress(RuntimeError):  # it still runs: a recording around this one
                    trace.tb_frame.clear()
            trace = trace.tb_next


def describe_error(error: BaseException) -> str:
    """The kind of an exception and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
