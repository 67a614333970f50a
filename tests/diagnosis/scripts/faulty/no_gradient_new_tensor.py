"""Train an ensemble with a learned weight for each member."""

import torch
from torch import nn
from torch.nn import functional as F


class Ensemble(nn.Module):
    def __init__(self, members=3):
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(5, 1) for _ in range(members))
        self.scores = nn.ParameterList(nn.Parameter(torch.rand(())) for _ in range(members))

    def forward(self, x):
        weights = torch.tensor([s.item() for s in self.scores]).softmax(0)  # finds: no-gradient
        outputs = torch.stack([m(x) for m in self.members])
        return (weights.view(-1, 1, 1) * outputs).sum(0)


def train():
    torch.manual_seed(0)
    model = Ensemble()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(30, 5)
    y = x.abs().sum(1, keepdim=True)
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(train())
