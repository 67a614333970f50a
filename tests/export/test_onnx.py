"""`.onnx`: a traced model that a runtime of ONNX runs, and the structure of any graph, as onnx itself reads them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_source import SOURCES, step
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, MissingDependencyError, NotAvailableError
from torchatlas.graph import Graph

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(144, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).softmax(-1)


def tensors_by_maker(graph: Graph, model: Any) -> dict[str, tuple[int, int]]:
    """The tensors of a file -> the node of the graph that makes each, and which of its outputs it is."""
    names = list(map(_encoded, graph.index.names()))
    ids = {name: node for node, name in enumerate(names)}
    found = {}
    for node in model.graph.node:
        found.update({name: (ids[node.name], at) for at, name in enumerate(node.output)})
    inputs = [node for node in graph.nodes if node.kind == "input"]
    for info in model.graph.input:
        maker = next(node for node in inputs if info.name in (names[node.id], *_numbered(names[node.id])))
        found[info.name] = (maker.id, 0 if info.name == names[maker.id] else int(info.name.rpartition(":")[2]))
    return found


def _numbered(name: str) -> list[str]:
    return [f"{name}:{at}" for at in range(64)]


def _encoded(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize("source", SOURCES)
def test_the_structure_holds_every_edge(source: str, tmp_path: Path) -> None:
    graph = SOURCES[source]()
    model = onnx.load(graph.save(tmp_path / "graph.onnx"))
    makers = tensors_by_maker(graph, model)
    ids = {_encoded(name): node for node, name in enumerate(graph.index.names())}
    theirs: Counter[tuple[int, int, int]] = Counter()
    waits: set[int] = set()
    for node in model.graph.node:
        theirs.update((ids[node.name], *makers[name]) for name in node.input if name in makers)
        for prop in node.metadata_props:
            if prop.key == "waits_for":
                waits.add(ids[node.name])
    ends = {node.id for node in graph.nodes if node.kind != "op"}
    data = [edge for edge in graph.edges if edge.kind == "data"]
    ours = Counter((e.target_id, e.source_id, e.output_index or 0) for e in data if e.target_id not in ends)
    assert theirs == ours
    returned = {makers[info.name] for info in model.graph.output if info.name in makers}
    outputs = {node.id for node in graph.nodes if node.kind == "output"}
    assert returned == {(e.source_id, e.output_index or 0) for e in data if e.target_id in outputs}
    order = {e.target_id for e in graph.edges if e.kind == "order" and e.target_id not in ends}
    assert waits == order


def test_the_checker_of_onnx_has_only_the_missing_weights_to_tell_of(tmp_path: Path) -> None:
    model = onnx.load(step().save(tmp_path / "step.onnx"))
    with pytest.raises(onnx.checker.ValidationError, match="should contain one and only one value field"):
        onnx.checker.check_model(model)
    for one in model.graph.initializer:
        info = onnx.helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
        model.graph.input.append(info)
    del model.graph.initializer[:]
    onnx.checker.check_model(model)
    assert model.producer_name == "torchatlas"
    assert "no runtime runs it" in model.doc_string
    node = next(node for node in model.graph.node if node.name == "0.convolution")
    assert (node.domain, node.op_type, node.overload) == ("aten", "convolution", "default")
    assert list(node.input) == ["input", "0.weight", "0.bias"]
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    assert attributes["kernel_size"] == [3, 3]
    assert attributes["groups"] == 1
    facts = {one.key: one.value for one in node.metadata_props}
    assert facts["module"] == "0"
    assert facts["phase"] == "forward"
    assert int(facts["time_ns"]) > 0


def test_a_traced_model_runs_elsewhere(tmp_path: Path) -> None:
    model = Net().eval()
    x = torch.randn(3, 3, 8, 8)
    traced = atlas.trace(model, x)
    path = traced.save(tmp_path / "model.onnx")
    found = onnx.load(path)
    onnx.checker.check_model(found, full_check=True)
    names = {node.name for node in found.graph.node}
    assert {"body.0.Conv", "body.1.Relu", "head.Gemm"} <= names
    from onnx.reference import ReferenceEvaluator

    (result,) = ReferenceEvaluator(found).run(None, {found.graph.input[0].name: x.numpy()})
    np.testing.assert_allclose(result, model(x).detach().numpy(), atol=1e-5)
    without = onnx.load(traced.save(tmp_path / "light.onnx", weights=False))
    assert len(found.graph.initializer) > len(without.graph.initializer)


def test_bad_input_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = atlas.trace(nn.Linear(2, 2), torch.ones(3, 2))
    with pytest.raises(InvalidInputError, match=r"\.atlas or \.onnx"):
        traced.save(tmp_path / "model.png")
    loaded: Any = atlas.load(traced.save(tmp_path / "model.atlas"))
    with pytest.raises(NotAvailableError, match=r"trace the model itself"):
        loaded.save(tmp_path / "model.onnx")
    with pytest.raises(atlas.AtlasError, match="does not exist"):
        traced.save(tmp_path / "no" / "model.onnx")
    with pytest.raises(atlas.AtlasError, match="a model for other runtimes"):
        atlas.load(tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"torchatlas\[onnx\]"):
        traced.graph.save(tmp_path / "graph.onnx")
    with pytest.raises(MissingDependencyError, match=r"torchatlas\[onnx\]"):
        traced.save(tmp_path / "model.onnx")
