"""Retain_graph is used and gradients are rewritten by hand between backward and step, because PCGrad needs one
gradient per task through a shared trunk."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.regress = nn.Linear(32, 1)
        self.classify = nn.Linear(32, 3)

    def forward(self, x):
        h = self.trunk(x)
        return self.regress(h), self.classify(h)


def flat(grads):
    return torch.cat([g.reshape(-1) for g in grads])


def project(a, b):
    """Remove from a its component against b if they conflict."""
    dot = a @ b
    return a - dot / b.pow(2).sum().clamp_min(1e-12) * b if dot < 0 else a


def pcgrad_backward(model, loss_r, loss_c):
    trunk = list(model.trunk.parameters())
    head_r, head_c = list(model.regress.parameters()), list(model.classify.parameters())
    gr = torch.autograd.grad(loss_r, trunk + head_r, retain_graph=True)  # the trunk graph is used again
    gc = torch.autograd.grad(loss_c, trunk + head_c)
    k = len(trunk)
    a, b = flat(gr[:k]), flat(gc[:k])
    merged = project(a, b) + project(b, a)
    offset = 0
    for p in trunk:
        p.grad = merged[offset : offset + p.numel()].view_as(p).clone()
        offset += p.numel()
    for p, g in zip(head_r + head_c, gr[k:] + gc[k:]):
        p.grad = g
    return bool(a @ b < 0)


def run():
    torch.manual_seed(5)
    x = torch.randn(512, 6)
    target_r = x[:, :1] * x[:, 1:2] + x[:, 2:3]  # (N,1) against an (N,1) output
    target_c = x[:, 3:].argmax(1)
    model = MultiTask()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    conflicts = 0
    for step in range(60):
        idx = torch.randint(0, 512, (128,))
        out_r, out_c = model(x[idx])
        loss_r, loss_c = F.mse_loss(out_r, target_r[idx]), F.cross_entropy(out_c, target_c[idx])
        conflicts += pcgrad_backward(model, loss_r, loss_c)
        opt.step()  # no zero_grad: every .grad is assigned anew above
        if step % 10 == 0 or step == 59:
            print(f"{step:2d} mse {loss_r.item():.3f} ce {loss_c.item():.3f}")
    print("steps with conflicting gradients:", conflicts)


run()
