"""Count how many backward passes of a block run, and how large its gradients are."""

import torch
from torch import nn

torch.manual_seed(0)
block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
x = torch.randn(3, 6, 8)
for run in range(6):
    for p in block.parameters():
        p.grad = None
    block(x).square().mean().backward()
    print(run, round(sum(p.grad.norm().item() for p in block.parameters()), 3))
