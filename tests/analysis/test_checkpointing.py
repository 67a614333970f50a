"""Which modules to checkpoint: predictions against captures, choices against every set, gradients bit for bit."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from support import load_transformers
from torch import nn

import torchatlas as atlas
from torchatlas.analysis import checkpoint_search as searching
from torchatlas.analysis.checkpoint_candidates import Candidate, TrainingStep
from torchatlas.analysis.checkpoint_choice import CheckpointChoice, choose_checkpoints
from torchatlas.analysis.checkpoint_search import Search
from torchatlas.analysis.checkpoint_trial import Trial
from torchatlas.analysis.cost import cost
from torchatlas.checkpoint_plans import AppliedPlan, CheckpointCheck, Checkpointed
from torchatlas.cli import main
from torchatlas.errors import AnalysisError, InvalidInputError, InvalidModelError, StateError

Example = tuple[nn.Module, torch.Tensor]


class Block(nn.Module):
    def __init__(self, size: int = 16, wide: int = 64) -> None:
        super().__init__()
        self.wide, self.act, self.narrow = nn.Linear(size, wide), nn.GELU(), nn.Linear(wide, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.act(self.wide(x)))


def mlp(blocks: int = 4) -> Example:
    return nn.Sequential(*(Block() for _ in range(blocks))), torch.randn(256, 16)


def unequal() -> Example:
    return nn.Sequential(*(Block(wide=wide) for wide in (16, 96, 48, 128, 32))), torch.randn(256, 16)


def encoder(*, norm_first: bool = True, dropout: float = 0.0, layers: int = 3) -> Example:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), torch.randn(4, 24, 32)


def stage(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def convolutions(*, train: bool) -> Example:
    without = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 8, 3, padding=1))
    stages = [without, stage(8, 8), stage(8, 8), stage(8, 8)]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(8 * 12 * 12, 5)).train(train), torch.randn(4, 3, 12, 12)


def gpt2() -> Example:
    transformers = load_transformers()
    sizes = {"n_layer": 3, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 31}
    config = transformers.GPT2Config(**sizes, use_cache=False, bos_token_id=1, eos_token_id=2)
    return Logits(transformers.GPT2LMHeadModel(config)), torch.randint(0, 31, (2, 32))


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(tokens).logits


MODELS: dict[str, Callable[[], Example]] = {
    "mlp": mlp,
    "unequal": unequal,
    "encoder": encoder,
    "encoder with dropout, norm last": lambda: encoder(norm_first=False, dropout=0.1),
    "convolutions, evaluating": lambda: convolutions(train=False),
    "convolutions, training": lambda: convolutions(train=True),
    "gpt2": gpt2,
}
every_model = pytest.mark.parametrize("name", MODELS)


def peak_with(model: nn.Module, x: torch.Tensor, paths: Any, **options: Any) -> int:
    with AppliedPlan(model, paths):
        return atlas.memory(atlas.capture(model, x, backward=True, fake=True, **options)).peak_bytes


def step_of(model: nn.Module, x: torch.Tensor, **options: Any) -> TrainingStep:
    graph = atlas.capture(model, x, backward=True, fake=True, **options)
    return TrainingStep(graph, cost(graph))


def peak_and_place(step: TrainingStep, chosen: Sequence[Candidate]) -> tuple[int, int]:
    """By definition: the peak, and the node of the graph at which, or just before which, it is reached."""
    size, plain_end, nodes = step.storages.bytes, step.storages.end, len(step.graph)
    end, change = plain_end.copy(), np.zeros(nodes + 1, np.int64)
    for one in chosen:
        end[one.copied] = one.original_end
        change[one.resume] += int(size[one.copied].sum())
        np.subtract.at(change, plain_end[one.copied] + 1, size[one.copied])
    for one in chosen:
        end[one.arguments] = np.maximum(end[one.arguments], one.backward_end)
    moved = np.flatnonzero(end != plain_end)
    np.add.at(change, plain_end[moved] + 1, size[moved])
    np.subtract.at(change, end[moved] + 1, size[moved])
    live = step.live + np.cumsum(change[:-1])
    place = int(live.argmax())
    best = int(live[place])
    for one in chosen:
        at = one.resume
        before = int(live[at] - step.born_bytes[at] - size[one.copied].sum())
        if before + one.recompute_bytes > best:
            best, place = before + one.recompute_bytes, at
    return best, place


def peak_of(step: TrainingStep, chosen: Sequence[Candidate]) -> int:
    return peak_and_place(step, chosen)[0]


def apart(candidates: list[Candidate]) -> list[Candidate]:
    """Without those that are inside another."""
    found: list[Candidate] = []
    for one in candidates:
        if not any(one.meets(other) for other in found):
            found.append(one)
    return found


# -- the prediction ----------------------------------------------------------------------------------------------------


@every_model
def test_the_predicted_peak_is_the_captured_one(name: str) -> None:
    """For all, and for the first half, of each kind of module. Within 5 % is promised; here it is much nearer."""
    model, x = MODELS[name]()
    step = step_of(model, x)
    assert peak_of(step, []) == peak_with(model, x, [])
    kinds: dict[Any, list[Candidate]] = {}
    for one in step.candidates:
        kinds.setdefault(one.type, []).append(one)
    assert kinds
    lowest = step.peak_bytes
    for group in kinds.values():
        for chosen in (apart(group), apart(group)[: (len(group) + 1) // 2]):
            predicted = peak_of(step, chosen)
            captured = peak_with(model, x, [one.path for one in chosen])
            assert captured == pytest.approx(predicted, rel=0.005), [one.path for one in chosen]
            lowest = min(lowest, predicted)
    assert lowest < 0.95 * step.peak_bytes


def test_the_optimizer_is_part_of_the_prediction() -> None:
    model, x = mlp()
    step = step_of(model, x, optimizer=torch.optim.AdamW)
    assert peak_of(step, step.candidates[:2]) == peak_with(model, x, ["0", "1"], optimizer=torch.optim.AdamW)


def test_what_runs_again_ends_with_the_last_tensor_saved() -> None:
    """The last Linear saves its input only, so it does not run again, and neither does the addition after it."""
    model, x = mlp(1)
    model = nn.Sequential(*model, nn.Linear(16, 16))
    first = step_of(model, x).candidates[0]
    assert first.path == "0"
    assert first.flops == 2 * 256 * 16 * 64
    with AppliedPlan(model, ["0"]):
        graph = atlas.capture(model, x, backward=True)
    again = [node.operation for node in graph.where(phase="recompute") if "detach" not in node.operation]
    assert again == ["aten.t.default", "aten.addmm.default", "aten.gelu.default", "aten.t.default"]


class Inner(nn.Module):
    """Makes something large while its caller still holds its argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = x.sin().sum(1, keepdim=True)
        return small + small.detach().repeat(1, 512).sum(1, keepdim=True)


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(128)), Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.scale)


