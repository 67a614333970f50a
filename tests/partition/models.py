"""Small models to cut up, and how to have torch.fx trace them."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp


class Block(nn.Module):
    """A residual block with a projection beside it: two things can run at once."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(size, size, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(size)
        self.conv2 = nn.Conv2d(size, size, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(size)
        self.project = nn.Conv2d(size, size, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.project(x)
        return self.relu(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block1, self.block2 = Block(), Block()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block2(self.block1(self.stem(x)))
        return self.head(self.drop(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1)))


class Inception(nn.Module):
    """Four ways whose results are joined for two others: the cat belongs to none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in range(4))
        self.left, self.right = nn.Conv2d(16, 2, 1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([nn.functional.relu(way(x)) for way in self.ways], 1)
        return self.left(y) * self.right(y)


class Attention(nn.Module):
    """Written out: scores, softmax, weighted sum."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))
        self.norm = nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, -1)
        return x + self.out(torch.bmm(weights, v))


class WritesAndReshapes(nn.Module):
    """A mask filled piece by piece, then reshaped, which copies: an exported graph shows it as a view."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros(4, 4)
        for row in range(4):
            mask[row : row + 1] = row
        return x + mask.t().reshape(-1)


def traced(model: nn.Module, *shape: int) -> fx.GraphModule:
    """Document 004's way."""
    module = fx.symbolic_trace(model.eval())
    ShapeProp(module).propagate(torch.randn(*shape))
    return module
