"""One param group has learning rate 0 for the first epochs and the optimizer is later rebuilt and reloaded, because
the pretrained encoder is unfrozen late and training resumes from a checkpoint."""

import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build():
    encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    return nn.ModuleDict({"encoder": encoder, "head": nn.Linear(16, 1)})


def make_opt(model, enc_lr, head_lr):
    return torch.optim.Adam(
        [
            {"params": model["encoder"].parameters(), "lr": enc_lr, "name": "encoder"},
            {"params": model["head"].parameters(), "lr": head_lr, "name": "head"},
        ]
    )


def forward(model, x):
    return model["head"](model["encoder"](x)).squeeze(1)


def epoch(model, loader, opt):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(forward(model, x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


def pretrain(encoder, x):
    decoder = nn.Linear(16, 12)
    opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    for _ in range(20):
        opt.zero_grad()
        nn.functional.mse_loss(decoder(encoder(x)), x).backward()
        opt.step()


def main():
    torch.manual_seed(0)
    x = torch.randn(500, 12)
    y = ((x[:, 0] * 2 + x[:, 1] - x[:, 2]) > 0).float()
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    model = build()
    pretrain(model["encoder"], x)

    # phase 1: the encoder group waits at lr 0; Adam already gathers its moments
    opt = make_opt(model, enc_lr=0.0, head_lr=2e-2)
    for e in range(3):
        print(f"phase 1 epoch {e} loss {epoch(model, loader, opt):.4f}")
    opt.param_groups[0]["lr"] = 2e-3
    for e in range(2):
        print(f"phase 2 epoch {e} loss {epoch(model, loader, opt):.4f}")

    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, buffer)

    # phase 3: a "new process" builds everything again and goes on
    buffer.seek(0)
    ckpt = torch.load(buffer, weights_only=True)
    model = build()
    model.load_state_dict(ckpt["model"])
    opt = make_opt(model, enc_lr=2e-3, head_lr=2e-2)
    opt.load_state_dict(ckpt["opt"])  # moments and learning rates as they were
    for e in range(3):
        print(f"resumed epoch {e} loss {epoch(model, loader, opt):.4f}")


if __name__ == "__main__":
    main()
