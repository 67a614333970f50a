"""Train a sentence classifier: an embedding bag and a softmax."""

import torch
from torch import nn

torch.manual_seed(0)
embed = nn.EmbeddingBag(50, 16)
classify = nn.Sequential(nn.Linear(16, 4), nn.Softmax(dim=-1))
criterion = nn.NLLLoss()
parameters = [*embed.parameters(), *classify.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
for _ in range(5):
    words = torch.randint(0, 50, (12, 7))
    label = words[:, 0] % 4
    probs = classify(embed(words))
    loss = criterion(probs, label)  # finds: loss-mismatch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))
