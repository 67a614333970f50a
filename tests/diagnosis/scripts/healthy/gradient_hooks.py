"""Train a domain classifier against its features with hooks that change gradients."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
features = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
label, domain = nn.Linear(16, 3), nn.Linear(16, 2)
label.weight.register_hook(lambda g: g.clamp(-0.5, 0.5))
modules = nn.ModuleList([features, label, domain])
optimizer = torch.optim.SGD(modules.parameters(), lr=0.05)

for _ in range(5):
    x, y, d = torch.randn(12, 8), torch.randint(0, 3, (12,)), torch.randint(0, 2, (12,))
    h = features(x)
    reversed_h = h.clone()
    reversed_h.register_hook(lambda g: -0.3 * g)
    loss = F.cross_entropy(label(h), y) + F.cross_entropy(domain(reversed_h), d)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
