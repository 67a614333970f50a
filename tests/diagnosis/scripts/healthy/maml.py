"""Meta-learn a start for sine waves with one inner step."""

import torch
from torch.func import functional_call
from torch.nn import functional as F


def sample_task():
    amplitude, phase = 1 + torch.rand(()), torch.rand(()) * 3
    x = torch.rand(20, 1) * 6 - 3
    return x, amplitude * torch.sin(x + phase)


torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
meta_opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(4):
    meta_loss = 0.0
    for _ in range(3):
        x, y = sample_task()
        weights = dict(net.named_parameters())
        inner = F.mse_loss(functional_call(net, weights, x[:10]), y[:10])
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        adapted = {k: w - 0.05 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
        meta_loss = meta_loss + F.mse_loss(functional_call(net, adapted, x[10:]), y[10:])
    meta_opt.zero_grad()
    meta_loss.backward()
    meta_opt.step()
