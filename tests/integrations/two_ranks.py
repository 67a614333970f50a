"""The program of a test: a training of two processes under Lightning's DDP strategy, which starts the second one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import support
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

support.load_torchvision()

import lightning.pytorch as pl  # noqa: E402

from torchatlas.integrations.lightning import AtlasCallback  # noqa: E402


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    ranks = sys.argv[1]
    callbacks = [] if ranks == "none" else [AtlasCallback(every=2, ranks=ranks)]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, callbacks=callbacks, **quiet
    )
    module = Module()
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=4))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        torch.save(module.state_dict(), f"{ranks}.pt")
