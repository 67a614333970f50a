"""What fills memory: the report against counts of our own, the model's own tensors and what autograd really saved."""

from __future__ import annotations

import inspect
import json
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import random_graph
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from zoo import ZOO, Specimen, leaves_of

import torchatlas as atlas
from torchatlas.analysis.memory import MemoryReport, memory
from torchatlas.errors import AnalysisError, InvalidInputError, MissingDependencyError
from torchatlas.graph import Graph


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU())
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))


def nbytes(tensors: Any) -> int:
    """Bytes of the storages that hold these tensors, each once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def trained(optimizer: Callable[..., Any] = torch.optim.Adam) -> tuple[Graph, nn.Module, torch.Tensor]:
    model, x = Net(), torch.randn(4, 3, 8, 8)
    return atlas.capture(model, x, loss=lambda y: y.square().mean(), optimizer=optimizer), model, x


@pytest.fixture(scope="module")
def report() -> MemoryReport:
    return memory(trained()[0])


# -- what is alive, counted on our own ---------------------------------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """After every op, the bytes of all storages that were ever met and are still there."""

    def __init__(self, *there: torch.Tensor) -> None:
        super().__init__()
        self.known: dict[int, weakref.ref[Any]] = {}
        self.after: list[int] = []
        self.meet(there)

    def meet(self, tree: Any) -> None:
        for tensor in tree_leaves(tree):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.known[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.namespace.startswith("profiler"):
            self.meet((args, kwargs, result))
            storages = [reference() for reference in self.known.values()]
            self.after.append(sum(storage.nbytes() for storage in storages if storage is not None))
        return result


def test_the_timeline_is_what_is_alive() -> None:
    model, x = Net(), torch.randn(4, 3, 8, 8)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step() -> None:
        result = model(x)
        result.square().mean().backward()
        optimizer.step()

    with LiveBytes(x, *model.parameters(), *model.buffers()) as ours:
        step()
    model.zero_grad()
    optimizer.state.clear()
    with atlas.recording(model) as rec:
        step()
    found = memory(rec.graph)
    is_op = [node.id for node in rec.graph.where(kind="op")]
    assert found.live_bytes[is_op].tolist() == ours.after
    assert sum(found.timeline.values())[is_op].tolist() == ours.after
    assert found.peak_bytes == rec.graph.peak_bytes == max(ours.after)
    assert found.node.id == is_op[int(np.argmax(ours.after))]
    assert not found.timeline["unattributed"].any()


def test_categories_are_the_tensors_of_the_model() -> None:
    graph, model, x = trained()
    found = memory(graph)
    last = {key: int(row[-1]) for key, row in found.timeline.items()}
    assert last["parameters"] == last["gradients"] == nbytes(model.parameters())
    assert last["buffers"] == nbytes(model.buffers())
    assert last["inputs"] == nbytes([x])
    steps = sum(torch.tensor(0.0).nbytes for _ in model.parameters())
    assert last["optimizer_state"] == 2 * nbytes(model.parameters()) + steps
    first = {key: int(row[0]) for key, row in found.timeline.items() if row[0]}
    assert set(first) == {"parameters", "buffers", "inputs"}


def saved_by_autograd(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that autograd keeps at the end of forward, without what was there before."""
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = model(x).sum()
    known = {tensor.untyped_storage()._cdata for tensor in (x, *model.parameters(), *model.buffers())}
    assert total.requires_grad
    return nbytes(tensor for tensor in saved if tensor.untyped_storage()._cdata not in known)


def test_saved_activations_are_what_autograd_saved() -> None:
    model, x = Net(), torch.randn(4, 3, 8, 8)
    expected = saved_by_autograd(model, x)
    found = memory(atlas.capture(model, x, loss=lambda y: y.sum()))
    start = found.graph.where(phase="backward")[0].id
    rows = found.storages
    kept = (rows.category == list(found.timeline).index("saved_activations")) & rows.alive_at(start)
    loss, result = 4, 4 * 5 * 4
    assert int(rows.bytes[kept & rows.read_in_backward].sum()) == expected + loss  # the seed is made like the loss
    assert int(found.timeline["saved_activations"][start]) == expected + loss + result  # held by the program alone
    assert any(note.startswith("80 B of the activations saved for backward are read by no op") for note in found.notes)


