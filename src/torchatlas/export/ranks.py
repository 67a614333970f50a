"""The graphs of several ranks -> one file with a process for each, or a file for each, as the format has it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.formats import RANK_WRITERS, as_path, save, save_together, suffix_of, with_rank


@explains_arguments
def save_ranks(
    graphs: Iterable[Graph], path: str | os.PathLike[str], *, per_rank: bool = False, **options: Any
) -> list[Path]:
    """Write the graphs of a program of several processes; the suffix chooses the format.

    Traces (.trace.json, .trace.json.gz) and flame graphs (.speedscope.json) hold all ranks in one file. Any other
    format becomes a file for each rank: step.atlas is written as step-rank0.atlas, and step.et as step.0.et, as
    simulators that read Chakra's traces expect it.

    Args:
        graphs: A graph for each rank. A graph that was recorded in a process group knows its rank; if none of them
            does, their order counts.
        path: Where to write.
        per_rank: Write a file for each rank in any case. HTA wants its traces so.
        **options: Those of the format, as for `Graph.save`.
    Returns:
        The files that were written.
    Raises:
        InvalidInputError: There is no graph, or two have the same rank.
        FileFormatError: No format has that suffix.
        FileSystemError: A file cannot be written.
        AnalysisError: A timeline was asked of a graph without times.
    Example:
        >>> import tempfile, torch, torchatlas as atlas
        >>> graphs = [atlas.capture(torch.nn.Linear(4, 2), torch.ones(size, 4)) for size in (1, 2)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print([path.name for path in atlas.save_ranks(graphs, f"{folder}/step.trace.json")])
        ...     print([path.name for path in atlas.save_ranks(graphs, f"{folder}/step.et")])
        ['step.trace.json']
        ['step.0.et', 'step.1.et']
    """
    listed, target = list(graphs), as_path(path)
    ranks = ranks_of(listed)
    if suffix_of(target) in RANK_WRITERS and not per_rank:
        return [save_together(listed, target, **options)]
    return [save(graph, _of_rank(target, rank), **options) for graph, rank in zip(listed, ranks, strict=True)]


def _of_rank(path: Path, rank: int) -> Path:
    """ASTRA-sim looks for NAME.RANK.et."""
    return path.with_name(f"{path.stem}.{rank}{path.suffix}") if suffix_of(path) == ".et" else with_rank(path, rank)


def ranks_of(graphs: Sequence[Graph]) -> list[int]:
    """The rank of each graph, as it was recorded; the position in the list where none has one."""
    if not graphs:
        raise InvalidInputError("There is no graph to write: give one for each rank.")
    for one in graphs:
        if not isinstance(one, Graph):
            raise InvalidInputError(f"A graph is expected for each rank, not {type(one).__name__}: {one!r:.80}.")
    known = ["rank" in graph.metadata for graph in graphs]
    if any(known) and not all(known):
        raise InvalidInputError(
            f"Graph {known.index(False)} does not know its rank, and others do: they are not of one program. Record "
            "each process after torch.distributed.init_process_group."
        )
    ranks = [int(graph.metadata["rank"]) if all(known) else at for at, graph in enumerate(graphs)]
    for at, rank in enumerate(ranks):
        if rank in ranks[:at]:
            raise InvalidInputError(
                f"Graphs {ranks.index(rank)} and {at} are both of rank {rank}: give one graph for each rank."
            )
    return ranks


def missing_ranks(graphs: Sequence[Graph]) -> list[int]:
    """The ranks of the program that none of these graphs comes from."""
    world = max((int(graph.metadata.get("world_size", 0)) for graph in graphs), default=0)
    there = set(ranks_of(graphs))
    return [rank for rank in range(min(world, 1_000_000)) if rank not in there]
