"""Every way to run autograd: what is recorded is what ran, and each backward op belongs to the op it differentiates.

A program is a function that makes everything it needs and returns what it computed. It runs three times: alone, under
a dispatch mode that only notes names, and under the same mode with a recording on top.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch._C import _current_autograd_node
from torch._C._autograd import _get_sequence_nr
from torch.autograd import functional
from torch.autograd.function import once_differentiable
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    get_gradient_edge,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import torchatlas as atlas
from torchatlas.graph import Graph, GraphNode

pytestmark = [  # torch says these to itself: in forward mode, in linearize, in a checkpoint inside a reentrant one
    pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node with no underlying reference:UserWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning"),
]

LEAF = 2**62  # the nodes that accumulate gradients all have the largest number there is

repeated = False  # whether a function that a checkpoint was given runs


class Witness(TorchDispatchMode):
    """Per op: its name, the backward node that runs it, autograd's next number, whether `repeated` was set."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, tuple[str, int] | None, int, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = _current_autograd_node()
        row = None if node is None else (node.name(), node._sequence_nr())
        if not str(func).startswith("profiler."):
            self.rows.append((str(func), row, _get_sequence_nr(), repeated))
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        return [row[0] for row in self.rows]


def plain(name: str) -> str:
    return name.replace("_", "").lower()


Program = Callable[[], Any]
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


def run(function: Program, *modes: Any) -> list[Any]:
    torch.manual_seed(0)
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        found = function()
    return [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(found)]


def name_of(item: Any) -> str:
    """The id of a parameter: a program's name and arguments."""
    if isinstance(item, functools.partial):
        return "-".join([item.func.__name__, *(getattr(part, "__name__", str(part)) for part in item.args)])
    return getattr(item, "__name__", str(item))


def recorded(function: Program) -> tuple[Graph, Witness]:
    """The graph of a program, after the recording was found to have changed nothing and missed nothing."""
    alone, below, recording = Witness(), Witness(), atlas.recording()
    eager = run(function)
    for found in (run(function, alone), run(function, below, recording)):
        assert len(found) == len(eager)
        for mine, theirs in zip(found, eager, strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs
    ops = [node.operation for node in recording.graph.where(kind="op")]
    assert ops == below.names == alone.names
    return recording.graph, below


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def curve(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


# -- forward mode and torch.func -------------------------------------------------------------------------------------


@program
def dual_tensors() -> Any:
    model = mlp()
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(torch.randn(2, 3), torch.randn(2, 3))))


@program
def func_jvp() -> Any:
    return jvp(mlp(), (torch.randn(3),), (torch.ones(3),))


@program
def func_jacfwd() -> Any:
    return jacfwd(lambda x: x.sin() * x.sum())(torch.randn(3))


@program
def func_jacrev() -> Any:
    return jacrev(lambda x: x.sin() * x.sum())(torch.randn(3))


@program
def func_hessian() -> Any:
    return hessian(curve)(torch.randn(3))


@program
def func_vjp() -> Any:
    value, back = vjp(curve, torch.randn(3))
    return value, back(torch.ones(())), back(torch.full((), 2.0))


@program
def func_linearize() -> Any:
    value, push = linearize(curve, torch.randn(3))
    return value, push(torch.ones(3)), push(torch.zeros(3))


@program
def func_nested_grad() -> Any:
    return grad(grad(lambda x: x.pow(3).sum()))(torch.tensor(2.0))


@program
def func_functional_call() -> Any:
    model = mlp()
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in model.named_parameters()}
    functional_call(model, weights, (torch.randn(2, 3),)).sum().backward()
    return [tensor.grad for tensor in weights.values()]


@program
def func_vmap() -> Any:
    product = vmap(lambda x, y: x @ y, in_dims=(0, 1))(torch.randn(3, 4), torch.randn(4, 3))
    same, different = (
        vmap(lambda x: x + torch.rand(2), randomness=kind, chunk_size=2)(torch.randn(5, 2))
        for kind in ("same", "different")
    )
    return product, same, different


@program
def func_grad_of_vmap() -> Any:
    rows = torch.randn(3, 2)
    return grad(lambda w: vmap(lambda row: (row * w).sum().tanh())(rows).sum())(torch.randn(2))


