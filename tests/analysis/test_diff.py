"""Comparing two graphs: what was done to a model is what is reported, no more and no less."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.analysis import alignment
from torchatlas.errors import InvalidInputError


def layers(*more: nn.Module, hidden: int = 16) -> atlas.Graph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 4), *more)
    return atlas.capture(model, torch.randn(3, 8), backward=True)


@pytest.mark.parametrize("specimen", ZOO[::5], ids=str)
def test_a_graph_is_the_same_as_itself(specimen: Specimen) -> None:
    graphs = []
    for _ in range(2):
        model, args, kwargs = specimen.build()
        graphs.append(atlas.capture(model, *args, kwargs=kwargs))
    found = atlas.compare(*graphs)
    assert found.same
    assert found.unchanged == len(graphs[0])
    for figures in found.modules.values():
        assert not any(figure.change for name, figure in figures.items() if name != "time_ns")
    assert "the same" in str(found)


def test_what_was_added_is_found_and_costed() -> None:
    before, after = layers(), layers(nn.Softmax(-1))
    found = atlas.compare(before, after)
    assert {node.scope.path for node in found.added} == {"3"}
    assert next(node.operation for node in found.added if node.phase == "forward") == "aten._softmax.default"
    assert not found.removed
    assert not found.changed
    assert found.modules["3"]["operations"].before == 0
    assert found.modules["3"]["operations"].after == len(found.added)
    assert found.modules[""]["operations"].change == len(found.added)
    back = atlas.compare(after, before)
    assert [node.name for node in back.removed] == [node.name for node in found.added]
    assert not back.added


def test_what_was_changed_is_said() -> None:
    found = atlas.compare(layers(), layers(hidden=32))
    assert not found.added
    assert not found.removed
    first = next(change for change in found.changed if change.after.name == "0.addmm")
    assert first.what["out_features"] == (16, 32)
    assert first.what["outputs"] == ("float32[3, 16]", "float32[3, 32]")
    macs = found.modules["0"]["macs"]
    assert (macs.before, macs.after) == (2 * 3 * 8 * 16, 2 * 3 * 8 * 32)  # forward, and backward to the weight
    assert found.modules[""]["parameters"].change == 13 * 16
    assert "0.addmm: out_features 16 -> 32" in str(found)


def test_an_operation_put_between_others_shifts_nothing() -> None:
    def program(*extra: Callable[[torch.Tensor], torch.Tensor]) -> atlas.Graph:
        def run(x: torch.Tensor) -> torch.Tensor:
            for step in (torch.exp, torch.exp, torch.sin, *extra, torch.exp, torch.cos, torch.exp):
                x = step(x)
            return x

        return atlas.capture(run, torch.randn(4))

    found = atlas.compare(program(), program(torch.tanh))
    assert [node.operation for node in found.added] == ["aten.tanh.default"]
    assert not found.removed
    assert not found.changed


def test_long_programs_are_paired_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_LONGEST", 3)

    def program(size: int) -> atlas.Graph:
        return atlas.capture(lambda x: x.exp().sin().cos().tanh().sum(), torch.randn(size))

    found = atlas.compare(program(4), program(5))
    assert not found.added
    assert not found.removed
    assert len(found.changed) == 6  # the input, four functions, the sum; the output is a number either way


def test_as_json() -> None:
    found = atlas.compare(layers(), layers(nn.Softmax(-1), hidden=32)).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["added"]
    assert found["changed"]
    assert not found["same"]


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"compare takes a graph.*not Linear"):
        atlas.compare(layers(), nn.Linear(1, 1))  # type: ignore[arg-type]


def test_graphs_of_different_recorders_are_told_apart() -> None:
    before, after = (atlas.capture(torch.nn.Linear(2, 2), torch.ones(1, 2)) for _ in range(2))
    assert "native=False" not in str(atlas.compare(before, after))
    before.metadata["recorder"], after.metadata["recorder"] = "python", "native"
    assert "native=False" in str(atlas.compare(before, after))
