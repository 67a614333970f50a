"""Train an autoencoder with settings from a table."""

import torch
from torch import nn

SETTINGS = {"width": 12, "steps": 5, "lr": 0}


class Autoencoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encode = nn.Linear(8, width)
        self.decode = nn.Linear(width, 8)

    def forward(self, x):
        return self.decode(self.encode(x).relu())


def fit(settings):
    model = Autoencoder(settings["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"])
    for _ in range(settings["steps"]):
        x = torch.randn(10, 8)
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()  # finds: nothing-changes
    return loss.item()


torch.manual_seed(0)
print(round(fit(SETTINGS), 4))