@program
def func_vmap_of_grad() -> Any:
    return vmap(grad(lambda w, row: (row * w).sum().tanh()), in_dims=(None, 0))(torch.randn(2), torch.randn(3, 2))


@program
def autograd_functional() -> Any:
    x, ones = torch.randn(3), torch.ones(3)
    return (
        functional.jacobian(torch.sin, x, create_graph=True),
        functional.jacobian(torch.sin, x, vectorize=True),
        functional.jacobian(torch.sin, x, vectorize=True, strategy="forward-mode"),
        functional.hessian(curve, x),
        functional.vjp(curve, x),
        functional.jvp(torch.sin, x, ones),
        functional.hvp(curve, x, ones),
        functional.vhp(curve, x, ones),
    )


# -- backward --------------------------------------------------------------------------------------------------------


@program
def gradient_penalty() -> Any:
    model, x = mlp(), torch.randn(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (model(x).mean() + (slope.norm(2, dim=1) - 1).square().mean()).backward()
    return gradients(model)


@program
def third_derivative() -> Any:
    x = torch.randn(3, requires_grad=True)
    y = x.pow(4).sum()
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y


@program
def backward_that_builds_a_graph() -> Any:
    x = torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward\\(\\) with create_graph=True")
        x.pow(3).sum().backward(create_graph=True)
    first, x.grad = x.grad, None
    first.sum().backward()
    return first, x.grad


@program
def several_backwards_of_one_graph() -> Any:
    model = mlp()
    loss = model(torch.randn(2, 3)).sum()
    for last in (False, False, True):
        loss.backward(retain_graph=not last)
    return gradients(model)


@program
def several_losses_at_once() -> Any:
    model = mlp()
    y = model(torch.randn(2, 3))
    torch.autograd.backward([y.sin().sum(), y.cos()], [None, torch.ones(2, 1)])
    return gradients(model)


@program
def several_losses_in_turn() -> Any:
    model = mlp()
    y = model(torch.randn(2, 3))
    y.square().mean().backward(retain_graph=True)
    y.abs().mean().backward()
    return gradients(model)


@program
def grad_of_chosen_inputs() -> Any:
    model, x, unused = mlp(), torch.randn(2, 3, requires_grad=True), torch.randn(2, requires_grad=True)
    first = torch.autograd.grad(model(x).sum(), [x, model[0].weight, unused], allow_unused=True)
    return first, torch.autograd.grad(model(x).sum(), [x, unused], materialize_grads=True)


@program
def batched_grad() -> Any:
    x = torch.randn(3, requires_grad=True)
    return torch.autograd.grad(x.sin() * x.sum(), x, torch.eye(3), is_grads_batched=True)


@program
def backward_to_chosen_inputs() -> Any:
    model = mlp()
    model(torch.randn(2, 3)).sum().backward(inputs=[model[0].weight])
    return gradients(model)


@program
def gradient_edges() -> Any:
    x = torch.randn(3, requires_grad=True)
    y = x.sin()
    z = y.exp()
    inner = torch.autograd.grad(z.sum(), get_gradient_edge(y), retain_graph=True)
    torch.autograd.backward([get_gradient_edge(z)], [torch.ones(3)])
    return inner, x.grad


@program
def one_thread_for_backward() -> Any:
    model = mlp()
    with torch.autograd.set_multithreading_enabled(False):
        model(torch.randn(2, 3)).sum().backward()
    return gradients(model)


@program
def anomaly_mode() -> Any:
    model = mlp()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly():
            model(torch.randn(2, 3)).sum().backward()
    return gradients(model)


@program
def gradient_modes() -> Any:
    model = mlp()
    without = torch.no_grad()(model)(torch.randn(2, 3))
    with torch.set_grad_enabled(False):
        without = without + model(torch.randn(2, 3))
    with torch.inference_mode():
        inference = model(torch.randn(2, 3))
    with torch.no_grad(), torch.enable_grad():
        model(without.expand(2, 3)).sum().backward()
    return gradients(model), inference.clone()


# -- custom functions ------------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """With its context apart, two outputs, and rules for forward mode and vmap."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.pow(3), x.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> Tensor:
        return slope * 3 * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        return tangent * 3 * ctx.saved_tensors[0], None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Cube.apply(x), (in_dims[0], in_dims[0])


def cube(x: Tensor) -> Tensor:
    return Cube.apply(x)[0]


@program
def function_with_a_context_of_its_own() -> Any:
    x = torch.randn(3, requires_grad=True)
    cube(x).sum().backward()
    pushed = jvp(cube, (torch.randn(3),), (torch.ones(3),))
    return x.grad, pushed, vmap(cube)(torch.randn(2, 3)), vmap(grad(lambda x: cube(x).sum()))(torch.randn(2, 3))


class Scaled(torch.autograd.Function):
    """With a rule for vmap that torch makes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope * ctx.factor, None


@program
def function_with_a_made_vmap_rule() -> Any:
    return vmap(grad(lambda x: Scaled.apply(x, 3.0).sin().sum()))(torch.randn(2, 3))


class Once(torch.autograd.Function):
    """Takes what is no tensor, returns two outputs, and has no second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, options: dict[str, float]) -> tuple[Tensor, Tensor]:
        ctx.factor = options["factor"]
        return x * ctx.factor, x.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, total: Tensor) -> tuple[Tensor, None, None]:
        return slope * ctx.factor + total, None, None


