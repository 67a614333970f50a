"""Optimizers of every kind and what people do around a step: its ops, phases, scopes, and the roles of its tensors.

A program makes everything it needs and returns what must stay alive and what it computed. Which ops belong to a step is
known independently: hooks on the optimizer itself set a flag, which a dispatch mode notes beside the name of each op.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchatlas as atlas
from torchatlas.graph import Graph, GraphNode

stepping = False


class Witness(TorchDispatchMode):
    """Per op: its name, and whether it ran in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not str(func).startswith("profiler."):
            self.rows.append((str(func), stepping))
        return func(*args, **(kwargs or {}))


def flag(value: bool) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        global stepping
        stepping = value

    return hook


def watched(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let the flag be set while the optimizer steps."""
    optimizer.register_step_pre_hook(flag(True))
    optimizer.register_step_post_hook(flag(False))
    return optimizer


def outside_of_the_step(closure: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        before = stepping
        flag(False)()
        result = closure()
        flag(before)()
        return result

    return run


Program = Callable[[], tuple[Any, Any]]


def run(program: Program, *modes: Any) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        kept, found = program()
    return kept, [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(found)]


def recorded(program: Program) -> tuple[Graph, Any]:
    """The graph of a program and what it kept, after the recording was found to change nothing and miss nothing."""
    alone, below, recording = Witness(), Witness(), atlas.recording()
    _, eager = run(program)
    _, seen = run(program, alone)
    kept, found = run(program, below, recording)
    for other in (seen, found):
        assert len(other) == len(eager)
        for mine, theirs in zip(other, eager, strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs
    graph = recording.graph
    ops = graph.where(kind="op")
    assert [node.operation for node in ops] == [name for name, _ in below.rows] == [name for name, _ in alone.rows]
    assert [node.phase == "optimizer" for node in ops] == [in_step for _, in_step in below.rows]
    return graph, kept


def mlp(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias))


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.randn(4, 3)).square().mean()


def weights(model: nn.Module) -> list[Tensor]:
    return list(model.parameters())


def phases(graph: Graph) -> list[str]:
    """The phases in the order they followed each other."""
    found = [str(node.phase) for node in graph.where(kind="op")]
    return [phase for position, phase in enumerate(found) if not position or phase != found[position - 1]]


def operations(nodes: list[GraphNode]) -> list[str]:
    return [node.operation.split(".")[1] for node in nodes]


def names_with_role(graph: Graph, role: str) -> set[str | None]:
    return {value.parameter for value in graph.values if value.role == role}


# -- every optimizer of torch ----------------------------------------------------------------------------------------


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every optimizer with every way to run on a CPU."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name, kind in sorted(vars(torch.optim).items()):
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            arguments = inspect.signature(kind).parameters
            ways = [{"foreach": False}, {"foreach": True}] if "foreach" in arguments else [{}]
            ways += [{"fused": True}] if "fused" in arguments else []
            more = {key: value for key, value in (("momentum", 0.9), ("max_iter", 3)) if key in arguments}
            found += [(name, {**more, **way}) for way in ways]
    return found


def trained(kind: str, options: dict[str, Any]) -> tuple[Any, Any]:
    sparse = kind == "SparseAdam"
    model = nn.Embedding(5, 3, sparse=True) if sparse else mlp(bias=kind != "Muon")  # Muon is for matrices only
    optimizer = watched(getattr(torch.optim, kind)(model.parameters(), **options))
    x = torch.tensor([1, 2, 1]) if sparse else torch.randn(4, 3)

    @outside_of_the_step
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        if kind == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return (model, optimizer), weights(model)


def storages_of(tree: Any) -> dict[int, int]:
    """The distinct storages of the tensors in a structure, and their sizes."""
    found = [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {storage._cdata: storage.nbytes() for storage in found}


@pytest.mark.parametrize(("kind", "options"), variants(), ids=str)
def test_every_optimizer(kind: str, options: dict[str, Any]) -> None:
    graph, (model, optimizer) = recorded(functools.partial(trained, kind, options))
    assert {node.scope.path for node in graph.where(phase="optimizer")} == {kind}
    assert graph.scopes[kind].kind == "optimizer"
    alive = [storage.bytes for storage in graph.storages if storage.role == "optimizer state" and storage.died is None]
    states = storages_of(list(optimizer.state.values()))
    assert sorted(alive) == sorted(states.values())
    names = {name for name, _ in model.named_parameters()}
    assert names_with_role(graph, "parameter") == names
    assert names_with_role(graph, "gradient") >= names
    of = {name for name, parameter in model.named_parameters() if storages_of(optimizer.state.get(parameter, {}))}
    assert names_with_role(graph, "optimizer state") == of
    assert len({node.iteration for node in graph.where(phase="optimizer")}) == 2


@pytest.mark.parametrize(("kind", "options"), [("SGD", {}), ("Adam", {}), ("LBFGS", {"max_iter": 3})], ids=str)
def test_a_closures_forward_and_backward_are_its_own(kind: str, options: dict[str, Any]) -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        optimizer = watched(getattr(torch.optim, kind)(model.parameters(), **options))

        @outside_of_the_step
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        return (model, optimizer), [optimizer.step(closure=closure), weights(model)]

    graph, _ = recorded(program)
    assert {str(node.phase) for node in graph.where(operation="tanh")} == {"forward"}
    assert {str(node.phase) for node in graph.where(operation="tanh_backward")} == {"backward"}
    assert {node.scope.path for node in graph.where(operation="tanh")} == {"1"}
    for node in graph.where(operation="tanh_backward"):
        assert node.forward_node is not None
        assert node.forward_node.operation == "aten.tanh.default"


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_step_that_is_differentiated(kind: str) -> None:
    def program() -> tuple[Any, Any]:
        start = torch.randn(3, requires_grad=True)
        weight = start.clone()
        optimizer = watched(getattr(torch.optim, kind)([weight], lr=0.1, differentiable=True, foreach=False))
        (weight.grad,) = torch.autograd.grad(start.pow(3).sum(), start, create_graph=True)
        optimizer.step()
        weight.exp().sum().backward()
        return optimizer, start.grad

    graph, _ = recorded(program)
    through = [node for node in graph.where(phase="backward") if node.forward_node is not None]
    assert {"forward", "optimizer", "backward"} == {str(node.forward_node.phase) for node in through}


# -- several optimizers, groups, schedules ---------------------------------------------------------------------------


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda optimizer: schedulers.StepLR(optimizer, 1),
    "MultiStepLR": lambda optimizer: schedulers.MultiStepLR(optimizer, [1, 2]),
    "LambdaLR": lambda optimizer: schedulers.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
    "MultiplicativeLR": lambda optimizer: schedulers.MultiplicativeLR(optimizer, lambda epoch: 0.5),
    "ConstantLR": lambda optimizer: schedulers.ConstantLR(optimizer, total_iters=2),
    "LinearLR": lambda optimizer: schedulers.LinearLR(optimizer, total_iters=2),
    "PolynomialLR": lambda optimizer: schedulers.PolynomialLR(optimizer, total_iters=4),
    "ExponentialLR": lambda optimizer: schedulers.ExponentialLR(optimizer, 0.5),
    "CosineAnnealingLR": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 3),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedulers.CosineAnnealingWarmRestarts(optimizer, 2),
    "OneCycleLR": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, total_steps=10),
    "CyclicLR": lambda optimizer: schedulers.CyclicLR(optimizer, 0.01, 0.1),
    "ReduceLROnPlateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=0),
    "SWALR": lambda optimizer: SWALR(optimizer, 0.05),
    "ChainedScheduler": lambda optimizer: schedulers.ChainedScheduler([schedulers.ConstantLR(optimizer)]),
    "SequentialLR": lambda optimizer: schedulers.SequentialLR(
        optimizer, [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.5)], [1]
    ),
}


@pytest.mark.parametrize("tensor_rate", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str, tensor_rate: bool) -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        rates = [torch.tensor(rate) if tensor_rate else rate for rate in (0.1, 0.2)]
        groups = [{"params": model[i].parameters(), "lr": rate} for i, rate in zip((0, 2), rates, strict=True)]
        optimizer = watched(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
        scheduler = SCHEDULES[schedule](optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            scheduler.step(*([loss.item()] if schedule == "ReduceLROnPlateau" else []))
        return (model, optimizer), [weights(model), [float(group["lr"]) for group in optimizer.param_groups]]

    graph, _ = recorded(program)
    assert {node.scope.path for node in graph.where(phase="optimizer")} == {"SGD"}
    assert [node.iteration for node in graph.where(operation="tanh")] == [0, 1, 2]


def test_several_optimizers_in_one_step() -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        first = watched(torch.optim.SGD(model[0].parameters(), lr=0.1))
        second = watched(torch.optim.Adam([model[2].weight]))
        third = watched(torch.optim.Adam([model[2].bias]))
        for _ in range(2):
            loss_of(model).backward()
            for optimizer in (first, second, third):
                optimizer.step()
                optimizer.zero_grad()
        return (model, first, second, third), weights(model)

    graph, _ = recorded(program)
    writers = {node: graph_writes(node) for node in graph.where(phase="optimizer")}
    for scope, names in (("SGD", {"0.weight", "0.bias"}), ("Adam", {"2.weight"}), ("Adam_1", {"2.bias"})):
        assert set().union(*(found for node, found in writers.items() if node.scope.path == scope)) == names
    assert [node.iteration for node in graph.where(operation="tanh")] == [0, 1]


def graph_writes(node: GraphNode) -> set[str | None]:
    """The parameters a node writes."""
    written = [node.inputs[position] for position in node.writes]
    return {value.parameter for value in written if value.role == "parameter"}


# -- between backward and step ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_], ids=lambda f: f.__name__)
def test_clipping_is_neither_backward_nor_the_step(clip: Any, foreach: bool) -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        optimizer = watched(torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model).backward()
        clip(model.parameters(), 0.01, foreach=foreach)
        optimizer.step()
        return (model, optimizer), [weights(model), [parameter.grad for parameter in model.parameters()]]

    graph, _ = recorded(program)
    assert phases(graph) == ["forward", "backward", "other", "optimizer"]
    written = {node.inputs[i].parameter for node in graph.where(phase="other") for i in node.writes}
    assert written == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("kind", ["SGD", "Adam, fused"])
def test_scaled_gradients_and_a_step_skipped_for_infinities(kind: str) -> None:
    def program() -> tuple[Any, Any]:
        model, fused = mlp(), kind != "SGD"
        optimizer = watched(
            torch.optim.Adam(model.parameters(), fused=True) if fused else torch.optim.SGD(weights(model))
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for turn in range(3):
            optimizer.zero_grad()
            loss = loss_of(model) * (float("inf") if turn == 1 else 1)
            scaler.scale(loss).backward()
            if not fused:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return (model, optimizer), [weights(model), scaler.get_scale()]

    graph, _ = recorded(program)
    assert {str(node.phase) for node in graph.where(operation="_amp_update_scale_")} == {"other"}
    unscaled = graph.where(operation="_amp_foreach_non_finite_check_and_unscale_")
    assert [str(node.phase) for node in unscaled] == ["other"] * 3
    steps = len({node.iteration for node in graph.where(phase="optimizer")})
    assert steps == (2 if kind == "SGD" else 3)  # a fused step is told to do nothing; the other is not taken


@pytest.mark.parametrize("average", ["ema", "swa", "by hand"])
def test_averages_are_not_the_optimizers_work(average: str) -> None:
    def program() -> tuple[Any, Any]:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        optimizer = watched(torch.optim.SGD(model.parameters(), lr=0.1))
        mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if average == "ema" else None)
        copies = [parameter.detach().clone() for parameter in model.parameters()]
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            if average == "by hand":
                with torch.no_grad():
                    for copy, parameter in zip(copies, model.parameters(), strict=True):
                        copy.lerp_(parameter, 0.1)
            else:
                mean.update_parameters(model)
        if average == "swa":
            update_bn([torch.randn(4, 3) for _ in range(2)], mean)
        return (model, optimizer, mean), [weights(mean), list(mean.buffers()), copies]

    graph, _ = recorded(program)
    averaging = {"ema": "_foreach_lerp_", "swa": "sub", "by hand": "lerp_"}[average]
    found = [node for node in graph.where(kind="op") if operations([node]) == [averaging]]
    assert found
    assert {str(node.phase) for node in found} == {"other"}
    if average == "swa":
        norms = graph.where(operation="native_batch_norm")[-2:]
        assert [(str(node.phase), node.scope.path) for node in norms] == [("forward", "AveragedModel.module.1")] * 2


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_dropped_or_zeroed(to_none: bool) -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        optimizer = watched(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(model).backward()
            optimizer.step()
        return (model, optimizer), weights(model)

    graph, _ = recorded(program)
    zeroing = [node for node in graph.where(kind="op") if "zero_" in operations([node])[0]]
    assert {str(node.phase) for node in zeroing} == (set() if to_none else {"other"})
    storages = {value.storage for value in graph.values if value.role == "gradient" and value.parameter == "0.weight"}
    assert len(storages) == (3 if to_none else 1)


def test_accumulated_gradients_are_written_in_place() -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        optimizer = watched(torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in range(4):
            (loss_of(model) / 2).backward()
            if batch % 2:
                optimizer.step()
                optimizer.zero_grad()
        return (model, optimizer), weights(model)

    graph, _ = recorded(program)
    sums = [node for node in graph.where(phase="backward") if operations([node]) == ["add_"]]
    assert sorted(node.inputs[0].parameter for node in sums) == sorted(["0.weight", "0.bias", "2.weight", "2.bias"] * 2)
    assert {str(node.inputs[0].role) for node in sums} == {"gradient"}
    assert [node.iteration for node in graph.where(operation="tanh")] == [0, 0, 1, 1]


# -- optimizers people write -----------------------------------------------------------------------------------------


class Remembers(torch.optim.Optimizer):
    """Keeps lists of tensors, and something that belongs to no parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["count"] = self.state.get("count", 0) + 1
        for group in self.param_groups:
            for parameter in group["params"]:
                history = self.state[parameter].setdefault("history", [])
                history.append(parameter.grad.clone())
                parameter.sub_(torch.stack(history).mean(0))


def test_an_optimizer_of_ones_own() -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        optimizer = watched(Remembers(model.parameters()))
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        return (model, optimizer), weights(model)

    graph, (_, optimizer) = recorded(program)
    assert {node.scope.path for node in graph.where(phase="optimizer")} == {"Remembers"}
    states = [storage.bytes for storage in graph.storages if storage.role == "optimizer state"]
    assert sorted(states) == sorted(storages_of(list(optimizer.state.values())).values())
    assert names_with_role(graph, "optimizer state") == {"0.weight", "0.bias", "2.weight", "2.bias"}
    lines = {node.source.text for node in graph.where(phase="optimizer")}
    assert lines == {"history.append(parameter.grad.clone())", "parameter.sub_(torch.stack(history).mean(0))"}


class Plain:
    """No torch.optim.Optimizer at all."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            parameter -= 0.1 * parameter.grad


def test_a_plain_class_with_a_step_is_other() -> None:
    def program() -> tuple[Any, Any]:
        model = mlp()
        loss_of(model).backward()
        Plain(model.parameters()).step()
        return model, weights(model)

    graph, _ = recorded(program)
    assert phases(graph) == ["forward", "backward", "other"]


class LooksAhead(torch.optim.Optimizer):
    """Steps with another optimizer inside its own step."""

    def __init__(self, parameters: Any, inner: torch.optim.Optimizer) -> None:
        super().__init__(parameters, {})
        self.inner = inner

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        before = [parameter.clone() for parameter in parameters]
        self.inner.step()
        for parameter, old in zip(parameters, before, strict=True):
            parameter.lerp_(old, 0.5)


def test_a_step_in_a_step() -> None:
    model = mlp()
    optimizer = LooksAhead(weights(model), torch.optim.SGD(weights(model), lr=0.1))
    with atlas.recording(model) as rec:
        loss_of(model).backward()
        optimizer.step()
        torch.ones(1).exp()
    places = [(*operations([node]), node.scope.path) for node in rec.graph.where(phase="optimizer")]
    assert places == [("clone", "LooksAhead")] * 4 + [("add_", "SGD")] * 4 + [("lerp_", "LooksAhead")] * 4
    assert rec.graph["exp"].scope.path == ""


def test_a_step_inside_a_module() -> None:
    class Learns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.1)

        def forward(self, x: Tensor) -> Tensor:
            self.inner(x).sum().backward()
            self.optimizer.step()
            return self.inner(x).exp()

    model = Learns()
    with atlas.recording(model) as rec:
        model(torch.randn(2, 3))
    assert {node.scope.path for node in rec.graph.where(phase="optimizer")} == {"SGD"}
    assert (rec.graph["exp"].scope.type, str(rec.graph["exp"].phase)) == ("Learns", "forward")
    assert [node.scope.path for node in rec.graph.where(operation="addmm")] == ["inner", "inner"]


class NeedsGradients(torch.optim.Optimizer):
    """Differentiates in its step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        parameters = self.param_groups[0]["params"]
        slopes = [parameter.grad for parameter in parameters]
        curves = torch.autograd.grad(slopes, parameters, [torch.ones_like(slope) for slope in slopes])
        with torch.no_grad():
            for parameter, curve in zip(parameters, curves, strict=True):
                parameter.sub_(curve.sign())


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
def test_a_backward_in_a_step_is_backward() -> None:
    model = mlp()
    with atlas.recording(model) as rec:
        loss_of(model).backward(create_graph=True)
        NeedsGradients(model.parameters()).step()
    assert phases(rec.graph) == ["forward", "backward", "optimizer", "backward", "optimizer"]
    model.zero_grad()  # create_graph leaves a cycle through the gradients


# -- steps that fail -------------------------------------------------------------------------------------------------


class Fails(torch.optim.Optimizer):
    """Raises in the middle of its first step, in the way it was told to."""

    def __init__(self, parameters: Any, how: str, inner: torch.optim.Optimizer | None = None) -> None:
        super().__init__(parameters, {})
        self.how, self.inner, self.steps = how, inner, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        parameter = self.param_groups[0]["params"][0]
        parameter.mul_(1.0)
        if self.steps == 1:
            if self.how == "python":
                raise ValueError("not yet")
            if self.how == "an op":
                parameter @ torch.ones(17, 17)
            if self.how == "the closure":
                closure()
            if self.how == "within":
                self.inner.step()
            if self.how == "handled":
                with contextlib.suppress(RuntimeError):
                    parameter @ torch.ones(17, 17)
            parameter.div_(1.0)
        parameter.add_(1.0)


def failing(model: nn.Module, how: str) -> torch.optim.Optimizer:
    inner = Fails(model.parameters(), "python") if how == "within" else None
    return Fails(model.parameters(), how, inner)


def raises() -> None:
    raise ValueError("not yet")


@pytest.mark.parametrize("how", ["python", "an op", "the closure", "within"])
def test_after_a_step_that_raised_nothing_is_the_optimizers(how: str) -> None:
    model = mlp()
    optimizer = failing(model, how)
    with atlas.recording(model) as rec:
        with pytest.raises((ValueError, RuntimeError)):
            optimizer.step(raises)
        torch.ones(1).exp()
        loss_of(model).backward()
        optimizer.step()
        torch.ones(1).log()
    graph = rec.graph
    for name in ("exp", "log"):
        assert (str(graph[name].phase), graph[name].scope.path) == ("forward", "")
    assert str(graph["1.tanh"].phase) == "forward"
    assert graph.where(kind="output"), "the model's call was still the outermost"
    steps = [node for node in graph.where(phase="optimizer") if node.operation.startswith(("aten.mul_", "aten.add_"))]
    assert operations(steps)[-2:] == ["mul_", "add_"]
    assert {node.scope.path for node in steps} <= {"Fails", "Fails_1"}


def test_an_error_the_optimizer_handles_itself_does_not_end_its_step() -> None:
    model = mlp()
    with atlas.recording(model) as rec:
        failing(model, "handled").step()
    assert operations(rec.graph.where(phase="optimizer")) == ["mul_", "ones", "div_", "add_"]


def test_a_step_of_torchs_own_that_raised() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)  # for accelerators only
    with atlas.recording(model) as rec:
        loss_of(model).backward()
        with pytest.raises(AssertionError, match="capturable"):
            optimizer.step()
        torch.ones(1).exp()
    assert (str(rec.graph["exp"].phase), rec.graph["exp"].scope.path) == ("forward", "")
    assert "torch.ones(1).exp()" in rec.graph["exp"].source.text


