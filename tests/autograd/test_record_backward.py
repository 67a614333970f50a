"""Recording backward: the real engine's order and gradients, and what is told about them."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
from autograd.graphs import GRAPHS, Case, build
from autograd.running import assert_same, differentiate, gradients
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.autograd.graph_walk import reached, starting_node
from torchatlas.errors import AnalysisError, InvalidInputError, StateError
from torchatlas.graph.consistency import faults


def order_of_torch(case: Case) -> list[str]:
    """What really runs, by a hook on every node behind the outputs."""
    ran: list[str] = []
    outputs = case.outputs if isinstance(case.outputs, list) else [case.outputs]
    roots = [starting_node(output) for output in outputs]
    for node in reached(list(dict.fromkeys(roots))):
        node.register_prehook(lambda _, node=node: ran.append(node.name().rpartition("::")[2]))
    differentiate(case)
    return ran


@pytest.mark.parametrize("name", GRAPHS)
def test_order_and_gradients_are_torchs_own(name: str) -> None:
    expected = gradients(build(name), differentiate)
    case = build(name)
    with atlas.recording_backward(statistics=True) as rec:
        found = gradients(case, differentiate)
    assert_same(found, expected)
    assert case.log == build_log(name)
    assert [node.operation for node in rec.graph.nodes] == order_of_torch(build(name))
    for run in rec.runs:
        assert faults(run.graph.columns, run.graph.tables) is None
        assert str(run)
        assert len(run.statistics) <= len(run.graph.edges)


def norm_of(gradient: torch.Tensor | None) -> float | None:
    if gradient is None or gradient.is_meta or not gradient.numel():
        return None
    gradient = gradient.detach().values() if gradient.is_nested else gradient.detach()
    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return dense.abs().double().nan_to_num(posinf=0.0).norm().item()


@pytest.mark.parametrize("name", GRAPHS)
def test_statistics_are_those_of_what_nodes_make_and_take(name: str) -> None:
    """Against hooks of our own on every node: one statistic per gradient that was made, of it or of what arrived."""
    case = build(name)
    outputs = case.outputs if isinstance(case.outputs, list) else [case.outputs]
    nodes = reached(list(dict.fromkeys(starting_node(output) for output in outputs)))
    took: dict[Any, list[float | None]] = {}
    made: dict[Any, list[float | None]] = {}
    for node in nodes:
        node.register_prehook(lambda each, node=node: took.update({node: [norm_of(g) for g in each]}))
        node.register_hook(lambda each, _, node=node: made.update({node: [norm_of(g) for g in each]}))
    with atlas.recording_backward(statistics=True) as rec:
        differentiate(case)
    run = rec.runs[0]
    assert run._figures is not None
    edges, seen = run.task.edges, 0
    for edge in run._edges.tolist():
        source, target = run.task.nodes[edges.source[edge]], run.task.nodes[edges.target[edge]]
        expected = [made[source][edges.output[edge]], took[target][edges.input[edge]]]
        if edge in run._figures:
            seen += 1
            assert any(run._figures[edge][0] == pytest.approx(norm, rel=1e-5) for norm in expected if norm is not None)
        else:
            assert expected[0] is None
    assert seen == len(run.statistics)


def build_log(name: str) -> list[Any]:
    case = build(name)
    differentiate(case)
    return case.log


def test_at_least_forty_graphs() -> None:
    assert len(GRAPHS) >= 40


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def test_times_modules_lines_and_memory() -> None:
    net, x = model(), torch.randn(3, 4)
    with atlas.recording(net) as forward:
        loss = net(x).square().sum()
    rec = atlas.record_backward(loss, model=net, forward=forward.graph)
    run = rec.runs[0]
    assert rec.order == [node.name for node in rec.graph.nodes]
    assert sum(node.time_ns or 0 for node in rec.graph.nodes) <= run.time_ns
    assert all(node.time_ns is not None for node in rec.graph.nodes)
    assert {node.scope.path for node in rec.graph.nodes} == {"", "0", "1", "2"}
    assert rec.graph["2.AddmmBackward0"].source is not None
    assert run.peak_gradient_bytes == 8 * 4 + 4 * 8 * 4  # of the first layer: bias and weight
    assert rec.graph.nodes[-1].memory_bytes == 0
    assert "backward: " in str(rec)
    assert rec.to_dict()["runs"][0]["order"] == rec.order


def test_where_gradients_are_summed() -> None:
    x = torch.ones(5, requires_grad=True)
    y = x.sin()
    rec = atlas.record_backward((y * y + y.exp()).sum(), params={"x": x})
    (found,) = rec.sums
    assert (found.node, found.input_nr, found.gradients, found.bytes) == ("SinBackward0", 0, 3, 20)


def test_statistics_of_each_edge() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    rec = atlas.record_backward((x * 3).sum(), statistics=True)
    last = rec.statistics[-1]
    assert (last.source, last.target) == ("MulBackward0", "AccumulateGrad")
    assert (last.smallest, last.largest, last.not_finite) == (3.0, 3.0, 0)
    assert last.norm == pytest.approx(18**0.5)
    assert atlas.record_backward((x * 3).sum()).statistics == []


def test_the_first_gradient_that_is_not_finite() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    rec = atlas.record_backward((x.sqrt() * 2).sum(), statistics=True)
    bad = rec.first_not_finite
    assert bad is not None
    assert (bad.source, bad.target, bad.not_finite, bad.largest) == ("SqrtBackward0", "AccumulateGrad", 1, 0.5)
    assert "not finite: from SqrtBackward0 to" in str(rec)


def test_numbers_whose_squares_overflow_are_finite() -> None:
    x = torch.ones(2, requires_grad=True)
    rec = atlas.record_backward((x * 1e30).sum(), statistics=True)
    assert rec.first_not_finite is None
    assert rec.statistics[-1].norm == pytest.approx(2**0.5 * 1e30)


def test_gradients_whose_squares_vanish_have_a_norm() -> None:
    x = torch.ones(2, requires_grad=True)
    rec = atlas.record_backward((x * 1e-30).sum(), statistics=True)
    assert rec.statistics[-1].norm == pytest.approx(2**0.5 * 1e-30)


def test_what_runs_inside_of_backward_is_a_run_of_its_own() -> None:
    net, x = model(), torch.randn(3, 4, requires_grad=True)
    with atlas.recording_backward(net) as rec:
        checkpoint(net, x, use_reentrant=True).sum().backward()
    assert [run.task.outer for run in rec.runs] == [None, 0]
    assert "AddmmBackward0" in [node.operation for node in rec.runs[1].graph.nodes]
    assert "in .runs: 1 more run of the engine" in str(rec)


def test_only_what_is_wanted_runs() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    rec = atlas.record_backward((x.sin() * w.cos()).sum(), inputs=[x], params={"x": x})
    assert rec.order == ["SumBackward0", "MulBackward0", "SinBackward0", "AccumulateGrad"]
    assert w.grad is None


def test_after_an_exception_there_is_what_ran() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda gradient: 1 / 0)
    with atlas.recording_backward() as rec, pytest.raises(ZeroDivisionError):
        (y * 2).sum().backward()
    assert rec.order == ["SumBackward0", "MulBackward0"]  # the hook runs before the next one
    assert "ZeroDivisionError" in rec.graph.notes[-1]


def test_nothing_is_left_behind() -> None:
    net, run = model(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    loss = net(torch.randn(3, 4)).sum()
    atlas.record_backward(loss, retain_graph=True)
    assert torch.autograd._engine_run_backward is run  # type: ignore[attr-defined]
    with atlas.recording_backward() as rec:
        loss.backward(retain_graph=True)
    count = len(rec.order)
    del rec
    gc.collect()
    with atlas.recording_backward() as rec:
        loss.backward()
    assert len(rec.order) == count  # no hook of the first is still there to note it twice


def test_recordings_nest() -> None:
    x = torch.ones(2, requires_grad=True)
    with atlas.recording_backward() as outer:
        with atlas.recording_backward() as inner:
            x.sin().sum().backward()
        x.cos().sum().backward()
    assert (len(inner.runs), len(outer.runs)) == (1, 2)
    assert outer.runs[0].graph.nodes[1].operation == "SinBackward0"


def test_what_cannot_be_recorded() -> None:
    with pytest.raises(AnalysisError, match="does not require a gradient"):
        atlas.record_backward(torch.ones(2))
    with pytest.raises(InvalidInputError, match="takes a tensor or several, not int"):
        atlas.record_backward(3)
    with atlas.recording_backward() as rec:
        pass
    with pytest.raises(StateError, match="no backward pass ran"):
        rec.graph
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        atlas.record_backward(loss)


def test_mistakes_are_told_before_anything_runs() -> None:
    net = model()
    loss = net(torch.ones(3, 4)).sum()
    with (
        pytest.raises(InvalidInputError, match=r"takes the model, not a tensor.*record_backward\(loss\)"),
        atlas.recording_backward(loss),
    ):
        pass
    with pytest.raises(InvalidInputError, match=r"not Sequential: the model is named, record_backward\(loss, model="):
        atlas.record_backward(loss, net)
    for wrong in (net.parameters(), 3, torch.ones(2, 2)):
        with pytest.raises(InvalidInputError, match="`params` are names and tensors"):
            atlas.record_backward(loss, params=wrong)
    with pytest.raises(InvalidInputError, match="`forward` is the graph of a recording, not str"):
        atlas.record_backward(loss, forward="forward.atlas")
    with atlas.recording(net) as running, pytest.raises(StateError, match="is still running"):
        atlas.record_backward(loss, forward=running)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert atlas.record_backward(loss).order  # and nothing was freed


def test_pairs_recordings_and_edges_are_taken_as_they_are() -> None:
    net = model()
    with atlas.recording(net) as forward:
        loss = net(torch.ones(3, 4)).sum()
    edge = torch.autograd.graph.get_gradient_edge(loss)
    rec = atlas.record_backward(edge, torch.tensor(2.0), params=net.named_parameters(), forward=forward)
    assert "2.AddmmBackward0" in rec.order
    assert {value.parameter for value in rec.graph.values if value.parameter} == {
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    }
    assert net[2].bias.grad is not None
    assert net[2].bias.grad.tolist() == [6.0]


def test_statistics_of_a_gradient_that_is_overwritten_later() -> None:
    class Halves(torch.autograd.Function):
        """Writes to the gradient that it is given, as no Function should."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.mul_(0.5)

    x = torch.ones(3, requires_grad=True)
    rec = atlas.record_backward((Halves.apply(x) * 4.0).sum(), statistics=True)
    assert [each.largest for each in rec.statistics] == [1.0, 4.0, 2.0]
    assert rec.graph.notes == []


