"""Where do the values of a network grow? Every value of a traced model, at sizes it was not traced with."""

import torch
from torch import nn

import torchatlas as atlas


class Block(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(torch.relu_(self.up(x)))


torch.manual_seed(0)
model = nn.Sequential(Block(32, 1.0), Block(32, 30.0), Block(32, 1.0)).eval()  # one of them is wrong
traced = atlas.trace(model, torch.randn(1, 16, 32))

x = torch.randn(3, 64, 32)
values = traced.predict(x)
assert torch.equal(values.output, model(x))
for name, entry in values.items():
    if name.endswith("add"):
        print(f"{name:12} {tuple(entry.output.shape)!s:14} standard deviation {entry.output.std():.2f}")

quiet = traced.run(x, edit={"1": lambda value: value / value.std()})
print(f"with the output of block 1 scaled to 1: {quiet.std():.2f} instead of {values.output.std():.2f}")