@program
def function_that_is_differentiable_once() -> Any:
    x = torch.randn(3, requires_grad=True)
    scaled, total = Once.apply(x, "name", {"factor": 2.0})
    (scaled.sum() + total).backward()
    return x.grad


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope * 3


@program
def function_that_writes_its_input() -> Any:
    x = torch.randn(3, requires_grad=True)
    y = x * 1
    InPlace.apply(y).sin().sum().backward()
    return x.grad, y


class Nested(torch.autograd.Function):
    """Differentiates inside its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            ctx.save_for_backward(inner, inner.sin())
        return ctx.to_save[1].detach()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        inner, y = ctx.saved_tensors
        return torch.autograd.grad(y, inner, slope)[0]


@program
def function_with_a_backward_in_its_backward() -> Any:
    x = torch.randn(3, requires_grad=True)
    Nested.apply(x).sum().backward()
    return x.grad


# -- what is saved for backward --------------------------------------------------------------------------------------


@program
def hooks_on_what_is_saved() -> Any:
    model = mlp()
    with saved_tensors_hooks(lambda tensor: tensor.double(), lambda tensor: tensor.float()):
        y = model(torch.randn(2, 3))
    y.sum().backward()
    return gradients(model)


@program
def hooks_on_what_is_saved_beside_a_function() -> Any:
    """The ops after a Function's forward that take no number leave its number alone."""
    x = torch.randn(3, requires_grad=True)
    y = Scaled.apply(x, 2.0)
    y.argmax(), torch.ones_like(y), y > 0, y.new_zeros(3)
    with saved_tensors_hooks(lambda tensor: tensor.double(), lambda tensor: tensor.float()):
        z = y.sin() * y
    z.sum().backward()
    return x.grad


@program
def saved_on_the_cpu() -> Any:
    model = mlp()
    with save_on_cpu():
        y = model(torch.randn(2, 3))
    y.sum().backward()
    return gradients(model)


@program
def saved_tensors_that_are_written() -> Any:
    with allow_mutation_on_saved_tensors():
        x = torch.ones(2, 3, requires_grad=True)
        y = x.clone()
        loss = y.square().sum()
        y.sin_()
        loss.backward()
    return x.grad


# -- checkpoints -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def marked() -> Iterator[None]:
    global repeated
    before, repeated = repeated, True
    try:
        yield
    finally:
        repeated = before


def checkpoint_in_a_checkpoint(outer: bool, inner: bool, last: bool) -> Any:
    first, second, x = nn.Linear(3, 3), nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)

    def within(x: Tensor) -> Tensor:
        with marked():
            return second(x).tanh()

    def around(x: Tensor) -> Tensor:
        with marked():
            y = checkpoint(within, first(x).sigmoid(), use_reentrant=inner)
            return y if last else y.sin()

    checkpoint(around, x, use_reentrant=outer).sum().backward()
    return gradients(first), gradients(second), x.grad


NESTED_CHECKPOINTS = [
    program(functools.partial(checkpoint_in_a_checkpoint, outer, inner, last))
    for outer in (True, False)
    for inner in (True, False)
    for last in (True, False)
]


