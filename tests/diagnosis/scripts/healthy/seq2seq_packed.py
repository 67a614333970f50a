"""Translates digit strings to their reversal: packed encoder, attention, teacher forcing by chance, padding ignored."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)
random.seed(0)
PAD, BEGIN, SIZE = 0, 1, 8


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SIZE, 12, padding_idx=PAD)
        self.encoder = nn.GRU(12, 16, batch_first=True)
        self.decoder = nn.GRUCell(28, 16)
        self.out = nn.Linear(16, SIZE)

    def forward(self, source, lengths, target, forcing):
        packed = pack_padded_sequence(self.embedding(source), lengths, batch_first=True, enforce_sorted=False)
        memory, hidden = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, batch_first=True)
        mask = torch.arange(memory.shape[1])[None] >= lengths[:, None]
        hidden, token, scores = hidden[0], torch.full((len(source),), BEGIN), []
        for t in range(target.shape[1]):
            energy = torch.einsum("bth,bh->bt", memory, hidden).masked_fill(mask, float("-inf"))
            context = torch.einsum("bt,bth->bh", energy.softmax(1), memory)
            hidden = self.decoder(torch.cat([self.embedding(token), context], 1), hidden)
            step = self.out(hidden)
            scores.append(step)
            token = target[:, t] if random.random() < forcing else step.argmax(1)
        return torch.stack(scores, 1)


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
for step in range(15):
    sequences = [torch.randint(2, SIZE, (random.randint(2, 5),)) for _ in range(8)]
    lengths = torch.tensor([len(each) for each in sequences])
    source = pad_sequence(sequences, batch_first=True)
    target = pad_sequence([each.flip(0) for each in sequences], batch_first=True)
    scores = model(source, lengths, target, forcing=max(0.2, 1 - step / 10))
    loss = F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
model.eval()
with torch.no_grad():
    print(f"{loss.item():.5f}", model(source, lengths, target, 0.0).argmax(2)[0].tolist())
