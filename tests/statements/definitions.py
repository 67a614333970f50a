"""What the statements of random programs may name: modules, functions of autograd."""

DEFINITIONS = """\
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor + 0 * x, None

class Double_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Tied(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleDict({"first": nn.Linear(width, width), "last": nn.Linear(width, width)})
        self.layers["last"].weight = self.layers["first"].weight
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = self.layers["first"](x).relu_()
        x = torch.cat([x[:, :2], x[:, 2:].mul(2)], 1)
        return self.layers["last"](x) * self.scale

class Loop(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.table = nn.Embedding(5, width, padding_idx=0)

    def forward(self, x):
        out, state = torch.empty(len(x), 3, x.shape[1]), None
        for step in range(3):
            state = self.cell(x + self.table(torch.tensor(step)), state)
            out[:, step] = state[0]
        return out.sum(1)

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.relu = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, bound=0.5):
        self.seen += 1
        for layer in self.layers:
            x = x + self.relu(layer(x))
            if x.mean() > bound:
                x = x[..., :1] * 0.5 + x
        return x
"""
