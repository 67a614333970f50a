"""One canary per private symbol of torch: when an upgrade breaks one, the failing test bears its name."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode as PlainMode

import torchatlas
from torchatlas import torch_private

SOURCE = Path(torchatlas.__file__).parent


class Names(PlainMode):
    """Notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, torch_private.current_autograd_node(), torch_private.next_sequence_nr()))
        return func(*args, **(kwargs or {}))


def fake_tensor() -> None:
    with torch_private.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensor = mode.from_tensor(torch.ones(3), static_shapes=True)
        assert isinstance(tensor + 1, torch_private.FakeTensor)
        assert tensor.fake_mode is mode
        assert tensor.untyped_storage().nbytes() == 12


def fake_copy_mode() -> None:
    import copy

    model = nn.Linear(2, 2)
    with torch_private.FakeTensorMode(allow_non_fake_inputs=True) as mode, torch_private.FakeCopyMode(mode):
        twin = copy.deepcopy(model)
    assert isinstance(twin.weight.data, torch_private.FakeTensor)


def op_overload() -> None:
    operator = torch.ops.aten.add.Tensor
    assert type(operator) is torch_private.OpOverload
    assert str(operator) == "aten.add.Tensor"
    assert operator._op(torch.ones(1), torch.ones(1)).item() == 2
    assert [argument.name for argument in operator._schema.arguments] == ["self", "other", "alpha"]
    assert operator._schema.arguments[2].kwarg_only
    assert torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info.is_write
    assert torch.Tag.inplace_view in torch.ops.aten.t_.default.tags


def dispatch_mode() -> None:
    assert PlainMode is torch_private.TorchDispatchMode
    assert callable(PlainMode._should_skip_dynamo)
    assert callable(PlainMode.ignore_compile_internals)
    assert hasattr(PlainMode, "supports_higher_order_operators")
    with Names() as mode:
        torch.ones(1) + 1
    assert [str(func) for func, _, _ in mode.seen] == ["aten.ones.default", "aten.add.Tensor"]


def current_node() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    with Names() as mode:
        y.sum().backward()
    nodes = [node.name() for _, node, _ in mode.seen if node is not None]
    assert "SinBackward0" in nodes
    assert torch_private.current_autograd_node() is None
    accumulate = [node for _, node, _ in mode.seen if node is not None and "Accumulate" in node.name()]
    assert all(node._sequence_nr() >= 2**63 for node in accumulate)


def sequence_numbers() -> None:
    x = torch.ones(2, requires_grad=True)
    with Names() as mode:
        y = x.sin()
    (_, _, number), *_ = mode.seen
    assert y.grad_fn is not None
    assert y.grad_fn._sequence_nr() == number - 1


def version_counters() -> None:
    x = torch.ones(2)
    x.add_(1)
    torch_private.set_version_counters((x,), (7,))
    assert x._version == 7


def mode_stack() -> None:
    with Names() as outer, Names() as inner:
        assert torch_private.dispatch_mode_stack() == [outer, inner]
    assert torch_private.dispatch_mode_stack() == []


def pushed_and_removed() -> None:
    lower, upper = Names(), Names()
    torch_private.push_mode(lower)
    torch_private.push_mode(upper)
    try:
        assert torch_private.dispatch_mode_stack() == [lower, upper]
        torch_private.remove_mode(lower)
        assert torch_private.dispatch_mode_stack() == [upper]
        torch.ones(1)
        assert not torch.utils._python_dispatch.is_in_torch_dispatch_mode(), "entering one sets this, for all threads"
    finally:
        torch_private.remove_mode(upper)
    assert (len(lower.seen), len(upper.seen)) == (0, 1)


def no_modes() -> None:
    with Names() as mode:
        with torch_private.no_dispatch_modes():
            torch.ones(1)
        torch.zeros(1)
    assert [str(func) for func, _, _ in mode.seen] == ["aten.zeros.default"]


def tensor_data() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    torch_private.tensor_data.__set__(x, y)
    assert x.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert torch_private.tensor_data.__get__(x).tolist() == [1, 1]


