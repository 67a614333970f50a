"""FILE|TARGET -> a graph: a saved file is read, a model or function is run now."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import (
    complete_files,
    count_option,
    echo,
    inputs_option,
    optimizer_option,
    progress,
    stdout_to_stderr,
)
from torchatlas.errors import AnalysisError, AtlasError, InvalidInputError
from torchatlas.graph import Graph, Phase
from torchatlas.graph.formats import READERS, suffix_of


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How a TARGET is run, handed to the verb as one `run`."""

    @inputs_option
    @click.option("--backward", is_flag=True, help="Also run backward, from the sum of the floating outputs.")
    @optimizer_option
    @click.option("--fake", is_flag=True, help="Follow shapes only: compute and allocate nothing.")
    @count_option("--warmup", "Runs before those that are recorded.", 0)
    @count_option("--repeat", "Runs to record; times are their medians.", 1, least=1)
    def call(
        inputs: tuple[str, ...],
        backward: bool,
        optimizer: str | None,
        fake: bool,
        warmup: int,
        repeat: int,
        **others: Any,
    ) -> Any:
        return function(run=TargetRun(inputs, backward, optimizer, fake, warmup, repeat), **others)

    return _documented(call, function)


def graph_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """FILE|TARGET with the options of a TARGET, handed to the verb as one `source`."""

    @click.argument("file", metavar="FILE|TARGET", shell_complete=complete_files)
    @run_options
    def call(file: str, run: TargetRun, **others: Any) -> Any:
        return function(source=GraphSource(file, run), **others)

    return _documented(call, function)


def _documented(call: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a wrapper the name, help and options of the verb it calls; functools.wraps would drop its own options."""
    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__click_params__ = [*getattr(function, "__click_params__", []), *call.__click_params__]
    return call  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TargetRun:
    """The options that say how a TARGET is run."""

    inputs: tuple[str, ...] = ()
    backward: bool = False
    optimizer: str | None = None
    fake: bool = False
    warmup: int = 0
    repeat: int = 1

    @property
    def options(self) -> list[str]:
        """The options that were passed, as they are spelled."""
        values = {"--inputs": self.inputs, "--backward": self.backward, "--optimizer": self.optimizer}
        values |= {"--fake": self.fake, "--warmup": self.warmup, "--repeat": self.repeat > 1}
        return [name for name, value in values.items() if value]

    def graph(
        self,
        item: Any,
        target: _target.Target,
        *,
        values: str | None = None,
        gradients: bool = False,
        output: Path | None = None,
    ) -> Graph:
        """Capture a model with its inputs; a function without arguments is run to see what it is.

        With `gradients` a model also runs backward. What was recorded before a function failed is saved to `output`.
        """
        from torch import nn

        import torchatlas as atlas

        captured = partial(self._captured, values=values, backward=self.backward or gradients)
        args, kwargs = _target.example_inputs(self.inputs, fake=self.fake)
        builds = isinstance(item, type) and issubclass(item, nn.Module)
        if isinstance(item, nn.Module) or self.inputs or builds:
            if not isinstance(item, nn.Module) and (builds or _target.takes_nothing(item)) and not self.fake:
                item = _built(item, target)
            return captured(target, item, args, kwargs)
        if not _target.takes_nothing(item):
            raise InvalidInputError(f"{target} takes {inspect.signature(item)}; give example inputs with --inputs.")
        try:
            # Recorded at once: the function may be the program itself, which must not run twice.
            with atlas.recording(values=values) as rec:
                result = item()
        except Exception as error:
            if rec.failure is not None:
                error.add_note(f"torchatlas was recording; it happened at {rec.failure.where}")
            save_partial(rec.graph, output, str(target))
            raise
        if isinstance(result, nn.Module):
            _check_without_inputs(result, target)
            result = (result, ())
        if (call := _target.as_model_call(result)) is not None:
            return captured(target, *call)
        if self.options:
            raise InvalidInputError(
                f"{self.options[0]} is for models, and {target} returned {type(result).__name__}, not a model: it is "
                "a program of its own. Leave the option out to record what it runs."
            )
        with progress("decoding"):
            return rec.graph

    def _captured(self, target: _target.Target, model: Any, args: Any, kwargs: Any, **options: Any) -> Graph:
        import torchatlas as atlas

        count = self.warmup + self.repeat
        with progress(f"capturing {target}" + (f", {count:,} runs" if count > 1 else "")):
            return atlas.capture(
                model,
                *args,
                optimizer=_target.optimizer_named(self.optimizer),
                fake=self.fake,
                warmup=self.warmup,
                repeat=self.repeat,
                kwargs=kwargs,
                **options,
            )


@dataclass(frozen=True)
class GraphSource:
    """FILE|TARGET, and how to run a TARGET."""

    text: str
    run: TargetRun

    @property
    def is_target(self) -> bool:
        """Whether it names something to run, not a file."""
        return self.text.endswith(".py") or (":" in self.text and suffix_of(Path(self.text)) not in READERS)

    def graph(self, verb: str, as_json: bool, *, gradients: bool = False, values: str | None = None) -> Graph:
        """Read the file, or run the target and keep these `values`; with `gradients` the graph holds their norms."""
        if self.is_target:
            return self._captured(verb, as_json, gradients, values)
        if self.run.options:
            raise click.UsageError(
                f"{self.run.options[0]} is for models that are run now, and {self.text} is a file: it was run already."
            )
        with progress(f"reading {self.text}"):
            graph = Graph.load(self.text)
        if gradients and not (graph.recorded and Phase.BACKWARD in graph.scopes[""].operations_by_phase):
            raise AnalysisError(
                f"{self.text} holds no gradients. An .atlas file keeps them (a .json does not): "
                "torchatlas capture TARGET --backward --values stats --output step.atlas"
            )
        return graph

    def _captured(self, verb: str, as_json: bool, gradients: bool, values: str | None) -> Graph:
        if gradients and self.run.fake:
            raise click.UsageError("--fake computes nothing: there would be no gradients to show. Leave one out.")
        target = _target.parse_target(self.text)
        if target.is_script:
            raise InvalidInputError(
                f"{self.text} is a script. Record it first: torchatlas capture --output run.atlas {self.text}; "
                f"then: torchatlas {verb} run.atlas"
            )
        with stdout_to_stderr(as_json), _target.program(target), _target.imported(target) as item:
            return self.run.graph(item, target, values="stats" if gradients else values, gradients=gradients)


def save_partial(graph: Graph, output: Path | None, target: str) -> None:
    """Save what was recorded before the program failed, and say so on stderr."""
    what = f"{target} failed; {len(graph):,} nodes were recorded before"
    try:
        saved = None if output is None else graph.save(output)
    except AtlasError as error:
        echo(f"{what}, but could not be saved: {error}", err=True)
    else:
        echo(f"{what}{'' if saved is None else f' and are in {saved}'}.", err=True)


def _check_without_inputs(model: Any, target: _target.Target) -> None:
    """Raise if a model that came without inputs takes some."""
    if not _target.takes_nothing(model.forward):
        raise InvalidInputError(
            f"{target} returned a {type(model).__name__} without inputs, and it takes some: give them with --inputs."
        )


def _built(item: Any, target: _target.Target) -> Any:
    from torch import nn

    model = item()
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"{target} takes no arguments and returned {type(model).__name__}, not a model, so that --inputs have "
            "nowhere to go. Return a model, or leave out --inputs."
        )
    return model