def test_an_argument_stays_until_its_call_returns() -> None:
    model, x = nn.Sequential(Holding(), nn.Linear(1, 1)), torch.randn(256, 128)
    step = step_of(model, x)
    chosen = [one for one in step.candidates if one.path == "0"]
    assert peak_of(step, chosen) == peak_with(model, x, ["0"]) > 4 * 256 * (128 + 128 + 512)


class Bump(nn.Module):
    """Its forward needs much for a moment, before something is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moment = x.detach().repeat(1, 64).sum(1, keepdim=True)
        return torch.nn.functional.gelu(x * self.weight + moment).sin()


def test_the_peak_may_be_reached_while_forward_runs_again() -> None:
    """By then the gradient of the last layer is there too, which it was not in forward."""
    model, x = nn.Sequential(Bump(), nn.Linear(16, 512)), torch.randn(64, 16)
    options: dict[str, Any] = {"loss": lambda y: y[:, :1].sum(), "fake": True}
    graph = atlas.capture(model, x, **options)
    step = TrainingStep(graph, cost(graph))
    chosen = [one for one in step.candidates if one.path == "0"]
    with AppliedPlan(model, ["0"]):
        report = atlas.memory(atlas.capture(model, x, **options))
    assert report.node.phase == "recompute"
    assert peak_of(step, chosen) == report.peak_bytes


@every_model
def test_a_trial_predicts_the_peak(name: str) -> None:
    """Whatever was added and removed before."""
    step, chance = step_of(*MODELS[name]()), random.Random(0)
    trial, chosen = Trial(step), list[Candidate]()
    for _ in range(40):
        one = chance.choice(step.candidates)
        chosen = [other for other in chosen if not one.meets(other)] + [one] * (one not in chosen)
        chosen.sort(key=lambda one: one.first)
        trial.choose(chosen)
        peak, place = peak_and_place(step, chosen)
        assert (trial.peak(), trial.peak_node()) == (peak, place)


def test_the_bound_is_what_identical_blocks_take() -> None:
    step = step_of(*mlp(6))
    two = tuple(step.candidates[:2])
    search = Search(step, peak_of(step, two), "flops", frozenset(), frozenset())
    assert 0.9 * search.work(two) <= search.least_work() <= search.work(two)


# -- the choice --------------------------------------------------------------------------------------------------------


def all_sets(candidates: list[Candidate]) -> list[tuple[Candidate, ...]]:
    """Every set in which none is inside another."""
    found = []
    for size in range(len(candidates) + 1):
        for chosen in itertools.combinations(candidates, size):
            if not any(one.meets(other) for one, other in itertools.combinations(chosen, 2)):
                found.append(chosen)
    return found


SMALL: dict[str, Callable[[], Example]] = {
    "mlp": lambda: mlp(6),
    "unequal": unequal,
    "encoder": lambda: encoder(layers=3),
    "encoder with dropout": lambda: encoder(norm_first=False, dropout=0.1, layers=2),
    "convolutions": lambda: convolutions(train=False),
}


@pytest.mark.parametrize("by", ["flops", "time"])
@pytest.mark.parametrize("name", SMALL)
def test_no_set_does_it_with_less(name: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LEAST_SHARE", 0.01)
    step = step_of(*SMALL[name]())
    first = choose_checkpoints(step.graph, step.peak_bytes - 1, by=by)
    search = Search(step, step.peak_bytes - 1, by, frozenset(), frozenset())
    sets = [(search.work(one), peak_of(step, one)) for one in all_sets(search.candidates)]
    assert len(sets) > 10
    assert first.exact
    smallest = min(peak for _, peak in sets)
    for part in (0.0, 0.1, 0.25, 0.5, 0.75, 0.95):
        limit = int(smallest + part * (step.peak_bytes - smallest))
        choice = choose_checkpoints(step.graph, limit, by=by)
        assert choice.exact
        assert choice.peak_bytes <= limit
        assert choice.work == pytest.approx(min(work for work, peak in sets if peak <= limit))
    with pytest.raises(AnalysisError, match=f"limit={smallest} works"):
        choose_checkpoints(step.graph, smallest - 1, by=by)


@pytest.mark.parametrize("name", SMALL)
def test_where_not_all_sets_are_tried_the_bound_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LEAST_SHARE", 0.01)
    step = step_of(*SMALL[name]())
    limits = [int(part * step.peak_bytes) for part in (0.9, 0.8, 0.7)]
    best: dict[int, CheckpointChoice] = {}
    for limit in limits:
        try:
            best[limit] = choose_checkpoints(step.graph, limit)
        except AnalysisError:
            continue
    assert best
    monkeypatch.setattr(searching.np, "prod", lambda *_args, **_kwargs: 10**9)
    for limit, exact in best.items():
        found = choose_checkpoints(step.graph, limit)
        assert not found.exact
        assert found.peak_bytes <= limit
        assert found.least_work <= exact.work <= found.work <= 1.5 * exact.work


def test_excluded_modules_run_once() -> None:
    step = step_of(*mlp())
    limit = step.peak_bytes - 1
    assert choose_checkpoints(step.graph, limit).paths == ("0",)
    assert choose_checkpoints(step.graph, limit, exclude=["0.act"]).paths == ("1",)
    assert choose_checkpoints(step.graph, limit, exclude=["0", "1"]).paths == ("2",)
    assert choose_checkpoints(step.graph, limit, refused=["0"]).paths == ("1",)
    with pytest.raises(InvalidInputError, match=r"did you mean '0\.act'"):
        choose_checkpoints(step.graph, step.peak_bytes, exclude=["0.acd"])


def test_bad_input() -> None:
    model, x = mlp(1)
    graph = atlas.capture(model, x, backward=True)
    for limit in (0, -1, float("nan"), float("inf"), "2XB", True, None):
        with pytest.raises(InvalidInputError, match="no number of bytes"):
            choose_checkpoints(graph, limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="one of flops, time"):
        choose_checkpoints(graph, 1000, by="memory")
    with pytest.raises(InvalidInputError, match="takes a graph"):
        choose_checkpoints(model, 1000)  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="no backward"):
        choose_checkpoints(atlas.capture(model, x), 1000)
    with pytest.raises(InvalidModelError, match=r"takes a torch\.nn\.Module"):
        atlas.checkpoint_plan(3, x, limit=1000)


# -- BatchNorm in training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [True, False])
def test_what_updates_statistics_is_left_out(counts: bool) -> None:
    model, x = convolutions(train=True)
    if not counts:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None
    step = step_of(model, x)
    assert {"1", "2", "3"} <= set(step.excluded)
    assert {one.path for one in step.candidates} == {"0"}
    assert "BatchNorm" in step.excluded["1"]
    model.eval()
    assert {"0", "1", "2", "3"} <= {one.path for one in step_of(model, x).candidates}


def test_the_report_says_so() -> None:
    model, x = convolutions(train=True)
    plan = atlas.checkpoint_plan(model, x, limit=step_of(model, x).peak_bytes - 1000)
    assert plan.paths == ("0",)
    assert "BatchNorm in training): 1, 1.1, 2" in str(plan)
    assert plan.verify(model, x).passed


# -- apply and verify --------------------------------------------------------------------------------------------------


@every_model
def test_a_plan_fits_and_leaves_gradients_as_they_are(name: str) -> None:
    model, x = MODELS[name]()
    step = step_of(model, x, optimizer=torch.optim.SGD)
    lowest = min(peak_of(step, [one]) for one in step.candidates)
    limit = (step.peak_bytes + lowest) // 2
    before, numbers = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    plan = atlas.checkpoint_plan(model, x, limit=limit, optimizer=torch.optim.SGD)
    assert plan.paths
    assert plan.captured_peak_bytes <= limit < step.peak_bytes
    check = plan.verify(model, x)
    assert check.passed, str(check)
    assert check.compared > len(list(model.parameters()))
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all("forward" not in vars(module) for module in model.modules())


def test_verify_sees_a_wrong_gradient_and_a_wrong_peak() -> None:
    class Forgetful(Block):
        """Answers differently each time, with a saved tensor of the same shape."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x * (1 + 0.5 * (self.calls % 2)))

    model, x = nn.Sequential(Block(), Forgetful(), Block()), torch.randn(256, 16)
    plan = atlas.checkpoint_plan(model, x, limit=step_of(model, x).peak_bytes - 1, exclude=["0", "2"])
    assert plan.paths == ("1",)
    check = plan.verify(model, x)
    assert not check.passed
    assert "gradient of 1.wide.weight" in check.differing
    assert str(check).startswith("FAILED: not equal bit for bit")
    assert not CheckpointCheck(1, (), 1000, 1051).passed
    assert CheckpointCheck(1, (), 1000, 951).passed