def uninitialized() -> None:
    lazy = nn.LazyLinear(2)
    assert isinstance(lazy.weight, torch_private.UninitializedTensor)
    assert not isinstance(nn.Linear(2, 2).weight, torch_private.UninitializedTensor)


def higher_order() -> None:
    assert isinstance(torch.ops.higher_order.cond, torch_private.HigherOrderOperator)


def engine() -> None:
    """Ops of a backward are called straight from this function."""
    import sys

    class Frames(PlainMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch_private.current_autograd_node() is not None:
                callers.add(sys._getframe(1).f_code)
            return func(*args, **(kwargs or {}))

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    callers: set[Any] = set()
    y = torch.ones(2, requires_grad=True).sin().sum()
    with Frames():
        y.backward()
    assert callers == {torch_private.engine_code}


def tree_map() -> None:
    tree = ([1, {"a": (2,)}], None)
    assert torch_private.pytree.tree_map(lambda leaf: leaf and leaf + 1, tree) == ([2, {"a": (3,)}], None)


def seen_compiling(function: Callable[..., Any], *args: Any) -> tuple[list[Any], list[str]]:
    """What torch.compile hands to its backend, and the names in the code that calls the graph it gets back."""
    import sys

    graphs: list[Any] = []
    names: list[str] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)

        def run(*args: Any) -> Any:
            frame: Any = sys._getframe()
            while frame is not None:
                names.extend(frame.f_code.co_names)
                frame = frame.f_back
            return graph(*args)

        return run

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    return graphs, names


def compiled_name() -> None:
    graphs, names = seen_compiling(lambda x: x.sin() + 1, torch.ones(2))
    assert len(graphs) == 1
    assert [name for name in names if name.startswith(torch_private.COMPILED_NAME)]


