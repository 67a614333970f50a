"""Recording what a replay needs (values="replay"), and digests of all results, to prove that it gives the same."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchatlas.capturing.recorded_values import argument_at, tensors_of, written_tensors
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import Plan
from torchatlas.capturing.table_rows import dtype_name
from torchatlas.capturing.tensor_bytes import (
    DIGEST_BYTES,
    NO_DIGEST,
    all_filled,
    as_bytes,
    dense_bytes,
    digest,
    elements,
    fingerprint,
    is_bytes,
    is_view_of_storage,
    misalignment,
    same_bytes,
    span,
)
from torchatlas.capturing.tensors import sparse_parts
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.operations import of
from torchatlas.torch_private import FakeTensor, UninitializedTensor, aside

REPLAY = "-1:"  # how the keys begin that belong to no node
CHANGED, UNWRITTEN = "changed outside of the recorded ops", "taken by an op before all of it was written"


@dataclass(eq=False)
class _Memory:
    """One storage the recording has met: its bytes as the recorded ops must have left them."""

    reference: weakref.ref[Any]
    number: int
    content: torch.Tensor
    external: bool
    filled: torch.Tensor | None = None  # of memory that was made uninitialized: which bytes were written since


@dataclass(frozen=True)
class Patch:
    """Bytes that a storage held before an op although no recorded op put them there."""

    op: int  # counted from the first
    storage: int
    offset: int  # in bytes
    size: int  # of the whole storage
    content: torch.Tensor
    why: str


class ReplayKeeper:
    """Keeps what re-running takes (storages from outside as first used, states of generators, settings) and, for the
    proof, a digest of everything that every op returned or wrote.

    Beside every storage it keeps a copy of what the recorded ops have made of it: what differs from that when it is
    next read was written past the dispatcher, by numpy say, and is kept as a patch.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._lock = threading.RLock()  # ops of several threads one by one: in the order of the stream
        self._ops = 0
        self._digests: list[bytes] = []
        self._pointers = [0]
        self._memories: dict[int, _Memory] = {}  # by id of the storage
        self._first: dict[int, tuple[torch.Tensor, int]] = {}  # storage number -> bytes when first used, misalignment
        self._last: dict[int, bytes] = {}  # storage number -> digest of what a storage from outside holds in the end
        self._patches: list[Patch] = []
        self._generators: list[torch.Generator] = []
        self._states: dict[int, torch.Tensor] = {}  # of each generator, after the last op that changed it
        self._draws: list[tuple[int, int, torch.Tensor | None]] = []  # op, generator, its state unless an op left it so
        self._settings: list[tuple[int, dict[str, Any]]] = []
        self._views: list[tuple[int, int, int]] = []  # op, input, 1 for conjugated and 2 for negated views
        self._odd: dict[int, weakref.ref[Any]] = {}  # tensors that are more than a view of a storage, by id
        self._recipes: list[dict[str, Any]] = []
        self._parts: list[torch.Tensor] = []
        self._fake = False
        self._local = threading.local()

    # -- called by the recorder --------------------------------------------------------------------------------------

    keep = None

    def around(self, plan: Plan, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """The recording function of an operator, watched."""

        def watched(args: Any, kwargs: Any) -> Any:
            try:
                with self._lock:
                    random = self._begins(plan, args, kwargs)
                    out = run(args, kwargs)
                    self._ends(plan, args, kwargs, random, out)
                    return out
            finally:
                del args, kwargs  # a traceback keeps this frame
                out = None

        return watched

    def before(self, plan: Plan, args: Any, kwargs: Any) -> None:
        """The native recorder is about to let an op run."""
        with self._lock:
            self._running.append(self._begins(plan, args, kwargs))

    def after(self, plan: Plan, args: Any, kwargs: Any, raised: bool, out: Any) -> None:
        """The op that began last in this thread has ended."""
        random = self._running.pop()
        if not raised:
            with self._lock:
                self._ends(plan, args, kwargs, random, out)

    @property
    def _running(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        """For each op that has begun in this thread and not ended: its generator, and the state of that before."""
        running: list[tuple[torch.Generator, torch.Tensor]] = vars(self._local).setdefault("running", [])
        return running

    def _begins(self, plan: Plan, args: Any, kwargs: Any) -> tuple[torch.Generator, torch.Tensor]:
        inputs, grad = inputs_of(plan, args, kwargs), torch.is_grad_enabled()
        generator = next((g for g in (*args, *kwargs.values()) if isinstance(g, torch.Generator)), None)
        with aside():
            self._before(inputs, grad)
            generator = generator or default_generator(_device(inputs, kwargs))
            return generator, generator.get_state()

    def _ends(self, plan: Plan, args: Any, kwargs: Any, random: tuple[torch.Generator, torch.Tensor], out: Any) -> None:
        with aside():
            self._drawn(*random)
            self._after(plan, out, written_tensors(plan, args, kwargs))
        self._ops += 1

    def returned(self, tensors: list[torch.Tensor]) -> None:
        """The program returned these tensors. No op may have taken them."""
        with self._lock, aside():
            for tensor in tensors:
                if is_view_of_storage(tensor):
                    self._arrive(tensor, reads=False)

    def finish(self) -> None:
        """Look once more at what came from outside. To be called before anything is put back."""
        with self._lock, aside():
            for memory in list(self._memories.values()):
                storage = memory.reference()
                if storage is not None and memory.external:
                    content = as_bytes(storage)
                    self._compare(memory, content, 0, len(content))
                    self._last[memory.number] = digest(content)
            self._memories.clear()
        self.recorder = None

    # -- before and after an op --------------------------------------------------------------------------------------

    def _before(self, inputs: list[tuple[Any, bool]], grad: bool) -> None:
        now = {**settings(), "grad": grad}
        if not self._settings or self._settings[-1][1] != now:
            self._settings.append((self._ops, now))
        for index, (tensor, reads) in enumerate(inputs):
            if isinstance(tensor, FakeTensor):
                self._fake = True
            elif is_view_of_storage(tensor):
                self._arrive(tensor, reads)
                if bits := tensor.is_conj() + 2 * tensor.is_neg():
                    self._views.append((self._ops, index, bits))
            elif (known := self._odd.get(id(tensor))) is None or known() is not tensor:
                self._odd[id(tensor)] = weakref.ref(tensor)
                self._recipes.append({"op": self._ops, "input": index, **self._recipe(tensor)})

    def _arrive(self, tensor: torch.Tensor, reads: bool) -> None:
        storage = tensor.untyped_storage()
        memory = self._memories.get(id(storage))
        if memory is None or memory.reference() is not storage:
            self._remember(tensor, storage, external=True)
            return
        if not reads or isinstance(tensor, UninitializedTensor):  # a lazy module's: nothing is in it yet
            return
        content = as_bytes(storage)
        begin, end = span(tensor)
        if memory.filled is not None and not all_filled(memory.filled, tensor):
            self._patch(memory, content, begin, end, UNWRITTEN)
            memory.filled[begin:end] = 255
        else:
            self._compare(memory, content, begin, end)

    def _after(self, plan: Plan, out: Any, written: list[torch.Tensor]) -> None:
        leaves, facts = leaves_of(out, written), of(plan.name)
        for item in leaves:
            if not isinstance(item, torch.Tensor) or isinstance(item, FakeTensor):
                continue
            if not is_view_of_storage(item):
                self._odd[id(item)] = weakref.ref(item)
                continue
            storage = item.untyped_storage()
            memory = self._memories.get(id(storage))
            if memory is None or memory.reference() is not storage:
                memory = self._remember(item, storage, external=facts.takes_storage)
                if facts.uninitialized:
                    memory.filled = torch.zeros_like(memory.content)
        for tensor in written:
            if is_view_of_storage(tensor) and not isinstance(tensor, FakeTensor):
                self._note_write(tensor, facts.resizes)
        for item in leaves:
            unknown = (facts.has_workspace and is_bytes(item)) or self._is_unwritten(item)
            unknown = unknown or (facts.uninitialized and isinstance(item, torch.Tensor) and item.is_quantized)
            self._digests.append(NO_DIGEST if unknown else fingerprint(item))
        self._pointers.append(len(self._digests))

    def _note_write(self, tensor: torch.Tensor, resizes: bool) -> None:
        storage = tensor.untyped_storage()
        memory, content = self._memories[id(storage)], as_bytes(storage)
        before = len(memory.content)
        if len(content) != before:  # resized, or out= of another size
            filled = torch.full_like(content, 255) if memory.filled is None else memory.filled
            memory.content = content.clone()
            memory.filled = torch.zeros_like(content)
            memory.filled[:before] = filled[: len(content)][:before]
        if resizes:
            return
        begin, end = span(tensor)
        self._own(memory)[begin:end] = content[begin:end]
        if memory.filled is not None:
            elements(memory.filled, tensor).fill_(-1)

    def _is_unwritten(self, item: Any) -> bool:
        """True for a view of memory that was never written."""
        if not isinstance(item, torch.Tensor) or not is_view_of_storage(item):
            return False
        filled = self._memories[id(item.untyped_storage())].filled
        return filled is not None and not all_filled(filled, item)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _remember(self, tensor: torch.Tensor, storage: Any, external: bool) -> _Memory:
        assert self.recorder is not None
        numbers = self.recorder.numbers
        if external:
            numbers.number_of(tensor)
        elif numbers.storage_number(tensor) is None:
            numbers.number_of_result(tensor)
        number_of_storage = numbers.storage_number(tensor)
        assert number_of_storage is not None
        key, memories = id(storage), self._memories

        def died(reference: Any) -> None:
            if (known := memories.get(key)) is not None and known.reference is reference:
                del memories[key]

        memory = _Memory(weakref.ref(storage, died), number_of_storage, as_bytes(storage).clone(), external)
        memories[key] = memory
        if external:
            self._first.setdefault(memory.number, (memory.content, misalignment(storage)))
        return memory

    def _own(self, memory: _Memory) -> torch.Tensor:
        """The content, to be written to: copied first if it is still the tensor that is kept of the beginning."""
        if memory.number in self._first and self._first[memory.number][0] is memory.content:
            memory.content = memory.content.clone()
        return memory.content

    def _compare(self, memory: _Memory, content: torch.Tensor, begin: int, end: int) -> None:
        if len(content) != len(memory.content):
            memory.content = content.clone()
            self._patches.append(Patch(self._ops, memory.number, 0, len(content), memory.content.clone(), CHANGED))
        elif not same_bytes(content, memory.content, begin, end):
            self._patch(memory, content, begin, end, CHANGED)

    def _patch(self, memory: _Memory, content: torch.Tensor, begin: int, end: int, why: str) -> None:
        part = content[begin:end].clone()
        self._own(memory)[begin:end] = part
        self._patches.append(Patch(self._ops, memory.number, begin, len(content), part, why))

    # -- generators, and tensors that are more than a view of a storage ----------------------------------------------

    def _drawn(self, generator: torch.Generator, before: torch.Tensor) -> None:
        number = next((i for i, known in enumerate(self._generators) if known is generator), -1)
        if torch.equal(generator.get_state(), before):
            return
        if number < 0:
            number = len(self._generators)
            self._generators.append(generator)
        known = number in self._states and torch.equal(self._states[number], before)
        self._draws.append((self._ops, number, None if known else before))
        self._states[number] = generator.get_state()

    def _recipe(self, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.device.type == "meta":
            return {"kind": "meta"}
        shape = None if tensor.is_nested else list(tensor.shape)
        if parts := sparse_parts(tensor):
            more: dict[str, Any] = {"coalesced": tensor.is_coalesced()} if tensor.layout is torch.sparse_coo else {}
            kind = str(tensor.layout).removeprefix("torch.")
            return {"kind": kind, "shape": shape, "parts": self._kept(parts), **more}
        if tensor.is_quantized and tensor.qscheme() is torch.per_tensor_affine:
            more = {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
            return {"kind": "quantized", "parts": self._kept([tensor.int_repr()]), **more}
        if tensor.is_nested and tensor.layout is torch.strided and tensor.is_contiguous():
            return {"kind": "nested", "parts": self._kept(list(tensor.unbind()))}
        kind = "zero" if not tensor.is_nested and tensor.layout is torch.strided else str(tensor.layout)
        return {"kind": f"{type(tensor).__qualname__} ({kind.removeprefix('torch.')})"}

    def _kept(self, parts: list[torch.Tensor]) -> list[list[Any]]:
        """Keep some parts; for each its position in the list of parts, its dtype and its shape."""
        first = len(self._parts)
        self._parts += [dense_bytes(part).clone() for part in parts]
        return [[first + i, dtype_name(part.dtype), list(part.shape)] for i, part in enumerate(parts)]

    # -- what goes into the graph ------------------------------------------------------------------------------------

    def recorded(self, graph: Graph) -> dict[str, Array]:
        """The bytes that were kept, under keys that belong to no node; the rest goes into the graph's metadata."""
        arrays: dict[str, torch.Tensor] = {}
        for number, (content, _) in self._first.items():
            arrays[f"storage/{number}"] = content
        for position, (_, _, state) in enumerate(self._draws):
            if state is not None:
                arrays[f"state/{position}"] = state
        arrays |= {f"patch/{position}": patch.content for position, patch in enumerate(self._patches)}
        arrays |= {f"part/{position}": part for position, part in enumerate(self._parts)}
        graph.metadata["replay"] = {
            "ops": self._ops,
            "fake": self._fake,
            "settings": [[op, chosen] for op, chosen in self._settings],
            "generators": [[str(g.device), g is default_generator(g.device)] for g in self._generators],
            "draws": [[op, generator, state is not None] for op, generator, state in self._draws],
            "patches": [[p.op, p.storage, p.offset, p.size, p.why] for p in self._patches],
            "views": [list(view) for view in self._views],
            "recipes": self._recipes,
            "misaligned": {str(number): off for number, (_, off) in self._first.items() if off},
            "last": {str(number): digest.hex() for number, digest in self._last.items()},
        }
        digests = np.frombuffer(bytearray(b"".join(self._digests)), np.uint8).reshape(-1, DIGEST_BYTES)
        return {
            f"{REPLAY}digests": digests,
            f"{REPLAY}digest_pointers": np.array(self._pointers, np.int64),
            **{REPLAY + key: tensor.cpu().numpy() for key, tensor in arrays.items()},
        }


def settings() -> dict[str, Any]:
    """The settings on which the result of an op may depend, beside its arguments."""
    return {
        "threads": torch.get_num_threads(),
        "dtype": dtype_name(torch.get_default_dtype()),
        "deterministic": torch.get_deterministic_debug_mode(),
        "matmul": torch.get_float32_matmul_precision(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "grad": torch.is_grad_enabled(),  # the LSTM kernel asks whether to fill a workspace
    }


def leaves_of(out: Any, written: list[torch.Tensor]) -> list[Any]:
    """The tensors and numbers an op returned, in order, then what it wrote and did not return."""
    leaves = _leaves(out)
    seen = {id(item) for item in leaves}
    for tensor in written:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            leaves.append(tensor)
    return leaves


def _leaves(item: Any) -> list[Any]:
    if isinstance(item, (list, tuple)):
        return [leaf for part in item for leaf in _leaves(part)]
    return [item] if isinstance(item, (torch.Tensor, bool, int, float, complex)) else []


def inputs_of(plan: Plan, args: Any, kwargs: Any) -> list[tuple[Any, bool]]:
    """The tensor arguments in the order of the graph's inputs, and whether their data is read: not by taking a view."""
    inputs = []
    for slot in plan.slots:
        item = argument_at(slot.name, slot.position, args, kwargs)
        reads = not slot.overwritten and not _only_views(plan, slot.name)
        inputs += [(tensor, reads) for tensor in tensors_of([item])]
    return inputs


def _only_views(plan: Plan, name: str) -> bool:
    """Whether an argument is only returned as a view, and not written."""
    for argument in plan.operator._schema.arguments:
        if argument.name == name:
            return argument.alias_info is not None and not argument.alias_info.is_write
    return False


def _device(inputs: list[tuple[Any, bool]], kwargs: Any) -> torch.device:
    """Where an op runs."""
    return torch.device(kwargs.get("device") or next((tensor.device for tensor, _ in inputs), "cpu"))


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that ops on a device draw from when they are given none."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator
