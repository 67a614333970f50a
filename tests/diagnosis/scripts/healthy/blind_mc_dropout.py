"""Dropout is active during evaluation on purpose, because Monte Carlo dropout averages many stochastic passes to get
an uncertainty."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MCNet(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.a = nn.Linear(1, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 1)
        self.p = p

    def forward(self, x):
        # training=True always: the Bayesian reading of dropout samples at test time too
        x = F.dropout(torch.tanh(self.a(x)), self.p, training=True)
        x = F.dropout(F.relu(self.b(x)), self.p, training=True)
        return self.c(x)


@torch.no_grad()
def predict(model, x, passes=50):
    draws = torch.stack([model(x) for _ in range(passes)])
    return draws.mean(0), draws.std(0)


def main():
    torch.manual_seed(0)
    x = torch.rand(400, 1) * 4 - 2
    y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
    model = MCNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    model.train()
    for step in range(60):
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        if step % 20 == 19:
            model.eval()
            xv = torch.linspace(-2, 2, 50).unsqueeze(1)
            mean, _ = predict(model, xv)
            print(f"step {step} train {loss.item():.4f} val {F.mse_loss(mean, torch.sin(2 * xv)).item():.4f}")
            model.train()

    model.eval()
    _, near = predict(model, torch.linspace(-1, 1, 20).unsqueeze(1))
    _, far = predict(model, torch.linspace(5, 7, 20).unsqueeze(1))
    print(f"uncertainty inside the data {near.mean().item():.3f}, outside {far.mean().item():.3f}")


main()
