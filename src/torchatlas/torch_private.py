"""Every private torch symbol the package uses, and all that differs between versions of torch, in one place.

torch may change these in any release; when one goes, this file is what to mend. canaries/ holds a canary for each
symbol, docs/versions.md what was tested and what a version cannot do.
"""

import importlib as _importlib
import os as _os
import re as _re
import sys as _sys
import warnings as _warnings
from collections.abc import Callable as _Callable
from collections.abc import Iterator as _Iterator
from types import CodeType as _CodeType
from types import FrameType as _FrameType
from typing import Any
from typing import TypeVar as _TypeVar

import torch

from torchatlas.errors import UntestedVersionWarning as _UntestedVersionWarning

TESTED = ((2, 10), (2, 15))  # the first and the last version of torch that the tests have run on
SINCE = {  # what older versions cannot do: rows of docs/versions.md, where each is explained
    "aten._foreach_mm": (2, 13),
    "aten.linalg__powsum": (2, 11),
    "dtensor-first-step": (2, 11),
    "fake-collectives": (2, 11),
    "pipeline-integers": (2, 13),
    "trace-caught-errors": (2, 14),
    "trace-forward-mode": (2, 13),
}


def version_can(row: str) -> bool:
    """True if this version of torch can do what a row of docs/versions.md names."""
    return _version() >= SINCE[row]


def _version() -> tuple[int, ...]:
    return tuple(map(int, _re.findall(r"\d+", torch.__version__)[:2]))


def _warn_if_untested() -> None:
    """Say so at the line of the user's that led here: this file is imported when torchatlas first needs torch."""
    if TESTED[0] <= _version() <= TESTED[1]:
        return
    first, last = (f"{major}.{minor}" for major, minor in TESTED)
    ours = _os.path.dirname(__file__) + _os.sep, _importlib.__file__, "<frozen importlib"
    frame, level = _sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        level += not frame.f_code.co_filename.startswith("<")  # those are not counted
        frame = frame.f_back
    text = f"torchatlas was tested with torch {first} to {last}, not with {torch.__version__}."
    _warnings.warn(f"{text} `torchatlas selftest` says what works.", _UntestedVersionWarning, stacklevel=level)


_warn_if_untested()  # before the imports below: on such a version they may fail

import torch.utils._python_dispatch as _modes
import torch.utils._pytree as pytree
from torch._C import _current_autograd_node as current_autograd_node
from torch._C import _current_graph_task_id as engine_run_id
from torch._C import _is_multithreading_enabled as engine_has_threads
from torch._C import _will_engine_execute_node as will_be_executed
from torch._C._autograd import _get_sequence_nr as next_sequence_nr
from torch._C._autograd import _saved_tensors_hooks_disable, _saved_tensors_hooks_enable
from torch._C._autograd import _saved_tensors_hooks_get_disabled_error_message as saved_tensor_hooks_forbidden
from torch._C._autograd import _top_saved_tensors_default_hooks as top_saved_tensor_hooks
from torch._C._autograd import _unsafe_set_version_counter as set_version_counters
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._C._dynamo.eval_frame import set_code_exec_strategy as _set_strategy
from torch._C._functorch import get_dynamic_layer_stack_depth as functorch_depth
from torch._C._functorch import get_unwrapped as _get_unwrapped
from torch._C._functorch import is_functorch_wrapped_tensor as _is_wrapped
from torch._C._functorch import is_legacy_batchedtensor as is_batched
from torch._C._functorch import peek_interpreter_stack as _innermost_transform
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as no_transforms
from torch._ops import HigherOrderOperator, OpOverload, _len_torch_dispatch_stack_pre_dispatch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule as CompilersGraph
from torch.overrides import _get_current_function_mode_stack as function_mode_stack
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapper

from torchatlas.interrupts import RepeatedBracket as _RepeatedBracket
from torchatlas.interrupts import bracketed as _bracketed
from torchatlas.native_modules import native_recorders as _native_recorders

