"""What verbs that look at a graph are given: a saved file, or a model that is run now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import progress, runs, stdout_to_stderr
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph, Phase
from torchatlas.graph.formats import READERS, suffix_of


@dataclass(frozen=True)
class Given:
    """FILE|TARGET and the options of a TARGET."""

    text: str
    inputs: tuple[str, ...]
    backward: bool
    optimizer: str | None
    fake: bool
    warmup: int
    repeat: int

    @property
    def is_target(self) -> bool:
        """Whether it names something to run, not a file."""
        return self.text.endswith(".py") or (":" in self.text and suffix_of(Path(self.text)) not in READERS)

    def graph(self, verb: str, as_json: bool, *, gradients: bool = False) -> Graph:
        """Read the file, or run the target; with `gradients` so that it tells their norms."""
        options = {"--inputs": self.inputs, "--backward": self.backward, "--optimizer": self.optimizer}
        options |= {"--fake": self.fake, "--warmup": self.warmup, "--repeat": self.repeat > 1}
        asked = [name for name, value in options.items() if value]
        if self.is_target:
            return self._run(verb, asked, as_json, gradients)
        if asked:
            raise click.UsageError(
                f"{asked[0]} is for models that are run now, and {self.text} is a file: it was run already."
            )
        with progress(f"reading {self.text}"):
            graph = Graph.load(self.text)
        if gradients and not (graph.recorded and Phase.BACKWARD in graph.scopes[""].operations_by_phase):
            raise AnalysisError(
                f"{self.text} holds no gradients. An .atlas file keeps them (a .json does not): "
                "torchatlas capture TARGET --backward --values stats --output step.atlas"
            )
        return graph

    def _run(self, verb: str, asked: list[str], as_json: bool, gradients: bool) -> Graph:
        from torchatlas.cli.capture import graph_of

        if gradients and self.fake:
            raise click.UsageError("--fake computes nothing: there would be no gradients to show. Leave one out.")
        target = _target.parse_target(self.text)
        if target.is_script:
            raise InvalidInputError(
                f"{self.text} is a script. Record it first: torchatlas capture --output run.atlas {self.text}; "
                f"then: torchatlas {verb} run.atlas"
            )
        options = {
            "backward": self.backward or gradients,
            "optimizer": _target.optimizer_named(self.optimizer),
            "fake": self.fake,
            "values": "stats" if gradients else None,
            "warmup": self.warmup,
            "repeat": self.repeat,
        }
        with stdout_to_stderr(as_json), _target.program(target), _target.found(target) as item:
            return graph_of(item, target, self.inputs, options, asked, None)


def given(function: Callable[..., Any]) -> Callable[..., Any]:
    """FILE|TARGET with its options, handed to the verb as one `given`."""

    @click.argument("file", metavar="FILE|TARGET")
    @click.option("--inputs", multiple=True, metavar="SHAPE", help="Of a TARGET: [NAME=][DTYPE:]SHAPE. Repeatable.")
    @click.option("--backward", is_flag=True, help="Of a TARGET: also run backward.")
    @click.option("--optimizer", metavar="NAME", help="Of a TARGET: also take a step of this optimizer of torch.optim.")
    @click.option("--fake", is_flag=True, help="Of a TARGET: compute and allocate nothing: shapes only.")
    @runs("Of a TARGET: ")
    def run(
        file: str,
        inputs: tuple[str, ...],
        backward: bool,
        optimizer: str | None,
        fake: bool,
        warmup: int,
        repeat: int,
        **others: Any,
    ) -> Any:
        return function(given=Given(file, inputs, backward, optimizer, fake, warmup, repeat), **others)

    run.__doc__, run.__name__ = function.__doc__, function.__name__
    run.__click_params__ = [*getattr(function, "__click_params__", []), *run.__click_params__]  # type: ignore[attr-defined]
    return run
