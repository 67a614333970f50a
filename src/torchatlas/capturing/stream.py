"""The recorder: what a recording has seen so far, as one flat list.

Everything on the hot path is a closure over plain lists and dictionaries. No object that the garbage collector
follows is made per op where a number will do: each one brings the next full collection nearer, and a full
collection in a process that has imported torch costs more than a thousand recorded ops.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchatlas.capturing.plans import ENVIRONMENT, Plan, bind, plan_for
from torchatlas.torch_private import (
    FakeTensor,
    TorchDispatchMode,
    UninitializedTensor,
    current_autograd_node,
    next_sequence_nr,
    no_dispatch_modes,
    pytree,
)

# Rows of the flat lists Recorder.tensors and Recorder.storages.
TENSOR_ROW = 6  # number, storage number, shape, stride, offset, dtype
STORAGE_ROW = 4  # number, reference, bytes, device

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_SKIPPED = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
_CHECKPOINT = os.path.join(_SKIPPED[0], "utils", "checkpoint.py")
_DEMO = os.path.join(_SKIPPED[1], "demo.py")  # a user's program, though it comes with us
_USER, _SKIP = 0, 1


class Placeholder:
    """Where a tensor stood in the arguments of an operator without a schema."""

    def __repr__(self) -> str:
        return "%"


PLACE = Placeholder()
OMITTED = Placeholder()  # a positional argument that was not passed
_NONE: dict[str, Any] = {}


_IDLE: list[Recorder] = []  # recorders whose recording was decoded: their operators are bound and warm
_MOST_IDLE = 4
_PLAN_LOCK = threading.Lock()


class Recorder:
    """One recording. `start` and `stop` put it on and off the dispatcher of this thread."""

    def __init__(
        self, *, guard: Callable[[Any], None] | None = None, keep: Callable[[Any, list[Any]], None] | None = None
    ) -> None:
        self.stream: list[Any] = []
        self.plans: list[Plan] = []
        self.tensors: list[Any] = []  # TENSOR_ROW entries per tensor
        self.storages: list[Any] = []  # STORAGE_ROW entries per storage
        self.end: int | None = None  # the length of the stream when the recording stopped: what dies later is not in it
        self.current: list[Any] = [-1, None]  # the running module call; the user's line when it is known beforehand
        self.failure: tuple[str, int, str, int, types.CodeType | None, int] | None = None
        self.on_failure: Callable[[list[Any]], None] | None = None
        self.handled: list[str] = []  # operators that raised
        self.thread = ""
        self.began_ns = 0
        self.first_sequence_nr = 0
        self.codes: dict[int, int] = {}
        self._kept_codes: list[types.CodeType] = []
        self._known_storages: dict[int, tuple[weakref.ref[Any], int, bool]] = {}  # reference, number, from outside
        self._known: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # reference, number, storage number
        self._counters = [itertools.count(), itertools.count()]  # of tensors and storages
        self._guard, self._keep = guard, keep
        self._environment = self._make_environment()
        self._ordered_environment = [self._environment[name] for name in ENVIRONMENT]
        self._mode = _Mode(self)
        self._parent: Recorder | None = None

    @classmethod
    def take(cls) -> Recorder:
        """A recorder that may have served before; `release` gives it back."""
        try:
            return _IDLE.pop()
        except IndexError:
            return cls()

    def release(self) -> None:
        """Forget the recording. Nothing may refer to its lists any more."""
        containers: tuple[Any, ...] = (self.stream, self.tensors, self.storages, self.handled)
        for container in (*containers, self._known, self._known_storages):
            container.clear()
        self.current[:], self.end, self.failure, self.on_failure = (-1, None), None, None, None
        self._counters[:] = itertools.count(), itertools.count()
        if self._guard is None and self._keep is None and len(_IDLE) < _MOST_IDLE:
            _IDLE.append(self)

    def start(self) -> None:
        self.thread = threading.current_thread().name
        self.began_ns, self.first_sequence_nr = time.perf_counter_ns(), next_sequence_nr()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.end = len(self.stream)

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
        if tensor.layout is not torch.strided:
            known = self._known.get(id(tensor))
            return known[2] if known is not None and known[0]() is tensor else None
        entry = self._storage_entry(tensor)
        return None if entry is None else entry[1]

    def made_here(self, tensor: Any) -> bool:
        """Whether an op of this recording allocated a tensor's memory."""
        entry = self._storage_entry(tensor)
        return entry is not None and not entry[2]

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
        fork = Recorder.__new__(Recorder)
        vars(fork).update(vars(self))
        fork.current = [-1, None]
        fork._parent = self
        fork._environment = fork._make_environment()
        fork._ordered_environment = [fork._environment[name] for name in ENVIRONMENT]
        fork._mode = _Mode(fork)
        return fork

    def silence(self) -> None:
        """Let a thread that outlives the recording go on unrecorded."""
        self._mode.silence()

    def forget(self, tensor: Any) -> None:
        """Give a tensor a new number next time: its storage or shape changed behind the dispatcher's back."""
        self._environment["forget"](tensor)

    def plan(self, operator: Any) -> Callable[[Any, Any], Any]:
        """The recording function of an operator, bound to this recorder."""
        plan = plan_for(operator, guarded=self._guard is not None, kept=self._keep is not None)
        if plan.bookkeeping:
            return lambda args, kwargs: operator(*args, **kwargs)
        with _PLAN_LOCK:
            self.plans.append(plan)
            number = len(self.plans) - 1
        return bind(plan, number, self._ordered_environment)

    def _make_environment(self) -> dict[str, Any]:
        """The names that the code of plans.py reads."""
        stream, tensors, storages = self.stream, self.tensors, self.storages
        known, known_storages, codes = self._known, self._known_storages, self.codes
        find, find_storage, log = known.get, known_storages.get, stream.append  # a dead storage's reference logs itself
        describe, allocate = tensors.extend, storages.extend
        same = {}.setdefault  # type: ignore[var-annotated]  # one object per distinct shape and stride
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
                    allocate((entry[1], entry[0], storage.nbytes(), tensor.device))
                shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
                number = next(counters[0])
                describe((number, entry[1], same(shape, shape), same(stride, stride), offset, tensor.dtype))
            except (RuntimeError, NotImplementedError):
                # Sparse and other tensors without one storage: the tensor object stands for its memory.
                entry = (ref(tensor, log), next(counters[1]), external)
                allocate((entry[1], entry[0], _sparse_bytes(tensor), tensor.device))
                number = next(counters[0])
                describe((number, entry[1], _shape(tensor), None, 0, tensor.dtype))
            except AttributeError:
                if isinstance(tensor, base):
                    raise
                return (tensor,)  # Python numbers arrive in tensor places: add.Tensor(x, 2)
            known[id(tensor)] = (ref(tensor), number, entry[1])
            return number

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
            if isinstance(tensor, UninitializedTensor):
                return
            storage: Any = tensor.untyped_storage()
            entry = find_storage(id(storage))
            size = storage.nbytes()
            if entry is not None and entry[0]() is storage:
                log(("resize", entry[1], size))

        def resized(target: Any) -> None:
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                entry = find(id(tensor))
                if entry is not None and self._shape_of(entry[1]) != tensor.shape:
                    forget(tensor)

        def classify(code: types.CodeType) -> int:
            kind = codes[id(code)] = _code_kind(code.co_filename)
            self._kept_codes.append(code)  # so that its id stays its own
            return kind

        def tensors_out(tree: Any, found: list[Any]) -> Any:
            def place(item: Any) -> Any:
                if isinstance(item, base):
                    found.append(number_of(item))
                    return PLACE
                return item

            return pytree.tree_map(place, tree)

        def failed(number: int, error: BaseException, call: int, code: types.CodeType | None, instruction: int) -> None:
            name = self.plans[number].name
            # Not the exception itself: it holds the frames, and they hold tensors.
            main = self._parent or self
            main.failure = (name, id(error), describe_error(error), call, code, instruction)
            self.handled.append(name)
            if self.on_failure is not None:
                self.on_failure(self.current)

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
            "guard": self._guard,
            "keep": self._keep,
            "kind_of_code": codes.get,
            "known": find,
            "made": register,
            "next_number": next_sequence_nr,
            "now": time.perf_counter_ns,
            "number_of": number_of,
            "number_of_result": number_of_result,
            "recomputing": recomputing,
            "register": register,
            "resized": resized,
            "results": results,
            "tensors_out": tensors_out,
        }


