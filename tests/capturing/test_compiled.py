"""Programs that compilers had a hand in: torch.compile, TorchScript, fx, export, higher-order and custom operators.

A recording neither changes what gets compiled nor what comes out, and the graph says what it cannot see.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capturing.witness import Witness, content, operations, seeded
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.nn.attention.flex_attention import flex_attention

import torchatlas as atlas
from torchatlas.capturing.compiled import INLINED, OPAQUE, SCRIPTED
from torchatlas.graph import Graph

Compile = Callable[..., Any]

# torch says it of itself, when parts of torch.compile are loaded
loads_scripted_code = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")


class Net(nn.Module):
    """Two layers, and a norm whose buffers every call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu()).sigmoid()


def built() -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(3, 4)


def step(model: Any, x: Tensor) -> Tensor:
    y = model(x)
    y.square().sum().backward()
    return y


def left(model: nn.Module, y: Tensor) -> list[Any]:
    """All that a step leaves behind."""
    return content([y, dict(model.state_dict()), [parameter.grad for parameter in model.parameters()]])


class Backend:
    """Runs what it is given as it is, and counts how often that is."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# -- torch.compile, ops visible ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.usefixtures("in_python")
def test_a_compiled_step_is_the_step(backend: str, warm: bool) -> None:
    def run(around: Any, compiled: bool = True) -> tuple[Any, list[Any]]:
        torch._dynamo.reset()
        model, x = built()
        target = torch.compile(model, backend=backend) if compiled else model
        if warm:
            step(target, x)
            model.zero_grad()
            model.load_state_dict(built()[0].state_dict())
        with around(model) as seen:
            y = step(target, x)
        return seen, left(model, y)

    eager, plain = run(lambda _: Witness(), compiled=False)
    witness, seen = run(lambda _: Witness())
    rec, recorded = run(atlas.recording)
    assert recorded == seen == plain
    assert operations(rec.graph) == witness.operations
    if backend == "eager":
        assert operations(rec.graph) == eager.operations  # nothing of what was tried out while compiling
    assert INLINED in rec.graph.notes
    assert OPAQUE not in rec.graph.notes
    assert {node.scope.path for node in rec.graph.where(kind="op")} == {""}
    assert set(rec.graph.scopes) >= {"", "OptimizedModule"}
    assert not any("GraphModule" in path for path in rec.graph.scopes)
    forward = [node for node in rec.graph.where(kind="op", phase="forward") if node.source is not None]
    assert {node.source.file for node in forward} == {__file__}


def test_uncompiled_programs_have_no_note() -> None:
    model, x = built()
    assert not {INLINED, OPAQUE, SCRIPTED} & set(atlas.capture(model, x, backward=True).notes)


class Nested(nn.Module):
    """Modules in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.net(x)).tanh()


def compile_module(model: nn.Module, backend: Backend) -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


def compile_in_place(model: nn.Module, backend: Backend) -> Any:
    model.compile(backend=backend, fullgraph=True)
    return model


def compile_function(model: nn.Module, backend: Backend) -> Any:
    @torch.compile(backend=backend, fullgraph=True)
    def run(x: Tensor) -> Tensor:
        return model(x.sin()) + 1

    return run


every_way = pytest.mark.parametrize("how", [compile_module, compile_in_place, compile_function])


@pytest.mark.parametrize("coarse", [False, True], ids=["ops", "modules"])
@every_way
def test_recording_does_not_change_what_is_compiled(how: Any, coarse: bool) -> None:
    x, backend, model = torch.randn(3, 4), Backend(), Nested()
    target = how(model, backend)
    with atlas.recording(model, track_tensor_ops=not coarse), atlas.recording(model):
        step(target, x)
    (first,) = backend.graphs  # in one piece: fullgraph
    step(target, x)
    with atlas.recording(model, track_tensor_ops=not coarse):
        step(target, x)
    assert len(backend.graphs) == 1  # neither leaving nor entering a recording has it compiled again

    torch._dynamo.reset()
    alone, model = Backend(), Nested()
    target = how(model, alone)
    step(target, x)
    with atlas.recording(model, track_tensor_ops=not coarse):
        step(target, x)
    assert len(alone.graphs) == 1
    assert first.code == alone.graphs[0].code


@every_way
def test_a_module_with_a_hook_is_compiled_in_one_piece_too(how: Any) -> None:
    def graph_of(around: Any) -> Any:
        torch._dynamo.reset()
        backend, model = Backend(), Nested()
        model.net.first.register_forward_hook(lambda module, args, output: output * 2)
        target = how(model, backend)
        with around:
            step(target, torch.randn(3, 4))
        (graph,) = backend.graphs
        return graph.code

    assert graph_of(atlas.recording()) == graph_of(contextlib.nullcontext())


