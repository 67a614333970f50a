"""torchatlas join FILE|TARGET TRACE: the times of a profiler's trace on the ops of a graph; of a file without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import check_output, echo, output_option, print_result, progress, verb
from torchatlas.export.profile_join import join_profile


@click.command()
@graph_argument
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--step", type=int, metavar="N", help="The ProfilerStep to take.  [default: the last]")
@output_option("Write the graph with the device times (.atlas, .json ...).")
@verb
def command(source: GraphSource, trace: Path, step: int | None, output: Path | None, as_json: bool) -> None:
    """Bring the kernel times of a profiler into a graph.

    FILE is a saved graph; TARGET a model or function, as for `torchatlas capture`. TRACE is a .json or .json.gz that
    torch.profiler exported while the same program ran. Prints which ops were found, what they took on the host and on
    the device, and what found no partner.

    \b
    torchatlas join step.atlas trace.json
    torchatlas join step.atlas trace.json.gz --step 3 -o joined.atlas
    """
    check_output(output)
    graph = source.graph("join", as_json)
    with progress(f"reading {trace.name}"):
        joined = join_profile(graph, trace, step=step)
    if output is not None:
        graph.save(output)
    content = {"file": source.text, "output": None if output is None else str(output), "join": joined.to_dict()}
    print_result(content, joined, as_json)
    if output is not None and not as_json:
        echo(f"\nwritten: {output}")
