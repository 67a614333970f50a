"""One of two processes that train, talk and are recorded: python ranks.py FOLDER RANK.

Every program runs alone and recorded, under a Witness that uses nothing of torchatlas. What both saw goes into FOLDER:
<program>-rank<n>.atlas and <program>-rank<n>.json. test_processes.py compares them.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

import torchatlas as atlas
from torchatlas.torch_private import FakeTensor

# Newer versions of torch have other names for these, and warn of the old ones.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
gathered = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
scattered = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor

LEFT_OUT = ("profiler.", "prim.")


class Witness(TorchDispatchMode):
    """Lists the ops that pass, the memory of the tensors they take, and the bytes that are alive after each.

    Memory counts if an op takes or makes it while the witness looks. What Python held `before` counts from the
    beginning, the rest from when it is first seen. `fake` says that the program runs on fake tensors: in another
    one they are what DTensor tries out, and are left out.
    """

    def __init__(self, before: Iterable[torch.Tensor] = (), *, fake: bool = False) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.taken: list[list[int]] = []  # per op: the storage of each tensor it was given
        self._sizes: list[dict[weakref.ref[Any], int]] = []  # per op
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._met: set[weakref.ref[Any]] = set()
        self._fake = fake
        for tensor in before:
            self._reference(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, (DTensor, functional.AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # what runs inside comes by, op by op
        out = func(*args, **(kwargs or {}))
        taken = tensors((args, kwargs or {}))
        tried = not self._fake and any(isinstance(tensor, FakeTensor) for tensor in [*taken, *tensors(out)])
        if not str(func).startswith(LEFT_OUT) and not tried:
            self.operations.append(str(func))
            self.taken.append([tensor.untyped_storage()._cdata for tensor in taken])
            self._met.update(self._reference(tensor) for tensor in [*taken, *tensors(out)])
            alive = [(reference, reference()) for reference in self._storages.values()]
            self._sizes.append({reference: storage.nbytes() for reference, storage in alive if storage is not None})
        return out

    @property
    def live(self) -> list[int]:
        """Bytes after each op."""
        return [sum(size for reference, size in row.items() if reference in self._met) for row in self._sizes]

    @property
    def lasting(self) -> list[int]:
        """Of those, what is still there after the next op: the rest was freed at some moment between the two."""
        pairs = zip(self._sizes, [*self._sizes[1:], {}], strict=True)
        return [sum(size for ref, size in row.items() if ref in self._met and ref in later) for row, later in pairs]

    def _reference(self, tensor: torch.Tensor) -> weakref.ref[Any]:
        storage = local(tensor).untyped_storage()
        known = self._storages.get(id(storage))
        if known is None or known() is not storage:
            known = self._storages[id(storage)] = weakref.ref(storage)
        return known


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has the memory."""
    if isinstance(tensor, DTensor):
        return local(tensor._local_tensor)
    return tensor.elem if isinstance(tensor, functional.AsyncCollectiveTensor) else tensor


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


# -- training: a model, what its optimizer steps through, one step ---------------------------------------------------

Training = tuple[nn.Module, Callable[[], list[torch.Tensor]]]


def steps_of(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], list[Any]]:
    def step() -> list[torch.Tensor]:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach()]

    return step


def batch_of(rank: int) -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(rank))


def ddp(rank: int, *, views: bool = False) -> Training:
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.001, gradient_as_bucket_view=views)
    return model, steps_of(model, batch_of(rank), torch.optim.SGD(model.parameters(), 0.1))


def ddp_views(rank: int) -> Training:
    return ddp(rank, views=True)


def fsdp(rank: int) -> Training:
    model = mlp()
    for part in (model[0], model[2], model):
        fully_shard(part)
    return model, steps_of(model, batch_of(rank), torch.optim.AdamW(model.parameters(), 0.1))


def fsdp_of_old(rank: int) -> Training:
    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
    return model, steps_of(model, batch_of(rank), torch.optim.SGD(model.parameters(), 0.1))


def tensor_parallel(rank: int) -> Training:
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, steps_of(model, batch_of(0), torch.optim.AdamW(model.parameters(), 0.1))


def pipeline(rank: int) -> Training:
    whole = mlp()
    part = whole[:2] if rank == 0 else whole[2:]
    batch, target, losses = batch_of(0)[:4], torch.ones(4, 4), []
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)

    def step() -> list[torch.Tensor]:
        losses.clear()
        out = schedule.step(batch) if rank == 0 else schedule.step(target=target, losses=losses)
        gradients = [parameter.grad.clone() for parameter in part.parameters()]
        return [loss.detach() for loss in losses] + gradients + ([] if out is None else [out.detach()])

    return part, step


