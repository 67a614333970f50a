"""Gradients are taken with create_graph and turned into new non-leaf weights that no optimizer owns, because MAML
differentiates through its inner update."""

import argparse

import torch
from torch import nn
from torch.func import functional_call


def sine_task(k):
    amp, phase = torch.rand(()) * 2 + 1, torch.rand(()) * 1.5
    x = torch.rand(2 * k, 1) * 6 - 3
    y = amp * torch.sin(x + phase)
    return (x[:k], y[:k]), (x[k:], y[k:])


def mse(net, params, x, y):
    return nn.functional.mse_loss(functional_call(net, params, (x,)), y)


def adapt(net, params, support, inner_lr, create_graph):
    grads = torch.autograd.grad(mse(net, params, *support), list(params.values()), create_graph=create_graph)
    return {n: p - inner_lr * g for (n, p), g in zip(params.items(), grads)}


def evaluate(net, tasks, args):
    """Needs gradients for the inner step, so it cannot be under no_grad."""
    before = after = 0.0
    params = dict(net.named_parameters())
    for support, query in tasks:
        fast = adapt(net, params, support, args.inner_lr, create_graph=False)
        with torch.no_grad():
            before += mse(net, params, *query).item() / len(tasks)
            after += mse(net, fast, *query).item() / len(tasks)
    return before, after


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--tasks", type=int, default=4)
    ap.add_argument("--shots", type=int, default=10)
    ap.add_argument("--inner-lr", type=float, default=0.05)
    args = ap.parse_args()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    meta = torch.optim.Adam(net.parameters(), lr=5e-3)
    held_out = [sine_task(args.shots) for _ in range(30)]
    print("initial  before/after adaptation: %.3f %.3f" % evaluate(net, held_out, args))
    for step in range(args.steps):
        meta.zero_grad()
        total = 0.0
        for _ in range(args.tasks):
            support, query = sine_task(args.shots)
            fast = adapt(net, dict(net.named_parameters()), support, args.inner_lr, create_graph=True)
            loss = mse(net, fast, *query) / args.tasks
            loss.backward()  # accumulates over the tasks
            total += loss.item()
        meta.step()
        if step % 15 == 0:
            print(f"meta step {step} query loss {total:.3f}")
    print("final    before/after adaptation: %.3f %.3f" % evaluate(net, held_out, args))


if __name__ == "__main__":
    main()
