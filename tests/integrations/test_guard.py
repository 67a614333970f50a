"""The guard's assertions: what holds passes, what does not fails with the reason, and bad input is answered."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import HOSTILE, forbidden, hostile_graph
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.errors import (
    AnalysisError,
    FileFormatError,
    FileSystemError,
    InvalidInputError,
    NewerVersionError,
    UnknownNameError,
)
from torchatlas.integrations.guard import Guard, SnapshotFiles, file_name
from torchatlas.integrations.snapshots import of_text, snapshot_of, to_text

X = torch.ones(3, 8)


def net(hidden: int = 16, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, hidden), activation(), nn.Sequential(nn.Linear(hidden, 4), nn.Dropout(0.5)))


@pytest.fixture
def guard(tmp_path: Path) -> Callable[..., Guard]:
    """A guard as a test would get it in one run of pytest."""

    def made(update: bool = False) -> Guard:
        pages = tmp_path / "pages"
        pages.mkdir(exist_ok=True)
        return Guard(SnapshotFiles(tmp_path / "__atlas__", "test_it", "test_x.py::test_it", update, lambda: pages))

    return made


def edited(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "__atlas__" / "test_it.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# -- structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specimen", ZOO[::6], ids=str)
def test_a_snapshot_is_read_as_it_was_written_and_is_the_same_again(specimen: Specimen) -> None:
    texts = []
    for _ in range(2):
        model, args, kwargs = specimen.build()
        found = snapshot_of(atlas.capture(model, *args, kwargs=kwargs, native=False), torch.__version__)
        texts.append(to_text(found))
        assert of_text(texts[-1], "x") == found
    assert texts[0] == texts[1]
    graph = atlas.capture(model, *args, kwargs=kwargs)
    assert len(found.modules) == len(graph.scopes)
    assert found.totals["macs"] == atlas.cost(graph).macs
    assert found.totals["parameters"] == graph.scopes[""].parameters


def test_hostile_names_stay_in_their_line() -> None:
    graph = hostile_graph()
    found = snapshot_of(graph, "2.0")
    text = to_text(found)
    assert of_text(text, "x") == found
    assert not forbidden(text)
    assert len(text.splitlines()) <= len(graph.scopes) + 5
    odd = nn.Sequential()
    for name in ("(root)", "a b", "x=1", '"', "ü", HOSTILE.replace(".", "")):
        odd.add_module(name, nn.Linear(8, 8))
    found = snapshot_of(atlas.capture(odd, X), "2.0")
    assert of_text(to_text(found), "x") == found
    assert set(found.modules) == {"", *dict(odd.named_children())}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: net(32), "~ 0 Linear: out float32[3,16] -> float32[3,32], parameters 144 -> 288 (+100 %)"),
        (lambda: net(activation=nn.GELU), "~ 1 GELU: class ReLU -> GELU, "),
        (lambda: nn.Sequential(*net(), nn.Tanh()), "+ 3 Tanh in=float32[3,4]"),
        (lambda: nn.Sequential(*net()[:2]), "- 2.0 Linear in=float32[3,16]"),
        (lambda: nn.Sequential(*net()[:2], nn.Sequential(net()[2][0], nn.Dropout(0.4))), "~ 2.1 Dropout: the same ope"),
        (lambda: net().double(), "in float32[3,8] -> float64[3,8]"),
    ],
)
def test_what_changed_is_named(guard: Callable[..., Guard], change: Callable[[], nn.Module], said: str) -> None:
    guard(update=True).unchanged(net(), X)
    graph = guard().unchanged(net(), X)
    assert graph == atlas.capture(net(), X, native=False)
    model = change()
    with pytest.raises(AssertionError) as caught:
        guard().unchanged(model, X.to(next(model.parameters()).dtype))
    assert said in str(caught.value)
    assert "--atlas-update test_x.py::test_it" in str(caught.value)


def test_a_second_call_is_one_more_than_one(guard: Callable[..., Guard]) -> None:
    class Calls(nn.Module):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.act, self.times = nn.ReLU(), times

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.times):
                x = self.act(x)
            return x

    guard(update=True).unchanged(Calls(1), X)
    with pytest.raises(AssertionError, match=r"calls 1 -> 2 \(\+100 %\)"):
        guard().unchanged(Calls(2), X)


def test_other_edges_alone_are_a_change(guard: Callable[..., Guard]) -> None:
    guard(update=True).unchanged(lambda a, b: (a + 1) - (b + 1), X, X.clone())
    with pytest.raises(AssertionError, match="every module runs the same operations"):
        guard().unchanged(lambda a, b: (b + 1) - (a + 1), X, X.clone())


def test_training_steps_and_ready_graphs(guard: Callable[..., Guard], tmp_path: Path) -> None:
    step: dict[str, Any] = {"loss": lambda out: out.square().mean(), "optimizer": torch.optim.AdamW}
    graph = guard(update=True).unchanged(net(), X, **step)
    guard().unchanged(graph)
    guard().unchanged(graph.save(tmp_path / "step.atlas"))
    with atlas.recording(net()) as recording:
        pass
    with pytest.raises(AssertionError, match=r"~ 2\.1 Dropout: in float32\[3,4\] -> none, .*forward \S+ -> none"):
        guard().unchanged(recording)
    with pytest.raises(AssertionError, match=r"optimizer \d+:\S+ -> none|- AdamW"):
        guard().unchanged(net(), X, loss=step["loss"])
    with pytest.raises(InvalidInputError, match="takes no inputs"):
        guard().unchanged(graph, X)


def test_two_graphs_need_two_names(guard: Callable[..., Guard], tmp_path: Path) -> None:
    both = guard(update=True)
    both.unchanged(net(), X)
    both.within(net(), X, flops="+0")  # the same graph
    with pytest.raises(AssertionError, match=r"two graphs for one snapshot.*name="):
        both.unchanged(net(32), X)
    both.unchanged(net(32), X, name="wide")
    assert sorted(path.name for path in (tmp_path / "__atlas__").iterdir()) == ["test_it.txt", "test_it@wide.txt"]
    guard().unchanged(net(32), X, name="wide")


def test_names_of_files_are_safe_and_kept_apart() -> None:
    names = [file_name(name) for name in ("test[a/b]", "test[a_b]", "test[a b]", "t" * 300, "t" * 301, "../../x")]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "/" in name or " " in name or len(name) > 200]
    assert file_name("a", "b") != file_name("a@b")


# -- other versions and damaged files ----------------------------------------------------------------------------------


def test_a_snapshot_of_another_version_says_so(guard: Callable[..., Guard], tmp_path: Path) -> None:
    guard(update=True).unchanged(net(), X)
    now = ".".join(torch.__version__.split(".")[:2])
    edited(tmp_path, f"torch {now}.", "torch 2.1.")
    guard().unchanged(net(), X)  # the structure is the same: nothing to say
    with pytest.raises(AssertionError, match=rf"written with torch 2\.1, and this is torch {now}.*Run this test with"):
        guard().unchanged(net(32), X)
    edited(tmp_path, "torchatlas 0.", "torchatlas 9.")
    with pytest.raises(AssertionError, match=r"written by torchatlas 9\.\d, and this is"):
        guard().unchanged(net(32), X)
    edited(tmp_path, "snapshot 1,", "snapshot 2,")
    with pytest.raises(NewerVersionError, match=r"version 2 of the format.*pip install --upgrade"):
        guard().unchanged(net(), X)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", torch ", ", torch \x1b[31m", "its first line is not"),
        ("torchatlas snapshot", "<<<<<<< HEAD\ntorchatlas snapshot", "its first line is not"),
        ("\n1 ReLU", "\n=======\n1 ReLU", r"line 7: cannot be read: '======='"),
        ("total ops=", "total oops=", "not a whole snapshot"),
        ("parameters=212", "parameters=many", "line 3: cannot be read"),
        ("hash ", "mash ", "line 2: cannot be read"),
        ("Sequential in", 'Seq"uential in', "line 5: cannot be read"),
    ],
)
def test_damaged_snapshots_are_refused(
    guard: Callable[..., Guard], tmp_path: Path, old: str, new: str, message: str
) -> None:
    guard(update=True).unchanged(net(), X)
    edited(tmp_path, old, new)
    with pytest.raises(FileFormatError, match=message) as caught:
        guard().unchanged(net(), X)
    assert "To rewrite it: pytest --atlas-update" in str(caught.value)
    guard(update=True).unchanged(net(), X)
    guard().unchanged(net(), X)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:300], "not a whole snapshot"),
        (lambda data: b"\xff" + data, "its first line is not"),
        (lambda data: b"", "its first line is not"),
    ],
    ids=["cut off", "not text", "empty"],
)
def test_what_is_no_whole_text_is_refused_and_can_be_rewritten(
    guard: Callable[..., Guard], tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    guard(update=True).unchanged(net(), X)
    path = tmp_path / "__atlas__" / "test_it.txt"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.raises(FileFormatError, match=rf"(?s){message}.*To rewrite it: pytest --atlas-update"):
        guard().unchanged(net(), X)
    guard(update=True).unchanged(net(), X)
    assert path.read_bytes() == whole


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "broken"),
    [
        ({"flops": "+100%"}, []),
        ({"flops": "+99.9%"}, ["flops='+99.9%': 1.15 KFLOPs -> 2.30 KFLOPs (+100 %)"]),
        ({"macs": "+576"}, []),
        ({"macs": "+575"}, ["macs='+575': 576 -> 1.15K (+100 %)"]),
        ({"parameters": 0, "ops": 0}, ["parameters=0: 212 -> 420 (+98 %)"]),
        ({"ops": "+0"}, []),
        ({"peak_bytes": "+1KiB"}, ["peak_bytes='+1KiB': "]),
        ({"peak_bytes": "+2KiB", "flops": "<=2304"}, []),
        ({"flops": "<2304"}, ["flops='<2304': 2.30 KFLOPs; exactly 2,304"]),
        ({"parameters": "==420", "macs": ">= 1.1K"}, []),
        ({"parameters": "== 421"}, ["parameters='== 421': 420"]),
        ({"macs": ">2K"}, ["macs='>2K': 1.15K"]),
        ({"parameters": "-1%"}, ["parameters='-1%': 212 -> 420 (+98 %)"]),
    ],
)
def test_bounds(guard: Callable[..., Guard], bounds: dict[str, Any], broken: list[str]) -> None:
    guard(update=True).within(net(), X, flops="+0")
    if not broken:
        guard().within(net(32), X, **bounds)
        return
    with pytest.raises(AssertionError) as caught:
        guard().within(net(32), X, **bounds)
    lines = str(caught.value).splitlines()
    assert lines[0] == "out of bounds:"
    assert [line for line in lines if "='" in line or "=0:" in line] == [
        line for line in lines for one in broken if line.startswith(f"  {one}")
    ]
    assert any(line.startswith("to look at it: ") for line in lines)


def test_a_named_pipe_in_place_of_a_snapshot_is_not_waited_for(guard: Callable[..., Guard], tmp_path: Path) -> None:
    (tmp_path / "__atlas__").mkdir()
    os.mkfifo(tmp_path / "__atlas__" / "test_it.txt")
    with pytest.raises(FileSystemError, match="it is a named pipe"):
        guard().unchanged(net(), X)


def test_less_than_the_snapshot_is_fine_unless_it_may_not_change(guard: Callable[..., Guard]) -> None:
    guard(update=True).within(net(32), X, flops="+0")
    guard().within(net(), X, flops="+0", parameters="+0%")
    with pytest.raises(AssertionError, match="parameters=0"):
        guard().within(net(), X, parameters=0)


def test_a_bound_in_itself_needs_no_snapshot(guard: Callable[..., Guard], tmp_path: Path) -> None:
    guard().within(net(), X, flops="<=1.2K", parameters="<=212")
    guard(update=True).within(net(), X, flops="<=1.2K")
    assert not (tmp_path / "__atlas__").exists()
    with pytest.raises(AssertionError, match="there is no snapshot"):
        guard().within(net(), X, flops="<=1.2K", parameters=0)


@pytest.mark.parametrize("bound", [4200, 0.5, True, "5%", "4.2e9", "", "+", "+5q", "<=5%", "about 3", [1]])
def test_what_is_no_bound_is_refused(guard: Callable[..., Guard], bound: Any) -> None:
    with pytest.raises(InvalidInputError, match=r'flops=.* is no bound\. Write "\+1%"'):
        guard(update=True).within(net(), X, flops=bound)
    with pytest.raises(InvalidInputError, match="within needs a bound: "):
        guard().within(net(), X)
    with pytest.raises(InvalidInputError, match=r"needs a bound \(flop= is none; did you mean 'flops'"):
        guard().within(net(), X, flop="+1%")


def test_what_is_unknown_passes_no_bound(guard: Callable[..., Guard]) -> None:
    graph = atlas.autograd_graph(net()(X).sum())
    guard(update=True).within(graph, ops=0)
    with pytest.raises(AnalysisError, match="flops of the second graph is unknown"):
        guard().within(graph, flops="<=1e12")


@torch.library.custom_op("guard_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_operations_without_a_formula_decide_nothing(guard: Callable[..., Guard], tmp_path: Path) -> None:
    def program(x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            x = twice(x @ x.T)
        return x

    guard(update=True).within(program, X, 1, flops="+0")
    assert "uncosted guard_tests.twice.default 1\n" in (tmp_path / "__atlas__" / "test_it.txt").read_text()
    guard().within(program, X, 1, flops="+1%", ops=0)
    none = r"have none: guard_tests\.twice\.default \(\d\)"
    with pytest.raises(AnalysisError, match=f"cannot be judged, since not the same operations.*{none}"):
        guard().within(program, X, 2, flops="+1000%")
    with pytest.raises(AnalysisError, match=f"cannot be judged, since these {none}"):
        guard().within(program, X, 1, flops="<=1e12")
    with pytest.raises(AssertionError, match="out of bounds"):  # what is known is too much already
        guard().within(program, X, 1, flops="<=1")


# -- the doctor --------------------------------------------------------------------------------------------------------


def test_findings_fail(guard: Callable[..., Guard]) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(zeroed: bool) -> None:
        for _ in range(3):
            if zeroed:
                optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()

    guard().no_findings(train, True)
    guard().no_findings(train, zeroed=False, ignore="not-zeroed")
    with pytest.raises(AssertionError, match=r"error\[not-zeroed\].*weight"):
        guard().no_findings(train, zeroed=False, model=model)
    with pytest.raises(UnknownNameError):
        guard().no_findings(train, True, only="nonsense")
    with pytest.raises(InvalidInputError, match="takes a function"):
        guard().no_findings(model(X))
    with pytest.raises(ZeroDivisionError):
        guard().no_findings(lambda: 1 / 0)


# -- outputs -----------------------------------------------------------------------------------------------------------


def test_outputs_of_two_versions(guard: Callable[..., Guard], tmp_path: Path) -> None:
    old, new = net().train(), net().train()
    state, random = copy.deepcopy(old.state_dict()), torch.get_rng_state()
    guard().same_outputs(old, new, X)  # the dropout of both draws the same numbers
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(old.state_dict()[name], tensor) for name, tensor in state.items())
    with torch.no_grad():
        new[2][0].weight += 1e-4
    guard().same_outputs(old, new, X, tolerance=0.05)
    with pytest.raises(AssertionError) as caught:
        guard().same_outputs(old, new, X)
    assert "in module 2.0" in str(caught.value)
    assert "it takes 2.0.weight" in str(caught.value)
    page = next((tmp_path / "pages").iterdir())
    with pytest.raises(FileFormatError, match="compares 2 graphs"):
        atlas.load(page)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (lambda x: x + 1, lambda x: (x + 1).double(), "output is torch.float32 and torch.float64\n.*\nonly the new"),
        (lambda x: {"a": x}, lambda x: {"b": x}, r"returns 1 value \(output\['a'\]\), the new one 1 value"),
        (lambda x: (x, x), lambda x: (x,), r"returns 2 values \(output\[0\], output\[1\]\)"),
        (lambda x: x.relu() + 1, lambda x: x.sigmoid() + 1, "only the new one runs sigmoid"),
        (lambda x: x[:2], lambda x: x[1:2], r"shape \(2, 8\) in one run, \(1, 8\) in the other"),
        (lambda x: x / 0, lambda x: -x / 0, "24 of 24 numbers differ, by up to inf"),
        (lambda x: x.sign() * 2j, lambda x: x.sign() * 3j, "24 of 24 numbers differ, by up to 1\n"),
    ],
)
def test_how_outputs_differ(guard: Callable[..., Guard], old: Any, new: Any, message: str) -> None:
    guard().same_outputs(old, old, X)
    with pytest.raises(AssertionError, match=message):
        guard().same_outputs(old, new, X)


def test_outputs_against_a_file(guard: Callable[..., Guard], tmp_path: Path) -> None:
    model = net().eval()
    path = atlas.trace(model, X).save(tmp_path / "v1.atlas")
    guard().same_outputs(path, model, X)
    with torch.no_grad():
        model[2][0].bias += 1
    with pytest.raises(AssertionError, match=r"they differ first at 2\.0\.linear: .*its inputs are the same"):
        guard().same_outputs(path, model, X)
    for wrong in (nn.Linear, 3, {"weight": X}):
        with pytest.raises(InvalidInputError, match="same_outputs takes models"):
            guard().same_outputs(wrong, model, X)
    with pytest.raises(InvalidInputError, match="tolerance=-1 is no number"):
        guard().same_outputs(model, model, X, tolerance=-1)
