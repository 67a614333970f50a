"""F.dropout is called without training=self.training, so dropout stays on in evaluation even after model.eval()."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SEED, N_TAGS, N_FEAT = 17, 6, 24
torch.manual_seed(SEED)


class TagModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc_in = nn.Linear(N_FEAT, 64)
        self.fc_mid = nn.Linear(64, 64)
        self.fc_out = nn.Linear(64, N_TAGS)

    def forward(self, x):
        h = F.relu(self.fc_in(x))
        h = F.relu(self.fc_mid(h))
        h = F.dropout(h, p=0.5)  # finds: dropout-in-eval
        return self.fc_out(h)


def train(model, loader, optimizer, pos_weight):
    model.train()
    for x, y in loader:
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=pos_weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def evaluate(model, loader):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for x, y in loader:
            pred = (torch.sigmoid(model(x)) > 0.5).float()
            hits += (pred == y).sum().item()
            total += y.numel()
    return hits / total


X = torch.randn(480, N_FEAT)
Y = ((X @ torch.randn(N_FEAT, N_TAGS)) > 2.0).float()
train_loader = DataLoader(TensorDataset(X[:400], Y[:400]), batch_size=50, shuffle=True)
test_loader = DataLoader(TensorDataset(X[400:], Y[400:]), batch_size=80)

model = TagModel()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
pos_weight = (1 - Y).sum(0) / Y.sum(0)
for epoch in range(7):
    loss = train(model, train_loader, optimizer, pos_weight)
    print(f"epoch {epoch}: loss {loss:.4f}  acc {evaluate(model, test_loader):.4f}")
print("same model, evaluated twice:", evaluate(model, test_loader), evaluate(model, test_loader))
