"""docs/limits.md promises a test for every row: each must exist. It excuses, by name, what is not proved to the bit."""

from __future__ import annotations

import ast
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import Entry, timm_models
from torch import nn

import torchatlas as atlas
from benchmarks import verified, verified_results
from benchmarks.verified_results import Check

ROOT = Path(__file__).parent.parent
PAGE = [line for line in (ROOT / "docs" / "limits.md").read_text().splitlines() if line.startswith("| ")]
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE]
ROWS = [dict(zip(("what", "how", "why", "tests"), cells, strict=True)) for cells in CELLS if cells[-1] != "shown by"]


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"][:60])
def test_every_row_is_shown_by_a_test(row: dict[str, str]) -> None:
    assert row["how"] in ("captured", "partly", "not")
    assert row["how"] == "captured" or row["why"]
    named = re.findall(r"`([\w/]+)(?:::(\w+))?`", row["tests"])
    assert named, row["tests"]
    for file, test in named:
        path = ROOT / "tests" / f"{file}.py"
        assert path.exists(), path
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert not test or test in names, f"{path.name} has no {test}"


# -- benchmarks/verified.py --------------------------------------------------------------------------------------------


class WrittenByNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.detach().numpy()[:] = 7
        return y + 1


class EndsTheProcess(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(3)


def entry(model: Callable[[], nn.Module], name: str = "a model that no row names", trains: bool = True) -> Entry:
    return Entry(name, lambda: (model(), (torch.ones(2, 3),), {}), trains=trains)


def layer() -> nn.Module:
    return nn.Linear(3, 2)


def test_a_proof_in_eval_mode_and_of_a_training_step() -> None:
    found = [verified.check(entry(layer), mode) for mode in ("forward", "training")]
    assert [one.verdict for one in found] == ["equal", "equal"]
    assert all(one.equal and one.compared >= one.ops for one in found)
    assert found[1].ops > 20 > found[0].ops  # with backward and AdamW


def test_what_differs_is_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = atlas.capture

    def damaged(*args: Any, **kwargs: Any) -> Any:
        graph = capture(*args, **kwargs)
        next(np.asarray(a) for key, a in graph.recorded.items() if key.startswith("-1:storage/"))[0] ^= 1
        return graph

    monkeypatch.setattr(atlas, "capture", damaged)
    found = verified.check(entry(layer), "training")
    assert not found.equal
    assert found.verdict.startswith("output 0 of ")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (WrittenByNumpy, "memory changed outside of the recorded ops: 1 times"),
        (lambda: nn.Linear(4, 4), "does not run here: "),
    ],
)
def test_what_else_is_not_equal(model: Any, words: str) -> None:
    found = verified.check(entry(model), "forward")
    assert not found.equal
    assert found.verdict.startswith(words)


