"""Go on from the third epoch: schedulers are wound forward, then step after the optimizer."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = SequentialLR(optimizer, [LinearLR(optimizer, 0.5, total_iters=2), StepLR(optimizer, 2)], [2])
other = torch.optim.Adam(model[2].parameters(), lr=1e-2)
chained = ChainedScheduler([ExponentialLR(other, 0.9), StepLR(other, 3)])
plateau = ReduceLROnPlateau(optimizer, patience=1)
for _ in range(3):
    epochs.step()
for epoch in range(3, 7):
    for _ in range(2):
        x = torch.randn(8, 4)
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        other.step()
        chained.step()
    epochs.step()
    plateau.step(loss.item())
    print(epoch, round(optimizer.param_groups[0]["lr"], 5))
