"""Where does bfloat16 lose precision? The same model and input in two precisions, node by node."""

import torch
from torch import nn

import torchatlas as atlas

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
x = torch.randn(2, 16, 64)

traced = atlas.trace(model, x)
comparison = atlas.compare_runs(traced, torch.bfloat16, x)
print(comparison)

with torch.no_grad():
    traced.save("encoder.atlas")  # program, graph and weights; runs without this file
    assert torch.equal(atlas.load("encoder.atlas")(x), traced(x))
