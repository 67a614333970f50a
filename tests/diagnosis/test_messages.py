"""A message says what this program did, and no more: the programs are those of the lessons."""

from __future__ import annotations

import pytest

from torchatlas.diagnosis.findings import Finding
from torchatlas.learn.catalogue import lesson_named
from torchatlas.learn.lesson import Kind
from torchatlas.learn.runner import Runner, undisturbed


def finding_of(key: str, **changes: str) -> Finding:
    lesson = lesson_named(key)
    step = lesson.step(Kind.BROKEN)
    code = step.code
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    with undisturbed():
        outcome = Runner(lesson).run(type(step)(step.text, step.kind, code))
    assert outcome.findings is not None
    return outcome.findings[0]


def test_a_mode_is_explained_by_the_layers_that_are_there() -> None:
    assert finding_of("eval-mode").why == "its Dropout dropped nothing, in a forward pass that a step followed"
    norm = finding_of("eval-mode", **{"nn.Dropout(0.5)": "nn.BatchNorm1d(32)"})
    assert norm.why.startswith("its BatchNorm1d used running statistics and did not update them, in a forward pass")
    assert finding_of("train-mode").why == "its Dropout dropped units at random, as in training"
    both = finding_of("train-mode", **{"nn.Dropout(0.5)": "nn.Dropout(0.5), nn.BatchNorm1d(32)", "x[:1]": "x[:2]"})
    assert both.why == (
        "its Dropout dropped units at random, and its BatchNorm1d used the statistics of the batch, as in training"
    )


def test_the_op_that_cuts_is_named_with_its_reason() -> None:
    assert finding_of("loss-without-grad").where[0].what == "cut because int64 has no gradient: argmax"


def test_what_is_not_finite_is_counted() -> None:
    first, second, _ = finding_of("not-finite-backward").where
    assert first.what == "div made infinity from () in [1, 1], () in [0, 0], in SqrtBackward0, of sqrt"
    assert second.what.startswith("mul made 2 NaN among 2 numbers (2,) from (2,) and 2 of inf")


@pytest.mark.slow
def test_the_advice_fits_the_direction() -> None:
    assert "ReLU" in finding_of("vanishing").fix
    assert "ReLU" not in finding_of("exploding").fix
    assert "clipping" in finding_of("exploding").fix
