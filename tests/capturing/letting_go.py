"""Record distributed steps and let go of model and process group: python letting_go.py FOLDER RANK ROUNDS PROGRAM...

Each round trains, ends the process group and drops the model. Gloo's threads run only when nothing else wants the one
processor that is left to them: they come to drop what they have sent when model and group are being destroyed. That is
when torch deadlocks, see capturing/collectives.py; on a free machine it takes thousands of rounds to meet it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import torchatlas as atlas

BATCH = torch.ones(4, 8)


def make_gloo_late() -> None:
    """Let gloo's threads run when this one sleeps, and only then."""
    for thread in os.listdir("/proc/self/task"):
        if "gloo" in Path("/proc/self/task", thread, "comm").read_text():
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def distributed() -> DistributedDataParallel:
    model = DistributedDataParallel(mlp())
    make_gloo_late()
    return model


def loss_of(model: Any) -> torch.Tensor:
    return model(BATCH).square().mean()


# -- programs: each leaves nothing of its model --------------------------------------------------------------------


def plain(rank: int) -> None:
    """Not recorded: hangs, too."""
    model = distributed()
    loss_of(model).backward()
    dist.destroy_process_group()


def ddp(rank: int) -> None:
    model = distributed()
    with atlas.recording(model) as rec:
        loss_of(model).backward()
    assert len(rec.graph) > 5
    dist.destroy_process_group()


def modules_only(rank: int) -> None:
    model = distributed()
    with atlas.recording(model, track_tensor_ops=False):
        loss_of(model).backward()
    dist.destroy_process_group()


def backward_only(rank: int) -> None:
    model = distributed()
    loss = loss_of(model)
    with atlas.recording():
        loss.backward()
    dist.destroy_process_group()


def born_and_gone_within(rank: int) -> None:
    with atlas.recording():
        model = distributed()
        loss_of(model).backward()
        dist.destroy_process_group()
        del model


def captured(rank: int) -> None:
    model = distributed()
    atlas.capture(model, BATCH, backward=True)
    dist.destroy_process_group()


def recorded_backward(rank: int) -> None:
    model = distributed()
    atlas.record_backward(loss_of(model))
    dist.destroy_process_group()


def debugged(rank: int) -> None:
    model = distributed()
    with atlas.debug_backward(loss_of(model)) as debugger:
        debugger.run()
    dist.destroy_process_group()


def fsdp(rank: int) -> None:
    model = fully_shard(mlp())
    make_gloo_late()
    with atlas.recording(model):
        loss_of(model).backward()
    dist.destroy_process_group()


def fsdp_of_old(rank: int) -> None:
    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
    make_gloo_late()
    with atlas.recording(model):
        loss_of(model).backward()
    dist.destroy_process_group()


def pipeline(rank: int) -> None:
    part = mlp()
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    make_gloo_late()
    with atlas.recording(part):
        schedule.step(BATCH) if rank == 0 else schedule.step(target=BATCH, losses=[])
    dist.destroy_process_group()


PROGRAMS: dict[str, Callable[[int], None]] = {
    program.__name__: program
    for program in (
        plain,
        ddp,
        modules_only,
        backward_only,
        born_and_gone_within,
        captured,
        recorded_backward,
        debugged,
        fsdp,
        fsdp_of_old,
        pipeline,
    )
}


def main() -> None:
    folder, rank, rounds, names = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in names:
        for number in range(rounds):
            # One that hangs holds the GIL; this needs none. The other rank waits in vain, and ends the same way.
            faulthandler.dump_traceback_later(150, exit=True)
            meeting = f"file://{folder}/{name}-{number}"
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
            PROGRAMS[name](rank)
            gc.collect()
        print(f"{name}: {rounds} rounds", flush=True)


if __name__ == "__main__":
    main()