def test_without_backward_nobody_can_tell_what_is_saved() -> None:
    model, x = Net(), torch.randn(4, 3, 8, 8)
    found = memory(atlas.capture(model, x))
    assert found.by_category["activations"] > 0
    assert found.by_category["saved_activations"] == found.by_category["temporaries"] == 0


def test_checkpointing_saves_what_it_should() -> None:
    class Deep(nn.Module):
        def __init__(self, checkpointed: bool) -> None:
            super().__init__()
            self.layers, self.checkpointed = nn.ModuleList(nn.Linear(32, 32) for _ in range(6)), checkpointed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(lambda x, layer: layer(x).sin().cos(), x, layer, use_reentrant=False)
            return x

    def saved(checkpointed: bool) -> int:
        model = Deep(checkpointed)
        x = torch.randn(64, 32)
        if not checkpointed:
            model.forward = lambda x: nn.Sequential(*(Through(layer) for layer in model.layers))(x)  # type: ignore[method-assign]
        found = memory(atlas.capture(model, x, backward=True))
        start = found.graph.where(phase="backward")[0].id
        return int(found.timeline["saved_activations"][start])

    one = 64 * 32 * 4
    assert saved(False) >= 6 * 2 * one  # what sin and cos each need
    assert saved(True) <= 7 * one  # only what goes from layer to layer


class Through(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sin().cos()


# -- laws --------------------------------------------------------------------------------------------------------------


def check_divisions(found: MemoryReport) -> None:
    peak = found.graph.peak_bytes
    assert found.peak_bytes == peak == sum(found.by_category.values()) == sum(found.by_device.values())
    assert (sum(found.timeline.values()) == found.live_bytes).all()
    assert {key: int(row[found.node.id]) for key, row in found.timeline.items()} == found.by_category
    for row in (*found.by_module.values(), *found.by_line):
        assert row.bytes == sum(row.categories.values())
    assert sum(row.bytes for row in found.by_line) == peak
    for path, scope in found.graph.scopes.items():
        below = sum(found.by_module[child.path].bytes for child in scope.children if child.path in found.by_module)
        assert path not in found.by_module or found.by_module[path].bytes == found.by_module[path].own_bytes + below
    assert found.by_module[""].bytes == peak
    assert found.by_module[""].categories == found.by_category
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found)


@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_every_division_sums_to_the_peak(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    leaves = [*leaves_of(model, args, kwargs).values()] if specimen.trains else []
    optimizer = torch.optim.SGD(leaves, lr=0.01, momentum=0.9) if leaves else None
    found = memory(atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains, optimizer=optimizer))
    check_divisions(found)
    assert not found.timeline["unattributed"].any()  # storages explain every byte the recording counted


@pytest.mark.parametrize("seed", range(3))
def test_any_graph_is_counted_as_a_plain_loop_counts(seed: int) -> None:
    graph = random_graph(120, 200, seed=seed)
    found = memory(graph)
    check_divisions(found)
    rows, keys = found.storages, list(found.timeline)
    for node in range(len(graph)):
        expected = dict.fromkeys(keys, 0)
        for one in range(len(graph.storages)):
            if rows.start[one] <= node <= rows.end[one]:
                expected[keys[rows.category[one]]] += graph.storages[one].bytes or 0
        expected["unattributed"] = int(found.live_bytes[node]) - sum(expected.values())
        assert {key: int(found.timeline[key][node]) for key in keys} == expected


def test_a_part_of_a_graph_says_what_it_cannot_explain() -> None:
    graph, _, _ = trained()
    found = memory(graph.subgraph(scope="features"))
    check_divisions(found)
    assert found.by_category["unattributed"] != 0
    assert any("part of a larger one" in note for note in found.notes)


# -- where it belongs --------------------------------------------------------------------------------------------------