__all__ = [
    "COMPILED_NAME",
    "SINCE",
    "TESTED",
    "CompilersGraph",
    "FakeCopyMode",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionNode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "UninitializedTensor",
    "applying_frames",
    "aside",
    "compilations",
    "compiled_inside",
    "compilers_module_call",
    "current_autograd_node",
    "dispatch_mode_stack",
    "engine_has_threads",
    "engine_run_id",
    "engine_runs",
    "export_guards",
    "fake_number",
    "fake_tensors_run",
    "function_mode_stack",
    "functorch_depth",
    "hang_hooks",
    "in_transform",
    "inductor_backend",
    "inductor_graph",
    "is_batched",
    "is_wrapper",
    "make_grads",
    "never_compiled",
    "next_sequence_nr",
    "no_dispatch_modes",
    "no_transforms",
    "pop_function_mode",
    "pop_mode",
    "process_group_named",
    "process_groups",
    "push_function_mode",
    "push_mode",
    "push_mode_below",
    "pytree",
    "registration_hooks",
    "remove_mode",
    "restore_saved_tensor_hooks",
    "run_engine",
    "saved_tensor_hooks_forbidden",
    "saved_tensors_hooked",
    "set_version_counters",
    "sharding_propagator",
    "tensor_data",
    "top_saved_tensor_hooks",
    "undo_functorch",
    "unobserved",
    "unpack_saved",
    "unwrapped",
    "version_can",
    "will_be_executed",
]

COMPILED_NAME = "__compiled_fn_"  # how the names of compiled graphs begin, in the code that torch.compile puts in place
FunctionNode: Any = torch._C._FunctionBase  # of the nodes of custom Functions
inductor_backend: Any = torch._TorchCompileInductorWrapper  # what torch.compile(backend="inductor") calls to compile
make_grads: Any = (
    torch.autograd._make_grads
)  # the gradients that backward begins with: given ones, or a one for a scalar
# As entering a mode does, except that torch also keeps three flags for all threads together then (whether a mode is on,
# and of which kind), and every mode that ends puts back what was there when it began: threads that overlap leave them
# wrong, and torch.compile may read them.
pop_mode = _modes._pop_mode
push_mode = _modes._push_mode
run_engine: Any = torch.autograd.Variable._execution_engine.run_backward
tensor_data: Any = torch._C.TensorBase.data  # the descriptor behind Tensor.data
UninitializedTensor: Any = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]  # of lazy modules


def dispatch_mode_stack() -> list[TorchDispatchMode]:
    """The dispatch modes of this thread, innermost last."""
    return list(_get_current_dispatch_mode_stack())


