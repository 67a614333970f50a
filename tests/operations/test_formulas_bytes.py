"""Bytes that real calls read and write, against numbers worked out by hand and against the tensors that passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operations.costing import EIGHT, LOGITS, SQUARE, TARGETS, Run, X, Y, backward, cost_of, recorded, whole
from support import either
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO, Specimen, loss_of, tensors_in

TABLE, FEW, MANY = torch.randn(10, 4), torch.tensor([1, 7, 7]), torch.zeros(2, 6, dtype=torch.long)
ROWS = torch.randn(3, 4)


def target() -> Tensor:
    return torch.zeros(10, 4)  # 160 bytes


BYTES: list[tuple[str, Run, int, int]] = [
    ("add", lambda: X + Y, 48, 24),
    ("add", lambda: X + Y[:1].expand(2, 3), 36, 24),  # a row that repeats is read once
    ("add", lambda: X.bfloat16() + 1, 12, 12),
    ("add_", lambda: target().add_(1), 160, 160),
    ("add", lambda: torch.add(X, Y, out=torch.empty(2, 3)), 48, 24),
    ("sort", lambda: torch.sort(EIGHT, out=(torch.empty(8), torch.empty(8, dtype=torch.long))), 32, 96),
    ("gt", lambda: X > Y, 48, 6),
    ("sum", lambda: X.sum(), 24, 4),
    ("permute", lambda: X.T, 0, 0),
    ("view", lambda: X.view(3, 2), 0, 0),
    ("t_", lambda: target().t_(), 0, 0),
    ("squeeze_", lambda: target().squeeze_(), 0, 0),
    ("set_", lambda: torch.empty(3).set_(TABLE), 0, 0),
    ("reshape", whole(lambda: X.T.reshape(6)), 24, 24),  # no view can do that
    ("reshape", whole(lambda: X.reshape(6)), 0, 0),
    ("diagonal_copy", lambda: torch.diagonal_copy(target()), 16, 16),
    ("fill_diagonal_", whole(lambda: target().fill_diagonal_(1.0)), 0, 16),
    ("im2col", lambda: F.unfold(SQUARE, 1, stride=2), 16, 16),
    ("clone", lambda: X.clone(), 24, 24),
    ("_to_copy", lambda: X.double(), 24, 48),
    ("cat", lambda: torch.cat([X, Y]), 48, 48),
    ("copy_", lambda: target().copy_(TABLE.double()), 320, 160),
    ("fill_", lambda: torch.empty(10, 4).fill_(1), 0, 160),
    ("zero_", lambda: torch.empty(10, 4).zero_(), 0, 160),
    ("zeros_like", lambda: torch.zeros_like(TABLE), 0, 160),
    ("empty_like", lambda: torch.empty_like(TABLE), 0, 0),
    ("new_empty", lambda: TABLE.new_empty(3), 0, 0),
    ("resize_", lambda: torch.empty(3).resize_(5), 0, 0),
    ("uniform_", lambda: torch.empty(10, 4).uniform_(), 0, 160),
    ("normal_", lambda: torch.empty(10, 4).normal_(), 0, 160),
    ("bernoulli_", lambda: torch.empty(2, 3).bernoulli_(0.5), 0, 24),
    ("bernoulli", lambda: torch.bernoulli(X), 24, 24),
    ("randn_like", lambda: torch.randn_like(TABLE), 0, 160),
    ("_foreach_copy_", lambda: torch._foreach_copy_([torch.empty(2, 3)], [X]), 24, 24),
    ("_foreach_zero_", lambda: torch._foreach_zero_([torch.empty(2, 3)]), 0, 24),
    ("embedding", lambda: F.embedding(FEW, TABLE), 3 * 16 + 24, 48),
    ("embedding", lambda: F.embedding(MANY, TABLE[:2]), 2 * 16 + 96, 12 * 16),  # a small table is read once
    ("embedding_dense_backward", backward(lambda w: F.embedding(FEW, w), 10, 4), 48 + 24, 160),
    ("index", lambda: TABLE[FEW], 48 + 24, 48),
    ("index_select", lambda: TABLE.index_select(0, FEW), 48 + 24, 48),
    ("gather", lambda: TABLE.gather(0, FEW[None]), 12 + 24, 12),
    ("take", lambda: TABLE.take(FEW), 12 + 24, 12),
    ("masked_select", lambda: X.masked_select(torch.tensor([True, False, False])), 8 + 3, 8),
    ("index_put_", lambda: target().index_put_((FEW,), ROWS), 24 + 48, 48),
    ("index_put_", lambda: target().index_put_((FEW,), ROWS, accumulate=True), 24 + 48 + 48, 48),
    ("index_put_", lambda: target().index_put_((FEW, FEW % 4), torch.ones(1).squeeze()), 48 + 4, 12),
    ("index_put", lambda: TABLE.index_put((FEW,), ROWS), 160 + 24 + 48, 160),
    ("index_add_", lambda: target().index_add_(0, FEW, ROWS), 24 + 48 + 48, 48),
    ("index_copy_", lambda: target().index_copy_(0, FEW, ROWS), 24 + 48, 48),
    ("index_fill_", lambda: target().index_fill_(0, FEW, 1.0), 24, 48),
    ("scatter_", lambda: target().scatter_(0, FEW[None], ROWS), 24 + 12, 12),
    ("scatter_", lambda: target().scatter_(0, FEW[None], 1.0), 24, 12),
    ("scatter_add_", lambda: target().scatter_add_(0, FEW[None], ROWS), 24 + 12 + 12, 12),
    ("scatter_add", lambda: TABLE.scatter_add(0, FEW[None], ROWS), 160 + 24 + 12, 160),
    ("slice_backward", backward(lambda x: x[:2], 10, 4), 32, 160),
    ("select_backward", backward(lambda x: x[0], 10, 4), 16, 160),
    ("nll_loss_forward", lambda: F.nll_loss(LOGITS, TARGETS), 8 + 16, 8),
    ("nll_loss_backward", backward(lambda x: F.nll_loss(x, TARGETS), 2, 3), 4 + 16 + 4, 24),
    ("max_pool2d_with_indices", lambda: F.max_pool2d(SQUARE, 1, 2, return_indices=True), 16, 16 + 32),
    ("max_pool2d_with_indices_backward", backward(lambda x: F.max_pool2d(x, 2), 1, 1, 4, 4), 16 + 32, 64),
    ("avg_pool2d_backward", backward(lambda x: F.avg_pool2d(x, 2), 1, 1, 4, 4), 16, 64),
    ("reflection_pad1d_backward", backward(lambda x: F.pad(x, (1, 1), "reflect"), 1, 4), 24, 16),
    ("native_batch_norm", lambda: nn.BatchNorm1d(3)(torch.randn(4, 3, 2)), 96 + 4 * 12, 96 + 4 * 12),
    ("_local_scalar_dense", lambda: X.sum().item(), 4, 0),
]


@pytest.mark.parametrize(("operation", "run", "read", "written"), BYTES, ids=[f"{one[0]}-{one[2]}" for one in BYTES])
def test_bytes_are_those_worked_out_by_hand(operation: str, run: Run, read: int, written: int) -> None:
    assert cost_of(run, operation)[1:3] == (read, written)


@pytest.mark.parametrize(
    ("operation", "run", "parallelism"),
    [
        ("add", lambda: X + Y, 6),
        ("sum", lambda: X.sum(1), 2),
        ("max", lambda: X.max(1), 2),  # value and index are found together
        ("cumsum", lambda: X.cumsum(1), 2),  # along a row each step waits for the one before
        ("sort", lambda: EIGHT.sort(), 8),
        ("index_add_", lambda: target().index_add_(0, FEW, ROWS), 12),
        ("empty", lambda: torch.empty(3), 0),
    ],
)
def test_parallelism_is_the_number_of_independent_results(operation: str, run: Run, parallelism: int) -> None:
    assert cost_of(run, operation)[3] == parallelism


class Traffic(TorchDispatchMode):
    """What each op takes and writes, from the tensors themselves: name, bytes in, bytes out; None if not strided."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, int] | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        slots = [*zip(func._schema.arguments, args, strict=False)]
        slots += [(one, kwargs[one.name]) for one in func._schema.arguments if one.name in kwargs]
        written = [one for slot, item in slots if _is_written(slot) for one in tensors_in(item)]
        read = [one for slot, item in slots if not (_is_written(slot) and slot.kwarg_only) for one in tensors_in(item)]
        found = func(*args, **kwargs)
        known = {_memory(one) for one in read if one.layout is torch.strided}
        fresh = [one for one in tensors_in(found) if one.layout is torch.strided and _memory(one) not in known]
        touched = {id(one): one for one in (*written, *fresh)}.values()
        dense = all(one.layout is torch.strided for one in (*read, *touched, *tensors_in(found)))
        self.seen.append((str(func), (sum(map(_bytes, read)), sum(map(_bytes, touched))) if dense else None))
        return found


