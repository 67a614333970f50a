"""Classify bags of instances: attention over the instances of a bag, which are dimension 0."""

import torch
import torch.nn.functional as F
from torch import nn


class AttentionPooling(nn.Module):
    def __init__(self, features=6, hidden=8, classes=3):
        super().__init__()
        self.embed = nn.Linear(features, hidden)
        self.score = nn.Sequential(nn.Linear(hidden, 8), nn.Tanh(), nn.Linear(8, 1))
        self.classify = nn.Linear(hidden, classes)

    def forward(self, bag):
        instances = torch.relu(self.embed(bag))
        weights = F.softmax(self.score(instances), dim=0)
        return self.classify((weights * instances).sum(0)), weights


torch.manual_seed(0)
model = AttentionPooling()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(8):
    bag = torch.randn(5 + step % 3, 6)
    label = bag.mean(0)[:3].argmax()
    scores, weights = model(bag)
    loss = F.nll_loss(torch.log(F.softmax(scores, dim=0) + 1e-9), label)
    loss = loss + 0.01 * (weights * weights.log()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 3))
