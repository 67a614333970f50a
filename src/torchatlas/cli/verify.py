"""torchatlas verify FILE: run a saved graph once more and compare every bit with what was captured."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import echo, print_json, progress, verb
from torchatlas.execute.verify import verify
from torchatlas.graph import Graph

DIFFERENT = 1


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--allow", multiple=True, metavar="OPERATOR", help="Also run this operator, or namespace.")
@verb
def command(file: Path, allow: tuple[str, ...], as_json: bool) -> None:
    """Replay a graph that was captured with values="replay". Exit code 0: equal to the bit; 1: not; 2: impossible."""
    with progress(f"replaying {file.name}"):
        found = verify(Graph.load(file), allow=allow)
    if as_json:
        print_json({"file": str(file), "verification": found.to_dict()})
    else:
        echo(str(found))
    if not found:
        raise click.exceptions.Exit(DIFFERENT)
