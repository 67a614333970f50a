"""The LBFGS closure never zeroes the gradients, so each evaluation adds to those of the previous ones and the search
directions are wrong."""

import torch
import torch.nn as nn
from torch.autograd import grad

torch.manual_seed(0)


class PINN(nn.Module):
    """solve u'' + u = 0, u(0)=0, u'(0)=1 on [0, 3]; the solution is sin(t)"""

    def __init__(self, width=20):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, t):
        return self.layers(t)


def derivative(u, t):
    return grad(u, t, torch.ones_like(u), create_graph=True)[0]


net = PINN()
t_col = torch.linspace(0, 3, 40).view(-1, 1).requires_grad_(True)
t0 = torch.zeros(1, 1, requires_grad=True)

optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=5, history_size=20)


def closure():
    u = net(t_col)
    du = derivative(u, t_col)
    ddu = derivative(du, t_col)
    residual = (ddu + u).pow(2).mean()
    u0 = net(t0)
    boundary = u0.pow(2).mean() + (derivative(u0, t0) - 1).pow(2).mean()
    loss = residual + boundary
    loss.backward()
    return loss


for it in range(20):
    loss = optimizer.step(closure)  # finds: not-zeroed
    if it % 4 == 0:
        print(f"outer iteration {it}: loss {loss.item():.6f}")

with torch.no_grad():
    t = torch.linspace(0, 3, 50).view(-1, 1)
    print("max error against sin(t):", (net(t) - torch.sin(t)).abs().max().item())