def train(program: Callable[[int], Training], rank: int, folder: Path) -> None:
    """The same two steps alone and recorded, then a third for which the witness knows what was there before."""
    model, step = program(rank)
    alone = [step(), step(), weights(model)]
    model, step = program(rank)
    with Witness() as witness, atlas.recording(model) as rec:
        recorded = [step(), step()]
    save(folder, program.__name__, rank, rec.graph, witness, same=same(alone, [*recorded, weights(model)]))
    with uncollected(), Witness(held()) as witness, atlas.recording(model) as rec:
        step()
    save(folder, f"{program.__name__}_again", rank, rec.graph, witness)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [local(parameter.detach()).clone() for parameter in model.parameters()]


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)


def left(program: Callable[[int], Training], rank: int) -> dict[str, Any]:
    """How a captured model is afterwards: to look at, in memory, and in what it does next."""
    (model, step), (_, fresh_step) = program(rank), program(rank)
    step(), fresh_step()  # buckets are made and shards gathered once
    before = weights(model)
    before_bytes = held_bytes()
    for backward in (False, True):
        atlas.capture(model, batch_of(rank), backward=backward)
    for _ in range(50):  # gloo's threads let go of what they sent a moment after the program has gone on
        more_bytes = held_bytes() - before_bytes
        if more_bytes <= 0 or program is ddp:  # whose buckets Python did not see before
            break
        time.sleep(0.1)
    return {
        "more bytes": more_bytes,
        "gradients": [name for name, parameter in model.named_parameters() if parameter.grad is not None],
        "same weights": same(before, weights(model)),
        "same next step": same(step(), fresh_step()),
    }


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing dies of garbage collection meanwhile: it would come at another moment for each who counts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held() -> list[torch.Tensor]:
    """Every tensor that Python holds and that has memory."""
    gc.collect()
    return [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor) and _has_memory(item)]


def _has_memory(tensor: torch.Tensor) -> bool:
    if is_lazy(tensor):  # a parameter that has no shape yet, of a model that another test still holds
        return False
    try:
        local(tensor).untyped_storage()
    except NotImplementedError:  # what a transform of torch.func wraps, of a trace that failed in another test
        return False
    return True


def held_bytes() -> int:
    return sum({(s := local(item).untyped_storage())._cdata: s.nbytes() for item in held()}.values())


def profile(rank: int, folder: Path) -> None:
    """A step as the profiler sees it in all threads, and as it is recorded at the same time."""
    model, step = fsdp(rank)
    step()
    everywhere = torch.profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiled = torch.profiler.profile(activities=activities, experimental_config=everywhere)
    with profiled as profiler, Witness() as witness, atlas.recording(model) as rec:
        step()
    events = [(e.thread, e.name, e.time_range.start, e.time_range.end) for e in profiler.events()]
    save(folder, "profile", rank, rec.graph, witness, events=events)


# -- talking: each call of torch.distributed by itself ---------------------------------------------------------------


