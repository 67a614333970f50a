"""Lora_B starts at zero so lora_A has exactly zero gradient at the first step, and the base weights never change,
both of which are the definition of LoRA."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r, alpha=4):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)


def inject(module, r=2):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child, r))
        else:
            inject(child, r)
    return module


def fit(model, x, y, steps, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for step in range(steps):
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        if step % 15 == 0 or step == steps - 1:
            print(f"[{tag}] step {step} loss {loss.item():.4f} trainable {sum(p.numel() for p in params)}")


torch.manual_seed(0)
x = torch.randn(256, 10)
W = torch.randn(10, 3) / 3
pretrain_target = torch.tanh(x @ W)
shift = torch.randn(10, 1) @ torch.randn(1, 3) / 4  # a rank-one change of task
new_target = torch.tanh(x @ (W + shift))

model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 3))
fit(model, x, pretrain_target, 40, 1e-2, "pretrain")

with torch.no_grad():
    before = model(x)
inject(model)
with torch.no_grad():
    assert torch.equal(model(x), before), "the adapted model must start as the base model"
base_copy = model[0].base.weight.clone()
fit(model, x, new_target, 46, 1e-2, "lora")
assert torch.equal(base_copy, model[0].base.weight)
