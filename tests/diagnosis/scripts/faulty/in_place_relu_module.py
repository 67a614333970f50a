"""Train a bounded regressor whose layers come from a configuration."""

import torch
from torch import nn

ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": lambda: nn.ReLU(inplace=True), "tanh": nn.Tanh}
CONFIG = [("linear", 4, 16), ("tanh",), ("relu",), ("linear", 16, 1)]


def build(config):
    layers = []
    for kind, *sizes in config:
        layers.append(nn.Linear(*sizes) if kind == "linear" else ACTIVATIONS[kind]())
    return nn.Sequential(*layers)


def fit(model, x, y, epochs=3):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        optimizer.zero_grad()
        pred = model(x)  # finds: in-place
        loss = (pred - y).abs().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(5)
    x = torch.rand(20, 4)
    fit(build(CONFIG), x, x.mean(1, keepdim=True))
