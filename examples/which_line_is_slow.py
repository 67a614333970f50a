"""Time per line of your own code, forward and backward together."""

from collections import defaultdict

import torch
from torch import nn

import torchatlas as atlas


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        weights = scores.softmax(-1)
        return weights @ self.value(x)


graph = atlas.capture(Attention(256), torch.randn(4, 128, 256), backward=True)
nanoseconds: dict[str, int] = defaultdict(int)
for node in graph.where(kind="op"):
    if node.source is not None:
        nanoseconds[f"{node.source.line:4} {node.source.text}"] += node.time_ns or 0
for line, spent in sorted(nanoseconds.items(), key=lambda item: -item[1]):
    print(f"{spent / 1e6:7.2f} ms  {line}")
