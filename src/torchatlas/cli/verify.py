"""torchatlas verify FILE|TARGET: run a graph once more and compare every bit with what was captured."""

from __future__ import annotations

import click

from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import allow_option, print_result, progress, verb

DIFFERENT = 1


@click.command()
@graph_argument
@allow_option
@verb
def command(source: GraphSource, allow: tuple[str, ...], as_json: bool) -> None:
    """Replay a graph and compare every bit of it.

    FILE was captured with --values replay; a TARGET is captured so now. Exit code 0: equal to the bit; 1: not; 2: it
    cannot be replayed.

    \b
    torchatlas verify step.atlas
    torchatlas verify models.gpt:build --inputs int64:2,16 --backward
    """
    from torchatlas.execute.verify_replay import verify

    graph = source.graph("verify", as_json, values="replay")
    with progress(f"replaying {source.text}"):
        verification = verify(graph, allow=allow)
    print_result({"file": source.text, "verification": verification.to_dict()}, verification, as_json)
    if not verification:
        raise click.exceptions.Exit(DIFFERENT)
