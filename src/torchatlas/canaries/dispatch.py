"""Canaries for dispatch modes, operators, kinds of tensors, modules and storages."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode as PlainMode

from torchatlas import torch_private
from torchatlas.canaries.canary_registry import CANARIES


class Names(PlainMode):
    """Notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, torch_private.current_autograd_node(), torch_private.next_sequence_nr()))
        return func(*args, **(kwargs or {}))


@CANARIES.add("TorchDispatchMode")
def dispatch_mode() -> None:
    assert PlainMode is torch_private.TorchDispatchMode
    assert callable(PlainMode.ignore_compile_internals)

    class Bare(PlainMode):
        __torch_dispatch__ = bare = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    assert vars(Bare)["__torch_dispatch__"] is vars(Bare)["bare"], "torch wraps what every op is sent to"
    assert hasattr(PlainMode, "supports_higher_order_operators")
    with Names() as mode:
        torch.ones(1) + 1
    assert [str(func) for func, _, _ in mode.seen] == ["aten.ones.default", "aten.add.Tensor"]


@CANARIES.add("fake_tensors_run")
def _fake_tensors_run() -> None:
    assert not torch_private.fake_tensors_run()
    with torch_private.FakeTensorMode():
        assert torch_private.fake_tensors_run()
    assert not torch_private.fake_tensors_run()


@CANARIES.add("fake_number")
def fake_number_is_read() -> None:
    """As Adam reads how many steps it took; the tensor that it was made of stays as it is."""
    steps, mode = torch.tensor(3.0), torch_private.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        twin = torch_private.fake_number(mode, steps)
        twin += 1
        assert isinstance(twin, torch_private.FakeTensor)
        assert twin.item() == 4.0
    assert steps.item() == 3.0


@CANARIES.add("dispatch_mode_stack")
def mode_stack() -> None:
    with Names() as outer, Names() as inner:
        assert torch_private.dispatch_mode_stack() == [outer, inner]
    assert torch_private.dispatch_mode_stack() == []


@CANARIES.add("push_mode", "push_mode_below", "remove_mode")
def pushed_and_removed() -> None:
    lower, upper = Names(), Names()
    torch_private.push_mode(upper)
    torch_private.push_mode_below(lower)
    try:
        assert torch_private.dispatch_mode_stack() == [lower, upper]
        torch_private.remove_mode(lower)
        assert torch_private.dispatch_mode_stack() == [upper]
        torch.ones(1)
        assert not torch.utils._python_dispatch.is_in_torch_dispatch_mode(), "entering one sets this, for all threads"
    finally:
        torch_private.remove_mode(upper)
    assert (len(lower.seen), len(upper.seen)) == (0, 1)


@CANARIES.add("pop_mode")
def popped_modes() -> None:
    with Names() as outer, Names() as inner:
        assert torch_private.pop_mode() is inner
        assert torch_private.dispatch_mode_stack() == [outer]
        torch_private.push_mode(inner)


@CANARIES.add("no_dispatch_modes")
def no_modes() -> None:
    with Names() as mode:
        with torch_private.no_dispatch_modes():
            torch.ones(1)
        torch.zeros(1)
    assert [str(func) for func, _, _ in mode.seen] == ["aten.zeros.default"]


