"""What a capture puts back that the laws over the zoo do not look at."""

from __future__ import annotations

import torch
from torch import nn

import torchatlas as atlas


def test_a_generator_of_the_users_own_is_put_back() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    atlas.capture(lambda x: x + torch.rand(3, generator=generator), torch.ones(3))
    assert torch.equal(generator.get_state(), before)


def test_a_live_graph_of_the_users_can_still_run_backward() -> None:
    """An optimizer step inside the capture writes the weights; their version counters must not tell."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    loss = model(torch.ones(2, 3)).sum()
    atlas.capture(model, torch.ones(2, 3), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    loss.backward()
    assert model[0].weight.grad is not None


def test_gradients_that_were_there_are_the_same_objects_afterwards() -> None:
    model = nn.Linear(3, 1)
    model(torch.ones(2, 3)).sum().backward()
    gradient, content = model.weight.grad, model.weight.grad.clone()
    atlas.capture(model, torch.ones(2, 3), backward=True)
    assert model.weight.grad is gradient
    assert torch.equal(gradient, content)
