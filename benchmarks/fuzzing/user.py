"""What a user does with a file: load it, look at all of it, save it again, call the program in it, replay it."""

import contextlib
import functools
import gc
import hashlib
import itertools
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchatlas as atlas
from fuzzing.seeds import Seed
from torchatlas.analysis import critical_path, levels
from torchatlas.analysis.cost import cost_text
from torchatlas.analysis.gradients import gradient_norms
from torchatlas.errors import AtlasError
from torchatlas.graph import Graph
from torchatlas.graph.identity import first_difference
from torchatlas.render.text import summary_text


class Fault(Exception):
    """What is wrong although nothing raised."""


def use(path: Path, seed: Seed, case: int, *, turns: int = 1, step_by_step: bool = False) -> str:
    """Load, look at, save and run a file. Returns "refused", or "loaded" with the steps that were refused.

    With `turns`, a case takes one of so many looks, which depend on its number: the next cases take the others.

    Errors of torchatlas are answers; any other reaches the caller, with the step in its notes. The world outside is
    compared in the end, or after each step.
    """
    before = world()
    try:
        graph = _noted("load", lambda: Graph.load(path))
    except AtlasError as error:
        if str(path) not in str(error):
            raise Fault(f"load: the message does not name the file: {error}") from error
        _compare("load", before)
        return "refused"
    refused = []
    looks = [look for place, look in enumerate(_looks(graph, path, case)) if (place + case) % turns == 0]
    steps = itertools.chain(looks, _runs(graph, path, seed))
    for name, step in steps:
        if not _done(name, step):
            refused.append(name)
        if step_by_step:
            _compare(name, before)
    _compare("all of it", before)
    return f"loaded, then refused: {', '.join(refused)}" if refused else "loaded"


def _done(name: str, step: Callable[[], Any]) -> bool:
    try:
        _noted(name, step)
    except AtlasError as error:
        if name.startswith("save"):
            raise Fault(f"{name}: what was loaded cannot be written: {error}") from error
        return False
    return True


def _noted(name: str, step: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step()
    except BaseException as error:
        error.add_note(f"step: {name}")
        raise


Step = tuple[str, Callable[[], Any]]


def _looks(graph: Graph, path: Path, case: int) -> Iterator[Step]:
    yield "look", lambda: _look(graph)
    yield "summary", lambda: summary_text(graph)
    yield "table", lambda: (str(atlas.module_table(graph)), str(atlas.module_bars(graph)))
    yield "cost", lambda: cost_text(atlas.cost(graph))
    yield "memory", lambda: str(atlas.memory(graph))
    yield "schedule", lambda: (levels(graph), critical_path(graph))
    yield "gradients", lambda: gradient_norms(graph)
    yield "draw", lambda: atlas.draw(graph, width=500, height=400)
    yield "partition", lambda: atlas.ConcurrencyAnalyzer().analyze(atlas.GraphPartitioner().partition(graph))
    yield "part", lambda: graph.subgraph(range(len(graph) // 2))
    for suffix in (".json", ".atlas"):
        yield f"save {suffix}", lambda suffix=suffix: _save(graph, path.with_name(f"again{suffix}"))
    yield "page", lambda: graph.save(path.with_name("again.html"))
    others = (".csv", ".dot", ".mmd")  # by turns, also where only every 24th case comes here
    yield "write", lambda: graph.save(path.with_name(f"again{others[case // 6 % len(others)]}"))


def _runs(graph: Graph, path: Path, seed: Seed) -> Iterator[Step]:
    if seed.replays:
        yield "verify", lambda: atlas.verify(graph)
    if seed.inputs:
        for inputs in seed.inputs:
            yield "call", lambda inputs=inputs: _call(path, inputs)


def _look(graph: Graph) -> None:
    """All that a graph hands out."""
    for node in graph:
        _ = repr(node), node.attributes, node.arguments, node.scope, node.source, node.writes, node.call_index
        _ = node.forward_node, node.backward_nodes, node.successors, node.predecessors, node.thread, node.time_ns
        for value in (*node.inputs, *node.outputs):
            _ = repr(value), value.producer, value.view_of, value.storage, value.consumers, value.stride
    _ = [repr(edge) for edge in graph.edges], [repr(storage) for storage in graph.storages], repr(graph), graph.hash
    _ = [(scope.path, scope.name, scope.parameters) for scope in graph.scopes.values()], graph.time_ns, graph.peak_bytes


def _save(graph: Graph, path: Path) -> None:
    """What was loaded can be written, and comes back the same."""
    again = Graph.load(graph.save(path))
    if path.suffix == ".json" and graph.recorded:
        again.notes, again.recorded = graph.notes, graph.recorded
    if (difference := first_difference(graph, again)) is not None:
        raise Fault(f"{path.suffix} came back changed: {difference}")


def _call(path: Path, inputs: tuple[Any, ...]) -> None:
    """A program may draw random numbers, and write to what it is given."""
    traced = atlas.load(path)
    if isinstance(traced, Graph):  # of which nothing says any more that it is a program
        return
    with torch.random.fork_rng(devices=[]):
        traced(*(item.clone() for item in inputs))


# -- the world outside -----------------------------------------------------------------------------------------------


def _compare(name: str, before: dict[str, Any]) -> None:
    after = world()
    if changed := [key for key in before if before[key] != after[key]]:
        key = changed[0]
        old, new = before[key], after[key]
        if isinstance(old, frozenset):  # only what differs says something
            old, new = sorted(old - after[key]), sorted(new - before[key])
        raise Fault(f"{name} changed {key}: {str(old)[:80]} -> {str(new)[:80]}")


def world() -> dict[str, Any]:
    """What nothing may change."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "threads of torch": torch.get_num_threads(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "open files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "recursion limit": sys.getrecursionlimit(),
        "garbage collector": gc.isenabled(),
        "modules": _foreign(frozenset(sys.modules)),
        "canary": [name for name in os.listdir() if not name.startswith(("case", "again"))],
        "random numbers": hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "Python's random numbers": hash(random.getstate()),
        "numpy's random numbers": int(np.random.get_state()[1][:8].sum()),  # noqa: NPY002
    }


# Imported when first used, by us, by torch or by the standard library on our behalf.
_OUR_MODULES = (
    "torch",
    "sympy",
    "mpmath",
    "numpy",
    "safetensors",
    "rich",
    "click",
    "encodings",
    "_",
    "networkx",
)


@functools.lru_cache(maxsize=4)
def _foreign(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if not name.startswith(_OUR_MODULES))


def warm_up(seeds: list[Seed], folder: Path) -> None:
    """Use every seed once, so that whatever is imported or opened lazily is there before cases are watched."""
    world()  # so is what it asks itself
    for seed in seeds:
        path = folder / f"case{seed.suffix}"
        path.write_bytes(seed.data)
        with contextlib.chdir(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = Graph.load(path)
            with contextlib.suppress(AtlasError):
                graph.save(folder / "warm.png")  # which no case of these may write
            for case in (0, 6, 12):
                for _, step in (*_looks(graph, path, case), *_runs(graph, path, seed)):
                    with contextlib.suppress(AtlasError):
                        step()
