"""What fills memory in a training step, which module and line it comes from, and which batch fits into 24 GiB."""

import torch
from torch import nn

import torchatlas as atlas


class Block(nn.Module):
    def __init__(self, size: int = 512) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(size), nn.MultiheadAttention(size, 8, batch_first=True)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y)[0]  # its weights are tokens x tokens for every head
        return x + self.narrow(self.wide(x).relu())


def step(batch: int) -> atlas.Graph:
    tokens = torch.empty(batch, 256, 512, device="meta")
    model = nn.Sequential(*(Block() for _ in range(4)))
    return atlas.capture(model, tokens, optimizer=torch.optim.AdamW, fake=True)  # nothing is allocated for the run


report = atlas.memory(step(16), top=5)
print(report)

print("\nWhat checkpointing would save:")
for path in ("0", "1", "2", "3"):
    print(f"  block {path}: {report.by_module[path].categories['saved_activations'] / 2**20:.0f} MiB")

growth = atlas.peak_for_batch(step)
print(f"\n{growth}\n\nInto 24 GiB fits a batch of {growth.largest_batch('24GiB')}.")
