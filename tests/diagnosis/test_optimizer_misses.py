"""Which parameters get no gradient, or no step: what they are called, in which order, and how often."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosis.steps import net, train
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchatlas as atlas
from torchatlas.diagnosis.findings import Finding, Severity, Where, merged
from torchatlas.graph import SourceLine


class Listed(nn.Module):
    """Layers that torch does not know of, also in a dict in a list, and one that points back."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.more = [{"gain": nn.Parameter(torch.ones(4))}]
        self.blocks[0].whole = [self]  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x * self.more[0]["gain"])  # type: ignore[no-any-return]


def test_layers_in_a_plain_list_are_called_by_it_and_counted() -> None:
    torch.manual_seed(0)
    model = Listed()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        train(optimizer, model(torch.randn(3, 4)).square().mean())
        assert visit.history.name(model.more[0]["gain"]) == "more[0]['gain']"
    (finding,) = visit.findings
    assert finding.key == "optimizer-misses"
    assert finding.what.startswith("blocks[0].weight, blocks[0].bias, blocks[1].weight and 2 more get gradients")


def test_models_are_called_by_the_variables_that_hold_them() -> None:
    generator, critic = net(), net()
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(2):
            train(optimizer, generator(critic(torch.ones(2, 4)).expand(2, 4)).sum())
    (finding,) = visit.findings
    names = "generator.0.weight, generator.0.bias, generator.2.weight and 1 more"
    assert finding.what == f"{names} get gradients, and no optimizer takes a step with them"
    assert finding.severity == Severity.WARNING


def _perceptual(loss_net: nn.Module) -> atlas.diagnosis.Visit:
    """A trained net, and the loss by another's features."""
    model, visit = nn.Linear(4, 4), atlas.doctor()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wanted = loss_net(torch.ones(2, 4)).detach()
    with visit:
        for _ in range(3):
            train(optimizer, (loss_net(model(torch.ones(2, 4))) - wanted).square().sum())
    return visit


def test_a_net_that_is_fixed_on_purpose_is_not_missed() -> None:
    assert not _perceptual(net().eval()).findings
    assert _perceptual(net()).findings.keys == ["optimizer-misses"]  # nothing tells it from one that was forgotten
    student, teacher = net(), net()
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, (student(torch.ones(2, 4)) - teacher(torch.ones(2, 4))).square().sum())
    assert not visit.findings


@pytest.mark.parametrize(("trained", "found"), [(2, []), (0, ["optimizer-misses"])])
def test_what_is_before_the_trained_part_is_fixed_on_purpose(trained: int, found: list[str]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model[trained].parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, model(torch.ones(2, 4)).sum())
    assert visit.findings.keys == found


def test_a_first_layer_that_was_replaced_is_missed() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[0] = nn.Linear(4, 8)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, model(torch.ones(2, 4)).sum())
    assert visit.findings.keys == ["optimizer-misses"]