@CANARIES.add("unobserved")
def nobody_sees() -> None:
    class CountsCalls(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return function(*args, **(kwargs or {}))

    with CountsCalls() as calls, Names() as ops:
        with torch_private.unobserved():
            made = torch.ones(3, requires_grad=True) * 2
        assert (calls.seen, ops.seen) == (0, [])
        assert not made.requires_grad
        torch.ones(3)
        assert calls.seen
        assert ops.seen


@CANARIES.add("aside")
def ours_alone() -> None:
    with Names() as mode, torch.inference_mode():
        inner = torch_private.aside()
        with inner:
            made = torch.ones(3, requires_grad=True) * 2
        inner._end(None, None, None)  # an end that was interrupted is made again
        assert torch.is_inference_mode_enabled()
        torch.zeros(1)
    assert not made.is_inference()
    assert not made.requires_grad
    assert torch.is_grad_enabled()
    assert [str(func) for func, _, _ in mode.seen] == ["aten.zeros.default"]


@CANARIES.add("OpOverload")
def op_overload() -> None:
    operator = torch.ops.aten.add.Tensor
    assert type(operator) is torch_private.OpOverload
    assert str(operator) == "aten.add.Tensor"
    assert operator._op(torch.ones(1), torch.ones(1)).item() == 2
    assert [argument.name for argument in operator._schema.arguments] == ["self", "other", "alpha"]
    assert operator._schema.arguments[2].kwarg_only
    assert torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info.is_write
    assert torch.Tag.inplace_view in torch.ops.aten.t_.default.tags


@CANARIES.add("HigherOrderOperator")
def higher_order() -> None:
    assert isinstance(torch.ops.higher_order.cond, torch_private.HigherOrderOperator)


@CANARIES.add("FakeTensor", "FakeTensorMode")
def fake_tensor() -> None:
    with torch_private.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensor = mode.from_tensor(torch.ones(3), static_shapes=True)
        assert isinstance(tensor + 1, torch_private.FakeTensor)
        assert tensor.fake_mode is mode
        assert tensor.untyped_storage().nbytes() == 12


@CANARIES.add("FakeCopyMode")
def fake_copy_mode() -> None:
    model = nn.Linear(2, 2)
    with torch_private.FakeTensorMode(allow_non_fake_inputs=True) as mode, torch_private.FakeCopyMode(mode):
        twin = copy.deepcopy(model)
    assert isinstance(twin.weight.data, torch_private.FakeTensor)


@CANARIES.add("is_wrapper")
def wrappers() -> None:
    values = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert torch_private.is_wrapper(values)
    names, _ = values.__tensor_flatten__()
    assert isinstance(getattr(values, names[0]), torch.Tensor)
    assert not torch_private.is_wrapper(torch.ones(1))
    with torch_private.FakeTensorMode():
        assert not torch_private.is_wrapper(torch.ones(1))


@CANARIES.add("tensor_data")
def tensor_data() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    torch_private.tensor_data.__set__(x, y)
    assert x.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert torch_private.tensor_data.__get__(x).tolist() == [1, 1]


@CANARIES.add("UninitializedTensor")
def uninitialized() -> None:
    lazy = nn.LazyLinear(2)
    assert isinstance(lazy.weight, torch_private.UninitializedTensor)
    assert not isinstance(nn.Linear(2, 2).weight, torch_private.UninitializedTensor)


@CANARIES.add("set_version_counters")
def version_counters() -> None:
    x = torch.ones(2)
    x.add_(1)
    torch_private.set_version_counters((x,), (7,))
    assert x._version == 7


@CANARIES.add("pytree")
def tree_map() -> None:
    tree = ([1, {"a": (2,)}], None)
    assert torch_private.pytree.tree_map(lambda leaf: leaf and leaf + 1, tree) == ([2, {"a": (3,)}], None)


@CANARIES.add("Module._call_impl")
def module_call_impl() -> None:
    calls = []
    original: Any = nn.Module._call_impl

    def call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(module).__name__)
        return original(module, *args, **kwargs)

    nn.Module._call_impl = call_impl
    try:
        nn.Sequential(nn.Tanh())(torch.ones(1))
    finally:
        nn.Module._call_impl = original
    assert calls == ["Sequential", "Tanh"]


@CANARIES.add("UntypedStorage._cdata")
def storage_cdata_and_weak_references() -> None:
    x = torch.ones(3)
    view = x[1:]
    storage = x.untyped_storage()
    assert storage._cdata == view.untyped_storage()._cdata
    assert storage is view.untyped_storage()  # one Python object per storage, so that a reference to it is one to both
    died: list[Any] = []
    reference = weakref.ref(storage, died.append)
    del storage, x
    assert reference() is not None  # the view keeps it
    del view
    assert died == [reference]


@CANARIES.add("saved storages")
def storage_outlives_its_tensors_while_autograd_saves_it() -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * 1).exp()
    reference = weakref.ref(y.untyped_storage())
    z = y.sum()
    z = z * z
    del y
    assert reference() is not None  # only C++ holds it now
    z.backward()
    assert reference() is None
