"""All patches that recordings make to torch and Python: made by the first that runs, undone by the last.

Patches are global but recordings belong to threads, and several may run at once or nest. So there is one patch of
each kind, and it asks which recordings the calling thread is part of. A thread started by a recorded one joins it.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd import profiler
from torch.compiler import is_compiling
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchatlas.capturing import pausing
from torchatlas.capturing.deep_graphs import DeepPasses
from torchatlas.native_modules import native_recorders
from torchatlas.torch_private import (
    CompilersGraph,
    HigherOrderOperator,
    compilations,
    compiled_inside,
    compilers_module_call,
    dispatch_mode_stack,
    engine_runs,
    functorch_depth,
    inductor_backend,
    inductor_graph,
    never_compiled,
    tensor_data,
)

Cell = list[Any]  # the running call of one thread in one recording, and the user's line if it is known beforehand

# A recorded op leaves a few objects the collector follows beside the program's own: with its first threshold raised
# by this factor the collector runs as often, counted in the program's ops, as under a mode that records nothing.
COLLECTOR_PACE = 10
_NO_FRAME = "<frozen importlib._bootstrap>"  # Python leaves such frames out when it looks for the line of a warning


class Watcher(Protocol):
    """A recording as the patches see it."""

    @property
    def touches_nodes(self) -> bool: ...  # True if Python asks for every op which node of autograd runs
    @property
    def hears_schedulers(self) -> bool: ...  # True if it wants to be told of steps of learning-rate schedulers
    @property
    def is_native(self) -> bool: ...  # True if the recorder in C++ records for it
    @property
    def outermost_only(self) -> bool: ...  # True if it does not want to be told of modules that modules call

    def module_called(self, inner: Any, cell: Cell, module: Any, args: Any, kwargs: Any) -> Any: ...
    def backward_called(self, inner: Any, cell: Cell, tensors: Any, args: Any, kwargs: Any) -> Any: ...
    def graph_called(self, inner: Any, cell: Cell, graph: Any, args: Any, kwargs: Any) -> Any: ...
    def function_operator_called(self, inner: Any, cell: Cell, operator: Any, args: Any, kwargs: Any) -> Any: ...
    def hooks_begin(self, cell: Cell) -> None: ...
    def may_have_recomputed(self) -> None: ...
    def step_begins(self, cell: Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]: ...
    def step_ends(self, cell: Cell, optimizer: Any) -> None: ...
    def scheduler_stepped(self, scheduler: Any) -> None: ...
    def data_set(self, tensor: Any) -> None: ...
    def before_resize(self, storage: Any) -> None: ...
    def after_resize(self, storage: Any) -> None: ...
    def join_thread(self, cell: Cell, thread: threading.Thread) -> tuple[Cell, Any]: ...


Watches = tuple[tuple[Watcher, Cell], ...]

_LOCK = threading.RLock()
_WATCHES: dict[int, Watches] = {}  # thread -> the recordings it is part of, outermost first
_INHERITED: weakref.WeakKeyDictionary[threading.Thread, Watches] = weakref.WeakKeyDictionary()
_UNDO: list[Callable[[], Any]] = []
_INSTALLED: set[Callable[[], None]] = set()  # of the patches that only some recordings need

if hasattr(os, "register_at_fork"):  # else another thread may hold it for ever, as the new process sees it
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def join(watch: Watcher, cell: Cell) -> None:
    """Let the calling thread be part of a recording. Called, as `leave` is, while signals wait: see interrupts.py."""
    with _LOCK:
        _install(watch)
        thread = threading.get_ident()
        _WATCHES[thread] = (*_WATCHES.get(thread, ()), (watch, cell))


def replace(watch: Watcher, successor: Watcher, cell: Cell) -> None:
    """End a recording that only the calling thread is part of, and let another one of its kind be where it was."""
    with _LOCK:
        thread = threading.get_ident()
        _WATCHES[thread] = tuple(
            [(successor, cell) if entry[0] is watch else entry for entry in _WATCHES.get(thread, ())]
        )


def leave(watch: Watcher) -> None:
    """End a recording in every thread that is part of it."""
    with _LOCK:
        for thread, watches in list(_WATCHES.items()):
            remaining = tuple(entry for entry in watches if entry[0] is not watch)
            if remaining:
                _WATCHES[thread] = remaining
            else:
                del _WATCHES[thread]
        if not _WATCHES:
            _take_away()


def _install(watch: Watcher) -> None:
    """Make the patches that all recordings need, and those that this one needs besides, unless they are made."""
    needs: list[Callable[[], None]] = [*_FOR_ALL]
    needs += [_watch_engine] * watch.touches_nodes + [_patch_schedulers] * watch.hears_schedulers
    needs += [_patch_profiler, _patch_function_operators, _watch_compilations] * watch.is_native
    was_empty = not _UNDO
    try:
        for patch in needs:
            if patch not in _INSTALLED:
                _INSTALLED.add(patch)
                patch()
    except BaseException:  # something that this torch does not have
        if was_empty:
            _take_away()
        raise


def _take_away() -> None:
    while _UNDO:
        _UNDO.pop()()
    _INSTALLED.clear()


def _here() -> Watches:
    return _WATCHES.get(threading.get_ident(), ())


def _replace(owner: Any, name: str, replacement: Any) -> None:
    """Replace an attribute. How to undo that is noted first: an interrupt may come in between."""
    inherited, original = name not in vars(owner), getattr(owner, name)

    def undo() -> None:
        if vars(owner).get(name) is not replacement:  # it was not done, or the program has put its own there meanwhile
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    _UNDO.append(undo)
    setattr(owner, name, replacement)


def _patch_module_call() -> None:
    """Replacing __call__ itself would make Python renew a slot in every subclass there is: 0.1 to 0.3 ms a time."""
    original: Any = nn.Module._call_impl
    find, thread = _WATCHES.get, threading.get_ident

    @compiled_inside
    def call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or isinstance(module, CompilersGraph):  # inlined, or made, by torch.compile
            return original(module, *args, **kwargs)
        watches = find(thread())
        if watches is None:
            return original(module, *args, **kwargs)
        inner = original
        for watch, cell in watches[:-1]:
            if cell[0] < 0 or not watch.outermost_only:
                inner = _within(watch.module_called, inner, cell)
        watch, cell = watches[-1]
        return watch.module_called(inner, cell, module, args, kwargs)

    _UNDO.append(lambda: compilers_module_call(original))
    compilers_module_call(call_impl)
    _replace(nn.Module, "_call_impl", call_impl)


def _within(called: Any, inner: Any, cell: Cell) -> Any:
    return compiled_inside(lambda first, *args, **kwargs: called(inner, cell, first, args, kwargs))


def _patch_backward() -> None:
    original = torch.autograd.backward

    @compiled_inside
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        inner: Any = original
        for watch, cell in _here():
            inner = _within(watch.backward_called, inner, cell)
        return inner(tensors, *args, **kwargs)

    _replace(torch.autograd, "backward", backward)


def _watch_engine() -> None:
    """Call DeepPasses before every run of autograd's engine in a recorded thread."""
    passes: dict[int, DeepPasses] = {}  # by thread

    def around(run: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(watch.touches_nodes for watch, _ in _here()) and functorch_depth() == 0:
            keeps_graph, creates_graph = (*args, None, None)[1:3]
            roots = [root for output in outputs if (root := _root(output)) is not None]
            here = passes.setdefault(threading.get_ident(), DeepPasses())
            here.begins(roots, bool(keeps_graph or creates_graph))
        return run(outputs, *args, **kwargs)

    watching = engine_runs(around)
    _UNDO.append(lambda: watching.__exit__(None, None, None))
    watching.__enter__()


def _root(output: Any) -> Any:
    """The node that a backward pass begins with."""
    return output.node if isinstance(output, torch.autograd.graph.GradientEdge) else output.grad_fn


def _patch_saved_tensors_hooks() -> None:
    """A checkpoint runs its function again within such hooks: when they end, that is over."""
    hooks = torch.autograd.graph.saved_tensors_hooks
    enter, original = hooks.__enter__, hooks.__exit__

    def enter_hooks(self: Any) -> Any:
        for watch, cell in _here():
            watch.hooks_begin(cell)
        return enter(self)

    def leave_hooks(self: Any, *error: object) -> None:
        original(self, *error)
        for watch, _ in _here():
            watch.may_have_recomputed()

    _replace(hooks, "__enter__", enter_hooks)
    _replace(hooks, "__exit__", leave_hooks)


def _patch_compiled_graphs() -> None:
    """Patch inductor, whose graphs hide what they run, and which may be loaded only while the recording runs."""
    compile_graph, patched = inductor_backend.__call__, False

    def patch() -> None:
        nonlocal patched
        kind = inductor_graph()
        if kind is None or patched:
            return
        original = kind.__call__

        def call(graph: Any, inputs: Any) -> Any:
            inner = original
            for watch, cell in _here():
                inner = _within(watch.graph_called, inner, cell)
            return inner(graph, inputs)

        patched = True
        _replace(kind, "__call__", call)

    def compile_and_patch(backend: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_graph(backend, *args, **kwargs)
        with _LOCK:
            if _UNDO:  # else the recording that was there when it began is over
                patch()
        return compiled

    _replace(inductor_backend, "__call__", compile_and_patch)
    patch()


def _patch_data() -> None:
    """`x.data = y` changes the storage of x without an op."""

    @never_compiled
    def set_data(tensor: Any, value: Any) -> None:
        tensor_data.__set__(tensor, value)
        for watches in list(_WATCHES.values()):
            for watch, _ in watches:
                watch.data_set(tensor)

    _replace(torch.Tensor, "data", property(tensor_data.__get__, set_data))


def _patch_storage() -> None:
    """`storage.resize_` gives memory back, or takes it, without an op: FSDP frees gathered parameters that way."""
    original = torch.UntypedStorage.resize_

    @never_compiled
    def resize(storage: Any, size: int) -> Any:
        watches = [watch for watches in list(_WATCHES.values()) for watch, _ in watches]
        for watch in watches:
            watch.before_resize(storage)
        result = original(storage, size)
        for watch in watches:
            watch.after_resize(storage)
        return result

    _replace(torch.UntypedStorage, "resize_", resize)


def _patch_threads() -> None:
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start_noted(thread: threading.Thread) -> None:
        if watches := _here():
            _INHERITED[thread] = watches
        try:
            start(thread)
        finally:
            _INHERITED.pop(thread, None)  # it may not have started

    def bootstrap_joined(thread: threading.Thread) -> None:
        forks = _joined(thread, _INHERITED.pop(thread, ()))  # all that may be kept for as long as the thread runs
        for fork in forks:
            fork.attach()
        try:
            bootstrap(thread)
        finally:
            for fork in reversed(forks):
                fork.detach()
            with _LOCK:
                _WATCHES.pop(threading.get_ident(), None)

    _replace(threading.Thread, "start", start_noted)
    _replace(threading.Thread, "_bootstrap_inner", bootstrap_joined)


def _pause_in_dtensor() -> None:
    _UNDO.append(pausing.stop_pausing_in_dtensor)
    pausing.pause_in_dtensor()


def _hook_optimizers() -> None:
    _UNDO.append(register_optimizer_step_pre_hook(_step_begins).remove)
    _UNDO.append(register_optimizer_step_post_hook(_step_ends).remove)


def _patch_schedulers() -> None:
    """Note the program's own steps of learning-rate schedulers, not those of constructors or inner schedulers."""

    def noted(original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scheduler, *args, **kwargs)
            if not is_compiling():
                for watch, _ in () if _in_scheduler() else _here():
                    watch.scheduler_stepped(scheduler)
            return result

        step.__code__ = _without_frame(step.__code__)
        return functools.update_wrapper(compiled_inside(step), original)

    kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type)]
    for kind in dict.fromkeys(kind for kind in kinds if issubclass(kind, lr_scheduler.LRScheduler)):
        if "step" in vars(kind):
            _replace(kind, "step", noted(vars(kind)["step"]))


