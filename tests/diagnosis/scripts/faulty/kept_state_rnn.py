"""Train a recurrent network on a long sequence, a piece at a time, with an update by hand."""

import torch

torch.manual_seed(0)
w_in = (0.5 * torch.randn(3, 12)).requires_grad_()
w_rec = (0.2 * torch.randn(12, 12)).requires_grad_()
w_out = (0.3 * torch.randn(12, 1)).requires_grad_()
parameters = [w_in, w_rec, w_out]
series = torch.randn(60, 4, 3)
hidden = torch.zeros(4, 12)
for begin in range(0, 60, 5):
    loss = 0
    for x in series[begin : begin + 5]:
        hidden = torch.tanh(x @ w_in + hidden @ w_rec)  # finds: kept-state
        loss = loss + (hidden @ w_out - x.sum(1, keepdim=True)).square().mean()
    loss.backward(retain_graph=True)
    for p in parameters:
        p.data -= 0.01 * p.grad
        p.grad = None
