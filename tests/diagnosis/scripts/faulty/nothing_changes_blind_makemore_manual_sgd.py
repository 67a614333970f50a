"""The manual update only rebinds the loop variable p to a new tensor, so the parameters in the list are never
modified."""

# character level MLP language model, following the makemore lectures
import torch
import torch.nn.functional as F

words = [
    "emma",
    "olivia",
    "ava",
    "isabella",
    "sophia",
    "charlotte",
    "mia",
    "amelia",
    "harper",
    "evelyn",
    "abigail",
    "emily",
    "ella",
]
chars = ["."] + sorted(set("".join(words)))
stoi = {c: i for i, c in enumerate(chars)}
V = len(chars)
block_size = 3

X, Y = [], []
for w in words:
    context = [0] * block_size
    for ch in w + ".":
        ix = stoi[ch]
        X.append(context)
        Y.append(ix)
        context = context[1:] + [ix]
X, Y = torch.tensor(X), torch.tensor(Y)

g = torch.Generator().manual_seed(2147483647)
C = torch.randn((V, 8), generator=g)
W1 = torch.randn((block_size * 8, 64), generator=g) * 0.2
b1 = torch.randn(64, generator=g) * 0.01
W2 = torch.randn((64, V), generator=g) * 0.05
b2 = torch.zeros(V)
parameters = [C, W1, b1, W2, b2]
for p in parameters:
    p.requires_grad = True
print(sum(p.nelement() for p in parameters), "parameters")

for i in range(50):
    # minibatch
    ix = torch.randint(0, X.shape[0], (32,), generator=g)
    # forward pass
    emb = C[X[ix]].view(-1, block_size * 8)
    h = torch.tanh(emb @ W1 + b1)
    logits = h @ W2 + b2
    loss = F.cross_entropy(logits, Y[ix])
    # backward pass
    for p in parameters:
        p.grad = None
    loss.backward()
    # update
    lr = 0.3 if i < 40 else 0.05
    for p in parameters:
        p = p.data - lr * p.grad  # finds: nothing-changes
    if i % 10 == 0:
        print(f"{i:4d}: {loss.item():.4f}")

with torch.no_grad():
    full = torch.tanh(C[X].view(-1, block_size * 8) @ W1 + b1) @ W2 + b2
    print("final loss", F.cross_entropy(full, Y).item())
