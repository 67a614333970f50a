"""Adapt a model to one batch after the other, with a fresh optimizer for each."""

import torch
from torch import nn


def adapt(model, x):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    entropy = torch.distributions.Categorical(logits=model(x)).entropy().mean()  # finds: graph-kept
    entropy.backward()
    optimizer.step()
    optimizer.zero_grad()
    return entropy


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    entropies = []
    for _ in range(6):
        entropies.append(adapt(model, torch.randn(5, 6)))
    print([round(entropy.item(), 3) for entropy in entropies])


if __name__ == "__main__":
    main()
