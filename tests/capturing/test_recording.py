"""Recordings: nesting, misuse, failures, what they keep alive, and the dependencies they find on one buffer."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchatlas as atlas
from torchatlas.errors import StateError


def operations(graph: atlas.Graph) -> list[str]:
    return [node.operation.split(".")[1] for node in graph.where(kind="op")]


def edges(graph: atlas.Graph, kind: str) -> set[tuple[str, str]]:
    return {(edge.source.name, edge.target.name) for edge in graph.edges if edge.kind == kind}


# -- beginning and ending --------------------------------------------------------------------------------------------


def test_nested_recordings_see_the_same_ops() -> None:
    x = torch.ones(2)
    with atlas.recording() as outer:
        x.sin()
        with atlas.recording() as inner:
            y = x.cos()
            y.mul_(2)
        x.exp()
    assert operations(outer.graph) == ["sin", "cos", "mul_", "exp"]
    assert operations(inner.graph) == ["cos", "mul_"]
    assert inner.graph["mul_"].predecessors == [inner.graph["cos"]]


def test_a_nested_recording_of_values_leaves_the_outer_one_alone() -> None:
    with atlas.recording() as outer, atlas.recording(values="all"):
        torch.ones(2).sin()
    assert operations(outer.graph) == ["ones", "sin"]


def test_nested_recordings_of_one_model_name_modules_in_both() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with atlas.recording(model) as outer, atlas.recording(model) as inner:
        model(torch.ones(1, 2))
    assert outer.graph["0.addmm"].scope.type == inner.graph["0.addmm"].scope.type == "Linear"


def test_recordings_end_in_reverse_order() -> None:
    outer, inner = atlas.recording().start(), atlas.recording().start()
    with pytest.raises(StateError, match="reverse order"):
        outer.stop()
    torch.ones(1)
    inner.stop()
    outer.stop()
    assert operations(outer.graph) == operations(inner.graph) == ["ones"]


def test_a_recording_serves_once() -> None:
    rec = atlas.recording()
    with pytest.raises(StateError, match="Nothing was recorded yet"):
        rec.graph
    with rec:
        with pytest.raises(StateError, match="used already"):
            rec.start()
        torch.ones(1)
    with pytest.raises(StateError, match="used already"):
        rec.start()
    with pytest.raises(StateError, match="not running"):
        rec.stop()
    assert operations(rec.graph) == ["ones"]
    assert rec.graph is rec.graph


def test_the_graph_so_far_while_it_runs() -> None:
    with atlas.recording() as rec:
        x = torch.ones(2)
        first = rec.graph
        y = x + 1
        second = rec.graph
        assert rec.running
        y.mul_(2)
    assert (len(first), len(second), len(rec.graph)) == (1, 2, 3)
    assert operations(first) == ["ones"]
    assert rec.graph["mul_"].predecessors == [rec.graph["add"]]


# -- a recorder serves many recordings -------------------------------------------------------------------------------


def test_recordings_one_after_the_other_do_not_mix() -> None:
    held = []
    for turn in range(5):
        with atlas.recording() as rec:
            held.append(torch.ones(4) * turn)
            if turn >= 2:
                held[turn - 2] = None  # what an earlier recording made dies in this one
            y = held[-1].sin()
        graph = rec.graph
        assert operations(graph) == ["ones", "mul", "sin"]
        assert [storage.bytes for storage in graph.storages] == [16, 16, 16]
        assert [storage.died and storage.died.name for storage in graph.storages] == ["mul", None, None]
        assert [node.memory_bytes for node in graph.nodes] == [16, 32, 32]  # the ones are still alive during mul
        del y


def test_a_tensor_of_an_earlier_recording_comes_from_outside() -> None:
    with atlas.recording() as first:
        x = torch.ones(3)
    assert first.graph["ones"].outputs[0].producer is not None
    with atlas.recording() as second:
        x.mul_(2)
    assert [node.name for node in second.graph.nodes] == ["input", "mul_"]


def test_a_graph_asked_for_late_is_the_graph_of_the_recording() -> None:
    with atlas.recording() as first:
        x = torch.ones(1000).sin()
    with atlas.recording() as second:
        torch.zeros(10)
    del x
    torch.ones(3)
    assert operations(second.graph) == ["zeros"]
    assert operations(first.graph) == ["ones", "sin"]
    assert first.graph.storages[1].died is None  # it died after the recording


# -- exceptions ------------------------------------------------------------------------------------------------------


def failing(x: torch.Tensor) -> torch.Tensor:
    local = x * 2
    return local @ torch.ones(7, 7)


def test_what_the_program_handles_is_noted_and_recording_goes_on() -> None:
    with atlas.recording() as rec:
        try:
            failing(torch.ones(2, 2))
        except RuntimeError:
            torch.zeros(1)
    assert operations(rec.graph) == ["ones", "mul", "ones", "zeros"]
    assert rec.failure is None
    assert "raised and handled by the program: aten.mm.default" in rec.graph.notes


def test_what_escapes_names_the_op_and_the_line() -> None:
    with pytest.raises(RuntimeError, match="shapes"), atlas.recording() as rec:
        failing(torch.ones(2, 2))
    assert rec.failure is not None
    assert rec.failure.operation == "aten.mm.default"
    assert rec.failure.source is not None
    assert rec.failure.source.text == "return local @ torch.ones(7, 7)"
    assert operations(rec.graph) == ["ones", "mul", "ones"]


def test_an_exception_that_is_not_an_ops_has_no_failing_op() -> None:
    def divides() -> float:
        return torch.ones(1).numel() / 0

    with pytest.raises(ZeroDivisionError), atlas.recording() as rec:
        divides()
    assert rec.failure is None
    assert operations(rec.graph) == ["ones"]


def test_a_module_that_raised_is_left() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.sin()
            raise ValueError("no")

    model = nn.ModuleDict({"bad": Raises(), "good": nn.Tanh()})
    with atlas.recording(model) as rec:
        with pytest.raises(ValueError, match="no"):
            model["bad"](torch.ones(1))
        torch.ones(1).cos()
        model["good"](torch.ones(1))
    assert [rec.graph[name].scope.path for name in ("bad.sin", "cos", "good.tanh")] == ["bad", "", "good"]


def test_a_step_whose_closure_raised_is_left() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def raises() -> float:
        raise ValueError("no")

    with atlas.recording(model) as rec:
        with pytest.raises(ValueError, match="no"):
            optimizer.step(raises)
        torch.ones(1).sin()
    assert rec.graph["sin"].phase == "forward"


# -- what is kept alive ----------------------------------------------------------------------------------------------


def test_what_the_program_frees_is_freed_while_recording() -> None:
    with atlas.recording() as rec:
        x = torch.ones(1000)
        y = x.view(10, 100)[2:] + 1
        z = torch.cat([y, y], dim=0)
        refs = [weakref.ref(tensor.untyped_storage()) for tensor in (x, y, z)]
        del x, y, z
        assert [ref() for ref in refs] == [None, None, None]
    assert [storage.died and storage.died.name for storage in rec.graph.storages] == ["cat", "cat", "cat"]


def test_a_handled_exception_does_not_keep_its_frames_alive() -> None:
    def fails() -> None:
        big = torch.ones(1000)
        refs.append(weakref.ref(big))
        big @ torch.ones(3, 3)

    refs: list[Any] = []
    with atlas.recording():
        with contextlib.suppress(RuntimeError):
            fails()
        assert refs[0]() is None


def test_many_captures_leave_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)

    def objects() -> tuple[int, int]:
        gc.collect()
        found = gc.get_objects()
        return len(found), sum(issubclass(type(item), torch.Tensor) for item in found)

    def both() -> None:
        atlas.capture(model, x, backward=True)
        with atlas.recording(model) as rec:
            model(x)
        rec.graph

    for _ in range(10):
        both()
    before = objects()
    for _ in range(145):
        both()
    after = objects()
    assert after[1] <= before[1]  # something of another test may have gone meanwhile
    assert after[0] - before[0] < 100


@pytest.mark.parametrize("backbone", ["bound method", "closure"])
def test_a_captured_function_leaves_no_gradients_on_what_it_reached_by_itself(backbone: str) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    atlas.capture(model.forward if backbone == "bound method" else lambda x: model(x), x, backward=True)
    assert model.weight.grad is None


def test_a_captured_function_leaves_older_gradients_as_they_were() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    model(x).sum().backward()
    gradient = model.weight.grad
    before = gradient.clone()
    atlas.capture(lambda x: model(x), x, backward=True)
    assert model.weight.grad is gradient
    assert torch.equal(gradient, before)


# -- aliases: .data, set_, resize_, out=, views ----------------------------------------------------------------------


def test_data_assignment_moves_to_another_storage() -> None:
    with atlas.recording() as rec:
        x, y = torch.zeros(3), torch.ones(3)
        x.data = y
        z = x + 1
        y.mul_(2)
        w = x + 2
    graph = rec.graph
    assert ("ones", "add") in edges(graph, "data")
    assert ("mul_", "add_1") in edges(graph, "data")
    assert not graph["zeros"].successors
    del z, w


def test_set_moves_to_another_storage() -> None:
    with atlas.recording() as rec:
        x, y = torch.zeros(4), torch.ones(6)
        x.set_(y)
        x.mul_(3)
        z = y + 1
    graph = rec.graph
    assert {("ones", "set_"), ("set_", "mul_"), ("mul_", "add")} <= edges(graph, "data")
    assert graph["mul_"].inputs[0].shape == (6,)
    assert graph["zeros"].outputs[0].storage != graph["mul_"].inputs[0].storage
    del z


def test_resize_grows_the_storage() -> None:
    with atlas.recording() as rec:
        x = torch.zeros(4)
        x.resize_(100).fill_(1)
        y = x + 1
    graph = rec.graph
    assert [node.memory_bytes for node in graph.nodes] == [16, 400, 400, 800]
    assert graph["add"].inputs[0].shape == (100,)
    del y


def test_out_writes_what_was_there() -> None:
    x, out = torch.ones(3), torch.zeros(3)
    with atlas.recording() as rec:
        before = out + 1
        torch.mul(x, 2, out=out)
        after = out + 2
    graph = rec.graph
    assert graph["mul"].writes == (1,)
    assert ("add", "mul") in edges(graph, "order")
    assert ("mul", "add_1") in edges(graph, "data")
    assert ("add", "add_1") not in edges(graph, "data")
    del before, after


def test_out_that_is_resized_has_its_new_shape() -> None:
    with atlas.recording() as rec:
        out = torch.empty(0)
        torch.add(torch.ones(4, 4), 1, out=out)
        y = out * 2
    assert rec.graph["mul"].inputs[0].shape == (4, 4)
    assert len(rec.graph["add"].outputs) == 1
    assert rec.graph["add"].memory_bytes == 128  # its input and the grown output
    del y


def test_a_write_through_a_view_reaches_base_and_siblings() -> None:
    with atlas.recording() as rec:
        base = torch.zeros(4, 4)
        row, column, other = base[1], base[:, 2], base[3]
        row.fill_(1)
        reads = base + 0, column + 0, other + 0
    graph = rec.graph
    assert ("fill_", "add") in edges(graph, "data")
    assert ("fill_", "add_1") in edges(graph, "data")
    assert ("fill_", "add_2") not in edges(graph, "data")  # row 3 shares no byte with row 1
    del reads


def test_views_of_another_item_size_depend_on_each_other() -> None:
    with atlas.recording() as rec:
        base = torch.zeros(4)
        base.view(torch.int16)[:2].fill_(3)
        y = base + 1
    assert ("fill_", "add") in edges(rec.graph, "data")
    del y


def test_a_list_written_in_place() -> None:
    with atlas.recording() as rec:
        pair = [torch.ones(2), torch.zeros(2)]
        torch._foreach_add_(pair, 1.0)
        y = pair[0] - pair[1]
    graph = rec.graph
    assert graph["_foreach_add_"].writes == (0, 1)
    assert [value.producer for value in graph["sub"].inputs] == [(graph["_foreach_add_"], i) for i in (0, 1)]
    del y


# -- dependencies ----------------------------------------------------------------------------------------------------


def test_order_edges_of_a_small_program() -> None:
    with atlas.recording() as rec:
        a = torch.ones(4)
        b = a.sum()
        a.zero_()  # after the sum has read it
        c = a + 1
        a.fill_(3)  # after the addition has read it, and after zero_ wrote it
        d = a + b
    assert edges(rec.graph, "data") == {("ones", "sum"), ("zero_", "add"), ("fill_", "add_1"), ("sum", "add_1")}
    assert edges(rec.graph, "order") == {("ones", "zero_"), ("sum", "zero_"), ("add", "fill_"), ("zero_", "fill_")}
    del c, d


def test_in_place_arithmetic_needs_no_order_edge_to_what_it_reads() -> None:
    with atlas.recording() as rec:
        a = torch.ones(4)
        a.add_(1)
        a.mul_(2)
    assert edges(rec.graph, "data") == {("ones", "add_"), ("add_", "mul_")}
    assert edges(rec.graph, "order") == set()


def test_partial_writes_all_flow_into_one_slot() -> None:
    left, right = (base := torch.zeros(4))[:2], base[2:]
    with atlas.recording() as rec:
        base.fill_(0)
        left.fill_(1)
        right.fill_(2)
        y = base + 0
    into = [edge for edge in rec.graph.edges if edge.target.name == "add" and edge.kind == "data"]
    assert {edge.source.name for edge in into} >= {"fill__1", "fill__2"}
    assert {edge.input_index for edge in into} == {0}
    assert len({edge.value for edge in into}) == 1
    assert ("fill__1", "fill__2") not in edges(rec.graph, "data") | edges(rec.graph, "order")
    del y


ROWS, COLUMNS = 3, 4
slices = st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS), st.integers(0, COLUMNS - 1), st.integers(1, COLUMNS))
steps = st.lists(st.tuples(st.sampled_from(["sum", "fill_", "add_"]), slices), min_size=2, max_size=8)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_dependencies_on_one_buffer_against_brute_force(program: Any) -> None:
    """Two steps that touch one element, one of them writing, stay in order; data comes only from what was read."""
    buffer = torch.zeros(ROWS, COLUMNS)
    numbers = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    program = [(what, (min(a, b - 1), b, min(c, d - 1), d)) for what, (a, b, c, d) in program]
    views = [buffer[a:b, c:d] for _, (a, b, c, d) in program]
    touched = [set(numbers[a:b, c:d].ravel().tolist()) for _, (a, b, c, d) in program]
    with atlas.recording() as rec:
        for (what, _), view in zip(program, views, strict=True):
            view.sum() if what == "sum" else getattr(view, what)(1.0)
    graph = rec.graph
    first = len(graph) - len(program)  # input nodes come first
    after: list[set[int]] = [set() for _ in range(len(graph))]
    for edge in sorted(graph.edges, key=lambda edge: edge.target_id):
        after[edge.target_id] |= {edge.source_id} | after[edge.source_id]
    for p, q in itertools.combinations(range(len(program)), 2):
        writes = program[p][0] != "sum" or program[q][0] != "sum"
        if writes and touched[p] & touched[q]:
            assert first + p in after[first + q], f"step {q} may overtake step {p}"
    for edge in graph.edges:
        if edge.source_id >= first:
            p, q = edge.source_id - first, edge.target_id - first
            assert touched[p] & touched[q], "a dependency between steps that share no element"


# -- recorded values -------------------------------------------------------------------------------------------------


class Outputs(TorchDispatchMode):
    """Keeps a copy of what every op returned."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[np.ndarray]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        items = out if isinstance(out, (list, tuple)) else [out]
        self.rows.append([item.detach().clone().numpy() for item in items if isinstance(item, torch.Tensor)])
        return out


