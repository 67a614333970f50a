"""`with atlas.doctor()`: any code, also what raises, nests, is compiled, or has threads; nothing is left."""

from __future__ import annotations

import contextlib
import gc
import runpy
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from diagnosis.steps import net, step
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.diagnosis.events import DIAGNOSES
from torchatlas.diagnosis.faults.train_eval_mode import CalledModel, ModelCall
from torchatlas.diagnosis.findings import Finding, Where, explained
from torchatlas.diagnosis.numeric_checks import rms
from torchatlas.errors import InvalidInputError, StateError, UnknownNameError


def test_one_healthy_step_says_what_was_looked_for() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        step(model, optimizer)
    assert not visit.findings
    assert str(visit).startswith("no fault found; looked for: ")
    assert visit.findings.to_dict()["checks"] == list(visit.checks)


def test_a_fault_of_every_turn_is_told_once_with_its_count() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(5):
            step(model, optimizer, zero=False)
    (finding,) = visit.findings
    assert (finding.key, finding.times) == ("not-zeroed", 4)
    assert "(4 times)" in str(finding)
    assert "2.weight" in finding.what
    assert finding.lines[0][1] == step.__code__.co_firstlineno + 5


def test_findings_are_there_while_it_runs_and_after_an_exception() -> None:
    weight = torch.ones(3, requires_grad=True)

    def program() -> None:
        hidden = weight.exp()
        loss = (hidden * hidden).sum()
        hidden.add_(1)
        assert not visit.findings  # backward has not refused yet
        loss.backward()

    visit = atlas.doctor()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), visit:
        program()
    assert set(visit.findings.keys) == {"in-place"}


@pytest.mark.slow
def test_what_only_a_whole_program_shows_is_not_claimed_of_one_that_was_cut_short() -> None:
    def program(end: BaseException | None) -> atlas.diagnosis.Visit:
        visit, model = atlas.doctor(), nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer, kept = torch.optim.SGD(model[0].parameters(), 0.1), []
        with contextlib.suppress(BaseException), visit:
            for _ in range(6):
                kept.append(step(model, optimizer))
            with torch.no_grad():
                model(torch.randn(3, 4)).sum().item()
            if end is not None:
                raise end
        return visit

    for end in (None, SystemExit(), SystemExit(0)):
        whole = program(end)
        assert set(whole.findings.keys) == {"graph-kept", "optimizer-misses", "train-mode"}
        assert (whole.complete, whole.not_judged, whole.findings.checks) == (True, (), whole.checks)
        assert "not judged" not in str(whole)
    for end in (ValueError(), KeyboardInterrupt(), SystemExit(1), SystemExit("no data")):
        cut = program(end)
        assert cut.findings.keys == ["graph-kept"]  # was seen before; what was made since the step may yet be used
        late = tuple(key for key in DIAGNOSES if key in DIAGNOSES[key].needs_the_end and key != "graph-kept")
        assert cut.not_judged == late
        assert set(cut.findings.checks) == set(cut.checks) - set(cut.not_judged)
        assert f"did not run to its end: {', '.join(late)}\n" in str(cut)
        assert str(cut).endswith(f"1 warning; the program ended with {type(end).__name__}")
        assert str(cut.findings) == str(cut)  # whichever is printed
        assert cut.findings.to_dict()["not_judged"] == list(cut.not_judged)


def test_an_evaluation_before_the_last_step_is_judged_though_the_program_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer, visit = torch.optim.SGD(model.parameters(), 0.1), atlas.doctor()
    with contextlib.suppress(ZeroDivisionError), visit:
        for _ in range(2):
            step(model, optimizer)
            with torch.no_grad():
                model(torch.randn(3, 4)).sum().item()
        raise ZeroDivisionError
    (finding,) = visit.findings
    assert (finding.key, finding.times) == ("train-mode", 1)


def test_a_program_that_handles_the_refusal_goes_on() -> None:
    weight = torch.ones(3, requires_grad=True)
    with atlas.doctor() as visit:
        loss = weight.exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert visit.findings.keys == ["freed-graph"]


def test_only_some_and_what_is_not_known() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor(only=["retain-graph"]) as visit:
        for _ in range(3):
            step(model, optimizer, zero=False)
    assert visit.checks == ("retain-graph",)
    assert not visit.findings
    with pytest.raises(UnknownNameError, match="did you mean 'not-zeroed'"):
        atlas.doctor(only=["not-zero"])
    with pytest.raises(InvalidInputError, match="records what runs by itself"):
        atlas.doctor(forward=atlas.capture(model, torch.ones(1, 4)))  # type: ignore[call-overload]
    with pytest.raises(StateError, match="make a new one"), visit:
        pass


