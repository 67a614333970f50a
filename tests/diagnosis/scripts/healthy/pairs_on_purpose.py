"""Train scores and embeddings on pairs: rankings, distances and kernels."""

import torch
from torch import nn


def ranking(scores, relevance):
    s = scores.squeeze(1)
    difference = s.unsqueeze(1) - s
    wanted = torch.sign(relevance.unsqueeze(1) - relevance)
    return ((difference - wanted) ** 2).mean()


def distances(x, y):
    return (x**2).sum(1, keepdim=True) + (y**2).sum(1) - 2 * x @ y.t()


def spread(scores):
    return (scores - scores.squeeze()).abs().mean()


torch.manual_seed(0)
body, head = nn.Linear(5, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
for _ in range(5):
    x = torch.randn(12, 5)
    hidden = body(x)
    scores = head(hidden)
    loss = ranking(scores, x[:, 0])
    loss = loss + (distances(hidden, hidden) - distances(x, x)).abs().mean()
    loss = loss - 0.1 * spread(scores) + 0.1 * (scores - scores.t()).pow(2).mean()
    near = (hidden[:, None] - hidden).pow(2).sum(-1)
    loss = loss + 0.01 * (1 + near).log().mean() + torch.exp(-((scores - x[:, 0]) ** 2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))
