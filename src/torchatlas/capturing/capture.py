"""`atlas.capture`: run one call of a model, or a training step, under a recording, and put everything back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.fake_kernels import raise_for_fake_kernel
from torchatlas.capturing.recording import Recording, checked_values, recording
from torchatlas.capturing.repeated_runs import Runs, check_runs
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import CaptureError, InvalidInputError, InvalidModelError
from torchatlas.graph import Graph
from torchatlas.inputs import (
    advice,
    argument_names,
    check_call,
    check_keywords,
    checked_loss,
    default_loss,
    described,
)
from torchatlas.interrupts import whole


@explains_arguments
def capture(
    model: Callable[..., Any],
    *args: Any,
    backward: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Any = None,
    fake: bool = False,
    values: str | None = None,
    warmup: int = 0,
    repeat: int = 1,
    kwargs: dict[str, Any] | None = None,
    track_tensor_ops: bool = True,
    native: bool | None = None,
    **model_kwargs: Any,
) -> Graph:
    """Run a model or function and return the graph of what happened.

    Parameters, buffers, gradients, optimizer state, random numbers and flags are afterwards as before, also after an
    error. What the program itself raises comes through unchanged. With `repeat` above 1, times are medians over these
    runs: `node.time_spread_ns` is their spread, and `graph.timing` tells what a whole run took, also without recording.
    Every run begins in the same state; parameters, buffers and inputs are copied for that.

    Args:
        model: What to run: a module, or any callable. With `fake=True` also a function that builds a module.
        *args: The positional arguments to run it with.
        backward: Also run backward, from `loss(outputs)`.
        loss: A function from the outputs to the tensor that backward begins at; by default the sum of the floating
            outputs that require a gradient. Giving one asks for backward.
        optimizer: Takes a step after backward: an instance, or a function of the parameters such as
            `torch.optim.AdamW`. Giving one asks for backward.
        fake: Compute and allocate nothing: shapes, memory and structure are real, times and numbers are absent. The
            model may then live on the meta device.
        values: Keep what every node made: "all" the tensors, "stats" their minimum, maximum, mean, deviation and count
            of non-finite numbers, "replay" what `atlas.verify` needs. None keeps nothing; of several runs, the last.
        warmup: Runs before the first recorded one. They leave no trace.
        repeat: How often it is recorded, for times that can be believed.
        kwargs: Keyword arguments of the model whose names are also names of this function.
        track_tensor_ops: False records module calls only, at almost no cost.
        native: Which recorder: None the one in C++ where it is built (`torchatlas native`), True that one or an error,
            False the one in Python.
        **model_kwargs: All other keyword arguments of the model.
    Returns:
        The graph of the (last) run.
    Raises:
        InvalidModelError: `model` is nothing that can be run, such as a class or a state dict.
        InvalidInputError: The arguments do not fit the signature of the model, or two arguments of this function
            contradict each other.
        CaptureError: Backward was asked for and no output requires a gradient; or, with `fake`, the program reads the
            numbers of a tensor.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> graph = atlas.capture(model, torch.ones(2, 4), optimizer=torch.optim.SGD)
        >>> [node.name for node in graph.where(kind="op", scope="0", phase="forward")]
        ['0.t', '0.addmm']
        >>> {str(node.phase) for node in graph.where(kind="op")} == {"forward", "backward", "optimizer"}
        True
    """
    if not callable(model):
        raise InvalidModelError(
            f"capture takes a torch.nn.Module or a function, not {type(model).__name__}: atlas.capture(model, x)."
        )
    if loss is not None and not callable(loss):
        raise InvalidInputError(
            f"loss= takes a function of the outputs, not {type(loss).__name__}: loss=lambda out: out.square().mean()."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidInputError(f"kwargs= takes a dictionary of keyword arguments, not {type(kwargs).__name__}.")
    if not (fake and not isinstance(model, nn.Module)):  # a function that builds a model is asked for nothing
        check_keywords(capture, model, model_kwargs)
    call_kwargs = {**(kwargs or {}), **model_kwargs}
    values = checked_values(values)
    if values is not None and native is None:
        native = False  # keeping values takes the recorder in Python, and all runs of a capture have the same one
    check_runs(warmup, repeat, untimed="fake=True" if fake else "")
    if fake:
        if values is not None:
            raise InvalidInputError(f"values={values!r} cannot be kept with fake=True: fake tensors have no values.")
        from torchatlas.capturing.fake import fake_mode, faked, values_refused, without_pretence

        mode = fake_mode(model, args, call_kwargs)
        with (
            Restorer(model, (args, call_kwargs), optimizer),  # flags, random numbers, and a model that is fake already
            values_refused(),
            whole(mode),
        ):
            model, args, call_kwargs, optimizer = faked(mode, model, args, call_kwargs, optimizer)
            step = _Step(model, args, call_kwargs, backward, loss, optimizer, native)
            graph: Graph = step.recorded(None, track_tensor_ops, None).graph
        without_pretence(graph)
        return graph
    check_call(model, args, call_kwargs)
    step = _Step(model, args, call_kwargs, backward, loss, optimizer, native)
    copied = not track_tensor_ops or repeat > 1  # of runs that nothing records it is not known what they write to
    with Restorer(model, (args, call_kwargs), optimizer, whole=copied) as restorer:
        return Runs(
            record=lambda last: step.recorded(values if last else None, track_tensor_ops, restorer),
            plain=lambda: partial(step.run, _made(optimizer, step.module)),
            restorer=restorer,
            tensors=(args, call_kwargs, list(model.parameters()) if isinstance(model, nn.Module) else []),
        ).graph(warmup, repeat)


@dataclass(frozen=True)
class _Step:
    """A call of a model and, if asked for, the backward pass and the optimizer step after it."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: bool
    loss: Callable[[Any], torch.Tensor] | None
    optimizer: Any
    native: bool | None

    @property
    def module(self) -> nn.Module | None:
        return self.model if isinstance(self.model, nn.Module) else None

    def recorded(self, values: str | None, track_tensor_ops: bool, restorer: Restorer | None) -> Any:
        """Run it once under a recording, which is returned."""
        if track_tensor_ops:
            session: Any = Recording(self.module, values=values, native=self.native, only_inputs=True, guard=restorer)
        else:
            session = recording(self.module, track_tensor_ops=False)
        optimizer = _made(self.optimizer, self.module)
        try:
            self.run(optimizer, session)
        finally:
            if restorer is not None:
                restorer.after_run(session)
        return session

    def run(self, optimizer: Any, session: Any = None) -> None:
        """Run it once: alone, or under a recording."""
        with self._explained(session), session or nullcontext():
            if self.module is None and session is not None:
                session.arrived(self.args, self.kwargs, self.model)
            result = self.model(*self.args, **self.kwargs)
            _refuse_generator(result, self.model)
            if self.module is None and session is not None:
                session.left(result)
            if self.backward or self.loss is not None or optimizer is not None:
                total = checked_loss(self.loss(result) if self.loss is not None else default_loss(result))
                total.backward()
                if optimizer is not None:
                    optimizer.step()
                del total
            del result

    @contextmanager
    def _explained(self, session: Any) -> Iterator[None]:
        """Add to the user's own exception where it happened, and what to do if the inputs explain it."""
        try:
            yield
        except Exception as error:
            failure = getattr(session, "failure", None)
            if failure is not None:
                error.add_note(f"torchatlas was capturing; it happened at {failure.where}")
                raise_for_fake_kernel(error, failure.where)
            if hint := advice(error, self.model, argument_names(self.model, self.args, self.kwargs)):
                error.add_note(f"hint: {hint}")
            raise


def _refuse_generator(result: Any, model: Any) -> None:
    """What a generator computes, it computes when it is read: after the capture."""
    if isinstance(result, (Generator, AsyncGenerator, Coroutine)):
        name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "it")
        raise CaptureError(
            f"{name} returned a {type(result).__name__}, which computes nothing until it is read. Capture the reading, "
            "atlas.capture(lambda *args: list(model(*args)), x), or record the loop that reads it with atlas.recording."
        )


def _made(optimizer: Any, model: nn.Module | None) -> Any:
    """An optimizer as given, or made of the model's parameters."""
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if not callable(optimizer) or model is None:
        raise InvalidInputError(
            "optimizer= takes a torch.optim.Optimizer, or with a torch.nn.Module a function of its parameters such as "
            f"torch.optim.AdamW, not {described(optimizer)}."
        )
    return optimizer(model.parameters())
