"""The policy head ends in softmax and actor and critic gradients differ by orders of magnitude, because
Categorical(probs=...) takes probabilities and returns are unscaled in a critic with its own optimizer."""

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, s):
        return torch.softmax(self.body(s), dim=-1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, s):
        return self.body(s).squeeze(-1)


def reward(s, a):
    """Contextual bandit: the best arm is the largest of the first three features; rewards up to 100."""
    best = s[:, :3].argmax(1)
    return torch.where(a == best, 100.0, 0.0) + 10 * s[:, 3]


def main(steps=60, batch=256):
    torch.manual_seed(7)
    actor, critic = Actor(), Critic()
    opt_a = torch.optim.Adam(actor.parameters(), lr=2e-2)
    opt_c = torch.optim.Adam(critic.parameters(), lr=5e-2)
    for step in range(steps):
        s = torch.randn(batch, 4)
        dist = Categorical(probs=actor(s))
        a = dist.sample()
        r = reward(s, a)
        v = critic(s)
        adv = r - v.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)

        actor_loss = -(dist.log_prob(a) * adv).mean() - 0.01 * dist.entropy().mean()
        critic_loss = nn.functional.mse_loss(v, r)

        opt_a.zero_grad()
        actor_loss.backward()
        opt_a.step()

        opt_c.zero_grad()
        critic_loss.backward()
        opt_c.step()
        if step % 10 == 0 or step == steps - 1:
            print(
                f"step {step:2d} mean reward {r.mean():6.2f} actor {actor_loss.item():+.3f} critic {critic_loss.item():8.1f}"
            )


if __name__ == "__main__":
    main()
