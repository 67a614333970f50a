"""The skip connection is added in place (h += ...) to the tensor that the custom Swish saved for its backward, so
autograd finds it modified."""

import torch
import torch.nn as nn


class SwishFunction(torch.autograd.Function):
    """memory efficient swish, recomputes the sigmoid in backward"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class SkipNet(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.proj = nn.Linear(n_in, n_hidden)
        self.mix = nn.Linear(n_hidden, n_hidden)
        self.out = nn.Linear(n_hidden, n_out)

    def forward(self, x):
        h = self.proj(x)
        a = self.mix(SwishFunction.apply(h))
        h += a  # finds: in-place
        return self.out(SwishFunction.apply(h))


def main():
    torch.manual_seed(6)
    x = torch.randn(200, 12)
    y = (x.pow(2).sum(1) > 12).long()
    model = SkipNet(12, 32, 2)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    for epoch in range(20):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
