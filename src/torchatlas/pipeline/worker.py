"""One rank of a pipeline: `python -m torchatlas.pipeline.worker FOLDER`, with RANK in its environment."""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from torchatlas.pipeline.launch import end_with_parent

if __name__ == "__main__":
    end_with_parent(Path(sys.argv[1]))  # before torch is imported, which takes seconds

import torch
import torch.distributed as dist

from torchatlas.inputs import default_loss
from torchatlas.pipeline.folder import BATCH, LOSS, PROGRAM, Done, Job, error_file, read_job, tensors_file, write_done
from torchatlas.pipeline.split_model import split
from torchatlas.torch_private import pytree


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    try:
        job = read_job(folder)
        torch.set_num_threads(job.threads)
        # A file, not a port: nothing to collide with. The backend itself listens on the loopback device only.
        dist.init_process_group(job.backend, init_method=(folder / "store").as_uri(), rank=rank, world_size=job.ranks)
        _work(folder, job, rank)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        traceback.print_exc()
        error_file(folder, rank).write_text(_described(error))
        os._exit(1)  # others may wait for us in a collective: they are ended from outside


def _described(error: BaseException) -> str:
    """The first error of the chain: torch wraps what a stage raises in a long message about its inputs."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _work(folder: Path, job: Job, rank: int) -> None:
    device = torch.device("cuda", rank) if job.backend == "nccl" else torch.device("cpu")
    args, kwargs, target = torch.load(folder / BATCH, map_location=device, weights_only=True)
    program = torch.export.load(folder / PROGRAM)
    first = pytree.tree_map(lambda part: part.chunk(job.microbatches)[0], (args, kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own exporting
        pipe = split(program.module(check_guards=False), first, lambda module: job.cuts)
    if pipe.num_stages != job.stages:
        raise RuntimeError(f"{job.stages} stages were planned and {pipe.num_stages} came of it")
    mine = list(range(rank, job.stages, job.ranks))
    stages = [pipe.build_stage(number, device) for number in mine]
    actions: list[tuple[int, str, int, float, float]] = []
    for stage in stages:
        _timed(stage, actions)
    loss = _loss(folder, job, program, device)
    losses: list[torch.Tensor] = []
    output: Any = None
    schedule = _schedule(job, stages, loss)
    for _ in range(job.warm_up + 1):
        for stage in stages:
            stage.submod.zero_grad()
        losses.clear()
        dist.barrier()
        actions.clear()
        last = job.stages - 1 in mine
        output = schedule.step(
            *(args if 0 in mine else ()),
            **(kwargs if 0 in mine else {}),
            **({"target": target, "losses": losses} if last else {}),
        )
    tensors: dict[str, Any] = {
        "gradients": {
            number: {name: p.grad for name, p in stage.submod.named_parameters() if p.grad is not None}
            for number, stage in zip(mine, stages, strict=True)
        },
        "buffers": {number: dict(stage.submod.named_buffers()) for number, stage in zip(mine, stages, strict=True)},
    }
    if job.stages - 1 in mine:
        tensors["outputs"] = [part.detach() for part in pytree.tree_leaves(output) if isinstance(part, torch.Tensor)]
        tensors["losses"] = [each.detach() for each in losses]
    torch.save(tensors, tensors_file(folder, rank))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_done(folder, Done(rank, actions, peak))


def _schedule(job: Job, stages: list[Any], loss: Any) -> Any:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    if job.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, job.microbatches, loss_fn=loss)
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[job.schedule]
    return kind(stages[0], job.microbatches, loss_fn=loss)


def _loss(folder: Path, job: Job, program: Any, device: torch.device) -> Any:
    if not job.has_loss:
        return lambda output, target: default_loss(output)
    module = torch.export.load(folder / LOSS).module(check_guards=False).to(device)
    structure = program.call_spec.out_spec
    return lambda output, target: module(pytree.tree_unflatten(pytree.tree_leaves(output), structure), target)


def _timed(stage: Any, actions: list[tuple[int, str, int, float, float]]) -> None:
    """Note when a stage works. What it waits for and sends is not part of that."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

    def timed_forward(chunk: int, *args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        made = forward(chunk, *args, **kwargs)
        actions.append((stage.stage_index, "F", chunk, begin, time.monotonic()))
        return made

    def timed_backward(chunk: int, *args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        backward(chunk, *args, **kwargs)
        if chunk in stage.bwd_cache:  # what is about to be sent back: gloo takes no strides
            stage.bwd_cache[chunk] = tuple(
                part.contiguous() if isinstance(part, torch.Tensor) else part for part in stage.bwd_cache[chunk]
            )
        actions.append((stage.stage_index, "B", chunk, begin, time.monotonic()))

    stage.forward_one_chunk, stage.backward_one_chunk = timed_forward, timed_backward


if __name__ == "__main__":
    main(Path(sys.argv[1]))
