"""Everything that must hold of a random program: what each check finds wrong, in words that begin with its kind."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from capturing.byte_witness import ByteWitness, edge_faults
from capturing.witness import content
from programs import Program
from render.layout.verify import account, defects, hidden
from torch import nn

import torchatlas as atlas
from torchatlas.graph.consistency import faults

PAGES = ((1400, 1000), (700, 500), (320, 240))
counted: dict[str, int] = {"ops": 0, "unstable": 0, "patched": 0}


def kind_of(fault: str) -> str:
    """What failed, without the details: a shorter program must fail in the same way."""
    return fault.partition(":")[0]


def faults_of(program: Program) -> list[str]:
    """All that is wrong with how a program is recorded; empty when all is well."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        return list(_faults(program, Path(folder)))


def _faults(program: Program, folder: Path) -> Iterator[str]:
    alone, again = _left_by(program, None), _left_by(program, None)
    if alone != again:  # memory that nobody has initialized, or a race inside a kernel: nothing can be said
        counted["unstable"] += 1
        return
    recording, witness = atlas.recording(values="replay"), ByteWitness()
    try:
        left = _left_by(program, recording)
        watched = _Both(atlas.recording(), witness)
        left_again = _left_by(program, watched)
        graph, plain = recording.graph, watched.recording.graph
    except Exception as error:
        yield f"recording raised {type(error).__name__}: {_where(error)}"
        return
    counted["ops"] += len(graph)
    for found, how in ((left, "recorded"), (left_again, "recorded and watched")):
        yield from (f"changed by being {how}: {name}" for name in _different(alone, found))
    for check in (_sound, _verified, _filed, _costed, _remembered, _drawn):
        try:
            yield from check(graph, folder)
        except Exception as error:
            yield f"{check.__name__[1:]} raised {type(error).__name__}: {_where(error)}"
    if plain.hash != graph.hash:
        yield f"hash: {graph.hash[:12]} and, recorded once more, {plain.hash[:12]}"
    elif [node.name for node in plain.nodes] != [node.name for node in graph.nodes]:
        yield "names: not the same when recorded once more"
    yield from edge_faults(plain, witness)
    yield from _live_faults(plain, witness)


class _Both:
    """A recording, and inside of it a witness."""

    def __init__(self, recording: Any, witness: ByteWitness) -> None:
        self.recording, self.witness = recording, witness

    def __enter__(self) -> None:
        self.recording.__enter__()
        self.witness.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.witness.__exit__(*error)
        self.recording.__exit__(*error)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    lines = "; ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{(str(error).splitlines() or [''])[0][:200]} ({lines})"


# -- what a program leaves behind --------------------------------------------------------------------------------------


def _left_by(program: Program, around: Any) -> dict[str, Any]:
    names = program.run(around)
    found: dict[str, Any] = {"random numbers": content(torch.get_rng_state())}
    for name, item in names.items():
        if isinstance(item, torch.Tensor):
            found[name] = content([item, _gradient(item)])
        elif isinstance(item, nn.Module):
            own = [*item.named_parameters(), *item.named_buffers()]
            found |= {f"{name}.{key}": content([one, one.grad]) for key, one in own if not nn.parameter.is_lazy(one)}
        elif isinstance(item, torch.optim.Optimizer):
            found[name] = content([list(state.values()) for state in item.state.values()])
    return found


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    except RuntimeError:  # a view that torch has made unusable, as another view of its base was written
        return None


def _different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one | other if one.get(name) != other.get(name)]


# -- the graph ---------------------------------------------------------------------------------------------------------


def _sound(graph: atlas.Graph, folder: Path) -> Iterator[str]:
    if problem := faults(graph.columns, graph.tables):
        yield f"faults: {problem}"
    names = [node.name for node in graph.nodes]
    if len(set(names)) < len(names):
        yield f"names: {sorted(name for name in set(names) if names.count(name) > 1)} stand for several nodes"


