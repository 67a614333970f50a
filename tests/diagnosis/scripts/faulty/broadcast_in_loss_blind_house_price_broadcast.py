"""Predictions of shape (N, 1) are compared with targets of shape (N,), so the loss is broadcast over an N x N matrix
and the model learns only the mean."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(11)

# surface, rooms, age, distance -> price
N = 400
raw = torch.rand(N, 4) * torch.tensor([150.0, 6.0, 80.0, 30.0])
price = 2.0 * raw[:, 0] + 15 * raw[:, 1] - 0.8 * raw[:, 2] - 3.0 * raw[:, 3] + 5 * torch.randn(N)

features_std = (raw - raw.mean(0)) / raw.std(0)
price_std = (price - price.mean()) / price.std()

dataset = TensorDataset(features_std, price_std)
train_set, val_set = random_split(dataset, [320, 80])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
val_loader = DataLoader(val_set, batch_size=80)

model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def evaluate():
    model.eval()
    preds, ys = [], []
    with torch.no_grad():
        for f, t in val_loader:
            preds.append(model(f).flatten())
            ys.append(t)
    p, t = torch.cat(preds), torch.cat(ys)
    return 1 - ((p - t) ** 2).sum() / ((t - t.mean()) ** 2).sum()


for epoch in range(6):
    model.train()
    losses = []
    for features, target in train_loader:
        pred = model(features)
        loss = criterion(pred, target)  # finds: broadcast-in-loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch + 1}: train mse {sum(losses) / len(losses):.4f}  val R2 {evaluate():.3f}")
