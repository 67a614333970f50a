"""What is wrong with this training? Five faults in thirty lines, none of which raises an exception."""

import torch
from torch import nn

import torchatlas as atlas


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1))
        self.scale = nn.Linear(8, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x) * self.scale(x).round())


def train(steps: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model, losses = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
    with torch.no_grad():
        print(f"validation loss {nn.functional.mse_loss(model(x), y):.3f}\n")
    return losses


with atlas.doctor() as visit:
    losses = train(steps=8)
for finding in visit.findings:
    print(f"{finding}\n")
