"""torchatlas verify FILE: run a saved graph once more and compare every bit with what was captured."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import allow_option, file_argument, print_result, progress, verb
from torchatlas.execute.verify_replay import verify
from torchatlas.graph import Graph

DIFFERENT = 1


@click.command()
@file_argument
@allow_option
@verb
def command(file: Path, allow: tuple[str, ...], as_json: bool) -> None:
    """Replay a graph that was captured with values="replay". Exit code 0: equal to the bit; 1: not; 2: impossible."""
    with progress(f"replaying {file.name}"):
        verification = verify(Graph.load(file), allow=allow)
    print_result({"file": str(file), "verification": verification.to_dict()}, verification, as_json)
    if not verification:
        raise click.exceptions.Exit(DIFFERENT)
