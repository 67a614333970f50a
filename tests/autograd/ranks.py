"""One of two processes that train with DistributedDataParallel: python ranks.py FOLDER RANK.

Each way of looking at backward runs the same training as nobody looking. What came out goes into FOLDER:
<way>-rank<n>.pt, the gradients and parameters, and order-rank<n>.json, what ran. test_reach.py compares them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchatlas as atlas
from torchatlas.autograd.graph_walk import reached, starting_node

Backward = Callable[[nn.Module, torch.Tensor], list[list[str]]]  # the operations of each run of the engine


def plain(model: nn.Module, loss: torch.Tensor) -> list[list[str]]:
    """With hooks of its own on the nodes."""
    ran: list[str] = []
    handles = [
        node.register_prehook(lambda _, node=node: ran.append(node.name().rpartition("::")[2]))
        for node in reached([starting_node(loss)])
    ]
    loss.backward()
    for handle in handles:  # DDP keeps the nodes of its parameters
        handle.remove()
    return [ran]


def recorded(model: nn.Module, loss: torch.Tensor) -> list[list[str]]:
    rec = atlas.record_backward(loss, model=model)
    return [[node.operation for node in run.graph.nodes] for run in rec.runs]


def with_statistics(model: nn.Module, loss: torch.Tensor) -> list[list[str]]:
    rec = atlas.record_backward(loss, model=model, statistics=True)
    assert rec.statistics
    return [[node.operation for node in run.graph.nodes] for run in rec.runs]


def debugged(model: nn.Module, loss: torch.Tensor) -> list[list[str]]:
    with atlas.debug_backward(loss, model=model) as dbg:
        assert dbg.run() is None
        return [[dbg.graph[name].operation for name in dbg.executed]]


def stepped(model: nn.Module, loss: torch.Tensor) -> list[list[str]]:
    ran = []
    with atlas.debug_backward(loss, model=model) as dbg:
        while (stop := dbg.step()) is not None:
            ran.append(stop.operation)
    return [ran]


WAYS: dict[str, Backward] = {way.__name__: way for way in (plain, recorded, with_statistics, debugged, stepped)}


def train(way: Backward, rank: int, **options: Any) -> tuple[dict[str, torch.Tensor], list[list[list[str]]]]:
    """Three steps, each process on data of its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model = DistributedDataParallel(net, bucket_cap_mb=0.0005, **options)  # several buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + rank)
    ran = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 8, generator=data)).square().mean()
        ran.append(way(net, loss))
        optimizer.step()
    gradients = {f"{name}.grad": tensor.grad for name, tensor in net.named_parameters() if tensor.grad is not None}
    return {**gradients, **{name: tensor.detach() for name, tensor in net.named_parameters()}}, ran


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    order = {}
    for name, way in WAYS.items():
        for kind, options in {"": {}, "_views": {"gradient_as_bucket_view": True}}.items():
            found, order[f"{name}{kind}"] = train(way, rank, **options)
            torch.save(found, folder / f"{name}{kind}-rank{rank}.pt")
    (folder / f"order-rank{rank}.json").write_text(json.dumps(order))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # All is written. Not by Python's own way out, on which threads of gloo that want its lock are ended in the middle
    # of C++ code: once in a while that ends the process with "terminate called without an active exception".
    os._exit(0)
