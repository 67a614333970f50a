"""(N,1,D) minus (1,N,D) and (N,1)==(1,N) are broadcast into N by N matrices, and many triplets give zero loss,
because metric learning compares all pairs of the batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def pairwise_sq_dist(z):
    return (z[:, None, :] - z[None, :, :]).pow(2).sum(-1)


def batch_hard_triplet(z, y, margin=0.3):
    d = pairwise_sq_dist(z)
    same = y[:, None] == y[None, :]
    eye = torch.eye(len(y), dtype=torch.bool)
    hardest_pos = d.masked_fill(~same | eye, 0.0).amax(1)
    hardest_neg = d.masked_fill(same, float("inf")).amin(1)
    return F.relu(hardest_pos - hardest_neg + margin).mean()


def info_nce(a, b, y, log_scale):
    logits = log_scale.exp() * a @ b.T
    false_negative = (y[:, None] == y[None, :]) & ~torch.eye(len(y), dtype=torch.bool)
    logits = logits.masked_fill(false_negative, float("-inf"))
    labels = torch.arange(len(a))  # the positive of row i is column i
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels))


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return F.normalize(self.f(x), dim=-1)


def sample_batch(protos, per_class=8):
    y = torch.arange(len(protos)).repeat_interleave(per_class)
    base = protos[y] + 0.8 * torch.randn(len(y), protos.size(1))
    return base + 0.1 * torch.randn_like(base), base + 0.1 * torch.randn_like(base), y


@torch.no_grad()
def retrieval(model, protos):
    x, _, y = sample_batch(protos)
    d = pairwise_sq_dist(model(x)).fill_diagonal_(float("inf"))
    return (y[d.argmin(1)] == y).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(4)
    protos = torch.randn(6, 16)
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    print(f"recall@1 before {retrieval(net, protos):.2f}")
    for step in range(60):
        a, b, y = sample_batch(protos)
        za, zb = net(a), net(b)
        trip, nce = batch_hard_triplet(za, y), info_nce(za, zb, y, net.log_scale)
        loss = trip + 0.2 * nce
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 or step == 59:
            print(f"{step:2d} triplet {trip.item():.3f} nce {nce.item():.3f}")
    print(f"recall@1 after {retrieval(net, protos):.2f}")
