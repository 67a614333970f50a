"""A second network with parameters is in no optimizer and gets no gradients, because it is the DQN target network,
which is only moved by Polyak averaging."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
N_STATES, GAMMA, TAU = 6, 0.8, 0.3


class Chain:
    """Walk left (0) or right (1); reward 1 at the right end, which is terminal."""

    def step(self, s, a):
        s2 = max(0, s - 1) if a == 0 else s + 1
        done = s2 == N_STATES - 1
        return s2, float(done), done


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N_STATES, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, s):
        return self.net(nn.functional.one_hot(s, N_STATES).float())


def collect(n):
    env, rows, s = Chain(), [], 0
    for _ in range(n):
        a = int(torch.randint(0, 2, ()))
        s2, r, done = env.step(s, a)
        rows.append((s, a, r, s2, done))
        s = int(torch.randint(0, N_STATES - 1, ())) if done else s2
    s, a, r, s2, d = zip(*rows)
    return (torch.tensor(s), torch.tensor(a), torch.tensor(r), torch.tensor(s2), torch.tensor(d).float())


replay = collect(600)
q = QNet()
target = copy.deepcopy(q).requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=2e-2)

for step in range(60):
    idx = torch.randint(0, 600, (128,))
    s, a, r, s2, done = (t[idx] for t in replay)
    with torch.no_grad():  # double DQN
        a2 = q(s2).argmax(1, keepdim=True)
        y = r + GAMMA * (1 - done) * target(s2).gather(1, a2).squeeze(1)
    pred = q(s).gather(1, a.unsqueeze(1)).squeeze(1)
    loss = nn.functional.smooth_l1_loss(pred, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 10.0)
    opt.step()
    with torch.no_grad():
        for pt, p in zip(target.parameters(), q.parameters()):
            pt.lerp_(p, TAU)
    if step % 10 == 0 or step == 59:
        print(f"step {step} td loss {loss.item():.4f}")

with torch.no_grad():
    values = q(torch.arange(N_STATES - 1))
print("greedy policy (1 = right):", values.argmax(1).tolist())
print("max Q:", [round(v, 2) for v in values.max(1).values.tolist()])
