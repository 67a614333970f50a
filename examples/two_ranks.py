"""What do two processes that train one model send each other? Each records itself; one reads both files."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import torchatlas as atlas
from torchatlas.units import format_bytes


def train(rank: int) -> None:
    meeting = Path("meeting").resolve()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
    rec.graph.save(f"step-rank{rank}.atlas")
    dist.destroy_process_group()


def main() -> None:
    Path("meeting").unlink(missing_ok=True)  # of an earlier run
    other = subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": "1"})
    try:
        train(0)
        assert other.wait(timeout=100) == 0
    finally:
        other.kill()
    for rank in (0, 1):
        graph = atlas.Graph.load(f"step-rank{rank}.atlas")
        for node in graph.where(operation_type="communication"):
            what, ranks = node.attributes, node.attributes["group"]["ranks"]
            print(f"rank {rank}, {node.phase}: {node.name}, {format_bytes(what['bytes'])}, among {ranks}")


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else main()
