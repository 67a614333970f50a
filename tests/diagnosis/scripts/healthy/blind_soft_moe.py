"""Some parallel experts get tiny gradients because the gate is a sharp low-temperature softmax, and the (N,E,1)
against (N,E,D) product broadcasts on purpose."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class SoftMoE(nn.Module):
    def __init__(self, d_in, d_out, experts=4, hidden=24, temperature=0.3):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, d_out)) for _ in range(experts)
        )
        self.gate = nn.Linear(d_in, experts)
        self.temperature = temperature

    def forward(self, x):
        w = torch.softmax(self.gate(x) / self.temperature, dim=-1)  # N, E
        y = torch.stack([e(x) for e in self.experts], dim=1)  # N, E, D
        return (w.unsqueeze(-1) * y).sum(1), w


def balance(w):
    """Switch-style soft load penalty; 1 when the use of the experts is uniform."""
    return w.size(1) * w.mean(0).pow(2).sum()


def piecewise(n):
    x = torch.rand(n, 2) * 4 - 2
    quadrant = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    slope = torch.tensor([[1.0, 2.0], [-2.0, 1.0], [0.5, -2.0], [-1.0, -1.0]])[quadrant]
    return x, (slope * x).sum(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--lr", type=float, default=2e-2)
    ap.add_argument("--aux", type=float, default=0.01)
    args = ap.parse_args()

    torch.manual_seed(0)
    model = SoftMoE(2, 1)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        x, y = piecewise(256)
        out, w = model(x)
        mse = F.mse_loss(out, y)
        loss = mse + args.aux * balance(w)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"{step:3d} mse {mse.item():.4f}")

    model.eval()
    with torch.no_grad():
        x, y = piecewise(1000)
        out, w = model(x)
        usage = [round(u, 2) for u in w.mean(0).tolist()]
        print(f"test mse {F.mse_loss(out, y).item():.4f}", "expert usage", usage)


if __name__ == "__main__":
    main()
