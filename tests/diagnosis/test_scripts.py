"""The doctor on whole programs: every planted fault is found, by key and line, and nothing in healthy ones.

With both recorders: the doctor is told of ops by either, and has to say the same. All other tests of the doctor but
test_op_events.py run with the recorder in Python.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from support import sampled

import torchatlas as atlas
from torchatlas.diagnosis.events import DIAGNOSES

SCRIPTS = Path(__file__).parent / "scripts"
FAULTY = sorted((SCRIPTS / "faulty").glob("*.py"))
HEALTHY = sorted((SCRIPTS / "healthy").glob("*.py"))
_MARK = re.compile(r"# finds: ([\w-]+)")


@dataclass
class Ran:
    printed: str
    error: tuple[str, str] | None
    threads: int
    grad_mode: bool
    random: bytes


def run(script: Path, visit: atlas.diagnosis.Visit | None) -> Ran:
    """What a script prints, how it ends, and what it leaves behind."""
    torch.manual_seed(0)
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(), patch.object(sys, "argv", [str(script)]):
        warnings.simplefilter("ignore")  # the user's own
        try:
            with contextlib.nullcontext() if visit is None else visit:
                runpy.run_path(str(script), run_name="__main__")
        except Exception as raised:
            error = type(raised).__name__, str(raised)
        finally:
            torch.set_default_dtype(torch.float32)  # what a program sets is for itself
            torch.autograd.set_detect_anomaly(False)
    random = bytes(torch.random.get_rng_state().numpy())
    return Ran(printed.getvalue(), error, torch.get_num_threads(), torch.is_grad_enabled(), random)


def expected(script: Path) -> list[tuple[str, int]]:
    lines = enumerate(script.read_text().splitlines(), 1)
    return [(found[1], number) for number, line in lines if (found := _MARK.search(line))]


@pytest.mark.parametrize("script", sampled(FAULTY, 5), ids=lambda path: path.stem)
def test_the_fault_is_found_at_its_line(script: Path, recorder: str) -> None:
    visit = atlas.doctor()
    watched = run(script, visit)
    planted = expected(script)
    assert planted
    assert set(visit.findings.keys) == {key for key, _ in planted}
    for key, line in planted:
        lines = [place for finding in visit.findings if finding.key == key for place in finding.lines]
        assert line in [number for file, number in lines if Path(file).name == script.name], str(visit.findings)
    assert watched == run(script, None)


@pytest.mark.parametrize("script", sampled(HEALTHY, 6), ids=lambda path: path.stem)
def test_nothing_is_found_in_a_healthy_program(script: Path, recorder: str) -> None:
    visit = atlas.doctor()
    watched = run(script, visit)
    assert str(visit.findings) == f"no fault found; looked for: {', '.join(DIAGNOSES)}"
    assert watched == run(script, None)


def test_the_corpus_is_large_and_plants_every_fault() -> None:
    planted = [key for script in FAULTY for key, _ in expected(script)]
    assert len(FAULTY) >= 40
    assert len(HEALTHY) >= 40
    assert set(planted) == set(DIAGNOSES)
    assert not any(expected(script) for script in HEALTHY)
