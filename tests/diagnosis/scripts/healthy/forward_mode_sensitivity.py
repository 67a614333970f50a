"""How sensitive a trained curve is to its input, by forward-mode derivatives."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jvp

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    x = torch.randn(16, 3)
    optimizer.zero_grad()
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()

scale = torch.randn(3)
point = torch.randn(3)
_, along = jvp(lambda x: (x * scale).tanh().sum(), (point,), (torch.ones(3),))
curvature = hessian(lambda x: net(x).sum())(point)
slope = jacfwd(lambda x: (x * scale).sin())(point)
with forward_ad.dual_level():
    dual = forward_ad.make_dual(point, torch.ones(3))
    tangent = forward_ad.unpack_dual((dual * 2).tanh()).tangent
print(along.item(), curvature.abs().sum().item(), slope.trace().item(), tangent.sum().item())
