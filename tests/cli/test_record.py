"""torchatlas record: a script's steps in a folder, and the script as it is alone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.runs.run import Run

TRAIN = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(12):
    optimizer.zero_grad()
    loss = net(torch.randn(3, 4)).square().sum()
    loss.backward()
    optimizer.step()
    if step == 6 and "--fail" in sys.argv:
        raise ValueError("no more")
    if step == 6 and "--interrupt" in sys.argv:
        raise KeyboardInterrupt
    if step == 6 and "--wait" in sys.argv:
        import time
        open("waits", "w").close()
        time.sleep(60)
print("trained", round(loss.item(), 6))
for code in ("3", "0", "bye"):
    if code in sys.argv:
        sys.exit(int(code) if code.isdecimal() else code)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(*arguments: str, verb: str = "record") -> Result:
    return CliRunner().invoke(main, [verb, *arguments])


def loaded(path: str = "run.atlas") -> Run:
    found = atlas.load(path)
    assert isinstance(found, Run)
    return found


def test_a_script_and_what_can_be_asked_then() -> None:
    result = record("--every", "4", "--last", "1", "--gradients", "train.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("trained")
    assert len(result.stdout.splitlines()) == 1, "stdout is the script's"
    assert result.stderr == "torchatlas recorded 3 steps in run.atlas; torchatlas view run.atlas opens it.\n"
    run = loaded()
    assert run.steps.numbers == [0, 4, 8]
    assert run.kept == [8]
    assert run.steps["gradient_norm:(top level)"] == run.steps["gradient_norm"]
    assert "run: 3 steps recorded" in record("run.atlas", verb="summary").stdout
    assert json.loads(record("--json", "run.atlas", verb="summary").stdout)["steps"] == 3
    page = json.loads(
        record("run.atlas", "--step", "4", "-o", "run.html", "--json", "--no-browser", verb="view").stdout
    )
    assert (page["steps"], page["shown"]) == (3, 4)
    assert Path("run.html").stat().st_size > 100_000
    for arguments, words in (
        (("run.atlas", "run.html", "-o", "x.html"), "shown by itself"),
        (("run.html", "--step", "4"), "--step is for a recorded run"),
    ):
        refused = record(*arguments, verb="view")
        assert refused.exit_code == 2
        assert words in refused.stderr
    told = record("run.atlas", verb="cost")
    assert told.exit_code == 2
    assert "is a recorded run, which holds many graphs" in told.stderr


@pytest.mark.parametrize(
    ("argument", "code", "ended"),
    [
        ("3", 3, "failed"),
        ("0", 0, "finished"),
        ("bye", 1, "failed"),
        ("--fail", 1, "failed"),
        ("--interrupt", 130, "failed"),
    ],
)
@pytest.mark.usefixtures("in_python")
def test_it_ends_as_it_ends_alone(argument: str, code: int, ended: str) -> None:
    result = record("train.py", argument)
    assert result.exit_code == code
    run = loaded()
    assert run.ended == ended
    assert len(run) == (7 if argument.startswith("--") else 12)
    if argument == "--fail":
        assert "ValueError: no more" in result.stderr
        assert "torchatlas/runs" not in result.stderr, "frames of ours are not the script's"
    if argument == "bye":
        assert "bye" in result.stderr


def test_a_script_that_ends_before_a_step(folder: Path) -> None:
    (folder / "early.py").write_text("import sys; sys.exit(2)")
    result = record("early.py")
    assert result.exit_code == 2
    assert "recorded 0 steps in run.atlas; there is nothing in it to view." in result.stderr
    assert "opens it" not in result.stderr


def test_a_ctrl_c_has_no_message(folder: Path) -> None:
    result = record("train.py", "--interrupt")
    assert "KeyboardInterrupt:" not in result.stderr
    assert loaded().notes == ["ended early at step 7: KeyboardInterrupt"]


def test_json() -> None:
    result = record("--json", "train.py", "--fail")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["failure"] == "ValueError: no more"
    assert (told["steps"], told["ended"]) == (7, "failed")


def test_what_cannot_be_recorded(folder: Path) -> None:
    (folder / "there.atlas").mkdir()
    for arguments, words in (
        (("--out", "there.atlas", "train.py"), "is there already"),
        (("--out", "none/run.atlas", "train.py"), "does not exist"),
        (("--out", "run.json", "train.py"), "ends in .atlas"),
        (("--every", "0", "train.py"), "0 is not in the range"),
        (("missing.py",), "There is no file missing.py"),
        (("json:dumps",), "is no script"),
    ):
        result = record(*arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "trained" not in result.stdout, "nothing ran"


@pytest.mark.child
def test_sigterm_ends_it_in_order(folder: Path) -> None:
    child = os.fork()
    if not child:
        try:
            main(["record", "train.py", "--wait"])
        finally:
            os._exit(9)
    patience = time.monotonic() + 120
    while time.monotonic() < patience and not (folder / "waits").exists():
        time.sleep(0.05)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    run = loaded()
    assert run.ended == "failed"
    assert len(run) == 7
    assert "Terminated" in run.notes[0]