def test_the_compiler_knows_torchs_own_module_call_after_a_recording() -> None:
    import torch._dynamo.variables.nn_module as dynamo

    original = nn.Module._call_impl
    with atlas.recording():
        assert dynamo.unpatched_nn_module_call_impl is nn.Module._call_impl is not original
    assert dynamo.unpatched_nn_module_call_impl is nn.Module._call_impl is original


def test_what_runs_between_compiled_pieces_is_recorded_as_it_is() -> None:
    @torch.compiler.disable
    def untouched(x: Tensor) -> Tensor:
        return x.cos().exp()

    def pieces(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return untouched(y) * 2

    backend = Backend()
    target = torch.compile(pieces, backend=backend)
    with atlas.recording() as rec:
        result = target(torch.ones(2))
    assert content(result) == content(pieces(torch.ones(2)))
    assert len(backend.graphs) == 2
    assert operations(rec.graph) == [
        f"aten.{n}" for n in ("ones.default", "sin.default", "cos.default", "exp.default", "mul.Tensor")
    ]
    assert rec.graph["exp"].source.text == "return x.cos().exp()"


def test_the_compiler_leaves_what_records_an_op_alone() -> None:
    @torch.compiler.disable(recursive=False)
    def op_by_op(x: Tensor) -> Tensor:
        return x.cos().exp()

    def frames(around: Any) -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with around:
            torch.compile(lambda x: op_by_op(x.sin()) * 2, backend="eager")(torch.ones(2))
        return torch._dynamo.utils.counters["frames"]["total"]

    assert frames(atlas.recording()) == frames(contextlib.nullcontext())


def test_a_compiled_model_given_as_the_model() -> None:
    model, x = built()
    target = torch.compile(model, backend="eager")
    graph = atlas.capture(target, x, backward=True)
    assert {value.parameter for node in graph.nodes for value in node.inputs} >= {"_orig_mod.first.weight"}
    assert graph.scopes[""].parameters == sum(parameter.numel() for parameter in model.parameters())
    assert model.first.weight.grad is None
    assert int(model.norm.num_batches_tracked) == 0


@loads_scripted_code
def test_a_compiled_optimizer_step() -> None:
    def run(around: Any) -> tuple[Any, Any]:
        torch._dynamo.reset()
        model, x = built()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        compiled = torch.compile(lambda: optimizer.step(), backend="eager")
        step(model, x)
        compiled()
        with around() as seen:
            for _ in range(2):
                compiled()
        return seen, content(dict(model.state_dict()))

    witness, alone = run(Witness)
    rec, recorded = run(atlas.recording)
    assert recorded == alone
    assert operations(rec.graph) == witness.operations
    assert {str(node.phase) for node in rec.graph.where(kind="op")} == {"optimizer"}


# -- inductor ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fused() -> Iterator[Compile]:
    """torch.compile with inductor, without worker processes that would outlive the test."""
    import torch._inductor.config as config

    with config.patch(compile_threads=1):
        yield torch.compile


def fresh(model: Net) -> None:
    model.zero_grad()
    model.load_state_dict(built()[0].state_dict())


class Inductor:
    """One model, compiled in its first step under a recording, and the steps that come after."""

    def __init__(self, compile: Compile) -> None:
        self.model, self.x = built()
        self.compiled = compile(self.model)
        with atlas.recording(self.model) as rec:
            y = step(self.compiled, self.x)
        self.cold, self.cold_graph = left(self.model, y), rec.graph
        fresh(self.model)
        self.alone = left(self.model, step(self.compiled, self.x))
        fresh(self.model)
        with Witness() as self.witness:
            step(self.compiled, self.x)
        fresh(self.model)


def expected(graph: Graph) -> list[str]:
    """The two compiled graphs; around them the loss, and what autograd does with gradients."""
    return [name for name in operations(graph) if name != "aten.detach.default"]


@loads_scripted_code
@pytest.mark.slow
@pytest.mark.timeout(300)  # two kernels are compiled if no cache has them
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_each_call_of_a_fused_graph_is_one_op(fused: Compile) -> None:
    run = Inductor(fused)
    model, x = run.model, run.x
    assert run.cold == run.alone
    with atlas.recording(model) as rec, Witness() as witness:
        y = step(run.compiled, x)
    assert left(model, y) == run.alone
    assert witness.operations == run.witness.operations  # others see what they see without us
    loss = ["aten.pow.Tensor_Scalar", "aten.sum.default", "aten.ones_like.default", "aten.expand.default"]
    loss += ["aten.pow.Tensor_Scalar", "aten.mul.Scalar", "aten.mul.Tensor"]
    for graph in (run.cold_graph, rec.graph):
        assert expected(graph) == ["inductor.graph.0", *loss, "inductor.graph.1"]
        assert {OPAQUE, INLINED} <= set(graph.notes)
        forward, backward = graph["graph"], graph["graph_1"]
        names = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
        assert {value.parameter for value in forward.inputs} == {*names, None}
        assert [node.name for node in graph.where(kind="input")] == ["input"]  # x: nothing else comes from nowhere
        written = {forward.inputs[index].parameter for index in forward.writes}
        assert written == {name for name, _ in model.named_buffers()}
        assert (forward.phase, backward.phase, backward.forward_node) == ("forward", "backward", forward)
        assert graph["pow"].inputs[0].producer[0] == forward
        assert graph["mul_1"] in backward.predecessors
        assert forward in backward.predecessors
        gradients = {value.parameter for node in graph.nodes for value in node.outputs if value.role == "gradient"}
        assert gradients == {name for name, _ in model.named_parameters()}
        assert forward.source.file == __file__
        assert forward.time_ns is not None

    # values
    fresh(model)
    with atlas.recording(model, values="all") as rec:
        y = run.compiled(x)
    kept = rec.graph.recorded[f"{rec.graph['graph'].id}:0"]
    assert kept.tobytes() == y.detach().numpy().tobytes()

    # left as found
    before, grads = content(dict(model.state_dict())), [parameter.grad for parameter in model.parameters()]
    graph = atlas.capture(run.compiled, x, backward=True)
    assert "inductor.graph.0" in operations(graph)
    assert content(dict(model.state_dict())) == before
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))

    # modules only
    with atlas.recording(model, track_tensor_ops=False) as rec:
        run.compiled(x)
    assert [node.operation for node in rec.graph.where(kind="op")] == ["Net"]


