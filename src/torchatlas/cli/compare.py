"""torchatlas compare BEFORE AFTER: what is different between two saved graphs, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.analysis.diff import compare, comparison_text
from torchatlas.cli._options import echo, print_json, progress, verb
from torchatlas.graph import Graph


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--most", type=click.IntRange(min=0), default=20, show_default=True, help="Operations to list of a kind.")
@verb
def command(before: Path, after: Path, most: int, as_json: bool) -> None:
    """Print which operations were added, removed and changed, and what that does to every module."""
    with progress(f"comparing {before.name} and {after.name}"):
        found = compare(Graph.load(before), Graph.load(after))
    if as_json:
        print_json({"before": str(before), "after": str(after), "comparison": found.to_dict()})
    else:
        echo(comparison_text(found, most=most))