def calls(rank: int) -> dict[str, tuple[Callable[[], Any], list[torch.Tensor]]]:
    """By name: a call, and the tensors it may read or write. The numbers differ between the processes."""
    made = torch.Generator().manual_seed(rank)
    first, alone = rank == 0, dist.new_group([1], group_desc="only the second")

    def new(size: int) -> torch.Tensor:
        return torch.rand(size, generator=made)

    def transfer(asynchronous: bool, tensor: torch.Tensor) -> None:
        if asynchronous:
            (dist.isend(tensor, 1, tag=3) if first else dist.irecv(tensor, 0, tag=3)).wait()
        else:
            dist.send(tensor, 1) if first else dist.recv(tensor, 0)

    def batch(out: torch.Tensor, got: torch.Tensor) -> None:
        ops = [dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def coalesced(function: Callable[..., Any], *arguments: tuple[torch.Tensor, ...]) -> None:
        with dist._coalescing_manager():
            for each in arguments:
                function(*each)

    a, b, c = [[new(6), new(6), new(6)] for _ in range(3)]
    x, y, z = [new(6) for _ in range(20)], [new(12) for _ in range(6)], [new(3) for _ in range(8)]
    found: dict[str, tuple[Callable[[], Any], list[torch.Tensor]]] = {
        "all_reduce": (lambda: dist.all_reduce(x[0], dist.ReduceOp.MAX), [x[0]]),
        "all_reduce_async": (lambda: dist.all_reduce(x[1], async_op=True).wait(), [x[1]]),
        "all_gather": (lambda: dist.all_gather(a[:2], a[2]), a),
        "all_gather_single": (lambda: all_gather_single(y[0], x[2]), [y[0], x[2]]),
        "broadcast": (lambda: dist.broadcast(x[3], 1), [x[3]]),
        "reduce": (lambda: dist.reduce(x[4], 0), [x[4]]),
        "gather": (lambda: dist.gather(b[2], b[:2] if first else None, 0), b),
        "scatter": (lambda: dist.scatter(c[2], c[:2] if first else None, 0), c),
        "reduce_scatter": (lambda: dist.reduce_scatter(z[0], [z[1], z[2]]), z[:3]),
        "reduce_scatter_single": (lambda: reduce_scatter_single(z[3], x[5]), [z[3], x[5]]),
        "all_to_all_single": (lambda: dist.all_to_all_single(x[6], x[7]), x[6:8]),
        "send": (lambda: transfer(False, x[8]), [x[8]]),
        "isend": (lambda: transfer(True, x[9]), [x[9]]),
        "batch": (lambda: batch(x[10], x[11]), x[10:12]),
        "any_source": (lambda: dist.send(x[12], 1) if first else dist.recv(x[12]), [x[12]]),
        "coalesced_all_reduce": (lambda: coalesced(dist.all_reduce, (x[13],), (x[14],)), x[13:15]),
        "coalesced_all_gather": (
            lambda: coalesced(all_gather_single, (y[1], x[15]), (y[2], x[16])),
            [*y[1:3], *x[15:17]],
        ),
        "coalesced_reduce_scatter": (
            lambda: coalesced(reduce_scatter_single, (z[4], x[17]), (z[5], x[18])),
            [*z[4:6], *x[17:19]],
        ),
        "barrier": (dist.barrier, []),
    }
    if rank == 1:
        found["group"] = (lambda: dist.broadcast(x[19], 1, group=alone), [x[19]])
    return found


def talk(rank: int, folder: Path) -> None:
    """Every call, and a look at all it may have changed, through another view of it."""
    said = []
    with Witness() as witness, atlas.recording() as rec:
        for name, (call, involved) in calls(rank).items():
            before = [tensor.tolist() for tensor in involved]
            first = len(witness.operations)
            call()
            last = len(witness.operations)
            after = {}
            for tensor, content in zip(involved, before, strict=True):
                if tensor.tolist() != content:
                    after[tensor.untyped_storage()._cdata] = len(witness.operations)
                    tensor.view(-1)
            said.append({"name": name, "first": first, "last": last, "changed": after})
    save(folder, "talk", rank, rec.graph, witness, said=said)


def talk_functional(rank: int, folder: Path) -> None:
    x, world = torch.rand(4, generator=torch.Generator().manual_seed(rank)), dist.group.WORLD

    def run() -> list[torch.Tensor]:
        made = [
            functional.all_reduce(x, "sum", world),
            gathered(x, 0, world),
            scattered(x, "avg", 0, world),
            functional.all_to_all_single(x, None, None, world),
            functional.broadcast(x, 1, world),
        ]
        return [tensor * 2 for tensor in made]

    alone = run()
    with Witness() as witness, atlas.recording(values="all") as rec:
        recorded = run()
    numbers = [tensor.tolist() for tensor in recorded]
    save(folder, "talk_functional", rank, rec.graph, witness, same=same(alone, recorded), numbers=numbers)


def save(folder: Path, name: str, rank: int, graph: atlas.Graph, witness: Witness, **more: Any) -> None:
    graph.save(folder / f"{name}-rank{rank}.atlas")
    seen = more | {
        "operations": witness.operations,
        "taken": witness.taken,
        "live": witness.live,
        "lasting": witness.lasting,
    }
    (folder / f"{name}-rank{rank}.json").write_text(json.dumps(seen))


TRAINING = (ddp, ddp_views, fsdp, fsdp_of_old, tensor_parallel, pipeline)


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # `held` asks the collector for all objects, many times: not for those of the imports
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    talk(rank, folder)
    talk_functional(rank, folder)
    for program in TRAINING:
        train(program, rank, folder)
    found = {program.__name__: left(program, rank) for program in (ddp, fsdp, tensor_parallel)}
    (folder / f"left-rank{rank}.json").write_text(json.dumps(found))
    profile(rank, folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
