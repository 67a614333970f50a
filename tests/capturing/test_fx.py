"""Graphs of torch.fx's modules: the same as a capture's, without a run."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from support import load_torchvision
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, InvalidModelError
from torchatlas.graph import Graph


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, scale: float = 2.0, *, shift: Tensor | None = None) -> dict[str, Tensor]:
        hidden = torch.relu(self.inner(x)) * self.weight * scale
        mixed, _ = self.attention(hidden, hidden, hidden)
        return {"mixed": mixed if shift is None else mixed + shift}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        first = self.block(x)["mixed"]
        return first.softmax(-1) + self.block(x)["mixed"]


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_a_graph_of_fx_is_the_captured_one() -> None:
    model, x = Model(), torch.randn(2, 3, 4)
    found, captured = atlas.from_fx(fx.symbolic_trace(model), x), atlas.capture(model, x)
    assert names(found) == names(captured)
    assert [node.operation for node in found.nodes] == [node.operation for node in captured.nodes]
    for end in ("edge_source", "edge_target", "edge_value"):
        assert (found.columns[end] == captured.columns[end]).all()
    assert [(s.path, s.type, s.calls, s.parameters) for s in found.scopes.values()] == [
        (s.path, s.type, s.calls, s.parameters) for s in captured.scopes.values()
    ]
    assert found.source == "fx"
    assert atlas.cost(found).macs == atlas.cost(captured).macs > 0


def test_shapes_that_were_propagated_stand_for_inputs() -> None:
    module = fx.symbolic_trace(Model())
    ShapeProp(module).propagate(torch.randn(5, 3, 4))
    graph = atlas.from_fx(module)
    assert graph.nodes[0].name == "x"
    assert graph.nodes[0].outputs[0].shape == (5, 3, 4)
    assert names(graph) == names(atlas.from_fx(module, torch.randn(5, 3, 4)))
    assert all(node.time_ns is None for node in graph.nodes)


def test_every_operation_belongs_to_the_node_that_ran_it() -> None:
    module = fx.symbolic_trace(Model())
    graph = atlas.from_fx(module, torch.randn(2, 3, 4))
    ran = graph.metadata["fx_nodes"]
    operations = [node.id for node in graph.where(kind="op")]
    assert sorted(number for numbers in ran.values() for number in numbers) == operations
    assert {graph.nodes[number].scope.path for number in ran["block_inner_0"]} == {"block.inner.0"}
    assert graph.nodes[ran["softmax"][0]].operation == "aten._softmax.default"
    assert len(ran["block_attention"]) > 5


def test_inputs_by_name_and_defaults() -> None:
    module = fx.symbolic_trace(Block(), concrete_args={"shift": None})
    by_name = atlas.from_fx(module, x=torch.randn(2, 3, 4), scale=3.0)
    assert names(by_name) == names(atlas.from_fx(module, torch.randn(2, 3, 4)))


def test_lines_are_those_of_the_trace_and_never_ours() -> None:
    tracer = fx.Tracer()
    tracer.record_stack_traces = True
    model = Block()
    module = fx.GraphModule(model, tracer.trace(model, concrete_args={"shift": None}))
    graph = atlas.from_fx(module, torch.randn(2, 3, 4))
    source = graph.where(operation="aten.mul.Tensor")[0].source
    assert source is not None
    assert "self.weight * scale" in source.text
    unknown = atlas.from_fx(fx.symbolic_trace(Model()), torch.randn(2, 3, 4))
    assert all(node.source is None for node in unknown.where(kind="op"))


def test_a_module_of_torch_export() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    module = torch.export.export(model, (x,)).module()
    assert isinstance(module, fx.GraphModule)
    graph = atlas.from_fx(module, x)
    assert atlas.cost(graph).macs == atlas.cost(atlas.capture(model, x)).macs > 0
    assert set(graph.scopes) - {"_guards_fn"} == {"", "0", "1", "2"}


def test_everything_is_left_as_found() -> None:
    module = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()))
    before, x, state = copy.deepcopy(module.state_dict()), torch.randn(2, 3, 8, 8), torch.get_rng_state()
    code, threads = module.code, threading.active_count()
    atlas.from_fx(module, x)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert "forward" not in vars(module)
    assert module.code == code
    assert threading.active_count() == threads
    assert torch.is_tensor(module(x))


def test_on_the_meta_device() -> None:
    with torch.device("meta"):
        module = fx.symbolic_trace(nn.Linear(4, 5))
        graph = atlas.from_fx(module, torch.empty(2, 4))
    assert atlas.cost(graph).macs == 40
    assert "forward" not in vars(module)


# -- law 10 ------------------------------------------------------------------------------------------------------------


def symbolically_traced(entry: Specimen) -> fx.GraphModule | None:
    model, _, _ = entry.build()
    if not isinstance(model, nn.Module):
        return None
    try:
        return fx.symbolic_trace(model)
    except Exception:  # whatever the tracer stumbles over: its limits are not ours
        return None


# How torch makes a fake of a tensor that is not a leaf; it means to hide it, from others than pytest it does.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("entry", ZOO, ids=str)
def test_what_fx_traces_costs_what_a_capture_does(entry: Specimen) -> None:
    module = symbolically_traced(entry)
    if module is None:
        pytest.skip("torch.fx cannot trace it")
    model, args, kwargs = entry.build()
    try:
        module(*args, **kwargs)
    except Exception as error:  # traced for other inputs than these
        pytest.skip(f"what torch.fx traced does not run: {type(error).__name__}")
    try:
        graph = atlas.from_fx(module, *args, **kwargs)
    except atlas.errors.CaptureError as error:
        pytest.skip(f"not on fake tensors: {error}")
    assert atlas.cost(graph).macs == atlas.cost(atlas.capture(model, *args, kwargs=kwargs)).macs


def test_most_of_the_zoo_that_fx_traces_is_read() -> None:
    """Else every test above could be a skip."""
    read = 0
    for entry in ZOO:
        module = symbolically_traced(entry)
        if module is not None:
            _, args, kwargs = entry.build()
            try:
                atlas.from_fx(module, *args, **kwargs)
            except Exception:
                continue
            read += 1
    assert read >= 35


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "mobilenet_v3_small"])
def test_torchvision_models_cost_the_published_figure(name: str) -> None:
    models = load_torchvision().models
    weight = models.get_model_weights(name).DEFAULT
    with torch.device("meta"):
        module = fx.symbolic_trace(models.get_model(name).eval())
        graph = atlas.from_fx(module, torch.empty(1, 3, 224, 224))
    assert f"{atlas.cost(graph).macs / 1e9:.3f}" == f"{weight.meta['_ops']:.3f}"


# -- what cannot be read -----------------------------------------------------------------------------------------------


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidModelError, match=r"takes a torch\.fx\.GraphModule, not Linear"):
        atlas.from_fx(nn.Linear(2, 2), torch.ones(1, 2))


def test_unknown_shapes_are_refused_and_not_guessed() -> None:
    with pytest.raises(InvalidInputError, match=r"Nothing is known about the input 'input'.*ShapeProp"):
        atlas.from_fx(fx.symbolic_trace(nn.Linear(2, 2)))


def test_too_many_inputs_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="too many positional arguments"):
        atlas.from_fx(fx.symbolic_trace(nn.Linear(2, 2)), torch.ones(1, 2), torch.ones(1))


def test_an_error_inside_leaves_the_module_as_it_was() -> None:
    module = fx.symbolic_trace(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="same reduction dim"):
        atlas.from_fx(module, torch.ones(1, 3))
    assert "forward" not in vars(module)
    assert module(torch.ones(1, 2)).shape == (1, 2)
