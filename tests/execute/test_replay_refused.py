"""What cannot be replayed says so: parts of graphs, operators that nobody reviewed, damaged files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from execute.replays import recorded, small, step

import torchatlas as atlas
from torchatlas.errors import FileFormatError, InvalidInputError, NotAvailableError, StateError
from torchatlas.execute.operators import operator
from torchatlas.execute.replay import replay
from torchatlas.execute.verify_replay import verify
from torchatlas.graph import Graph
from torchatlas.graph.columns import Operation


def refused(graph: Graph, error: type[Exception], words: str) -> None:
    for function in (verify, replay):
        with pytest.raises(error, match=words):
            function(graph)


def test_a_graph_without_what_it_takes() -> None:
    model, x = small()
    refused(atlas.capture(model, x), StateError, 'values="replay"')
    refused(atlas.capture(model, x, values="all"), StateError, 'values="replay"')
    refused(atlas.capture(model, x, fake=True), NotAvailableError, "fake=True")
    with pytest.raises(InvalidInputError, match="fake tensors have no values"):
        atlas.capture(model, x, fake=True, values="replay")
    refused(atlas.autograd_graph(model(x).sum()), NotAvailableError, "source 'autograd'")


def test_a_part_of_a_graph_and_a_json_file(tmp_path: Path) -> None:
    graph = step()
    refused(graph.subgraph(scope="0"), StateError, "part of a graph")
    refused(atlas.load(graph.save(tmp_path / "step.json")), StateError, "json file leaves recorded values out")


def test_fake_tensors_of_the_program() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def program() -> None:
        with FakeTensorMode():
            torch.ones(3) * 2

    refused(recorded(program), NotAvailableError, "fake tensors")


def test_higher_order_operators() -> None:
    x = torch.ones(2)
    graph = recorded(lambda: torch.cond(x.sum() > 1, lambda x: x + 1, lambda x: x - 1, (x,)))
    refused(graph, NotAvailableError, "higher_order.cond cannot be replayed")


def test_collectives_and_compiled_graphs() -> None:
    graph = step()
    rows = graph.tables.operations
    place = next(i for i, row in enumerate(rows) if row.name == "aten.relu.default")
    rows[place] = dataclasses.replace(rows[place], name="inductor.graph.0")
    refused(graph, NotAvailableError, "inductor compiled is one opaque node")
    rows[place] = Operation("_c10d_functional.all_reduce.default", atlas.OperationType.COMMUNICATION)
    refused(graph, NotAvailableError, "other processes")


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.save.default",
        "aten._reshape_alias.default",
        "aten._sparse_coo_tensor_unsafe.default",
        "aten.segment_reduce.default",
        "posix.system.default",
        "aten.no_such_thing.default",
        "aten.__class__.__name__",
        "aten.relu.__call__",
        "__class__.__mro__.x",
        "relu",
    ],
)
def test_a_file_cannot_call_just_anything(name: str, tmp_path: Path) -> None:
    graph = recorded(lambda: torch.ones(3).relu())
    rows = graph.tables.operations
    place = next(i for i, row in enumerate(rows) if row.name == "aten.relu.default")
    rows[place] = dataclasses.replace(rows[place], name=name)
    loaded = atlas.load(graph.save(tmp_path / "hostile.atlas"))
    refused(loaded, NotAvailableError, f"{name} is not run: it is not on the list")


def test_what_acts_outside_is_not_run_a_second_time(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"\0" * 16)
    graph = recorded(lambda: torch.from_file(str(path), size=4) + 1)
    refused(graph, NotAvailableError, "aten.from_file.default is not run a second time")
    assert verify(graph, allow=["aten.from_file.default"]).replayed


def test_custom_operators_are_run_when_allowed(tmp_path: Path) -> None:
    @torch.library.custom_op("atlas_replay_test::noisy", mutates_args=())
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.rand(())

    graph = recorded(lambda: noisy(torch.ones(2)) + 1)
    assert verify(graph)  # this process recorded it
    loaded = atlas.load(graph.save(tmp_path / "custom.atlas"))
    refused(loaded, NotAvailableError, r"pass allow=\['atlas_replay_test.noisy.default'\]")
    assert verify(loaded, allow=["atlas_replay_test.noisy.default"])
    assert verify(loaded, allow=["atlas_replay_test"])
    assert operator(Operation("atlas_replay_test.noisy.default"), ["atlas_replay_test"]) is not None


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda kept, arrays: kept.pop("last"), FileFormatError),
        (lambda kept, arrays: kept.update(draws=[[0, 7, True]]), FileFormatError),
        (lambda kept, arrays: kept.update(patches=[[0, 99, 0, 4, "x"]]), FileFormatError),
        (lambda kept, arrays: kept["settings"][0][1].update(threads=10**9), FileFormatError),
        (lambda kept, arrays: kept.update(ops=3), StateError),
        (lambda kept, arrays: arrays.update({"-1:digests": arrays["-1:digests"][1:]}), FileFormatError),
        (lambda kept, arrays: arrays["-1:digest_pointers"].__setitem__(1, -5), FileFormatError),
    ],
)
def test_damaged_files(damage: Callable[[Any, Any], None], error: type[Exception]) -> None:
    graph = step()
    damage(graph.metadata["replay"], graph.recorded)
    refused(graph, error, ".")


@pytest.mark.parametrize("changes", [{"stride": (-1, 1)}, {"shape": (2**40, 4)}, {"stride": (1,)}, {"dtype": "save"}])
def test_a_layout_cannot_reach_outside_of_its_storage(changes: dict[str, Any]) -> None:
    graph = step()
    layouts = graph.tables.layouts
    weight = next(value for value in graph.values if value.parameter == "0.weight")
    place = int(graph.columns["value_layout"][weight.id])
    layouts[place] = dataclasses.replace(layouts[place], **changes)
    found = verify(graph)
    assert (found.replayed, len(found.unplayed)) == (0, 1)


def test_missing_and_short_storages_are_told_at_the_op() -> None:
    for damage in (lambda key, arrays: arrays.pop(key), lambda key, arrays: arrays.update({key: arrays[key][:5]})):
        graph = step()
        damage(next(key for key in graph.recorded if key.startswith("-1:storage/")), graph.recorded)
        found = verify(graph)
        assert not found
        assert found.replayed < found.ops
        assert "is missing" in found.unplayed[0].reason or "outside of its storage" in found.unplayed[0].reason
