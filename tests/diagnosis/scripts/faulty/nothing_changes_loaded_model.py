"""Go on training a model that was saved as a whole."""

import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
saved = io.BytesIO()
torch.save(model, saved)
saved.seek(0)

model = torch.load(saved, weights_only=False)
for _ in range(4):
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()  # finds: nothing-changes
    print(round(loss.item(), 4))
