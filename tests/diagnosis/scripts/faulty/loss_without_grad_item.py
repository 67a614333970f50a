"""Train a model on several tasks and sum up their losses."""

import torch
from torch import nn

torch.manual_seed(0)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 12)
        self.heads = nn.ModuleDict({"age": nn.Linear(12, 1), "height": nn.Linear(12, 1)})

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return {name: head(h) for name, head in self.heads.items()}


net = MultiTask()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
mse = nn.MSELoss()
x = torch.randn(20, 6)
targets = {"age": torch.rand(20, 1), "height": torch.rand(20, 1)}

for _ in range(3):
    outputs = net(x)
    losses = torch.tensor([mse(outputs[k], targets[k]).item() for k in targets])  # finds: loss-without-grad
    total = losses.sum()
    opt.zero_grad()
    total.backward()
    opt.step()
