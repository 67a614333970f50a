"""Weights are written through .data between two backwards of one step and sometimes jump back, because SAM climbs to
a worst neighbour first and Lookahead pulls towards slow weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SAM:
    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho = list(params), base, rho

    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm() + 1e-12
        self.saved = [p.data.clone() for p in self.params]
        for p in self.params:
            p.data.add_(p.grad, alpha=float(self.rho / norm))

    def descend(self):
        for p, w in zip(self.params, self.saved):
            p.data.copy_(w)
        self.base.step()


class Lookahead:
    def __init__(self, params, k=5, alpha=0.5):
        self.params, self.k, self.alpha, self.n = list(params), k, alpha, 0
        self.slow = [p.data.clone() for p in self.params]

    def step(self):
        self.n += 1
        if self.n % self.k == 0:
            for p, s in zip(self.params, self.slow):
                s.add_(p.data - s, alpha=self.alpha)
                p.data.copy_(s)


def moons(n):
    t = torch.rand(n) * torch.pi
    y = torch.randint(0, 2, (n,))
    sign = 1.0 - 2.0 * y
    x = torch.stack([sign * t.cos() + y, sign * t.sin() + 0.5 * y], dim=1)
    return x + 0.12 * torch.randn(n, 2), y


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
base = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
sam, look = SAM(model.parameters(), base), Lookahead(model.parameters())

for step in range(60):
    x, y = moons(128)
    base.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    sam.climb()

    base.zero_grad()  # only the gradient at the perturbed point is used
    F.cross_entropy(model(x), y).backward()
    sam.descend()
    look.step()
    if step % 10 == 0 or step == 59:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    x, y = moons(1000)
    print("test acc", (model(x).argmax(1) == y).float().mean().item())
