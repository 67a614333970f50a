"""When a node ran: forward, backward, recompute, optimizer or other, and in which iteration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.graph import Graph


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def phases(graph: Graph) -> list[str]:
    """The phases in the order they followed each other."""
    found = [str(node.phase) for node in graph.where(kind="op")]
    return [phase for position, phase in enumerate(found) if not position or phase != found[position - 1]]


def operations(graph: Graph, phase: str) -> set[str]:
    return {node.operation.split(".")[1] for node in graph.where(kind="op", phase=phase)}


def step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(2, 3)).square().mean().backward()
    optimizer.step()


# -- phases ----------------------------------------------------------------------------------------------------------


def test_a_training_step() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        step(model, optimizer)
    assert phases(rec.graph) == ["forward", "backward", "optimizer"]
    assert operations(rec.graph, "optimizer") == {"add_"}
    assert "tanh" in operations(rec.graph, "forward")
    assert {"tanh_backward", "ones_like"} <= operations(rec.graph, "backward")


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "Adagrad"])
def test_all_an_optimizer_does_is_its_own(kind: str) -> None:
    model = mlp()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        step(model, optimizer)
    assert phases(rec.graph) == ["forward", "backward", "optimizer"]
    assert {node.scope.path for node in rec.graph.where(phase="optimizer")} == {kind}
    assert rec.graph.scopes[kind].kind == "optimizer"


def test_clipping_gradients_is_other() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        model(torch.randn(2, 3)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert phases(rec.graph) == ["forward", "backward", "other", "optimizer"]
    assert "linalg_vector_norm" in operations(rec.graph, "other") or "_foreach_norm" in operations(rec.graph, "other")


def test_clipping_gradients_by_hand_is_other() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        model(torch.randn(2, 3)).sum().backward()
        for parameter in model.parameters():
            parameter.grad.clamp_(-1, 1)
        optimizer.step()
    assert phases(rec.graph) == ["forward", "backward", "other", "optimizer"]


def test_averaging_weights_is_other() -> None:
    model = mlp()
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average.update_parameters(model)  # the first update copies
    with atlas.recording(model) as rec:
        step(model, optimizer)
        average.update_parameters(model)
    assert "_foreach_lerp_" in operations(rec.graph, "other")
    assert "_foreach_lerp_" not in operations(rec.graph, "forward")


def test_averaging_weights_by_hand_is_other() -> None:
    model = mlp()
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        step(model, optimizer)
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
    assert phases(rec.graph) == ["forward", "backward", "optimizer", "other"]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.block, self.reentrant = nn.Linear(3, 3), mlp(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_computes_again(reentrant: bool) -> None:
    graph = atlas.capture(Checkpointed(reentrant), torch.randn(2, 3), backward=True)
    repeated = [node for node in graph.where(phase="recompute") if "detach" not in node.operation]
    again = Counter(node.operation for node in repeated)
    before = Counter(node.operation for node in graph.where(phase="forward", scope="block") if node.kind == "op")
    assert again == before or (not reentrant and again <= before)  # the other kind stops when it has what it needs
    assert again["aten.tanh.default"] == 1
    assert {node.scope.path for node in repeated} == {"block.0", "block.1", "block.2"}
    assert {node.call_index for node in repeated} == {1}
    assert operations(graph, "backward") >= {"tanh_backward", "mm"}
    assert "tanh" not in operations(graph, "backward")


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_without_gradient_is_recompute(reentrant: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.exp().mean()
        return (x * scale).tanh()

    x = torch.randn(2, 3, requires_grad=True)
    with atlas.recording() as rec:
        checkpoint(function, x, use_reentrant=reentrant).sum().backward()
    assert [str(node.phase) for node in rec.graph.where(operation="exp")] == ["forward", "recompute"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_checkpointed_as_a_whole_has_one_output(reentrant: bool) -> None:
    model = mlp()
    with atlas.recording(model) as rec:
        checkpoint(model, torch.randn(2, 3, requires_grad=True), use_reentrant=reentrant).sum().backward()
    assert len(rec.graph.where(kind="output")) == 1


def test_a_closure_is_not_the_optimizers_work() -> None:
    model, x = mlp(), torch.randn(2, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with atlas.recording(model) as rec:
        optimizer.step(closure)
    tanh = rec.graph.where(operation="tanh")
    assert len(tanh) >= 2  # LBFGS calls it again
    assert {str(node.phase) for node in tanh} == {"forward"}
    assert {str(node.phase) for node in rec.graph.where(operation="tanh_backward")} == {"backward"}
    assert {node.scope.path for node in rec.graph.where(phase="optimizer")} == {"LBFGS"}
    assert len(rec.graph.where(phase="optimizer")) > 10


def test_double_backward_is_backward() -> None:
    model, x = mlp(), torch.randn(2, 3, requires_grad=True)
    with atlas.recording(model) as rec:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (gradient.norm() - 1).square()
        penalty.backward()
    assert phases(rec.graph) == ["forward", "backward", "forward", "backward"]
    assert rec.graph["linalg_vector_norm"].phase == "forward"


def test_evaluation_is_forward() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        step(model, optimizer)
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 3))
    assert str(rec.graph.where(operation="tanh")[-1].phase) == "forward"
    with atlas.recording(model) as alone, torch.no_grad():
        model(torch.randn(2, 3)).sum()
    assert phases(alone.graph) == ["forward"]


def test_two_optimizers_in_turn() -> None:
    generator, judge = mlp(), nn.Linear(1, 1)
    optimizers = torch.optim.SGD(generator.parameters(), lr=0.1), torch.optim.Adam(judge.parameters(), lr=0.1)
    with atlas.recording() as rec:
        judge(generator(torch.randn(2, 3)).detach()).sum().backward()
        optimizers[1].step()
        judge(generator(torch.randn(2, 3))).sum().backward()
        optimizers[0].step()
    assert phases(rec.graph) == ["forward", "backward", "optimizer", "forward", "backward", "optimizer"]
    assert [scope.path for scope in rec.graph.scopes.values() if scope.kind == "optimizer"] == ["Adam", "SGD"]


# -- iterations ------------------------------------------------------------------------------------------------------


def iterations(graph: Graph, operation: str) -> list[int]:
    return [node.iteration for node in graph.where(operation=operation)]


def test_three_steps_are_three_iterations() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        for _ in range(3):
            step(model, optimizer)
    assert iterations(rec.graph, "tanh") == iterations(rec.graph, "tanh_backward") == [0, 1, 2]
    assert Counter(node.iteration for node in rec.graph.where(phase="optimizer")) == {0: 4, 1: 4, 2: 4}


def test_accumulated_gradients_are_one_iteration() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        for batch in range(6):
            model(torch.randn(2, 3)).sum().backward()
            if batch % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert iterations(rec.graph, "tanh") == [0, 0, 0, 1, 1, 1]


def test_two_optimizers_in_turn_share_an_iteration() -> None:
    first, second = mlp(), mlp()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    with atlas.recording() as rec:
        for _ in range(3):
            step(first, optimizers[0])
            step(second, optimizers[1])
    assert iterations(rec.graph, "tanh") == [0, 0, 1, 1, 2, 2]
    assert [scope.path for scope in rec.graph.scopes.values() if scope.kind == "optimizer"] == ["SGD", "SGD_1"]


def test_evaluation_after_training_is_an_iteration_of_its_own() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        step(model, optimizer)
        step(model, optimizer)
        with torch.no_grad():
            model(torch.randn(2, 3))
    assert iterations(rec.graph, "tanh") == [0, 1, 2]


def test_without_an_optimizer_there_is_one_iteration() -> None:
    model = mlp()
    with atlas.recording(model) as rec:
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
    assert {node.iteration for node in rec.graph} == {0}
