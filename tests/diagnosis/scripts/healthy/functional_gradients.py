"""Train with gradients from torch.func, and look at those of single samples."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
weights = {k: v.detach().clone() for k, v in net.named_parameters()}


def loss_fn(w, x, y):
    return (functional_call(net, w, (x,)) - y).pow(2).mean()


for _ in range(5):
    x = torch.randn(16, 3)
    y = x.sum(1, keepdim=True)
    slopes = grad(loss_fn)(weights, x, y)
    weights = {k: w - 0.1 * slopes[k] for k, w in weights.items()}

each = vmap(grad(loss_fn), in_dims=(None, 0, 0))(weights, x, y)
print({k: round(g.flatten(1).norm(dim=1).mean().item(), 3) for k, g in each.items()})
