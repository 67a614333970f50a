"""The recorder: what a recording has seen so far, as one flat list.

Everything on the hot path is a closure over plain lists and dictionaries. No object that the garbage collector
follows is made per op where a number will do: each one brings the next full collection nearer, and a full
collection in a process that has imported torch costs more than a thousand recorded ops.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchatlas.capturing import pausing
from torchatlas.capturing.collectives import named_reduction, note_process, noted_group
from torchatlas.capturing.frames import code_kind, recomputing
from torchatlas.capturing.recording_functions import ENVIRONMENT, Plan, bind, plan_for
from torchatlas.capturing.tensors import layout_name, shape_of, storages_of
from torchatlas.graph.arguments import Constant
from torchatlas.torch_private import (
    FakeTensor,
    TorchDispatchMode,
    UninitializedTensor,
    current_autograd_node,
    dispatch_mode_stack,
    never_compiled,
    next_sequence_nr,
    push_mode,
    pytree,
    remove_mode,
)

# Rows of the flat lists Recorder.tensors and Recorder.storages.
TENSOR_ROW = 6  # number, storage number, shape, stride (or the name of another layout), offset, dtype
STORAGE_ROW = 4  # number, reference, bytes, device


class Placeholder:
    """Where a tensor stood in the arguments of an operator without a schema."""

    def __repr__(self) -> str:
        return "%"


PLACE = Placeholder()
OMITTED = Placeholder()  # a positional argument that was not passed
_NONE: dict[str, Any] = {}


_IDLE: list[Recorder] = []  # recorders whose recording was decoded: their operators are bound and warm
_MOST_IDLE = 4
_MOST_KEPT = 2048  # a recorder that has met more code objects or shapes is not used again: it keeps them all
_PLAN_LOCK = threading.Lock()


Around = Callable[[Plan, Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]  # wraps what records an operator


class Recorder:
    """One recording. `start` and `stop` put it on and off the dispatcher of this thread."""

    def __init__(
        self,
        *,
        guard: Callable[[Any], None] | None = None,
        keep: Callable[[Any, list[Any]], None] | None = None,
        around: Around | None = None,
    ) -> None:
        self.stream: list[Any] = []
        self.plans: list[Plan] = []
        self.tensors: list[Any] = []  # TENSOR_ROW entries per tensor
        self.storages: list[Any] = []  # STORAGE_ROW entries per storage
        self.end: int | None = None  # the length of the stream when the recording stopped: what dies later is not in it
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
        self._sizes: dict[Any, Any] = {}  # shapes and strides: one object for all that are equal
        self._known_storages: dict[int, tuple[weakref.ref[Any], int, bool]] = {}  # reference, number, from outside
        self._known: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # reference, number, storage number
        self._strangers: dict[int, tuple[weakref.ref[Any], int]] = {}  # resized storages: reference, bytes before
        self.resized_early: dict[int, tuple[int, int]] = {}  # id of that reference -> storage number, bytes before
        self._counters = [itertools.count(), itertools.count()]  # of tensors and storages
        self._guard, self._keep = guard, keep
        self._around = around  # wraps the recording function of every operator
        self._environment = self._make_environment()
        self._ordered_environment = [self._environment[name] for name in ENVIRONMENT]
        self._mode = _Mode(self)
        self._parent: Recorder | None = None
        self._began_in: int | None = None  # the backward node that ran
        self._forked = False

    @classmethod
    def take(cls) -> Recorder:
        """A recorder that may have served before; `release` gives it back."""
        try:
            return _IDLE.pop()
        except IndexError:
            return cls()

    def release(self) -> None:
        """Forget the recording. Nothing may refer to its lists any more."""
        containers: tuple[Any, ...] = (self.stream, self.tensors, self.storages, self.handled, self.metadata)
        containers += (self._strangers, self.resized_early)
        for container in (*containers, self._known, self._known_storages, self._marks):
            container.clear()
        self.current[:], self.end, self.failure = (-1, None), None, None
        self._counters[:] = itertools.count(), itertools.count()
        # Not one that a thread may still be writing to, nor one whose tables have grown.
        watched = self._guard is not None or self._keep is not None or self._around is not None
        ours_alone = not watched and not self._forked and not self._mode.over
        if ours_alone and len(_IDLE) < _MOST_IDLE and max(len(self.codes), len(self._sizes)) <= _MOST_KEPT:
            _IDLE.append(self)

    def start(self) -> None:
        for mode in dispatch_mode_stack():
            if type(mode) is _Mode and mode.over:
                remove_mode(mode)
        self.thread, self._began_in = threading.current_thread().name, _running_node()
        self.began_ns, self.first_sequence_nr = time.perf_counter_ns(), next_sequence_nr()
        push_mode(self._mode)

    def stop(self) -> None:
        stack, node = dispatch_mode_stack(), _running_node()
        if self._mode not in stack or (node is not None and node != self._began_in):
            # It lies on the stack of another thread, or on the one that torch puts back at the end of a backward node.
            self._mode.silence()
            self._mode.over = True
        else:  # it may lie below modes that nobody ended because of an exception
            remove_mode(self._mode)
        self.end = len(self.stream)

    def paused(self) -> AbstractContextManager[None]:
        """What this thread runs in here is not recorded."""
        return pausing.unwatched(self._mode)

    def take_off(self) -> None:
        """After a backward pass: take off the mode of a recording that ended in it."""
        if self._mode.over and self._mode in dispatch_mode_stack():
            remove_mode(self._mode)

    @property
    def environment(self) -> dict[str, Any]:
        """What the recording functions of plans.py read."""
        return self._environment

    @property
    def observers(self) -> tuple[Any, Any]:
        """Who is told before a write, and after an op."""
        return self._guard, self._keep

    @property
    def mode(self) -> TorchDispatchMode:
        return self._mode

    def number_of(self, tensor: Any) -> int:
        """The number of a tensor, registering it as one that existed before."""
        number: int = self._environment["number_of"](tensor)
        return number

    def number_of_result(self, tensor: Any) -> int:
        """The number of a tensor that was just made."""
        number: int = self._environment["number_of_result"](tensor)
        return number

    def known_number(self, tensor: Any) -> int | None:
        """The number of a tensor if it was seen."""
        entry = self._known.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def storage_number(self, tensor: Any) -> int | None:
        """The number of a tensor's storage if it was seen."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[2]
        entry = self._storage_entry(tensor) if tensor.layout is torch.strided else None
        return None if entry is None else entry[1]

    def made_here(self, storage: Any) -> bool:
        """Whether an op of this recording allocated a storage."""
        return self._knows(storage) and not self._known_storages[id(storage)][2]

    def _knows(self, storage: Any) -> bool:
        entry = self._known_storages.get(id(storage))
        return entry is not None and entry[0]() is storage

    def leaves_with_new_gradients(self) -> list[Any]:
        """Tensors whose gradient was not there when they were first seen."""
        found = []
        for reference, _, _ in list(self._known.values()):
            tensor = reference()
            if tensor is not None and tensor.requires_grad and tensor.is_leaf and tensor.grad is not None:
                entry = None if tensor.grad.layout is not torch.strided else self._storage_entry(tensor.grad)
                if entry is None or not entry[2]:
                    found.append(tensor)
        return found

    def _storage_entry(self, tensor: Any) -> tuple[weakref.ref[Any], int, bool] | None:
        storage = tensor.untyped_storage()
        entry = self._known_storages.get(id(storage))
        return entry if entry is not None and entry[0]() is storage else None

    def _shape_of(self, number: int) -> Any:
        at = number * TENSOR_ROW
        if self.tensors[at] != number:  # threads have changed the order
            at = self.tensors[0::TENSOR_ROW].index(number) * TENSOR_ROW
        return self.tensors[at + 2]

    def fork(self) -> Recorder:
        """A recorder for another thread that writes into this one's lists, with a running call of its own."""
        self._forked = True
        fork = Recorder.__new__(Recorder)
        vars(fork).update(vars(self))
        fork.current, fork._marks = [-1, None], []
        fork._parent = self
        fork._environment = fork._make_environment()
        fork._ordered_environment = [fork._environment[name] for name in ENVIRONMENT]
        fork._mode = _Mode(fork)
        return fork

    def silence(self) -> None:
        """Let a thread that outlives the recording go on unrecorded."""
        self._mode.silence()

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Record nothing of what runs in this thread meanwhile."""
        dispatch = self._mode.__torch_dispatch__
        self._mode.silence()
        try:
            yield
        finally:
            self._mode.__torch_dispatch__ = dispatch  # type: ignore[method-assign]

    def forget(self, tensor: Any) -> None:
        """Give a tensor a new number next time: its storage or shape changed behind the dispatcher's back."""
        self._environment["forget"](tensor)

    def plan(self, operator: Any) -> Callable[[Any, Any], Any]:
        """The recording function of an operator, bound to this recorder."""
        plan = plan_for(operator, guarded=self._guard is not None, kept=self._keep is not None)
        if plan.bookkeeping:
            return _device_of if operator is torch.ops.prim.device.default else self._unrecorded(operator)
        run = bind(plan, self.add_plan(plan), self._ordered_environment)
        return run if self._around is None else self._around(plan, run)

    def add_plan(self, plan: Plan) -> int:
        """The number that rows of a plan begin with."""
        with _PLAN_LOCK:
            self.plans.append(plan)
            return len(self.plans) - 1

    def before_resize(self, storage: Any) -> None:
        """A storage is about to be resized without an op: what is in it may be lost."""
        if self._guard is not None:
            self._guard(storage)
        noted = self._strangers.get(id(storage))
        if not self._knows(storage) and (noted is None or noted[0]() is not storage):
            self._strangers[id(storage)] = (weakref.ref(storage), storage.nbytes())

    def after_resize(self, storage: Any) -> None:
        if self._knows(storage):
            self._environment["resized_storage"](storage)
        else:
            self.stream.append(("resize early", self._strangers[id(storage)][0], storage.nbytes()))

    def meet_strangers(self) -> None:
        """Number the storages that were resized before any op took them: FSDP makes room for what it gathers."""
        for key, (reference, size) in self._strangers.items():
            storage, entry = reference(), self._known_storages.get(key)
            if storage is not None and entry is not None and entry[0]() is storage:
                self.resized_early[id(reference)] = entry[1], size

    def note_process(self) -> None:
        """Note which of how many processes this is; the program may join the others, or leave them, meanwhile."""
        note_process(self.metadata)

    def _unrecorded(self, operator: Any) -> Callable[[Any, Any], Any]:
        """What only runs. But every optimizer step is marked for the profiler, also the end of one that raised."""
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
        """The names that the code of plans.py reads."""
        stream, tensors, storages = self.stream, self.tensors, self.storages
        known, known_storages, codes = self._known, self._known_storages, self.codes
        find, find_storage, log = known.get, known_storages.get, stream.append  # a dead storage's reference logs itself
        describe, allocate = tensors.extend, storages.extend
        same = self._sizes.setdefault
        ref, base, counters = weakref.ref, torch.Tensor, self._counters

        def register(tensor: Any, external: bool = False) -> Any:
            # Numbers come from counters and rows carry them: another thread, or an op that the garbage collector sets
            # off in between, cannot disturb them.
            try:
                storage = tensor.untyped_storage()
                key = id(storage)  # torch keeps the Python object as long as the storage itself
                entry = find_storage(key)
                if entry is None or entry[0]() is not storage:
                    entry = known_storages[key] = (ref(storage, log), next(counters[1]), external)
                    plain = type(tensor) is base or not isinstance(tensor, FakeTensor)
                    device = tensor.device if plain else tensor.fake_device
                    allocate((entry[1], entry[0], storage.nbytes(), device))
                shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
                number = next(counters[0])
                describe((number, entry[1], same(shape, shape), same(stride, stride), offset, tensor.dtype))
            except (RuntimeError, NotImplementedError):
                entry = scattered(tensor, external)
                number = next(counters[0])
                describe((number, entry[1], shape_of(tensor), layout_name(tensor), 0, tensor.dtype))
            except AttributeError:
                if isinstance(tensor, base):
                    raise
                return (tensor,)  # Python numbers arrive in tensor places: add.Tensor(x, 2)
            known[id(tensor)] = (ref(tensor), number, entry[1])
            return number

        def scattered(tensor: Any, external: bool) -> Any:
            """The storage of a tensor that has not just one, or no strides: the one of its values, for all of them."""
            held = storages_of(tensor)
            if not held:  # the tensor object stands for its memory
                entry = (ref(tensor, log), next(counters[1]), external)
                allocate((entry[1], entry[0], -1, tensor.device))
                return entry
            values, seen = held[-1], [find_storage(id(part)) for part in held]
            new = {id(p): p for p, entry in zip(held, seen, strict=True) if entry is None or entry[0]() is not p}
            if id(values) in new:
                entry = known_storages[id(values)] = (ref(values, log), next(counters[1]), external)
                allocate((entry[1], entry[0], sum(part.nbytes() for part in new.values()), tensor.device))
            entry = known_storages[id(values)]
            for part in new.values():
                known_storages.setdefault(id(part), (ref(part), entry[1], external))
            return entry

        def made_without_memory(tensor: Any) -> Any:
            """Zeros that are only a promise: their storage tells a size, but there is nothing behind it."""
            storage = tensor.untyped_storage()
            entry = known_storages[id(storage)] = (ref(storage, log), next(counters[1]), False)
            allocate((entry[1], entry[0], 0, tensor.device))
            return register(tensor)

        def number_of(tensor: Any) -> Any:
            entry = find(id(tensor))
            return entry[1] if entry is not None and entry[0]() is tensor else register(tensor, True)

        def number_of_result(tensor: Any) -> Any:
            entry = find(id(tensor))
            return entry[1] if entry is not None and entry[0]() is tensor else register(tensor, False)

        def results(out: Any) -> Any:
            if isinstance(out, base):
                return number_of_result(out)
            return [results(item) for item in out] if isinstance(out, (list, tuple)) else None

        def forget(tensor: Any) -> None:
            known.pop(id(tensor), None)
            if isinstance(tensor, UninitializedTensor) or tensor.layout is not torch.strided:
                return
            resized_storage(tensor.untyped_storage())

        def resized_storage(storage: Any) -> None:
            entry, size = find_storage(id(storage)), storage.nbytes()
            if entry is not None and entry[0]() is storage:
                log(("resize", entry[1], size))

        def resized(target: Any) -> None:
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                entry = find(id(tensor))
                if entry is not None and self._shape_of(entry[1]) != tensor.shape:
                    forget(tensor)
                    log(("relaid", entry[1], register(tensor)))

        def classify(code: types.CodeType) -> int:
            kind = codes[id(code)] = code_kind(code.co_filename)
            self._kept_codes.append(code)  # so that its id stays its own
            return kind

        def tensors_out(tree: Any, found: list[Any]) -> Any:
            from torchatlas.capturing.portable import portable

            def place(item: Any) -> Any:
                if isinstance(item, base):
                    found.append(number_of(item))
                    return PLACE
                return portable(item)  # not a branch of torch.cond itself: it may hold tensors

            return pytree.tree_map(place, tree)

        def failed(number: int, error: BaseException, call: int, code: types.CodeType | None, instruction: int) -> None:
            name = self.plans[number].name
            # Not the exception itself: it holds the frames, and they hold tensors.
            main = self._parent or self
            main.failure = (name, id(error), describe_error(error), call, code, instruction)
            self.handled.append(name)

        return {
            "OMITTED": OMITTED,
            "classify": classify,
            "current": self.current,
            "current_node": current_autograd_node,
            "extend": stream.extend,
            "failed": failed,
            "forget": forget,
            "frame_at": sys._getframe,
            "grad_enabled": torch.is_grad_enabled,
            "group": functools.partial(noted_group, self.metadata),
            "guard": self._guard,
            "keep": self._keep,
            "kind_of_code": codes.get,
            "known": find,
            "made": register,
            "made_without_memory": made_without_memory,
            "next_number": next_sequence_nr,
            "now": time.perf_counter_ns,
            "number_of": number_of,
            "number_of_result": number_of_result,
            "recomputing": recomputing,
            "reduction": named_reduction,
            "register": register,
            "resized": resized,
            "resized_storage": resized_storage,
            "results": results,
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
        """From now on only pass on."""

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


def _running_node() -> int | None:
    """The number of the backward node that runs."""
    node = current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def _device_of(args: Any, kwargs: Any) -> Any:
    """What prim.device answers. Fake tensors are asked more often than there are ops: the short way to the answer."""
    tensor = args[0]
    if isinstance(tensor, FakeTensor) and not tensor.fake_mode.in_kernel_invocation:
        return tensor.fake_device
    return torch.ops.prim.device.default(*args, **kwargs)


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether ops on this kind of tensor run as they are, without a __torch_dispatch__ of its own in between."""
    own = getattr(kind, "__torch_dispatch__", None)
    plain = own == torch.Tensor.__torch_dispatch__ or issubclass(kind, FakeTensor)
    if not plain:
        pausing.hide()
    return plain


def let_go(error: BaseException) -> None:
    """Empty our frames in a traceback: they hold the arguments of an op that raised, which without us nobody would."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        found = chain.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        chain += (found.__cause__, found.__context__)
        trace = found.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file == __file__ or file.startswith("<plan of"):
                with contextlib.suppress(RuntimeError):  # it still runs: a recording around this one
                    trace.tb_frame.clear()
            trace = trace.tb_next


def describe_error(error: BaseException) -> str:
    """The kind of an exception and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
