"""`run_pipeline`: plan stages, run them in processes, and compare with one process that does it all."""

from __future__ import annotations

import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchatlas.analysis.reports import Report, as_json
from torchatlas.argument_errors import explains_arguments
from torchatlas.deprecation import old_arguments
from torchatlas.errors import InvalidInputError, InvalidModelError
from torchatlas.graph import OperationType
from torchatlas.interrupts import orderly_death, whole
from torchatlas.partition.stages import PipelinePlan
from torchatlas.pipeline.comparing import PipelineDifference, alone, compared
from torchatlas.pipeline.folder import BATCH, LOSS, PROGRAM, Done, Job, read_done, tensors_file, write_job
from torchatlas.pipeline.launch import launch
from torchatlas.pipeline.schedules import Timeline, order_of, simulated
from torchatlas.pipeline.split_model import planned
from torchatlas.registry import did_you_mean
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import pytree
from torchatlas.units import format_bytes, format_seconds

_OPTIONS = {"by", "bandwidth", "limit", "device"}  # of pipeline_stages
_BACKWARD = 2.0  # backward takes about twice as long as forward


@dataclass(frozen=True, eq=False, repr=False)
class PipelineRun(Report):
    """A pipeline that ran: where it was cut, what it made, how long its ranks waited."""

    plan: PipelinePlan
    schedule: str
    ranks: int
    microbatches: int
    loss: float
    differences: tuple[PipelineDifference, ...]  # from one process
    measured: Timeline  # as it ran
    predicted: Timeline  # by the plan: times of the stages at best, backward twice as long as forward
    replayed: Timeline  # by the measured times of the stages, if nothing else took time
    peak_bytes: tuple[int, ...]  # of each rank's process
    shared: tuple[str, ...] = ()  # weights that several stages use
    notes: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        """Whether outputs, loss, gradients and buffers are those of one process, to the bit."""
        return all(each.equal for each in self.differences)

    @property
    def agrees(self) -> bool:
        """As `equal`, but gradients of weights that stages share may be rounded: they are summed in another order."""
        return all(
            each.equal or (each.only_rounded and set(each.differ) <= set(self.shared)) for each in self.differences
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        names = ["schedule", "ranks", "microbatches", "loss", "equal", "agrees", "differences"]
        names += ["peak_bytes", "shared", "notes", "plan"]
        timelines = {"measured": self.measured, "predicted": self.predicted, "replayed": self.replayed}
        return {name: as_json(getattr(self, name)) for name in names} | {
            name: {"span_s": one.span, "busy_s": list(one.busy), "bubble": one.bubble}
            for name, one in timelines.items()
        }

    def _sections(self) -> Iterator[Section]:
        rows = [
            [
                f"{rank}",
                format_seconds(busy),
                f"{1 - busy / self.measured.span:.0%}",
                format_bytes(self.peak_bytes[rank]),
            ]
            for rank, busy in enumerate(self.measured.busy)
        ]
        lines = [
            f"{self.schedule} over {self.ranks} ranks, {len(self.plan.stages)} stages, {self.microbatches} "
            f"microbatches: {format_seconds(self.measured.span)} (one run), loss {self.loss:.6g}",
            *map(str, self.differences),
            f"bubble: measured {self.measured.bubble:.0%}, by the measured times of stages {self.replayed.bubble:.0%}, "
            f"predicted by the plan {self.predicted.bubble:.0%}",
        ]
        yield Lines(lines, self.notes)
        yield Table([">rank", ">worked", ">waited", ">process at most"], rows)


@old_arguments(memory_limit="limit", warm_up="warmup")
@explains_arguments
def run_pipeline(
    model: nn.Module,
    *args: Any,
    stages: int,
    schedule: str = "1f1b",
    microbatches: int = 4,
    ranks: int | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    target: Any = None,
    backend: str = "gloo",
    warmup: int = 1,
    timeout: float = 300.0,
    torchrun: bool = False,
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> PipelineRun:
    """Cut a model into stages, train one batch with them in processes of this machine, and compare with one process.

    The batch, `args` and `kwargs`, is cut along the first dimension. The model stays as it is.

    Args:
        model: The model.
        *args: Its positional arguments: one batch.
        stages: How many stages.
        schedule: "gpipe", "1f1b", or "interleaved": several stages per rank, with fewer `ranks` than `stages`.
        microbatches: How many parts the batch is cut into.
        ranks: How many processes; None starts one per stage.
        loss: A function `loss(output, target)`; None takes the sum of the floating outputs, as `atlas.capture` does.
        target: What the loss compares with, cut as the batch is.
        backend: The backend of torch.distributed.
        warmup: Runs before the measured one.
        timeout: Seconds after which processes that have not ended are ended.
        torchrun: True if torchrun has started this program in every process; False starts them here.
        kwargs: Keyword arguments of the model.
        **options: Those of `pipeline_stages`: by, bandwidth, limit, device.
    Returns:
        A PipelineRun: whether all is `equal` to one process, and how long the ranks waited. Print it.
    Raises:
        InvalidModelError: `model` is not a module.
        InvalidInputError: An argument cannot be understood, the batch cannot be cut so, or there is nothing to train.
        PipelineError: A process failed, died or did not end in time; the others were ended.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        >>> run = atlas.run_pipeline(model, torch.ones(8, 64), stages=2)  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise InvalidModelError(f"run_pipeline takes a torch.nn.Module, not {type(model).__name__}.")
    if not isinstance(stages, int) or stages < 1:
        raise InvalidInputError(f"stages={stages!r}: a pipeline has one stage or more.")
    if unknown := sorted(options.keys() - _OPTIONS):
        hint = did_you_mean(unknown[0], [*_OPTIONS, *inspect.signature(run_pipeline).parameters]) or "."
        raise InvalidInputError(f"run_pipeline has no option {unknown[0]!r}{hint}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidInputError("there is nothing to train: no parameter of the model requires a gradient.")
    ranks = stages if ranks is None else ranks
    order = order_of(schedule, ranks, stages, microbatches)
    batch = (tuple(args), dict(kwargs or {}))
    parts = _microbatches(batch, microbatches)
    targets = _microbatches(target, microbatches) if target is not None else [None] * microbatches
    threads = max(1, (os.cpu_count() or 1) // ranks)
    with (
        orderly_death(),
        whole(tempfile.TemporaryDirectory(prefix="torchatlas-pipeline-")) as name,
        whole(warnings.catch_warnings()),
    ):
        warnings.simplefilter("ignore")  # of torch's own exporting
        folder = Path(name)
        program = torch.export.export(model, *parts[0])
        torch.export.save(program, folder / PROGRAM)
        _, plan, cuts = planned(program.module(check_guards=False), parts[0], stages, **options)
        _refuse_random(plan)
        if loss is not None:
            with torch.no_grad():
                example = model(*parts[0][0], **parts[0][1])
            torch.export.save(torch.export.export(_Loss(loss), (example, targets[0])), folder / LOSS)
        torch.save((*batch, torch.zeros(_batch_size(batch)) if target is None else target), folder / BATCH)
        write_job(folder, Job(ranks, stages, microbatches, schedule, cuts, backend, threads, warmup, loss is not None))
        launch(folder, timeout, torchrun=torchrun)
        done = [read_done(folder, rank) for rank in range(ranks)]
        made = [torch.load(tensors_file(folder, rank), weights_only=True) for rank in range(ranks)]
    differences, shared = compared(made, alone(model, parts, targets, loss, threads, warmup))
    notes = [
        f"{name} is used in several stages: each has its own, and training has to add up their gradients"
        for name in shared
    ]
    if ranks > (os.cpu_count() or 1):
        notes.append(f"{ranks} ranks share {os.cpu_count()} cores: they wait for each other's work as well")
    forward = [stage.seconds for stage in plan.stages]
    predicted = simulated(
        order,
        forward,
        [_BACKWARD * each for each in forward],
        [stage.sent_bytes / plan.bandwidth for stage in plan.stages],
    )
    return PipelineRun(
        plan,
        schedule,
        ranks,
        microbatches,
        float(torch.stack(made[(stages - 1) % ranks]["losses"]).mean()),
        differences,
        _measured(done),
        predicted,
        _replayed(done, order, stages),
        tuple(each.peak_bytes for each in done),
        shared,
        tuple(notes),
    )


class _Loss(nn.Module):
    """A loss function as a module, so that it can be exported and sent as a program, not as code."""

    def __init__(self, function: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, output: Any, target: Any) -> torch.Tensor:
        return self.function(output, target)


def _batch_size(batch: Any) -> int:
    sizes = {part.shape[0] for part in pytree.tree_leaves(batch) if isinstance(part, torch.Tensor) and part.dim()}
    if len(sizes) != 1:
        raise InvalidInputError(
            f"All tensors of the batch need the same first dimension to be cut along it; found {sorted(sizes)}."
        )
    return int(sizes.pop())


def _microbatches(batch: Any, count: int) -> list[Any]:
    size = _batch_size(batch)
    if size % count:
        raise InvalidInputError(f"{count} microbatches: the batch of {size} cannot be cut into as many of one size.")
    leaves, structure = pytree.tree_flatten(batch)
    chunks = [part.chunk(count) if isinstance(part, torch.Tensor) else (part,) * count for part in leaves]
    return [pytree.tree_unflatten([chunk[n] for chunk in chunks], structure) for n in range(count)]


def _refuse_random(plan: PipelinePlan) -> None:
    drawn = plan.graph.where(operation_type=OperationType.RANDOM)
    if drawn:
        raise InvalidInputError(
            f"{drawn[0].name} draws random numbers, and each process draws its own: nothing could be compared. "
            "Use model.eval(), or leave dropout out."
        )


def _measured(done: list[Done]) -> Timeline:
    begin = min(action[3] for each in done for action in each.actions)
    end = max(action[4] for each in done for action in each.actions)
    return Timeline(end - begin, tuple(sum(a[4] - a[3] for a in each.actions) for each in done))


def _replayed(done: list[Done], order: Any, stages: int) -> Timeline:
    times: dict[tuple[int, str], list[float]] = {}
    for each in done:
        for stage, kind, _, begin, end in each.actions:
            times.setdefault((stage, kind), []).append(end - begin)
    mean = {key: sum(durations) / len(durations) for key, durations in times.items()}
    forward, backward = ([mean[stage, kind] for stage in range(stages)] for kind in "FB")
    return simulated(order, forward, backward, [0.0] * stages)
