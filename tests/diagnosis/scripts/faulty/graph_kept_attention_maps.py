"""A small attention model that remembers its maps, to look at them later."""

import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.maps = []

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        weights = scores.softmax(-1)  # finds: graph-kept
        self.maps.append(weights)
        return weights @ self.value(x)


def main():
    model = nn.Sequential(Attention(16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        x = torch.randn(4, 6, 16)
        optimizer.zero_grad()
        loss = (model(x) - x.mean(-1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item(), len(model[0].maps))


main()