class Marked(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        with marked():
            return super().forward(x)


def sequence_of_checkpoints(reentrant: bool) -> Any:
    model = nn.Sequential(*[Marked(nn.Linear(3, 3), nn.Tanh()) for _ in range(5)])
    x = torch.randn(2, 3, requires_grad=True)
    checkpoint_sequential(model, 3, x, use_reentrant=reentrant).sum().backward()
    return gradients(model)


SEQUENCES = [program(functools.partial(sequence_of_checkpoints, reentrant)) for reentrant in (True, False)]


def selective_checkpoint(saved: Any) -> Any:
    contexts = functools.partial(create_selective_checkpoint_contexts, saved)
    model, x = Marked(*mlp()), torch.randn(2, 3, requires_grad=True)
    checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
    return gradients(model)


def keep_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    product = operator is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if product else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = {
    "addmm": program(functools.partial(selective_checkpoint, keep_products)),
    "tanh": program(functools.partial(selective_checkpoint, [torch.ops.aten.tanh.default])),
}


# -- hooks -----------------------------------------------------------------------------------------------------------


def with_tensor_hook(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda module, args, y: y.register_hook(torch.logit) and None)


def with_hook_on_a_leaf(model: nn.Sequential) -> None:
    model[0].weight.register_hook(torch.logit)


def with_hook_after_accumulation(model: nn.Sequential) -> None:
    def hook(parameter: Tensor) -> None:
        parameter.grad.logit_()

    model[0].weight.register_post_accumulate_grad_hook(hook)


def with_node_hook(model: nn.Sequential) -> None:
    def hook(module: nn.Module, args: Any, y: Tensor) -> None:
        y.grad_fn.register_hook(lambda inner, outer: (inner[0].logit(), *inner[1:]))

    model[1].register_forward_hook(hook)


def with_node_prehook(model: nn.Sequential) -> None:
    def hook(module: nn.Module, args: Any, y: Tensor) -> None:
        y.grad_fn.register_prehook(lambda outer: (outer[0].logit(),))

    model[1].register_forward_hook(hook)


def with_forward_pre_hook(model: nn.Sequential) -> None:
    model[1].register_forward_pre_hook(lambda module, args, kwargs: ((args[0].logit(),), kwargs), with_kwargs=True)


def with_forward_hook(model: nn.Sequential) -> None:
    model[1].register_forward_hook(lambda module, args, kwargs, y: y.logit(), with_kwargs=True)


def with_backward_pre_hook(model: nn.Sequential) -> None:
    model[1].register_full_backward_pre_hook(lambda module, slopes: (slopes[0].logit(),))


def with_backward_hook(model: nn.Sequential) -> None:
    model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0].logit(),))


def on_tanh(change: Callable[..., Any]) -> Callable[..., Any]:
    return lambda module, *rest: change(*rest) if isinstance(module, nn.Tanh) else None


GLOBAL_HOOKS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "forward pre-hook": (module_hooks.register_module_forward_pre_hook, lambda args: (args[0].logit(),)),
    "forward hook": (module_hooks.register_module_forward_hook, lambda args, y: y.logit()),
    "backward pre-hook": (module_hooks.register_module_full_backward_pre_hook, lambda slopes: (slopes[0].logit(),)),
    "backward hook": (module_hooks.register_module_full_backward_hook, lambda inner, outer: (inner[0].logit(),)),
}


def hooked(attach: Callable[[nn.Sequential], None]) -> Any:
    model = mlp()
    attach(model)
    model(torch.rand(2, 3, requires_grad=True)).sum().backward()
    return [tensor.nan_to_num() for tensor in gradients(model)]


def hooked_globally(kind: str) -> Any:
    register, change = GLOBAL_HOOKS[kind]
    handle = register(on_tanh(change))
    try:
        return hooked(lambda model: None)
    finally:
        handle.remove()


HOOKS = [
    (functools.partial(hooked, with_tensor_hook), "backward", "0"),
    (functools.partial(hooked, with_hook_on_a_leaf), "backward", "0"),
    (functools.partial(hooked, with_hook_after_accumulation), "backward", "0"),
    (functools.partial(hooked, with_node_hook), "backward", "1"),
    (functools.partial(hooked, with_node_prehook), "backward", "1"),
    (functools.partial(hooked, with_forward_pre_hook), "forward", "1"),
    (functools.partial(hooked, with_forward_hook), "forward", "1"),
    (functools.partial(hooked, with_backward_pre_hook), "backward", "1"),
    (functools.partial(hooked, with_backward_hook), "backward", "1"),
    *((functools.partial(hooked_globally, kind), kind.split()[0], "1") for kind in GLOBAL_HOOKS),
]
PROGRAMS += [row[0] for row in HOOKS]


