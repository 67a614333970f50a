"""The hidden state is detached between chunks, batches are not shuffled and the output layer shares its weight with
the embedding, because this is truncated BPTT of a tied language model."""

import math

import torch
from torch import nn


class TiedLM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)
        self.out.weight = self.embed.weight  # weight tying
        nn.init.normal_(self.embed.weight, std=dim**-0.5)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.out(h), state


def detach(state):
    return tuple(s.detach() for s in state)


def batchify(stream, rows):
    cols = len(stream) // rows
    return stream[: rows * cols].view(rows, cols)


torch.manual_seed(0)
text = "the quick brown fox jumps over the lazy dog and runs away. " * 40
chars = sorted(set(text))
stream = torch.tensor([chars.index(c) for c in text])
data = batchify(stream, rows=8)
chunk = 20

model = TiedLM(len(chars))
opt = torch.optim.Adam(model.parameters(), lr=3e-2)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(4):
    state, total, n = None, 0.0, 0
    for i in range(0, data.size(1) - 1, chunk):
        length = min(chunk, data.size(1) - 1 - i)
        inp, tgt = data[:, i : i + length], data[:, i + 1 : i + 1 + length]
        if state is not None:
            state = detach(state)
        logits, state = model(inp, state)
        loss = loss_fn(logits.flatten(0, 1), tgt.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        total, n = total + loss.item() * length, n + length
    print(f"epoch {epoch} ppl {math.exp(total / n):.2f}")

model.eval()
with torch.no_grad():
    ids, state, text_out = torch.tensor([[chars.index("t")]]), None, "t"
    for _ in range(40):
        logits, state = model(ids, state)
        ids = logits[:, -1].argmax(-1, keepdim=True)
        text_out += chars[ids.item()]
print("sample:", text_out)