def overwrites() -> torch.Tensor:
    x = torch.arange(4.0)
    y = x * 2
    y.add_(1)
    y[:2].zero_()
    a, b = y.split(2)
    a.copy_(b)
    return y.sin_()


def test_recorded_values_are_what_was_produced_even_if_overwritten_later() -> None:
    witness = Outputs()
    with witness, atlas.recording() as plain:
        overwrites()
    with atlas.recording(values="all") as rec:
        overwrites()
    assert not plain.graph.recorded
    for node, arrays in zip(rec.graph.where(kind="op"), witness.rows, strict=True):
        assert len(arrays) == len(node.outputs)
        for index, array in enumerate(arrays):
            np.testing.assert_array_equal(rec.graph.recorded[f"{node.id}:{index}"], array)


def test_recorded_statistics() -> None:
    with atlas.recording(values="stats") as rec:
        x = torch.tensor([1.0, 2.0, float("nan"), 6.0])
        x.mul_(2)
        torch.empty(0)
    np.testing.assert_allclose(rec.graph.recorded[f"{rec.graph['mul_'].id}:0"], [2, 12, 6, np.std([2, 4, 12]), 1])
    assert f"{rec.graph['empty'].id}:0" not in rec.graph.recorded


def test_what_is_written_and_not_returned_is_recorded_too() -> None:
    pair = [torch.ones(2), torch.zeros(2)]
    with atlas.recording(values="all") as rec:
        torch._foreach_add_(pair, 1.0)
        nn.BatchNorm1d(2)(torch.arange(6.0).view(3, 2))
    for name in ("_foreach_add_", "BatchNorm1d.native_batch_norm", "native_batch_norm"):
        if name in rec.graph:
            node = rec.graph[name]
            assert {f"{node.id}:{index}" for index in range(len(node.outputs))} <= set(rec.graph.recorded)


def test_recorded_values_beside_an_operator_without_a_schema() -> None:
    x = torch.ones(3)
    with atlas.recording(values="all") as rec:
        y = torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t * 3, (x,))
        y + 100
    np.testing.assert_array_equal(rec.graph.recorded[f"{rec.graph['add'].id}:0"], [102.0] * 3)


def test_unknown_kinds_of_values_are_refused() -> None:
    with pytest.raises(atlas.errors.InvalidInputError, match="'stats', 'all'"):
        atlas.recording(values="everything")


def test_a_recording_among_fake_tensors_has_no_times() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model, x = nn.Linear(3, 4), torch.ones(2, 3)
        with atlas.recording(model) as recorded:
            model(x)
    graph = recorded.graph
    assert graph.metadata["fake"] is True
    assert graph.time_ns is None
    assert sum("fake tensors" in note for note in graph.notes) == 1