def _is_written(slot: Any) -> bool:
    return slot.alias_info is not None and slot.alias_info.is_write


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> int:
    places = [0] if tensor.numel() else []
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = places * size if step == 0 else [place + step * at for place in places for at in range(size)]
    return len(set(places)) * tensor.itemsize


# Read and write all there is: not those of MOVEMENT and others that choose.
WHOLE = ("pointwise", "activation", "reduction", "loss")
ALONE = [one for one in ZOO if one.name not in ("worker_thread", "lazy_module")]


@pytest.mark.parametrize("entry", ALONE, ids=str)
def test_bytes_are_those_of_the_tensors_that_passed(entry: Specimen) -> None:
    def step() -> None:
        outputs = model(*args, **kwargs)
        if entry.trains:
            loss_of(outputs).backward()

    model, args, kwargs = entry.build()
    with Traffic() as traffic:
        step()
    model, args, kwargs = entry.build()
    graph, counts = recorded(step)
    ops = graph.where(kind="op")
    seen = [one for one in traffic.seen if not one[0].startswith(("profiler.", "prim.device."))]
    assert [node.operation for node in ops] == [name for name, _ in seen]
    for node, (name, expected) in zip(ops, seen, strict=True):
        if node.operation_type in WHOLE and "nll_loss" not in name and expected is not None:
            assert (counts.bytes_read[node.id], counts.bytes_written[node.id]) == expected, name