def test_modules_hold_their_parameters_gradients_and_state() -> None:
    graph, model, _ = trained()
    found = memory(graph)
    assert found.node.phase == "optimizer"
    for path in ("features.0", "features.1", "features", "head"):
        own, row = model.get_submodule(path), found.by_module[path]
        assert row.type == type(own).__name__
        assert row.categories["parameters"] == row.categories["gradients"] == nbytes(own.parameters())
        assert row.categories["buffers"] == nbytes(own.buffers())
    assert found.by_module["Adam"].categories["temporaries"] > 0
    assert found.by_module["Adam"].categories["optimizer_state"] == 0


def test_activations_belong_to_the_module_and_line_that_made_them() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.repeat(1, 1000).exp()
            return wide.sum(1)

    line = inspect.getsourcelines(Wide.forward)[1] + 1
    x = torch.randn(4, 3, requires_grad=True)
    found = memory(atlas.capture(nn.Sequential(nn.Identity(), Wide()), x, backward=True))
    wide = 4 * 3000 * 4
    result = 4 * 4
    assert found.by_module["1"].categories["saved_activations"] == wide + result  # what was repeated is gone
    largest = {tensor.name: tensor for tensor in found.largest}
    exp = largest["1.exp"]
    assert (exp.category, exp.bytes, exp.bytes_at_peak, exp.shape) == ("saved_activations", wide, wide, (4, 3000))
    assert (exp.dtype, exp.device, exp.module, exp.read_in_backward) == ("float32", "cpu", "1", True)
    assert exp.born is not None
    assert exp.born.name == "1.exp"
    assert found.timeline["temporaries"][exp.born.id] == wide  # what was repeated, still there
    assert exp.died is not None
    assert exp.died.phase == "backward"
    assert exp.source is not None
    assert (exp.source.line, exp.source.text.strip()) == (line, "wide = x.repeat(1, 1000).exp()")
    (row,) = [row for row in found.by_line if row.source is not None and row.source.line == line]
    assert row.bytes >= wide


def test_a_line_is_one_row_whatever_it_calls() -> None:
    found = memory(atlas.capture(lambda x: (x.exp(), x.sin()), torch.ones(1000)))
    assert [row.bytes for row in found.by_line] == [8000, 4000]
    assert [row.source is None for row in found.by_line] == [False, True]  # no line made the input


def test_what_is_kept_without_need_stands_out() -> None:
    model, x = nn.Linear(8, 8), torch.randn(16, 8)
    kept = []
    with atlas.recording(model) as rec:
        for _ in range(3):
            kept.append(model(x))  # nobody needs them, and with them everything behind them
            (model(x).sin() * 2).sum().backward()
    found = memory(rec.graph)
    longest = found.longest_held[0]
    assert (longest.name, longest.read_in_backward, longest.died) == ("addmm", False, None)
    assert longest.last_used is None or longest.last_used.kind == "output"
    assert longest.lifetime_nodes == len(rec.graph) - 1 - rec.graph["addmm"].id
    assert longest.lifetime_ns is not None
    assert {tensor.category for tensor in found.longest_held} <= {"saved_activations", "temporaries"}
    del kept


def test_untimed_lifetimes_are_counted_in_ops() -> None:
    graph = atlas.capture(Net(), torch.randn(4, 3, 8, 8), backward=True, fake=True)
    found = memory(graph)
    assert {tensor.lifetime_ns for tensor in found.longest_held} == {None}
    costs = [(tensor.bytes or 0) * tensor.lifetime_nodes for tensor in found.longest_held]
    assert costs == sorted(costs, reverse=True)
    assert " ops" in str(found)


# -- what changes size, comes late or was there before -----------------------------------------------------------------


