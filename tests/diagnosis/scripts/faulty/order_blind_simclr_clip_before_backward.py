"""The gradients are clipped before loss.backward(), just after they were zeroed, so the real gradients are never
clipped."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, d=20, proj=8):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 32))
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(32, proj))

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=-1)


class InfoNCE(nn.Module):
    def __init__(self, init_temp=0.07):
        super().__init__()
        # learnable temperature as in CLIP
        self.logit_scale = nn.Parameter(torch.tensor(1.0 / init_temp).log())

    def forward(self, z1, z2):
        logits = z1 @ z2.t() * self.logit_scale.exp()
        labels = torch.arange(z1.size(0), device=z1.device)
        return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))


def augment(x):
    return x * (torch.rand_like(x) > 0.1) + 0.1 * torch.randn_like(x)


def train_step(encoder, head, optimizer, params, x):
    z1, z2 = encoder(augment(x)), encoder(augment(x))
    loss = head(z1, z2)
    optimizer.zero_grad(set_to_none=False)
    torch.nn.utils.clip_grad_norm_(params, max_norm=0.5)  # finds: order
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(4)
    data = 3 * torch.randn(512, 20)
    encoder, head = Encoder(), InfoNCE()
    params = list(encoder.parameters()) + list(head.parameters())
    optimizer = torch.optim.SGD(params, lr=0.2, momentum=0.9)
    for step in range(40):
        batch = data[torch.randint(0, 512, (64,))]
        loss = train_step(encoder, head, optimizer, params, batch)
        if step % 5 == 0:
            print(f"step {step:03d}  nce {loss:.4f}  scale {head.logit_scale.exp().item():.2f}")