@functools.cache  # one for all: the compiler keeps every code that it is told of
def _without_frame(code: types.CodeType) -> types.CodeType:
    return code.replace(co_filename=_NO_FRAME)


def _patch_profiler() -> None:
    """Let the native recorder step aside for torch's profiler: both listen to the allocator in the same place."""

    def before(original: Any) -> Any:
        def begin(*args: Any, **kwargs: Any) -> Any:
            for module in native_recorders:
                module.step_aside()
            return original(*args, **kwargs)

        return begin

    def after(original: Any) -> Any:
        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                for module in native_recorders:
                    module.step_back()

        return end

    for name in ("_prepare_profiler", "_enable_profiler"):
        _replace(profiler, name, before(getattr(profiler, name)))
    _replace(profiler, "_disable_profiler", after(getattr(profiler, "_disable_profiler")))  # noqa: B009


def _patch_function_operators() -> None:
    """Tell of operators that run functions: they do not pass the dispatcher in C++ as one call."""
    original: Any = HigherOrderOperator.__call__

    def call(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
        inner = original
        if not is_compiling() and not dispatch_mode_stack():
            for watch, cell in _here():
                inner = _within(watch.function_operator_called, inner, cell)
        return inner(operator, *args, **kwargs)

    _replace(HigherOrderOperator, "__call__", compiled_inside(call))


def _watch_compilations() -> None:
    """Pause the native recorder while torch.compile compiles: that is no part of the program. Torch tells modes so."""
    handler, (module,) = compilations(), native_recorders
    if handler is None:
        return

    def begins(args: Any) -> None:
        module.look_away(module.looking_away() + 1)

    def ends(args: Any) -> None:
        module.look_away(max(module.looking_away() - 1, 0))

    _UNDO.append(lambda: handler.remove_start_callback(begins))
    handler.register_start_callback(begins)
    _UNDO.append(lambda: handler.remove_end_callback(ends))
    handler.register_end_callback(ends)


def _in_scheduler() -> bool:
    """True if torch's own code for schedulers is on the stack."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != lr_scheduler.__file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _joined(thread: threading.Thread, watches: Watches) -> list[Any]:
    """Make the calling thread, a new one, part of the recordings. Returns their recorders for this thread."""
    entries, forks = [], []
    for watch, outer in watches:
        cell, fork = watch.join_thread(outer, thread)
        entries.append((watch, cell))
        if fork is not None:
            forks.append(fork)
    if entries:
        with _LOCK:
            _WATCHES[threading.get_ident()] = tuple(entries)
    return forks


def _pace_collector() -> None:
    first, *rest = gc.get_threshold()

    def undo() -> None:
        if gc.get_threshold() == (first * COLLECTOR_PACE, *rest):  # unless the program set its own meanwhile
            gc.set_threshold(first, *rest)

    _UNDO.append(undo)
    gc.set_threshold(first * COLLECTOR_PACE, *rest)


@never_compiled
def _step_begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
    watches = _here()
    for watch, cell in watches:
        args, kwargs = watch.step_begins(cell, optimizer, args, kwargs)
    return (args, kwargs) if watches else None


@never_compiled
def _step_ends(optimizer: Any, args: Any, kwargs: Any) -> None:
    for watch, cell in _here():
        watch.step_ends(cell, optimizer)


_FOR_ALL = (
    _patch_module_call,
    _patch_backward,
    _patch_compiled_graphs,
    _patch_saved_tensors_hooks,
    _patch_data,
    _patch_storage,
    _pause_in_dtensor,
    _patch_threads,
    _hook_optimizers,
    _pace_collector,
)
