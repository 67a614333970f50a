"""A decoded step -> its structure: what it takes to read further steps of it without decoding, and to tell it apart."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from torchatlas.capturing.step_rows import StepRows
from torchatlas.graph import Graph, NodeKind
from torchatlas.graph.columns import KINDS, Array
from torchatlas.graph.identity import structural_hash

MOST_MODULES = 24  # that have a time of their own: as many as a plot can tell apart
OUTSIDE, OTHERS = "(top level)", "(other modules)"
_MOST_WORDS = 4  # of what is different


@dataclass(frozen=True)
class KnownStructure:
    """One structure of a run."""

    number: int
    hash: str
    ops: int
    modules: tuple[str, ...]  # the columns of times
    module_of_op: Array  # positions in `modules`
    operations: tuple[str, ...]  # of every op
    results: tuple[str, ...]  # of every op, dtypes and shapes
    inputs: dict[str, str]  # name -> dtype and shape

    @cached_property
    def modules_that_ran(self) -> list[str]:
        return [self.modules[at] for at in dict.fromkeys(self.module_of_op.tolist())]

    def times(self, rows: StepRows) -> list[int]:
        """How long the ops of each of `modules` took."""
        sums = np.bincount(self.module_of_op, rows.times_ns, len(self.modules))
        times_ns: list[int] = sums.astype(np.int64).tolist()
        return times_ns


def allocated_bytes(graph: Graph, rows: StepRows) -> Array | None:
    """What would be alive after each op if nothing had died; equal for all steps with the same signature."""
    live = graph.columns["node_memory_bytes"][graph.columns["node_kind"] == KINDS.index(NodeKind.OP)]
    return live + rows.freed_bytes() if len(live) and live.min() >= 0 else None


def peak_bytes(allocated: Array | None, rows: StepRows) -> int | None:
    """The most that was alive after any op of a step."""
    return None if allocated is None else int((allocated - rows.freed_bytes()).max())


def structure_of(graph: Graph, number: int, key: str, level: int) -> KnownStructure:
    """The structure that a step has; `level` says how deep modules are told apart."""
    columns, index = graph.columns, graph.index
    is_op = columns["node_kind"] == KINDS.index(NodeKind.OP)
    paths = [at_level(path, level) for path in index.paths]
    names = tuple(dict.fromkeys(paths))
    of_path = np.array([names.index(path) for path in paths], np.int64)
    operations = [graph.tables.operations[row].name for row in columns["node_operation"][is_op].tolist()]
    results = [_results(graph, node) for node in np.flatnonzero(is_op).tolist()]
    return KnownStructure(
        number=number,
        hash=key,
        ops=len(operations),
        modules=names,
        module_of_op=of_path[index.path_of_call[columns["node_call"][is_op]]],
        operations=tuple(operations),
        results=tuple(map(sys.intern, results)),
        inputs={node.name: _results(graph, node.id) for node in graph.where(kind=NodeKind.INPUT)},
    )


def _results(graph: Graph, node: int) -> str:
    """The dtypes and shapes of what a node makes."""
    columns = graph.columns
    values = columns["output_value"][columns["output_ptr"][node] : columns["output_ptr"][node + 1]].tolist()
    layouts = [graph.tables.layouts[columns["value_layout"][value]] for value in values if value >= 0]
    return ", ".join(f"{layout.dtype}[{', '.join(map(str, layout.shape))}]" for layout in layouts)


def structure_hash(graph: Graph) -> str:
    """As `graph.hash`, but for the real numbers that ops take: a learning rate that falls makes no other structure."""
    arguments = [json.dumps(json.loads(text, parse_float=lambda _: 0.0)) for text in graph.tables.arguments]
    return structural_hash(Graph(graph.columns, replace(graph.tables, arguments=arguments), source=graph.source))


def difference(before: KnownStructure, after: KnownStructure) -> str:
    """What is different, in a few words."""
    words = [
        f"input {name} {before.inputs[name]} -> {layout}"
        for name, layout in after.inputs.items()
        if name in before.inputs and before.inputs[name] != layout
    ]
    words += [f"{name} runs" for name in after.modules_that_ran if name not in before.modules_that_ran]
    words += [f"{name} does not run" for name in before.modules_that_ran if name not in after.modules_that_ran]
    ops, ops_before = Counter(after.operations), Counter(before.operations)
    words += [f"{count:+,} {name}" for name, count in (ops - ops_before).most_common()]
    words += [f"{-count:+,} {name}" for name, count in (ops_before - ops).most_common()]
    if after.ops != before.ops and len(words) > 1:
        words.insert(0, f"{before.ops:,} -> {after.ops:,} ops")
    if not words:
        words = [_first_difference(before, after)]
    return ", ".join(words[:_MOST_WORDS]) + (" ..." if len(words) > _MOST_WORDS else "")


def _first_difference(before: KnownStructure, after: KnownStructure) -> str:
    """Where two structures of equally many ops part."""
    for at, (old, new) in enumerate(zip(before.operations, after.operations, strict=True)):
        module = after.modules[after.module_of_op[at]]
        where = "" if module == OUTSIDE else f" in {module}"
        if old != new:
            return f"op {at:,}{where} is {new}, not {old}"
        if before.results[at] != after.results[at]:
            return f"{new}{where} makes {after.results[at] or 'nothing'}, not {before.results[at] or 'nothing'}"
    return "the same ops with other arguments or on other tensors"


def module_level(paths: Sequence[str]) -> int:
    """The deepest level at which there are no more modules than have times of their own."""
    deepest = max((path.count(".") + 1 for path in paths), default=1)
    level = 1
    while level < deepest and len({at_level(path, level + 1) for path in paths}) <= MOST_MODULES:
        level += 1
    return level


def at_level(path: str, level: int) -> str:
    """The module at a level that a module lies in.

    >>> at_level("blocks.0.mlp.up", 2), at_level("head", 2), at_level("", 2)
    ('blocks.0', 'head', '(top level)')
    """
    return ".".join(path.split(".")[:level]) or OUTSIDE