def test_a_step_that_fits_needs_no_plan() -> None:
    model, x = mlp()
    plan = atlas.checkpoint_plan(model, x, limit=2**40)
    assert plan.paths == ()
    assert str(plan).startswith("nothing to checkpoint")
    assert plan.captured_peak_bytes == plan.peak_bytes == peak_with(model, x, [])
    assert plan.verify(model, x).passed


def test_a_limit_that_nothing_meets_names_one_that_works() -> None:
    model, x = encoder()
    with pytest.raises(AnalysisError, match=r"limit=(\d+) works") as caught:
        atlas.checkpoint_plan(model, x, limit=1000)
    limit = int(str(caught.value).partition("limit=")[2].partition(" ")[0])
    assert atlas.checkpoint_plan(model, x, limit=limit).captured_peak_bytes <= limit


def test_apply_can_be_undone() -> None:
    model, x = mlp()
    plan = atlas.checkpoint_plan(model, x, limit=0.8 * step_of(model, x).peak_bytes)

    def own(x: torch.Tensor) -> torch.Tensor:
        return x

    model[3].forward = own  # type: ignore[union-attr]
    with plan.apply(model):
        assert isinstance(model[0].forward, Checkpointed)
        with pytest.raises(StateError, match="already"):
            plan.apply(model)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.randn(2, 3))
    with pytest.raises(ZeroDivisionError), plan.apply(model):
        raise ZeroDivisionError
    assert "forward" not in vars(model[0])
    handle = AppliedPlan(model, ["3"])
    handle.undo()
    handle.undo()
    assert model[3].forward is own
    with pytest.raises(InvalidModelError, match=r"has no module '0\.wode'; did you mean '0\.wide'"):
        AppliedPlan(model, ["1", "0.wode"])
    assert "forward" not in vars(model[1])
    with pytest.raises(InvalidModelError, match="not to int"):
        plan.apply(3)  # type: ignore[arg-type]


