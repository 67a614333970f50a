"""A graph captured with values="replay" -> the instructions of a Program: the one reader of recorded runs.

Ops run in the order of the graph on tensors that share memory as they did, so writes in place and views are the
operators' own. Every value has a register: what an op returned, or a view of the storage that the value lies in.
Subclasses decide where tensors from outside come from: a replay starts from the bytes that were kept (replay.py),
pieces of a partition take the model's own tensors (recorded_pieces.py). What the capture kept is checked first: a
graph may come from anybody's file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct

from torchatlas.capturing.compiled import GRAPH as INDUCTOR_GRAPH
from torchatlas.capturing.replaying import REPLAY, leaves_of
from torchatlas.capturing.replaying import settings as settings_now
from torchatlas.capturing.tensor_bytes import DIGEST_BYTES
from torchatlas.errors import CaptureError, FileFormatError, NotAvailableError, StateError
from torchatlas.execute.operators import dtype_named, operator
from torchatlas.execute.preconditions import checked
from torchatlas.execute.program import ProgramBuilder, Register
from torchatlas.graph import Graph, NodeKind
from torchatlas.graph.arguments import decode
from torchatlas.graph.columns import KINDS, Array, Layout
from torchatlas.torch_private import OpOverload, no_dispatch_modes

_MOST_THREADS = 1024
_SETTINGS = set(
    itertools.product(("float16", "bfloat16", "float32", "float64"), (0, 1, 2), ("highest", "high", "medium"))
)


class Settings(Struct, frozen=True):
    """What the result of an op may depend on beside its arguments."""

    threads: int
    dtype: str
    deterministic: int
    matmul: str
    mkldnn: bool
    grad: bool


class Recipe(Struct, frozen=True):
    """A tensor from outside that is more than a view of a storage, as input number `input` of op number `op`."""

    op: int
    input: int
    kind: str
    shape: list[int] | None = None
    parts: list[tuple[int, str, list[int]]] = []  # number, dtype, shape
    coalesced: bool = False
    scale: float = 1.0
    zero_point: int = 0


class ReplayData(Struct, frozen=True):
    """What the metadata of the graph hold; the bytes are in `graph.recorded`."""

    ops: int
    fake: bool
    settings: list[tuple[int, Settings]]  # from which op on
    generators: list[tuple[str, bool]]  # device, whether it is the one torch draws from when it is given none
    draws: list[tuple[int, int, bool]]  # op, generator, whether its state was kept
    patches: list[tuple[int, int, int, int, str]]  # op, storage, offset, size of the storage, why
    views: list[tuple[int, int, int]]  # op, input, 1 for conjugated and 2 for negated views
    recipes: list[Recipe]
    misaligned: dict[str, int]  # storage -> how far it began after a multiple of 64 bytes
    last: dict[str, str]  # storage -> digest of what it held in the end


def replay_data(graph: Graph) -> ReplayData:
    """What a replay needs, or an error that says why this graph cannot be replayed."""
    if graph.source != "run":
        raise NotAvailableError(
            f"A graph of source {graph.source!r} is no run and cannot be replayed. Capture one: "
            'atlas.capture(model, ..., values="replay").'
        )
    if graph.metadata.get("fake"):
        raise NotAvailableError(
            "This graph was captured with fake=True: nothing was computed, so there is nothing to replay."
        )
    if "replay" not in graph.metadata:
        raise StateError(
            'This graph was not captured with values="replay": it does not hold the bytes a replay starts from. '
            'Capture it again: atlas.capture(model, ..., values="replay"), or torchatlas capture --values replay.'
        )
    if f"{REPLAY}digests" not in graph.recorded:
        raise StateError(
            f"The bytes a replay starts from are not here: {_why_missing(graph)}. Replay the whole graph, from memory "
            "or from an .atlas file."
        )
    try:
        recorded = msgspec.convert(graph.metadata["replay"], ReplayData)
    except msgspec.ValidationError as error:
        raise FileFormatError(f"What this graph says about its replay is damaged: {error}.") from error
    if recorded.fake:
        raise NotAvailableError(
            "This program ran on fake tensors: nothing was computed, so there is nothing to replay."
        )
    _check(graph, recorded)
    return recorded


def _why_missing(graph: Graph) -> str:
    if any(note.startswith("part of a graph") for note in graph.notes):
        return "this is a part of a graph"
    return (
        "a .json file leaves recorded values out" if any("were left out of" in n for n in graph.notes) else "no digests"
    )


def _check(graph: Graph, recorded: ReplayData) -> None:
    ops = int((graph.columns["node_kind"] == KINDS.index(NodeKind.OP)).sum())
    for operation in graph.tables.operations:  # it is recorded by another way, so that the ops would not match either
        if operation.name.startswith(f"{INDUCTOR_GRAPH}."):
            operator(operation)  # raises
    if recorded.ops != ops:
        raise StateError(
            f"{recorded.ops} ops were kept and the graph has {ops}: this is not the graph that was captured."
        )
    pointers, digests = array(graph, "digest_pointers"), array(graph, "digests")
    flat = pointers.ndim == 1 and pointers.dtype == np.int64 and len(pointers) == ops + 1
    if not flat or pointers[0] != 0 or (np.diff(pointers) < 0).any() or digests.dtype != np.uint8:
        raise FileFormatError("The digests of this graph are damaged.")
    if digests.shape != (pointers[-1], DIGEST_BYTES):
        raise FileFormatError(f"This graph has {len(digests)} digests, expected {pointers[-1]}.")
    generators, storages = len(recorded.generators), len(graph.columns["storage_bytes"])
    known = {str(number) for number in range(storages)}
    sound = (
        all(0 <= generator < generators for _, generator, _ in recorded.draws)
        and all(0 <= patch[1] < storages and min(patch[2], patch[3]) >= 0 for patch in recorded.patches)
        and all(number in known for number in [*recorded.misaligned, *recorded.last])
        and all(0 <= off < 64 for off in recorded.misaligned.values())
        and all(0 < chosen.threads <= _MOST_THREADS for _, chosen in recorded.settings)
    )
    if not sound:
        raise FileFormatError("What this graph says about its replay is damaged: a number is out of range.")
    for _, chosen in recorded.settings:
        if (chosen.dtype, chosen.deterministic, chosen.matmul) not in _SETTINGS:
            raise FileFormatError(f"What this graph says about its replay is damaged: {chosen} cannot be set.")
    for device in {*graph.tables.devices, *(device for device, _ in recorded.generators)}:
        _check_device(device)


def _check_device(device: str) -> None:
    try:
        with no_dispatch_modes():  # a recorder must not see it
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise NotAvailableError(f"This graph ran on {device!r}, which is not here: {error}") from error


def array(graph: Graph, name: str) -> Array:
    """One of the arrays that were kept."""
    if (recorded := graph.recorded.get(REPLAY + name)) is None:
        raise FileFormatError(f"What a replay starts from is not complete: {name} is missing.")
    return recorded


def content(graph: Graph, name: str) -> Array:
    """One of the arrays of bytes that were kept."""
    recorded: Any = array(graph, name)
    if recorded.dtype != np.uint8 or recorded.ndim != 1:
        raise FileFormatError(f"What a replay starts from is damaged: {name} is no flat array of bytes.")
    return np.asarray(recorded)


def apply(chosen: Settings) -> None:
    """Set torch's settings as they were then. Equal ones are not set again: that may import more of torch."""
    now = Settings(**settings_now())
    if now.threads != chosen.threads:
        torch.set_num_threads(chosen.threads)
    if now.dtype != chosen.dtype:
        torch.set_default_dtype(dtype_named(chosen.dtype))
    if now.deterministic != chosen.deterministic:
        torch.set_deterministic_debug_mode(chosen.deterministic)
    if now.matmul != chosen.matmul:
        torch.set_float32_matmul_precision(chosen.matmul)
    if now.mkldnn != chosen.mkldnn:
        torch.backends.mkldnn.set_flags(chosen.mkldnn)
    torch.set_grad_enabled(chosen.grad)


