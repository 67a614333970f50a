"""torch.fx's graph -> Graph: every node is run once on fake tensors, and what it runs is recorded.

So a call of any module or function costs what it really does, and nothing is computed.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.exported import OpenCalls, source_of
from torchatlas.capturing.fake import fake_mode, faked, values_refused, without_pretence
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import InvalidInputError, InvalidModelError
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph
from torchatlas.graph.columns import KINDS
from torchatlas.graph.nouns import NodeKind
from torchatlas.inputs import check_call
from torchatlas.interrupts import whole


@explains_arguments
def from_fx(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Graph:
    """The graph of a `torch.fx.GraphModule`: the operations that its nodes run, in the modules that it was traced from.

    `graph.metadata["fx_nodes"]` says by name which operations each node of torch.fx ran.

    Args:
        module: The traced module.
        *args: Inputs to compute shapes from. Without them, the shapes that `torch.fx.passes.shape_prop.ShapeProp` left
            in the module are taken.
        **kwargs: Inputs by keyword.
    Returns:
        A graph whose `source` is "fx".
    Raises:
        InvalidModelError: `module` is not a GraphModule.
        InvalidInputError: There are neither inputs nor shapes of ShapeProp.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.from_fx(torch.fx.symbolic_trace(torch.nn.Linear(4, 2)), torch.ones(1, 4))
        >>> graph.source, [node.operation for node in graph.where(kind="op")]
        ('fx', ['aten.t.default', 'aten.addmm.default'])
    """
    if not isinstance(module, fx.GraphModule):
        raise InvalidModelError(
            f"from_fx takes a torch.fx.GraphModule, not {type(module).__name__}. "
            "Make one with torch.fx.symbolic_trace(model), or use atlas.capture(model, *args) instead."
        )
    if not args and not kwargs:
        args = tuple(_example(node, module) for node in module.graph.nodes if node.op == "placeholder")
    check_call(module, args, kwargs)
    mode = fake_mode(module, args, kwargs)
    with collection_paused(), Restorer(module, (args, kwargs)), values_refused(), whole(mode):
        twin, args, kwargs, _ = faked(mode, module, args, kwargs, None)
        assert isinstance(twin, fx.GraphModule)  # a copy, unless its parameters are fake already
        type(twin).__name__ = type(module).__name__  # every GraphModule has a class of its own; copies forget its name
        runner = _Runner(twin)
        runner.recording = Recording(twin, only_inputs=True, after_op=runner.after_op)
        vars(twin)["forward"] = functools.wraps(twin.forward)(lambda *args, **kwargs: runner.forward(*args, **kwargs))
        try:
            with runner.recording:
                nn.Module.__call__(twin, *args, **kwargs)  # torch.fx's own calls this once or twice
        finally:
            del vars(twin)["forward"]
        graph = runner.recording.graph
    without_pretence(graph)
    _note(graph, runner.owners)
    graph.source = "fx"
    return graph


class _Runner(fx.Interpreter):
    """Runs the nodes one by one, each inside the module calls that torch.fx noted for it."""

    recording: Recording

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.fx_graph = module.graph
        self.signature = inspect.signature(module.forward)
        self.owners: list[fx.Node] = []  # of each recorded operation
        self.node: fx.Node | None = None
        self.open_calls = OpenCalls(lambda *call: self.recording.open_call(*call))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Takes what the module's own forward takes, by position or by name."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.args_iter = iter(self.fx_graph.process_inputs(*bound.args))
        for node in self.fx_graph.nodes:  # not `self.run`: its progress bar starts a thread that stays
            self.env[node] = self.run_node(node)
            if node.op == "output":
                break
            for used in self.user_to_last_uses.get(node, ()):
                del self.env[used]
        return self.fx_graph.process_outputs(self.env.pop(node))

    def run_node(self, node: fx.Node) -> Any:
        calls = [(key, *module) for key, module in (node.meta.get("nn_module_stack") or {}).items()]
        if node.op == "call_module":
            calls = calls[:-1]  # the last one is called
        self.node = node
        with self.recording.inside(self.open_calls.at(calls)):
            return super().run_node(node)

    def after_op(self, out: Any, written: list[Any]) -> None:
        assert self.node is not None
        self.owners.append(self.node)


def _note(graph: Graph, owners: list[fx.Node]) -> None:
    """Say of each operation which node ran it, and on which of the user's lines that node was traced."""
    operations = np.flatnonzero(graph.columns["node_kind"] == KINDS.index(NodeKind.OP))
    ran: dict[str, list[int]] = {}
    sources: dict[Any, int] = {}
    for number, owner in zip(operations.tolist(), owners, strict=True):
        ran.setdefault(owner.name, []).append(number)
        line = source_of(owner.meta.get("stack_trace"))
        graph.columns["node_source"][number] = -1 if line is None else sources.setdefault(line, len(sources))
    graph.tables.sources = list(sources)
    graph.metadata["fx_nodes"] = ran


def _example(node: fx.Node, module: fx.GraphModule) -> Any:
    """A stand-in for what an input was when torch.fx noted shapes: a tensor without values, or a default."""
    if node.args and "tensor_meta" not in node.meta:
        return node.args[0]  # its default
    known = node.meta.get("val", node.meta.get("example_value"))
    if isinstance(known, torch.Tensor):
        return known
    metadata = node.meta.get("tensor_meta")
    if metadata is None:
        raise InvalidInputError(
            f"Nothing is known about the input {node.target!r}. Pass example inputs, atlas.from_fx(module, *inputs), "
            "or run torch.fx.passes.shape_prop.ShapeProp(module).propagate(*inputs) first."
        )

    def made(part: Any) -> Any:
        if not hasattr(part, "shape"):  # several tensors
            return type(part)(map(made, part)) if isinstance(part, (list, tuple)) else part
        tensor = torch.empty_strided(part.shape, part.stride, dtype=part.dtype, device="meta")
        return tensor.requires_grad_(part.requires_grad)

    return made(metadata)
