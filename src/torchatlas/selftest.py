"""Which parts of torchatlas work on this installation: the canaries, and a small piece of work for each large part.

It changes the state of its process, as canaries do, and takes some ten seconds: run it in a process of its own.
"""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional as F

from torchatlas.errors import StateError

_PACKAGE = os.path.dirname(__file__) + os.sep
_WORD = {True: "works", False: "FAILS"}


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    works: bool
    detail: str  # what was done; or why it fails, in one line
    seconds: float


@dataclass(frozen=True)
class SelftestReport:
    """What was tried, in order. True if all of it works."""

    torch: str
    python: str
    canaries: tuple[Check, ...]  # by the names of the symbols they watch
    work: tuple[Check, ...]

    def __bool__(self) -> bool:
        return all(check.works for check in (*self.canaries, *self.work))

    def to_dict(self) -> dict[str, Any]:
        return {"works": bool(self), **asdict(self)}

    def __str__(self) -> str:
        alive = sum(check.works for check in self.canaries)
        lines = [
            f"torch {self.torch}, Python {self.python}",
            f"{_WORD[alive == len(self.canaries)]}  private symbols of torch: {alive} of {len(self.canaries)} canaries",
        ]
        lines += [f"  FAILS  {check.name}: {check.detail}" for check in self.canaries if not check.works]
        lines += [f"{_WORD[check.works]}  {check.name}: {check.detail}" for check in self.work]
        return "\n".join(lines)


def selftest() -> SelftestReport:
    """Try everything. What fails is in the report and raises nothing."""
    if not __debug__:
        raise StateError("the canaries are assertions, which python -O leaves out. Run it without -O.")
    try:
        from torchatlas.canaries import CANARIES
    except ImportError as error:  # torch lacks a symbol: the work below says so, too, wherever it is needed
        canaries = [Check("imports", False, _in_one_line(error), 0.0)]
    else:
        canaries = _tried((name, CANARIES[name]) for name in CANARIES)
    return SelftestReport(torch.__version__, platform.python_version(), tuple(canaries), tuple(_tried(WORK.items())))


def _tried(checks: Iterable[tuple[str, Callable[[], str | None]]]) -> list[Check]:
    tried = []
    for name, check in checks:
        began = time.perf_counter()
        try:
            works, detail = True, check() or ""
        except Exception as error:
            works, detail = False, _in_one_line(error)
        tried.append(Check(name, works, detail, round(time.perf_counter() - began, 3)))
    return tried


def _in_one_line(error: Exception) -> str:
    """Its kind, its message, and the innermost line of torchatlas."""
    message = " ".join(str(error).split()) or "an assertion does not hold"
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without our own `try`
    lines = [frame for frame in frames if frame.filename.startswith(_PACKAGE)]
    where = f" ({lines[-1].filename.removeprefix(_PACKAGE)}:{lines[-1].lineno}: {lines[-1].line})" if lines else ""
    return f"{type(error).__name__}: {message}{where}"


def _model_and_tokens() -> tuple[torch.nn.Module, torch.Tensor]:
    from torchatlas.demo import TinyGPT

    torch.manual_seed(0)
    return TinyGPT(vocabulary=32, width=16, layers=2, heads=2, context=16), torch.randint(0, 32, (2, 8))


def _loss(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), torch.arange(16))


def _training_step() -> Any:
    from torchatlas.capturing import capture

    model, tokens = _model_and_tokens()
    return capture(model, tokens, loss=_loss, optimizer=torch.optim.AdamW, values="replay")


def replay() -> str:
    """Record a training step and run it again."""
    from torchatlas.execute.verify_replay import verify

    graph = _training_step()
    verification = verify(graph)
    assert verification, str(verification)
    return f"{len(graph)} nodes of a training step of a small GPT, replayed to the same bits"


def autograd_walk() -> str:
    """Walk the graph of a loss, and compare the debugger's gradients with torch's."""
    from torchatlas.autograd.autograd_graph import autograd_graph
    from torchatlas.autograd.debugger import debug_backward

    model, tokens = _model_and_tokens()
    parameters = list(model.parameters())
    expected = torch.autograd.grad(_loss(model(tokens)), parameters)
    loss = _loss(model(tokens))
    graph = autograd_graph(loss)
    debug_backward(loss).run()
    gradients = [parameter.grad for parameter in parameters]
    assert all(mine is not None and torch.equal(mine, one) for mine, one in zip(gradients, expected, strict=True))
    return f"{len(graph)} nodes; the debugger's gradients are torch's"


def traced_model() -> str:
    """Trace a model, and run it with another length."""
    from torchatlas.execute.traced import trace

    model, tokens = _model_and_tokens()
    traced = trace(model.eval(), tokens)
    shorter = tokens[:, :5]
    with torch.no_grad():
        assert torch.equal(traced(shorter), model(shorter)), "the traced model and the model differ"
    return f"{len(traced.graph)} nodes; the same results at another length"


def doctor() -> str:
    """Look at a healthy training step."""
    from torchatlas.diagnosis import doctor as examine

    model, tokens = _model_and_tokens()
    loss = _loss(model(tokens))
    findings = examine(loss, model=model)
    assert not list(findings), str(findings)
    return "a healthy training step has no findings"


def picture() -> str:
    """Draw a training step."""
    from torchatlas.render.picture import draw

    png = draw(_training_step()).png()
    assert png.startswith(b"\x89PNG"), "not a PNG"
    return f"a training step as a PNG of {len(png):,} bytes"


WORK: dict[str, Callable[[], str]] = {
    "training step with replay": replay,
    "autograd walk": autograd_walk,
    "traced model": traced_model,
    "doctor": doctor,
    "picture": picture,
}