def fresh_storage(kept_bytes: Array, misaligned: int, device: str) -> Any:
    """A storage of its own that holds these bytes, as far from a multiple of 64 as the first one was."""
    if not misaligned:
        return torch.tensor(kept_bytes, device=device).untyped_storage()
    room = np.empty(len(kept_bytes) + 128, np.uint8)
    begin = (misaligned - room.ctypes.data) % 64
    room[begin : begin + len(kept_bytes)] = kept_bytes
    return torch.from_numpy(room[begin : begin + len(kept_bytes)]).untyped_storage()


def view_of(storage: Any, layout: Layout, offset: int) -> torch.Tensor:
    """A plain tensor in a storage that it must not reach out of."""
    shape: Any = layout.shape
    stride: Any = layout.stride
    dtype = dtype_named(layout.dtype)
    if stride is None or len(shape) != len(stride) or min(0, offset, *shape, *stride) < 0:
        raise CaptureError(f"a tensor has the shape {shape}, the strides {stride} and begins at {offset}.")
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if 0 not in shape and (offset + reach + 1) * dtype.itemsize > storage.nbytes():
        raise CaptureError(f"a tensor reaches outside of its storage of {storage.nbytes()} bytes.")
    try:
        empty: Any = torch.empty(0, dtype=dtype, device=storage.device)
        return empty.set_(storage, offset, shape, stride)  # type: ignore[no-any-return]
    except (RuntimeError, OverflowError, TypeError) as error:
        raise CaptureError(f"there is no tensor of {layout.dtype} with the shape {shape}: {error}") from error


