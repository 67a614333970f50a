"""A model and a memory limit -> a plan of which modules to checkpoint, that can be applied, undone and verified."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchatlas.analysis.checkpoint_choice import (
    CheckpointChoice,
    CheckpointedModule,
    choice_sections,
    choose_checkpoints,
    nothing_fits,
)
from torchatlas.analysis.devices import Device
from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing import capture
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import AnalysisError, InvalidModelError, StateError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.inputs import check_keywords, default_loss, named_tensors, same_bits
from torchatlas.interrupts import Bracket, signals_deferred
from torchatlas.registry import did_you_mean
from torchatlas.sections import Lines, Section
from torchatlas.units import byte_limit, format_bytes

TOLERANCE = 0.05  # how far a captured peak may be from the predicted one
_MOST_ROUNDS = 4
_OPTIONS_OF_CHECKPOINT = {
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "preserve_rng_state",
    "early_stop",
}


@dataclass(frozen=True, repr=False)
class CheckpointPlan(Shown):
    """Which modules to checkpoint, with the predicted peak and the one of a capture with the plan applied. Print it."""

    choice: CheckpointChoice  # the modules, and what was predicted
    captured_peak_bytes: int  # of the step with the plan applied
    loss: Callable[[Any], torch.Tensor] | None = field(default=None, repr=False)
    optimizer: Any = field(default=None, repr=False)

    @property
    def modules(self) -> tuple[CheckpointedModule, ...]:
        """The modules to checkpoint, with what each saves and costs."""
        return self.choice.modules

    @property
    def paths(self) -> tuple[str, ...]:
        """Their paths."""
        return self.choice.paths

    @property
    def peak_bytes(self) -> int:
        """The peak as predicted from the step without checkpoints."""
        return self.choice.peak_bytes

    def apply(self, model: nn.Module) -> AppliedPlan:
        """Checkpoint the modules from now on: `with plan.apply(model): ...`, or keep the handle and `undo()` it.

        Args:
            model: The model that the plan is for.
        Returns:
            An AppliedPlan.
        Raises:
            InvalidModelError: It is not a module, or has none of a path of the plan.
            StateError: A module is checkpointed by a plan already.
        """
        return AppliedPlan(model, self.paths)

    def verify(
        self, model: nn.Module, *args: Any, kwargs: dict[str, Any] | None = None, **model_kwargs: Any
    ) -> CheckpointCheck:
        """Run the step plain and checkpointed; compare the gradients bit for bit and the peak with the prediction.

        Both really run, with the loss and the optimizer of the plan; the model is afterwards as before.

        Args:
            model: The model.
            *args: Its positional arguments.
            kwargs: Keyword arguments of the model whose names are also names of this function.
            **model_kwargs: All other keyword arguments of the model.
        Returns:
            A CheckpointCheck; `passed` says whether all is well.
        """
        call = {**(kwargs or {}), **model_kwargs}
        plain = _results(model, args, call, self.loss)
        with self.apply(model):
            checkpointed = _results(model, args, call, self.loss)
            graph = capture(model, *args, backward=True, loss=self.loss, optimizer=self.optimizer, kwargs=call)
        names = plain | checkpointed
        differing = tuple(name for name in names if not same_bits(plain.get(name), checkpointed.get(name)))
        return CheckpointCheck(len(plain), differing, self.peak_bytes, graph.peak_bytes or 0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**self.choice.to_dict(), "captured_peak_bytes": self.captured_peak_bytes}

    def _sections(self) -> Iterator[Section]:
        if not self.modules:
            return choice_sections(self.choice)
        off = self.captured_peak_bytes / self.peak_bytes - 1
        shown = f"captured with it applied: {format_bytes(self.captured_peak_bytes)}"
        seen = "as predicted" if not off else f"{off:+.2%} off the prediction"
        return choice_sections(self.choice, [f"{shown}, {seen}"])


@dataclass(frozen=True, repr=False)
class CheckpointCheck(ShownPart):
    """How a step with checkpoints compares to the plain one."""

    compared: int  # losses, gradients and buffers
    differing: tuple[str, ...]  # of them, those that are not equal bit for bit
    predicted_peak_bytes: int
    captured_peak_bytes: int

    @property
    def deviation(self) -> float:
        """How far the captured peak is from the predicted one: 0.01 is 1 % above."""
        return self.captured_peak_bytes / self.predicted_peak_bytes - 1

    @property
    def passed(self) -> bool:
        """Everything equal, and the peak within 5 % of the prediction."""
        return not self.differing and abs(self.deviation) <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        fields = {key: getattr(self, key) for key in (*self.__dataclass_fields__, "deviation", "passed")}
        return fields | {"differing": list(self.differing)}

    def __str__(self) -> str:
        equal = f"{self.compared:,} of {self.compared:,} gradients, buffers and losses are equal bit for bit"
        if self.differing:
            more = f" and {len(self.differing) - 5:,} more" if len(self.differing) > 5 else ""
            equal = f"not equal bit for bit: {clean(', '.join(self.differing[:5]))}{more}"
        return (
            f"{'passed' if self.passed else 'FAILED'}: {equal}; peak {format_bytes(self.captured_peak_bytes)}, "
            f"{self.deviation:+.2%} off the predicted {format_bytes(self.predicted_peak_bytes)} "
            f"({TOLERANCE:.0%} are allowed)"
        )


@explains_arguments
def checkpoint_plan(
    model: Any,
    *args: Any,
    limit: float | str,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Any = None,
    fake: bool = True,
    by: str = "flops",
    device: Device | str | None = None,
    exclude: Iterable[str] = (),
    kwargs: dict[str, Any] | None = None,
    **model_kwargs: Any,
) -> CheckpointPlan:
    """Which modules to checkpoint so that a training step takes at most `limit` and least is computed again.

    The step is captured, and captured again with the plan applied: a plan that is returned has been seen to fit.

    Args:
        model: The model; with `fake` also a function that builds one.
        *args: Its positional arguments.
        limit: The memory that the step may take, in bytes or as text such as "24GB".
        loss: As in `atlas.capture`: from the outputs to the tensor that backward begins at.
        optimizer: As in `atlas.capture`: an instance, or a function of the parameters.
        fake: Capture without computing or allocating anything.
        by: What to do least of again: "flops", or "time" at best on `device`.
        device: The device profile for times, as for `atlas.cost`.
        exclude: Paths of modules that must not run twice.
        kwargs: Keyword arguments of the model whose names are also names of this function.
        **model_kwargs: All other keyword arguments of the model.
    Returns:
        A CheckpointPlan: print it, `apply` it to the model, `verify` it.
    Raises:
        InvalidModelError: `model` is not a module, nor a function that builds one.
        InvalidInputError: `limit`, `by` or `exclude` cannot be understood.
        AnalysisError: No choice of modules fits into `limit`; the message says what the least would be.
    Example:
        >>> import torch, torchatlas as atlas
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        >>> model, x = torch.nn.Sequential(*(block() for _ in range(4))), torch.empty(4096, 64)
        >>> plain = atlas.capture(model, x, backward=True, fake=True).peak_bytes
        >>> plan = atlas.checkpoint_plan(model, x, limit=0.9 * plain)
        >>> plan.captured_peak_bytes <= 0.9 * plain, len(plan.paths) > 0
        (True, True)
    """
    if not isinstance(model, nn.Module) and not (fake and callable(model)):
        raise InvalidModelError(f"checkpoint_plan takes a torch.nn.Module, not {type(model).__name__}.")
    if isinstance(model, nn.Module):
        check_keywords(checkpoint_plan, model, model_kwargs)
    call, exclude, limit_bytes = {**(kwargs or {}), **model_kwargs}, frozenset(exclude), byte_limit(limit)

    def captured(paths: tuple[str, ...]) -> Graph:
        step = {"backward": True, "loss": loss, "optimizer": optimizer, "fake": fake, "kwargs": call}
        if isinstance(model, nn.Module):
            with AppliedPlan(model, paths):
                return capture(model, *args, **step)
        return capture(functools.partial(_built, model, paths) if paths else model, *args, **step)

    plain = captured(())
    target, notes, refused = limit_bytes, list[str](), set[str]()
    for _ in range(_MOST_ROUNDS):
        choice, unmet = _chosen(plain, target, by=by, device=device, exclude=exclude, refused=refused)
        choice = replace(choice, limit_bytes=limit_bytes, notes=(*choice.notes, *notes))
        if not choice.modules and unmet is None:
            return CheckpointPlan(choice, choice.plain_peak_bytes, loss, optimizer)
        try:
            seen = captured(choice.paths).peak_bytes or 0
        except Exception as error:
            failing = _failing_kinds(choice, captured)
            if not failing:
                raise
            refused |= {scope.path for scope in plain.scopes.values() if scope.type in failing}
            notes.append(
                f"{', '.join(failing)} cannot be run again in backward, so that none is checkpointed: "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            )
            continue
        if seen <= limit_bytes:
            return CheckpointPlan(choice, seen, loss, optimizer)
        if unmet is not None:
            raise AnalysisError(" ".join([nothing_fits(choice, seen), *(f"Note: {note}." for note in notes)]))
        target = max(target - (seen - choice.peak_bytes), 1)  # what the prediction missed is asked for in advance
    raise AnalysisError(
        f"No plan was seen to fit into {format_bytes(limit_bytes)} in {_MOST_ROUNDS} rounds"
        f"{': ' + '; '.join(notes) if notes else ''}. Allow a little more, or exclude modules with exclude=."
    )


def _chosen(plain: Graph, limit: int, **options: Any) -> tuple[CheckpointChoice, AnalysisError | None]:
    """The choice; where the limit cannot be met, the one with the smallest peak, and the error that says so."""
    try:
        return choose_checkpoints(plain, limit, **options), None
    except AnalysisError as error:
        if not isinstance(error.partial, CheckpointChoice):
            raise
        return error.partial, error


def _built(build: Callable[[], nn.Module], paths: tuple[str, ...]) -> nn.Module:
    model = build()
    AppliedPlan(model, paths)  # for good: the model is made for this capture only
    return model


def _failing_kinds(choice: CheckpointChoice, captured: Callable[[tuple[str, ...]], Graph]) -> list[str]:
    """The kinds of modules that fail when one of them is checkpointed alone."""
    failing: list[str] = []
    first = {one.type: one.path for one in reversed(choice.modules)}
    for kind, path in first.items():
        try:
            captured((path,))
        except Exception:  # what it says is what the whole set said, which the caller passes on
            failing.append(kind)
    return failing


# -- applying ----------------------------------------------------------------------------------------------------------


class Checkpointed:
    """The forward of a module, checkpointed. A copy of the module gets a copy of this that is bound to the copy."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        functools.update_wrapper(self, forward)
        del self.__wrapped__  # type: ignore[attr-defined]  # `forward` is the one reference that is copied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.keys() & _OPTIONS_OF_CHECKPOINT:  # of the module itself, not of checkpoint
            return checkpoint(functools.partial(self.forward, **kwargs), *args, use_reentrant=False)
        return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)


