"""Record a whole training run, find the steps that stand out, and look at one of them."""

import math

import torch
from torch import nn

import torchatlas as atlas


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.extra = nn.Linear(64, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, deep: bool) -> torch.Tensor:
        x = self.features(x)
        return self.head(self.extra(x) if deep else x)


model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
data, labels = torch.randn(64, 32), torch.randint(0, 4, (64,))

with atlas.recording(model, every=1, gradients=True, path="run.atlas") as recording:
    for step in range(60):
        size = 24 if step % 20 == 19 else 64  # the last batch of an epoch is smaller
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[:size], deep=step == 33), labels[:size])
        if step == 50:
            loss = loss * math.nan  # what a flight recorder is for
        loss.backward()
        optimizer.step()

run = atlas.load("run.atlas")
print(run)

print("\nWhere the structure changed:")
for step, words in run.changes.items():
    print(f"  step {step:2}: {words}")

first = next(number for number, loss in zip(run.steps.numbers, run.steps["loss"], strict=True) if loss != loss)
print(f"\nThe first NaN is in step {first}, which was kept in full: {run.graph(first)}")

run.plot("modules").save("time_by_module.png")
run.save("run.html", step=first)
print("time_by_module.png and run.html are written.")
