"""Models by name -> whether their partitions are right: checks that can fail, and figures that others published.

Each model is partitioned by every strategy, from torch.fx's graph and from torch.export's where it has both; the pieces
are put together again and must compute what the model computes, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchatlas.analysis.reports import Report, as_json, fields_as_json
from torchatlas.errors import CaptureError, InvalidInputError, InvalidModelError, MissingDependencyError
from torchatlas.graph.shown import Shown
from torchatlas.interrupts import bracketed
from torchatlas.partition.front_ends import first_line
from torchatlas.partition.fx_tracing import traced_by_fx
from torchatlas.partition.partitioner import STRATEGIES, GraphPartitioner
from torchatlas.partition.validate.checks import PartitionCheck, checks_of
from torchatlas.partition.validate.models import ONE_OF_EACH_FAMILY, Example, check_names, example_named
from torchatlas.partition.validate.published import facts_of
from torchatlas.partition.validate.reassembly import fresh, reassembled, runs_of
from torchatlas.registry import check_choice
from torchatlas.sections import Lines, Section, Table

FRONT_ENDS = ("fx", "export")
_SHOWN = {True: "ok", False: "FAILED", None: "-"}


@dataclass(frozen=True, repr=False)
class PartitionValidation(Report):
    """The checks of one partition."""

    front_end: str
    strategy: str
    subgraphs: int
    checks: tuple[PartitionCheck, ...]

    @property
    def failed(self) -> tuple[PartitionCheck, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{self.front_end} {self.strategy}: {self.subgraphs:,} subgraphs; {_counted([self])}"])
        yield Table(
            ["check", "", "detail"], [[check.name, _SHOWN[check.passed], check.detail] for check in self.checks]
        )

    def to_dict(self) -> dict[str, Any]:
        return {**fields_as_json(self, ("checks",)), "passed": not self.failed, "checks": as_json(self.checks)}


@dataclass(frozen=True, repr=False)
class ModelValidation(Shown):
    """All that was checked of one model."""

    name: str
    partitions: tuple[PartitionValidation, ...] = field(repr=False)
    notes: tuple[str, ...] = ()  # front ends that do not take this model, and why

    @property
    def passed(self) -> bool | None:
        """None if nothing could be checked; `notes` say why."""
        return not any(partition.failed for partition in self.partitions) if self.partitions else None

    def to_dict(self) -> dict[str, Any]:
        notes, partitions = as_json(self.notes), as_json(self.partitions)
        return {"name": self.name, "passed": self.passed, "notes": notes, "partitions": partitions}

    def _sections(self) -> Iterator[Section]:
        return model_sections(self)


@dataclass(frozen=True, repr=False)
class ValidationReport(Shown):
    """All models. It is true if every check of every one passed, and some were made."""

    models: tuple[ModelValidation, ...]

    @property
    def passed(self) -> bool:
        outcomes = [model.passed for model in self.models]
        return False not in outcomes and True in outcomes

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "models": as_json(self.models)}

    def _headline(self) -> str:
        return _counted(partition for model in self.models for partition in model.partitions)

    def _sections(self) -> Iterator[Section]:
        for model in self.models:
            yield from model_sections(model)
        yield Lines([self._headline()])


def validate(
    *names: str,
    strategies: Iterable[str] = STRATEGIES,
    front_ends: Iterable[str] = FRONT_ENDS,
    skip_missing: bool | None = None,
) -> ValidationReport:
    """Validate the partitions of models by name; without a name, of one model of each family.

    Names are those of torchvision's models for classification, segmentation and detection, and bert, gpt2, llama, t5
    and lstm, which are small. `skip_missing` notes a model whose package is not installed instead of raising; that is
    the default if no model is named.
    """
    skips = not names if skip_missing is None else skip_missing
    if not skips:
        check_names(names)
    chosen = tuple(strategies), tuple(front_ends)
    models = []
    for name in names or ONE_OF_EACH_FAMILY:
        try:
            example = example_named(name)
        except MissingDependencyError as error:
            if not skips:
                raise
            models.append(ModelValidation(name, (), (f"not validated: {error}",)))
            continue
        models.append(_validated(example, *chosen))
    return ValidationReport(tuple(models))


def validate_model(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    strategies: Iterable[str] = STRATEGIES,
    front_ends: Iterable[str] = FRONT_ENDS,
) -> ModelValidation:
    """Validate the partitions of a model of your own, in eval mode. The model is left as it was."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise InvalidModelError(f"validate takes a torch.nn.Module, not {type(model).__name__}.")
    inputs = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if not inputs and not kwargs:
        raise InvalidInputError(f"validate takes a {type(model).__name__} with example inputs.")
    example = Example(name or type(model).__name__, model, inputs, dict(kwargs or {}))
    return _validated(example, tuple(strategies), tuple(front_ends))


