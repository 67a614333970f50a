"""Which module call a node ran in, what modules are called, and what a scope adds up to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph


def places(graph: Graph) -> list[tuple[str, str, int]]:
    """Path, class and call index of every op."""
    return [(node.scope.path, node.scope.type, node.call_index) for node in graph.where(kind="op")]


def test_paths_and_classes_are_the_models() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.SiLU(), nn.Linear(4, 2)))
    graph = atlas.capture(model, torch.ones(1, 3))
    assert places(graph) == [
        ("0", "Linear", 0),
        ("0", "Linear", 0),
        ("1.0", "SiLU", 0),
        ("1.1", "Linear", 0),
        ("1.1", "Linear", 0),
    ]
    assert {path: type(module).__name__ for path, module in model.named_modules()} == {
        path: scope.type for path, scope in graph.scopes.items()
    }


def test_lists_and_dictionaries_of_modules() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleDict({"left": nn.ModuleList([nn.Tanh(), nn.Sigmoid()]), "right": nn.Tanh()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.heads["right"](self.heads["left"][1](x)) + x

    assert places(atlas.capture(Nested(), torch.ones(1))) == [
        ("heads.left.1", "Sigmoid", 0),
        ("heads.right", "Tanh", 0),
        ("", "Nested", 0),
    ]


def test_a_module_called_again_counts_its_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(self.block(x))

    graph = atlas.capture(Twice(), torch.ones(1))
    assert places(graph) == [("block.0", "Tanh", 0), ("block.0", "Tanh", 1)]
    assert (graph.scopes["block"].calls, graph.scopes["block.0"].calls, graph.scopes[""].calls) == (2, 2, 1)


def test_a_module_under_two_names_has_the_first() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(2, 2)
            self.decoder = self.encoder

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(self.encoder(x))

    model = Shared()
    graph = atlas.capture(model, torch.ones(1, 2))
    assert {place[0] for place in places(graph)} == {"encoder"}
    assert graph.scopes["encoder"].calls == 2
    assert "decoder" not in graph.scopes
    assert graph.scopes[""].parameters == graph.scopes["encoder"].parameters == 6


def test_a_module_that_calls_itself() -> None:
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            return x.sin() if depth == 0 else self(x.cos(), depth - 1)

    graph = atlas.capture(Recursive(), torch.ones(1), 2)
    assert [(node.operation, node.call_index) for node in graph.where(kind="op")] == [
        ("aten.cos.default", 0),
        ("aten.cos.default", 1),
        ("aten.sin.default", 2),
    ]
    assert graph.columns["call_parent"].tolist() == [-1, 0, 1]
    assert len(graph.where(kind="output")) == 1


def test_a_module_outside_the_model_is_named_after_its_class() -> None:
    model, loss = nn.Sequential(nn.Linear(2, 2)), nn.MSELoss()
    first, second = nn.Sequential(nn.SiLU()), nn.Sequential(nn.SiLU())
    with atlas.recording(model) as rec:
        y = second(first(model(torch.ones(1, 2))))
        loss(y, torch.zeros(1, 2))
    assert [place[0] for place in places(rec.graph) if place[1] in ("SiLU", "MSELoss", "Linear")] == [
        "0",
        "0",
        "Sequential.0",
        "Sequential_1.0",
        "MSELoss",
    ]


def test_the_only_module_of_a_recording_needs_no_prefix() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with atlas.recording() as rec:
        model(torch.ones(1, 2))
    assert "0.addmm" in rec.graph
    assert rec.graph["0.addmm"].inputs[0].parameter == "0.bias"


def test_several_modules_without_a_model_are_told_apart() -> None:
    pair = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with atlas.recording() as rec:
        pair[1](pair[0](torch.ones(1, 2)))
    assert [node.name for node in rec.graph.where(operation="addmm")] == ["Linear.addmm", "Linear_1.addmm"]
    assert rec.graph["Linear_1.addmm"].inputs[0].parameter == "Linear_1.bias"


def test_a_part_called_before_the_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with atlas.recording(model) as rec:
        model[0](torch.ones(1, 2))
        model(torch.ones(1, 2))
    assert [(node.scope.path, node.call_index) for node in rec.graph.where(operation="addmm")] == [("0", 0), ("0", 1)]


def test_without_any_module_everything_is_at_the_root() -> None:
    graph = atlas.capture(lambda x: x.sin() + 1, torch.ones(1))
    assert places(graph) == [("", "", 0), ("", "", 0)]
    assert list(graph.scopes) == [""]


def test_modules_that_are_never_called_are_listed() -> None:
    model = nn.ModuleDict({"used": nn.Tanh(), "unused": nn.Linear(3, 3)})
    with atlas.recording(model) as rec:
        model["used"](torch.ones(1))
    unused = rec.graph.scopes["unused"]
    assert (unused.calls, unused.operations, unused.time_ns, unused.parameters) == (0, 0, None, 12)


# -- names -----------------------------------------------------------------------------------------------------------


def run_twice(model: nn.Module) -> Any:
    return lambda x: model(model(x)) + model(x)


def test_names_are_unique_and_the_same_from_run_to_run() -> None:
    names = []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        graph = atlas.capture(run_twice(model), torch.ones(1, 2), backward=True)
        names.append([node.name for node in graph.nodes])
        assert len(set(names[-1])) == len(names[-1])
        assert [graph[name].id for name in names[-1]] == list(range(len(graph)))
    assert names[0] == names[1]
    assert {"0.addmm", "0.addmm_1", "0.addmm_2", "add", "1.tanh_backward"} <= set(names[0])


def test_an_operator_that_ends_like_a_counter_stays_unique() -> None:
    with atlas.recording() as rec:
        for _ in range(3):
            torch.ops.aten.mul(torch.ones(1), 2)
        torch.ones(1).log2()
        torch.ones(1).log2()
    names = [node.name for node in rec.graph.nodes]
    assert len(set(names)) == len(names)


def test_inputs_have_the_names_the_model_gives_them() -> None:
    class Model(nn.Module):
        def forward(self, batch: dict[str, torch.Tensor], *rest: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return batch["image"] * scale + rest[0] + rest[1]

    graph = atlas.capture(Model(), {"image": torch.ones(1)}, torch.ones(1), torch.ones(1), scale=torch.ones(1))
    assert [node.name for node in graph.where(kind="input")] == ["batch.image", "rest.0", "rest.1", "scale"]


# -- the tree --------------------------------------------------------------------------------------------------------


def test_roll_ups() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.SiLU()))
    graph = atlas.capture(model, torch.ones(2, 3), backward=True)
    inner = graph.scopes["1"]
    assert inner.parameters == 20
    assert inner.parameter_bytes == 80
    assert graph.scopes[""].parameters == 36
    assert inner.operations == graph.scopes["1.0"].operations + graph.scopes["1.1"].operations
    assert inner.own_operations == 0
    assert inner.operations == len(graph.where(kind="op", scope="1")) == sum(inner.operations_by_phase.values())
    assert inner.operations_by_phase["forward"] == 3
    assert inner.time_ns == sum(node.time_ns or 0 for node in inner.nodes)
    assert [scope.path for scope in inner.walk()] == ["1", "1.0", "1.1"]
    assert (inner.name, graph.scopes["1.0"].name) == ("1", "0")
    assert graph.scopes["1.0"].parent is inner


def test_scopes_are_a_mapping_in_the_order_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    graph = atlas.capture(model, torch.ones(2, 3))
    assert list(graph.scopes) == [path for path, _ in model.named_modules()]
    assert len(graph.scopes) == 5
    with pytest.raises(KeyError):
        graph.scopes["nothing"]


def test_a_prefix_of_a_path_is_not_its_parent() -> None:
    model = nn.Sequential()
    model.add_module("layer", nn.Tanh())
    model.add_module("layer2", nn.Tanh())
    graph = atlas.capture(model, torch.ones(1))
    assert [node.scope.path for node in graph.where(scope="layer", kind="op")] == ["layer"]
