"""Traced specimens, and a slow interpreter that clones all it sees, to compare with."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.torch_private import pytree, version_can

# What torch.export cannot trace, and why.
REFUSED = {
    "data_dependent_branch": "depends on the values of tensors",
    "data_dependent_loop": "depends on the values of tensors",
    "mixture_of_experts": "depends on the values of tensors",
    "own_generator": "numbers of its own generator|torch._C.Generator",
    "worker_thread": "fake tensor in the exported program",
    "swallowed_error": "cannot trace SwallowsErrors",
    "backward_inside_forward": "fake tensor in the exported program",
    "per_example_gradients": "cannot trace PerExampleGradients",
    "data_assignment": "an assignment to .data",
    "state_in_tuple": "assigns self.state",
    "packed_sequence": "cannot trace PackedGRU",
    "lazy_module": "uninitialized parameter",
    "module_made_in_forward": "makes second",
    "dataclass_in_dataclass_out": "Unsupported input type",
}
if version_can("trace-caught-errors"):
    del REFUSED["swallowed_error"]
if not version_can("trace-forward-mode"):
    REFUSED["forward_mode"] = "cannot trace DirectionalDerivative"
MODULES = [specimen for specimen in ZOO if isinstance(specimen.build()[0], nn.Module)]
TRACED = [specimen for specimen in MODULES if specimen.name not in REFUSED]
NOT_EXACT = {"transformer_layer_fast_path"}  # the fused kernel is not traced; a note says so


def built(specimen: Specimen, training: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    model, args, kwargs = specimen.build()
    return model.train(training), args, kwargs


@functools.cache
def traced(name: str, training: bool) -> tuple[atlas.TracedModel, Any]:
    """A traced specimen, and the exported program that serves its own inputs. Use it inside `untouched`."""
    specimen = next(one for one in ZOO if one.name == name)
    model, args, kwargs = built(specimen, training)
    programs = []
    export = torch.export.export

    def noted(*given: Any, **options: Any) -> Any:
        programs.append(export(*given, **options))
        return programs[-1]

    with mock.patch("torch.export.export", noted):
        found = atlas.trace(model, *args, kwargs=kwargs)
    return found, programs[0]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers afterwards as before."""
    tensors = [*model.parameters(), *model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
                tensor.grad = None


class Cloning(torch.fx.Interpreter):
    """Runs an exported program node by node and clones what each node takes and makes."""

    def __init__(self, module: Any, seen: dict[str, Any], prefix: str = "") -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen, self.prefix = seen, prefix

    def run_node(self, n: Any) -> Any:
        taken = cloned([self.env.get(other) for other in in_order((n.args, n.kwargs))])
        made = super().run_node(n)
        self.seen[self.prefix + n.name] = taken, cloned(made)
        return made

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(target, "__name__", "")
        if name == "wrap_with_set_grad_enabled":
            return self._block(torch.set_grad_enabled(args[0]), args[1], args[2:])
        if name == "wrap_with_autocast":
            device, dtype, enabled, cache, body, *operands = args
            return self._block(torch.autocast(device, dtype, enabled, cache), body, operands)
        if name == "tag_activation_checkpoint":
            return self._block(nullcontext(), args[0], args[1:])
        return super().call_function(target, args, kwargs)

    def _block(self, mode: Any, body: Any, operands: Any) -> Any:
        current = next(node for node in self.module.graph.nodes if node not in self.env and node.op == "call_function")
        with mode:
            return Cloning(body, self.seen, f"{self.prefix}{current.name}.").run(*operands)


def in_order(item: Any) -> list[Any]:
    """The nodes in arguments, once for each time."""
    leaves = pytree.tree_leaves(item)
    found = [[leaf.start, leaf.stop, leaf.step] if isinstance(leaf, slice) else [leaf] for leaf in leaves]
    return [leaf for part in found for leaf in part if isinstance(leaf, torch.fx.Node)]


def cloned(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def interpreted(program: Any, model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """What every node of an exported program takes and makes, by the name of its fx node."""
    given = iter(pytree.tree_leaves((args, kwargs)))
    flat = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            flat.append(next(given))
        elif spec.target in program.constants:
            flat.append(program.constants[spec.target])
        else:
            owner: Any = model
            for part in spec.target.split("."):
                owner = getattr(owner, part)
            flat.append(owner)
    seen: dict[str, Any] = {}
    Cloning(program.graph_module, seen).run(*flat)
    return seen