def test_nothing_is_left_behind() -> None:
    """Neither hooks on nodes nor patches, nor anything that keeps the model alive."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run, call, data = torch.autograd._engine_run_backward, nn.Module._call_impl, torch.Tensor.data  # type: ignore[attr-defined]
    threshold = gc.get_threshold()
    loss = torch.ones(())
    visit = atlas.doctor()
    try:
        with visit:
            loss = model(torch.randn(2, 4)).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert (torch.autograd._engine_run_backward, nn.Module._call_impl, torch.Tensor.data) == (run, call, data)  # type: ignore[attr-defined]
    assert gc.get_threshold() == threshold
    assert torch.is_grad_enabled()
    reference = weakref.ref(model)
    del model, optimizer, loss
    gc.collect()
    assert reference() is None
    assert not visit.findings  # whether the graph is needed again, only the rest of the program would have shown


def test_a_model_with_several_faults_tells_all_of_them() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.cut, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + self.cut(x).detach()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor(model=model) as visit:
        for _ in range(3):
            step(model, optimizer, zero=False)
    assert sorted(visit.findings.keys) == ["no-gradient", "no-gradient", "not-zeroed"]
    told = {finding.why: finding for finding in visit.findings if finding.key == "no-gradient"}
    assert "cut.weight, cut.bias" in told["what was computed from them was cut off from the loss"].what
    assert "never.weight, never.bias" in told["they were never used"].what


def test_visits_nest() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as outer:
        step(model, optimizer)
        with atlas.doctor() as inner:
            step(model, optimizer, zero=False)
            step(model, optimizer, zero=False)
    assert outer.findings.keys == ["not-zeroed"]
    assert inner.findings.keys == ["not-zeroed"]
    assert (outer.findings[0].times, inner.findings[0].times) == (2, 1)


def test_other_threads_run_undisturbed() -> None:
    model, others, results = net(), [net(), net()], list[Tensor]()

    def work() -> None:
        mine = others.pop()
        loss = mine(torch.ones(2, 4)).sum()
        loss.backward()
        results.append(mine[0].weight.grad)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        thread = threading.Thread(target=work)
        thread.start()
        step(model, optimizer)
        thread.join()
    assert not visit.findings
    work()
    assert torch.equal(results[0], results[1])


def test_a_compiled_model_is_as_before() -> None:
    def train() -> list[Tensor]:
        torch._dynamo.reset()
        model = net()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(1)
        for _ in range(3):
            step(compiled, optimizer)
        return [parameter.detach().clone() for parameter in model.parameters()]

    alone = train()
    with atlas.doctor() as visit:
        watched = train()
    assert not visit.findings
    assert all(map(torch.equal, alone, watched))


def test_double_backward_and_torch_func() -> None:
    weight = torch.ones(3, requires_grad=True)
    with atlas.doctor() as visit:
        (gradient,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
        gradient.sum().backward()
        torch.func.grad(lambda x: x.sin().sum())(torch.ones(2))
        torch.func.vmap(torch.func.jacrev(torch.sin))(torch.ones(2, 2))
    assert not visit.findings
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((3,), 6.0))


def test_a_cut_inside_of_a_library_names_the_line_that_called_it(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Encoder(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        with torch.no_grad():\n"
        "            x = self.a(x)\n            return self.b(x)\n"
    )
    encoder = runpy.run_path(str(tmp_path / "library.py"))["Encoder"]()
    head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.1)
    with atlas.doctor() as visit:
        loss = head(encoder(torch.randn(3, 4))).sum()  # this one
        loss.backward()
        optimizer.step()
    (finding,) = visit.findings  # one cause, although both layers have their own lines
    assert "# this one" in str(finding.where[0])
    assert finding.where[1].source is not None
    assert finding.where[1].source.file.endswith("library.py")


def test_the_infinities_of_a_mask_are_told_of() -> None:
    weight = torch.ones(3, requires_grad=True)
    with atlas.doctor() as visit:
        weight.expand(2, 3).masked_fill(torch.tensor([[True] * 3, [False] * 3]), -torch.inf).softmax(1).sum().backward()
    (finding,) = visit.findings
    assert "made 3 NaN among 6 numbers (2, 3) from (2, 3) in [1, 1] and 3 of -inf" in str(finding)
    assert "from infinities" in finding.why


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_explode_in_layers_or_in_a_recurrence(shared: bool) -> None:
    """Each layer's own gradient stays as it is: what comes in is as small as what comes back is large."""
    layers = [nn.Linear(4, 4, bias=False) for _ in range(1 if shared else 12)] * (12 if shared else 1)
    for layer in layers:
        nn.init.eye_(layer.weight).data.mul_(10)
    model = nn.Sequential(*layers)
    with atlas.doctor() as visit:
        model(torch.full((2, 4), 1e-12)).sum().backward()
    (finding,) = visit.findings
    assert finding.key == "exploding"
    assert "over 12 runs of MmBackward0" in finding.what
    assert finding.why.startswith("the same step is applied again" if shared else "each layer multiplies them")
    assert finding.fix.startswith("clip gradients, shorten the recurrence" if shared else "use an initialisation")


