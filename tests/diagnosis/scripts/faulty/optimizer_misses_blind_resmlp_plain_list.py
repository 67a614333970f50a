"""The residual blocks are kept in a plain Python list, so they are not registered and their parameters are not given
to the optimizer."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

cfg = dict(width=24, depth=4, lr=2e-3, epochs=6, batch_size=64, seed=77)


class ResBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin1 = nn.Linear(width, width)
        self.lin2 = nn.Linear(width, width)

    def forward(self, x):
        return x + self.lin2(torch.nn.functional.silu(self.lin1(self.norm(x))))


class ResMLP(nn.Module):
    def __init__(self, in_dim, width, depth):
        super().__init__()
        self.stem = nn.Linear(in_dim, width)
        self.blocks = []
        for _ in range(depth):
            self.blocks.append(ResBlock(width))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


torch.manual_seed(cfg["seed"])
x = torch.rand(512, 3) * 4 - 2
y = torch.sin(2 * x[:, 0]) * x[:, 1] + torch.cos(3 * x[:, 2])
loader = DataLoader(TensorDataset(x, y), batch_size=cfg["batch_size"], shuffle=True)

model = ResMLP(3, cfg["width"], cfg["depth"])
print("trainable parameters:", sum(p.numel() for p in model.parameters() if p.requires_grad))
optimizer = torch.optim.RMSprop(model.parameters(), lr=cfg["lr"])
loss_fn = nn.SmoothL1Loss()

for epoch in range(cfg["epochs"]):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        optimizer.step()  # finds: optimizer-misses
    with torch.no_grad():
        print("epoch", epoch, "full loss", round(loss_fn(model(x), y).item(), 4))
