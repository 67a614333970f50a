"""Which operators were traced and replayed: the zoo and architectures -> the tables of docs/supported-operations.md.

    python benchmarks/supported.py

An operator is listed as traced if a traced program that holds it returned what its model returns, and as replayed if a
capture that holds it was verified; both to the bit. Nothing is listed because it should work. The exit code is 1 if a
program is neither equal nor on the list of those that torch.export refuses.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.errors import CaptureError
from torchatlas.operations import operation_type
from torchatlas.torch_private import pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from execute.tracing import REFUSED
from support import load_transformers
from zoo import ZOO, Specimen, leaves_of, tensors_in

from benchmarks.architectures import ARCHITECTURES, Architecture, run

PAGE = Path(__file__).resolve().parent.parent / "docs" / "supported-operations.md"
FOUND = "\n## What was found\n"  # what stands above it in the page is written by hand


class Function(nn.Module):
    """What is not a module, as one: torch.export takes modules only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def traced_operations(specimen: Specimen) -> set[str] | None:
    """The operators of a specimen's traces, in training and in eval, that return what it returns; None if none does."""
    found: set[str] | None = None
    for training in (True, False):
        model, args, kwargs = specimen.build()
        _, our_args, our_kwargs = specimen.build()  # some write to their inputs
        if not isinstance(model, nn.Module):
            model = Function(model)
        model.train(training)
        try:
            traced = atlas.trace(model, *our_args, kwargs=our_kwargs)
        except CaptureError:
            continue
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        torch.manual_seed(1)
        got = traced(*our_args, **our_kwargs)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.manual_seed(1)
        if is_equal(got, model(*args, **kwargs)):
            found = (found or set()) | operations(traced.graph)
    return found


def replayed_operations(specimen: Specimen) -> set[str] | None:
    """The operators of a specimen's captures, a forward pass and a training step, if a replay proves both."""
    model, args, kwargs = specimen.build()
    graphs = [atlas.capture(model, *args, kwargs=kwargs, values="replay")]
    if specimen.trains:
        model, args, kwargs = specimen.build()
        leaves = list(leaves_of(model, args, kwargs).values())
        kind = torch.optim.SparseAdam if specimen.name == "sparse_gradient" else torch.optim.AdamW
        optimizer = kind(leaves, lr=0.01) if leaves else None
        options: Any = {"backward": True, "optimizer": optimizer, "values": "replay"}
        graphs.append(atlas.capture(model, *args, kwargs=kwargs, **options))
    if not all(map(atlas.verify, graphs)):
        return None
    return {name for graph in graphs for name in operations(graph)}


def architecture_operations(architecture: Architecture) -> set[str] | None:
    outcome = run(architecture)
    if outcome.traced is None or not outcome.as_expected:
        return None
    return operations(outcome.traced.graph)


def operations(graph: atlas.Graph) -> set[str]:
    return {node.operation for node in graph.where(kind="op")}


def is_equal(got: Any, wanted: Any) -> bool:
    """To the bit, but for what bits a NaN has."""
    ours, our_structure = pytree.tree_flatten(got)
    theirs, structure = pytree.tree_flatten(wanted)
    return bool(our_structure == structure and all(map(_is_same_leaf, ours, theirs)))


def _is_same_leaf(one: Any, other: Any) -> bool:
    tensors = list(tensors_in(one)), list(tensors_in(other))  # also those in a dataclass that pytree does not know
    if not any(tensors):
        return bool(one == other)
    try:
        torch.testing.assert_close(*tensors, rtol=0, atol=0, equal_nan=True, check_stride=False)
    except AssertionError:
        return False
    return True


def page(traced: Counter[str], replayed: Counter[str]) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*traced, *replayed}):
        groups[operation_type(name).value].append(name)
    above = PAGE.read_text("utf-8").partition(FOUND)[0]
    lines = [above + FOUND, f"{len(traced)} operators were traced, {len(replayed)} replayed.", ""]
    for kind, names in sorted(groups.items()):
        lines += [f"## {kind}", "", "| operator | traced | replayed |", "|---|---|---|"]
        lines += [f"| `{name}` | {traced[name] or ''} | {replayed[name] or ''} |" for name in names]
        lines.append("")
    return "\n".join(lines)


def collected(programs: Iterable[set[str] | None]) -> Counter[str]:
    """In how many programs each operator is."""
    return Counter(name for found in programs for name in found or ())


def progress(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        print(entry, end=" ", flush=True)
        yield entry
        gc.collect()  # some are large


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_transformers().logging.set_verbosity_error()
    began = time.perf_counter()
    zoo = {specimen.name: traced_operations(specimen) for specimen in progress(ZOO)}
    large = {entry.name: architecture_operations(entry) for entry in progress(ARCHITECTURES.values())}
    replayed = {specimen.name: replayed_operations(specimen) for specimen in progress(ZOO)}
    failed = [f"{name} (traced)" for name, found in {**zoo, **large}.items() if found is None and name not in REFUSED]
    failed += [f"{name} (replayed)" for name, found in replayed.items() if found is None]
    traced = collected([*zoo.values(), *large.values()])
    PAGE.write_text(page(traced, collected(replayed.values())))
    print(f"\n{len(traced)} operators traced, {time.perf_counter() - began:.0f} s, torch {torch.__version__}.")
    if failed:
        print("Not equal, or refused: " + ", ".join(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
