"""Random programs, each recorded, replayed, saved, costed, drawn and compared with the bytes it moved; and that the
checks can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from program_checks import faults_of, kind_of
from programs import Program, random_program, report, shortest
from support import sampled

import torchatlas as atlas
from torchatlas.capturing import recorded_graph
from torchatlas.capturing.tensor_states import DATA, TensorStates
from torchatlas.graph import arguments

PROGRAMS = 200  # in about a minute; python tests/programs.py runs more
_PER_TEST = 10


@pytest.mark.parametrize("first", sampled(range(0, PROGRAMS, _PER_TEST), 5))
def test_all_that_must_hold_of_a_program_holds(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        program = random_program(seed)
        if faults := faults_of(program):
            pytest.fail(report(program, faults), pytrace=False)


def test_a_seed_is_one_program_and_its_source_runs() -> None:
    program = random_program(7)
    assert program == random_program(7)
    assert program != random_program(8)
    names: dict[str, Any] = {}
    exec(compile(str(program), "<source>", "exec"), names)
    assert len(names["rec"].graph) > len(program.body)


def test_what_does_not_matter_is_taken_out() -> None:
    before = ("t0 = torch.ones(3)", "t1 = torch.zeros(2)")
    body = ("t2 = t0.sin()", "t3 = t1.cos()", "t4 = t2.exp()", "del t3", "t5 = t4 + t0")
    short = shortest(Program(0, before, body), lambda one: any("t4 = " in line for line in one.body))
    assert (short.before, short.body) == (("t0 = torch.ones(3)",), ("t2 = t0.sin()", "t4 = t2.exp()"))


# -- each check, with something broken that it must find ---------------------------------------------------------------


WRITES = Program(
    0, ("t0 = torch.ones(6)",), ("t1 = t0.exp()", "t2 = t1[:3]", "t2.add_(1)", "t3 = t1.sin()", "t1[1:4] = 0")
)
TRAINS = Program(
    0,
    ("m0 = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))", "t0 = torch.randn(3, 4)"),
    ("for step in range(4):\n    m0(t0).square().mean().backward()",),
)
SPECIAL = Program(0, (), ("t0 = torch.full((2,), -float('nan'))",))


def no_writers(*_: Any) -> Any:
    return [], False


def only_data(edges: Any) -> Any:
    return edges[edges[:, 5] == DATA]


def nothing_before(*_: Any) -> int:
    return 0


def any_nan(number: float) -> str:
    return repr(number)


def no_picture(*_: Any, **__: Any) -> Any:
    raise IndexError("a line from nowhere")


@pytest.mark.parametrize(
    ("program", "owner", "name", "wrong", "kind"),
    [
        (WRITES, TensorStates, "_writers_of", no_writers, "lost edge"),
        (WRITES, recorded_graph, "_tidy", only_data, "lost order"),
        (WRITES, recorded_graph._Assembly, "_bytes_from_outside", nothing_before, "live bytes"),
        (SPECIAL, arguments, "_float_text", any_nan, "verify"),
        (TRAINS, atlas, "draw", no_picture, "drawn raised IndexError"),
    ],
)
def test_a_check_finds_what_it_looks_for(
    program: Program, owner: Any, name: str, wrong: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faults_of(program) == []
    monkeypatch.setattr(owner, name, wrong)
    assert kind in {kind_of(fault) for fault in faults_of(program)}


def test_a_recording_that_draws_a_random_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = atlas.recording

    def drawing(*args: Any, **options: Any) -> Any:
        session = real(*args, **options)
        enter = type(session).__enter__
        monkeypatch.setattr(type(session), "__enter__", lambda self: (torch.rand(1), enter(self))[1])
        return session

    monkeypatch.setattr(atlas, "recording", drawing)
    assert "changed by being recorded" in {kind_of(fault) for fault in faults_of(WRITES)}
