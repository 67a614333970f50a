"""The loss has no labels, the input requires gradients, backward runs many times inside one step and zero_grad sits
in a closure, because this is a physics-informed net trained by L-BFGS."""

import math

import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)  # L-BFGS likes double precision

# u'' = -pi^2 sin(pi x) on [-1, 1], u(-1) = u(1) = 0; the solution is sin(pi x)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
x_in = torch.linspace(-1, 1, 64).unsqueeze(1).requires_grad_(True)
x_bc = torch.tensor([[-1.0], [1.0]])
forcing = -(math.pi**2) * torch.sin(math.pi * x_in.detach())


def residual():
    u = net(x_in)
    (du,) = torch.autograd.grad(u.sum(), x_in, create_graph=True)
    (d2u,) = torch.autograd.grad(du.sum(), x_in, create_graph=True)
    return d2u - forcing


opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe")


def closure():
    opt.zero_grad()
    loss = residual().pow(2).mean() + 100 * net(x_bc).pow(2).mean()
    # inputs=: x_in needs a graph but its own .grad is of no use
    loss.backward(inputs=list(net.parameters()))
    return loss


for it in range(15):
    loss = opt.step(closure)  # the loss at the start of this step
    if it % 3 == 0 or it == 14:
        print(f"outer {it:2d} loss {loss.item():.3e}")

with torch.no_grad():
    xs = torch.linspace(-1, 1, 201).unsqueeze(1)
    err = (net(xs) - torch.sin(math.pi * xs)).abs().max().item()
print(f"max error against sin(pi x): {err:.2e}")
