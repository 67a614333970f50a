"""A training step too large for its memory: which modules to checkpoint, at what price, and that it is right."""

import torch
from torch import nn

import torchatlas as atlas

layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True, norm_first=True)
model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
tokens = torch.randn(4, 128, 128)

plain = atlas.capture(model, tokens, optimizer=torch.optim.AdamW, fake=True)  # nothing is allocated for the run
assert plain.peak_bytes is not None
print(f"The step takes {plain.peak_bytes / 2**20:.0f} MiB.\n")

for share in (0.9, 0.75, 0.65):
    plan = atlas.checkpoint_plan(model, tokens, limit=share * plain.peak_bytes, optimizer=torch.optim.AdamW)
    print(f"{share:.0%} of that: {len(plan.paths)} modules, {plan.choice.work / plan.choice.step_work:.1%} more work")

print(f"\n{plan}\n\n{plan.verify(model, tokens)}")

with plan.apply(model):  # or keep what apply returns, and undo() it later
    model(tokens).sum().backward()