@program
def state_dict_hooks() -> Any:
    model = mlp()

    def convert(name: str) -> Callable[..., None]:
        return lambda module, state, *rest: state.update({key: getattr(item, name)() for key, item in state.items()})

    model.register_state_dict_pre_hook(lambda module, prefix, keep: module[0].weight.detach().exp())
    model.register_state_dict_post_hook(convert("double"))
    model.register_load_state_dict_pre_hook(convert("float"))
    model.load_state_dict(model.state_dict())
    return model.state_dict()


# -- what holds for all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", PROGRAMS, ids=name_of)
def test_what_ran_is_recorded_and_each_backward_op_knows_its_forward_op(function: Program) -> None:
    graph, witness = recorded(function)
    ops = graph.where(kind="op")
    rank = {node: position for position, node in enumerate(ops)}
    for node, (_, back, _, _) in zip(ops, witness.rows, strict=True):
        if back is None:
            assert node.phase not in ("backward", "recompute") or node.operation == "aten.ones_like.default"
            continue
        assert node.phase in ("backward", "recompute"), f"{node.name} ran in {back[0]}"
        if node.phase == "recompute" or back[1] >= LEAF:
            continue
        assert node.sequence_nr == back[1]
        assert node.forward_node is not None, f"{node.name} of {back[0]} belongs to nothing"
        made_for = re.fullmatch(r"(.+)Backward\d+", back[0])
        if made_for is not None:  # else a Function, or a write to a view
            assert rank[node.forward_node] == taker(witness, back[1], made_for[1]), f"{node.name} of {back[0]}"


def taker(witness: Witness, number: int, name: str) -> int:
    """The op that took one of autograd's numbers: the first of that name since the number was given out."""
    return next(
        position
        for position, (operation, _, following, _) in enumerate(witness.rows)
        if following > number and plain(operation.split(".")[1]) == plain(name)
    )


# -- phases, scopes and links of some --------------------------------------------------------------------------------


def phases(graph: Graph) -> list[str]:
    """The phases in the order they followed each other."""
    found = [str(node.phase) for node in graph.where(kind="op")]
    return [phase for position, phase in enumerate(found) if not position or phase != found[position - 1]]


def operations(nodes: list[GraphNode]) -> list[str]:
    return [node.operation.split(".")[1] for node in nodes]


@pytest.mark.parametrize("function", [dual_tensors, func_jvp], ids=name_of)
def test_forward_mode_is_forward(function: Program) -> None:
    graph, _ = recorded(function)
    assert phases(graph) == ["forward"]
    (tangent,) = graph.where(operation="tanh_backward")  # what torch pushes tangents through tanh with
    assert tangent.scope.type == "Tanh"
    assert tangent.predecessors, "the tangent comes from what the layer before made"


def test_backward_ops_under_vmap_are_backward() -> None:
    graph, _ = recorded(func_vmap_of_grad)
    assert phases(graph) == ["forward", "backward"]
    assert operations(graph["tanh"].backward_nodes) == ["tanh_backward"]


def test_each_backward_of_one_graph_belongs_to_it() -> None:
    graph, _ = recorded(several_backwards_of_one_graph)
    assert operations(graph["1.tanh"].backward_nodes).count("tanh_backward") == 3
    assert operations(graph["2.addmm"].backward_nodes).count("mm") == 6
    assert {node.scope.path for node in graph["2.addmm"].backward_nodes} == {"2"}


def test_a_gradient_penalty_differentiates_the_first_backward() -> None:
    graph, _ = recorded(gradient_penalty)
    assert phases(graph) == ["forward", "backward", "forward", "backward"]
    first = next(node for node in graph.where(phase="backward") if node.operation == "aten.tanh_backward.default")
    assert first.forward_node == graph["1.tanh"]
    assert first.backward_nodes, "it was differentiated itself"
    assert {node.scope.path for node in first.backward_nodes} == {"1"}


