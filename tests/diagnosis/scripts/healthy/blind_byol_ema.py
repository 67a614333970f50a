"""The loss compares a network with its own slow copy and without negatives, and the copy is never optimised, because
BYOL uses an EMA target with stop-gradient plus a predictor."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class BYOL(nn.Module):
    def __init__(self, encoder, dim, decay=0.97):
        super().__init__()
        self.online = encoder
        self.target = copy.deepcopy(encoder)
        for p in self.target.parameters():
            p.requires_grad = False
        self.predictor = nn.Sequential(
            nn.Linear(dim, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, dim)
        )
        self.decay = decay

    @torch.no_grad()
    def update_target(self):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.mul_(self.decay).add_(o, alpha=1 - self.decay)

    def one_side(self, a, b):
        p = F.normalize(self.predictor(self.online(a)), dim=-1)
        with torch.no_grad():
            z = F.normalize(self.target(b), dim=-1)
        return 2 - 2 * (p * z).sum(-1).mean()

    def forward(self, a, b):
        return self.one_side(a, b) + self.one_side(b, a)


def augment(x):
    return x + 0.4 * torch.randn_like(x)


def main():
    torch.manual_seed(1)
    data = torch.randn(5, 20)[torch.randint(0, 5, (512,))] * 2 + 0.3 * torch.randn(512, 20)
    encoder = nn.Sequential(nn.Linear(20, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
    model = BYOL(encoder, 16)
    opt = torch.optim.AdamW(
        list(model.online.parameters()) + list(model.predictor.parameters()), lr=3e-3, weight_decay=1e-4
    )
    model.train()
    for step in range(60):
        x = data[torch.randint(0, len(data), (128,))]
        loss = model(augment(x), augment(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.update_target()
        if step % 10 == 0 or step == 59:
            print(f"{step:3d} loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        z = F.normalize(model.online(data), dim=-1)
    print(f"embedding std {z.std(0).mean().item():.3f} (collapse would be 0)")


if __name__ == "__main__":
    main()
