"""A graph network: messages by index_select and scatter_add, degree normalisation, some nodes without neighbours."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
nodes, edges = 40, torch.randint(0, 35, (2, 120))
features = torch.randn(nodes, 6)
labels = (features[:, 0] > 0).long()
train = torch.zeros(nodes, dtype=torch.bool)
train[torch.randperm(nodes)[:20]] = True


class Layer(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.own, self.others = nn.Linear(inside, outside), nn.Linear(inside, outside, bias=False)

    def forward(self, x, edges):
        source, target = edges
        messages = self.others(x)[source]
        total = torch.zeros(len(x), messages.shape[1]).scatter_add(0, target[:, None].expand_as(messages), messages)
        degree = torch.zeros(len(x)).scatter_add_(0, target, torch.ones(len(target))).clamp(min=1)
        return self.own(x) + total / degree[:, None]


first, second = Layer(6, 16), Layer(16, 2)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], 1e-2, weight_decay=5e-4)
for _ in range(25):
    hidden = F.dropout(first(features, edges).relu(), 0.3, training=True)
    scores = second(hidden, edges)
    loss = F.cross_entropy(scores[train], labels[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    right = second(first(features, edges).relu(), edges).argmax(1) == labels
print(f"{loss.item():.5f} {right[~train].float().mean().item():.3f}")