def built(graph: Graph, recipe: Recipe, layout: Layout) -> torch.Tensor:
    """A tensor that is more than a view of a storage, made of the parts that were kept."""
    parts: list[Any] = [_part(graph, *part) for part in recipe.parts]
    if recipe.kind == "sparse_coo" and recipe.shape is not None and len(parts) == 2:
        make: Any = torch.sparse_coo_tensor
        sparse: torch.Tensor = make(*parts, recipe.shape, check_invariants=True)
        return sparse.coalesce() if recipe.coalesced else sparse  # a file may say so of what is not
    if recipe.kind in _COMPRESSED and recipe.shape is not None and len(parts) == 3:
        make = getattr(torch, f"{recipe.kind}_tensor")
        return make(*parts, recipe.shape, check_invariants=True)  # type: ignore[no-any-return]
    if recipe.kind == "quantized" and len(parts) == 1:
        make = torch.ops.aten._make_per_tensor_quantized_tensor.default
        return make(parts[0], recipe.scale, recipe.zero_point)  # type: ignore[no-any-return]
    if recipe.kind == "nested":
        return torch.nested.nested_tensor(parts)
    raise NotAvailableError(f"a tensor from outside, a {recipe.kind} of {layout.dtype}, was not kept.")


_COMPRESSED = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def _part(graph: Graph, number: int, dtype: str, shape: list[int]) -> torch.Tensor:
    kept_bytes, kind = torch.tensor(content(graph, f"part/{number}")), dtype_named(dtype)
    if int(np.prod(shape, dtype=object)) * kind.itemsize != len(kept_bytes) or min(shape, default=0) < 0:
        raise FileFormatError(f"What a replay starts from is damaged: part {number} has {len(kept_bytes)} bytes.")
    return torch.empty(0, dtype=kind).set_(kept_bytes.untyped_storage(), 0, shape)  # type: ignore[call-overload, no-any-return]


# -- the instructions --------------------------------------------------------------------------------------------------


Spot = tuple[int, int, int]  # storage, layout, offset: where a value lies


@dataclass(frozen=True, slots=True)
class RecordedOperator:
    """An operator of the graph, and what to call for it: one from a file is called with its arguments checked."""

    name: str
    function: OpOverload
    target: Any
    returns: int  # how many results its schema has
    several: bool  # whether it returns a tuple or a list
    aliases: bool  # whether it returns arguments, or views of them