@pytest.mark.parametrize("retain_graph", [False, True])
def test_statistics_are_of_gradients_as_they_arrive(retain_graph: bool) -> None:
    """After the hooks of the tensor, and in the shape of what was broadcast."""
    x, bias = torch.ones(3, requires_grad=True), torch.ones(1, requires_grad=True)
    y = x * 2.0
    y.register_hook(lambda gradient: gradient * 10)
    rec = atlas.record_backward((y * 4.0 + bias.exp()).sum(), statistics=True, retain_graph=retain_graph)
    found = {(each.source, each.target): each.largest for each in rec.statistics}
    assert found == {
        ("SumBackward0", "AddBackward0"): 1.0,
        ("AddBackward0", "ExpBackward0"): 3.0,
        ("ExpBackward0", "AccumulateGrad"): pytest.approx(3 * math.e),
        ("AddBackward0", "MulBackward0"): 1.0,
        ("MulBackward0", "MulBackward0_1"): 40.0,
        ("MulBackward0_1", "AccumulateGrad_1"): 80.0,
    }


def test_statistics_of_a_gradient_that_a_hook_overwrites_are_not_guessed() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2.0
    assert y.grad_fn is not None

    def write(gradients: tuple[torch.Tensor, ...]) -> None:
        gradients[0].mul_(10)

    y.grad_fn.register_prehook(write)
    rec = atlas.record_backward((y * 4.0).sum(), statistics=True)
    assert [(each.source, each.largest) for each in rec.statistics] == [("SumBackward0", 1.0), ("MulBackward0_1", 80.0)]
    assert rec.graph.notes == ["1 gradient was written to after it was made: it has no statistics"]