def test_a_compiled_graph_that_raises_is_the_op_that_failed() -> None:
    from torchatlas.capturing.compiled import run_as_one
    from torchatlas.capturing.recorder import Recorder

    def graph(inputs: list[Any]) -> Any:
        inputs.clear()
        raise RuntimeError("kernel")

    recorder = Recorder()
    recorder.start()
    try:
        with pytest.raises(RuntimeError, match="kernel"):
            run_as_one(recorder, "inductor.graph.0", graph, [torch.ones(2), 3], [])
        x = torch.ones(1)
    finally:
        recorder.stop()
    assert recorder.failure is not None
    assert recorder.failure[0] == "inductor.graph.0"
    assert recorder.numbers.known_number(x) is not None  # it goes on recording


# -- TorchScript -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit.(script|trace|trace_method)` is deprecated")
@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.usefixtures("in_python")
def test_the_ops_of_torchscript_belong_to_the_module_that_was_called(how: str) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            net, x = type("Net", (Net,), {})(), torch.randn(3, 4)  # each its own class: TorchScript counts their calls
            self.net = torch.jit.script(net) if how == "script" else torch.jit.trace(net.eval(), (x,)).train()
            self.last = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.net(x))

    models = [seeded(Around) for _ in range(3)]
    x = torch.randn(3, 4)
    for turn in range(4):  # the executor profiles the first calls and rewrites the graph after them
        alone = left(models[0], step(models[0], x))
        with Witness() as witness:
            step(models[1], x)
        with atlas.recording(models[2]) as rec:
            y = step(models[2], x)
        assert left(models[2], y) == alone, turn
        assert operations(rec.graph) == witness.operations, turn
        assert SCRIPTED in rec.graph.notes
        inside = rec.graph.where(scope="net", kind="op", phase="forward")
        assert "aten.sigmoid.default" in {node.operation for node in inside}
        assert {node.scope.path for node in rec.graph.where(kind="op", phase="forward")} == {"net", "last", ""}
        assert {node.source.text for node in inside} == {"return self.last(self.net(x))"}
        assert {value.parameter for node in inside for value in node.inputs} >= {"net.first.weight", "net.second.bias"}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_function() -> None:
    function = torch.jit.script(_scripted)
    x = torch.ones(3)
    for _ in range(3):
        with Witness() as witness:
            alone = function(x)
        with atlas.recording() as rec:
            result = function(x)
        assert content(result) == content(alone)
        assert operations(rec.graph) == witness.operations
        assert rec.graph["tanh"].source.text == "result = function(x)"


def _scripted(x: Tensor) -> Tensor:
    return (x * 2 + 1).tanh()


# -- fx and export -----------------------------------------------------------------------------------------------------


def test_a_graph_module_calls_its_modules() -> None:
    model, x = built()
    traced = torch.fx.symbolic_trace(model)
    graph, plain = atlas.capture(traced, x), atlas.capture(model, x)
    assert operations(graph) == operations(plain)
    scopes = [[node.scope.path for node in one.where(kind="op")] for one in (graph, plain)]
    assert scopes[0] == scopes[1]
    assert not {INLINED, SCRIPTED} & set(graph.notes)


