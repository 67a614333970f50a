"""Train an instance-discrimination encoder against a bank of stored features."""

import torch
from torch import nn
from torch.nn import functional as F


class MemoryBank(nn.Module):
    def __init__(self, size, dim, temperature=0.2):
        super().__init__()
        self.register_buffer("bank", F.normalize(torch.randn(size, dim), dim=1))
        self.temperature = temperature

    def forward(self, feats, index):
        logits = feats @ self.bank.t() / self.temperature
        self.update(feats.detach(), index)
        return logits

    def update(self, feats, index):
        mixed = 0.5 * self.bank[index] + 0.5 * feats
        self.bank[index] = F.normalize(mixed, dim=1)  # finds: in-place


def main():
    torch.manual_seed(0)
    images = torch.randn(40, 1, 8, 8)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16))
    memory = MemoryBank(40, 16)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
    for start in range(0, 40, 8):
        index = torch.arange(start, start + 8)
        feats = F.normalize(encoder(images[index]), dim=1)
        loss = F.cross_entropy(memory(feats, index), index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
