"""Train a deep tanh network with weights drawn from a normal distribution."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Stack(nn.Module):
    def __init__(self, width=48, depth=30):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 4)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=1.0)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


net = Stack()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)
x, y = torch.randn(20, 48), torch.randint(0, 4, (20,))
for epoch in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()  # finds: exploding
    optimizer.step()
    print(f"{epoch}: {loss.item():.3f}")
