"""autograd_graph: the nodes behind a tensor, in the engine's order, with the engine's edges and the leaves' names."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.autograd.autograd_graph import autograd_graph
from torchatlas.autograd.saved_tensors import saved_by
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Role
from torchatlas.graph.consistency import faults


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def order_of_the_engine(loss: torch.Tensor) -> list[str]:
    """What really runs, by a hook on every node."""
    ran: list[str] = []
    seen, stack, handles = set(), [loss.grad_fn], []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        handles.append(node.register_prehook(lambda _, node=node: ran.append(node.name().rpartition("::")[2])))
        stack += [following for following, _ in node.next_functions]
    loss.backward()
    for handle in handles:
        handle.remove()
    return ran


@pytest.mark.parametrize("case", ["chain", "residual", "shared", "several outputs", "embedding"])
def test_nodes_come_in_the_order_in_which_the_engine_runs_them(case: str) -> None:
    net, x = model(), torch.randn(3, 4)
    losses = {
        "chain": lambda: net(x).sum(),
        "residual": lambda: (net[0](x) + net[0](x).relu()).mean(),
        "shared": lambda: (net(x) * net(x.exp())).sum(),
        "several outputs": lambda: torch.stack(net(x).unbind(1)[::-1]).pow(2).sum(),
        "embedding": lambda: nn.functional.embedding(torch.tensor([0, 1, 1]), net[0].weight).logsumexp(0).sum(),
    }
    graph = autograd_graph(losses[case]())
    assert [node.operation for node in graph.nodes] == order_of_the_engine(losses[case]())
    assert faults(graph.columns, graph.tables) is None
    assert graph.source == "autograd"


def test_edges_are_next_functions() -> None:
    net, x = model(), torch.randn(3, 4)
    loss = (net(x) * net(x)).sum()
    graph = autograd_graph(loss)
    count, stack, seen = 0, [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is not None:
                count += 1
                stack.append(following)
    assert len(graph) == len(seen)
    assert len(graph.edges) == count
    first = graph.nodes[0]
    assert first.operation == "SumBackward0"
    assert [edge.value.shape for edge in graph.edges if edge.source.id == 0] == [(3, 2)]


def test_leaves_have_their_names_and_shapes() -> None:
    net = model()
    graph = autograd_graph(net(torch.randn(3, 4)).sum(), model=net)
    leaves = {
        value.parameter: value.shape for value in graph.values if value.producer is None and value.parameter is not None
    }
    assert leaves == {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    assert graph.scopes[""].parameters == sum(parameter.numel() for parameter in net.parameters())
    named = autograd_graph(net(torch.randn(3, 4)).sum(), params={"w": net[0].weight})
    assert [value.parameter for value in named.values if value.parameter] == ["w"]


def test_pictures_show_every_node() -> None:
    graph = autograd_graph(model()(torch.randn(3, 4)).sum())
    picture = atlas.draw(graph)
    assert picture.boxes == len(graph)
    assert "AccumulateGrad" in picture.svg


def test_what_has_no_graph() -> None:
    with pytest.raises(atlas.errors.AnalysisError, match="does not require a gradient"):
        autograd_graph(torch.ones(2))
    with pytest.raises(atlas.errors.AnalysisError, match="leaf"):
        autograd_graph(torch.ones(2, requires_grad=True))
    with pytest.raises(atlas.errors.InvalidInputError, match="not float"):
        autograd_graph(3.0)  # type: ignore[arg-type]
    with pytest.raises(atlas.errors.InvalidInputError, match="not list"):
        autograd_graph([])


# -- what nodes hold ---------------------------------------------------------------------------------------------------


def test_what_a_node_saved_is_among_its_inputs_by_slot() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    hidden = x @ w
    graph = autograd_graph(hidden.exp().sum(), params={"w": w})
    product = graph.where(operation="MmBackward0")[0]
    saved = product.arguments.kwargs
    assert saved is not None
    assert set(saved) == {"self", "mat2"}
    held = product.inputs[saved["mat2"].index]
    assert (held.shape, held.parameter, held.role) == ((4, 2), "w", Role.PARAMETER)
    assert held.storage is not None
    assert held.storage.bytes == 32
    result = graph.where(operation="ExpBackward0")[0]
    assert result.inputs[-1].role == Role.ACTIVATION
    assert autograd_graph(hidden.sum(), saved=False).where(operation="MmBackward0")[0].arguments.kwargs is None


def test_versions_of_what_was_saved() -> None:
    x = torch.ones(3, requires_grad=True)
    hidden = x.exp()
    loss = (hidden * hidden).sum()
    with torch.no_grad():
        hidden.add_(1)
    node = autograd_graph(loss).where(operation="MulBackward0")[0]
    assert {value.version for value in node.inputs[-2:]} == {1}
    states = {each.slot: each.expected_version() for each in saved_by(loss.grad_fn.next_functions[0][0])}  # type: ignore[union-attr]
    assert states == {"self": 0, "other": 0}


def test_nodes_whose_python_type_is_the_same_keep_their_names() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x * 2
    y[:2] = y[2:] * 3
    loss = y.to(torch.float64).to("cpu").sum()
    expected, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        expected.add(node.name().rpartition("::")[2])  # type: ignore[union-attr]
        stack += [following for following, _ in node.next_functions if following is not None]  # type: ignore[union-attr]
    assert {node.operation for node in autograd_graph(loss).nodes} == expected
    assert "CopySlices" in expected


def test_topological_numbers_and_input_numbers() -> None:
    x = torch.ones(4, requires_grad=True)
    first, second = x.unbind()[:2], x * 2
    loss = first[1] + second.sum()
    graph = autograd_graph(loss)
    numbers = dict(zip((node.operation for node in graph.nodes), graph.recorded["topological_nr"], strict=True))
    inner = {"SumBackward0": 2, "MulBackward0": 1, "UnbindBackward0": 1}
    assert numbers == {"AddBackward0": 3, **inner, "AccumulateGrad": 0}
    pairs = zip(graph.edges, graph.recorded["input_nr"].tolist(), strict=True)
    into = {(edge.source.operation, edge.target.operation): number for edge, number in pairs}
    assert into["AddBackward0", "UnbindBackward0"] == 1


def test_gradients_that_are_added_up_share_the_engines_input_but_are_inputs_of_their_own() -> None:
    x = torch.ones(4, requires_grad=True)
    graph = autograd_graph((x.sin() + x.cos()).sum())
    into = [edge for edge in graph.edges if edge.target.operation == "AccumulateGrad"]
    assert [graph.recorded["input_nr"][edge.id] for edge in into] == [0, 0]
    assert [edge.input_index for edge in into] == [0, 1]
    assert all(edge.target.inputs[edge.input_index] == edge.value for edge in into)


def test_nodes_belong_to_the_module_and_line_of_their_forward_op() -> None:
    net = model()
    with atlas.recording(net) as rec:
        loss = net(torch.randn(3, 4)).square().sum()
    graph = autograd_graph(loss, model=net, forward=rec.graph)
    assert [(node.operation, node.scope.path) for node in graph.nodes][:4] == [
        ("SumBackward0", ""),
        ("PowBackward0", ""),
        ("AddmmBackward0", "2"),
        ("AccumulateGrad", "2"),
    ]
    assert graph.nodes[0].source is not None
    assert "loss = net" in graph.nodes[0].source.text
    assert graph["0.AddmmBackward0"].scope.type == "Linear"


def test_files_load_back_identical(tmp_path: Path) -> None:
    graph = autograd_graph(model()(torch.randn(3, 4)).sum())
    assert atlas.load(graph.save(tmp_path / "a.atlas")).identical(graph)


# -- text and life -----------------------------------------------------------------------------------------------------


def test_print_graph_writes_shared_nodes_once(capsys: pytest.CaptureFixture[str]) -> None:
    net = model()
    hidden = net[0](torch.randn(3, 4))
    text = atlas.print_graph((hidden.relu() + hidden.sigmoid()).mean(), indent=1, model=net)
    assert capsys.readouterr().out == text + "\n"
    lines = text.splitlines()
    assert lines[0] == "  Tensor shape: [] float32"
    assert lines[1].startswith("  grad_fn: MeanBackward0 #")
    assert lines[2].startswith("    ↑ AddBackward0 #")
    assert lines[3].startswith("      ↑ ReluBackward0 #")
    assert sum("AddmmBackward0" in line for line in lines) == 2
    assert sum("(above)" in line for line in lines) == 1
    assert any("AccumulateGrad 0.weight [8, 4]" in line for line in lines)
    assert any("saved result (96 B)" in line for line in lines)


def test_print_graph_of_a_long_chain_is_cut() -> None:
    y = torch.ones(1, requires_grad=True)
    for _ in range(1000):
        y = y * 2
    lines = atlas.print_graph(y, most=20).splitlines()
    assert len(lines) == 21
    assert lines[-1].strip() == "... 982 more nodes"
    assert max(map(len, lines)) < 60


def test_the_life_of_a_graph() -> None:
    net = model()
    trunk = net[:2](torch.randn(3, 4))
    one, other = net[2](trunk).sum(), trunk.square().sum()
    before = atlas.lifecycle(one)
    assert (before.state, before.can_run) == ("created", True)
    assert before.held_bytes == 3 * 4 * 4 + 3 * 8 * 4  # the input and the hidden layer
    assert before.parameter_bytes == 2 * 8 * 4
    one.backward()
    after = atlas.lifecycle(one)
    assert (after.state, after.can_run, after.held_bytes) == ("freed", False, 0)
    shared = atlas.lifecycle(other)
    assert (shared.state, shared.can_run) == ("partly freed", False)
    assert "a second backward through it fails" in str(shared)
    kept = net(torch.randn(3, 4)).sum()
    kept.backward(retain_graph=True)
    assert atlas.lifecycle(kept).can_run


def test_a_checkpoint_is_packed() -> None:
    net = model()
    out = checkpoint(net, torch.randn(3, 4), use_reentrant=False).sum()
    life = atlas.lifecycle(out)
    assert life.count("packed") > 0
    assert life.can_run


def test_parameters_count_once_though_they_are_saved_as_views() -> None:
    net = model()
    with atlas.recording(net) as forward:
        loss = net(torch.randn(3, 4)).mean()
    for saved in (True, False):
        graph = autograd_graph(loss, model=net, forward=forward, saved=saved)
        assert faults(graph.columns, graph.tables) is None
        assert {path: scope.parameters for path, scope in graph.scopes.items()} == {"": 58, "0": 40, "1": 0, "2": 18}


def test_a_write_to_a_part_belongs_to_its_line_and_module() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inner(x)
            return made.sum()

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.sin()
            out = torch.zeros_like(h)
            out[:, :2] = h[:, 2:]  # a line of its own
            return out

    net, x = Parts(), torch.randn(3, 4, requires_grad=True)
    with atlas.recording(net) as forward:
        loss = net(x)
    graph = autograd_graph(loss, model=net, forward=forward)
    (write,) = (node for node in graph.nodes if node.operation == "CopySlices")
    assert write.scope.path == "inner"
    assert write.source is not None
    assert "a line of its own" in write.source.text


def test_numbers_that_several_threads_used_belong_to_nobody() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    made = {}

    def run(name: str) -> None:
        made[name] = net[name](torch.ones(1, 2)).sum()

    with atlas.recording(net) as forward:
        for name in "ba":
            thread = threading.Thread(target=run, args=(name,))
            thread.start()
            thread.join()
    graph = autograd_graph(made["a"], model=net, forward=forward)
    assert {node.scope.path for node in graph.nodes} == {"", "a"}


def test_nested_tensors_of_both_kinds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        parts = [torch.ones(2, 4), torch.ones(3, 4)]
        strided = torch.nested.nested_tensor(parts, requires_grad=True)
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        losses = [(strided * 2).to_padded_tensor(0.0).sum(), (jagged * 2).values().sum()]
    for loss in losses:
        graph = autograd_graph(loss)
        assert faults(graph.columns, graph.tables) is None
        assert {value.shape for node in graph.nodes for value in node.inputs if value.role == Role.PARAMETER} == {
            (2, "*", 4)
        }
        assert graph._repr_svg_().startswith("<svg")
        assert atlas.lifecycle(loss).can_run
        assert atlas.record_backward(loss, statistics=True).statistics[-1].norm == pytest.approx(2 * 20**0.5)


def test_names_may_come_as_a_model_a_dictionary_or_pairs() -> None:
    net = model()
    loss = net(torch.randn(3, 4)).mean()
    for params in (net, dict(net.named_parameters()), net.named_parameters()):
        graph = autograd_graph(loss, params)
        assert {value.parameter for value in graph.values if value.parameter} == {
            name for name, _ in net.named_parameters()
        }
    with pytest.raises(InvalidInputError, match="`params` are names and tensors"):
        autograd_graph(loss, net.parameters())  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="`model` is a torch"):
        autograd_graph(loss, model=loss)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="`forward` is the graph of a recording"):
        autograd_graph(loss, forward=net)  # type: ignore[arg-type]


def test_what_stays_in_any_case_is_not_held() -> None:
    frozen = nn.Linear(100, 100).requires_grad_(False)
    life = atlas.lifecycle(frozen(torch.ones(1, 100, requires_grad=True)).sum())
    assert (life.held_bytes, life.parameter_bytes) == (0, 4 * 100 * 100)
    sparse = torch.eye(5, 6).to_sparse()
    life = atlas.lifecycle(torch.sparse.mm(sparse, torch.randn(6, 3, requires_grad=True)).sum())
    assert life.held_bytes == 5 * (2 * 8 + 4)  # indices and values


def test_a_part_of_an_autograd_graph_keeps_what_the_engine_counts() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    graph = atlas.autograd_graph(model(torch.randn(2, 4)).sum(), model=model)
    kept = [node.id for node in graph.nodes][2:]
    part = graph.subgraph(kept)
    assert part.recorded["topological_nr"].tolist() == graph.recorded["topological_nr"][kept].tolist()
    assert len(part.recorded["input_nr"]) == len(part.edges)
