"""Most parameters are frozen and the BatchNorm layers stay in eval mode while the model is in train mode, because
this is linear probing of an already trained backbone."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Probe(nn.Module):
    def __init__(self, backbone, width, classes):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, classes)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()  # running statistics belong to the pretraining data
        return self

    def forward(self, x):
        with torch.no_grad():
            z = self.backbone(x)
        return self.head(self.drop(z))


centers = 2.0 * torch.randn(6, 16)
y = torch.randint(0, 6, (600,))
x = centers[y] + torch.randn(600, 16)

# "pretraining" on the six fine classes
backbone = nn.Sequential(
    nn.Linear(16, 32, bias=False),
    nn.BatchNorm1d(32),
    nn.ReLU(),
    nn.Linear(32, 32, bias=False),
    nn.BatchNorm1d(32),
    nn.ReLU(),
)
pre_head = nn.Linear(32, 6)
opt = torch.optim.Adam([*backbone.parameters(), *pre_head.parameters()], lr=5e-3)
for xb, yb in DataLoader(TensorDataset(x[:400], y[:400]), batch_size=20, shuffle=True):
    opt.zero_grad()
    F.cross_entropy(pre_head(backbone(xb)), yb).backward()
    opt.step()

# transfer: three coarse classes, only the head is learned
coarse = y % 3
model = Probe(backbone, 32, 3)
opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-2)
loader = DataLoader(TensorDataset(x[:400], coarse[:400]), batch_size=50, shuffle=True)
x_val, y_val = x[400:], coarse[400:]


@torch.no_grad()
def evaluate():
    model.eval()
    loss = F.cross_entropy(model(x_val), y_val).item()
    model.train()
    return loss


best_loss, best_state = evaluate(), copy.deepcopy(model.state_dict())
print(f"before: val {best_loss:.3f}")
model.train()
for epoch in range(5):
    for xb, yb in loader:
        opt.zero_grad(set_to_none=True)
        F.cross_entropy(model(xb), yb).backward()
        opt.step()
    val = evaluate()
    if val < best_loss:
        best_loss, best_state = val, copy.deepcopy(model.state_dict())
    print(f"epoch {epoch}: val {val:.3f}")

model.load_state_dict(best_state)
print(f"best val loss {evaluate():.3f}")
