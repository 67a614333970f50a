"""What a capture with values="replay" left in a graph, read back and checked: a graph may come from anybody's file."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct

from torchatlas.capturing.compiled import GRAPH as INDUCTOR_GRAPH
from torchatlas.capturing.replaying import REPLAY
from torchatlas.capturing.replaying import settings as settings_now
from torchatlas.capturing.tensor_bytes import DIGEST_BYTES
from torchatlas.errors import CaptureError, FileFormatError, NotAvailableError, StateError
from torchatlas.execute.operators import dtype_named, operator
from torchatlas.graph import Graph
from torchatlas.graph.columns import KINDS, Array, Layout
from torchatlas.graph.nouns import NodeKind
from torchatlas.torch_private import no_dispatch_modes

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
        kept = msgspec.convert(graph.metadata["replay"], ReplayData)
    except msgspec.ValidationError as error:
        raise FileFormatError(f"What this graph says about its replay is damaged: {error}.") from error
    if kept.fake:
        raise NotAvailableError(
            "This program ran on fake tensors: nothing was computed, so there is nothing to replay."
        )
    _check(graph, kept)
    return kept


def _why_missing(graph: Graph) -> str:
    if any(note.startswith("part of a graph") for note in graph.notes):
        return "this is a part of a graph"
    return (
        "a .json file leaves recorded values out" if any("were left out of" in n for n in graph.notes) else "no digests"
    )


def _check(graph: Graph, kept: ReplayData) -> None:
    ops = int((graph.columns["node_kind"] == KINDS.index(NodeKind.OP)).sum())
    for operation in graph.tables.operations:  # it is recorded by another way, so that the ops would not match either
        if operation.name.startswith(f"{INDUCTOR_GRAPH}."):
            operator(operation)  # raises
    if kept.ops != ops:
        raise StateError(f"{kept.ops} ops were kept and the graph has {ops}: this is not the graph that was captured.")
    pointers, digests = array(graph, "digest_pointers"), array(graph, "digests")
    flat = pointers.ndim == 1 and pointers.dtype == np.int64 and len(pointers) == ops + 1
    if not flat or pointers[0] != 0 or (np.diff(pointers) < 0).any() or digests.dtype != np.uint8:
        raise FileFormatError("The digests of this graph are damaged.")
    if digests.shape != (pointers[-1], DIGEST_BYTES):
        raise FileFormatError(f"This graph has {len(digests)} digests, expected {pointers[-1]}.")
    generators, storages = len(kept.generators), len(graph.columns["storage_bytes"])
    known = {str(number) for number in range(storages)}
    sound = (
        all(0 <= generator < generators for _, generator, _ in kept.draws)
        and all(0 <= patch[1] < storages and min(patch[2], patch[3]) >= 0 for patch in kept.patches)
        and all(number in known for number in [*kept.misaligned, *kept.last])
        and all(0 <= off < 64 for off in kept.misaligned.values())
        and all(0 < chosen.threads <= _MOST_THREADS for _, chosen in kept.settings)
    )
    if not sound:
        raise FileFormatError("What this graph says about its replay is damaged: a number is out of range.")
    for _, chosen in kept.settings:
        if (chosen.dtype, chosen.deterministic, chosen.matmul) not in _SETTINGS:
            raise FileFormatError(f"What this graph says about its replay is damaged: {chosen} cannot be set.")
    for device in {*graph.tables.devices, *(device for device, _ in kept.generators)}:
        _check_device(device)


def _check_device(device: str) -> None:
    try:
        with no_dispatch_modes():  # a recorder must not see it
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise NotAvailableError(f"This graph ran on {device!r}, which is not here: {error}") from error


def array(graph: Graph, name: str) -> Array:
    """One of the arrays that were kept."""
    if (found := graph.recorded.get(REPLAY + name)) is None:
        raise FileFormatError(f"What a replay starts from is not complete: {name} is missing.")
    return found


def content(graph: Graph, name: str) -> Array:
    """One of the arrays of bytes that were kept."""
    found: Any = array(graph, name)
    if found.dtype != np.uint8 or found.ndim != 1:
        raise FileFormatError(f"What a replay starts from is damaged: {name} is no flat array of bytes.")
    return np.asarray(found)


def apply(chosen: Settings) -> None:
    """Have torch compute as it did then. What is so already is not touched: setting it may import more of torch."""
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


def fresh_storage(kept: Array, misaligned: int, device: str) -> Any:
    """A storage of its own that holds these bytes, as far from a multiple of 64 as the first one was."""
    if not misaligned:
        return torch.tensor(kept, device=device).untyped_storage()
    room = np.empty(len(kept) + 128, np.uint8)
    begin = (misaligned - room.ctypes.data) % 64
    room[begin : begin + len(kept)] = kept
    return torch.from_numpy(room[begin : begin + len(kept)]).untyped_storage()


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
    kept, kind = torch.tensor(content(graph, f"part/{number}")), dtype_named(dtype)
    if int(np.prod(shape, dtype=object)) * kind.itemsize != len(kept) or min(shape, default=0) < 0:
        raise FileFormatError(f"What a replay starts from is damaged: part {number} has {len(kept)} bytes.")
    return torch.empty(0, dtype=kind).set_(kept.untyped_storage(), 0, shape)  # type: ignore[call-overload, no-any-return]
