"""What a callback costs that records nothing: a training with it beside the same training without it.

    python benchmarks/bench_callbacks.py [--rounds 30] [--only plain lightning transformers]

Both trainings run in this thread, a block of steps of one after a block of the other, in turn: a slow moment of the
machine falls on both. Compared is the time that the processor spent, from the first step to the last; beginning and
ending the watch are not in it. "none" compares two trainings without a callback, which is what the method makes of two
equal ones; "empty" is the trainer's own base class: what it costs to have one more callback, whatever that does.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchatlas as atlas

STEPS = 150
Block = Callable[[str, int], float]  # which callback: ours, empty or none; how many steps -> seconds


def plain_step() -> tuple[Any, Any, Callable[[], None]]:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()

    return model, optimizer, step


def plain() -> Block:
    """The step of a plain loop alone; the watch begins before and ends after the clock."""

    def block(callback: str, steps: int) -> float:
        model, optimizer, step = plain_step()
        step()
        watch = None
        if callback == "ours":
            path = Path(tempfile.mkdtemp()) / "run.atlas"
            watch = atlas.watch(optimizer, model, steps={10**9}, path=path, page=False)
        began = time.thread_time()
        for _ in range(steps):
            step()
        spent = time.thread_time() - began
        if watch is not None:
            watch.end()
        return spent

    return block


def lightning() -> Block:
    import lightning.pytorch as pl

    from torchatlas.integrations.lightning import AtlasCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _, _ = plain_step()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Clock(pl.Callback):  # the first and the last to be asked
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                self.began = time.thread_time()

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self.spent = time.thread_time() - self.began

    def block(callback: str, steps: int) -> float:
        data = TensorDataset(torch.randn(32 * steps, 64), torch.randint(0, 10, (32 * steps,)))
        clock = Clock()
        path = Path(tempfile.mkdtemp()) / "run.atlas"
        ours = {"ours": [AtlasCallback(steps={10**9}, path=path, page=False)], "empty": [pl.Callback()]}.get(
            callback, []
        )
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=1, callbacks=[clock, *ours], enable_checkpointing=False, **quiet
        )
        trainer.fit(Module(), DataLoader(data, batch_size=32))
        return clock.spent

    return block


def transformers() -> Block:
    import transformers as hf

    from torchatlas.integrations.transformers import AtlasCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, _, _ = plain_step()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.cross_entropy(self.model(x), labels)}

    class Clock(hf.TrainerCallback):
        began = spent = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.began = self.began or time.thread_time()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.spent = time.thread_time() - self.began

    def block(callback: str, steps: int) -> float:
        data = [{"x": torch.randn(64), "labels": torch.tensor(3)} for _ in range(8 * steps)]
        clock, folder = Clock(), tempfile.mkdtemp()
        ours = {"ours": [AtlasCallback(steps={10**9}, page=False)], "empty": [hf.TrainerCallback()]}.get(callback, [])
        arguments = hf.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=8, num_train_epochs=1, report_to="none", use_cpu=True,
            disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        trainer = hf.Trainer(Model(), arguments, train_dataset=data, callbacks=[clock, *ours])
        trainer.remove_callback(hf.PrinterCallback)
        trainer.train()
        return clock.spent

    return block


LOOPS: dict[str, Callable[[], Block]] = {"plain": plain, "lightning": lightning, "transformers": transformers}


def measure(name: str, rounds: int) -> None:
    block = LOOPS[name]()
    block("ours", 10), block("none", 10)
    ratios: dict[str, list[float]] = {"ours": [], "empty": [], "none": []}
    alone: list[float] = []
    for at in range(rounds):
        order = ["first", *ratios]
        spent = {key: block(key, STEPS) for key in (order if at % 2 else reversed(order))}
        for key, found in ratios.items():
            found.append(spent[key] / spent["first"])
        alone.append(spent["first"])

    def shown(found: list[float]) -> str:
        low, _, high = statistics.quantiles(found, n=4)
        return f"{statistics.median(found):.3f} ({low:.3f} to {high:.3f})"

    step_us = 1e6 * statistics.median(alone) / STEPS
    print(f"| {name} | {step_us:.0f} µs | {' | '.join(map(shown, ratios.values()))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=list(LOOPS), choices=list(LOOPS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import support

    support.load_torchvision()  # the trainers import it
    print("| loop | step | ours, recording nothing (quartiles) | the trainer's empty callback | none |")
    print("|---|---|---|---|---|")
    for name in options.only:
        measure(name, options.rounds)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