def test_resized_storages_count_with_what_they_hold() -> None:
    """Grown by an op, and emptied and filled again without one, as FSDP does."""
    with atlas.recording() as rec:
        grown = torch.zeros(10)
        grown.resize_(1000)
        emptied = torch.ones(500)
        other = torch.zeros(1)
        emptied.untyped_storage().resize_(0)
        other = other + 1
        emptied.untyped_storage().resize_(2000)
        other = other + 1
    found = memory(rec.graph)
    check_divisions(found)
    assert found.live_bytes.tolist() == [40, 4000, 6000, 6004, 4008, 6008]
    assert not found.timeline["unattributed"].any()
    assert found.timeline["activations"].tolist() == found.live_bytes.tolist()
    del grown, emptied


@pytest.mark.parametrize("suffix", [".atlas", ".json"])
def test_resizing_is_kept_in_files(tmp_path: Any, suffix: str) -> None:
    with atlas.recording() as rec:
        x = torch.zeros(10)
        x.resize_(1000)
    again = memory(atlas.load(rec.graph.save(tmp_path / f"graph{suffix}")))
    assert again.timeline["activations"].tolist() == [40, 4000]
    again.graph.metadata["resized"] = [[0], "no", [9, 0, 1, 2], [0, 99, 1, 2], [0, 1, -4, 2]]  # somebody else's file
    check_divisions(memory(again.graph))
    del x


def test_batches_come_and_go() -> None:
    """Also as inputs of the model, and the last one too: each counts while it is there, not from the beginning."""
    model = nn.Linear(1000, 2)

    def run() -> None:
        for _ in range(5):
            batch = torch.from_numpy(np.ones((10, 1000), np.float32))
            kept.append(model(batch).detach() + torch.tensor([1.0, 2.0]))
        kept.append(batch)

    kept: list[torch.Tensor] = []
    with LiveBytes(*model.parameters()) as ours:
        run()
    kept.clear()
    with atlas.recording(model) as rec:
        run()
    found = memory(rec.graph)
    check_divisions(found)
    assert not found.timeline["unattributed"].any()
    is_op = [node.id for node in rec.graph.where(kind="op")]
    assert found.live_bytes[is_op].tolist() == ours.after
    assert found.by_category["inputs"] in (40_000, 80_000)  # Python lets go of one when it has the next


def test_what_came_from_elsewhere_and_went_counts_from_its_first_use() -> None:
    x = torch.ones(1000)
    with atlas.recording() as rec:
        y = torch.zeros(1)
        z = x + 1
        del x
        y = y + 1
    found = memory(rec.graph)
    assert found.timeline["inputs"].tolist() == [0, 0, 4000, 0]
    assert not found.timeline["unattributed"].any()
    del y, z


