"""Several processes, each with a recording of its own: what two of them on gloo did, and one of 1,024 that never ran.

ranks.py is what the two processes run. It is started once; the tests read the files it leaves.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import pytest
import support
import torch
import torch.distributed as dist
from torch import nn

import torchatlas as atlas
from torchatlas.errors import CaptureError
from torchatlas.graph import Graph, GraphNode
from torchatlas.operations.behaviour import COLLECTIVES

RANKS = (0, 1)
TRAINING = ("ddp", "ddp_views", "fsdp", "fsdp_of_old", "tensor_parallel", "pipeline")
SHAPES = ((16, 8), (16,), (16, 16), (16,), (4, 16), (4,))  # of the parameters they train
BYTES = sum(4 * math.prod(shape) for shape in SHAPES)
PATIENCE = 400  # seconds: two processes on a busy machine
pytestmark = pytest.mark.timeout(PATIENCE + 100)

each_rank = pytest.mark.parametrize("rank", RANKS)
each_training = pytest.mark.parametrize("name", TRAINING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes left what they and their witnesses saw."""
    place = tmp_path_factory.mktemp("ranks")
    program = str(Path(__file__).with_name("ranks.py"))
    children.run(*([sys.executable, program, str(place), str(rank)] for rank in RANKS), cwd=place, limit=PATIENCE)
    return place


def seen(folder: Path, name: str, rank: int) -> tuple[Graph, dict[str, Any]]:
    """The recorded graph, and what the witness saw."""
    return Graph.load(folder / f"{name}-rank{rank}.atlas"), json.loads((folder / f"{name}-rank{rank}.json").read_text())


def collectives(graph: Graph, *operations: str, **where: Any) -> list[GraphNode]:
    found = graph.where(operation_type="communication", **where)
    return [node for node in found if not operations or node.operation.split(".")[1] in operations]


def payload(nodes: list[GraphNode]) -> int:
    return sum(node.attributes["bytes"] for node in nodes)


def ancestors(node: GraphNode) -> set[str]:
    """The operations that its data comes from, however far back."""
    found, waiting = {node.id: node}, [node]
    while waiting:
        for before in waiting.pop().predecessors:
            if before.id not in found:
                found[before.id] = before
                waiting.append(before)
    return {before.operation for before in found.values() if before.id != node.id}


# -- two processes ---------------------------------------------------------------------------------------------------


@each_rank
@pytest.mark.parametrize("name", [*TRAINING, *(f"{name}_again" for name in TRAINING), "talk", "talk_functional"])
def test_every_op_is_a_node(folder: Path, name: str, rank: int) -> None:
    graph, witness = seen(folder, name, rank)
    assert [node.operation for node in graph.where(kind="op")] == witness["operations"]


@each_rank
@pytest.mark.parametrize("name", [*TRAINING, "talk_functional"])
def test_results_are_those_without_a_recording(folder: Path, name: str, rank: int) -> None:
    assert seen(folder, name, rank)[1]["same"] is True


@each_rank
@each_training
def test_live_bytes_are_those_of_all_storages(folder: Path, name: str, rank: int) -> None:
    """Gloo's threads let go of what they sent whenever they come to it: before or after the next op is dispatched."""
    graph, witness = seen(folder, f"{name}_again", rank)
    found = [node.memory_bytes or 0 for node in graph.where(kind="op")]
    for least, counted, most in zip(witness["lasting"], found, witness["live"], strict=True):
        assert least <= counted <= most


@each_rank
@each_training
def test_each_file_says_which_process_it_is_of(folder: Path, name: str, rank: int) -> None:
    graph, _ = seen(folder, name, rank)
    assert (graph.metadata["rank"], graph.metadata["world_size"]) == (rank, 2)
    assert any("time of a collective is the time to begin it" in note for note in graph.notes)
    for node in collectives(graph):
        if "wait" not in node.operation and "wrap" not in node.operation:
            group = node.attributes["group"]
            assert (group["backend"], group["size"], group["ranks"]) == ("gloo", 2, [0, 1])


