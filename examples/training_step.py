"""Record a training step, ask where the time goes, save the graph."""

import torch
from torch import nn

import torchatlas as atlas


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(16 * 16 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters())
images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))

with atlas.recording(model) as rec:
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()

graph = rec.graph
print(graph)
for phase, count in graph.scopes[""].operations_by_phase.items():
    print(f"  {phase:10} {count:4} operations")
print(f"  peak {graph.peak_bytes:,} bytes")

convolution = graph["features.0.convolution"]
print(f"\n{convolution.name}: {convolution.attributes}")
print(f"  written at {convolution.source}")
print(f"  its backward: {[node.operation for node in convolution.backward_nodes]}")

print("\nThe three slowest operations:")
for node in sorted(graph.where(kind="op"), key=lambda node: -node.time_ns)[:3]:
    print(f"  {node.time_ns / 1e3:8.1f} us  {node.name} ({node.phase})")