def _validated(example: Example, strategies: tuple[str, ...], front_ends: tuple[str, ...]) -> ModelValidation:
    import torch

    for name in front_ends:
        check_choice("front end", name, FRONT_ENDS)
    partitions: list[PartitionValidation] = []
    with _awake(example.model), _one_path(), torch.no_grad():
        origins, notes = _origins(example, front_ends)
        runs = runs_of(example, recorded="run" in origins)
        for front_end, origin in origins.items():
            for strategy in strategies:
                partitioner = GraphPartitioner(strategy)
                report, again = partitioner.partition(origin), partitioner.partition(origin)
                checks = [
                    *checks_of(report, again),
                    reassembled(report, runs, example.model),
                    *facts_of(report, example.model, example.published, example.architecture),
                ]
                partitions.append(PartitionValidation(front_end, strategy, len(report), tuple(checks)))
    return ModelValidation(example.name, tuple(partitions), tuple(notes))


def _origins(example: Example, front_ends: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """What to partition, by where it comes from; a recorded run if nothing else takes the model."""
    from torchatlas.execute.recorded_run import record
    from torchatlas.execute.traced import TracedModel

    origins: dict[str, Any] = {}
    notes: list[str] = []
    if "fx" in front_ends:
        try:
            origins["fx"] = traced_by_fx(example.model, fresh(example.args), fresh(example.kwargs))
            GraphPartitioner().partition(origins["fx"], *fresh(example.args), **fresh(example.kwargs))  # notes shapes
        except Exception as error:  # torch.fx lets through whatever the model raises on proxies
            origins.pop("fx", None)
            notes.append(f"torch.fx does not take it: {first_line(error, 160)}")
    if "export" in front_ends:
        try:
            origins["export"] = TracedModel(
                example.model, fresh(example.args), dynamic_shapes=None, kwargs=fresh(example.kwargs)
            )
        except CaptureError as error:
            notes.append(f"torch.export does not take it: {first_line(error, 160)}")
    if not origins:
        origins["run"] = record(example.model, example.args, example.kwargs)
    return origins, notes


@bracketed
def _awake(model: Any) -> Iterator[None]:
    """Put the model into eval mode, and numbers into parameters that are all zeros, which would hide what comes before
    them. Restores both.

    torchvision's ViT ends in a layer of zeros: whatever is lost before it, its output stays the same.
    """
    import torch

    modes = [(module, module.training) for module in model.modules()]
    saved: list[tuple[Any, Any]] = []
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() and not parameter.is_meta and not parameter.any():
                saved.append((parameter, parameter.clone()))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            for parameter, before in saved:
                parameter.copy_(before)


@bracketed
def _one_path() -> Iterator[None]:
    """Turn off the fast path of torch's attention layers, which the model takes and torch.export never does.

    Its results differ in the last bits, which would say nothing about the partition.
    """
    from torch.backends import mha

    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


# -- as text -----------------------------------------------------------------------------------------------------------


def _counted(partitions: Iterable[PartitionValidation]) -> str:
    checks = [check for partition in partitions for check in partition.checks]
    counts = {passed: sum(check.passed is passed for check in checks) for passed in _SHOWN}
    return f"{counts[True]:,} checks passed, {counts[False]:,} failed, {counts[None]:,} could not be made"


def model_sections(model: ModelValidation) -> Iterator[Section]:
    """A table with the checks down and the partitions across, then what failed and what could not be checked."""
    yield Lines([f"{model.name}: {_counted(model.partitions)}"])
    columns = [f"{partition.front_end} {partition.strategy}" for partition in model.partitions]
    names = list(dict.fromkeys(check.name for partition in model.partitions for check in partition.checks))
    cells = [{check.name: _SHOWN[check.passed] for check in partition.checks} for partition in model.partitions]
    rows = [["subgraphs", *(f"{partition.subgraphs:,}" for partition in model.partitions)]]
    rows += [[name, *(cell.get(name, "") for cell in cells)] for name in names]
    if columns:
        yield Table(["check", *(f">{name}" for name in columns)], rows)
    lines: list[str] = []
    said = dict[str, None]()
    for partition, column in zip(model.partitions, columns, strict=True):
        for check in partition.checks:
            if check.passed is False:
                lines.append(f"FAILED {column}, {check.name}: {check.detail}")
            elif check.passed is None:
                said[f"- {check.name}: {check.detail}"] = None
    yield Lines([*lines, *said], model.notes)
