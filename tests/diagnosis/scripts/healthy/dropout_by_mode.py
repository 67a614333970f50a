"""Train networks whose functional dropout follows the mode, or is random on purpose."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.p = nn.Linear(6, 16), nn.Linear(16, 6), 0.3
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = F.dropout(F.relu(self.a(self.drop(x))), self.p, training=self.training)
        x = F.dropout(x, self.p, self.training)
        q = self.b(x).unsqueeze(1)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=self.p if self.training else 0.0)
        return y.squeeze(1)


class Prenet(nn.Module):
    """Random at all times, as in Tacotron 2."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return F.dropout(F.relu(self.layer(x)), p=0.5, training=True)


torch.manual_seed(0)
model = nn.Sequential(Prenet(), Net())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(4):
    model.train()
    x = torch.randn(10, 6)
    loss = F.mse_loss(model(F.dropout(x, 0.2)), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        noisy = F.dropout(x, 0.2)
        print(round(F.mse_loss(model(noisy), x).item(), 4))
