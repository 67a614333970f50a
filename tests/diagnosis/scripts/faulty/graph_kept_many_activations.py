"""Train a deep residual network and gather what every block returns, for statistics after training."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + 0.1 * self.inner(x)  # finds: graph-kept


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(4) for _ in range(130)], nn.Linear(4, 1))
    activations = []
    for block in model[:-1]:
        block.register_forward_hook(lambda module, inputs, output: activations.append(output))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
    print(len(activations), "activations, spread", round(torch.stack(activations).std().item(), 3))


if __name__ == "__main__":
    main()