def test_gradient_scaling_counts_a_test_and_a_product() -> None:
    gradients, found = [torch.ones(4), torch.ones(2)], torch.zeros(())
    call = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_
    work = cost_of(lambda: call(gradients, found, torch.ones(())), "_amp_foreach_non_finite_check_and_unscale_")
    assert work[:3] == (12, 24 + 4 + 4, 24 + 4)


# -- collectives -------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[None]:
    """Four processes, of which only this one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def collectives() -> dict[str, tuple[Callable[[Tensor], Any], int, int]]:
    from torch.distributed import _functional_collectives as functional

    gather = either(dist, "all_gather_single", "all_gather_into_tensor")
    scatter = either(dist, "reduce_scatter_single", "reduce_scatter_tensor")
    gather_tensor = either(functional, "all_gather_single", "all_gather_tensor")
    return {  # of a tensor of 24 bytes, in a world of four
        "all_reduce": (lambda x: dist.all_reduce(x), 24, 24),
        "broadcast": (lambda x: dist.broadcast(x, 0), 24, 24),
        "all_gather": (lambda x: dist.all_gather([torch.empty(2, 3) for _ in range(4)], x), 24, 96),
        "all_gather_single": (lambda x: gather(torch.empty(8, 3), x), 24, 96),
        "reduce_scatter_single": (lambda x: scatter(x, torch.empty(8, 3)), 96, 24),
        "all_to_all": (lambda x: dist.all_to_all_single(torch.empty(4, 3), torch.empty(4, 3)), 48, 48),
        "send": (lambda x: dist.send(x, 1), 24, 0),
        "recv": (lambda x: dist.recv(x, 1), 0, 24),
        "barrier": (lambda x: dist.barrier(), 0, 0),
        "functional": (lambda x: gather_tensor(x, 0, dist.group.WORLD).sum(), 24, 96),
    }


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", collectives())
def test_collectives_count_what_goes_in_and_what_comes_out(name: str) -> None:
    run, read, written = collectives()[name]
    x = torch.ones(2, 3)
    graph, counts = recorded(lambda: run(x))
    talking = [node.id for node in graph.where(kind="op") if node.operation_type == "communication"]
    assert talking
    assert not counts.uncosted
    assert (counts.bytes_read[talking].sum(), counts.bytes_written[talking].sum()) == (read, written)
    assert not counts.elementwise_flops[talking].any()