@pytest.mark.parametrize(
    ("part", "finds", "words"),
    [
        ("drawn_wrong", ["a box on a box"], "equal, drawn with 1 defects: a box on a box"),
        ("uncosted_in", {"mylib.op": 2}, "equal, uncosted: mylib.op"),
    ],
)
def test_what_is_drawn_wrong_or_not_costed_fails(
    part: str, finds: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not verified.check(entry(layer), "forward").fails
    monkeypatch.setattr(verified, part, lambda graph: finds)
    found = verified.check(entry(layer), "forward")
    assert found.equal
    assert found.fails
    assert found.words.endswith(words)


class DependsOnValues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x * 3


def test_a_trace_is_compared_for_two_batches() -> None:
    found = verified.check(entry(layer), "trace")
    assert (found.verdict, found.compared, found.fails) == ("equal", 2, False)


def test_a_trace_that_export_refuses_is_no_fault() -> None:
    found = verified.check(entry(DependsOnValues), "trace")
    assert found.verdict.startswith("refused: torch.export cannot trace DependsOnValues")
    assert (found.equal, found.fails) == (False, False)


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        (lambda x: x.shape[0] > 0, "output 0 differs"),
        (lambda x: x.shape[0] > 2, "output 0 differs for twice the batch"),
    ],
)
def test_a_trace_that_returns_something_else_fails(wrong: Any, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = atlas.trace

    class Wrong:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.right = trace(*args, **kwargs)
            self.graph = self.right.graph

        def __call__(self, x: torch.Tensor) -> Any:
            return self.right(x) + wrong(x)

    monkeypatch.setattr(atlas, "trace", Wrong)
    found = verified.check(entry(layer), "trace")
    assert (found.verdict, found.fails) == (verdict, True)


def forks(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test that forks in a process of its own.

    A test of another file may have nested backward more than 60 times. torch starts threads for that, and refuses to
    run backward in a fork of such a process.
    """
    warns = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
    return pytest.mark.child(warns(test))


class ReachesItsLimit(nn.Linear):
    """Ends as the kernel would end it, if it may train for no more than a minute."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limit, _ = resource.getrlimit(resource.RLIMIT_CPU)
        if self.training and limit != resource.RLIM_INFINITY and limit < time.process_time() + 62:
            os.kill(os.getpid(), signal.SIGXCPU)
        return super().forward(x)


def too_large() -> Any:
    raise timm_models.TooLarge("304 million parameters")


@forks
def test_a_process_that_dies_is_a_verdict_and_the_page_excuses_by_name() -> None:
    limits = verified_results.named_limits()
    for name, is_explained in (("a model that no row names", False), ("quantized_resnet18-int8", True)):
        (found,) = verified.checks(entry(EndsTheProcess, name), ["forward"], 60)
        assert found.verdict == "its process ended with code 3"
        assert verified_results.explained(found, limits) is is_explained
        assert verified_results.unexplained([found], limits) == ([] if is_explained else [found])
        assert ("(see docs/limits.md)" in verified_results.line([found], limits)) is is_explained


@forks
def test_what_takes_too_long_is_left_out_and_the_next_check_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model, modes = entry(lambda: ReachesItsLimit(3, 2)), ["forward", "training", "trace"]
    assert [one.verdict for one in verified.checks(model, modes, 200)] == ["equal"] * 3
    monkeypatch.setitem(verified.CPU_SECONDS, "", 60)
    found = list(verified.checks(model, modes, 200))
    assert [one.verdict for one in found] == ["equal", "left out: more than 60 s", "equal"]
    assert not any(one.fails for one in found)


def test_what_is_too_large_is_left_out() -> None:
    found = verified.check(Entry("large", too_large), "forward")
    assert (found.verdict, found.left_out, found.fails) == ("left out: 304 million parameters", True, False)


@forks
def test_a_run_goes_on_where_its_results_end(tmp_path: Path) -> None:
    results, entries = tmp_path / "results.jsonl", [entry(layer, "one"), entry(layer, "two", trains=False)]

    def run(*modes: str, among: list[Entry] = entries) -> list[tuple[str, str]]:
        return [(one.model, one.mode) for new in verified.run(among, modes, 60, results) for one in new]

    assert run("forward", among=entries[:1]) == [("one", "forward")]
    assert run("forward", "training") == [("one", "training"), ("two", "forward")]
    assert run("forward", "training") == []
    found = verified_results.read(results)
    assert [(one.model, one.mode, one.verdict) for one in found] == [
        ("one", "forward", "equal"),
        ("one", "training", "equal"),
        ("two", "forward", "equal"),
    ]
    assert found[0].ops > 0
    assert [one.day for one in found] == [str(date.today())] * 3
    results.write_text(results.read_text().replace("torch ", "torch 0.", 1))
    with pytest.raises(SystemExit, match=r"torch 0\..* name another file with --results"):
        verified_results.read(results)


@forks
def test_what_ran_out_of_wall_time_fails_and_is_tried_again(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    (found,) = verified.run([entry(layer)], ["forward"], 0, results)
    assert [(one.verdict, one.fails) for one in found] == [("not done after 0 s", True)]
    (found,) = verified.run([entry(layer)], ["forward"], 200, results)
    assert [one.verdict for one in found] == ["equal"]


def test_the_table_counts_models_by_what_they_passed() -> None:
    found = [
        Check("timm", "good", "forward", "equal", ops=3, compared=4),
        Check("timm", "good", "training", "equal", ops=30, compared=40),
        Check("timm", "good", "trace", "equal", ops=2),
        Check("timm", "slow", "forward", "equal", ops=3, compared=4),
        Check("timm", "slow", "training", "left out: more than 10 s"),
        Check("timm", "uncosted", "forward", "equal", ops=1, uncosted={"mylib.op": 1}),
        Check("timm", "ugly", "forward", "equal", ops=1, defects=["a box on a box"]),
        Check("timm", "ugly", "trace", "refused: no"),
        Check("torchvision", "other", "forward", "output 0 of add differs", ops=1),
        Check("torchvision", "quantized_resnet18-int8", "forward", "cannot", ops=0),
    ]
    limits = verified_results.named_limits()
    timm = verified_results.totals([one for one in found if one.catalogue == "timm"], limits)
    passed = ("models", "left out", "forward equal", "step equal", "costed", "drawn", "traced equal", "not traced")
    assert [timm[title] for title in passed] == [4, 1, 4, 1, 2, 2, 1, 1]
    assert [timm[title] for title in ("explained", "unexplained", "ops replayed", "compared")] == [0, 2, 38, 48]
    assert verified_results.totals(found, limits)["explained"] == 1
    lines = verified_results.table(found, limits).splitlines()
    assert [text.split(" | ")[0] for text in lines] == ["| catalogue", "| ---", "| timm", "| torchvision", "| all"]
    assert len({text.count("|") for text in lines}) == 1


def test_the_page_excuses_no_model_that_is_not_in_a_catalogue() -> None:
    """Only int8 models: a name that nobody runs any more would excuse nothing."""
    models = {name for catalogue in ("torchvision", "transformers") for name in verified.CATALOGUES[catalogue]}
    excused = {name for name in models if f"`{name}`" in verified_results.named_limits()}
    assert excused == {name for name in models if name.endswith("-int8")}
    assert set(re.findall(r"`(\w+-int8)`", verified_results.named_limits())) == excused


def test_models_made_smaller_are_in_a_catalogue() -> None:
    assert set(verified.SMALLER) <= set(verified.CATALOGUES["torchvision"])