def test_models_without_a_variable_are_numbered() -> None:
    models = [net(), net()]
    optimizer = torch.optim.SGD(models[0].parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(2):
            train(optimizer, sum(m(torch.ones(2, 4)).sum() for m in models))  # type: ignore[arg-type]
        names = {visit.history.name(parameter) for model in models for parameter in model.parameters()}
    assert len(names) == 8
    assert {name.split(".")[0] for name in names} == {"Sequential", "Sequential_1"}


def test_attributes_of_a_trainer_name_its_models() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.actor, self.critic = net(), net()
            self.optimizer = torch.optim.SGD(self.actor.parameters(), 0.1)

        def fit(self) -> None:
            x = torch.ones(2, 4)
            train(self.optimizer, self.critic(self.actor(x).expand(2, 4)).sum())

    trainer = Trainer()
    with atlas.doctor() as visit:
        trainer.fit()
    assert visit.findings[0].what.startswith("critic.0.weight, critic.0.bias")


def test_a_criterion_is_no_second_model() -> None:
    model, criterion = net(), nn.MSELoss()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    with atlas.doctor() as visit:
        train(optimizer, criterion(model(torch.ones(2, 4)), torch.zeros(2, 1)))
    assert visit.findings[0].what.startswith("2.weight, 2.bias get gradients")


def test_one_parameter_is_it_and_not_they() -> None:
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    model[2].requires_grad_(False).bias.requires_grad_(True)  # type: ignore[union-attr]
    with atlas.doctor() as visit:
        train(optimizer, model(torch.ones(2, 4)).sum())
    (finding,) = visit.findings
    assert finding.what.startswith("2.bias gets gradients")
    assert finding.why.startswith("it was not")
    assert "freeze it with" in finding.fix


def test_a_tensor_alone_is_called_by_its_variable() -> None:
    scale, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([scale, unused], 0.1)
    with atlas.doctor() as visit:
        train(optimizer, (scale * 2).sum())
    assert [finding.what for finding in visit.findings] == ["unused gets no gradient"]


def test_all_that_one_line_cuts_is_one_finding_with_all_names() -> None:
    model, head = net(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            with torch.no_grad():
                hidden = model(torch.ones(2, 4))
            train(optimizer, head(hidden).sum())
    (finding,) = visit.findings
    assert finding.what == "model.0.weight, model.0.bias, model.2.weight and 1 more get no gradient"
    assert finding.times == 1
    assert len(finding.where) == 1
    assert "set_grad_enabled(False)" in finding.where[0].what


def test_one_line_that_cuts_a_loss_off_is_told_once() -> None:
    model = net()
    with atlas.doctor() as visit:
        torch.set_grad_enabled(False)
        try:
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
        except RuntimeError:
            pass
        finally:
            torch.set_grad_enabled(True)
    (finding,) = visit.findings
    assert [place.what.split()[0] for place in finding.where] == ["cut", "backward"]
    assert "set_grad_enabled(False)" in finding.why


def test_parameters_that_a_pass_was_not_asked_for_are_not_missed() -> None:
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward(inputs=list(model[2].parameters()))
            optimizer.step()
    assert not visit.findings


def test_a_loss_that_is_zero_is_not_taken_for_gradients_that_were_emptied() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, (0 * model(torch.ones(2, 4))).sum())
    assert not visit.findings


def test_sparse_gradients_are_left_alone() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, table(torch.tensor([1, 2])).sum())
    assert not visit.findings


def test_what_is_of_one_line_and_told_at_the_end_is_not_merged() -> None:
    where = (Where("step", SourceLine("a.py", 1, "f", "step()")),)
    one, two = (Finding("no-gradient", what, where, "", "") for what in ("a", "b"))
    assert merged([one, two]) == [one, two]
    assert merged([Finding("not-zeroed", what, where, "", "") for what in ("a", "b")])[0].times == 2


def test_a_part_that_points_back_at_a_whole_without_a_name_is_a_part() -> None:
    models = [Listed()]
    optimizer = torch.optim.SGD(models[0].parameters(), 0.1)
    with atlas.doctor() as visit:
        train(optimizer, models[0](torch.ones(3, 4)).square().mean())
    (finding,) = visit.findings
    assert finding.what.startswith("blocks[0].weight, blocks[0].bias, blocks[1].weight and 2 more get gradients")


def test_tensors_in_a_list_are_called_by_it_and_each_has_its_own_cause() -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(5)]
    optimizer = torch.optim.SGD(weights, 0.1)
    with atlas.doctor() as visit:
        first = weights[1].detach() * 2
        second = weights[2].detach() * 3
        train(optimizer, (weights[0] * first * second).sum())
    assert [finding.what.split(" get")[0] for finding in visit.findings] == [
        "weights[1]",
        "weights[2]",
        "weights[3], weights[4]",
    ]
    assert len({finding.lines[0] for finding in visit.findings}) == 3


def test_tensors_that_share_a_name_keep_their_causes() -> None:
    def made() -> dict[str, dict[str, Tensor]]:
        return {"deep": {name: torch.ones(3, requires_grad=True) for name in "abcd"}}

    tensors = made()
    optimizer = torch.optim.SGD(tensors["deep"].values(), 0.1)
    with atlas.doctor() as visit:
        first = tensors["deep"]["b"].detach() * 2
        second = tensors["deep"]["c"].detach() * 3
        train(optimizer, (tensors["deep"]["a"] * first * second).sum())
    assert [finding.what for finding in visit.findings] == ["a leaf [3] gets no gradient"] * 3
    assert len({finding.lines[0] for finding in visit.findings}) == 3


def test_gradients_of_the_meta_device_are_left_alone() -> None:
    model = nn.Linear(4, 1, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, model(torch.ones(2, 4, device="meta")).sum())
    assert not visit.findings


@pytest.mark.parametrize("mode", [torch.device("meta"), FakeTensorMode()], ids=["meta", "fake"])
def test_tensors_without_memory_are_not_one(mode: Any) -> None:
    with mode, atlas.doctor() as visit:  # a warning would be an error
        total, weight = torch.zeros(4, 8), nn.Parameter(torch.randn(4, 8))
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(3):
            x = torch.randn(4, 8)
            loss = (x * weight).sum()
            total.data.add_(x)
            train(optimizer, loss)
    assert not visit.findings


