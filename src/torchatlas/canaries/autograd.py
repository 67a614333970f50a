"""Canaries for the nodes of autograd, the engine that runs them, and the transforms of torch.func."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchatlas import torch_private
from torchatlas.canaries.canary_registry import CANARIES, refusal
from torchatlas.canaries.dispatch import Names


@CANARIES.add("current_autograd_node")
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


@CANARIES.add("next_sequence_nr")
def sequence_numbers() -> None:
    x = torch.ones(2, requires_grad=True)
    with Names() as mode:
        y = x.sin()
    (_, _, number), *_ = mode.seen
    assert y.grad_fn is not None
    assert y.grad_fn._sequence_nr() == number - 1


@CANARIES.add("restore_saved_tensor_hooks", "saved_tensor_hooks_forbidden")
def forbidden_hooks() -> None:
    """Saved-tensor hooks are forbidden, and allowed again, for the whole thread."""
    before = torch_private.saved_tensor_hooks_forbidden()
    torch_private.restore_saved_tensor_hooks("not here")
    assert torch_private.saved_tensor_hooks_forbidden() == "not here"
    torch_private.restore_saved_tensor_hooks(before)
    assert torch_private.saved_tensor_hooks_forbidden() == before


@CANARIES.add("saved_tensors_hooked")
def hooks_on_saved_tensors() -> None:
    assert not torch_private.saved_tensors_hooked()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        assert torch_private.saved_tensors_hooked()
    assert not torch_private.saved_tensors_hooked()


@CANARIES.add("functorch_depth", "undo_functorch")
def interrupted_transforms() -> None:
    """A transform that was interrupted while it ran is taken off again."""
    functorch: Any = torch._C._functorch
    before = torch_private.functorch_depth()
    functorch._vmap_increment_nesting(2, "error")
    functorch._grad_increment_nesting()
    functorch._jvp_increment_nesting()
    functorch._func_increment_nesting(True)
    assert torch_private.functorch_depth() == before + 4
    torch_private.undo_functorch(before)
    assert torch_private.functorch_depth() == before
    assert torch.rand(2).shape == (2,)


@CANARIES.add("FunctionNode", "make_grads", "run_engine")
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
    gradients = (ones[1], ones[1])
    raised = False
    try:
        torch_private.run_engine(roots, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)
    except KeyboardInterrupt:
        raised = True
    assert raised
    assert ran == ["sin, first", "sin", "doubled"]
    assert x.grad is None
    saving: Any = y.grad_fn
    assert "second time" in refusal(lambda: saving._saved_self), "what it saved is gone"
    assert saving._input_metadata[0].shape == [2]
    assert saving._input_metadata[0].is_nested_tensor is False


@CANARIES.add("engine_runs")
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


@CANARIES.add("will_be_executed")
def executed_nodes() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    left, right = x.sin(), w.cos()
    loss = (left * right).sum()
    executed: list[bool] = []
    assert loss.grad_fn is not None
    loss.grad_fn.register_prehook(
        lambda _: executed.extend(torch_private.will_be_executed(t.grad_fn) for t in (left, right))
    )
    loss.backward(inputs=[x])
    assert executed == [True, False]


@CANARIES.add("engine_run_id", "hang_hooks")
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


@CANARIES.add("in_transform", "is_batched", "no_transforms", "unwrapped")
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


@CANARIES.add(
    "engine_has_threads", "function_mode_stack", "pop_function_mode", "push_function_mode", "top_saved_tensor_hooks"
)
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


class Applied(torch.autograd.Function):
    """Notes the functions that applied it."""

    callers: list[tuple[str, ...]] = []  # noqa: RUF012  # one for the class

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        applying = torch_private.applying_frames(sys._getframe())
        Applied.callers.append(tuple(frame.f_code.co_name for frame in applying if frame is not None))
        return x * 2


class AppliedWithin(Applied):
    """Calls the forward that it inherits, and applies it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Applied.forward(ctx, x)

        def inside() -> torch.Tensor:
            result: torch.Tensor = Applied.apply(x)
            return result

        return inside()


@CANARIES.add("applying_frames")
def who_applies() -> None:
    Applied.callers.clear()
    AppliedWithin.apply(torch.ones(2, requires_grad=True))
    assert Applied.callers == [("who_applies",), ("inside", "who_applies")]
    assert list(torch_private.applying_frames(sys._getframe())) == []


@CANARIES.add("unpack_saved")
def unpacked() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 1
    node: Any = y.sin().grad_fn
    saved = torch_private.unpack_saved(node._raw_saved_self, node, "self")
    assert saved is not None
    assert saved.tolist() == [1.0, 1.0]
    y.add_(1)
    message = refusal(lambda: torch_private.unpack_saved(node._raw_saved_self, node, "self"))
    assert "is at version 1; expected version 0" in message