@pytest.mark.usefixtures("in_python")
def test_an_exported_program_runs_flat() -> None:
    model, x = built()
    exported = torch.export.export(model.eval(), (x,)).module()
    alone = content(exported(x))
    with Witness() as witness:
        exported(x)
    with atlas.recording(exported) as rec:
        result = exported(x)
    assert content(result) == alone == content(model(x))
    assert operations(rec.graph) == witness.operations
    assert {value.parameter for node in rec.graph.nodes for value in node.inputs} >= {
        "first.weight",
        "norm.running_var",
    }


# -- higher-order operators --------------------------------------------------------------------------------------------


def branch() -> Any:
    x = torch.ones(3, requires_grad=True)
    y = torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos(), (x,))
    y.sum().backward()
    return y, x.grad


def loop() -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), torch.ones(2)))


def scanned() -> Any:
    return scan(lambda carry, x: (carry + x, carry * x), torch.zeros(2), torch.ones(3, 2))


def associated() -> Any:
    return associative_scan(lambda a, b: a + b, torch.ones(4, 2), 0, combine_mode="generic")


def attention() -> Any:
    q = torch.randn(1, 2, 16, 8)
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score * 2 + (i - j))


def transformed() -> Any:
    per_row = torch.vmap(lambda x: x.sin().sum())(torch.ones(3, 2))
    return per_row, torch.func.grad(lambda x: (x**2).sum())(torch.ones(2)), torch.func.jacrev(torch.sin)(torch.ones(2))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("run", [branch, loop, scanned, associated, attention, transformed])
@pytest.mark.usefixtures("in_python")
def test_higher_order_operators(run: Callable[[], Any]) -> None:
    alone = content(seeded(run))
    with Witness() as witness:
        seeded(run)
    with atlas.recording() as rec:
        result = seeded(run)
    assert content(result) == alone
    assert operations(rec.graph) == witness.operations
    whole = [node for node in rec.graph.where(kind="op") if node.operation.startswith("higher_order.")]
    assert all(node.source.file == __file__ for node in whole if node.phase == "forward")


def test_the_backward_of_a_branch_belongs_to_the_branch() -> None:
    with atlas.recording() as rec:
        branch()
    forward, backward = rec.graph["cond"], rec.graph["cond_1"]
    assert (forward.phase, backward.phase, backward.forward_node) == ("forward", "backward", forward)
    assert forward in rec.graph["sum_1"].predecessors
    assert rec.graph["expand"] in backward.predecessors
    assert forward.source.text.startswith("y = torch.cond")


# -- custom operators --------------------------------------------------------------------------------------------------


@torch.library.custom_op("atlastest::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x.sin() * 2


twice.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0].cos() * 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("atlastest::bump", mutates_args=("x",))
def bump(x: Tensor, by: float) -> None:
    x.add_(by)


@torch.library.custom_op("atlastest::spread", mutates_args=())
def spread(xs: list[Tensor], times: int) -> tuple[Tensor, list[Tensor]]:
    return xs[0] * times, [x + 1 for x in xs]


def test_a_custom_operator_is_one_node() -> None:
    def run() -> Any:
        x = torch.ones(3, requires_grad=True)
        y = twice(x * 1)
        y.sum().backward()
        z = torch.ones(2)
        bump(z, 2.0)
        return x.grad, z, spread([z, z.neg()], 3)

    alone = content(run())
    with Witness() as witness:
        run()
    with atlas.recording() as rec:
        result = run()
    graph = rec.graph
    assert content(result) == alone
    assert operations(graph) == witness.operations
    custom = [node for node in graph.where(kind="op") if node.operation.startswith("atlastest.")]
    assert [node.name for node in custom] == ["twice", "bump", "spread"]
    assert {str(node.operation_type) for node in custom} == {"custom"}
    assert [node.operation for node in graph["twice"].backward_nodes] == ["aten.cos.default", *["aten.mul.Tensor"] * 2]
    assert (graph["bump"].writes, graph["bump"].attributes["by"]) == ((0,), 2.0)
    assert [node.name for node in graph["spread"].predecessors] == ["bump", "neg"]
    assert len(graph["spread"].outputs) == 3


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="for what happens without Triton")
def test_an_operator_of_triton_kernels_shows_what_it_calls() -> None:
    assert "triton" not in sys.modules
    operator = torch.library.triton_op("atlastest::waves", mutates_args={})(_waves)
    with Witness() as witness:
        operator(torch.ones(2))
    with atlas.recording() as rec:
        operator(torch.ones(2))
    assert operations(rec.graph) == witness.operations


def _waves(x: Tensor) -> Tensor:
    return x.sin() + 1
