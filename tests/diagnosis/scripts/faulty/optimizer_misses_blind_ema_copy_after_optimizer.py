"""The optimizer holds the parameters of `net`, but the network that is trained is a deep copy of it, so the trained
weights never change."""

import copy

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, d_in=10, d_hidden=32, n_cls=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_in, d_hidden), nn.GELU(), nn.LayerNorm(d_hidden))
        self.head = nn.Linear(d_hidden, n_cls)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def update_ema(ema, model, decay=0.95):
    for pe, p in zip(ema.parameters(), model.parameters()):
        pe.mul_(decay).add_(p, alpha=1 - decay)


@torch.no_grad()
def accuracy(m, x, y):
    m.eval()
    acc = (m(x).argmax(1) == y).float().mean().item()
    m.train()
    return acc


X = torch.randn(300, 10)
Y = (X @ torch.randn(10, 3)).argmax(1)
loader = DataLoader(TensorDataset(X, Y), batch_size=50, shuffle=True)

net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

# keep `net` as the reference initialisation, train a copy of it with an EMA shadow
model = copy.deepcopy(net)
ema = copy.deepcopy(net).requires_grad_(False)

criterion = nn.CrossEntropyLoss()
for epoch in range(8):
    for xb, yb in loader:
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # finds: optimizer-misses
        update_ema(ema, model)
    print(f"epoch {epoch} loss {loss.item():.4f} acc {accuracy(model, X, Y):.3f} ema {accuracy(ema, X, Y):.3f}")