class RecordedOps:
    """Writes the instructions of a recorded graph, op by op, and keeps the register of each value and storage."""

    def __init__(self, graph: Graph, allow: Iterable[str]) -> None:
        self.graph, self.data, self.builder = graph, replay_data(graph), ProgramBuilder()
        self._allow, columns = frozenset(allow), graph.columns
        self.layouts: list[Layout] = graph.tables.layouts
        self.kinds = [KINDS[kind] for kind in columns["node_kind"].tolist()]
        self.ops = [node for node, kind in enumerate(self.kinds) if kind is NodeKind.OP]
        self.storage: list[int] = columns["value_storage"].tolist()
        self.layout: list[int] = columns["value_layout"].tolist()
        self.offset: list[int] = columns["value_offset"].tolist()
        self.inputs_of = _by_node(columns["input_ptr"], columns["input_value"])
        self.outputs_of = _by_node(columns["output_ptr"], columns["output_value"])
        written = columns["input_written"].astype(bool)
        self.written_of = [  # node -> the inputs that it writes: index and value
            [(index, value) for index, value in enumerate(values) if flags[index]] if any(flags) else []
            for values, flags in zip(self.inputs_of, _by_node(columns["input_ptr"], written), strict=True)
        ]
        self.written_storages = set(columns["value_storage"][columns["input_value"][written]].tolist())
        self._operation, self._arguments = columns["node_operation"].tolist(), columns["node_arguments"].tolist()
        self._calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._operators: dict[int, RecordedOperator] = {}
        self._recipes = {(one.op, one.input): one for one in self.data.recipes}
        self.bits = {(op, index): bits for op, index, bits in self.data.views}
        self.draws = {op: (position, generator) for position, (op, generator, _) in enumerate(self.data.draws)}
        self._registers: dict[int, dict[int, Register]] = {}  # storage -> value -> what holds it
        self.bases: dict[int, Register] = {}  # storage -> the first tensor there, or the storage itself
        self._unusual: dict[Spot, Register] = {}  # tensors that no view of a storage replaces, sparse ones say

    # -- columns -----------------------------------------------------------------------------------------------------

    def layout_of(self, value: int) -> Layout:
        return self.layouts[self.layout[value]]

    def plain_layout(self, value: int) -> Layout:
        """The layout of a tensor that is a view of its storage; NotAvailableError for others."""
        layout = self.layout_of(value)
        if layout.stride is None or not all(isinstance(size, int) for size in (*layout.shape, *layout.stride)):
            raise NotAvailableError(f"a {layout.kind} tensor of {layout.dtype} came from outside and was not kept.")
        return layout

    def spot(self, value: int) -> Spot:
        return self.storage[value], self.layout[value], self.offset[value]

    def call_of(self, node: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a node, by position and by name; nodes with equal ones share them."""
        row = self._arguments[node]
        if row not in self._calls:
            call = decode(self.graph.tables.arguments[row])
            self._calls[row] = call.args, call.kwargs or {}
        return self._calls[row]

    def operator_of(self, node: int) -> RecordedOperator:
        row = self._operation[node]
        if row not in self._operators:
            operation, own = self.graph.tables.operations[row], self.graph.own
            function = operator(operation, self._allow, own=own)
            returns = function._schema.returns
            self._operators[row] = RecordedOperator(
                operation.name,
                function,
                function._op if own else checked(function),
                len(returns),
                len(returns) > 1 or any("List" in str(one.type) for one in returns),
                any(one.alias_info is not None for one in returns),
            )
        return self._operators[row]

    # -- registers ---------------------------------------------------------------------------------------------------

    def add(self, function: Any, *args: Any) -> Register:
        """Append an instruction that is no node of the graph."""
        return self.builder.add("", function, args)

    def register_of(self, value: int, op: int, index: int) -> Register:
        """The register of a value that is input number `index` of op number `op`."""
        of_storage = self._registers.setdefault(self.storage[value], {})
        register = of_storage.get(value)
        if register is None and (recipe := self._recipes.get((op, index))) is not None:
            register = self.built(value, recipe)
            self.hold(value, register)
        if register is None:
            register = self._unusual.get(self.spot(value))
        if register is None:
            register = of_storage[value] = self.tensor(value)
        return register

    def hold(self, value: int, register: Register) -> None:
        """Note that a register holds a value."""
        number = self.storage[value]
        self._registers.setdefault(number, {})[value] = register
        layout = self.layout_of(value)
        if number >= 0 and layout.device != "meta":
            self.bases.setdefault(number, register)
        if _is_unusual(layout):
            self._unusual[self.spot(value)] = register

    def forget(self, storage: int) -> None:
        """Drop the registers of a storage that has changed; views of it are made anew."""
        self._registers.pop(storage, None)

    def unreturned(self, node: int, operator: RecordedOperator) -> dict[int, int]:
        """Values that are tensors an op wrote and did not return, running means say -> which input each is."""
        inputs = {self.spot(value): index for index, value in self.written_of[node]}
        return {
            value: inputs[self.spot(value)]
            for index, value in enumerate(self.outputs_of[node] if inputs else ())
            if self.spot(value) in inputs and (index >= operator.returns or not operator.aliases)
        }

    def hold_results(self, node: int, taken: list[Register], result: Register, operator: RecordedOperator) -> None:
        """Note what holds the values that an op made: what it returned, and the tensors that it only wrote."""
        states = self.unreturned(node, operator)
        for _, value in self.written_of[node]:
            self._registers.get(self.storage[value], {}).pop(value, None)  # the tensor may have another shape now
        for value, index in states.items():
            self._registers.setdefault(self.storage[value], {})[value] = taken[index]
        returned = [value for value in self.outputs_of[node] if value not in states]
        if operator.several:
            for index, value in enumerate(returned):
                self.hold(value, self.add(_returned_tensor, result, index))
        elif returned and operator.returns:
            self.hold(returned[0], result)

    def is_held(self, value: int) -> bool:
        return value in self._registers.get(self.storage[value], ())

    # -- what replays and pieces do differently ----------------------------------------------------------------------

    def built(self, value: int, recipe: Recipe) -> Register:
        """A tensor from outside that is more than a view of a storage."""
        raise NotImplementedError

    def tensor(self, value: int) -> Register:
        """A tensor that no op returned: a view of its storage, which may come from outside."""
        raise NotImplementedError


def _returned_tensor(out: Any, index: int) -> torch.Tensor | None:
    """One of several tensors that an op returned."""
    returned = [item for item in leaves_of(out, []) if isinstance(item, torch.Tensor)]
    return returned[index] if index < len(returned) else None


def _by_node(pointers: Any, items: Any) -> list[list[Any]]:
    listed = items.tolist()
    return [listed[begin:end] for begin, end in pairwise(pointers.tolist())]


def _is_unusual(layout: Layout) -> bool:
    return layout.kind != "strided" or layout.dtype.startswith("q")
