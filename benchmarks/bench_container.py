"""What a graph of a million nodes costs: memory, files, levels and longest path, beside numpy, json and rustworkx.

    python benchmarks/bench_container.py [--nodes N] [--edges N] [--repeats N]

Every pair is timed in turns in one process; the table shows medians, and ours divided by theirs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from synthetic import random_graph  # noqa: E402

from torchatlas.analysis import levels, longest_path  # noqa: E402
from torchatlas.graph import Graph  # noqa: E402

Job = Callable[[], Any]


def in_turns(ours: Job, theirs: Job, repeats: int) -> tuple[float, float]:
    """The median seconds of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for job, found in zip((ours, theirs), times, strict=True):
            gc.collect()
            start = time.perf_counter()
            result = job()
            found.append(time.perf_counter() - start)
            del result
    return statistics.median(times[0]), statistics.median(times[1])


def show(what: str, beside: str, goal: float, seconds: tuple[float, float]) -> None:
    ours, theirs = seconds
    mark = "" if ours <= goal * theirs else "  <-- over"
    print(
        f"{what:40}{ours:8.3f} s  {beside:32}{theirs:8.3f} s  ratio {ours / theirs:5.2f}  goal {goal:g}{mark}",
        flush=True,
    )


def archives(graph: Graph, folder: Path, repeats: int) -> None:
    ours, theirs = folder / "graph.atlas", folder / "graph.npz"
    saved = in_turns(lambda: graph.save(ours), lambda: np.savez(theirs, **graph.columns), repeats)
    show(".atlas save", "np.savez of the columns", 3, saved)
    loaded = in_turns(lambda: Graph.load(ours), lambda: dict(np.load(theirs)), repeats)
    show(".atlas load", "np.load of the columns", 3, loaded)
    print(f"    {ours.stat().st_size / len(graph):.0f} bytes a node")


def documents(graph: Graph, folder: Path, repeats: int) -> None:
    ours, theirs = folder / "graph.json", folder / "same.json"
    graph.save(ours)
    loaded = in_turns(lambda: Graph.load(ours), lambda: json.loads(ours.read_bytes()), repeats)
    objects = json.loads(ours.read_bytes())
    gc.freeze()  # or every collection in the rest of the run would walk through these millions of objects
    saved = in_turns(lambda: graph.save(ours), lambda: theirs.write_text(json.dumps(objects)), repeats)
    gc.unfreeze()
    show(".json save", "json.dumps of the same objects", 1.5, saved)
    show(".json load", "json.loads of the same file", 1.5, loaded)
    print(f"    {ours.stat().st_size / len(graph):.0f} bytes a node")


def shapes(nodes: int, edges: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for name, layers in (("1000 layers", 1000), ("4 layers", 4)):
        width = nodes // layers
        target = rng.integers(width, width * layers, edges)
        yield name, (target // width - 1) * width + rng.integers(0, width, edges), target
    yield "chain", np.arange(nodes - 1), np.arange(1, nodes)
    target = np.sort(rng.integers(1, nodes, edges))
    yield "random", (rng.random(edges) * target).astype(np.int64), target
    target = np.append(np.arange(1, nodes), rng.integers(1, nodes, edges - nodes + 1))
    source = np.append(
        np.arange(nodes - 1), np.maximum(target[nodes - 1 :] - rng.integers(1, 50, edges - nodes + 1), 0)
    )
    order = np.argsort(target, kind="stable")
    yield "chain with skips", source[order], target[order]


def schedules(graph: Graph, repeats: int) -> None:
    try:
        import rustworkx
    except ImportError:
        print("levels, longest path: rustworkx is not installed")
        return
    columns = graph.columns
    by_time = np.maximum(columns["node_time_ns"], 0).astype(float).tolist()
    synthetic = ("synthetic", columns["edge_source"], columns["edge_target"])
    for name, source, target in [*shapes(len(graph), len(graph.edges)), synthetic]:
        one = Graph(columns | {"edge_source": source.astype(np.int32), "edge_target": target.astype(np.int32)})
        one.columns["edge_kind"] = np.zeros(len(source), np.uint8)
        other = rustworkx.PyDiGraph()
        other.add_nodes_from(range(len(graph)))
        other.add_edges_from_no_data(list(zip(source.tolist(), target.tolist(), strict=True)))
        jobs: dict[str, tuple[Job, str, Job]] = {
            "levels": (
                partial(levels, one),
                "topological_generations",
                partial(rustworkx.topological_generations, other),
            ),
            "longest path": (
                partial(longest_path, one),
                "dag_longest_path",
                partial(rustworkx.dag_longest_path, other),
            ),
            "longest path by time": (
                partial(longest_path, one, "time_ns"),
                "dag_weighted_longest_path",
                partial(rustworkx.dag_weighted_longest_path, other, lambda s, t, _: by_time[t]),
            ),
        }
        for what, (ours, beside, theirs) in jobs.items():
            show(f"{what}, {name}", beside, 1, in_turns(ours, theirs, repeats))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=1_000_000)
    options.add_argument("--edges", type=int, default=2_000_000)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--only", choices=["files", "schedule"])
    chosen = options.parse_args()
    graph = random_graph(chosen.nodes, chosen.edges)
    size = graph.nbytes / len(graph)
    print(f"{graph}\nmemory: {size:.0f} bytes a node, goal 300{'' if size <= 300 else '  <-- over'}")
    if chosen.only != "schedule":
        with tempfile.TemporaryDirectory() as folder:
            archives(graph, Path(folder), chosen.repeats)
            documents(graph, Path(folder), chosen.repeats)
    if chosen.only != "files":
        schedules(graph, chosen.repeats)


if __name__ == "__main__":
    main()
