"""Tensors that are written, shared, moved or kept: in-place operators, views, buffers, state."""

import numpy as np
import torch
from torch import Tensor, nn

from zoo.specimen import Call, specimen


class ViewWritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        row = y[0]
        row.mul_(2)
        y[:, 1].add_(1)
        return y + row


@specimen("a write to a view changes its base and every other view")
def inplace_on_view() -> Call:
    return ViewWritten(), (torch.randn(3, 4),), {}


class DisjointColumns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_empty(x.shape[0], 4)
        y[:, :2].copy_(self.left(x))
        y[:, 2:] = self.right(x)
        return y * 2


@specimen("disjoint columns of one buffer: two independent writers, both needed by the reader")
def disjoint_column_writes() -> Call:
    return DisjointColumns(), (torch.randn(2, 3),), {}


def write_after_read(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    before = y.sum(0)
    y.zero_()
    return before, y + x


@specimen("a value read and then overwritten: the order is a dependency, the recorded value the old one")
def overwritten_after_read() -> Call:
    return write_after_read, (torch.randn(2, 3, requires_grad=True),), {}


class OutArgument(nn.Module):
    workspace: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("workspace", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        torch.mul(x, 2, out=self.workspace)
        return self.linear(self.workspace)


@specimen("out=: the result goes into memory that was already there")
def out_argument() -> Call:
    return OutArgument(), (torch.randn(2, 3),), {}


class DataAssigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        offset = torch.zeros(3)
        first = self.linear(x) + offset
        offset.data = torch.arange(3.0)
        return first * offset


@specimen("x.data = y: one Python tensor, another storage")
def data_assignment() -> Call:
    return DataAssigned(), (torch.randn(2, 3),), {}


class Resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        scratch = torch.zeros(3)
        scratch.resize_(x.shape).copy_(x)
        return self.linear(scratch)


@specimen("resize_: a storage that grows while it is alive")
def resized() -> Call:
    return Resized(), (torch.randn(2, 4),), {}


class MetadataInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.t_()
        y.unsqueeze_(0)
        return self.linear(y).squeeze_(0)


@specimen("t_, unsqueeze_, squeeze_: shape and stride change, the data does not")
def metadata_in_place() -> Call:
    return MetadataInPlace(), (torch.randn(2, 3),), {}


class ScalesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x.clamp_(min=0)
        return self.linear(x)


@specimen("the model overwrites the caller's input")
def input_overwritten() -> Call:
    return ScalesItsInput(), (torch.randn(2, 3),), {}


class Counter(nn.Module):
    calls: Tensor
    mean: Tensor
    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.lerp_(x.mean(0), 0.1)
        self.scratch = x.std(0)
        return self.linear((x - self.mean) / self.scratch) / self.calls


@specimen("buffers changed by the forward: a counter, a running mean, one replaced by a new tensor")
def buffers_updated() -> Call:
    return Counter(), (torch.randn(4, 3),), {}


class SpectralNorm(nn.Module):
    u: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("u", nn.functional.normalize(torch.randn(3), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            v = nn.functional.normalize(self.weight.t() @ self.u, dim=0)
            self.u.copy_(nn.functional.normalize(self.weight @ v, dim=0))
        sigma = self.u.clone() @ self.weight @ v
        return x @ (self.weight / sigma).t()


@specimen("spectral norm by hand: power iteration in a buffer, without grad, inside forward")
def spectral_norm_buffer() -> Call:
    return SpectralNorm(), (torch.randn(2, 4),), {}


class KeepsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.state = (torch.zeros(2, 4), torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.cell(x, self.state)
        self.state = (h.detach(), c.detach())
        return h


@specimen("a tuple of tensors kept from call to call, registered nowhere")
def state_in_tuple() -> Call:
    return KeepsState(), (torch.randn(2, 3),), {}


def outer_view(x: Tensor) -> Tensor:
    y = x.sin()
    return torch.as_strided(y, (2, 2), (1, 2), 1) + y.expand(2, 6)[:, ::3]


@specimen("as_strided and expand: views no shape rule explains")
def overlapping_views() -> Call:
    return outer_view, (torch.randn(6, requires_grad=True),), {}


class ChunksAndSplits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.linear(x).chunk(3, dim=1)
        d, e = b.split([1, 3], dim=1)
        first, *_ = c.unbind(1)
        return a * torch.sigmoid(torch.cat([e, d], dim=1)) + first[:, None]


@specimen("chunk, split and unbind: one operator, many outputs, one storage")
def multi_output_views() -> Call:
    return ChunksAndSplits(), (torch.randn(2, 4),), {}


class Broadcast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(2, 3, 4, 4) * self.scale + x.broadcast_to(2, 1, 4, 4)


@specimen("expand and broadcast: stride zero, a gradient summed back")
def expand_broadcast() -> Call:
    return Broadcast(), (torch.randn(4, 4, requires_grad=True),), {}


class ThroughNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        ranks = torch.from_numpy(np.argsort(y.detach().numpy(), axis=1).astype(np.float32))
        return y * ranks


@specimen("out to numpy and back: a tensor that comes from nowhere", fakes=False)
def numpy_round_trip() -> Call:
    return ThroughNumpy(), (torch.randn(2, 3),), {}