@each_rank
@pytest.mark.parametrize("name", ["ddp", "ddp_views"])
def test_ddp_reduces_every_gradient_before_it_is_used(folder: Path, name: str, rank: int) -> None:
    graph, _ = seen(folder, name, rank)
    for iteration, buckets in ((0, 1), (1, 2)):
        reduced = collectives(graph, "allreduce_", iteration=iteration)
        assert len(reduced) == buckets  # the first step goes in one: DDP learns the order of gradients in it
        assert payload(reduced) == BYTES
        assert {node.phase for node in reduced} == {"backward"}
        assert {node.attributes["reduce_op"] for node in reduced} == {"sum"}
        assert {node.attributes["async_op"] for node in reduced} == {True}
    updates = graph.where(phase="optimizer", operation="add_")
    assert len(updates) == 2 * len(SHAPES)
    assert all("c10d.allreduce_.default" in ancestors(node) for node in updates)


@each_rank
def test_fsdp_gathers_parameters_and_scatters_gradients(folder: Path, rank: int) -> None:
    graph, _ = seen(folder, "fsdp", rank)
    root = 4 * (4 * 16 + 4)  # the last layer belongs to the root, which stays gathered until backward
    for iteration in (0, 1):
        forward = collectives(graph, "_allgather_base_", iteration=iteration, phase="forward")
        backward = collectives(graph, "_allgather_base_", iteration=iteration, phase="backward")
        scattered = collectives(graph, "_reduce_scatter_base_", iteration=iteration)
        assert (payload(forward), payload(backward), payload(scattered)) == (BYTES, BYTES - root, BYTES)
        assert {node.attributes["reduce_op"] for node in scattered} == {"avg"}
    for node in graph.where(phase="optimizer", operation="lerp_"):
        assert "c10d._reduce_scatter_base_.default" in ancestors(node)
    copies = graph.where(lambda node: node.operation.startswith("fsdp."))
    assert {str(node.operation_type) for node in copies} == {"movement"}


