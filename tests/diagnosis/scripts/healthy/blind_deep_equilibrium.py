"""The main loop runs under no_grad with the very weights that are trained and a backward hook changes the gradient,
because a deep equilibrium layer gets it from the implicit function theorem."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm


def fixed_point(f, z, max_iter=40, tol=1e-5):
    for _ in range(max_iter):
        new = f(z)
        if (new - z).norm() <= tol * (1 + new.norm()):
            return new
        z = new
    return z


class DEQ(nn.Module):
    def __init__(self, d_in, d):
        super().__init__()
        # spectral norm times 0.8 keeps the map a contraction, so that the fixed point exists
        self.w = spectral_norm(nn.Linear(d, d, bias=False))
        self.u = nn.Linear(d_in, d)
        self.d = d

    def forward(self, x):
        weight, inject = 0.8 * self.w.weight, self.u(x)

        def f(z, inj=inject):
            return torch.tanh(z @ weight.T + inj)

        with torch.no_grad():
            z = fixed_point(f, torch.zeros(len(x), self.d))
        if not torch.is_grad_enabled():
            return z
        z = f(z)  # one step with a graph: direct dependence on the weights
        z0 = z.detach().requires_grad_(True)
        f0 = f(z0, inject.detach())  # used for vector-Jacobian products only

        def solve(grad):
            def vjp(g):
                return torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad

            return fixed_point(vjp, grad)

        z.register_hook(solve)
        return z


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.deq = DEQ(5, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.deq(x))


def main():
    torch.manual_seed(0)
    x = torch.randn(300, 5)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    net.train()
    for step in range(50):
        loss = F.mse_loss(net(x[:240]), y[:240])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 or step == 49:
            print(f"step {step:2d} loss {loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        print(
            "held-out", round(F.mse_loss(net(x[240:]), y[240:]).item(), 4), "variance", round(y[240:].var().item(), 4)
        )


if __name__ == "__main__":
    main()
