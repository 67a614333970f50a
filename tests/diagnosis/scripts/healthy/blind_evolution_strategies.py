"""There is a model and a falling loss but no backward and no optimizer at all, because evolution strategies estimate
the gradient from random perturbations under no_grad."""

import torch
import torch.nn as nn
from torch.func import functional_call, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class StepNet(nn.Module):
    """Hard threshold units: ordinary backpropagation would give zero gradients here."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 16)
        self.b = nn.Linear(16, 1)

    def forward(self, x):
        return self.b((self.a(x) > 0).float())


def unflatten(net, vectors):
    out, offset = {}, 0
    for name, p in net.named_parameters():
        n = p.numel()
        out[name] = vectors[:, offset : offset + n].view(-1, *p.shape)
        offset += n
    return out


@torch.no_grad()
def main(generations=60, pairs=128, sigma=0.1, lr=0.3, momentum=0.8):
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    y = torch.tanh(x[:, :1] + 0.5 * x[:, 1:2])
    net = StepNet()

    def fitness(params):
        return -(functional_call(net, params, (x,)) - y).pow(2).mean()

    theta = parameters_to_vector(net.parameters())
    velocity = torch.zeros_like(theta)
    for gen in range(generations):
        eps = torch.randn(pairs, theta.numel())
        population = torch.cat([theta + sigma * eps, theta - sigma * eps])  # antithetic pairs
        scores = vmap(fitness)(unflatten(net, population))
        ranks = scores.argsort().argsort().float() / (2 * pairs - 1) - 0.5  # rank shaping
        advantage = ranks[:pairs] - ranks[pairs:]
        estimate = advantage @ eps / (2 * pairs)
        velocity = momentum * velocity + (1 - momentum) * estimate
        theta = theta + lr * velocity
        if gen % 10 == 0 or gen == generations - 1:
            print(f"gen {gen:2d} mean loss {-scores.mean().item():.4f} best {-scores.max().item():.4f}")
    vector_to_parameters(theta, net.parameters())
    print(f"final loss {nn.functional.mse_loss(net(x), y).item():.4f}, variance of y {y.var().item():.4f}")


if __name__ == "__main__":
    main()
