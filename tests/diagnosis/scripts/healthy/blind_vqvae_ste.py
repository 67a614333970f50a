"""An argmin and a detach lie on the path to the loss and the codebook is a buffer changed outside the optimizer,
because VQ-VAE uses a straight-through estimator with k-means and EMA codes."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, quantised):
        return quantised.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class EMACodebook(nn.Module):
    def __init__(self, k, d, decay=0.9):
        super().__init__()
        self.decay, self.k = decay, k
        self.register_buffer("codes", torch.zeros(k, d))
        self.register_buffer("count", torch.ones(k))
        self.register_buffer("total", torch.zeros(k, d))

    @torch.no_grad()
    def kmeans_init(self, z, iters=5):
        self.codes.copy_(z[torch.randperm(len(z))[: self.k]])
        for _ in range(iters):
            onehot = F.one_hot(torch.cdist(z, self.codes).argmin(1), self.k).float()
            n = onehot.sum(0).unsqueeze(1)
            self.codes.copy_(torch.where(n > 0, onehot.T @ z / n.clamp_min(1), self.codes))
        self.total.copy_(self.codes)

    def forward(self, z):
        with torch.no_grad():
            idx = torch.cdist(z, self.codes).argmin(1)
            q = self.codes[idx]
            if self.training:
                onehot = F.one_hot(idx, self.k).float()
                self.count.lerp_(onehot.sum(0), 1 - self.decay)
                self.total.lerp_(onehot.T @ z, 1 - self.decay)
                self.codes.copy_(self.total / self.count.clamp_min(1e-3).unsqueeze(1))
        return StraightThrough.apply(z, q), F.mse_loss(z, q), idx


torch.manual_seed(0)
protos = torch.randn(12, 20)
data = protos[torch.randint(0, 12, (768,))] + 0.1 * torch.randn(768, 20)
enc = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
dec = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))
vq = EMACodebook(24, 4)
with torch.no_grad():
    vq.kmeans_init(enc(data))
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-2)
for step in range(60):
    x = data[torch.randint(0, len(data), (256,))]
    q, commit, idx = vq(enc(x))
    recon = F.mse_loss(dec(q), x)
    opt.zero_grad()
    (recon + 0.25 * commit).backward()
    opt.step()
    if step % 10 == 0 or step == 59:
        print(f"{step:2d} recon {recon.item():.4f} commit {commit.item():.4f} codes used {idx.unique().numel()}")
