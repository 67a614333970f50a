"""Train an embedding with SGD and a network with Adam, each on its own schedule."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(20, 6)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizers = {"table": torch.optim.SGD(table.parameters(), lr=0.1), "net": torch.optim.Adam(net.parameters())}
schedules = {
    "table": torch.optim.lr_scheduler.StepLR(optimizers["table"], step_size=2, gamma=0.5),
    "net": torch.optim.lr_scheduler.CosineAnnealingLR(optimizers["net"], T_max=6),
}
for _ in range(6):
    ids = torch.randint(0, 20, (16,))
    loss = (net(table(ids)).squeeze(1) - ids / 20).pow(2).mean()
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    loss.backward()
    for name in optimizers:
        optimizers[name].step()
        schedules[name].step()
