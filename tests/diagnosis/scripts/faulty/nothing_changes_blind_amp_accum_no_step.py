"""Scaler.step(optimizer) is never called, so the gradients are computed and thrown away and no weight ever changes."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Trainer:
    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.opt = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.scaler = torch.amp.GradScaler("cpu", enabled=args.fp16)

    def run(self, batches):
        self.model.train()
        self.opt.zero_grad(set_to_none=True)
        history = []
        for i, (x, y) in enumerate(batches):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                logits = self.model(x)
                loss = F.cross_entropy(logits, y)
            history.append(loss.item())
            self.scaler.scale(loss / self.args.accum).backward()  # finds: nothing-changes

            if (i + 1) % self.args.accum == 0:
                self.scaler.unscale_(self.opt)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
                self.scaler.update()
                self.opt.zero_grad(set_to_none=True)
        return sum(history) / len(history)


def make_batches(n, bs):
    w = torch.randn(20, 4)
    out = []
    for _ in range(n):
        x = torch.randn(bs, 20)
        out.append((x, (x @ w).argmax(-1)))
    return out


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--fp16", action="store_true")
    p.add_argument("--bf16", action="store_true")
    args = p.parse_args()
    torch.manual_seed(42)
    data = make_batches(12, 32)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    trainer = Trainer(net, args)
    for ep in range(args.epochs):
        print("epoch", ep, "mean loss %.4f" % trainer.run(data))
