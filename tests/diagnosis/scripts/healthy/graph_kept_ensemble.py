"""Train eight models side by side, each with an optimizer of its own; their losses are added up after each round."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(8)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(5):
        x = torch.randn(4, 3)
        losses, hidden = [], []
        for model, optimizer in zip(models, optimizers, strict=True):
            hidden.append(model[:2](x))
            loss = (model[2](hidden[-1]) - x[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        spread = torch.stack([each.detach() for each in hidden]).std(0).mean().item()
        print(round(sum(loss.item() for loss in losses), 4), round(spread, 4))


if __name__ == "__main__":
    main()
