"""Train prototypes for clustering, kept on the unit sphere."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(11)


class Prototypes(nn.Module):
    def __init__(self, dim, count):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, dim))
        self.centres = nn.Parameter(torch.randn(count, dim))

    def renormalise(self):
        with torch.no_grad():
            self.centres.div_(self.centres.norm(dim=1, keepdim=True))  # finds: in-place

    def forward(self, x):
        return F.normalize(self.backbone(x), dim=1) @ self.centres.t()


net = Prototypes(8, 5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
points = torch.randn(30, 6)
groups = torch.randint(5, (30,))

for _ in range(5):
    optimizer.zero_grad()
    scores = net(points)
    net.renormalise()
    loss = F.cross_entropy(scores / 0.1, groups)
    loss.backward()
    optimizer.step()
