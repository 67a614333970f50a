"""MAML on sine waves: inner steps by autograd.grad with create_graph through functional_call, learnt inner rates."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
rates = {name: nn.Parameter(torch.full((), 0.05)) for name, _ in model.named_parameters()}
outer = torch.optim.Adam([*model.parameters(), *rates.values()], 1e-3)


def wave():
    phase, height = torch.rand(()) * 3, torch.rand(()) * 2 + 0.5
    return lambda x: height * torch.sin(x + phase)


for _ in range(15):
    outer.zero_grad()
    for _ in range(3):
        task = wave()
        support, check = torch.rand(8, 1) * 6 - 3, torch.rand(8, 1) * 6 - 3
        fast = dict(model.named_parameters())
        for _ in range(2):
            inner = (functional_call(model, fast, support) - task(support)).square().mean()
            gradients = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {name: each - rates[name] * grad for (name, each), grad in zip(fast.items(), gradients, strict=True)}
        loss = (functional_call(model, fast, check) - task(check)).square().mean() / 3
        loss.backward()
    outer.step()
print(f"{loss.item():.5f} {sum(each.item() for each in rates.values()):.5f}")