class AppliedPlan(Shown, Bracket["AppliedPlan"]):
    """Modules of a model whose forward is checkpointed, from now until `undo` or the end of a `with` block."""

    def __init__(self, model: nn.Module, paths: Iterable[str]) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidModelError(f"A plan is applied to a torch.nn.Module, not to {type(model).__name__}.")
        modules = dict(model.named_modules(remove_duplicate=False))
        chosen = {}
        for path in paths:
            if path not in modules:
                hint = did_you_mean(path, modules) or "; apply it to the model that it was made for."
                raise InvalidModelError(f"This {type(model).__name__} has no module {path!r}{hint}")
            if isinstance(modules[path].__dict__.get("forward"), Checkpointed):
                raise StateError(f"{path} is checkpointed by a plan already; undo that one first.")
            chosen[path] = modules[path]
        self._before: list[tuple[nn.Module, Any]] = []
        try:
            with signals_deferred():
                for module in chosen.values():
                    self._before.append((module, module.__dict__.get("forward")))
                    module.forward = Checkpointed(module.forward)
        except BaseException:  # the caller will not have this object to undo it with
            self.undo()
            raise

    def undo(self) -> None:
        """Every forward as it was. Once is enough; more do nothing."""
        with signals_deferred():
            while self._before:
                module, forward = self._before.pop()
                if forward is None:
                    vars(module).pop("forward", None)
                else:
                    module.forward = forward

    def _sections(self) -> Iterator[Section]:
        count = len(self._before)
        yield Lines([f"modules checkpointed: {count:,}" if count else "undone: it checkpoints no module"])

    def _begin(self) -> AppliedPlan:
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()


# -- verifying ---------------------------------------------------------------------------------------------------------


def _results(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], torch.Tensor] | None
) -> dict[str, torch.Tensor | None]:
    """The loss, the gradients and the buffers that one step makes, on copies; the model is afterwards as before."""
    with Restorer(model, (args, kwargs), whole=True):
        result = model(*args, **kwargs)
        total = default_loss(result) if loss is None else loss(result)
        total.backward()
        tensors: dict[str, torch.Tensor | None] = {"loss": total.detach()}
        for name, tensor in (*model.named_parameters(), *named_tensors((args, kwargs), "input")):
            if tensor.is_leaf and tensor.requires_grad:
                tensors[f"gradient of {name}"] = tensor.grad
        tensors |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
        return tensors
