"""There are two optimizers, three backward calls into the same critic gradients, a double-backward penalty and
negative losses, all of which is how WGAN-GP is trained."""

import torch
from torch import autograd, nn

torch.manual_seed(0)
Z, BATCH = 4, 128


def real_batch():
    return torch.randn(BATCH, 2) * 0.3 + torch.tensor([2.0, -1.0])


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    (g,) = autograd.grad(critic(mix).sum(), mix, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


G = nn.Sequential(nn.Linear(Z, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=5e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-2, betas=(0.0, 0.9))
STEPS = 60
scheds = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=STEPS) for o in (opt_g, opt_d)]


@torch.no_grad()
def distance_of_means():
    return (G(torch.randn(1000, Z)).mean(0) - torch.tensor([2.0, -1.0])).norm().item()


print(f"start: distance of means {distance_of_means():.3f}")
for it in range(STEPS):
    real, fake = real_batch(), G(torch.randn(BATCH, Z))

    D.requires_grad_(True)
    opt_d.zero_grad()
    d_real = D(real).mean()
    (-d_real).backward()
    d_fake = D(fake.detach()).mean()
    d_fake.backward()
    (10 * gradient_penalty(D, real, fake.detach())).backward()
    opt_d.step()

    D.requires_grad_(False)  # the generator step needs no critic weight gradients
    opt_g.zero_grad()
    loss_g = -D(fake).mean()
    loss_g.backward()
    opt_g.step()
    for s in scheds:
        s.step()
    if it % 10 == 9:
        print(
            f"it {it}: critic gap {(d_real - d_fake).item():.3f}  G {loss_g.item():.3f}  dist {distance_of_means():.3f}"
        )
