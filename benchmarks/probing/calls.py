"""Valid calls of operators, recorded while torch's own samples and the models of tests/zoo run."""

from __future__ import annotations

import io
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

CALLS_KEPT = 8  # of each operator: with other dtypes, dimensions or settings
LARGEST_TENSOR = 20_000  # elements; a hostile call is made hundreds of times
SAMPLES_USED = 12  # of each entry of torch's samples and each dtype
SAMPLE_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)
SECONDS_EACH = 20
OPTIMIZER_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"foreach": True},
    {"foreach": True, "weight_decay": 0.1},
    {"fused": True},
    {"fused": True, "lr": torch.tensor(0.1)},
    {"maximize": True},
    {"amsgrad": True},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
)


class Calls:
    """Calls by the name of the operator, as bytes: what an operator writes in place stays out of them."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, bytes]] = defaultdict(dict)

    def add(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Keep a call, if it is small and unlike those that are kept."""
        kept, kind = self._kept[str(operator)], _kind((args, kwargs))
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if len(kept) < CALLS_KEPT and kind not in kept and all(map(_is_plain, tensors)):
            kept[kind] = saved(args, kwargs)

    def as_dict(self) -> dict[str, list[bytes]]:
        return {name: list(kept.values()) for name, kept in self._kept.items() if kept}


def saved(args: Any, kwargs: dict[str, Any]) -> bytes:
    """A call as bytes. Each tensor has memory of its own, no larger than it needs."""
    buffer = io.BytesIO()
    with torch.no_grad():
        torch.save(pytree.tree_map(_copy, (list(args), dict(kwargs))), buffer)
    return buffer.getvalue()


def loaded(call: bytes) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = torch.load(io.BytesIO(call), weights_only=False)
    return args, kwargs


def _copy(item: Any) -> Any:
    if isinstance(item, torch.Generator):
        return None
    return item.detach().clone() if isinstance(item, torch.Tensor) else item


def _is_plain(tensor: torch.Tensor) -> bool:
    own_kind = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    return own_kind and tensor.layout is torch.strided and not tensor.is_quantized and tensor.numel() <= LARGEST_TENSOR


def _kind(call: Any) -> str:
    """What two calls that try the same have in common."""

    def short(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            strided = item.layout is torch.strided
            return item.dtype, item.dim(), item.layout, strided and item.is_contiguous()
        return type(item).__name__ if type(item) in (int, float, complex) else repr(item)[:20]

    return repr(pytree.tree_map(short, call))


# -- programs that make calls ------------------------------------------------------------------------------------------


class _Record(TorchDispatchMode):
    """Adds what autograd leaves of a program: the calls of kernels."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.add(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _RecordTraced(torch.fx.Interpreter):
    """Adds the calls of a traced program: operators such as aten.linear, which torch takes apart before a kernel."""

    def __init__(self, module: torch.fx.GraphModule, calls: Calls) -> None:
        super().__init__(module)
        self.calls = calls

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.OpOverload):
            self.calls.add(target, args, kwargs)
        return super().call_function(target, args, kwargs)


class _TookLongError(Exception):
    pass


def _stop(*_: Any) -> None:
    raise _TookLongError


def collect(progress: Callable[[str], None]) -> dict[str, list[bytes]]:
    """Calls of every operator that the samples reach: the same in every run, but for memory that nobody wrote to."""
    calls = Calls()
    previous = signal.signal(signal.SIGALRM, _stop)
    for number, (name, program) in enumerate(_programs()):
        for record in (_run_kernels, _run_traced):
            torch.manual_seed(0)
            signal.alarm(SECONDS_EACH)
            try:
                record(program, calls)
            except (Exception, _TookLongError):  # a sample that this machine or tracing does not support is no call
                pass
            finally:
                signal.alarm(0)
        if number % 500 == 0:
            progress(f"collecting calls: {name}")
    signal.signal(signal.SIGALRM, previous)
    return calls.as_dict()


def _run_kernels(program: Callable[[], Any], calls: Calls) -> None:
    with _Record(calls):
        outputs = pytree.tree_leaves(program())
        outputs = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


def _run_traced(program: Callable[[], Any], calls: Calls) -> None:
    module = make_fx(lambda: program(), pre_dispatch=True)()
    _RecordTraced(module, calls).run()


def _programs() -> Iterator[tuple[str, Callable[[], Any]]]:
    for source in (_operator_samples, _module_samples, _optimizer_samples, _zoo):
        yield from source()


def _seeded(iterable: Callable[[], Any]) -> list[Any]:
    """The first samples, the same in every run; none if torch cannot make them here."""
    torch.manual_seed(0)
    random.seed(0)
    try:
        return list(islice(iterable(), SAMPLES_USED))
    except Exception:
        return []


def _operator_samples() -> Iterator[tuple[str, Callable[[], Any]]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for entry in op_db:
        for dtype in SAMPLE_DTYPES:
            if dtype not in entry.dtypes:
                continue
            trains = dtype.is_floating_point and entry.supports_autograd
            for sample in _seeded(lambda e=entry, d=dtype, t=trains: e.sample_inputs("cpu", d, requires_grad=t)):
                yield entry.name, lambda e=entry, s=sample: e.op(s.input, *s.args, **s.kwargs)
                if entry.inplace_variant and not trains:
                    yield entry.name, lambda e=entry, s=sample: e.inplace_variant(s.input, *s.args, **s.kwargs)


def _module_samples() -> Iterator[tuple[str, Callable[[], Any]]]:
    from torch.testing._internal.common_modules import module_db

    for entry in module_db:
        for training in (True, False):
            settings = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": training}
            for sample in _seeded(lambda e=entry, s=settings: iter(e.module_inputs_func(e, **s))):
                if sample.forward_input is not None:
                    yield entry.name, lambda e=entry, s=sample, t=training: _run_module(e.module_cls, s, t)


def _run_module(kind: Any, sample: Any, training: bool) -> Any:
    module = kind(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)
    return module(*sample.forward_input.args, **sample.forward_input.kwargs)


def _optimizer_samples() -> Iterator[tuple[str, Callable[[], Any]]]:
    from torch.testing._internal.common_optimizers import optim_db

    for entry in optim_db:
        for settings in OPTIMIZER_SETTINGS:
            yield entry.optim_cls.__name__, lambda e=entry, s=settings: _run_optimizer(e.optim_cls, s)


def _run_optimizer(kind: Any, settings: dict[str, Any]) -> None:
    parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    optimizer = kind(parameters, **{"lr": 0.1, **settings})
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(*[lambda: torch.tensor(0.0)] if kind is torch.optim.LBFGS else [])


def _zoo() -> Iterator[tuple[str, Callable[[], Any]]]:
    from zoo import ZOO, tensors_in

    for entry in ZOO:
        for training in (True, False):

            def program(entry: Any = entry, training: bool = training) -> Any:
                model, args, kwargs = entry.build()
                if isinstance(model, torch.nn.Module):
                    model.train(training)
                return list(tensors_in(model(*args, **kwargs)))

            yield entry.name, program