def test_gradients_from_before_count_from_the_beginning() -> None:
    model, x = nn.Linear(100, 100), torch.randn(2, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    with LiveBytes(x, *model.parameters(), *(p.grad for p in model.parameters())) as ours:
        model(x).sum().backward()
    with atlas.recording(model) as rec:
        model(x).sum().backward()
        optimizer.zero_grad()
        model(x)
    found = memory(rec.graph)
    assert found.timeline["gradients"][0] == nbytes(p for p in model.parameters())
    assert found.timeline["gradients"][-1] == 0
    is_op = [node.id for node in rec.graph.where(kind="op")]
    assert found.live_bytes[is_op][: len(ours.after)].tolist() == ours.after
    assert not found.timeline["unattributed"].any()


# -- what is not known -------------------------------------------------------------------------------------------------


def test_a_fake_lstm_does_not_know_its_workspace() -> None:
    """The real kernel keeps room for backward of which the fake one says nothing: unknown, not zero."""
    model, x = nn.LSTM(8, 16), torch.randn(5, 2, 8)
    real, fake = (
        memory(atlas.capture(model, x, backward=True)),
        memory(atlas.capture(model, x, backward=True, fake=True)),
    )
    names = {node.operation for node in fake.graph.where(kind="op")}
    if "aten.mkldnn_rnn_layer.default" not in names:
        pytest.skip("this torch has no fused LSTM on the CPU")
    workspace = real.graph["mkldnn_rnn_layer"].outputs[3].storage
    assert workspace is not None
    assert workspace.bytes
    assert not real.at_least
    assert fake.at_least
    assert fake.usage["at_least"]
    assert (fake.unknown_storages, fake.unknown_by_category["saved_activations"]) == (1, 1)
    assert fake.by_module[""].unknown == 1
    text = str(fake)
    assert text.startswith("peak ≥ ")
    (saved,) = [line for line in text.splitlines() if line.startswith("activations saved for backward")]
    (parameters,) = [line for line in text.splitlines() if line.startswith("parameters")]
    assert "≥" in saved
    assert "≥" not in parameters


def test_module_calls_are_at_least() -> None:
    with atlas.recording(model := Net(), track_tensor_ops=False) as rec:
        model(torch.randn(4, 3, 8, 8)).sum().backward()
    found = memory(rec.graph)
    check_divisions(found)
    assert found.at_least
    assert any("only module calls were recorded: what they" in note for note in found.notes)
    assert all("≥" in line for line in str(found).splitlines() if line.startswith(("peak", "parameters", "(all)")))


def test_a_graph_without_memory_says_what_to_do() -> None:
    with atlas.recording(track_memory=False) as rec:
        torch.ones(3)
    with pytest.raises(AnalysisError, match="track_memory=True"):
        memory(rec.graph)
    with pytest.raises(AnalysisError, match="Nothing was recorded"):
        memory(Graph())
    rec.graph.source = "fx"
    with pytest.raises(AnalysisError, match=r"source 'fx'.*atlas\.capture"):
        memory(rec.graph)


def test_bad_input() -> None:
    with pytest.raises(InvalidInputError, match=r"memory takes a graph.*not Linear"):
        memory(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="top=-1"):
        memory(random_graph(3, 2), top=-1)


# -- elsewhere ---------------------------------------------------------------------------------------------------------


def test_the_dictionary_has_the_same_keys_for_every_graph(report: MemoryReport) -> None:
    with atlas.recording() as rec:
        torch.ones(3)
    small, large = memory(rec.graph).to_dict(), json.loads(json.dumps(report.to_dict()))
    assert list(small) == list(large)
    assert list(small["by_category"]) == list(large["by_category"])
    assert list(small["by_module"][""]) == list(large["by_module"]["head"])
    assert list(small["largest"][0]) == list(large["longest_held"][0])
    assert large["peak_node"]["name"] == report.node.name
    assert large["largest"][0]["name"] == report.largest[0].name


def test_the_table_has_every_allocation(report: MemoryReport) -> None:
    pandas = pytest.importorskip("pandas")
    table = report.to_pandas()
    assert len(table) == len(report.graph.storages)
    assert table.loc[table["alive_at_peak"], "bytes"].sum() == report.peak_bytes
    by_category = table[table["alive_at_peak"]].groupby("category", observed=True)["bytes"].sum().to_dict()
    assert by_category == {key: size for key, size in report.by_category.items() if size}
    weight = table[(table["name"] == "head.weight") & (table["category"] == "parameters")].iloc[0]
    assert (weight["module"], weight["shape"], weight["dtype"], weight["device"]) == (
        *("head", "[5, 288]", "float32", "cpu"),
    )
    assert pandas.isna(weight["born"])
    assert pandas.isna(weight["line"])


def test_the_table_of_a_made_up_graph_has_unknown_as_na() -> None:
    pytest.importorskip("pandas")
    graph = random_graph(300, 600)
    table = memory(graph).to_pandas()
    assert table["bytes"].isna().sum() == (graph.columns["storage_bytes"] < 0).sum() > 0
    assert table["bytes"].min() >= 0
    assert len(memory(random_graph(1, 0)).to_pandas()) == len(random_graph(1, 0).storages)


def test_pandas_is_named_when_it_is_missing(report: MemoryReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'torchatlas\[pandas\]'"):
        report.to_pandas()


def test_names_from_a_file_cannot_command_a_terminal() -> None:
    graph = random_graph(50, 80)
    graph.tables.names[:] = [name + "\x1b[31m\n" for name in graph.tables.names]
    text = str(memory(graph))
    assert "\x1b" not in text
    assert "\\x1b[31m\\n" in text
