"""Train a mixture of experts with the two best experts for each token."""

import torch
from torch import nn
from torch.nn import functional as F


class MoE(nn.Module):
    def __init__(self, dim=8, experts=4, k=2):
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.Linear(16, dim)) for _ in range(experts)
        )
        self.k = k

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        weight, chosen = probs.topk(self.k, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, slot = (chosen == i).nonzero(as_tuple=True)
            if len(row):
                out = out.index_add(0, row, weight[row, slot].unsqueeze(1) * expert(x[row]))
        load = F.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        return out, (load * probs.mean(0)).sum()


torch.manual_seed(0)
model = MoE()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    x = torch.randn(32, 8)
    out, balance = model(x)
    loss = F.mse_loss(out, x.flip(1)) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
