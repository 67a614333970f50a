"""torchatlas compare BEFORE AFTER: what is different between two graphs; of files without torch."""

from __future__ import annotations

import click

from torchatlas.analysis.diff import compare, comparison_text
from torchatlas.cli._graph import GraphSource, Run, run_options
from torchatlas.cli._options import complete_files, count_option, old_option, print_result, progress, verb


@click.command()
@click.argument("before", metavar="BEFORE", shell_complete=complete_files)
@click.argument("after", metavar="AFTER", shell_complete=complete_files)
@run_options
@count_option("--top", "Operations of a kind to list.", 20)
@old_option("--most", "--top", type=click.IntRange(min=0))
@verb
def command(before: str, after: str, run: Run, top: int, as_json: bool) -> None:
    """Print what is different between two graphs.

    BEFORE and AFTER are saved graphs, or models or functions as for `torchatlas capture`. Lists the operations that
    were added, removed and changed, and what that does to every module.

    \b
    torchatlas compare before.atlas after.atlas
    torchatlas compare before.atlas models.gpt:build --inputs int64:2,16
    """
    sources = [GraphSource(before, run), GraphSource(after, run)]
    if any(source.is_target for source in sources):  # the options are for that one, and not for a file beside it
        sources = [source if source.is_target else GraphSource(source.text, Run()) for source in sources]
    graphs = [source.graph("compare", as_json) for source in sources]
    with progress(f"comparing {before} and {after}"):
        comparison = compare(*graphs)
    content = {"before": before, "after": after, "comparison": comparison.to_dict()}
    print_result(content, comparison_text(comparison, most=top), as_json)
