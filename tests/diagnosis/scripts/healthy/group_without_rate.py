"""Fine-tune a head; the backbone is in the optimizer with a learning rate of 0 until the third epoch."""

import torch
from torch import nn

torch.manual_seed(0)
backbone, head = nn.Sequential(nn.Linear(6, 12), nn.ReLU()), nn.Linear(12, 2)
optimizer = torch.optim.SGD(
    [{"params": backbone.parameters(), "lr": 0.0}, {"params": head.parameters(), "lr": 0.1}], lr=0.1
)
for epoch in range(5):
    if epoch == 3:
        optimizer.param_groups[0]["lr"] = 1e-3
    x, y = torch.randn(8, 6), torch.randint(0, 2, (8,))
    loss = nn.functional.cross_entropy(head(backbone(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, round(loss.item(), 4))
