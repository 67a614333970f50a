"""Train a policy on returns, with gradients limited by value."""

import torch
from torch import nn


def learn(policy, optimizer, observations, actions, returns):
    logits = policy(observations)
    loss = -(torch.distributions.Categorical(logits=logits).log_prob(actions) * returns).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_value_(policy.parameters(), 0.1)  # finds: order
    return loss.item()


def main():
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(6):
        batch = torch.randn(10, 4), torch.randint(0, 2, (10,)), torch.randn(10)
        print(round(learn(policy, optimizer, *batch), 4))


main()
