"""Document 000's promises: its names, its keys, its format strings, its errors, and the model left as found."""

from __future__ import annotations

import inspect
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas import errors
from torchatlas.analysis.totals import MemoryUsage


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def image(**options: Any) -> torch.Tensor:
    return torch.randn(1, 784, **options)


class Training(nn.Module):
    """Everything a run may change: running statistics, random numbers, a counter, gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        self.calls += 1
        x = self.dropout(self.norm(self.first(x)))
        if fail:
            raise ValueError("my own complaint")
        return x


class TwoInputs(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
        return {"sum": a + b, "argmax": a.argmax(), "size": 3}


class Greedy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(2**50)


# -- the document's signatures and format strings ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (
            atlas.track_computational_graph,
            "(model, input_tensor, track_memory=True, track_timing=True, track_tensor_ops=True)",
        ),
        (atlas.ComputationalGraphTracker, "(model, track_memory=True, track_timing=True, track_tensor_ops=True)"),
        (atlas.analyze_computational_graph, "(model, input_tensor, detailed=True)"),
        (
            atlas.ComputationalGraphTracker.save_graph_png,
            "(self, filepath, width=1200, height=800, dpi=300, show_legend=True, node_size=20, font_size=10)",
        ),
    ],
)
def test_arguments_and_defaults_are_the_documents(function: Callable[..., Any], signature: str) -> None:
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    theirs = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]  # warmup and repeat are ours
    assert str(inspect.Signature(theirs)).replace(" = ", "=") == signature


def test_the_tracked_run_is_forward_and_backward() -> None:
    tracker = atlas.track_computational_graph(model=mlp(), input_tensor=image(requires_grad=True))
    summary = tracker.get_graph_summary()
    graph = tracker.graph
    assert summary["total_nodes"] == len(graph) == len(graph.nodes)
    assert summary["total_operations"] == len(graph.where(kind="op")) < len(graph)
    assert summary["total_edges"] == len(graph.edges)
    assert summary["operations_by_phase"]["forward"] >= 5
    assert summary["operations_by_phase"]["backward"] >= 5
    assert sum(summary["operations_by_phase"].values()) == summary["total_operations"]
    assert sum(summary["operation_types"].values()) == summary["total_operations"]
    assert summary["operation_types"]["matmul"] == 6  # an addmm and, backward, two mm for each of two layers
    assert summary["module_types"] == {"Linear": 2, "ReLU": 1, "Sequential": 1}
    assert summary["operations_by_module"][""] == summary["total_operations"]
    assert summary["operations_by_module"]["0"] == len(graph.where(kind="op", scope="0")) > 5
    assert 0 < summary["operation_time"] <= summary["execution_time"] < 60
    assert (summary["timing"], summary["memory"], summary["tracking"]) == ("on", "on", False)


def test_memory_is_in_bytes_by_what_it_is_for() -> None:
    model, x = mlp(), image(requires_grad=True)
    memory = atlas.track_computational_graph(model, x).get_graph_summary()["memory_usage"]
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert memory["parameters"] == parameters
    assert memory["gradients"] == parameters + x.numel() * 4
    assert memory["activations"] == 2 * 128 * 4  # what comes out of the first layer and out of its relu
    assert memory["peak"] >= memory["current"] >= memory["parameters"] + memory["gradients"]
    assert f"{memory}".startswith("current ")
    assert "peak" in str(memory)
    assert json.loads(json.dumps(memory)) == memory


def test_format_strings_survive_without_timing_and_memory() -> None:
    tracker = atlas.track_computational_graph(mlp(), image(), track_memory=False, track_timing=False)
    summary = tracker.get_graph_summary()
    assert int(f"{summary['total_nodes']:,}") > 10
    assert f"{summary['execution_time']:.4f}s" == "nans"  # not a number: unknown is never zero
    assert math.isnan(summary["operation_time"])
    assert summary["timing"] == summary["memory"] == "off"
    assert f"Memory usage: {summary['memory_usage']}" == "Memory usage: unknown (memory was not tracked)"
    assert summary["memory_usage"]["peak"] is None
    tracked = atlas.track_computational_graph(mlp(), image()).get_graph_summary()
    assert set(summary) == set(tracked)
    assert set(summary["memory_usage"]) == set(tracked["memory_usage"])
    assert summary["untimed_operations"] == summary["total_operations"]


def test_memory_with_tensors_of_unknown_size_says_at_least() -> None:
    assert str(MemoryUsage(current=1024, peak=0, at_least=True)) == "current at least 1.00 KiB, peak 0 B"


def test_without_tensor_ops_module_calls_are_recorded_and_the_unseen_is_unknown() -> None:
    model = mlp()
    tracker = atlas.track_computational_graph(model, image(), track_tensor_ops=False)
    summary = tracker.get_graph_summary()
    assert {"0", "1", "2"} <= set(summary["operations_by_module"])
    assert summary["operations_by_phase"] == {"forward": 3, "backward": 1}
    assert summary["memory_usage"]["gradients"] is None
    assert summary["memory_usage"]["at_least"] is True
    assert all(p.grad is None for p in model.parameters())


def test_no_backward_where_nothing_requires_a_gradient() -> None:
    frozen = mlp().requires_grad_(False)
    assert atlas.track_computational_graph(frozen, image()).get_graph_summary()["operations_by_phase"] == {"forward": 5}
    with torch.no_grad():
        phases = atlas.track_computational_graph(mlp(), image()).get_graph_summary()["operations_by_phase"]
    assert "backward" not in phases
    from_input = atlas.track_computational_graph(frozen, image(requires_grad=True)).get_graph_summary()
    assert from_input["operations_by_phase"]["backward"] > 0


@pytest.mark.parametrize("wrap", [tuple, list, lambda pair: dict(zip("ab", pair, strict=True))])
def test_inputs_may_be_tuple_list_or_dictionary(wrap: Callable[[Any], Any]) -> None:
    example = wrap([torch.randn(3), torch.randn(3, requires_grad=True)])
    graph = atlas.track_computational_graph(TwoInputs(), example).graph
    assert [node.name for node in graph.where(kind="input")] == ["a", "b"]
    assert graph.where(operation="add")
    assert graph.where(phase="backward")


def test_a_dictionary_with_a_key_that_the_model_does_not_have() -> None:
    """It is passed whole, as some models take one: where a tensor was due, the keys are what is wrong."""
    said = r"Linear takes \(input\), but was given \(inputs=float32\[2, 4\]\): not all are its arguments.* not dict$"
    with pytest.raises(errors.InvalidInputError, match=said) as caught:
        atlas.track_computational_graph(nn.Linear(4, 4), {"inputs": torch.randn(2, 4)})
    assert not isinstance(caught.value, errors.InputMismatchError)

    class TakesOne(nn.Linear):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(batch["x"])

    assert len(atlas.track_computational_graph(TakesOne(4, 4), {"x": torch.randn(2, 4)}).graph)
    with pytest.raises(errors.InputMismatchError):
        atlas.track_computational_graph(TakesOne(4, 4), {"x": torch.randn(2, 5)})


# -- the model is left as found ---------------------------------------------------------------------------------------


def snapshot(model: nn.Module, x: torch.Tensor) -> list[Any]:
    tensors = [*model.state_dict().values(), x]
    return [
        [tensor.clone() for tensor in tensors],
        [tensor._version for tensor in tensors],
        [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in [*model.parameters(), x]],
        [module.training for module in model.modules()],
        getattr(model, "calls", None),
        torch.get_rng_state(),
        [len(module._forward_hooks) for module in model.modules()],
    ]


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("ops", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_found(ops: bool, fails: bool) -> None:
    model, x = Training(), torch.randn(5, 4, requires_grad=True)
    model(x).sum().backward()  # gradients that must survive
    before = snapshot(model, x)
    call, module_call = {"x": x, "fail": fails}, nn.Module.__call__
    if fails:
        with pytest.raises(ValueError, match="my own complaint"):
            atlas.track_computational_graph(model, call, track_tensor_ops=ops)
    else:
        tracker = atlas.track_computational_graph(model, call, track_tensor_ops=ops)
        assert tracker.get_graph_summary()["operations_by_phase"]["backward"] > 0
    assert same(snapshot(model, x), before)
    assert nn.Module.__call__ is module_call


# -- start and stop ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", [True, False])
def test_start_and_stop_around_ones_own_code(ops: bool) -> None:
    model = mlp()
    tracker = atlas.ComputationalGraphTracker(model=model, track_tensor_ops=ops)
    tracker.start_tracking()
    model(image()).sum().backward()
    tracker.stop_tracking()
    phases = tracker.get_graph_summary()["operations_by_phase"]
    assert phases["forward"] >= 3
    assert phases["backward"] >= 1
    assert all(p.grad is not None for p in model.parameters())  # the code has the effects it has alone


def test_starting_twice_is_refused_and_the_first_goes_on() -> None:
    model = mlp()
    tracker = atlas.ComputationalGraphTracker(model)
    tracker.start_tracking()
    with pytest.raises(errors.StateError, match="stop_tracking"):
        tracker.start_tracking()
    model(image())
    tracker.stop_tracking()
    assert tracker.graph.where(operation="addmm")


def test_stopping_without_a_start_is_refused() -> None:
    tracker = atlas.ComputationalGraphTracker(mlp())
    with pytest.raises(errors.StateError, match="start_tracking"):
        tracker.stop_tracking()
    tracker.start_tracking()
    tracker.stop_tracking()
    with pytest.raises(errors.StateError, match="start_tracking"):
        tracker.stop_tracking()


def test_nothing_to_summarize_before_the_start() -> None:
    tracker = atlas.ComputationalGraphTracker(mlp())
    for question in (tracker.get_graph_summary, lambda: tracker.graph, lambda: tracker.export_graph("x.json")):
        with pytest.raises(errors.StateError, match="start_tracking"):
            question()


@pytest.mark.parametrize("ops", [True, False])
def test_a_summary_while_tracking_shows_what_there_is_so_far(ops: bool) -> None:
    model = mlp()
    tracker = atlas.ComputationalGraphTracker(model, track_tensor_ops=ops)
    tracker.start_tracking()
    model[0](image())
    first, again = tracker.get_graph_summary(), tracker.get_graph_summary()
    model[1](torch.randn(1, 128))
    tracker.stop_tracking()
    last = tracker.get_graph_summary()
    assert first["tracking"] is True
    assert first["total_operations"] == again["total_operations"] >= 1  # looking is not recorded
    assert last["total_operations"] > first["total_operations"]
    assert 0 < first["execution_time"] <= again["execution_time"] <= last["execution_time"]
    assert last["execution_time"] == tracker.get_graph_summary()["execution_time"]


def test_starting_again_begins_anew() -> None:
    model = mlp()
    tracker = atlas.ComputationalGraphTracker(model)
    counts = []
    for _ in range(2):
        with tracker:
            model(image())
        counts.append(tracker.get_graph_summary()["total_operations"])
    assert counts[0] == counts[1] > 0


def test_an_exception_ends_the_tracking_and_keeps_the_graph() -> None:
    model = mlp()
    tracker = atlas.ComputationalGraphTracker(model)

    def program() -> None:
        with tracker:
            model[0](image())
            model(torch.randn(1, 3))

    with pytest.raises(RuntimeError, match="mat1"):
        program()
    assert not tracker.tracking
    assert tracker.graph.where(operation="addmm")
    assert any("aten.addmm.default in 0" in note for note in tracker.graph.notes)


# -- analysis and files -----------------------------------------------------------------------------------------------


def test_analysis_has_performance_and_every_layer() -> None:
    analysis = atlas.analyze_computational_graph(model=mlp(), input_tensor=image(), detailed=True)
    summary, performance, layers = analysis["summary"], analysis["performance"], analysis["layer_analysis"]
    rate = summary["total_operations"] / summary["execution_time"]
    assert performance["operations_per_second"] == pytest.approx(rate)
    assert float(f"{performance['operations_per_second']:.2f}") > 0
    assert f"Memory usage: {performance['memory_usage']}".startswith("Memory usage: current")
    times = [node.time_ns for node in performance["slowest_operations"]]
    assert times == sorted(times, reverse=True)
    assert len(times) == 10
    assert set(layers) == {"(Sequential)", "0", "1", "2"}
    assert sum(map(len, layers.values())) == summary["total_operations"]
    assert {node.operation for node in layers["1"]} >= {"aten.relu.default", "aten.threshold_backward.default"}


def test_short_analysis_is_the_summary_alone() -> None:
    assert list(atlas.analyze_computational_graph(mlp(), image(), detailed=False)) == ["summary"]


def test_layers_that_never_ran_are_listed_without_operations() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    layers = atlas.analyze_computational_graph(Unused(), torch.randn(1, 2))["layer_analysis"]
    assert layers["idle"] == []
    assert layers["used"]


def test_export_returns_the_path_and_the_json_has_nodes_and_edges(tmp_path: Path) -> None:
    tracker = atlas.track_computational_graph(mlp(), image())
    path = tracker.export_graph(tmp_path / "graph_data.json")
    content = json.loads(path.read_text())
    assert len(content["nodes"]) == len(tracker.graph)
    assert len(content["edges"]) == len(tracker.graph.edges)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (None, "not NoneType"),
        (nn.Linear, "pass an instance: Linear"),
        (nn.Linear(2, 2).state_dict(), "load_state_dict"),
        (lambda x: x, "atlas.capture"),
    ],
)
def test_an_invalid_model(model: Any, says: str) -> None:
    with pytest.raises(errors.InvalidModelError, match=says):
        atlas.ComputationalGraphTracker(model)
    with pytest.raises(errors.InvalidModelError, match=says):
        atlas.track_computational_graph(model, image())


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (None, "is None"),
        ("text", "of type str"),
        (["a", "b"], "a list of str"),
        (image().numpy(), "torch.from_numpy"),
        ((image(), image()), r"Sequential takes \(input\)"),
        ((), "missing a required argument"),
    ],
)
def test_an_input_that_cannot_be_passed(example: Any, says: str) -> None:
    with pytest.raises(errors.InvalidInputError, match=says) as caught:
        atlas.track_computational_graph(mlp(), example)
    assert not isinstance(caught.value, errors.InputMismatchError)


@pytest.mark.parametrize("ops", [True, False])
@pytest.mark.parametrize(
    ("model", "example", "says"),
    [
        (mlp(), torch.randn(1, 7), r"float32\[1, 7\].*mat1 and mat2 shapes"),
        (mlp(), image().double(), "same dtype"),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), image(), "input to conv2d"),
        (nn.Sequential(nn.Embedding(4, 2)), torch.tensor([9]), "index out of range"),
        (nn.Sequential(nn.Embedding(4, 2)), torch.randn(2), "scalar types"),
    ],
)
def test_an_input_that_torch_refuses(model: nn.Module, example: torch.Tensor, says: str, ops: bool) -> None:
    with pytest.raises(errors.InputMismatchError, match=says) as caught:
        atlas.track_computational_graph(model, example, track_tensor_ops=ops)
    assert isinstance(caught.value, errors.InvalidInputError)
    assert isinstance(caught.value, RuntimeError)  # what torch itself would have raised
    assert type(caught.value.__cause__) in (RuntimeError, IndexError)
    assert "in 0" in str(caught.value) or "module 0" in str(caught.value)
    assert isinstance(caught.value.partial, atlas.Graph)


def test_the_message_has_the_users_line() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

    with pytest.raises(errors.InputMismatchError, match=r"aten\.mm\.default at .*test_tracker\.py:\d+ in .*forward"):
        atlas.track_computational_graph(Wrong(), torch.randn(2, 3))


def test_what_the_model_raises_is_its_own() -> None:
    with pytest.raises(ValueError, match="my own complaint") as caught:
        atlas.track_computational_graph(Training(), {"x": torch.randn(5, 4), "fail": True})
    assert not isinstance(caught.value, atlas.AtlasError)
    assert "torchatlas was tracking Training" in caught.value.__notes__[0]


def test_what_fails_in_backward_is_not_the_inputs_fault() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return torch.mm(grad, grad)

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Square.apply(x)

    with pytest.raises(RuntimeError, match="must be a matrix") as caught:
        atlas.track_computational_graph(Odd(), torch.randn(2, requires_grad=True))
    assert not isinstance(caught.value, atlas.AtlasError)


def test_running_out_of_memory() -> None:
    with pytest.raises(errors.OutOfMemoryError, match="fake=True") as caught:
        atlas.track_computational_graph(Greedy(), torch.randn(3))
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    tracker = atlas.track_computational_graph(mlp(), image())
    with pytest.raises(errors.FileSystemError, match="does not exist"):
        tracker.export_graph(tmp_path / "missing" / "graph.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(errors.FileSystemError, match="directory"):
        tracker.export_graph(tmp_path / "folder.json")
    with pytest.raises(errors.FileFormatError, match="no file format"):
        tracker.export_graph(tmp_path / "graph.xyz")


def test_pictures_have_the_pixels_and_the_resolution_asked_for(tmp_path: Path) -> None:
    tracker = atlas.track_computational_graph(mlp(), image())
    path = tracker.save_graph_png(tmp_path / "graph.png", width=2000, height=1500, dpi=150, node_size=60, font_size=12)
    assert path == tmp_path / "graph.png"
    data = path.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (2000, 1500)
    per_metre = struct.unpack(">I", data[data.index(b"pHYs") + 4 :][:4])[0]
    assert round(per_metre * 0.0254) == 150
    default = tracker.save_graph_png(str(tmp_path / "default.png")).read_bytes()
    assert struct.unpack(">II", default[16:24]) == (1200, 800)
    without = tracker.save_graph_png(tmp_path / "without.png", show_legend=False).read_bytes()
    assert without != default


def test_pictures_that_cannot_be_written(tmp_path: Path) -> None:
    tracker = atlas.track_computational_graph(mlp(), image())
    with pytest.raises(errors.FileSystemError, match="does not exist"):
        tracker.save_graph_png(tmp_path / "missing" / "graph.png")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(errors.FileFormatError, match="png"):
        tracker.save_graph_png(tmp_path / "graph.jpg")
    with pytest.raises(errors.FileFormatError, match="and '' ends otherwise"):
        tracker.save_graph_png("")
    assert tracker.save_graph_png(tmp_path / "GRAPH.PNG").exists()
    with pytest.raises(errors.InvalidInputError, match="width=0"):
        tracker.save_graph_png(tmp_path / "graph.png", width=0)


# -- the zoo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specimen", [s for s in ZOO if isinstance(s.build()[0], nn.Module)], ids=str)
def test_every_model_of_the_zoo_can_be_analyzed(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    if args and kwargs:
        pytest.skip("takes positional and keyword arguments at once, which one input_tensor cannot say")
    analysis = atlas.analyze_computational_graph(model, kwargs or args)
    summary = analysis["summary"]
    assert sum(map(len, analysis["layer_analysis"].values())) == summary["total_operations"] > 0
    assert sum(summary["operations_by_phase"].values()) == summary["total_operations"]
