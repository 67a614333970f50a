"""Train with a gradient scaler; one column of the data is far larger than the others."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.rand(32, 4) * torch.tensor([1.0, 1.0, 1.0, 8e18])
    y = x[:, :1]
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # finds: nothing-changes
        scaler.update()
    print("scale", scaler.get_scale())


main()
