"""The returns have shape (T,) and the critic's values (T, 1), so the advantage is broadcast to a (T, T) matrix."""

import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(0)


class Corridor:
    """walk right to reach +3, episode ends at +-3 or after 20 moves"""

    def reset(self):
        self.pos, self.t = int(torch.randint(-2, 3, (1,))), 0
        return self._obs()

    def _obs(self):
        return torch.tensor([self.pos / 3.0, self.t / 20.0])

    def step(self, a):
        self.pos += 1 if a == 1 else -1
        self.t += 1
        done = abs(self.pos) == 3 or self.t >= 20
        reward = 1.0 if self.pos == 3 else (-1.0 if self.pos == -3 else -0.02)
        return self._obs(), reward, done


actor = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
critic = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))
actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
env, gamma = Corridor(), 0.97

for update in range(30):
    states, log_probs, returns = [], [], []
    for _ in range(4):  # episodes per update
        s, done, rewards = env.reset(), False, []
        while not done:
            dist = Categorical(logits=actor(s))
            a = dist.sample()
            states.append(s)
            log_probs.append(dist.log_prob(a))
            s, r, done = env.step(a.item())
            rewards.append(r)
        R, episode_returns = 0.0, []
        for r in reversed(rewards):
            R = r + gamma * R
            episode_returns.insert(0, R)
        returns += episode_returns

    returns = torch.tensor(returns)
    states = torch.stack(states)
    values = critic(states)
    advantage = returns - values  # finds: broadcast-in-loss

    actor_loss = -(torch.stack(log_probs) * advantage.detach()).mean()
    critic_loss = advantage.pow(2).mean()
    actor_opt.zero_grad()
    critic_opt.zero_grad()
    actor_loss.backward()
    critic_loss.backward()
    actor_opt.step()
    critic_opt.step()
    if update % 10 == 0:
        print(f"update {update:3d} mean return {returns.mean():+.2f} critic {critic_loss.item():.3f}")

probe = torch.tensor([[p / 3.0, 0.2] for p in (-2, -1, 0, 1, 2)])
print("critic from left to right:", [round(v, 2) for v in critic(probe).flatten().tolist()])
