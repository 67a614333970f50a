"""Train on episodes of many calls, and evaluate with gradients enabled, keeping numbers only."""

import torch
from torch import nn


def episode(policy, steps):
    """Log probabilities and rewards: one backward pass goes through all of them, or none of a bad episode."""
    found, rewards, state = [], [], torch.randn(1, 4)
    for _ in range(steps):
        distribution = torch.distributions.Categorical(logits=policy(state))
        action = distribution.sample()
        found.append(distribution.log_prob(action))
        state = torch.randn(1, 4) + action
        rewards.append(float(state.mean()))
    return torch.cat(found), rewards


def evaluate(policy, states):
    policy.eval()
    hits = [policy(state).argmax().item() for state in states]
    scores = []
    for state in states:
        scores.append(policy(state).softmax(-1).detach())
    policy.train()
    return sum(hits), torch.cat(scores).mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for number in range(6):
        log_probs, rewards = episode(policy, 12)
        if number % 3 == 2:
            continue
        loss = -(log_probs * sum(rewards)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(evaluate(policy, torch.randn(20, 1, 4)))