def test_statistics_of_many_shapes_and_kinds_at_once() -> None:
    """Those that are looked at together against each by itself, in double precision."""
    made: list[torch.Tensor] = []

    class Watched(torch.autograd.Function):
        """Passes a gradient on."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
            ctx.scale = scale
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            made.append((torch.randn(gradient.shape) * ctx.scale).to(gradient.dtype))
            return made[-1], None

    kinds = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    total: Any = 0
    for number in range(40):
        shape = [(3,), (70, 70), (300, 300), (2, 3, 4)][number % 4]
        x = torch.ones(shape, dtype=kinds[number % 5], requires_grad=True)
        scale = [1.0, 0.0, 1e-25, 1e25, math.inf][number // 8]
        total = total + Watched.apply(x, scale).abs().sum().double()
    rec = atlas.record_backward(total, statistics=True)
    found = [each for each in rec.statistics if each.source.startswith("WatchedBackward")]
    assert len(found) == 40
    for each, gradient in zip(found, made, strict=True):
        numbers = (gradient.abs() if gradient.is_complex() else gradient).double().reshape(-1)
        finite = numbers[numbers.isfinite()]
        assert each.not_finite == numbers.numel() - finite.numel()
        if finite.numel():
            expected = [finite.norm().item(), finite.min().item(), finite.max().item()]
            assert [each.norm, each.smallest, each.largest] == pytest.approx(expected, rel=1e-5)
        else:
            assert math.isnan(each.norm)


def test_a_transpose_passes_on_what_it_got() -> None:
    weights = [torch.randn(70, 70, requires_grad=True) for _ in range(3)]
    y = torch.randn(5, 70)
    for w in weights:
        y = (y @ w.t()).tanh()
    rec = atlas.record_backward(y.square().sum(), params={f"w{n}": w for n, w in enumerate(weights)}, statistics=True)
    made = {name: [s for s in rec.statistics if s.source.startswith(name)] for name in ("MmBackward0", "TBackward0")}
    into = [each for each in made["MmBackward0"] if each.target.startswith("TBackward0")]
    for each, out, w in zip(into, made["TBackward0"], reversed(weights), strict=True):
        assert w.grad is not None
        assert (each.norm, each.smallest, each.largest) == (out.norm, out.smallest, out.largest)
        assert out.norm == pytest.approx(w.grad.norm().item())
        assert (out.smallest, out.largest) == (w.grad.min().item(), w.grad.max().item())


def test_a_transpose_passes_on_what_it_got_where_it_meets_others() -> None:
    w, x = torch.randn(6, 6, requires_grad=True), torch.randn(5, 6)
    y = ((x @ w.t()).tanh() @ w.t()).square().sum()
    rec = atlas.record_backward(y, params={"w": w}, statistics=True)
    into = {each.target: each for each in rec.statistics if each.target.startswith("TBackward0")}
    out = {each.source: each for each in rec.statistics if each.source.startswith("TBackward0")}
    assert list(into) == list(out) == ["TBackward0", "TBackward0_1"]
    for name, each in out.items():
        assert (each.norm, each.smallest, each.largest) == (into[name].norm, into[name].smallest, into[name].largest)
    assert out["TBackward0"].norm != out["TBackward0_1"].norm


def of_batches(w: torch.Tensor) -> Any:
    return torch.autograd.functional.jacobian(lambda w: w.sin().exp(), w, vectorize=True)


@pytest.mark.parametrize(
    "run",
    [
        torch.func.grad(lambda w: (w.sin() ** 2).sum()),
        torch.func.grad(lambda v: torch.func.grad(lambda w: (w.sin() ** 3).sum())(v).sum()),
        torch.func.jacrev(lambda w: (w * w).exp()),
        torch.func.vmap(torch.func.grad(lambda w: w.sin().exp())),
        of_batches,
    ],
    ids=["grad", "grad_of_grad", "jacrev", "vmap", "batches"],
)
def test_statistics_inside_of_transforms(run: Any) -> None:
    w = torch.tensor([0.5, 0.7])
    expected = run(w)
    with atlas.recording_backward(statistics=True) as rec:
        assert torch.equal(run(w), expected)
    for run_ in rec.runs:
        if run is of_batches:
            assert "batched" in run_.graph.notes[0]
        else:
            assert len(run_.statistics) == len(run_.graph.edges) > 0
            assert all(each.norm > 0 for each in run_.statistics)


def test_modes_of_the_program_do_not_see_what_is_computed_for_it() -> None:
    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    for statistics in (None, False, True):
        net = model()
        with Names() as mode:
            loss = net(torch.ones(3, 4)).sum()
            if statistics is None:
                loss.backward()
            else:
                atlas.record_backward(loss, statistics=statistics)
        seen.append(mode.seen)
    assert seen[1] == seen[0]
    copied = ("aten.detach.default", "aten.new_empty_strided.default", "aten.copy_.default")  # what we hold, for leaves
    assert [name for name in seen[2] if name not in copied] == [name for name in seen[0] if name not in copied]
