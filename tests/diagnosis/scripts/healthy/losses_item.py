"""Train a network and keep its losses as plain numbers."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
history = {"loss": [], "worst": [], "output": []}
total = 0.0
for _ in range(8):
    x = torch.rand(20, 2)
    output = net(x)
    error = (output - x.prod(1, keepdim=True)).abs()
    loss = error.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    history["loss"].append(loss.item())
    history["worst"].append(float(error.detach().max()))
    history["output"].append(output.detach().clone())
print(total, len(history["loss"]))
