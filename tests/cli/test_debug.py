"""torchatlas debug: a script's backward pass at a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchatlas.cli import main

SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    loss = net(torch.randn(3, 4)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained", sys.argv[1:], round(sum(p.sum().item() for p in net.parameters()), 6))
"""
WORSE = "import torch\nx = torch.tensor([0.0, 1.0], requires_grad=True)\n(x.sqrt() * 2).sum().backward()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "worse.py").write_text(WORSE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def debug(typed: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["debug", *arguments], input=typed)


def test_a_conversation() -> None:
    typed = "step\nstep 2\nwhere\ngrads\nready\nwaiting\nran\nmodule\np grads[0].shape\nbreak\nrun\n"
    result = debug(typed, "train.py", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "-> #0 SumBackward0: gradient [], train.py:10 in <module>" in result.stdout
    assert "-> #1 PowBackward0" in result.stdout
    assert "2.AddmmBackward0" in result.stdout
    assert "norm " in result.stdout
    assert "torch.Size(" in result.stdout
    assert "trained ['--epochs', '1']" in result.stdout
    assert "the program ended; 22 nodes ran" in result.stdout


def test_a_debugged_script_computes_what_it_computes_alone(folder: Path) -> None:
    stepped, ran = debug("step\n" * 60, "train.py").stdout, debug("run\n", "train.py").stdout
    numbers = [text.split("trained [] ")[1].split()[0] for text in (stepped, ran)]
    assert numbers[0] == numbers[1]
    replaced = debug("until PowBackward0\nreplace 0 grads[0] * 100\nrun\n", "train.py").stdout
    assert replaced.split("trained [] ")[1].split()[0] != numbers[0]


def test_breakpoints_and_commands_from_outside() -> None:
    result = debug("", "--break", "nan", "-c", "grads", "-c", "run", "worse.py")
    assert result.exit_code == 0, result.output
    assert "AccumulateGrad" in result.stdout
    assert "[not finite]" in result.stdout
    assert "2 not finite" in result.stdout or "1 not finite" in result.stdout
    twice = debug("run\nrun\nrun\n", "-b", "TanhBackward0", "train.py")
    assert twice.stdout.count("-> #") == 2


def test_mistakes_are_told_and_the_conversation_goes_on() -> None:
    typed = (
        "foo\nuntil Tanbackward0\nstep x\nabove\nbreak above many\ndelete 7\nreplace 0\np 1/0\nreplace 0 3\nhelp\nrun\n"
    )
    result = debug(typed, "train.py")
    assert result.exit_code == 0, result.output
    for message in (
        "unknown: 'foo'",
        "did you mean 'TanhBackward0'",
        "step takes a number from 1, not 'x'",
        "above takes a number",
        "there is no breakpoint '7'",
        "replace takes a number and an expression",
        "ZeroDivisionError",
        "a gradient is a tensor, not int",
        "Documented commands",
    ):
        assert message in result.stdout


def test_leaving_ends_the_program() -> None:
    for typed in ("quit\n", ""):  # and when nobody is there to type
        result = debug(typed, "train.py")
        assert result.exit_code == 1
        assert "the program did not end by itself" in result.stderr
        assert "trained" not in result.stdout


def test_what_cannot_be_debugged() -> None:
    assert "is no script" in debug("", "train:net").stderr
    assert "has no --json" in debug("", "--json", "train.py").stderr


def test_parameters_have_names() -> None:
    result = debug("until 0.weight\nuntil 2.bias\nbreak 3.weight\nrun\n", "train.py")
    assert result.exit_code == 0, result.output
    stops = [line for line in result.stdout.splitlines() if "-> #" in line]
    assert "AccumulateGrad_1 of 0.weight in 0: gradient [8, 4]" in stops[1]
    assert "AccumulateGrad of 2.bias in 2: gradient [1]" in stops[2]  # of the second pass: named anew
    assert "no node, operation, module or parameter is named '3.weight'" in result.stdout


def test_parameters_of_several_models_are_told_apart(folder: Path) -> None:
    (folder / "two.py").write_text(
        "import torch\nfrom torch import nn\none, two = nn.Linear(2, 3), nn.Linear(3, 1)\n"
        "two(one(torch.ones(1, 2))).sum().backward()\n"
    )
    result = debug("until Linear.weight\nuntil Linear_1.weight\nrun\n", "two.py")
    assert result.exit_code == 0, result.output
    assert "of Linear.weight in Linear: gradient [3, 2]" in result.stdout
    backwards = debug("until Linear_1.weight\nrun\n", "two.py")
    assert "of Linear_1.weight in Linear_1: gradient [1, 3]" in backwards.stdout