def test_a_gradient_leaves_its_device_before_it_becomes_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's has none. Where there is no such device, the order of the calls is all that shows it."""
    calls, cpu, double = [], Tensor.cpu, Tensor.double
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: (calls.append("cpu"), cpu(tensor))[1])
    monkeypatch.setattr(Tensor, "double", lambda tensor: (calls.append("double"), double(tensor))[1])
    assert rms(torch.full((4,), 1e-30)) == pytest.approx(1e-30)
    assert calls == ["cpu", "double"]


class Touchy(Tensor):
    """Does not like to be asked."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ZeroDivisionError


class Unfinished(nn.Module):
    def __init__(self) -> None:
        pass

    def parameters(self, recurse: bool = True) -> Any:
        raise ZeroDivisionError


def test_a_write_in_a_loop_is_told_once() -> None:
    memory, cell = torch.zeros(2, 20, 3), nn.Linear(3, 3)
    with atlas.doctor(only="in-place") as visit:
        state = torch.ones(2, 3, requires_grad=True)
        for number in range(20):
            state = cell((memory * state[:, None]).sum(1))
            memory[:, number] = state
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            state.sum().backward()
    (finding,) = visit.findings
    assert finding.times > 18
    assert [place.what.split()[:2] for place in finding.where] == [["saved", "by"], ["written", "by"]]
    with atlas.doctor(only="in-place") as visit:
        saved = torch.ones(2, requires_grad=True).exp()
        for _ in range(4):
            saved += 1
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            saved.sum().backward()
    (finding,) = visit.findings
    assert [place.what for place in finding.where] == ["saved by exp", "written by add_ and 3 more"]


def test_what_else_lives_in_the_process_is_left_alone() -> None:
    base = torch.ones(3, requires_grad=True) * 1
    view = base.unbind()[0]
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified inplace"):
        assert view.grad_fn
    strangers = [Tensor._make_subclass(Touchy, torch.ones(2)), Unfinished(), view]
    model, kept = net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(6):
            kept.append(step(model, optimizer))
    assert visit.findings.keys == ["graph-kept"]
    assert "held by kept" in visit.findings[0].what
    del strangers


def test_equal_code_of_two_files_has_two_lines(tmp_path: Path) -> None:
    """Python takes code that differs in the file alone for equal."""
    lines = []
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("def make(x):\n    return x.sin()\n")
        make = runpy.run_path(str(tmp_path / name))["make"]
        with atlas.recording() as rec:
            make(torch.ones(2))
        source = rec.graph["sin"].source
        assert source is not None
        lines.append(Path(source.file).name)
    assert lines == ["one.py", "two.py"]


TRAINER = """
def fit(model, optimizer, batches):
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
"""


def test_under_a_trainer_of_a_package_the_programs_own_line_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "some_trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TRAINER)
    monkeypatch.syspath_prepend(str(package.parent))
    script = tmp_path / "train.py"
    script.write_text(
        "import some_trainer, torch\nnet = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "some_trainer.fit(net, optimizer, [torch.ones(2, 4)] * 3)\n"
    )
    visit = atlas.doctor()
    with visit:
        runpy.run_path(str(script))
    (finding,) = visit.findings
    (place,) = finding.where
    assert finding.key == "not-zeroed"
    assert place.source is not None
    assert place.library is not None
    assert (Path(place.source.file).name, place.source.line) == ("train.py", 4)
    assert (Path(place.library.file).parent.name, place.library.line) == ("some_trainer", 6)
    assert f"train.py:4 in <module> ({place.source.text}), by {place.library}" in str(finding)


def test_one_cause_is_told_once_with_what_follows_below() -> None:
    cause = Finding("nothing-changes", "a", (), "why", "fix", explains=("no-gradient", "nothing-changes"))
    others = [Finding("no-gradient", name, (), "", "") for name in ("b", "c")]
    (told,) = explained([others[0], cause, others[1]])
    assert (told.key, [one.what for one in told.follows]) == ("nothing-changes", ["b", "c"])
    assert "so also no-gradient: b\n" in str(told)
    assert explained(others) == others


def test_an_input_that_is_gone_is_no_other_tensor() -> None:
    """Even if that lies at the same address, and so has the same id."""
    x = torch.ones(2)
    call = ModelCall(CalledModel("Net"), Where("called"), "dropped", (weakref.ref(x),), 0, 0, False)
    assert call.had([x])
    assert not call.had([torch.ones(2)])
    del x
    assert not call.had([torch.ones(2)])