def test_a_derivative_does_not_depend_on_what_was_added_to_the_function() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            x = torch.randn(4, 3, requires_grad=True)
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            train(optimizer, slope.square().mean())
    (found,) = visit.findings
    assert found.what == "2.bias gets no gradient"
    assert found.why == "it was used, but the result does not lead to the loss"  # nobody disabled gradients


def test_a_gradient_that_the_program_adds_by_hand_is_not_always_zero() -> None:
    layer = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            optimizer.zero_grad()
            (layer.weight.round() * torch.ones(4)).sum().backward()
            assert layer.weight.grad is not None
            layer.weight.grad += 1
            optimizer.step()
    assert not visit.findings


@pytest.mark.parametrize("generator_steps_first", [True, False])
def test_gradients_of_another_loss_are_rightly_emptied_before_a_pass_that_makes_none(
    generator_steps_first: bool,
) -> None:
    generator, critic = nn.Linear(4, 4), net()
    for_generator = torch.optim.SGD(generator.parameters(), 1e-4)
    for_critic = torch.optim.SGD(critic.parameters(), 1e-4)
    with atlas.doctor() as visit:
        for _ in range(3):
            for_generator.zero_grad()
            critic(generator(torch.ones(2, 4))).sum().backward()
            if generator_steps_first:
                for_generator.step()
                for_generator.zero_grad()
                for_critic.zero_grad()
                generator(torch.ones(2, 4)).sum().backward()  # does not come to the critic
            else:
                for_critic.zero_grad()
                (0 * critic[2](torch.ones(2, 8))).sum().backward()  # comes to its last layer, with zeros
            for_critic.step()
            for_generator.step()
    assert not visit.findings


def test_a_step_whose_gradients_were_emptied_is_found_after_steps_of_another_line() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(2):
            train(optimizer, model(torch.ones(2, 4)).sum())
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    (finding,) = visit.findings
    assert finding.what == "every step found no gradient at all, or only zeros"
    assert finding.times == 2


@pytest.mark.parametrize("of_module", [True, False])
def test_what_no_pass_was_asked_for_is_not_without_a_gradient(of_module: bool) -> None:
    first, second = (nn.Linear(4, 4), nn.Linear(4, 4)) if of_module else (Plain(), Plain())
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            optimizer.zero_grad()
            second(first(torch.ones(2, 4))).sum().backward(inputs=list(second.parameters()))
            optimizer.step()
    assert not visit.findings


class Plain:
    """A layer that is no module."""

    def __init__(self) -> None:
        self.weight = torch.ones(4, requires_grad=True)

    def parameters(self) -> list[Tensor]:
        return [self.weight]

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight


class Gathered(nn.Module):
    """Has other parameters while it runs than those that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self._kept, self.weight = self.weight, nn.Parameter(self.weight.detach().clone())
        return x * self.weight

    def scatter(self, gives: bool) -> None:
        self._kept.grad, self.weight = self.weight.grad if gives else None, self._kept


@pytest.mark.parametrize("gives", [True, False])
def test_a_stand_in_for_a_parameter_is_missed_only_if_it_keeps_its_gradient(gives: bool) -> None:
    model = Gathered()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            model.scatter(gives)
            optimizer.step()
            optimizer.zero_grad()
    assert visit.findings.keys == ([] if gives else ["optimizer-misses"])


@pytest.mark.child
def test_sharded_parameters_that_are_gathered_to_be_used_are_trained() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(net(), nn.Linear(1, 1))
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        whole, part = (torch.optim.SGD(each.parameters(), 0.1) for each in (model, model[0]))
        with atlas.doctor() as visit:
            for _ in range(2):
                train(whole, model(torch.ones(2, 4)).sum())
        assert not visit.findings
        with atlas.doctor() as visit:
            for _ in range(2):
                model.zero_grad()
                train(part, model(torch.ones(2, 4)).sum())
        assert [finding.what.split(" get")[0] for finding in visit.findings] == ["1.weight, 1.bias"]
    finally:
        dist.destroy_process_group()


def test_a_head_that_is_never_used_is_a_warning_where_the_rest_learns() -> None:
    body, head = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            train(optimizer, body(torch.ones(2, 4)).square().mean())
    (finding,) = visit.findings
    assert (finding.key, finding.severity) == ("no-gradient", Severity.WARNING)
