"""Train with stochastic weight averaging and report the error of the averaged model."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

torch.manual_seed(0)
batches = [(torch.randn(16, 5), torch.randn(16, 1)) for _ in range(4)]
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(3):
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    averaged.update_parameters(model)
update_bn([x for x, _ in batches], averaged)
with torch.inference_mode():
    print(nn.functional.mse_loss(averaged(torch.randn(16, 5)), torch.randn(16, 1)).item())  # finds: train-mode