def frames_left_alone() -> None:
    """The code that is marked does not get compiled; what it calls does, or does not."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin())

    def never(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin())

    torch_private.compiled_inside(outer)
    torch_private.never_compiled(never)
    graphs, _ = seen_compiling(outer, torch.ones(2))
    assert [[node.name for node in graph.graph.nodes if "call" in node.op] for graph in graphs] == [["cos"]]
    assert seen_compiling(never, torch.ones(2))[0] == []
    graphs, _ = seen_compiling(lambda x: never(x.exp()) + 1, torch.ones(2))  # nor is it inlined, and no warning says so
    assert [[node.name for node in graph.graph.nodes if "call" in node.op] for graph in graphs] == [["exp"], ["add"]]


def unpatched_module_call() -> None:
    import torch._dynamo.variables.nn_module as dynamo

    assert dynamo.unpatched_nn_module_call_impl is nn.Module._call_impl
    for function in (len, nn.Module._call_impl):
        torch_private.compilers_module_call(function)
        assert dynamo.unpatched_nn_module_call_impl is torch._dynamo.utils.unpatched_nn_module_call_impl is function


def compilers_graph() -> None:
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    graphs: list[Any] = []
    torch.compile(lambda x: x.sin(), backend=aot_autograd(fw_compiler=compiler))(torch.ones(2))
    assert isinstance(graphs[0], torch_private.CompilersGraph)
    assert not isinstance(torch.fx.symbolic_trace(nn.Tanh()), torch_private.CompilersGraph)


def inductor() -> None:
    import torch._inductor.output_code

    kind = torch_private.inductor_graph()
    assert kind is torch._inductor.output_code.CompiledFxGraph
    assert {"__call__", "__init__"} <= set(vars(kind))
    assert {"mutated_input_idxs"} <= set(kind.__annotations__)
    backend = torch_private.inductor_backend("default", None, None)
    assert backend.compiler_name == "inductor"
    assert "__call__" in vars(torch_private.inductor_backend)


def wrappers() -> None:
    values = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert torch_private.is_wrapper(values)
    names, _ = values.__tensor_flatten__()
    assert isinstance(getattr(values, names[0]), torch.Tensor)
    assert not torch_private.is_wrapper(torch.ones(1))
    with torch_private.FakeTensorMode():
        assert not torch_private.is_wrapper(torch.ones(1))


def process_groups() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        world = torch_private.process_group_named(dist.group.WORLD.group_name)
        assert world is dist.group.WORLD
        assert torch_private.process_groups() == [world]
        assert dist.ProcessGroup.unbox(world.boxed()).group_name == world.group_name
    finally:
        dist.destroy_process_group()
    with pytest.raises((RuntimeError, ValueError)):
        torch_private.process_group_named("nobody's")


def popped_modes() -> None:
    with Names() as outer, Names() as inner:
        assert torch_private.pop_mode() is inner
        assert torch_private.dispatch_mode_stack() == [outer]
        torch_private.push_mode(inner)


def sharding() -> None:
    import torch.distributed.tensor  # noqa: F401  # it is loaded on demand

    assert callable(torch_private.sharding_propagator()._propagate_tensor_meta_non_cached)


def forbidden_hooks() -> None:
    """Saved-tensor hooks are forbidden, and allowed again, for the whole thread."""
    before = torch_private.saved_tensor_hooks_forbidden()
    torch_private.restore_saved_tensor_hooks("not here")
    assert torch_private.saved_tensor_hooks_forbidden() == "not here"
    torch_private.restore_saved_tensor_hooks(before)
    assert torch_private.saved_tensor_hooks_forbidden() == before


def assumed_sizes() -> None:
    """Guards are Python expressions that speak of the arguments as L['x']."""

    class Small(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] > 4 else x - 1

    free = {"x": {0: torch.export.Dim.AUTO}}
    program = torch.export.export(Small(), (torch.ones(3, 2),), dynamic_shapes=free, strict=False)
    assert any("L['x']" in text and "4" in text for text in torch_private.export_guards(program))


def interrupted_transforms() -> None:
    """A transform that was interrupted while it ran is taken off again."""
    before = torch_private.functorch_depth()
    torch._C._functorch._vmap_increment_nesting(2, "error")
    assert torch_private.functorch_depth() == before + 1
    torch_private.undo_functorch(before)
    assert torch_private.functorch_depth() == before
    assert torch.rand(2).shape == (2,)


def engine_in_python() -> None:
    """A node and a root of equal numbers: the node runs, the other root is next, and what follows the node is not."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ran.append("doubled")
            raise KeyboardInterrupt

    ran: list[str] = []
    x = torch.ones(2, requires_grad=True)
    y, other = x.sin(), Doubled.apply(x)
    assert isinstance(other.grad_fn, torch_private.FunctionNode)
    assert not isinstance(y.grad_fn, torch_private.FunctionNode)
    assert y.grad_fn is not None
    for node in (y.grad_fn, other.grad_fn):
        node._set_sequence_nr(2**64 - 1)
        assert node._sequence_nr() == 2**64 - 1
    y.grad_fn.register_prehook(lambda _: ran.append("sin"))
    handle = y.grad_fn.register_prehook(lambda _: ran.append("sin, first"))
    hooks = handle.hooks_dict_ref()
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)
    roots = tuple(torch.autograd.graph.GradientEdge(node, 0) for node in (y.grad_fn, other.grad_fn))
    ones = torch_private.make_grads((y.sum(), torch.ones(2)), (None, torch.ones(2)), is_grads_batched=False)
    assert ones[0].item() == 1
    with pytest.raises(KeyboardInterrupt):
        torch_private.run_engine(
            roots, (ones[1], ones[1]), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
    assert ran == ["sin, first", "sin", "doubled"]
    assert x.grad is None
    with pytest.raises(RuntimeError, match="second time"):  # what it saved is gone
        y.grad_fn._saved_self
    assert y.grad_fn._input_metadata[0].shape == [2]
    assert y.grad_fn._input_metadata[0].is_nested_tensor is False


def every_run_of_the_engine() -> None:
    x, seen = torch.ones(2, requires_grad=True), []

    def around(run: Any, outputs: Any, args: Any, kwargs: Any) -> Any:
        gradients, keep, create, inputs = args[:4]
        seen.append((len(outputs), len(gradients), keep, create, len(inputs), kwargs["accumulate_grad"]))
        return run(outputs, *args, **kwargs)

    with torch_private.engine_runs(around):
        x.sin().sum().backward(retain_graph=True)
        torch.autograd.grad(x.sin().sum(), [x])
        torch.func.grad(lambda t: t.sin().sum())(torch.ones(2))
    x.sin().sum().backward()
    assert seen[:2] == [(1, 1, True, False, 0, True), (1, 1, False, False, 1, False)]
    assert len(seen) == 3
    edge = torch.autograd.graph.get_gradient_edge(x)
    assert edge.node.name().endswith("AccumulateGrad")
    edge.node.metadata["a key"] = "kept"
    assert edge.node.metadata["a key"] == "kept"


def executed_nodes() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    left, right = x.sin(), w.cos()
    loss, found = (left * right).sum(), []
    assert loss.grad_fn is not None
    loss.grad_fn.register_prehook(
        lambda _: found.extend(torch_private.will_be_executed(t.grad_fn) for t in (left, right))
    )
    loss.backward(inputs=[x])
    assert found == [True, False]


def one_run_of_the_engine() -> None:
    seen: list[tuple[int, bool]] = []
    hooks = {0: lambda gradient: seen.append((torch_private.engine_run_id(), gradient.shape == (2,)))}
    loss = torch.ones(2, requires_grad=True).sin()
    torch_private.hang_hooks([loss.grad_fn], hooks)
    assert torch_private.engine_run_id() == -1
    for _ in range(2):
        loss.sum().backward(retain_graph=True)
    (first, fits), (second, _) = seen
    assert fits
    assert 0 <= first < second
    hooks.clear()
    loss.sum().backward()
    assert len(seen) == 2
    parts, heard = torch.ones(2, requires_grad=True).exp().unbind(), []
    torch_private.hang_hooks([parts[0].grad_fn], {0: lambda gradient: heard.append(gradient.item())}, 1)
    (parts[0] + 3 * parts[1]).backward()
    assert heard == [3.0]


def after_nodes() -> None:
    x = torch.ones(2, requires_grad=True)
    own, other = x.exp(), x.sin()
    told: list[str] = []
    own.grad_fn.register_hook(lambda made, taken: told.append("own"))  # type: ignore[union-attr]
    register = torch.autograd.Function._register_hook
    hooks = {0: lambda made, taken: told.append("ours")}
    handles = torch_private.hang_post_hooks([own.grad_fn, other.grad_fn], hooks)
    assert torch.autograd.Function._register_hook is register
    assert len(handles) == 1  # where there was one before
    loss = own.sum() + other.sum()
    loss.backward(retain_graph=True)
    assert sorted(told) == ["ours", "ours", "own"]
    hooks.clear()
    handles[0].remove()
    loss.backward()
    assert sorted(told) == ["ours", "ours", "own", "own"]


def tensors_of_transforms() -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        assert torch_private.in_transform()
        with torch_private.no_transforms():
            seen.append(torch_private.unwrapped(x).tolist())
        return x.sin().sum()

    seen: list[Any] = []
    torch.func.grad(look)(torch.ones(2))
    torch.func.vmap(look)(torch.zeros(2, 1))
    assert seen == [[1.0, 1.0], [[0.0], [0.0]]]
    assert not torch_private.in_transform()
    batched: list[bool] = []
    w = torch.ones(2, requires_grad=True)
    y = w.sin()
    y.register_hook(lambda g: batched.append(torch_private.is_batched(g) and torch_private.in_transform()))
    torch.autograd.grad(y.exp(), w, torch.eye(2), is_grads_batched=True)
    assert batched == [True]


def state_of_a_thread() -> None:
    assert torch_private.engine_has_threads()
    with torch.autograd.set_multithreading_enabled(False):
        assert not torch_private.engine_has_threads()
    assert torch_private.top_saved_tensor_hooks(False) is None
    pack = lambda tensor: tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, pack):
        assert torch_private.top_saved_tensor_hooks(False) == (pack, pack)
    mode = TorchFunctionMode()
    torch_private.push_function_mode(mode)
    assert torch_private.function_mode_stack() == [mode]
    assert torch_private.pop_function_mode() is mode
    assert torch_private.function_mode_stack() == []


