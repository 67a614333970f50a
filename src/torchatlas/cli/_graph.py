"""What verbs that look at a graph are given: a saved file, or a model that is run now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import progress, stdout_to_stderr
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.formats import READERS, suffix_of


@dataclass(frozen=True)
class Given:
    """FILE|TARGET and the options of a TARGET."""

    text: str
    inputs: tuple[str, ...]
    backward: bool
    optimizer: str | None
    fake: bool

    def graph(self, verb: str, as_json: bool) -> Graph:
        """Read the file, or run the target."""
        options = {"--inputs": self.inputs, "--backward": self.backward, "--optimizer": self.optimizer}
        asked = [name for name, value in (options | {"--fake": self.fake}).items() if value]
        if self.text.endswith(".py") or (":" in self.text and suffix_of(Path(self.text)) not in READERS):
            return self._run(verb, asked, as_json)
        if asked:
            raise click.UsageError(
                f"{asked[0]} is for models that are run now, and {self.text} is a file: it was run already."
            )
        with progress(f"reading {self.text}"):
            return Graph.load(self.text)

    def _run(self, verb: str, asked: list[str], as_json: bool) -> Graph:
        from torchatlas.cli.capture import graph_of

        target = _target.parse_target(self.text)
        if target.is_script:
            raise InvalidInputError(
                f"{self.text} is a script. Record it first: torchatlas capture --output run.atlas {self.text}; "
                f"then: torchatlas {verb} run.atlas"
            )
        options = {"backward": self.backward, "optimizer": _target.optimizer_named(self.optimizer), "fake": self.fake}
        with stdout_to_stderr(as_json), _target.program(target), _target.found(target) as item:
            return graph_of(item, target, self.inputs, options, asked, None)


def given(function: Callable[..., Any]) -> Callable[..., Any]:
    """FILE|TARGET with its options, handed to the verb as one `given`."""

    @click.argument("file", metavar="FILE|TARGET")
    @click.option("--inputs", multiple=True, metavar="SHAPE", help="Of a TARGET: [NAME=][DTYPE:]SHAPE. Repeatable.")
    @click.option("--backward", is_flag=True, help="Of a TARGET: also run backward.")
    @click.option("--optimizer", metavar="NAME", help="Of a TARGET: also take a step of this optimizer of torch.optim.")
    @click.option("--fake", is_flag=True, help="Of a TARGET: compute and allocate nothing: shapes only.")
    def run(
        file: str, inputs: tuple[str, ...], backward: bool, optimizer: str | None, fake: bool, **others: Any
    ) -> Any:
        return function(given=Given(file, inputs, backward, optimizer, fake), **others)

    run.__doc__, run.__name__ = function.__doc__, function.__name__
    run.__click_params__ = [*getattr(function, "__click_params__", []), *run.__click_params__]  # type: ignore[attr-defined]
    return run
