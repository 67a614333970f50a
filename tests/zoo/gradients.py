"""What people do with autograd inside a model."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from zoo.specimen import Call, specimen


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return (x * scale).round() / scale

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() < 4 / ctx.scale), None


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return StraightThrough.apply(self.linear(x), 4.0)


@specimen("a custom autograd.Function: a backward that matches no operator")
def custom_function() -> Call:
    return Quantised(), (torch.randn(2, 3),), {}


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.GELU(), nn.Linear(8, 4))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


@specimen("checkpoint, non-reentrant: the block runs again inside backward")
def checkpoint_non_reentrant() -> Call:
    return Checkpointed(reentrant=False, dropout=0.0), (torch.randn(2, 4),), {}


@specimen("checkpoint, non-reentrant, with dropout: the second run must draw the same numbers")
def checkpoint_non_reentrant_dropout() -> Call:
    return Checkpointed(reentrant=False, dropout=0.5), (torch.randn(2, 4),), {}


@specimen("checkpoint, reentrant: a backward inside a backward")
def checkpoint_reentrant() -> Call:
    return Checkpointed(reentrant=True, dropout=0.0), (torch.randn(2, 4),), {}


@specimen("checkpoint, reentrant, with dropout")
def checkpoint_reentrant_dropout() -> Call:
    return Checkpointed(reentrant=True, dropout=0.5), (torch.randn(2, 4),), {}


class NoGradSection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = torch.relu(self.backbone(x))
        return self.head(features)


@specimen("a section without grad: trainable parameters that get none")
def no_grad_section() -> Call:
    return NoGradSection(), (torch.randn(2, 4),), {}


class StopGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Linear(4, 2)
        self.predict = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.online(x)
        return (self.predict(z) - z.detach()).square().mean()


@specimen("detach in the middle: the value goes on, the gradient stops")
def detach_in_middle() -> Call:
    return StopGradient(), (torch.randn(2, 4),), {}


class TensorHook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
        y.retain_grad()
        return (y * 3).tanh()


@specimen("a hook on a tensor changes its gradient, which the tensor also retains")
def tensor_gradient_hook() -> Call:
    return TensorHook(), (torch.randn(2, 3),), {}


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.net(positions).sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy, -gradient


@specimen("forces from an energy: a backward inside the forward, then a backward through it")
def backward_inside_forward() -> Call:
    return Energy(), (torch.randn(2, 3, requires_grad=True),), {}


class PerExampleGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], example: Tensor) -> Tensor:
            return functional_call(self.net, parameters, (example,)).square().sum()

        return vmap(grad(loss), in_dims=(None, 0))(dict(self.net.named_parameters()), x)


@specimen("vmap over grad: wrapped tensors above the dispatcher, plain ones below")
def per_example_gradients() -> Call:
    return PerExampleGradients(), (torch.randn(4, 3),), {}


class DirectionalDerivative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        _, slope = jvp(lambda v: self.net(v * x), (x,), (torch.ones_like(x),))
        return slope


@specimen("jvp: zeros that have a size and no memory, and shapes computed on meta")
def forward_mode() -> Call:
    return DirectionalDerivative(), (torch.randn(4, 3),), {}


class Accumulates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        return (w * x).sum() + w.square().sum() - (w.sin() * w).sum()


@specimen("one parameter read in five places: gradients meet in the engine's input buffer")
def gradient_fan_in() -> Call:
    return Accumulates(), (torch.randn(3),), {}
