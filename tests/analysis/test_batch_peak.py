"""The peak at other batch sizes: predicted from small fake captures, compared with captures at the size itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.batch_peak import BatchPeak, peak_for_batch
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph


def step(batch: int, fake: bool = True) -> Graph:
    """Much state and small activations: the peak is in the optimizer for small batches, in backward for large ones."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    x = torch.empty(batch, 64, device="meta") if fake else torch.randn(batch, 64)
    return atlas.capture(model, x, optimizer=torch.optim.AdamW, fake=fake)


def second_step(
    batch: int, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any
) -> Graph:
    """The same with an optimizer that has stepped: any step of a training but its first."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    chosen = optimizer(model.parameters())
    model(torch.randn(2, 64)).sum().backward()
    chosen.step()
    chosen.zero_grad()
    return atlas.capture(model, torch.randn(batch, 64), optimizer=chosen, **options)


@pytest.fixture(scope="module")
def growth() -> BatchPeak:
    return peak_for_batch(step)


@pytest.mark.parametrize("batch", [1, 2, 5, 33, 500])
def test_it_is_the_peak_of_a_capture_at_that_size(growth: BatchPeak, batch: int) -> None:
    captured = second_step(batch, fake=True)
    assert growth.exact
    assert growth.at(batch) == captured.peak_bytes
    assert growth.node_at(batch) == captured[int(captured.columns["node_memory_bytes"].argmax())].name


def test_it_is_the_peak_of_a_real_run(growth: BatchPeak) -> None:
    assert growth.at(200) == second_step(200).peak_bytes > step(200, fake=False).peak_bytes


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam])
@pytest.mark.parametrize("fake", [True, False])
def test_the_state_of_any_optimizer_counts_from_the_beginning(optimizer: Any, fake: bool) -> None:
    made = partial(optimizer, momentum=0.9) if optimizer is torch.optim.SGD else optimizer
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))

    def first_step(batch: int) -> Graph:
        return atlas.capture(model, torch.randn(batch, 64), optimizer=made(model.parameters()), fake=fake)

    found = peak_for_batch(first_step)
    assert found.at(300) == second_step(300, made).peak_bytes
    has_stated = any("had not stepped" in note for note in found.notes)
    assert has_stated == bool(found.state_bytes) == (optimizer is not torch.optim.Adagrad)  # it makes its state at once


def test_what_is_not_known_makes_every_answer_a_bound() -> None:
    model = nn.LSTM(16, 32, 2)
    found = peak_for_batch(
        lambda batch: atlas.capture(model, torch.empty(10, batch, 16, device="meta"), backward=True, fake=True)
    )
    batch, peak = found.largest_batch("1GB"), found.at(64)
    assert found.at_least
    assert (str(batch), str(peak)) == (f"at most {batch:d}", f"at least {peak:d}")
    assert isinstance(batch, int)
    assert json.loads(json.dumps({"batch": batch})) == {"batch": int(batch)}
    assert any("mkldnn_rnn_layer" in note and "not known" in note for note in found.notes)
    assert "at least 1" in str(found)


def test_a_capture_with_a_stepped_optimizer_leaves_it_alone() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    before = {name: tensor.clone() for name, tensor in optimizer.state[model.weight].items()}
    graph = atlas.capture(model, torch.ones(4, 8), optimizer=optimizer, fake=True)
    assert graph.where(phase="optimizer")
    after = optimizer.state[model.weight]
    assert all(type(after[name]) is torch.Tensor and torch.equal(after[name], before[name]) for name in before)


def test_the_peak_moves_to_another_place(growth: BatchPeak) -> None:
    """Which a line through the peaks of small batches would miss by far."""
    assert step(4)[growth.node_at(4)].phase == "optimizer"
    assert step(4)[growth.node_at(500)].phase == "backward"
    a, b = growth.measured[2], growth.measured[4]
    assert growth.at(500) > 2 * (a + (b - a) * (500 - 2) // 2)


def test_fixed_and_per_example_are_the_line_of_large_batches(growth: BatchPeak) -> None:
    line = growth.fixed_bytes + growth.bytes_per_example * 10_000
    assert growth.at(10_000) == pytest.approx(line)
    assert growth.at(10_001) - growth.at(10_000) == growth.bytes_per_example


@pytest.mark.parametrize("room", [175_000, 1_000_000, 24 * 2**30])
def test_the_largest_batch_fits_and_the_next_does_not(growth: BatchPeak, room: int) -> None:
    found = growth.largest_batch(room)
    assert found is not None
    assert growth.at(found) <= room < growth.at(found + 1)
    assert growth.largest_batch(float(room)) == found


def test_nothing_or_everything_fits(growth: BatchPeak) -> None:
    assert growth.largest_batch(1000) == 0
    for limit in (-1, 0, None, float("inf"), "many"):
        with pytest.raises(InvalidInputError, match="is no number of bytes"):
            growth.largest_batch(limit)
    constant = peak_for_batch(lambda batch: atlas.capture(torch.sin, torch.empty(3), fake=True))
    assert constant.largest_batch(24) is None
    assert constant.largest_batch(23) == 0
    assert constant.at(1000) == 24


def test_what_grows_with_the_square_is_noticed() -> None:
    def similarity(batch: int) -> Graph:
        return atlas.capture(lambda x: (x @ x.t()).softmax(1), torch.empty(batch, 256), fake=True)

    found = peak_for_batch(similarity)
    assert not found.exact
    assert any("too low" in note and "batch size 3" in note and "_softmax" in note for note in found.notes)
    assert found.at(100) < (similarity(100).peak_bytes or 0)
    assert found.bends
    assert str(found.at(100)).startswith("at least ")
    assert str(found.at(2)) == str(similarity(2).peak_bytes)
    assert str(found.largest_batch("1MB")).startswith("at most ")


def test_without_a_size_between_nothing_was_checked() -> None:
    found = peak_for_batch(step, batches=(4, 2))
    assert not found.exact
    assert any("nothing checked" in note for note in found.notes)
    assert found.batches == (2, 4)
    assert found.at(500) == second_step(500, fake=True).peak_bytes


def test_programs_that_differ_are_compared_by_their_peaks() -> None:
    def branching(batch: int) -> Graph:
        def run(x: torch.Tensor) -> torch.Tensor:
            return x.sin().cos() if len(x) > 2 else x.sin()

        return atlas.capture(run, torch.empty(batch, 10), fake=True)

    found = peak_for_batch(branching)
    assert not found.exact
    assert any("different operations" in note for note in found.notes)
    assert found.node_at(8) == ""
    assert found.at(8) == found.measured[2] + 3 * (found.measured[4] - found.measured[2])


def test_graphs_are_as_good_as_a_function(growth: BatchPeak) -> None:
    found = peak_for_batch({4: step(4), 2: step(2), 3: step(3)})
    assert found.exact
    assert found.measured == growth.measured
    assert list(found.measured) == [2, 3, 4]


def test_unknown_sizes_make_it_at_least() -> None:
    found = peak_for_batch(
        lambda batch: atlas.capture(nn.LSTM(4, 4), torch.empty(3, batch, 4), backward=True, fake=True)
    )
    if not found.at_least:
        pytest.skip("this torch has no fused LSTM on the CPU")
    assert str(found).startswith("at least ")
    assert found.to_dict()["at_least"]


def test_as_text_and_as_json(growth: BatchPeak) -> None:
    lines = str(growth).splitlines()
    assert "per example and" in lines[0]
    assert [line.split()[0] for line in lines[4:11]] == ["2", "3", "4", "8", "32", "128", "512"]
    content = json.loads(json.dumps(growth.to_dict()))
    assert content["measured"] == {str(size): second_step(size, fake=True).peak_bytes for size in (2, 3, 4)}
    assert content["state_bytes"] == growth.state_bytes > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: peak_for_batch(step, batches=(4,)), "Two different batch sizes"),
        (lambda: peak_for_batch(step, batches=(4, 4)), "Two different batch sizes"),
        (lambda: peak_for_batch(step, batches=(0, 4)), "not 0"),
        (lambda: peak_for_batch({1: step(1), "2": step(2)}), "not '2'"),  # type: ignore[dict-item]
        (lambda: peak_for_batch(lambda batch: batch), "is int, not a Graph"),  # type: ignore[arg-type, return-value]
        (lambda: peak_for_batch(step).at(0), "not 0"),
        (lambda: peak_for_batch(step).at(2.5), "not 2.5"),  # type: ignore[arg-type]
        (lambda: peak_for_batch(step).at(10**18), "more than can be counted"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_captures_without_memory() -> None:
    graphs = {size: step(size) for size in (2, 4)}
    graphs[4].columns["node_memory_bytes"][:] = -1
    with pytest.raises(AnalysisError, match="track_memory"):
        peak_for_batch(graphs)