def test_arguments_named_like_options_of_checkpoint_arrive() -> None:
    class Debug(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor, *, debug: float, scale: float) -> torch.Tensor:
            return self.block(x) * debug * scale

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Debug()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, debug=2.0, scale=3.0)

    model, x = Outer(), torch.randn(8, 16)
    plain = model(x)
    with AppliedPlan(model, ["inner"]):
        assert torch.equal(model(x), plain)


def test_a_copy_of_an_applied_model_is_its_own() -> None:
    model, x = mlp(2)
    with AppliedPlan(model, ["0"]):
        other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(other(x), x)


def test_a_kind_that_cannot_run_again_is_left_out() -> None:
    class Once(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch._C._current_graph_task_id() != -1:
                raise RuntimeError("only once")
            return super().forward(x)

    model, x = nn.Sequential(Once(wide=32), Block(), Block()), torch.randn(256, 16)
    plan = atlas.checkpoint_plan(model, x, limit=step_of(model, x).peak_bytes - 1000)
    assert plan.paths == ("1",)
    assert "Once cannot be run again in backward" in str(plan)


def test_a_model_that_is_never_built() -> None:
    x = torch.empty(4096, 16, device="meta")
    plain = atlas.capture(lambda: mlp()[0], x, backward=True, fake=True)
    plan = atlas.checkpoint_plan(lambda: mlp()[0], x, limit=0.7 * (plain.peak_bytes or 0))
    assert plan.paths == ("0", "1")
    with pytest.raises(InvalidModelError):
        atlas.checkpoint_plan(lambda: mlp()[0], x, limit=1e9, fake=False)


def test_a_checkpointed_model_is_not_checkpointed_twice() -> None:
    model, x = mlp()
    with AppliedPlan(model, ["0"]):
        step = step_of(nn.Sequential(model), x)
    assert "0.0" not in {one.path for one in step.candidates}
    assert "already" in step.excluded["0"]


# -- the verb ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
    def forward(self, x):
        return x + self.narrow(torch.nn.functional.gelu(self.wide(x)))

def build():
    return nn.Sequential(Block(), Block(), Block())
"""


def run(folder: Path, *arguments: str) -> Result:
    file = folder / "nets.py"
    file.write_text(PROGRAM)
    return CliRunner().invoke(main, ["checkpoint", f"{file}:build", "--inputs", "256,16", *arguments])


def test_the_verb_prints_the_plan(tmp_path: Path) -> None:
    result = run(tmp_path, "--limit", "0.5MB")
    assert result.exit_code == 0, result.output
    assert "checkpoint 1 of 3 modules" in result.stdout
    content = json.loads(run(tmp_path, "--limit", "0.4MB", "--json", "--verify", "--optimizer", "SGD").stdout)
    assert content["plan"]["captured_peak_bytes"] <= 400_000
    assert content["check"]["passed"] is True
    assert run(tmp_path, "--limit", "1GiB").stdout.startswith("nothing to checkpoint")


def test_the_verb_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    result = run(tmp_path, "--limit", "1KB")
    assert result.exit_code == 2
    assert "works" in result.output
    assert "is no number of bytes" in run(tmp_path, "--limit", "two").output
    script = CliRunner().invoke(main, ["checkpoint", str(tmp_path / "nets.py"), "--limit", "1GB"])
    assert "is a script" in script.output
