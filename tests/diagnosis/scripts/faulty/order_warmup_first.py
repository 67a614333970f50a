"""Train a transformer layer with a warm-up and a cosine schedule, one after the other."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=3), CosineAnnealingLR(optimizer, 5)], [3])
for _ in range(8):
    x = torch.randn(2, 5, 8)
    loss = (layer(x) - x.flip(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    schedule.step()  # finds: order
    optimizer.step()
    print(round(loss.item(), 4))
