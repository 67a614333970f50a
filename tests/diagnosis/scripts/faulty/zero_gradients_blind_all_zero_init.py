"""Every weight matrix is initialised to zero, so the hidden layers output zero and receive zero gradient and only
the last bias can learn."""

import torch


def init_weights(m):
    if type(m) == torch.nn.Linear:
        torch.nn.init.zeros_(m.weight)
        m.bias.data.fill_(0.0)


def get_data(n=400):
    """two interleaved moons"""
    t = torch.rand(n) * 3.14159
    cls = torch.arange(n) % 2
    x = torch.where(cls == 0, torch.cos(t), 1 - torch.cos(t))
    y = torch.where(cls == 0, torch.sin(t), 0.5 - torch.sin(t))
    pts = torch.stack([x, y], 1) + 0.08 * torch.randn(n, 2)
    return pts, cls


torch.manual_seed(3)
x_train, y_train = get_data()
x_val, y_val = get_data(200)

model = torch.nn.Sequential(
    torch.nn.Linear(2, 32),
    torch.nn.ReLU(),
    torch.nn.Linear(32, 32),
    torch.nn.ReLU(),
    torch.nn.Linear(32, 2),
)
model.apply(init_weights)

loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)

for it in range(60):
    model.train()
    perm = torch.randperm(len(x_train))[:128]
    y_pred = model(x_train[perm])  # finds: zero-gradients
    loss = loss_fn(y_pred, y_train[perm])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 10 == 9:
        model.eval()
        with torch.no_grad():
            val = model(x_val)
            acc = (val.argmax(dim=1) == y_val).float().mean()
        print("iter %d | train loss %.4f | val acc %.3f" % (it + 1, loss.item(), acc))