def fake_number(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake twin of a tensor of one element that still has its number, as torch gives those made in the mode."""
    with no_dispatch_modes():
        own = tensor.detach().clone()  # an addition in place is made to the number as well
    return mode.fake_tensor_converter.from_real_tensor(mode, own, make_constant=True)


def fake_tensors_run() -> bool:
    """Whether a FakeTensorMode is on: what runs only pretends to."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def remove_mode(mode: TorchDispatchMode) -> None:
    """Take a dispatch mode off the stack of this thread, wherever in it it lies."""
    above = []
    while (top := _modes._pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        push_mode(other)


def push_mode_below(mode: TorchDispatchMode) -> None:
    """Put a dispatch mode below all that are on in this thread: as if it had begun before them."""
    above = [_modes._pop_mode() for _ in dispatch_mode_stack()]
    for one in (mode, *reversed(above)):
        push_mode(one)


def sharding_propagator() -> Any:
    """The class that works out what ops on DTensors return; None while DTensor is not loaded."""
    return getattr(_sys.modules.get("torch.distributed.tensor._sharding_prop"), "ShardingPropagator", None)


def process_group_named(name: str) -> Any:
    """The process group behind the name that functional collectives are given. RuntimeError or ValueError if none."""
    return torch.distributed.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]


def process_groups() -> list[Any]:
    """The process groups of this process; torch.distributed is initialized."""
    return list(torch.distributed.distributed_c10d._world.pg_map)


def registration_hooks() -> list[dict[int, Any]]:
    """The hooks, of all modules, that are told of new buffers, parameters and submodules."""
    module: Any = torch.nn.modules.module
    kinds = ("buffer", "parameter", "module")
    return [getattr(module, f"_global_{kind}_registration_hooks") for kind in kinds]


def restore_saved_tensor_hooks(message: str | None) -> None:
    """Allow or forbid them in this thread, as `saved_tensor_hooks_forbidden` told: a transform may have left it so."""
    if message is None:
        _saved_tensors_hooks_enable()
    else:
        _saved_tensors_hooks_disable(message)


def export_guards(program: Any) -> list[str]:
    """What torch.export assumed of the sizes of inputs, as Python expressions over L, the arguments by name."""
    return list(program._guards_code)


_Function = _TypeVar("_Function", bound=_Callable[..., Any])


def never_compiled(function: _Function) -> _Function:
    """Have torch.compile run a function, and all that it calls, as it is. Costs nothing while nothing is compiled."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # for a function it is about to inline
    _mark(function.__code__, _FrameAction.SKIP)
    return function


def compiled_inside(function: _Function) -> _Function:
    """Have torch.compile run a function as it is, and compile only what it calls."""
    _mark(function.__code__, _FrameAction.DEFAULT)
    return function


_MARKED: dict[int, _CodeType] = {}  # by id, kept so that it stays their own: of closures that are made anew every time


def _mark(code: _CodeType, inside: Any) -> None:
    if id(code) not in _MARKED:
        _set_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, inside))
        _MARKED[id(code)] = code


def compilers_module_call(function: Any) -> None:
    """Tell torch.compile, if it is loaded, which `nn.Module._call_impl` is torch's own and needs no compiling."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        if (module := _sys.modules.get(name)) is not None:
            module.unpatched_nn_module_call_impl = function  # type: ignore[attr-defined]


def compilations() -> Any:
    """Where torch.compile takes functions to call when it begins and ends to compile; None while it is not loaded."""
    return getattr(_sys.modules.get("torch._dynamo.callback"), "callback_handler", None)


def inductor_graph() -> Any:
    """The class of the graphs that inductor compiled; None while it is not loaded."""
    return getattr(_sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)


def hang_hooks(nodes: list[Any], hooks: dict[int, Any], input_nr: int = 0) -> None:
    """Hang hooks on one input of nodes of autograd: one dictionary for all of them, which can be emptied at once.

    It stays on the nodes, so it is for nodes that die soon.
    """
    with unobserved(), torch.enable_grad():  # a node takes over a tensor's hooks, for the input that the tensor is of
        tensor: Any = torch.empty(input_nr + 1, requires_grad=True).unbind()[input_nr]
    tensor._backward_hooks = hooks
    for node in nodes:
        node._register_hook_dict(tensor)


@_bracketed
def engine_runs(around: _Callable[..., Any]) -> _Iterator[None]:
    """Have `around(run, outputs, args, kwargs)` called in the place of every run of the autograd engine."""
    autograd: Any = torch.autograd
    run, active = autograd._engine_run_backward, True

    def runs(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        return around(run, outputs, args, kwargs) if active else run(outputs, *args, **kwargs)

    autograd._engine_run_backward = runs
    try:
        yield
    finally:
        active = False  # somebody who came later may still be there, and put `runs` back
        if autograd._engine_run_backward is runs:
            autograd._engine_run_backward = run


def unpack_saved(handle: Any, node: Any, slot: str) -> torch.Tensor | None:
    """What a node saved in a slot: `result`, or `tensors[1]`. RuntimeError if it was freed or changed meanwhile.

    Before 2.11 a handle cannot be unpacked by itself, but the node unpacks all of the slot.
    """
    if hasattr(handle, "unpack"):
        found: torch.Tensor | None = handle.unpack()
        return found
    name, _, index = slot.partition("[")
    if index and any(each is not None and each.unpack_hook is not None for each in getattr(node, f"_raw_saved_{name}")):
        return None  # it would run the program's hooks
    held = getattr(node, "saved_tensors" if name == "tensors" else f"_saved_{name}")
    return held[int(index[:-1])] if index else held  # type: ignore[no-any-return]


def applying_frames(frame: _FrameType | None) -> _Iterator[_FrameType | None]:
    """The frames that applied the autograd Functions in whose forward a frame runs, the innermost first.

    Up to 2.13 `Function.apply` is written in Python, and its frame tells. Since 2.14 it is not: a `forward` is taken
    for applied unless that of a subclass calls it.
    """
    while frame is not None:
        if _APPLY is not None:
            if frame.f_code is _APPLY:
                yield frame.f_back
        elif (applied := _function_of(frame.f_code)) is not None:
            caller = frame.f_back
            by = None if caller is None or caller.f_code is frame.f_code else _function_of(caller.f_code)
            if by is None or not issubclass(by, applied):
                yield caller
        frame = frame.f_back


_APPLY: _CodeType | None = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)
_FORWARDS: dict[int, tuple[_CodeType, type | None]] = {}  # by the id of code, kept so that the id stays its own
_MOST_FORWARDS = 10_000


def _function_of(code: _CodeType) -> type | None:
    """The autograd Function whose forward has this code."""
    known = _FORWARDS.get(id(code))
    if known is None:
        if len(_FORWARDS) > _MOST_FORWARDS:
            _FORWARDS.clear()
        kinds: list[type] = [torch.autograd.Function]
        for kind in kinds:
            kinds += kind.__subclasses__()
        own = (kind for kind in kinds if getattr(getattr(kind, "forward", None), "__code__", None) is code)
        known = _FORWARDS[id(code)] = code, next(own, None)
    return known[1]


def undo_functorch(depth: int) -> None:
    """Leave the transforms of torch.func that are on beyond a depth, as an exception in them would.

    torch's own function for it leaves each of them twice before 2.11, and fails.
    """
    functorch: Any = torch._C._functorch
    leave = {
        functorch.TransformType.Vmap: functorch._vmap_decrement_nesting,
        functorch.TransformType.Grad: functorch._grad_decrement_nesting,
        functorch.TransformType.Jvp: functorch._jvp_decrement_nesting,
        functorch.TransformType.Functionalize: functorch._func_decrement_nesting,
    }
    while functorch_depth() > depth:
        leave[_innermost_transform().key()]()


def saved_tensors_hooked() -> bool:
    """True while what ops save for backward goes through hooks of the program's."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def in_transform() -> bool:
    """True inside of a transform of torch.func, or of the older vmap that torch.autograd uses."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return bool(level or functorch_depth())


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside of a tensor of a transform; of a batch, all examples."""
    while _is_wrapped(tensor):
        tensor = _get_unwrapped(tensor)
    return tensor


class no_dispatch_modes(_RepeatedBracket[None]):
    """Hides ops from the dispatch modes of the program, and from recorders in C++.

    torch's own way to say so takes ten times as long, and is needed only for modes that work before autograd.
    """

    _by_torch: Any = None
    _modes: list[Any] = []  # noqa: RUF012  # never changed, only replaced
    _away: int | None = None

    def _begin(self) -> None:
        if _native_recorders:
            self._away = _native_recorders[0].looking_away()
            _native_recorders[0].look_away(self._away + 1)
        if _len_torch_dispatch_stack_pre_dispatch():
            self._by_torch = _disable_current_modes()
            self._by_torch.__enter__()
        elif count := torch._C._len_torch_dispatch_stack():
            self._modes = dispatch_mode_stack()
            for _ in range(count):
                pop_mode()

    def _end(self, *raised: Any) -> None:
        if self._modes:
            for mode in self._modes[torch._C._len_torch_dispatch_stack() :]:
                push_mode(mode)
        if self._by_torch is not None:
            self._by_torch.__exit__(*raised)
            self._by_torch = None
        if self._away is not None:
            _native_recorders[0].look_away(self._away)
            self._away = None


class unobserved(no_dispatch_modes):
    """Runs ops that no mode of the program sees, and that make no graph."""

    _guard: Any = None

    def _begin(self) -> None:
        super()._begin()
        self._grad = torch.is_grad_enabled()
        self._guard = self._made_guard()
        self._guard.__enter__()
        torch._C._set_grad_enabled(False)

    def _made_guard(self) -> Any:
        return torch._C.DisableTorchFunction()

    def _end(self, *raised: Any) -> None:
        if self._guard is not None:
            torch._C._set_grad_enabled(self._grad)  # within the guard: function modes would be told of it
            self._guard.__exit__(None, None, None)  # a second time does nothing
        super()._end(*raised)


class aside(unobserved):
    """Runs our own ops: no mode of the program sees them, and they make ordinary tensors without a graph."""

    def _made_guard(self) -> Any:
        return torch._C._InferenceMode(False)
