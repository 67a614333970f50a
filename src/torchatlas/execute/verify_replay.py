"""A graph captured with values="replay" -> the proof that it is what happened: replayed, every bit compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.record_op import plan_for
from torchatlas.capturing.recorded_values import written_tensors
from torchatlas.capturing.replaying import leaves_of
from torchatlas.capturing.tensor_bytes import NO_DIGEST, fingerprint
from torchatlas.errors import CaptureError
from torchatlas.execute.program import Instruction
from torchatlas.execute.recorded_program import array
from torchatlas.execute.replay import OpLocation, ReplayObserver, ReplayProgram, Unplayed, op_location
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.graph.shown import Shown
from torchatlas.sections import Lines, Section


@dataclass(frozen=True, repr=False)
class Difference(OpLocation):
    """An output of an op that is not what the capture saw."""

    output: int  # which output of the op
    largest: float | None = None  # the largest difference, where the captured value is in the graph

    def __str__(self) -> str:
        by = f" by at most {self.largest:g}" if self.largest is not None else ""
        return f"output {self.output} of {super().__str__()} differs{by}"


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """What a replay compared with the capture. True when all of it is equal, bit for bit."""

    ops: int  # how many the graph has
    replayed: int  # how many ops ran again
    outputs: int  # compared: what ops returned or wrote
    outputs_equal: int  # how many are equal, bit for bit
    storages: int  # compared: those from outside, as they are in the end
    storages_equal: int  # how many end with the same bytes
    uninitialized: int  # outputs not compared: they hold whatever was in memory
    patches: dict[str, int] = field(default_factory=dict)  # memory no recorded op had written: why -> how many times
    first_difference: Difference | None = None  # None if there is none
    changed_storages: tuple[str, ...] = ()  # storages from outside that ended differently, by name where they have one
    unplayed: tuple[Unplayed, ...] = ()  # ops that could not run again
    captured_with: str = ""  # the version of torch
    replayed_with: str = ""  # the version of torch

    def __bool__(self) -> bool:
        equal = self.outputs == self.outputs_equal and self.storages == self.storages_equal
        return equal and self.replayed == self.ops and not self.unplayed

    def _sections(self) -> Iterator[Section]:
        lines = [
            f"{'verified' if self else 'NOT verified'}: {self.replayed:,} of {self.ops:,} ops replayed, "
            f"{self.outputs_equal:,} of {self.outputs:,} outputs and {self.storages_equal:,} of {self.storages:,} "
            "storages from outside are equal to the bit"
        ]
        if self.first_difference is not None:
            lines.append(f"first difference: {self.first_difference}")
        elif self.changed_storages:
            lines.append(f"ended differently: {', '.join(self.changed_storages)}")
        lines += [str(op) for op in self.unplayed]
        if not self and self.captured_with != self.replayed_with:
            lines.append(f"captured with torch {self.captured_with}, replayed with torch {self.replayed_with}")
        if self.uninitialized:
            lines.append(f"not compared: {self.uninitialized:,} outputs of uninitialized memory")
        lines += [f"memory {why}: {count:,} times; the bytes were kept" for why, count in self.patches.items()]
        yield Lines(lines)

    def to_dict(self) -> dict[str, Any]:
        """What JSON holds."""
        return {"verified": bool(self), **asdict(self)}


@explains_arguments
def verify(graph: GraphLike, *, allow: Iterable[str] = ()) -> Verification:
    """Run a graph captured with `values="replay"` once more and compare all it computes with the capture, bit for bit.

    Args:
        graph: A graph, or a file, recording or traced model that holds one.
        allow: Operators that a graph from a file may run although nobody reviewed them: names ("my_ops.scale.default")
            or namespaces ("my_ops"). For files that you trust; see SECURITY.md.
    Returns:
        A Verification, which is true if all is equal; `first_difference` names the first op that is not.
    Raises:
        StateError: The graph was not captured with `values="replay"`.
        NotAvailableError: The graph is no run.
        FileFormatError: A graph from a file asks for an operator that nobody reviewed.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4), backward=True, values="replay")
        >>> proof = atlas.verify(graph)
        >>> bool(proof), proof.replayed == proof.ops
        (True, True)
    """
    graph = as_graph(graph, "verify")
    program, tally = ReplayProgram(graph, allow), _Tally(graph)
    program.run(tally)
    return Verification(
        ops=len(program.ops),
        replayed=tally.done,
        outputs=tally.outputs,
        outputs_equal=tally.equal,
        storages=len(program.ended),
        storages_equal=sum(program.ended.values()),
        uninitialized=tally.skipped,
        patches=dict(Counter(patch[-1] for patch in program.data.patches)),
        first_difference=tally.first,
        changed_storages=tuple(_storage_name(graph, n) for n, same in program.ended.items() if not same),
        unplayed=() if program.stopped is None else (program.stopped,),
        captured_with=str(graph.metadata.get("torch", "")),
        replayed_with=torch.__version__.partition("+")[0],
    )


class _Tally(ReplayObserver):
    """Counts what is equal and remembers the first output that is not."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pointers, self.digests = array(graph, "digest_pointers").tolist(), array(graph, "digests")
        self.outputs = self.equal = self.skipped = 0
        self.first: Difference | None = None

    def ran(self, instruction: Instruction, args: Any, kwargs: dict[str, Any]) -> None:
        expected = self.digests[self.pointers[self.done] : self.pointers[self.done + 1]]
        plan = plan_for(instruction.function)
        leaves = leaves_of(self.registers[instruction.result], written_tensors(plan, args, kwargs))
        if len(leaves) != len(expected):
            raise CaptureError(f"it returned {len(leaves)} results; when it was captured, {len(expected)}.")
        for index, (leaf, digest) in enumerate(zip(leaves, expected, strict=True)):
            if digest.tobytes() == NO_DIGEST:
                self.skipped += 1
                continue
            self.outputs += 1
            if fingerprint(leaf) == digest.tobytes():
                self.equal += 1
            elif self.first is None:
                largest = _largest_difference(leaf, self.graph.recorded.get(f"{instruction.name}:{index}"))
                self.first = Difference(*op_location(self.graph, int(instruction.name)), index, largest)


def _largest_difference(now: Any, then: Array | None) -> float | None:
    if then is None or not isinstance(now, torch.Tensor) or now.layout is not torch.strided:
        return None
    before = torch.from_numpy(np.asarray(then))
    if before.shape != now.shape or before.is_complex() or now.is_complex() or not now.numel():
        return None
    return float((now.cpu().double() - before.double()).abs().max())


def _storage_name(graph: Graph, number: int) -> str:
    columns = graph.columns
    names = columns["value_parameter"][columns["value_storage"] == number]
    named = names[names >= 0]
    return graph.tables.names[named[0]] if len(named) else f"storage {number}"
