"""torchatlas compare BEFORE AFTER: what is different between two saved graphs, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.analysis.diff import compare, comparison_text
from torchatlas.cli._options import count_option, old_option, print_result, progress, verb
from torchatlas.graph import Graph


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@count_option("--top", "Operations of a kind to list.", 20)
@old_option("--most", "--top", type=click.IntRange(min=0))
@verb
def command(before: Path, after: Path, top: int, as_json: bool) -> None:
    """Print what is different between two saved graphs.

    Lists the operations that were added, removed and changed, and what that does to every module.
    """
    with progress(f"comparing {before.name} and {after.name}"):
        comparison = compare(Graph.load(before), Graph.load(after))
    content = {"before": str(before), "after": str(after), "comparison": comparison.to_dict()}
    print_result(content, comparison_text(comparison, most=top), as_json)
