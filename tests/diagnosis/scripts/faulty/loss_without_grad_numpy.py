"""Train a denoiser with a loss on the spectrum of the signal."""

import numpy as np
import torch
from torch import nn


def spectrum(signal):
    return torch.from_numpy(np.abs(np.fft.rfft(signal.detach().numpy())))  # finds: loss-without-grad


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.GELU(), nn.Conv1d(8, 1, 5, padding=2))

    def forward(self, x):
        return self.layers(x.unsqueeze(1)).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    clean = torch.sin(torch.linspace(0, 12, 64)).repeat(6, 1)
    noisy = clean + 0.2 * torch.randn_like(clean)
    net = Denoiser()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        loss = (spectrum(net(noisy)) - spectrum(clean)).abs().mean()
        loss.backward()
        optimizer.step()
