"""torchatlas doctor: a script's training, judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchatlas
from torchatlas.cli import main
from torchatlas.diagnosis.events import DIAGNOSES

HEALTHY = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    if "--zero" in sys.argv:
        optimizer.zero_grad()
    loss = net(torch.randn(3, 4)).square().sum()
    loss.backward()
    optimizer.step()
print("trained", round(loss.item(), 6))
"""
BROKEN = "import torch\nx = torch.ones(2, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(HEALTHY)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(4)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_a_healthy_script() -> None:
    result = doctor("train.py", "--zero")
    assert result.exit_code == 0, result.output
    assert "trained" in result.stdout
    assert result.stdout.splitlines()[-1] == f"no fault found; looked for: {', '.join(DIAGNOSES)}"


def test_a_fault_and_its_line() -> None:
    result = doctor("train.py")
    assert result.exit_code == 3
    assert (
        "error[not-zeroed]: the gradients of weight, bias still hold those of an earlier step (2 times)"
        in result.stdout
    )
    assert "train.py:14 in <module> (optimizer.step())" in result.stdout
    assert "fix: call optimizer.zero_grad()" in result.stdout


def test_a_script_that_fails_is_told_of_first() -> None:
    result = doctor("broken.py")
    assert result.exit_code == 1
    assert "RuntimeError: one of the variables needed for gradient computation" in result.stderr
    assert str(Path(torchatlas.__file__).parent) not in result.stderr  # only the script's own frames
    assert "written by add_, broken.py:4 in <module> (y += 1)" in result.stdout
    assert doctor("leaves.py").exit_code == 1


def test_as_json() -> None:
    result = doctor("--json", "broken.py")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["failure"].startswith("RuntimeError: one of the variables")
    (finding,) = found["findings"]
    assert finding["key"] == "in-place"
    assert [place["source"]["line"] for place in finding["where"]] == [3, 4]
    healthy = json.loads(doctor("--json", "train.py", "--zero").stdout)
    assert (healthy["findings"], healthy["failure"], healthy["checks"]) == ([], None, list(DIAGNOSES))


def test_only_some_and_a_list_of_all() -> None:
    assert doctor("--only", "in-place", "train.py").exit_code == 0
    assert doctor("--list").stdout.split() == list(DIAGNOSES)
    unknown = doctor("--only", "inplace", "train.py")
    assert unknown.exit_code == 2
    assert "did you mean 'in-place'" in unknown.stderr


def test_what_is_no_script() -> None:
    assert "doctor runs scripts" in doctor("json:loads").stderr
    assert "There is no file missing.py" in doctor("missing.py").stderr


LEAVES = """
import sys
import torch
from torch import nn


def main(code):
    net, other = nn.Linear(4, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        other(net(torch.ones(3, 4))).sum().backward()
        optimizer.step()
    if code == "raise":
        raise ValueError("no more data")
    if code == "interrupt":
        raise KeyboardInterrupt
    return {"none": None, "false": False}.get(code, code if not code.isdigit() else int(code))


sys.exit(main(sys.argv[1]))
"""


@pytest.mark.parametrize("code", ["none", "0", "false"])
def test_a_script_that_ends_by_leaving_is_judged_as_a_whole(folder: Path, code: str) -> None:
    (folder / "main.py").write_text(LEAVES)
    result = doctor("main.py", code)
    assert result.exit_code == 4, result.output
    assert "warning[optimizer-misses]: other.weight, other.bias get gradients" in result.stdout
    assert "not judged" not in result.stdout
    found = json.loads(doctor("--json", "main.py", code).stdout)
    assert (found["failure"], found["checks"], found["not_judged"]) == (None, list(DIAGNOSES), [])


@pytest.mark.slow
@pytest.mark.parametrize(("code", "exit_code"), [("1", 1), ("bad data", 1), ("raise", 1), ("interrupt", 130)])
def test_a_script_that_is_cut_short_is_not_judged_as_a_whole(folder: Path, code: str, exit_code: int) -> None:
    (folder / "main.py").write_text(LEAVES)
    result = doctor("main.py", code)
    assert result.exit_code == exit_code
    not_judged, ended = result.stdout.splitlines()[-2:]
    whole = [key for key in DIAGNOSES if key in DIAGNOSES[key].needs_the_end]
    assert {"graph-kept", "no-gradient", "nothing-changes", "train-mode"} < set(whole)
    kind = {"raise": "ValueError", "interrupt": "KeyboardInterrupt"}.get(code, "SystemExit")
    assert ended == f"the program ended with {kind}; no fault was found that explains it"
    assert not_judged == f"not judged, as the program did not run to its end: {', '.join(whole)}"
    found = json.loads(doctor("--json", "main.py", code).stdout)
    assert (found["checks"], found["not_judged"]) == ([key for key in DIAGNOSES if key not in whole], whole)


