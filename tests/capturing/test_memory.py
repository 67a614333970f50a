"""Bytes alive after every node, against what the allocator did: torch.profiler's own memory events."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import load_torchvision, load_transformers, sampled
from torch import nn
from torch.profiler import ProfilerActivity, profile

import torchatlas as atlas
from torchatlas.graph import Graph, Storage

# -- the peak, against the profiler ----------------------------------------------------------------------------------


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[1], 64)
        for step in x:
            h, c = self.cell(step, (h, c))
        return h


def mlp() -> Any:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), (torch.randn(64, 64),)


def lstm_loop() -> Any:
    return CellLoop(), (torch.randn(20, 16, 32),)


def small_resnet() -> Any:
    # The first half of it: what kernels allocate and free inside (reordered weights) is large beside small images.
    whole = load_torchvision().models.resnet18()
    parts = [whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.avgpool]
    return nn.Sequential(*parts), (torch.randn(4, 3, 96, 96),)


def small_vit() -> Any:
    models = load_torchvision().models
    model = models.VisionTransformer(
        image_size=64, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=256, num_classes=10
    )
    return model, (torch.randn(4, 3, 64, 64),)


def small_gpt2() -> Any:
    transformers = load_transformers()
    config = transformers.GPT2Config(
        vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens, use_cache=False).logits

    return Logits(), (torch.randint(0, 200, (4, 64)),)


def profiler_peak(run: Callable[[], Any]) -> int:
    """The most bytes allocated during the run beyond what there was before."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    total = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak


# Inside convolutions' backward kernels there is room for reordered tensors, gone when they return.
IN_KERNELS = {("small_resnet", True): 0.06}


def bytes_before(graph: Graph) -> int:
    """What the recording found when it began: parameters, buffers, inputs."""
    return sum(storage.bytes or 0 for storage in graph.storages if storage.born is None)


@pytest.mark.parametrize("build", sampled([mlp, lstm_loop, small_resnet, small_vit, small_gpt2], 3))
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "training"])
def test_the_peak_is_the_profilers(build: Callable[[], Any], backward: bool) -> None:
    model, args = build()

    def run() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        result = model(*args)
        if backward:
            result.sum().backward()

    run()  # whatever is allocated once
    for parameter in model.parameters():
        parameter.grad = None
    recordings = []

    def recorded() -> None:  # in one pass: being recorded changes what is allocated a little
        with atlas.recording(model) as rec:
            run()
        recordings.append(rec)

    expected = profiler_peak(recorded)
    graph = recordings[0].graph
    assert graph.peak_bytes is not None
    found = graph.peak_bytes - bytes_before(graph)
    assert found == pytest.approx(expected, rel=IN_KERNELS.get((build.__name__, backward), 0.03))
    assert found <= expected


# -- lifetimes -------------------------------------------------------------------------------------------------------


def lifetime(storage: Storage) -> tuple[str | None, str | None]:
    born, died = storage.born, storage.died
    return born and born.name, died and died.name


def test_born_and_died() -> None:
    with atlas.recording() as rec:
        x = torch.ones(100)
        y = x + 1
        del x
        z = y.view(10, 10)
        del y  # its storage lives on in the view
        w = z * 2
        del z
        w = w.sum()
    assert {lifetime(storage) for storage in rec.graph.storages} == {
        ("ones", "add"),
        ("add", "mul"),
        ("mul", "sum"),
        ("sum", None),
    }
    assert [node.memory_bytes for node in rec.graph.nodes] == [400, 800, 400, 800, 404]
    del w


def test_live_bytes_are_the_sum_of_what_is_alive() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    graph = atlas.capture(model, torch.randn(5, 8), backward=True, optimizer=optimizer)
    count = len(graph)
    born = np.maximum(graph.columns["storage_born"], 0)
    died = np.where(graph.columns["storage_died"] < 0, count, graph.columns["storage_died"])
    sizes = graph.columns["storage_bytes"]
    for node in graph.nodes:
        alive = (born <= node.id) & (node.id <= died)
        assert node.memory_bytes >= sizes[alive & (died > node.id)].sum()  # what outlives the node
        assert node.memory_bytes <= sizes[alive].sum()  # and what dies after it


def test_promised_zeros_take_no_memory() -> None:
    with atlas.recording() as rec:
        zeros = torch._efficientzerotensor(1000)  # as forward-mode differentiation makes them
        found = zeros + torch.ones(1000)
    promised = rec.graph["_efficientzerotensor"]
    assert (promised.memory_bytes, promised.outputs[0].storage.bytes) == (0, 0)
    assert found.sum() == 1000


def test_shapes_that_torch_computes_on_meta_take_no_memory() -> None:
    """Arithmetic with promised zeros asks meta what shape the result has."""
    w, x = torch.randn(3), torch.randn(500, 3)
    with atlas.recording() as rec:
        torch.func.jvp(lambda v: (v * x).sin(), (w,), (w,))
    on_meta = [value for node in rec.graph.nodes for value in node.outputs if str(value.device) == "meta"]
    assert on_meta
    assert {value.storage.bytes for value in on_meta if value.storage is not None} == {0}
    assert rec.graph.peak_bytes == 12 + 6000 + 5 * 6000  # w, x, v * x, its tangent, sin, cos, and their product


