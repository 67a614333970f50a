"""Where does a gradient vanish? A deep network's backward pass, recorded and then stepped through."""

import torch
from torch import nn

import torchatlas as atlas

torch.manual_seed(0)
layers = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
model = nn.Sequential(*layers, nn.Linear(32, 1))
x = torch.randn(64, 32)


def loss() -> torch.Tensor:
    return model(x).square().mean()


rec = atlas.record_backward(loss(), model=model, statistics=True)
for each in rec.statistics:
    if each.source.startswith("SigmoidBackward0"):
        print(f"{each.source:20} norm of the gradient {each.norm:.2e}")

with atlas.recording(model) as forward:
    value = loss()
with atlas.debug_backward(value, model=model, forward=forward.graph) as dbg:
    stop = dbg.run_until(lambda stop: stop.operation == "SigmoidBackward0" and stop.norm() < 1e-6)
    print(f"\nfirst below 1e-6: {stop}")
    print(f"ready: {[node.name for node in dbg.ready]}")