def test_the_last_words_of_a_script_are_heard(folder: Path) -> None:
    (folder / "says.py").write_text("import sys\nsys.exit('no data found')\n")
    result = doctor("says.py")
    assert result.exit_code == 1
    assert result.stderr == "no data found\n"
    assert json.loads(doctor("--json", "says.py").stdout)["failure"] == "SystemExit: no data found"


def test_the_report_begins_on_a_line_of_its_own(folder: Path) -> None:
    (folder / "dots.py").write_text("print('...', end='')\n")
    assert doctor("dots.py").stdout.startswith("...\nno fault found")


def test_what_is_ignored_is_not_looked_for() -> None:
    result = doctor("--ignore", "not-zeroed", "train.py")
    assert result.exit_code == 0, result.output
    assert "not-zeroed" not in result.stdout
    assert "did you mean 'not-zeroed'" in doctor("--ignore", "not-zero", "train.py").stderr


@pytest.mark.parametrize(
    ("comment", "code"), [("not-zeroed", 0), ("in-place, not-zeroed", 0), ("", 0), ("in-place", 3)]
)
def test_a_comment_in_the_line_says_that_it_is_meant(folder: Path, comment: str, code: int) -> None:
    marked = HEALTHY.replace("optimizer.step()", f"optimizer.step()  # atlas: ignore {comment}")
    (folder / f"marked{len(comment)}.py").write_text(marked)  # a name of its own: lines of equal code are remembered
    assert doctor(f"marked{len(comment)}.py").exit_code == code


def test_the_exit_code_is_that_of_the_worst_finding(folder: Path) -> None:
    retains = HEALTHY.replace("loss.backward()", "loss.backward(retain_graph=True)")
    (folder / "train.py").write_text(retains)
    warned, both = doctor("train.py", "--zero"), doctor("train.py")
    assert (warned.exit_code, warned.stdout.splitlines()[-1]) == (4, "1 warning")
    assert (both.exit_code, both.stdout.splitlines()[-1]) == (3, "1 error, 1 warning")
    noted = "import torch\nx = torch.ones(5000, 5000, requires_grad=True)\n(x.exp() * 2).sum().backward()\n"
    (folder / "note.py").write_text(noted)
    note = doctor("--only", "saved-memory", "note.py")
    assert (note.exit_code, note.stdout.splitlines()[-1]) == (0, "1 note")


def test_a_failure_of_ours_is_told_as_ours_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(DIAGNOSES["not-zeroed"], "before_step", fails)
    result = doctor("train.py", "--zero")
    assert "trained" in result.stdout
    assert result.exit_code == 2
    own, not_judged, last = result.stdout.splitlines()[-3:]
    assert own.startswith("torchatlas itself failed, not the program: ValueError: a bug (test_doctor.py:")
    assert own.endswith("while it looked for not-zeroed")
    assert not_judged == "not judged, as torchatlas failed: not-zeroed"
    assert last.startswith("no fault found; looked for: ")
    assert "not-zeroed" not in last
    assert "Traceback" not in result.stderr
    assert 'raise ValueError("a bug")' in doctor("--traceback", "train.py", "--zero").stderr


@pytest.mark.parametrize("event", ["op_ran", "module_called", "before_backward", "node_runs", "after_step", "at_end"])
def test_a_failure_in_any_event_leaves_the_program_alone(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError

    for kind in {DIAGNOSES[key] for key in DIAGNOSES}:
        monkeypatch.setattr(kind, event, fails)
    result = doctor("train.py", "--zero")
    alone = doctor("--only", "in-place", "train.py", "--zero")
    assert result.stdout.splitlines()[0] == alone.stdout.splitlines()[0]
    assert "torchatlas itself failed" in result.stdout


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        ("print('hello')", True),
        ("import argparse\nargparse.ArgumentParser().parse_args()", True),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--json')\np.parse_args()", False),
    ],
)
def test_an_option_after_the_script_gets_a_hint(folder: Path, script: str, hint: bool) -> None:
    (folder / "some.py").write_text(script)
    result = doctor("some.py", "--json", "x")
    assert ("--json went to some.py: options of torchatlas come before" in result.stderr) == hint, result.stderr


FORKS = """
import os, sys
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    print("child is over", flush=True)
    sys.exit(5)
print("child ended with", 5 if child is None else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.child
def test_a_process_that_the_script_forks_ends_as_it_does_alone(folder: Path) -> None:
    (folder / "forks.py").write_text(FORKS)
    ran = subprocess.run(
        [sys.executable, "-m", "torchatlas", "doctor", "forks.py"], capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.count("no fault found") == 1
    assert "child ended with 5" in ran.stdout
