"""Which op last wrote each byte, seen by a dispatch mode of its own: what the edges of a graph are checked against.

Memory is followed by storage and byte; which tensor object or view leads there does not matter.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from capturing.witness import LEFT_OUT, is_wrapper, storage_of, tensors
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import torchatlas as atlas

OUTSIDE = -1  # in the place of an op: it was there before, or nobody has written it
# Operators that write with no mark in their schema: argument positions, and that of the flag that switches it on.
_HIDDEN = {"aten::native_batch_norm": ((3, 4), 5)}


@dataclass
class Memory:
    """One storage, byte by byte."""

    reference: weakref.ref[Any]
    writer: np.ndarray[Any, Any]
    external: bool  # no op has made it
    touched: list[tuple[int, int]] = field(default_factory=list)  # op that read or wrote, bytes as bits of a number


@dataclass
class Taken:
    """One tensor argument of one op."""

    writers: set[int]
    wrote_over: set[int]  # ops that must come before, as this op overwrites what they read or wrote
    reads: bool


class ByteWitness(TorchDispatchMode):
    """For every op and tensor argument, in the order of the schema, the ops whose bytes it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, list[Taken | None]]] = []  # None: a tensor without one storage of bytes
        self.made: list[set[int]] = []  # per op: the storages it made or wrote, by their number
        self.live: list[dict[int, int]] = []  # per op: bytes of each storage that is alive after it
        self.first: dict[int, int] = {}  # storage -> bytes when it was met
        self.came: dict[int, bool] = {}  # storage -> no op made it
        self._memories: dict[int, tuple[int, Memory]] = {}
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(is_wrapper(kind) for kind in types):
            return NotImplemented
        name = str(func) if isinstance(func, torch._ops.OpOverload) else f"higher_order.{func}"
        if name.startswith(LEFT_OUT):
            return func(*args, **kwargs)
        known, count = dict(self._memories), self._count
        with _disable_current_modes():
            slots = _slots(func, args, kwargs)
            row = [self._taken(tensor, kind) for tensor, kind in slots]
        try:
            out = func(*args, **kwargs)
        except BaseException:  # it is no op of the graph: what only it has met was not met
            self._memories, self._count = known, count
            raise
        with _disable_current_modes():
            if name.startswith("aten.lift"):  # what it takes was made of Python's data just now
                for tensor, _ in slots:
                    self.came[self._memory(tensor, external=True)[0]] = False
            self._after(name, slots, row, tensors(out))
        self.rows.append((name, row))
        return out

    # -- one op ----------------------------------------------------------------------------------------------------

    def _taken(self, tensor: torch.Tensor, kind: str) -> Taken | None:
        found = self._memory(tensor, external=True)
        if found is None:
            return None
        places = _bytes_of(tensor)
        places = places[places < len(found[1].writer)]
        return Taken(set(found[1].writer[places].tolist()), set(), kind == "read")

    def _after(
        self, name: str, slots: list[tuple[torch.Tensor, str]], row: list[Taken | None], made: list[torch.Tensor]
    ) -> None:
        op, touched = len(self.rows), set[int]()
        for (tensor, kind), taken in zip(slots, row, strict=True):
            if taken is None or kind == "view" or (found := self._memory(tensor, external=True)) is None:
                continue
            number, memory = found
            places = _bytes_of(tensor)
            mask = sum(1 << int(place) for place in places)
            if kind.startswith("write"):
                touched.add(number)
                for earlier, theirs in memory.touched:
                    if theirs & mask and earlier != op:
                        taken.wrote_over.add(earlier)
                memory.writer[places] = op
                memory.touched.append((op, mask))
            elif kind == "read":
                memory.touched.append((op, mask))
        for tensor in made:
            if self._known(tensor) is None and (found := self._memory(tensor, external=False)) is not None:
                touched.add(found[0])
                if not name.startswith("aten.set_."):  # which shows what was there
                    found[1].writer[:] = op
                    found[1].touched.append((op, (1 << len(found[1].writer)) - 1))
        self.made.append(touched)
        alive = ((number, memory.reference()) for number, memory in self._memories.values())
        self.live.append({number: _size(storage) for number, storage in alive if storage is not None})

    # -- memory ----------------------------------------------------------------------------------------------------

    def _known(self, tensor: torch.Tensor) -> tuple[int, Memory] | None:
        key = storage_of(tensor)
        found = self._memories.get(key) if key is not None else None
        return found if found is not None and found[1].reference() is tensor.untyped_storage() else None

    def _memory(self, tensor: torch.Tensor, external: bool) -> tuple[int, Memory] | None:
        if is_lazy(tensor) or tensor.is_nested or tensor.layout is not torch.strided:
            return None
        if (key := storage_of(tensor)) is None:
            return None
        storage = tensor.untyped_storage()
        found, size = self._known(tensor), _size(storage)
        if found is None:
            found = self._count, Memory(weakref.ref(storage), np.full(size, OUTSIDE), external)
            self.first[self._count], self.came[self._count] = size, external
            self._count += 1
            self._memories[key] = found
        elif len(found[1].writer) != size:
            grown = np.full(size, OUTSIDE)
            kept = min(size, len(found[1].writer))
            grown[:kept] = found[1].writer[:kept]
            found[1].writer = grown
        return found


