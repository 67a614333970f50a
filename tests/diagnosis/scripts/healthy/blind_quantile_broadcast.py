"""An (N,1) target is subtracted from an (N,Q) output, because in quantile regression each target is compared with
all Q quantile levels at once."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LEVELS = torch.tensor([[0.05, 0.25, 0.5, 0.75, 0.95]])  # (1, Q)


class QuantileNet(nn.Module):
    """The first output is the lowest quantile, the others add positive gaps, so they never cross."""

    def __init__(self, q):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, q))

    def forward(self, x):
        raw = self.net(x)
        gaps = nn.functional.softplus(raw[:, 1:])
        return torch.cat([raw[:, :1], raw[:, :1] + gaps.cumsum(1)], dim=1)


def pinball(pred, y):
    err = y - pred  # (N,1) - (N,Q)
    return torch.maximum(LEVELS * err, (LEVELS - 1) * err).mean()


def make(n):
    x = torch.rand(n, 1) * 4 - 2
    return x, torch.sin(2 * x) + (0.1 + 0.3 * x.abs()) * torch.randn(n, 1)


def train_epoch(model, loader, opt):
    model.train()
    total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = pinball(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
    return total / len(loader.dataset)


@torch.no_grad()
def coverage(model, x, y):
    model.eval()
    return (y <= model(x)).float().mean(0)


torch.manual_seed(2)
loader = DataLoader(TensorDataset(*make(1280)), batch_size=128, shuffle=True)
x_test, y_test = make(1000)
model = QuantileNet(LEVELS.numel())
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(6):
    print(f"epoch {epoch} pinball {train_epoch(model, loader, opt):.4f}")
print("levels  ", LEVELS.flatten().tolist())
print("coverage", [round(c, 2) for c in coverage(model, x_test, y_test).tolist()])
