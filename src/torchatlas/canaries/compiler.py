"""Canaries for torch.compile, torch.export and torch.distributed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchatlas import torch_private
from torchatlas.canaries.canary_registry import CANARIES, refusal


def seen_compiling(function: Callable[..., Any], *args: Any) -> tuple[list[Any], list[str]]:
    """What torch.compile hands to its backend, and the names in the code that calls the graph it gets back."""
    graphs: list[Any] = []
    names: list[str] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)

        def run(*args: Any) -> Any:
            frame: Any = sys._getframe()
            while frame is not None:
                names.extend(frame.f_code.co_names)
                frame = frame.f_back
            return graph(*args)

        return run

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    return graphs, names


@CANARIES.add("COMPILED_NAME")
def compiled_name() -> None:
    graphs, names = seen_compiling(lambda x: x.sin() + 1, torch.ones(2))
    assert len(graphs) == 1
    assert [name for name in names if name.startswith(torch_private.COMPILED_NAME)]


@CANARIES.add("compiled_inside", "never_compiled")
def frames_left_alone() -> None:
    """The code that is marked does not get compiled; what it calls does, or does not."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin())

    def never(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin())

    torch_private.compiled_inside(outer)
    torch_private.never_compiled(never)
    graphs, _ = seen_compiling(outer, torch.ones(2))
    assert [[node.name for node in graph.graph.nodes if "call" in node.op] for graph in graphs] == [["cos"]]
    assert seen_compiling(never, torch.ones(2))[0] == []
    graphs, _ = seen_compiling(lambda x: never(x.exp()) + 1, torch.ones(2))  # nor is it inlined, and no warning says so
    assert [[node.name for node in graph.graph.nodes if "call" in node.op] for graph in graphs] == [["exp"], ["add"]]


@CANARIES.add("compilers_module_call")
def unpatched_module_call() -> None:
    import torch._dynamo.variables.nn_module as dynamo

    assert dynamo.unpatched_nn_module_call_impl is nn.Module._call_impl
    for function in (len, nn.Module._call_impl):
        torch_private.compilers_module_call(function)
        assert dynamo.unpatched_nn_module_call_impl is torch._dynamo.utils.unpatched_nn_module_call_impl is function


@CANARIES.add("CompilersGraph")
def compilers_graph() -> None:
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    graphs: list[Any] = []
    torch.compile(lambda x: x.sin(), backend=aot_autograd(fw_compiler=compiler))(torch.ones(2))
    assert isinstance(graphs[0], torch_private.CompilersGraph)
    assert not isinstance(torch.fx.symbolic_trace(nn.Tanh()), torch_private.CompilersGraph)


@CANARIES.add("inductor_backend", "inductor_graph")
def inductor() -> None:
    import torch._inductor.output_code

    kind = torch_private.inductor_graph()
    assert kind is torch._inductor.output_code.CompiledFxGraph
    assert {"__call__", "__init__"} <= set(vars(kind))
    assert {"mutated_input_idxs"} <= set(kind.__annotations__)
    backend = torch_private.inductor_backend("default", None, None)
    assert backend.compiler_name == "inductor"
    assert "__call__" in vars(torch_private.inductor_backend)


@CANARIES.add("compilations")
def begun_and_ended() -> None:
    import torch._dynamo.callback

    events: list[str] = []
    begins, ends = lambda args: events.append("begins"), lambda args: events.append("ends")
    handler = torch_private.compilations()
    handler.register_start_callback(begins)
    handler.register_end_callback(ends)
    try:
        torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))
    finally:
        handler.remove_start_callback(begins)
        handler.remove_end_callback(ends)
    assert events[:1] == ["begins"]
    assert events.count("begins") == events.count("ends")


@CANARIES.add("export_guards")
def assumed_sizes() -> None:
    """Guards are Python expressions that speak of the arguments as L['x']."""

    class Small(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] > 4 else x - 1

    free = {"x": {0: torch.export.Dim.AUTO}}
    program = torch.export.export(Small(), (torch.ones(3, 2),), dynamic_shapes=free, strict=False)
    assert any("L['x']" in text and "4" in text for text in torch_private.export_guards(program))


@CANARIES.add("process_group_named", "process_groups")
def process_groups() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore  # a group without threads of its own

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        world = torch_private.process_group_named(dist.group.WORLD.group_name)
        assert world is dist.group.WORLD
        assert torch_private.process_groups() == [world]
        assert dist.ProcessGroup.unbox(world.boxed()).group_name == world.group_name
    finally:
        dist.destroy_process_group()
    assert refusal(lambda: torch_private.process_group_named("nobody's"))


@CANARIES.add("sharding_propagator")
def sharding() -> None:
    import torch.distributed.tensor  # noqa: F401  # it is loaded on demand

    assert callable(torch_private.sharding_propagator()._propagate_tensor_meta_non_cached)


@CANARIES.add("registration_hooks")
def hooks_of_all_modules() -> None:
    from torch.nn.modules.module import register_module_buffer_registration_hook

    before = [set(registry) for registry in torch_private.registration_hooks()]
    handle = register_module_buffer_registration_hook(lambda module, name, buffer: None)
    new = [set(registry) - known for registry, known in zip(torch_private.registration_hooks(), before, strict=True)]
    assert new == [{handle.id}, set(), set()]
    handle.remove()
