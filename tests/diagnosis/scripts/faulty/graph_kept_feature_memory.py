"""Train an encoder with a bonus for features unlike those seen before."""

import torch
from torch import nn


def novelty(features, memory):
    if not memory:
        return torch.zeros(())
    old = torch.cat([m.detach() for m in memory])
    return torch.cdist(features, old).min(dim=1).values.mean()


def main():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    decoder = nn.Linear(3, 6)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    memory = []
    for _ in range(8):
        x = torch.randn(5, 6)
        features = encoder(x)  # finds: graph-kept
        loss = (decoder(features) - x).pow(2).mean() - 0.01 * novelty(features, memory)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.append(features)
    print(len(memory), "batches remembered")


if __name__ == "__main__":
    main()
