"""Train a policy by random changes of its parameters, and polish it with gradients by hand."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
x = torch.randn(20, 3)
y = x.sum(1, keepdim=True)


def reward(vector):
    vector_to_parameters(vector, policy.parameters())
    with torch.no_grad():
        return -(policy(x) - y).square().mean()


centre = parameters_to_vector(policy.parameters()).detach()
for _ in range(4):
    noise = torch.randn(8, len(centre))
    rewards = torch.stack([reward(centre + 0.1 * each) for each in noise])
    centre = centre + 0.02 * ((rewards - rewards.mean()) / rewards.std()) @ noise
vector_to_parameters(centre, policy.parameters())
for _ in range(4):
    policy.zero_grad()
    loss = (policy(x) - y).square().mean()
    loss.backward()
    gradient = parameters_to_vector([p.grad for p in policy.parameters()])
    vector_to_parameters(parameters_to_vector(policy.parameters()).detach() - 0.05 * gradient, policy.parameters())
print(round(loss.item(), 4))
