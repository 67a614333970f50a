"""torchatlas convert FILE|TARGET... --output FILE: graphs in another format, by suffix; of files without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchatlas.cli._graph import GraphSource, TargetRun, run_options
from torchatlas.cli._options import check_output, complete_files, echo, output_option, print_result, progress, verb
from torchatlas.export.ranks import missing_ranks, save_ranks
from torchatlas.graph.formats import WRITERS


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE|TARGET...", shell_complete=complete_files)
@run_options
@output_option(f"What to write. The suffix chooses the format: {', '.join(WRITERS)}.", required=True)
@click.option("--per-rank", is_flag=True, help="Write a file for each rank, also where one file could hold them all.")
@click.option("--no-details", is_flag=True, help="Of a .trace.json: leave out shapes, sources and FLOPs.")
@verb
def command(
    files: tuple[str, ...], run: TargetRun, output: Path, per_rank: bool, no_details: bool, as_json: bool
) -> None:
    """Write graphs in another format.

    FILE is a saved graph; TARGET a model or function, as for `torchatlas capture`. Several files are the ranks of one
    program: a trace holds them as processes, in one file; other formats become a file for each rank.

    \b
    torchatlas convert step.atlas -o step.trace.json
    torchatlas convert step.atlas -o step.speedscope.json
    torchatlas convert run-rank0.atlas run-rank1.atlas -o ranks.trace.json
    torchatlas convert run-rank*.atlas -o traces/step.trace.json --per-rank
    torchatlas convert run-rank*.atlas -o step.et
    """
    check_output(output)
    graphs = [GraphSource(file, run).graph("convert", as_json) for file in files]
    options: dict[str, Any] = {"details": False} if no_details else {}
    with progress(f"writing {output.name}"):
        if len(graphs) == 1 and not per_rank:
            written = [graphs[0].save(output, **options)]
        else:
            written = save_ranks(graphs, output, per_rank=per_rank, **options)
    missing = missing_ranks(graphs) if len(graphs) > 1 else []
    if missing and not as_json:
        world = max(graph.metadata["world_size"] for graph in graphs)
        echo(f"rank {', '.join(map(str, missing))} of {world:,} is missing: the others were written.", err=True)
    content = {"files": [str(path) for path in written], "missing_ranks": missing}
    print_result(content, "\n".join(f"written: {path}" for path in written), as_json)
