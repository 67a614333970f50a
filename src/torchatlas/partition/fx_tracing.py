"""A model -> torch.fx's graph of it, if that computes what the model computes. The model is left as it was.

torch.fx runs `forward` on proxies. What it cannot see is lost without a word: autocast, blocks without gradients, hooks
of the model itself, writes to buffers, random numbers (which become constants). So the two are run and compared.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchatlas.errors import CaptureError
from torchatlas.interrupts import bracketed, whole

if TYPE_CHECKING:
    from torch import fx, nn

Made = tuple[Any, list[Any], Counter[str]]  # structure, leaves, nodes of autograd behind them
_SEED = 0x70C4A71A5  # a seed of our own: numbers drawn while tracing must not be drawn again


def traced_by_fx(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    """torch.fx's graph of a model. CaptureError says in what it differs; other errors are whatever the model raises."""
    from torch import fx

    with left_alone(model, args, kwargs):
        module = fx.symbolic_trace(model)
        with left_alone(model, args, kwargs):
            expected = _made(model, args, kwargs)
        for _ in range(2):  # tensors that it made while it was traced are constants now, and may be written to
            quiet = whole(contextlib.redirect_stderr(io.StringIO()))  # a GraphModule prints its errors there
            with left_alone(model, args, kwargs), quiet:
                _compare(_made(module, args, kwargs), expected)
    return module


def _compare(made: Made, expected: Made) -> None:
    from torchatlas.inputs import same_bits

    if made[0] != expected[0]:
        raise CaptureError("torch.fx's graph returns another structure, or other types, than the model.")
    if not all(same_bits(one, other) for one, other in zip(made[1], expected[1], strict=True)):
        raise CaptureError("torch.fx's graph returns other values than the model: something between its ops is lost.")
    if made[2] != expected[2]:
        raise CaptureError("torch.fx's graph has other gradients than the model: something between its ops is lost.")


@bracketed
def left_alone(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Afterwards restore parameters, buffers, inputs, random state and the attributes of all modules."""
    import torch

    from torchatlas.capturing.restore import Restorer

    before = [(module, dict(vars(module))) for module in model.modules()]
    with Restorer(model, (args, kwargs), whole=True), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for module, attributes in before:
                vars(module).clear()
                vars(module).update(attributes)


def _made(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Made:
    """What a model returns: its structure, its leaves, and which nodes of autograd lie behind them."""
    import torch

    from torchatlas.autograd.graph_walk import reached, starting_node
    from torchatlas.torch_private import pytree

    torch.manual_seed(_SEED)
    with torch.enable_grad():
        leaves, structure = pytree.tree_flatten(model(*args, **kwargs))
    leaves = [
        leaf.clone() if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else leaf for leaf in leaves
    ]
    roots = [starting_node(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return structure, leaves, Counter(node.name() for node in reached(list(dict.fromkeys(roots))))