def test_only_what_chosen_inputs_need_gets_a_gradient() -> None:
    model = mlp()
    with atlas.recording(model) as rec:
        model(torch.randn(2, 3)).sum().backward(inputs=[model[0].weight])
    assert {value.parameter for value in rec.graph.values if value.role == "gradient"} == {"0.weight"}


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        (function_that_is_differentiable_once, "mul", ["mul", "add"]),
        (function_that_writes_its_input, "mul_", ["mul"]),
        (function_with_a_made_vmap_rule, "mul", ["mul"]),
        (function_with_a_context_of_its_own, "pow", ["zeros", "mul", "mul", "zeros", "mul", "mul"]),
        (hooks_on_what_is_saved_beside_a_function, "mul", ["mul"]),
    ],
    ids=name_of,
)
def test_a_functions_backward_belongs_to_its_forward(function: Program, forward: str, backward: list[str]) -> None:
    graph, witness = recorded(function)
    found = [
        node
        for node, (_, back, _, _) in zip(graph.where(kind="op"), witness.rows, strict=True)
        if back is not None and re.fullmatch(r"(Cube|Scaled|Once|InPlace)(Generated)?Backward", back[0])
    ]
    assert operations(found) == backward
    assert {operation for node in found for operation in operations([node.forward_node])} == {forward}


def test_what_runs_without_gradients_takes_no_number() -> None:
    graph, _ = recorded(gradient_modes)
    tanh = graph.where(operation="tanh")
    assert [node.sequence_nr is None for node in tanh] == [True, True, True, False]
    assert [bool(node.backward_nodes) for node in tanh] == [False, False, False, True]


def test_ops_of_hooks_on_saved_tensors_leave_the_number_to_the_op_that_saves() -> None:
    graph, _ = recorded(hooks_on_what_is_saved)
    assert {node.sequence_nr for node in graph.where(operation="_to_copy", phase="forward")} == {None}
    for name in ("0.addmm", "2.addmm"):
        assert {"mm", "sum", "_to_copy"} <= set(operations(graph[name].backward_nodes))  # unpacking is its backward's


@pytest.mark.parametrize("function", [*NESTED_CHECKPOINTS, *SEQUENCES, *SELECTIVE.values()], ids=name_of)
def test_what_a_checkpoint_runs_again_is_recompute(function: Program) -> None:
    graph, witness = recorded(function)
    ops = graph.where(kind="op")
    for node, (name, back, _, inside) in zip(ops, witness.rows, strict=True):
        if "detach" in name:  # autograd's own, around the function that runs again
            continue
        again = inside and back is not None
        assert (node.phase == "recompute") == again, node.name
        if again and name in ("aten.addmm.default", "aten.t.default"):
            assert node.scope.type == "Linear"
            assert node.call_index > 0
    products = [node for node in graph.where(phase="backward") if node.operation == "aten.mm.default"]
    assert products
    for node in products:
        assert node.forward_node is not None
        assert node.forward_node.operation == "aten.addmm.default"
        assert node.forward_node.phase in ("forward", "recompute")


@pytest.mark.parametrize("saved", SELECTIVE)
def test_a_selective_checkpoint_does_not_compute_again_what_it_saved(saved: str) -> None:
    graph, _ = recorded(SELECTIVE[saved])
    again = operations(graph.where(phase="recompute"))
    assert saved not in again
    assert {"addmm", "tanh"} - {saved} <= set(again)


@pytest.mark.parametrize(("function", "phase", "scope"), HOOKS, ids=name_of)
def test_what_a_hook_does_belongs_to_its_moment_and_module(function: Program, phase: str, scope: str) -> None:
    graph, _ = recorded(function)
    found = [node for node in graph.where(kind="op") if node.operation.startswith("aten.logit")]
    found = [node for node in found if "backward" not in node.operation]
    assert [(str(node.phase), node.scope.path) for node in found] == [(phase, scope)]


def test_what_state_dict_hooks_do_belongs_to_no_module() -> None:
    graph, _ = recorded(state_dict_hooks)
    assert phases(graph) == ["forward"]
    assert {node.scope.path for node in graph.where(operation="_to_copy")} == {""}
    assert {node.scope.path for node in graph.where(operation="exp")} == {""}