def test_what_a_program_keeps_on_meta_counts() -> None:
    held = torch.empty(1000, device="meta")
    with atlas.recording() as rec:
        torch.ones(10) + 1
        made = held * 2
        for_its_shape = torch.ones(1000).to("meta")
        torch.empty(500, device="meta").add(1)
        made += for_its_shape
    sizes = {str(n.operation): n.outputs[0].storage.bytes for n in rec.graph.nodes if n.outputs}
    assert sizes["aten.mul.Tensor"] == 4000
    assert sizes["aten.empty.memory_format"] == 2000
    assert sizes["aten._to_copy.default"] == 0


def test_the_buffers_of_a_module_built_meanwhile_count_from_then() -> None:
    with atlas.recording() as rec:
        torch.zeros(10)
        model = nn.BatchNorm1d(4)
        model(torch.randn(2, 4))
    first = rec.graph.nodes[0]
    assert (first.name, first.memory_bytes) == ("zeros", 40)
    buffers = [storage for storage in rec.graph.storages if storage.role == "buffer"]
    assert len(buffers) == 3
    assert all(storage.born is not None for storage in buffers)
    assert not atlas.memory(rec.graph).timeline["unattributed"].any()


def test_views_allocate_nothing() -> None:
    x = torch.ones(64)
    with atlas.recording() as rec:
        views = [x.view(8, 8), x[3:], x.expand(4, 64), x.view(8, 8).t(), x.as_strided((2, 2), (1, 2)), *x.split(16)]
    graph = rec.graph
    assert len(graph.storages) == 1
    assert {node.memory_bytes for node in graph.nodes} == {256}
    assert all(value.storage == graph.storages[0] for value in graph.values)
    assert graph["expand"].outputs[0].view_of == graph["input"].outputs[0]
    del views


def test_tied_weights_count_once() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(50, 8), "head": nn.Linear(8, 50, bias=False)})
    model["head"].weight = model["embedding"].weight
    with atlas.recording(model) as rec:
        model["head"](model["embedding"](torch.tensor([1, 2])))
    parameters = [storage for storage in rec.graph.storages if storage.role == "parameter"]
    assert [storage.bytes for storage in parameters] == [50 * 8 * 4]
    assert rec.graph.scopes[""].parameters == 400


def test_resizing_is_followed() -> None:
    with atlas.recording() as rec:
        x = torch.zeros(10)
        x.resize_(1000)
        y = torch.zeros(1)
        del x
        z = torch.zeros(1)
    assert [node.memory_bytes for node in rec.graph.nodes] == [40, 4000, 4004, 8]
    del y, z


def test_what_arrives_late_counts_from_then() -> None:
    """Batches made of Python or numpy data are not all there from the beginning."""
    with atlas.recording() as rec:
        for _ in range(20):
            batch = torch.from_numpy(np.ones(1000, np.float32))
            total = batch.sum()
            del batch
        constant = torch.tensor([1.0] * 1000) + 1
    assert rec.graph.peak_bytes is not None
    assert rec.graph.peak_bytes < 3 * 4000 + 100
    del total, constant


def test_without_following_memory_it_is_unknown() -> None:
    with atlas.recording(track_memory=False) as rec:
        torch.ones(3)
    assert rec.graph.peak_bytes is None
    assert rec.graph.nodes[0].memory_bytes is None


# -- roles -----------------------------------------------------------------------------------------------------------


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)
        self.register_buffer("offset", torch.zeros(5))
        self.plain = torch.full((5,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + self.offset) * self.plain * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def roles(graph: Graph) -> dict[str, set[str]]:
    """role -> the names of the tensors that have it."""
    found: dict[str, set[str]] = {}
    for value in graph.values:
        found.setdefault(str(value.role), set()).add(value.parameter or "")
    return found


def test_roles_of_a_training_step() -> None:
    model = Everything()
    optimizer = torch.optim.Adam(model.parameters())
    graph = atlas.capture(model, torch.randn(2, 3), backward=True, optimizer=optimizer)
    found = roles(graph)
    assert found["parameter"] == found["gradient"] == {"linear.weight", "linear.bias"}
    assert found["optimizer state"] == {"linear.weight", "linear.bias"}
    assert found["buffer"] == {"offset"}
    assert found["constant"] == {"plain", ""}  # the attribute, and the tensor made of numbers
    assert found["input"] == {""}
    assert set(found) == {
        *("parameter", "gradient", "optimizer state", "buffer", "constant", "input", "activation", "temporary")
    }
    assert graph["x"].outputs[0].role == "input"
    assert graph["linear.addmm"].outputs[0].role == "activation"
    # weight, bias: two moments and a step count each
    assert len([storage for storage in graph.storages if storage.role == "optimizer state"]) == 6
    assert len([storage for storage in graph.storages if storage.role == "gradient"]) == 2


def test_gradients_that_were_there_before_are_gradients() -> None:
    model = nn.Linear(3, 2)
    model(torch.randn(1, 3)).sum().backward()
    with atlas.recording(model) as rec:
        model(torch.randn(1, 3)).sum().backward()
    assert {storage.bytes for storage in rec.graph.storages if storage.role == "gradient"} >= {24, 8}


def test_roles_without_a_model() -> None:
    weight, x = torch.randn(3, requires_grad=True), torch.randn(3)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    with atlas.recording() as rec:
        (weight * x).sum().backward()
        optimizer.step()
    graph = rec.graph
    assert [value.role for value in graph["mul"].inputs] == ["input", "input"]
    assert {str(storage.role) for storage in graph.storages} >= {"input", "activation", "gradient", "optimizer state"}