def nobody_sees() -> None:
    class Counts(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return function(*args, **(kwargs or {}))

    class CountsOps(torch_private.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return function(*args, **(kwargs or {}))

    with Counts() as calls, CountsOps() as ops:
        with torch_private.unobserved():
            made = torch.ones(3, requires_grad=True) * 2
        assert (calls.seen, ops.seen) == (0, 0)
        assert not made.requires_grad
        torch.ones(3)
        assert calls.seen
        assert ops.seen


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


CANARIES: dict[str, Callable[[], None]] = {
    "aside": ours_alone,
    "COMPILED_NAME": compiled_name,
    "CompilersGraph": compilers_graph,
    "FakeCopyMode": fake_copy_mode,
    "FakeTensor": fake_tensor,
    "FakeTensorMode": fake_tensor,
    "FunctionNode": engine_in_python,
    "HigherOrderOperator": higher_order,
    "OpOverload": op_overload,
    "TorchDispatchMode": dispatch_mode,
    "UninitializedTensor": uninitialized,
    "compiled_inside": frames_left_alone,
    "compilers_module_call": unpatched_module_call,
    "current_autograd_node": current_node,
    "engine_runs": every_run_of_the_engine,
    "will_be_executed": executed_nodes,
    "dispatch_mode_stack": mode_stack,
    "engine_code": engine,
    "inductor_backend": inductor,
    "inductor_graph": inductor,
    "never_compiled": frames_left_alone,
    "functorch_depth": interrupted_transforms,
    "undo_functorch": interrupted_transforms,
    "unobserved": nobody_sees,
    "in_transform": tensors_of_transforms,
    "is_batched": tensors_of_transforms,
    "no_transforms": tensors_of_transforms,
    "unwrapped": tensors_of_transforms,
    "engine_run_id": one_run_of_the_engine,
    "hang_hooks": one_run_of_the_engine,
    "hang_post_hooks": after_nodes,
    "engine_has_threads": state_of_a_thread,
    "function_mode_stack": state_of_a_thread,
    "push_function_mode": state_of_a_thread,
    "pop_function_mode": state_of_a_thread,
    "top_saved_tensor_hooks": state_of_a_thread,
    "saved_tensor_hooks_forbidden": forbidden_hooks,
    "restore_saved_tensor_hooks": forbidden_hooks,
    "export_guards": assumed_sizes,
    "is_wrapper": wrappers,
    "make_grads": engine_in_python,
    "next_sequence_nr": sequence_numbers,
    "pop_mode": popped_modes,
    "process_group_named": process_groups,
    "process_groups": process_groups,
    "run_engine": engine_in_python,
    "sharding_propagator": sharding,
    "no_dispatch_modes": no_modes,
    "push_mode": pushed_and_removed,
    "pytree": tree_map,
    "remove_mode": pushed_and_removed,
    "set_version_counters": version_counters,
    "tensor_data": tensor_data,
}


@pytest.mark.parametrize("symbol", torch_private.__all__)
def test_canary(symbol: str) -> None:
    assert symbol in CANARIES, f"write a canary for {symbol}"
    CANARIES[symbol]()


def test_all_is_sorted_and_complete() -> None:
    assert sorted(torch_private.__all__) == list(torch_private.__all__)
    public = {name for name in vars(torch_private) if not name.startswith("_") and name not in ("Any", "torch")}
    assert public == set(torch_private.__all__)


# Private attributes that cannot be imported, used where the package says why.


def test_module_call_impl() -> None:
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


def test_storage_cdata_and_weak_references() -> None:
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


def test_storage_outlives_its_tensors_while_autograd_saves_it() -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * 1).exp()
    reference = weakref.ref(y.untyped_storage())
    z = y.sum()
    z = z * z
    del y
    assert reference() is not None  # only C++ holds it now
    z.backward()
    assert reference() is None


def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_private_torch_is_imported_in_one_place(path: Path) -> None:
    if path.name == "torch_private.py":
        return
    private = [name for name in imports_of(path) if name.startswith("torch.") and "._" in name]
    assert private == []
