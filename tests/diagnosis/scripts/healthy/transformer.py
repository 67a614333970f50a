"""Train and test a transformer encoder with dropout."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, vocab=20, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.place = nn.Parameter(0.02 * torch.randn(1, 8, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids, padding):
        x = self.embed(ids) + self.place[:, : ids.shape[1]]
        return self.out(self.encoder(x, src_key_padding_mask=padding)[:, 0])


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 20, (12, 8))
padding = torch.arange(8) >= torch.randint(3, 9, (12, 1))
labels = ids[:, 0] % 2
for _ in range(3):
    model.train()
    loss = nn.functional.cross_entropy(model(ids, padding), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.inference_mode():
    print((model(ids, padding).argmax(1) == labels).float().mean().item())
