"""Watch a training loop that stays as it is: times and memory by module, the doctor, and TensorBoard if it is there."""

import importlib.util

import torch
from torch import nn

import torchatlas as atlas


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
loggers = []
if importlib.util.find_spec("tensorboard"):
    from torch.utils.tensorboard import SummaryWriter

    loggers = [SummaryWriter("logs")]

watch = atlas.watch(optimizer, model, every=20, doctor=10, loggers=loggers)

for _ in range(100):
    x, labels = torch.randn(64, 32), torch.randint(0, 4, (64,))
    for part in range(2):  # accumulated gradients: one step
        loss = nn.functional.cross_entropy(model(x[part::2]), labels[part::2]) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()

report = watch.end()
print(report)
slowest = report.modules[0]
print(f"\n{slowest.path} takes the most time. run.html has the graph of step {report.graph.metadata['step']}.")
if loggers:
    print("tensorboard --logdir logs shows the graph with times, and the figures of each recorded step.")
