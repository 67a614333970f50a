"""Fits a sum of exponentials by LBFGS with strong Wolfe, then refines by Adam; parameters are plain tensors."""

import torch

torch.manual_seed(0)
t = torch.linspace(0, 4, 50, dtype=torch.float64)
wanted = 2.0 * torch.exp(-1.3 * t) + 0.5 * torch.exp(-0.2 * t) + 0.01 * torch.randn(50, dtype=torch.float64)
size = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
log_rate = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
evaluations = 0


def residual():
    return ((size[:, None] * torch.exp(-log_rate.exp()[:, None] * t)).sum(0) - wanted).square().mean()


optimizer = torch.optim.LBFGS([size, log_rate], max_iter=20, line_search_fn="strong_wolfe")


def closure():
    global evaluations
    evaluations += 1
    optimizer.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for _ in range(5):
    loss = optimizer.step(closure)
adam = torch.optim.Adam([size, log_rate], 1e-4)
for _ in range(20):
    adam.zero_grad()
    residual().backward()
    adam.step()
print(evaluations, [round(each, 5) for each in [*size.tolist(), *log_rate.exp().tolist()]])