def test_a_step_that_raised_in_another_thread() -> None:
    model = mlp()
    optimizer = failing(model, "python")

    def work() -> None:
        with contextlib.suppress(ValueError):
            optimizer.step()
        torch.ones(1).exp()

    with atlas.recording(model) as rec:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=60)
    assert (str(rec.graph["exp"].phase), rec.graph["exp"].scope.path) == ("forward", "")


def test_marks_of_the_program_do_not_end_a_step() -> None:
    class Marks(Fails):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            with torch.autograd.profiler.record_function("mine"):
                super().step()
            self.param_groups[0]["params"][0].neg_()

    model = mlp()
    with atlas.recording(model) as rec, torch.autograd.profiler.record_function("all"):
        with torch.autograd.profiler.record_function("first"), contextlib.suppress(ValueError):
            Marks(model.parameters(), "python").step()
        torch.ones(1).exp()
        Marks(model.parameters(), "").step()
    assert operations(rec.graph.where(phase="optimizer")) == ["mul_", "mul_", "div_", "add_", "neg_"]


# -- a step in the middle of backward --------------------------------------------------------------------------------


def stepped_in_backward(kind: str) -> tuple[Any, Any]:
    model = mlp()
    optimizers = {parameter: watched(getattr(torch.optim, kind)([parameter])) for parameter in model.parameters()}

    def hook(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(2):
        loss_of(model).backward()
    return (model, optimizers), weights(model)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_an_optimizer_in_backward(kind: str) -> None:
    graph, _ = recorded(functools.partial(stepped_in_backward, kind))
    steps = graph.where(phase="optimizer")
    assert {node.scope.path for node in steps} == {kind, *(f"{kind}_{i}" for i in (1, 2, 3))}
    assert {node.source.text for node in steps} == {"optimizers[parameter].step()"}
    assert set().union(*map(graph_writes, steps)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(node.forward_node is None and node.sequence_nr is None for node in steps)
    assert [node.iteration for node in graph.where(operation="tanh")] == [0, 1]
    assert [node.iteration for node in graph.where(operation="tanh_backward")] == [0, 1]
    if kind == "Adam":
        assert names_with_role(graph, "optimizer state") == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_step_that_raised_in_backward() -> None:
    model = mlp()
    optimizer = failing(model, "python")

    def hook(gradient: Tensor) -> Tensor:
        with contextlib.suppress(ValueError):
            optimizer.step()
        return gradient.exp()

    with atlas.recording(model) as rec:
        y = model(torch.randn(2, 3))
        y.register_hook(hook)
        y.sum().backward()
    exp = rec.graph.where(operation="exp")[0]
    assert (str(exp.phase), exp.scope.path) == ("backward", "2")
    assert operations(rec.graph.where(phase="optimizer")) == ["mul_"]


def test_the_groups_of_an_optimizer_with_several_are_known_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[1].parameters()), "lr": 0.2}]
    graph = atlas.capture(model, torch.ones(2, 2), optimizer=torch.optim.SGD(groups, lr=0.1))
    assert graph.metadata["parameter_groups"] == {"SGD": [["0.weight", "0.bias"], ["1.weight", "1.bias"]]}
    only = atlas.capture(model, torch.ones(2, 2), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert "parameter_groups" not in only.metadata
