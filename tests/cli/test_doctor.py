"""torchatlas doctor: a script's training, judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchatlas
from torchatlas.cli import main
from torchatlas.diagnosis.diagnosis import DIAGNOSES

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
    assert "not-zeroed: the gradients of weight, bias still hold those of an earlier step (2 times)" in result.stdout
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
    assert result.exit_code == 3, result.output
    assert "optimizer-misses]: other.weight, other.bias get gradients" in result.stdout
    assert "not judged" not in result.stdout
    found = json.loads(doctor("--json", "main.py", code).stdout)
    assert (found["failure"], found["checks"], found["not_judged"]) == (None, list(DIAGNOSES), [])


@pytest.mark.parametrize(("code", "exit_code"), [("1", 1), ("bad data", 1), ("raise", 1), ("interrupt", 130)])
def test_a_script_that_is_cut_short_is_not_judged_as_a_whole(folder: Path, code: str, exit_code: int) -> None:
    (folder / "main.py").write_text(LEAVES)
    result = doctor("main.py", code)
    assert result.exit_code == exit_code
    looked_for, not_judged = result.stdout.splitlines()[-2:]
    whole = ["graph-kept", "no-gradient", "optimizer-misses", "retain-graph", "train-mode"]
    assert looked_for == f"no fault found; looked for: {', '.join(key for key in DIAGNOSES if key not in whole)}"
    assert not_judged == f"not judged, as the program did not run to its end: {', '.join(whole)}"
    found = json.loads(doctor("--json", "main.py", code).stdout)
    assert (found["checks"], found["not_judged"]) == ([key for key in DIAGNOSES if key not in whole], whole)


def test_the_last_words_of_a_script_are_heard(folder: Path) -> None:
    (folder / "says.py").write_text("import sys\nsys.exit('no data found')\n")
    result = doctor("says.py")
    assert result.exit_code == 1
    assert result.stderr == "no data found\n"
    assert json.loads(doctor("--json", "says.py").stdout)["failure"] == "SystemExit: no data found"
