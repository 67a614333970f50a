"""BYOL-like: features of a backbone before its own fc, which stays where it is; predictor, target network, EMA."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.fc = nn.Linear(32, 100)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.fc(self.features(x))


class Online(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.project = backbone, nn.Linear(32, 8)

    def forward(self, x):
        return self.project(self.backbone.features(x))


online, predictor = Online(Backbone()), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
target = copy.deepcopy(online).requires_grad_(False)
wanted = [p for name, p in online.named_parameters() if not name.startswith("backbone.fc")]
optimizer = torch.optim.SGD([*wanted, *predictor.parameters()], 0.05, momentum=0.9)
for _ in range(25):
    x = torch.randn(16, 10)
    one, two = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    with torch.no_grad():
        other_one, other_two = target(one), target(two)
    loss = 2 - F.cosine_similarity(predictor(online(one)), other_two).mean()
    loss = loss - F.cosine_similarity(predictor(online(two)), other_one).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for t, o in zip(target.parameters(), online.parameters(), strict=True):
            t.mul_(0.95).add_(o, alpha=0.05)
print(f"{loss.item():.5f}")
