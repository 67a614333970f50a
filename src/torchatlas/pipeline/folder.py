"""The files through which the parent and the workers of a pipeline communicate, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import msgspec

PROGRAM, LOSS, BATCH, JOB = "program.pt2", "loss.pt2", "batch.pt", "job.json"


class Job(msgspec.Struct, frozen=True):
    """What the workers are to do."""

    ranks: int
    stages: int
    microbatches: int
    schedule: str
    cuts: list[str]  # names of the nodes that stages begin with, but for the first
    backend: str
    threads: int
    warm_up: int  # passes before the one that is measured
    has_loss: bool


class Done(msgspec.Struct, frozen=True):
    """What one worker did. Times are in seconds of a clock that all processes of a machine share."""

    rank: int
    actions: list[tuple[int, str, int, float, float]]  # stage, F or B, microbatch, begin, end
    peak_bytes: int


def write_job(folder: Path, job: Job) -> None:
    (folder / JOB).write_bytes(msgspec.json.encode(job))


def read_job(folder: Path) -> Job:
    return msgspec.json.decode((folder / JOB).read_bytes(), type=Job)


def write_done(folder: Path, done: Done) -> None:
    (folder / f"rank{done.rank}.json").write_bytes(msgspec.json.encode(done))


def read_done(folder: Path, rank: int) -> Done:
    return msgspec.json.decode((folder / f"rank{rank}.json").read_bytes(), type=Done)


def tensors_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.pt"


def error_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.error"
