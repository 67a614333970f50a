"""Train an encoder whose code is made binary by an autograd Function of its own."""

import torch
from torch import nn


class Binary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, code):
        return (code > 0).float()

    @staticmethod
    def backward(ctx, grad):
        return None


def binary(code):
    return Binary.apply(code)  # finds: no-gradient


torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8))
decoder = nn.Linear(8, 5)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 0.01)
for _ in range(4):
    x = torch.randn(16, 5)
    loss = nn.functional.mse_loss(decoder(binary(encoder(x))), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))
