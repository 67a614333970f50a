"""Train a graph convolution on a small random graph."""

import torch
from torch import nn
from torch.nn import functional as F


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    def forward(self, x, adjacency):
        mean = adjacency / adjacency.sum(1, keepdim=True)  # finds: not-finite-forward
        return self.linear(mean @ x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GraphConv(5, 8)
        self.second = GraphConv(8, 2)

    def forward(self, x, adjacency):
        return self.second(torch.relu(self.first(x, adjacency)), adjacency)


torch.manual_seed(0)
nodes, classes = torch.randn(12, 5), torch.randint(0, 2, (12,))
edges = (torch.rand(12, 12) < 0.4).float()
edges[7] = 0.0
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(nodes, edges), classes)
    loss.backward()
    optimizer.step()