def _size(storage: Any) -> int:
    """Bytes of memory. Zeros that forward-mode differentiation only promises have none, whatever they say."""
    try:
        return int(storage.nbytes()) if storage.device.type == "meta" or storage.data_ptr() else 0
    except RuntimeError:  # "an invalid python storage"
        return 0


def _slots(func: Any, args: Any, kwargs: Any) -> list[tuple[torch.Tensor, str]]:
    """The tensor arguments in the order of the schema, each with what happens to it: read, view, write, write only."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return [(tensor, "read") for tensor in tensors((args, kwargs))]
    found: list[tuple[torch.Tensor, str]] = []
    positions, flag = _HIDDEN.get(schema.name, ((), 0))
    for position, argument in enumerate(schema.arguments):
        item = args[position] if not argument.kwarg_only and position < len(args) else kwargs.get(argument.name)
        kind = "read"
        if argument.alias_info is not None:
            kind = ("write only" if argument.kwarg_only else "write") if argument.alias_info.is_write else "view"
        if torch.Tag.inplace_view in func.tags:  # another view of memory, perhaps of another storage
            kind = "view"
        if position in positions and args[flag]:
            kind = "write"
        found += [(tensor, kind) for tensor in tensors(item)]
    return found


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The places in its storage of all bytes of a tensor."""
    size = tensor.element_size()
    places = np.array([tensor.storage_offset()], np.int64)
    for count, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + np.arange(count) * step).ravel()
    return np.unique((places[:, None] * size + np.arange(size)).ravel())


# -- a graph against it ------------------------------------------------------------------------------------------------


def edge_faults(graph: atlas.Graph, witness: ByteWitness) -> list[str]:
    """Data that an op takes and no edge brings, edges that bring none, writes that may come too early."""
    nodes = graph.where(kind="op")
    if [node.operation for node in nodes] != [name for name, _ in witness.rows]:
        return [f"ops: {len(nodes)} recorded, {len(witness.rows)} ran"]
    return [*_data_faults(graph, witness), *_order_faults(graph, witness)]


