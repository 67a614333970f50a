"""Clip each part's gradients before its own step, unscale first, and measure norms afterwards."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(6, 8), nn.Linear(8, 6)
first, second = torch.optim.SGD(encoder.parameters(), lr=0.1), torch.optim.Adam(decoder.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(6):
    first.zero_grad()
    second.zero_grad()
    for _ in range(2):
        x = torch.randn(5, 6)
        loss = (decoder(encoder(x).tanh()) - x).square().mean() / 2
        scaler.scale(loss).backward()
    scaler.unscale_(first)
    nn.utils.clip_grad_norm_(encoder.parameters(), 0.5)
    scaler.step(first)
    scaler.unscale_(second)
    nn.utils.clip_grad_value_(decoder.parameters(), 0.1)
    scaler.step(second)
    scaler.update()
    norm = nn.utils.clip_grad_norm_(decoder.parameters(), float("inf"))
    print(step, round(loss.item(), 4), round(norm.item(), 4))
