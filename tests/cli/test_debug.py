"""torchatlas debug: a script's backward pass at a terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
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
    stops = [line for line in result.stdout.splitlines() if "-> #" in line]
    assert len(stops) == 1
    assert stops[0].startswith(
        "-> #2 SqrtBackward0: gradient [2], worse.py:3 in <module>; it has run, and what it made"
    )
    assert stops[0].endswith("[not finite]")
    assert "0: float32[2] norm 2.828, min 2, max 2\n" in result.stdout
    assert "made 0: float32[2] norm inf, min 1, max inf, 1 not finite" in result.stdout
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


def test_text_that_cannot_be_read() -> None:
    result = debug("break \"foo\nuntil '\nbreak above\nbreak one two\nrun\n", "train.py")
    assert result.exit_code == 0, result.output
    assert "'\"foo' cannot be read: no closing quotation." in result.stdout
    assert result.stdout.count("cannot be read") == 2
    assert "above takes a number: above 10." in result.stdout
    assert "one name at a time, not 'one' and 'two'" in result.stdout
    assert "trained" in result.stdout
    for text in ("above", '"foo', "nan above"):
        before = debug("", "--break", text, "train.py")
        assert before.exit_code == 2
        assert "trained" not in before.stdout


KINDS = """
import torch
from torch.nn import functional as F

(torch.ones(3, 2, device="meta", requires_grad=True) * 2).sum().backward()
(torch.ones(2, dtype=torch.cfloat, requires_grad=True) * 1).backward(torch.tensor([5j, 3 + 4j]))
w = torch.ones(3, 2, requires_grad=True)
(F.embedding(torch.tensor([1, 1]), w, sparse=True) * torch.tensor([3.0, float("nan")])).sum().backward()
(torch.ones(0, requires_grad=True) * 2).sum().backward()
"""


def test_gradients_of_every_kind(folder: Path) -> None:
    (folder / "kinds.py").write_text(KINDS)
    result = debug("until AccumulateGrad\ngrads\n" * 4 + "run\n", "kinds.py")
    assert result.exit_code == 0, result.output
    assert "0: float32[3, 2] without numbers: on the meta device" in result.stdout
    assert "0: complex64[2] norm 7.071, size min 5, size max 5" in result.stdout
    assert "0: sparse_coo float32[3, 2] norm nan, min nan, max nan, 1 not finite" in result.stdout
    assert "0: float32[0]\n" in result.stdout


def test_breakpoints_that_never_came_are_told() -> None:
    result = debug("run\n" * 9, "-b", "TanBackward0", "-b", "above 1e9", "-b", "2.bias", "train.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("-> #") == 2
    told = [line for line in result.stdout.splitlines() if "never came" in line]
    assert len(told) == 2
    assert told[0].startswith("this breakpoint never came: TanBackward0; did you mean ")
    assert "'TanhBackward0'" in told[0]
    assert told[1] == "this breakpoint never came: norm above 1e+09"


def test_names_that_are_not_there_are_explained() -> None:
    result = debug("until tanh\nuntil xyz\nbreak Weight\nrun\n", "train.py")
    assert "named 'tanh'; did you mean 'TanhBackward0'?" in result.stdout
    assert "named 'xyz'; there are AccumulateGrad, AddmmBackward0, PowBackward0, " in result.stdout
    assert "named 'Weight'; did you mean '0.weight' or '2.weight'?" in result.stdout
    never = debug("run\n", "-b", "xyz", "train.py")
    assert "this breakpoint never came: xyz; there are AccumulateGrad, AddmmBackward0, " in never.stdout


def test_a_breakpoint_counts_where_another_one_came_first() -> None:
    result = debug("run\n" * 9, "-b", "TanhBackward0", "-b", "1", "train.py")
    assert result.exit_code == 0, result.output
    assert "never came" not in result.stdout


INTERRUPTED = """
import signal
import torch

x = torch.ones(2, requires_grad=True)
y = x.sin()
y.register_hook(lambda gradient: signal.raise_signal(signal.SIGINT))
y.exp().sum().backward()
print("ended", x.grad is not None)
"""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell has background jobs ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_at_the_next_node(folder: Path) -> None:
    (folder / "interrupted.py").write_text(INTERRUPTED)
    result = debug("run\nran\nrun\n", "interrupted.py")
    assert result.exit_code == 0, result.output
    stops = [line for line in result.stdout.splitlines() if "-> #" in line]
    assert len(stops) == 2
    assert "-> #2 SinBackward0" in stops[1]
    assert "ended True" in result.stdout
    with_breakpoint = debug("run\n", "--break", "nan", "interrupted.py")
    assert "-> #2 SinBackward0" in with_breakpoint.stdout
    assert "ended True" in with_breakpoint.stdout


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_at_the_prompt_ends_the_program(folder: Path) -> None:
    (folder / "twice.py").write_text(
        "import signal\n" + "signal.raise_signal(signal.SIGINT)\n" * 2 + "print('ended')\n"
    )
    at_the_prompt = debug("p __import__('signal').raise_signal(2)\n" + "run\n" * 9, "train.py")
    for result in (at_the_prompt, debug("", "twice.py")):  # the other: no node came since the first one
        assert result.exit_code == 1
        assert "the program did not end by itself" in result.stderr
        assert "Aborted" not in result.output
        assert "ended" not in result.stdout


@pytest.mark.usefixtures("interruptible")
def test_a_program_may_handle_interrupts_itself(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('handled')\n"
    )
    result = debug("", "own.py")
    assert result.exit_code == 0, result.output
    assert "handled" in result.stdout


def test_what_only_hands_out_a_gradient_is_not_in_the_queue(folder: Path) -> None:
    """torch.autograd.grad takes it from the queue and does not run it."""
    (folder / "grad.py").write_text(
        "import torch\nx, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)\n"
        "y, z = x.sin(), w.exp()\nloss = (y * z + z.cos()).sum()\nprint(torch.autograd.grad(loss, [y, w]))\n"
    )
    result = debug("step 3\nwaiting\nuntil ExpBackward0\nready\nwaiting\nrun\n", "grad.py")
    assert result.exit_code == 0, result.output
    said = [line.removeprefix("(backward) ").partition(":")[0] for line in result.stdout.splitlines()]
    assert said[1:6] == ["-> #3 MulBackward0", "ExpBackward0", "-> #4 ExpBackward0", "none", "none"]
    assert "5 nodes ran" in result.stdout


LONG = """
import gc, torch
freed = []

class Token:
    def __del__(self):
        freed.append(self)

for step in range(30):
    x = torch.ones(2, requires_grad=True)
    loss = (x.sin() if step % 2 else x.cos()).sum()
    loss.grad_fn.metadata["token"] = Token()
    loss.backward()
    del loss
gc.collect()
print("freed", len(freed))
"""


def test_a_long_program_is_not_kept(folder: Path) -> None:
    (folder / "long.py").write_text(LONG)
    typed = "step 60\nuntil SinBackward0\nuntil CosBackward0\nran\nrun\n"  # in the 21st pass both are known
    result = debug(typed, "long.py")
    assert result.exit_code == 0, result.output
    stops = [line.split(":")[0] for line in result.stdout.splitlines() if "-> #" in line]
    assert [stop.split("-> ")[1] for stop in stops] == [
        "#0 SumBackward0",
        "#60 SumBackward0",
        "#64 SinBackward0",
        "#67 CosBackward0",
    ]
    assert int(result.stdout.split("freed ")[1].split()[0]) >= 20
    assert "the program ended; 90 nodes ran" in result.stdout