def _data_faults(graph: atlas.Graph, witness: ByteWitness) -> list[str]:
    columns, faults = graph.columns, []
    ops = [node.id for node in graph.where(kind="op")]
    op_of = {node: op for op, node in enumerate(ops)}
    into: dict[tuple[int, int], list[int]] = {}
    data = columns["edge_kind"] == 0
    for source, target, index in zip(
        *(columns[f"edge_{name}"][data].tolist() for name in ("source", "target", "input_index")), strict=True
    ):
        into.setdefault((target, index), []).append(source)
    storage, ptr, value = columns["value_storage"], columns["input_ptr"], columns["input_value"]
    made_in = [set[int]() for _ in range(len(graph))]  # per node: the graph's storages that it made or wrote
    for node in range(len(graph)):
        made_in[node] |= _made_or_wrote(graph, node)

    def roots(node: int, index: int, seen: set[tuple[int, int]]) -> set[int]:
        """The nodes whose bytes arrive at an input: through views, up to who made or wrote the memory."""
        here, found = int(storage[value[ptr[node] + index]]), set[int]()
        for source in into.get((node, index), ()):
            if here in made_in[source] or source not in op_of:
                found.add(source)
            for other in range(int(ptr[source + 1] - ptr[source])):
                if storage[value[ptr[source] + other]] == here and (source, other) not in seen:
                    seen.add((source, other))
                    if here not in made_in[source]:
                        found |= roots(source, other, seen)
        return found

    for op, (name, row) in enumerate(witness.rows):
        node = ops[op]
        if len(row) != int(ptr[node + 1] - ptr[node]):
            faults.append(f"edges: {name} took {len(row)} tensors, the graph has {int(ptr[node + 1] - ptr[node])}")
            continue
        for index, taken in enumerate(row):
            if taken is None or not taken.reads:
                continue
            arriving = roots(node, index, set())
            lost = {ops[writer] for writer in taken.writers if writer >= 0} - arriving
            if lost:
                names = ", ".join(graph.nodes[one].name for one in sorted(lost))
                faults.append(f"lost edge: input {index} of {graph.nodes[node].name} ({name}) holds bytes of {names}")
            here = int(storage[value[ptr[node] + index]])
            is_input = graph.storages[here].role == "input"
            if OUTSIDE in taken.writers and is_input and not any(one not in op_of for one in arriving):
                faults.append(
                    f"lost input: input {index} of {graph.nodes[node].name} ({name}) holds bytes from outside"
                )
    return faults


def _made_or_wrote(graph: atlas.Graph, node: int) -> set[int]:
    columns = graph.columns
    ptr, value, written = columns["input_ptr"], columns["input_value"], columns["input_written"]
    taken = range(int(ptr[node]), int(ptr[node + 1]))
    storage = columns["value_storage"]
    wrote = {int(storage[value[i]]) for i in taken if written[i] and not _only_views(graph.nodes[node].operation)}
    before = {int(storage[value[i]]) for i in taken}
    outputs = columns["output_value"][int(columns["output_ptr"][node]) : int(columns["output_ptr"][node + 1])]
    born = {int(storage[v]) for v in outputs if v >= 0 and int(columns["storage_born"][storage[v]]) == node}
    return wrote | (born - before)


def _only_views(operation: str) -> bool:
    """Whether an operator gives a tensor another layout and leaves the bytes alone: t_, resize_, set_."""
    names = operation.split(".")
    operator = getattr(getattr(getattr(torch.ops, names[0], None), names[1], None), names[-1], None)
    return operator is not None and torch.Tag.inplace_view in operator.tags


def _order_faults(graph: atlas.Graph, witness: ByteWitness) -> list[str]:
    ops = [node.id for node in graph.where(kind="op")]
    earlier = [0] * len(graph)  # per node: those that come before it on some path, as bits
    columns = graph.columns
    into: dict[int, set[int]] = {}
    for source, target in zip(columns["edge_source"].tolist(), columns["edge_target"].tolist(), strict=True):
        into.setdefault(target, set()).add(source)
    for node in range(len(graph)):
        for source in into.get(node, ()):
            earlier[node] |= earlier[source] | 1 << source
    faults = []
    for op, (name, row) in enumerate(witness.rows):
        for taken in row:
            early = [o for o in (taken.wrote_over if taken else ()) if not earlier[ops[op]] >> ops[o] & 1]
            if early:
                names = ", ".join(graph.nodes[ops[o]].name for o in early)
                faults.append(f"lost order: {graph.nodes[ops[op]].name} ({name}) overwrites what {names} took or made")
    return faults