def _verified(graph: atlas.Graph, folder: Path) -> Iterator[str]:
    proof = atlas.verify(graph)
    counted["patched"] += bool(proof.patches)
    if not proof:
        yield f"verify: {proof}"


def _filed(graph: atlas.Graph, folder: Path) -> Iterator[str]:
    loaded = atlas.load(graph.save(folder / "graph.atlas"))
    if not loaded.identical(graph) or loaded.hash != graph.hash:
        yield "files: .atlas loads back different"
    elif not (proof := atlas.verify(loaded, allow={node.operation for node in graph.where(kind="op")})):
        yield f"files: what was loaded does not verify: {proof}"
    flat = atlas.load(graph.save(folder / "graph.json"))
    once_more = atlas.load(flat.save(folder / "again.atlas"))
    same = all(np.array_equal(flat.columns[name], column) for name, column in graph.columns.items())
    if not same or flat.tables != graph.tables or flat.hash != graph.hash or not once_more.identical(flat):
        yield "files: .json loads back different"


def _costed(graph: atlas.Graph, folder: Path) -> Iterator[str]:
    report = atlas.cost(graph)
    for name in ("macs", "flops", "elementwise_flops"):
        nodes = [getattr(report.node(node), name) for node in graph.where(kind="op")]
        if getattr(report, name) != sum(number for number in nodes if number is not None):
            yield f"cost: {name} of the nodes do not sum to the total"
    root = graph.scopes[""]
    if root.operations != len(graph.where(kind="op")) or sum(root.operations_by_phase.values()) != root.operations:
        yield "cost: ops of the phases do not sum to the total"
    for scope in graph.scopes.values():
        if scope.operations != scope.own_operations + sum(child.operations for child in scope.children):
            yield f"cost: ops of {scope.path!r} do not sum to its total"


def _remembered(graph: atlas.Graph, folder: Path) -> Iterator[str]:
    if not len(graph):
        return
    report = atlas.memory(graph)
    if not report.peak_bytes == graph.peak_bytes == sum(report.by_category.values()):
        yield f"memory: a peak of {report.peak_bytes} in parts of {sum(report.by_category.values())}"
    if report.timeline["unattributed"].any():
        yield "memory: live bytes that no storage explains"
    if sum(row.bytes for row in report.by_line) != graph.peak_bytes:
        yield "memory: lines do not sum to the peak"


def _drawn(graph: atlas.Graph, folder: Path) -> Iterator[str]:
    for width, height in PAGES if len(graph) else ():
        picture = atlas.draw(graph, width=width, height=height)
        found = account(picture.outline, picture.scene)
        problems = [*defects(picture.scene), *found.missing, *found.invented, *hidden(picture.outline, picture.scene)]
        if problems:
            yield f"drawn: {width}x{height}: {problems[0]}"


def _live_faults(graph: atlas.Graph, witness: ByteWitness) -> Iterator[str]:
    """What is alive after each op, counted by the witness.

    A storage from outside counts from the beginning if it outlives the program, else from its first use. Parameters
    of modules that ran also count where no op took them.
    """
    if not witness.live:
        return
    last, columns = witness.live[-1], graph.columns
    met_by_graph = np.unique(columns["value_storage"][np.append(columns["input_value"], columns["output_value"])])
    unmet = np.setdiff1d(np.arange(len(columns["storage_bytes"])), met_by_graph)
    never_taken = int(columns["storage_bytes"][unmet].clip(0).sum())
    before = {n: size for n, size in witness.first.items() if witness.came[n] and n in last}
    met: set[int] = set()
    for op, (node, alive) in enumerate(zip(graph.where(kind="op"), witness.live, strict=False)):
        met |= alive.keys()
        expected = never_taken + sum(alive.values()) + sum(size for n, size in before.items() if n not in met)
        if node.memory_bytes != expected:
            yield f"live bytes: {node.memory_bytes} after {node.name} (op {op}), the witness counts {expected}"
            return