class _Mode(TorchDispatchMode):
    """The dispatch mode. Its method is set per instance, so that the hot path is one closure."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        functions: dict[int, Callable[[Any, Any], Any]] = {}
        kept: list[Any] = []
        find, plan = functions.get, recorder.plan

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

        def dispatch(self: _Mode, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return operator(*args, **(kwargs or {}))

        self.__torch_dispatch__ = types.MethodType(dispatch, self)  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around every op

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether ops on this kind of tensor run as they are, without a __torch_dispatch__ of its own in between."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own == torch.Tensor.__torch_dispatch__ or issubclass(kind, FakeTensor)


def _code_kind(file: str) -> int:
    if file == _DEMO:
        return _USER
    if file.startswith(_SKIPPED) or file.startswith(("<frozen", "<eval_with_key", "<plan of")):
        return _SKIP
    if file.startswith(_LIBRARY) and "-packages" + os.sep not in file:
        return _SKIP
    return _USER


def user_line(frame: types.FrameType | None) -> tuple[types.CodeType, int] | None:
    """The nearest line of the user's, as a code object and an instruction."""
    while frame is not None:
        if _code_kind(frame.f_code.co_filename) == _USER:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def recomputing() -> bool:
    """Whether activation checkpointing is running its function again, on this stack."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _CHECKPOINT and code.co_name in ("backward", "unpack_hook", "recompute_fn"):
            return True
        frame = frame.f_back
    return False


def describe_error(error: BaseException) -> str:
    """The kind of an exception and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _shape(tensor: Any) -> Any:
    """The shape; a parameter that a lazy module has yet to make has none."""
    return torch.Size() if isinstance(tensor, UninitializedTensor) else tensor.shape


def _sparse_bytes(tensor: Any) -> int:
    """Bytes of a tensor that has no single storage; -1 when it does not tell."""
    parts = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    }.get(tensor.layout)
    if parts is None:
        return -1
    with no_dispatch_modes():  # asking must not look like an op of the program
        return sum(getattr(tensor, part)().untyped_storage().nbytes() for part in parts)
