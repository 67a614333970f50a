"""Train a deep network with small random weights, as in an old paper."""

import torch
from torch import nn


def small_init(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.constant_(module.bias, 0.1)


def build(depth, width):
    layers = [nn.Linear(10, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    layers.append(nn.Linear(width, 2))
    return nn.Sequential(*layers).apply(small_init)


class Trainer:
    def __init__(self, model, lr=1e-2):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()  # finds: vanishing
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(build(depth=8, width=32))
    for _ in range(5):
        print(trainer.step(torch.randn(16, 10), torch.randint(0, 2, (16,))))