@each_rank
@pytest.mark.parametrize("name", ["fsdp", "tensor_parallel"])
def test_what_a_dtensor_holds_is_the_parameter(folder: Path, name: str, rank: int) -> None:
    """Each file counts what its own process holds: half of what is sharded, all of what is not."""
    graph, _ = seen(folder, name, rank)
    names = {f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")}
    for role in ("parameter", "gradient", "optimizer state"):
        found = {value.parameter for value in graph.values if value.role == role}
        assert found - {None} == names  # none: what several gradients lie in
    whole = {"fsdp": 0, "tensor_parallel": 16 + 4 * 16 + 4}[name]
    assert graph.scopes[""].parameters == (BYTES // 4 - whole) // 2 + whole
    inputs = graph.where(kind="input")
    assert [node.outputs[0].shape for node in inputs] == [(5, 8)]


@each_rank
def test_tensor_parallel_reduces_activations(folder: Path, rank: int) -> None:
    graph, _ = seen(folder, "tensor_parallel", rank)
    reduced, waits = collectives(graph, "all_reduce"), collectives(graph, "wait_tensor")
    assert [(node.scope.path, node.attributes["bytes"]) for node in reduced] == [("2", 5 * 16 * 4)] * 2
    assert payload(waits) == 0
    for node in graph.where(scope="3", operation="relu"):
        assert [before.operation for before in node.predecessors] == ["_c10d_functional.wait_tensor.default"]
        assert "_c10d_functional.all_reduce.default" in ancestors(node)


def test_stages_of_a_pipeline_send_and_receive(folder: Path) -> None:
    (first, _), (second, _) = (seen(folder, "pipeline_again", rank) for rank in RANKS)
    activation = 2 * 16 * 4  # half a batch between the stages
    for graph, peer in ((first, 1), (second, 0)):
        for operation in ("send", "recv_"):
            nodes = collectives(graph, operation)
            assert [node.attributes["bytes"] for node in nodes] == [activation, activation]
            assert {node.attributes["peer"] for node in nodes} == {peer}
    assert all("aten.relu.default" in ancestors(node) for node in collectives(first, "send"))
    assert all("c10d.recv_.default" in ancestors(node) for node in second.where(operation="addmm", phase="forward"))
    assert all("c10d.recv_.default" in ancestors(node) for node in first.where(operation="mm", phase="backward"))


def test_nothing_runs_in_other_threads_but_inside_a_collective(folder: Path) -> None:
    graph, witness = seen(folder, "profile", 0)
    events: list[tuple[int, str, float, float]] = witness["events"]
    main = next(thread for thread, name, _, _ in events if name.startswith("c10d::"))
    inside = [event for event in events if event[1].startswith("gloo:")]
    elsewhere = [event for event in events if event[0] != main and event not in inside]
    assert inside
    assert elsewhere, "gloo copies what it gathered: if it no longer does, docs/distributed.md can say so"
    for thread, name, start, end in elsewhere:
        assert any(t == thread and s <= start and end <= e for t, _, s, e in inside), name
    here = [event for event in events if event[0] == main and event[1].startswith("c10d::")]
    outermost = [e for e in here if not any(o is not e and o[2] <= e[2] and e[3] <= o[3] for o in here)]
    recorded = Counter(node.operation.replace(".", "::", 1).removesuffix(".default") for node in collectives(graph))
    assert Counter(name for _, name, _, _ in outermost) == recorded


@each_rank
@pytest.mark.parametrize("name", ["ddp", "fsdp", "tensor_parallel"])
def test_a_captured_model_is_as_before(folder: Path, name: str, rank: int) -> None:
    found = json.loads((folder / f"left-rank{rank}.json").read_text())[name]
    assert found["same weights"]
    assert found["same next step"]
    assert found["gradients"] == []
    if name != "ddp":  # whose buckets Python did not see before
        assert found["more bytes"] == 0


# -- each call by itself ---------------------------------------------------------------------------------------------

SIX, TWELVE = 24, 48  # bytes of so many numbers
SAID: dict[str, dict[str, Any]] = {
    "all_reduce": {"operation": "allreduce_", "bytes": SIX, "reduce_op": "max", "async_op": False},
    "all_reduce_async": {"operation": "allreduce_", "bytes": SIX, "reduce_op": "sum", "async_op": True},
    "all_gather": {"operation": "allgather_", "bytes": TWELVE},
    "all_gather_single": {"operation": "_allgather_base_", "bytes": TWELVE},
    "broadcast": {"operation": "broadcast_", "bytes": SIX, "root": 1},
    "reduce": {"operation": "reduce_", "bytes": SIX, "reduce_op": "sum", "root": 0},
    "gather": {"operation": "gather_", "bytes": (TWELVE, SIX), "root": 0},
    "scatter": {"operation": "scatter_", "bytes": (TWELVE, SIX), "root": 0},
    "reduce_scatter": {"operation": "reduce_scatter_", "bytes": SIX, "reduce_op": "sum"},
    "reduce_scatter_single": {"operation": "_reduce_scatter_base_", "bytes": SIX, "reduce_op": "sum"},
    "all_to_all_single": {"operation": "alltoall_base_", "bytes": SIX},
    "send": {"operation": ("send", "recv_"), "bytes": SIX, "peer": (1, 0), "tag": 0, "async_op": None},
    "isend": {"operation": ("send", "recv_"), "bytes": SIX, "peer": (1, 0), "tag": 3},
    "batch": {"operation": "recv_", "bytes": SIX, "peer": (1, 0)},
    "any_source": {"operation": ("send", "recv_any_source_"), "bytes": SIX},
    "coalesced_all_reduce": {"operation": "allreduce_coalesced_", "bytes": TWELVE, "reduce_op": "sum"},
    "coalesced_all_gather": {"operation": "allgather_into_tensor_coalesced_", "bytes": 2 * TWELVE},
    "coalesced_reduce_scatter": {"operation": "reduce_scatter_tensor_coalesced_", "bytes": TWELVE},
    "barrier": {"operation": "barrier", "bytes": 0},
}


@pytest.fixture(scope="module")
def talks(folder: Path) -> list[list[tuple[dict[str, Any], list[GraphNode], list[list[int]]]]]:
    """By rank: each call, its nodes, and the storages their inputs lie in."""
    found = []
    for rank in RANKS:
        graph, witness = seen(folder, "talk", rank)
        nodes = graph.where(kind="op")
        found.append(
            [
                (said, nodes[said["first"] : said["last"]], witness["taken"][said["first"] : said["last"]])
                for said in witness["said"]
            ]
        )
    return found


@each_rank
def test_each_call_says_what_it_is(talks: Any, rank: int) -> None:
    found = {said["name"]: nodes for said, nodes, _ in talks[rank]}
    for name, expected in SAID.items():
        mine = {key: item[rank] if isinstance(item, tuple) else item for key, item in expected.items()}
        operation = f"c10d.{mine.pop('operation')}.default"
        (node,) = [node for node in found[name] if node.operation == operation]
        assert node.operation_type == "communication"
        assert {key: node.attributes[key] for key in mine} == mine, name


def test_a_group_of_one_is_described_with_ranks_of_the_whole_world(talks: Any) -> None:
    (node,) = next(nodes for said, nodes, _ in talks[1] if said["name"] == "group")
    group = node.attributes["group"]
    assert (group["description"], group["size"], group["ranks"]) == ("only the second", 1, [1])
    assert (node.attributes["root_rank"], node.attributes["root"]) == (0, 1)
    assert repr(node.arguments) == f"([%0], {group['name']}, 0, 0, False)"


@each_rank
def test_lists_of_lists_of_tensors_are_kept(talks: Any, rank: int) -> None:
    (node,) = next(nodes for said, nodes, _ in talks[rank] if said["name"] == "all_gather")
    assert repr(node.arguments) == "([[%0, %1]], [%2], 0, False)"
    assert node.source is not None
    assert node.source.file.endswith("ranks.py")


@each_rank
def test_a_call_writes_what_has_changed_after_it(talks: Any, rank: int) -> None:
    met: set[str] = set()
    for said, nodes, taken in talks[rank]:
        written = {
            str(storages[position])
            for node, storages in zip(nodes, taken, strict=True)
            for position in node.writes
            if node.operation.startswith("c10d.")
        }
        assert set(said["changed"]) <= written, said["name"]
        if said["name"] not in ("broadcast", "group", "reduce"):  # of these only some processes write, all say they do
            assert set(said["changed"]) == written, said["name"]
        met |= {f"c10d.{node.operation.split('.')[1]}" for node in nodes}
    known = {name for name, (written, _) in COLLECTIVES.items() if written}
    not_on_gloo = {"c10d.alltoall_", "c10d.allgather_coalesced_"}
    only_here = {"c10d.recv_", "c10d.recv_any_source_"} if rank == 1 else {"c10d.recv_any_source_"}
    assert known - met - not_on_gloo <= only_here


@each_rank
def test_what_reads_the_result_comes_after_the_call(talks: Any, folder: Path, rank: int) -> None:
    nodes = seen(folder, "talk", rank)[0].where(kind="op")
    looked = 0
    for said, called, _ in talks[rank]:
        operations = {node.operation for node in called if node.writes and node.operation.startswith("c10d.")}
        for position in said["changed"].values():
            reader = nodes[position]
            looked += 1
            assert operations & ancestors(reader), (said["name"], reader)
    assert looked > 15


@each_rank
def test_functional_collectives_are_waited_for_by_a_node(folder: Path, rank: int) -> None:
    graph, witness = seen(folder, "talk_functional", rank)
    called = [node for node in collectives(graph) if node.attributes["bytes"]]
    sizes = [(node.operation.split(".")[1], node.attributes["bytes"]) for node in called]
    expected = [("all_reduce", 16), ("all_gather_into_tensor", 32), ("reduce_scatter_tensor", 16)]
    assert sizes == [*expected, ("all_to_all_single", 16), ("broadcast", 16)]
    assert [node.attributes.get("reduce_op") for node in called] == ["sum", None, "avg", None, None]
    assert called[-1].attributes["root"] == 1
    assert all(node.attributes["async_op"] for node in called)
    doubled = graph.where(operation="mul")
    for node, origin, numbers in zip(doubled, called, witness["numbers"], strict=True):
        (wait,) = node.predecessors
        assert wait.operation == "_c10d_functional.wait_tensor.default"
        assert origin.operation in ancestors(wait)
        # What a collective makes may not be there yet when it returns, so it is kept when it was waited for.
        assert f"{origin.id}:0" not in graph.recorded
        assert (graph.recorded[f"{wait.id}:0"] * 2).tolist() == numbers


# -- on the command line ---------------------------------------------------------------------------------------------

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.full((2, 4), dist.get_rank())).sum().backward()
dist.destroy_process_group()
"""


def test_torchrun_writes_a_file_per_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("torch.full((2, 4),", "torch.full((2, 4), 1.0 *"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "torchatlas", "capture", "--output", "run.atlas", "train.py"]
    (printed,) = map("".join, children.run(command, cwd=tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.atlas")) == ["run-rank0.atlas", "run-rank1.atlas"]
    assert printed.count("Graph of a run") == 1
    for rank in RANKS:
        graph = Graph.load(tmp_path / f"run-rank{rank}.atlas")
        assert (graph.metadata["rank"], graph.metadata["world_size"]) == (rank, 2)
        assert payload(collectives(graph, "allreduce_")) == 80
        assert f"written: run-rank{rank}.atlas" in printed


# -- one process of 1,024 --------------------------------------------------------------------------------------------

WIDTH, WORDS, WORLD = 1024, 2048, 1024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.attend = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)])
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (part(y).unflatten(-1, (8, -1)).transpose(1, 2) for part in self.attend[:3])
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attend[3](heads.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(WORDS, WIDTH), Block()
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embed(tokens))))


BLOCK_BYTES, ROOT_BYTES = 4 * (7 * WIDTH * WIDTH + 2 * WIDTH), 4 * (2 * WORDS * WIDTH + WIDTH)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A world of 1,024 processes in which nobody else exists."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (WORLD,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["fsdp", "fsdp_of_old", "tensor_parallel"])
def test_live_bytes_are_exactly_those_of_all_storages(name: str) -> None:
    """FSDP gives memory back by resizing storages, which is no op. A fake group has no threads that free anything."""
    from capturing import ranks
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model, step = getattr(ranks, name)(0)
        for _ in range(2):  # at first buffers come to be, then they are there
            with ranks.uncollected(), ranks.Witness(ranks.held()) as witness, atlas.recording(model) as rec:
                step()
    finally:
        dist.destroy_process_group()
    assert [node.memory_bytes for node in rec.graph.where(kind="op")] == witness.live
    assert rec.graph.peak_bytes == max(witness.live)


def sharded(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = Llama()
    for part in (model.block, model):
        fully_shard(part, mesh=mesh)
    return model


def check_sharded(graph: Graph) -> None:
    assert (graph.metadata["rank"], graph.metadata["world_size"]) == (0, WORLD)
    everyone = list(range(WORLD))
    for node in collectives(graph):
        group = node.attributes["group"]
        assert (group["backend"], group["size"], group["ranks"]) == ("fake", WORLD, everyone)
    gathered = [node.attributes["bytes"] for node in collectives(graph, "_allgather_base_")]
    scattered = [node.attributes["bytes"] for node in collectives(graph, "_reduce_scatter_base_")]
    assert gathered == [ROOT_BYTES, BLOCK_BYTES, BLOCK_BYTES]  # the block's again for backward
    assert scattered == [BLOCK_BYTES, ROOT_BYTES]
    assert graph.scopes[""].parameters * WORLD * 4 == BLOCK_BYTES + ROOT_BYTES
    steps = graph.where(phase="optimizer", operation="addcdiv_")
    shard = {(1, WIDTH), (2, WIDTH), (1,)}
    assert {node.outputs[0].shape for node in steps} == shard  # inside DTensor: what this process holds
    assert ROOT_BYTES + BLOCK_BYTES < (graph.peak_bytes or 0) < 3 * (ROOT_BYTES + BLOCK_BYTES)


def clear_sharding_cache() -> None:
    """Have DTensor try everything out again. Older versions have a function for each of its two caches."""
    from torch.distributed.tensor import debug

    names = [name for name in vars(debug) if name.startswith("_clear_") and name.endswith("sharding_prop_cache")]
    assert names
    for name in names:
        getattr(debug, name)()


def test_fsdp_of_1024_on_fake_tensors_is_recorded(mesh: Any) -> None:
    """Beside a run that only the witness sees, after it: by then DTensor need not try out ops any more."""
    support.needs("dtensor-first-step")
    from capturing.ranks import Witness, local, uncollected
    from torch._subclasses.fake_tensor import FakeTensorMode

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
        model(tokens).logsumexp(-1).mean().backward()
        optimizer.step()

    with uncollected(), FakeTensorMode():
        tokens = torch.zeros(1, 64, dtype=torch.int64)
        models = [sharded(mesh), sharded(mesh)]
        optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
        clear_sharding_cache()
        with atlas.recording(models[0]) as rec:
            step(models[0], optimizers[0], tokens)
        with Witness([tokens, *map(local, models[1].parameters())], fake=True) as witness:
            step(models[1], optimizers[1], tokens)
    graph = rec.graph
    assert [node.operation for node in graph.where(kind="op")] == witness.operations
    assert graph.peak_bytes == max(witness.live)
    check_sharded(graph)


def test_fsdp_of_1024_is_captured_without_weights(mesh: Any) -> None:
    support.needs("fake-collectives")
    graph = atlas.capture(
        lambda: sharded(mesh),
        torch.zeros(1, 64, dtype=torch.int64),
        loss=lambda logits: logits.logsumexp(-1).mean(),
        optimizer=torch.optim.AdamW,
        fake=True,
    )
    check_sharded(graph)


def test_what_dtensor_tries_out_is_not_recorded(mesh: Any) -> None:
    support.needs("dtensor-first-step")
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = parallelize_module(nn.Sequential(nn.Linear(4, WORLD)), mesh, {"0": ColwiseParallel()})
    x = torch.ones(2, 4)
    clear_sharding_cache()
    first, second = (atlas.capture(model, x, backward=True) for _ in range(2))
    assert first == second
    assert {node.outputs[0].shape for node in first.where(operation="addmm")} == {(2, 1)}


def test_what_fsdp_has_gathered_is_not_another_parameter(mesh: Any) -> None:
    """After forward alone the root is left gathered: its modules hold whole parameters."""
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Sequential(nn.Linear(4, WORLD)), mesh=mesh)
    with atlas.recording(model) as rec:
        model(torch.ones(2, 4))
    assert rec.graph.scopes[""].parameters == 4 + 1


def test_ddp_does_not_run_on_a_fake_group(mesh: Any) -> None:
    """Nothing of ours is involved: when torch mends it, docs/limits.md can say so."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r"c10d/comm\.cpp"):
        model(torch.ones(1, 2)).sum().backward()


def test_a_sharded_model_that_is_ready_says_to_pass_what_builds_it(mesh: Any) -> None:
    with pytest.raises(CaptureError, match="Pass a function that builds it"):
        atlas.capture(sharded(mesh), torch.zeros(1, 64, dtype=torch.int64), fake=True)


# -- resizing --------------------------------------------------------------------------------------------------------


def test_storages_that_give_their_memory_back_are_followed() -> None:
    x, stranger = torch.ones(100), torch.ones(10)
    stranger.untyped_storage().resize_(0)
    with atlas.recording() as rec:
        y = x + 1
        y.untyped_storage().resize_(0)
        z = x + 2
        x.untyped_storage().resize_(0)
        stranger.untyped_storage().resize_(40)
        w = z + 3
        y.untyped_storage().resize_(400)
        y.copy_(w)
        stranger.zero_()
    assert [node.memory_bytes for node in rec.graph.where(kind="op")] == [800, 800, 840, 1240, 1240]
    assert rec.graph.peak_bytes == 1240
    assert [storage.bytes for storage in rec.graph.storages] == [400, 400, 400, 400, 40]


def test_storages_are_resized_by_torch_alone_afterwards() -> None:
    assert "resize_" not in vars(torch.UntypedStorage)
    with atlas.recording():
        assert "resize_" in vars(torch.UntypedStorage)
    assert "resize_" not in vars(torch.UntypedStorage)


def test_capture_gives_back_what_a_resize_threw_away() -> None:
    kept, empty = torch.ones(100), torch.ones(100)
    empty.untyped_storage().resize_(0)

    def program() -> torch.Tensor:
        kept.untyped_storage().resize_(0)
        empty.untyped_storage().resize_(400)
        return empty.fill_(2) + 1

    atlas.capture(program)
    assert kept.tolist() == [1] * 100
    assert empty.untyped_storage().nbytes() == 0
