"""Some blocks get no gradient at all on a step because stochastic depth skips them, and an averaged copy of the
model is in no optimizer because SWA fills it."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


class ResBlock(nn.Module):
    def __init__(self, d, drop_prob):
        super().__init__()
        self.f = nn.Sequential(nn.BatchNorm1d(d), nn.ReLU(), nn.Linear(d, d))
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.training:
            if torch.rand(()).item() < self.drop_prob:
                return x  # whole block skipped on this batch
            return x + self.f(x) / (1 - self.drop_prob)
        return x + self.f(x)


class Net(nn.Module):
    def __init__(self, d=32, depth=5, classes=3):
        super().__init__()
        self.stem = nn.Linear(10, d)
        self.blocks = nn.ModuleList(ResBlock(d, 0.4 * i / (depth - 1)) for i in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, classes))

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def score(model, x, y):
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train()
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


torch.manual_seed(0)
x = torch.randn(1000, 10)
y = torch.stack([x[:, 0] + x[:, 1], x[:, 2] * 1.5, x[:, 3] - x[:, 4]], 1).argmax(1)
loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=100, shuffle=True)
net = Net()
swa = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
sched = SWALR(opt, swa_lr=0.03, anneal_epochs=2)
print("start (loss, acc)", score(net, x[800:], y[800:]))
for epoch in range(7):
    for xb, yb in loader:
        opt.zero_grad()  # None for the skipped blocks: SGD leaves them alone
        F.cross_entropy(net(xb), yb).backward()
        opt.step()
    if epoch >= 3:
        swa.update_parameters(net)
        sched.step()
    print(epoch, score(net, x[800:], y[800:]))
update_bn(loader, swa)
print("swa", score(swa, x[800:], y[800:]))
