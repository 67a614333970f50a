"""Every kind of tensor: the graph has the ops that ran, in their order, and what each op took comes from its producer.

Each program runs alone, under an independent witness, and recorded; they agree on ops and on results, bit for bit.
"""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from capturing.witness import Witness, content, operations, producers, seeded
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.graph.names import short_name

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and other quantized"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:It is not recommended to create a MaskedTensor with a tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse (BSR|BSC|CSC) tensor support is in beta state:UserWarning"),
]


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


# -- subclasses --------------------------------------------------------------------------------------------------------


class Plain(Tensor):
    """Nothing of its own."""


class Counting(Tensor):
    """Counts the functions it is passed to."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Scale(nn.Parameter):
    """A parameter of its own class."""


class Boxed(Tensor):
    """Holds a tensor and does not say so: no __tensor_flatten__."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Boxed:
        box = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        box.inner = inner
        return box

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = torch.utils._pytree.tree_map_only(Boxed, lambda box: box.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Boxed, func(*args, **kwargs))


@program
def plain_subclass() -> Any:
    x = torch.arange(3.0).as_subclass(Plain).requires_grad_()
    y = (x * x).sum()
    y.backward()
    return y, x.grad


@program
def torch_function_subclass() -> Any:
    before = Counting.calls
    x = torch.ones(3).as_subclass(Counting)
    y = torch.cat([(x * 2).relu_(), x])
    return y, y.as_subclass(Tensor) + 1, Counting.calls - before


@program
def parameter_subclass() -> Any:
    w = Scale(torch.ones(3, 2))
    (torch.ones(1, 3) @ w).sum().backward()
    return w, w.grad


@program
def wrapper() -> Any:
    x = TwoTensor(torch.ones(3), torch.zeros(3)).requires_grad_()
    y = (x.sin() * x).sum()
    y.backward()
    return y.a, x.grad.a, x.grad.b


@program
def wrapper_that_does_not_say_so() -> Any:
    x = Boxed(torch.arange(3.0)).requires_grad_()
    (x * 2).exp().sum().backward()
    return x.grad.inner


@program
def wrapper_of_a_wrapper() -> Any:
    x = TwoTensor(TwoTensor(torch.ones(2), torch.zeros(2)), TwoTensor(torch.ones(2), torch.ones(2)))
    y = x.add_(1) * x
    return y.a.a, y.a.b, y.b.a, y.b.b


@program
def wrapped_parameter() -> Any:
    linear = nn.Linear(3, 2)
    linear.weight = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)))
    y = linear(torch.ones(1, 3))
    y.sum().backward()
    return y.a, y.b, linear.weight.grad.a, linear.bias.grad.b


@program
def masked() -> Any:
    x = masked_tensor(torch.arange(4.0), torch.tensor([True, False, True, True]), requires_grad=True)
    y = (x * x).sum()
    y.backward()
    return y.get_data(), x.grad.get_data(), x.grad.get_mask()


@program
def jagged() -> Any:
    rows = [torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    linear = nn.Linear(3, 2)
    y = linear(torch.nested.as_nested_tensor(rows, layout=torch.jagged)).relu()
    y.values().sum().backward()
    return y.values(), [row.grad for row in rows], linear.weight.grad, linear.bias.grad


@program
def jagged_attention() -> Any:
    x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    q = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).values()


@program
def functionalized() -> Any:
    def f(x: Tensor) -> Tensor:
        y = x + 1
        y[:2].mul_(2)
        return y

    return torch.func.functionalize(f)(torch.ones(3))


# -- layouts -----------------------------------------------------------------------------------------------------------


@program
def sparse_coo() -> Any:
    values = torch.tensor([3.0, 4.0, 5.0]).requires_grad_()
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), values, (2, 3))
    y = torch.sparse.mm(x, torch.ones(3, 2))
    y.sum().backward()
    z = torch.eye(3).to_sparse()
    return y, values.grad, (z + z).coalesce() * 2


@program
def sparse_gradient() -> Any:
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), torch.ones(2), (2, 3)).requires_grad_()
    torch.sparse.mm(x, torch.ones(3, 2)).sum().backward()
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    gradient = table.weight.grad
    torch.optim.SGD(table.parameters(), lr=0.1).step()
    return x.grad, gradient, table.weight


@program
def sparse_compressed() -> Any:
    x = torch.arange(16.0).reshape(4, 4)
    csr = x.to_sparse_csr().requires_grad_()
    y = csr @ torch.ones(4, 2)
    y.sum().backward()
    return y, csr.grad, x.to_sparse_csc(), x.to_sparse_bsr((2, 2)), x.to_sparse_bsc((2, 2)).values()


@program
def nested_strided() -> Any:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], requires_grad=True)
    padded = torch.nested.to_padded_tensor((x * 2).add_(1), 0.0)
    padded.sum().backward()
    return x, padded, x.grad


@program
def blocked() -> Any:
    return nn.functional.relu(torch.randn(2, 3, 4, 4).to_mkldnn()).to_dense()


# -- dtypes ------------------------------------------------------------------------------------------------------------


@program
def floats() -> Any:
    eight_bits = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    small = [torch.tensor([1.0, 2.0, 4.0]).to(getattr(torch, name)) for name in eight_bits.split()]
    x = [torch.linspace(-1, 1, 5).to(dtype) for dtype in (torch.half, torch.bfloat16, torch.float64)]
    return small, [one.float() for one in small], [(one + one, one.sum(), one.relu()) for one in x]


@program
def halves_train() -> Any:
    linear = nn.Linear(4, 3, dtype=torch.bfloat16)
    linear(torch.randn(2, 4, dtype=torch.bfloat16)).float().square().mean().backward()
    return linear.weight.grad, linear.bias.grad


@program
def whole_numbers() -> Any:
    signed = [torch.arange(4, dtype=d) for d in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)]
    unsigned = [torch.arange(4).to(dtype) for dtype in (torch.uint16, torch.uint32, torch.uint64)]
    truth = torch.tensor([True, False])
    return (
        [(one + one, one * 2, one.sum(), 2 - one, one // 2) for one in signed],
        [(one == one, one.view(torch.uint8), one.to(torch.int64)) for one in unsigned],
        (~truth, truth & truth, truth.sum(), truth.float(), truth.any()),
    )


@program
def packed_bits() -> Any:
    bits = torch.arange(4, dtype=torch.uint8)
    return [bits.view(dtype).view(torch.uint8) for dtype in (torch.bits8, torch.float4_e2m1fn_x2)]


@program
def complex_numbers() -> Any:
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    (x.conj() * x).real.sum().backward()
    plain = x.detach()
    half = torch.complex(torch.ones(2).half(), torch.ones(2).half())
    return x.grad, torch.view_as_real(plain), plain.conj().imag.neg(), torch.fft.fft(plain), torch.view_as_real(half)


@program
def quantized() -> Any:
    x = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.quint8)
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 0])
    rows = torch.quantize_per_channel(torch.randn(2, 3), scales, zeros, 0, torch.qint8)
    added = torch.ops.quantized.add(x, x, 0.2, 0)
    return x, x.int_repr(), nn.functional.relu(x), x.view(2, 2).dequantize(), rows, rows.int_repr(), added


@program
def fake_quantized() -> Any:
    x = torch.randn(4, requires_grad=True)
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).sum().backward()
    return x.grad


# -- sizes and places --------------------------------------------------------------------------------------------------


@program
def no_dimensions_and_no_elements() -> Any:
    x, y = torch.tensor(3.0), torch.empty(0, 4)
    y.add_(1)
    return x + 1, y.sum(), y @ torch.ones(4, 2), torch.cat([y, torch.ones(1, 4)]), x.item() + 1


@program
def meta_device() -> Any:
    model = nn.Linear(3, 2, device="meta")
    y = model(torch.ones(4, 3, device="meta"))
    y.sum().backward()
    return y, model.weight.grad


@program
def inference_tensors() -> Any:
    with torch.inference_mode():
        x = torch.ones(3)
        y = (x * 2).add_(1)
        y[1:].mul_(3)
    return y, y + 1


@program
def own_fake_mode() -> Any:
    with FakeTensorMode():
        y = nn.Linear(4, 2)(torch.randn(3, 4)).relu()
        y.sum().backward()
    return y


@program
def fakes_of_real_tensors() -> Any:
    x = FakeTensorMode().from_tensor(torch.ones(3))
    return x * 2 + x


# -- to and from elsewhere ---------------------------------------------------------------------------------------------


@program
def numpy_round_trips() -> Any:
    array = np.arange(4.0)
    x = torch.from_numpy(array)
    y = x * 2
    y.numpy()[...] += 1
    z = y + 1
    return z, torch.as_tensor(array) + 1, torch.tensor(array), torch.asarray(array) * 2, np.asarray(z)


@program
def python_numbers() -> Any:
    x = torch.arange(4.0)
    if x[1] > 0:
        x = x + x[1].item()
    return torch.tensor(x.tolist()), int(x[2]), float(x.sum()), [float(one) for one in x], x * np.float32(2), x[None]


@program
def dlpack() -> Any:
    x = torch.arange(4.0)
    torch.from_dlpack(x).mul_(2)
    return x + 1, torch.from_dlpack(np.arange(3.0)) + 1


@program
def set_to_another_storage() -> Any:
    x = torch.zeros(2).set_(torch.arange(6.0))
    y = x * 2
    return y, torch.empty(0).set_(y.untyped_storage(), 2, (2,)) + 1


@program
def buffers() -> Any:
    x = torch.frombuffer(bytearray(16), dtype=torch.float32)
    x.fill_(2.0)
    return x + 1


@program
def copies() -> Any:
    x = torch.arange(4.0) * 2
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return [one + 1 for one in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x), torch.load(file))]


@program
def shared_memory() -> Any:
    return torch.arange(4.0).share_memory_() + 1


# -- all of them -------------------------------------------------------------------------------------------------------

# The parts of a sparse tensor count as one storage; see test_the_parts_of_a_sparse_tensor_count_once.
PARTS = ("_indices", "_values", "indices", "values", "detach")

every_program = pytest.mark.parametrize("run", PROGRAMS.values(), ids=PROGRAMS)


def recorded(run: Program, **options: Any) -> tuple[Graph, Any]:
    with atlas.recording(**options) as rec:
        result = seeded(run)
    return rec.graph, result


@every_program
def test_the_ops_that_ran_and_the_results_of_running_alone(run: Program) -> None:
    alone = content(seeded(run))
    with Witness() as witness:
        seeded(run)
    graph, result = recorded(run)
    assert operations(graph) == witness.operations
    assert content(result) == alone


@pytest.mark.parametrize("values", ["all", "stats"])
@every_program
def test_keeping_values_changes_nothing(run: Program, values: str) -> None:
    alone = content(seeded(run))
    graph, result = recorded(run, values=values)
    plain, _ = recorded(run)
    assert operations(graph) == operations(plain)
    assert content(result) == alone


@every_program
def test_what_an_op_took_comes_from_who_made_it(run: Program) -> None:
    witness = Witness(keep=True)
    with witness:
        graph, _ = recorded(run)
    ops = graph.where(kind="op")
    assert operations(graph) == witness.operations
    position = {node.id: number for number, node in enumerate(ops)}
    for node, expected in zip(ops, producers(witness), strict=True):
        made_by = [None if value.producer is None else value.producer[0] for value in node.inputs]
        known = [None if maker is None or maker.kind == "input" else position[maker.id] for maker in made_by]
        assert known == expected, node.name
    for node, made in zip(ops, witness.facts, strict=True):
        for value, (dtype, shape, size) in zip(node.outputs, made, strict=False):
            assert value.dtype == dtype
            assert shape is None or value.shape == shape
            part = run.__name__.startswith("sparse") and short_name(node.operation) in PARTS
            assert size is None or value.storage.bytes == size or (part and value.storage.bytes > size), node.name


@every_program
def test_capturing_and_saving(run: Program, tmp_path: Any) -> None:
    graph = atlas.capture(run)
    for suffix in ("json", "atlas"):
        assert atlas.load(graph.save(tmp_path / f"graph.{suffix}")).identical(graph)


# -- wrappers ----------------------------------------------------------------------------------------------------------


def test_what_a_wrapped_parameter_holds_has_its_name_and_its_bytes() -> None:
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)))
    x = torch.ones(1, 3)
    with atlas.recording(model) as rec:
        model(x).sum().backward()
    taken = {value.parameter for node in rec.graph.where(phase="forward", kind="op") for value in node.inputs}
    assert {"weight.a", "weight.b", "bias"} <= taken
    held = (model.weight.a, model.weight.b, model.bias, x)
    assert rec.graph["t"].memory_bytes == sum(tensor.untyped_storage().nbytes() for tensor in held)


def test_all_that_starts_the_backward_of_a_wrapper_counts_with_it() -> None:
    graph, _ = recorded(wrapper)
    seeds = [node for node in graph.where(kind="op") if node.operation == "aten.ones_like.default"]
    assert [seed.phase for seed in seeds] == ["backward", "backward"]
    assert graph["sum_1"].phase == "forward"


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)  # it talks to nobody
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_the_ops_inside_a_dtensor(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def run() -> Any:
        x = DTensor.from_local(torch.randn(4, 3), mesh, [Shard(0)])
        w = nn.Parameter(DTensor.from_local(torch.randn(3, 2), mesh, [Replicate()]))
        y = (x @ w).relu()
        y.to_local().sum().backward()
        return y.to_local(), w.grad.to_local()

    alone = content(seeded(run))
    with Witness() as witness:
        seeded(run)
    graph, result = recorded(run)
    assert operations(graph) == witness.operations
    assert content(result) == alone
    assert [node.inputs[1].shape for node in graph.where(phase="forward") if "mm" in node.operation] == [(3, 2)]
    assert graph["relu"].inputs[0].producer == (graph["mm"], 0)


# -- sparse and nested -------------------------------------------------------------------------------------------------


def test_whoever_writes_the_values_of_a_sparse_tensor_writes_the_tensor() -> None:
    with atlas.recording() as rec:
        values = torch.ones(2)
        x = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), values, (2, 2))
        values.add_(1)
        dense = x.to_dense()
        y = torch.eye(2).to_sparse_csr()
        y.values().mul_(3)
        other = y.to_dense()
    assert (dense.tolist(), other.tolist()) == ([[0, 2], [2, 0]], [[3, 0], [0, 3]])
    assert rec.graph["add_"] in rec.graph["_to_dense"].predecessors
    assert rec.graph["mul_"] in rec.graph["_to_dense_1"].predecessors


def test_the_parts_of_a_sparse_tensor_count_once() -> None:
    x = torch.eye(4)
    with atlas.recording() as rec:
        y = x.to_sparse()
        values, indices = y._values(), y._indices()
        z = torch.sparse_coo_tensor(indices, values, (4, 4))
        gone = y.mul(2)
        del gone
        torch.zeros(1)
    sizes = [tensor.untyped_storage().nbytes() for tensor in (x, values, indices)]
    assert rec.graph["_to_sparse"].outputs[0].layout.kind == "sparse_coo"
    assert rec.graph["_to_sparse"].outputs[0].storage.bytes == sum(sizes[1:])
    assert rec.graph["_sparse_coo_tensor_with_dims_and_tensors"].memory_bytes == sum(sizes)
    assert rec.graph["zeros"].memory_bytes == sum(sizes) + 4
    del z


def test_the_ragged_sizes_of_a_nested_tensor_are_stars() -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    with atlas.recording() as rec:
        y = x * 2
    (value,) = rec.graph["mul"].outputs
    assert (value.shape, value.layout.kind) == ((2, "*", 3), "nested")
    assert value.storage.bytes == y.untyped_storage().nbytes() == 36


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_are_kept_as_numbers_that_numpy_has() -> None:
    made: dict[str, Any] = {}
    with atlas.recording(values="all") as rec:
        x = torch.tensor([0.5, -1.0, 2.0])
        for name in ("bfloat16", "float8_e4m3fnuz", "complex32", "uint16"):
            made[name] = (x.abs() if name == "uint16" else x).to(getattr(torch, name))
        made["qint8"] = torch.quantize_per_tensor(x, 0.5, 0, torch.qint8)
        x.to_sparse()
        x.view(torch.uint8).view(torch.bits8)
    graph = rec.graph
    kept = {f"{node.id}:0": node.outputs[0].dtype for node in graph.where(kind="op")}
    for key, dtype in kept.items():
        if dtype in made:
            exact = made[dtype].dequantize() if dtype == "qint8" else made[dtype].to(torch.complex128)
            np.testing.assert_array_equal(graph.recorded[key], exact.numpy())
    made_by = [graph.nodes[int(key.partition(":")[0])] for key in kept if key not in graph.recorded]
    without = {(node.outputs[0].layout.kind, node.outputs[0].dtype) for node in made_by}
    assert without == {("sparse_coo", "float32"), ("strided", "bits8")}


# -- memory that is reached by another way -----------------------------------------------------------------------------


def reaches(graph: Graph, source: str, target: str) -> bool:
    """Whether a target must come after a source, by edges of both kinds."""
    after = {graph[source].id}
    for edge in sorted(graph.edges, key=lambda edge: edge.target_id):
        if edge.source_id in after:
            after.add(edge.target_id)
    return graph[target].id in after


def test_set_to_a_storage_comes_after_who_filled_it() -> None:
    with atlas.recording() as rec:
        x = torch.ones(3)
        x.mul_(2)
        y = torch.empty(0).set_(x.untyped_storage()) + 1
    assert y.tolist() == [3, 3, 3]
    order = {(edge.source.name, edge.target.name) for edge in rec.graph.edges if edge.kind == "order"}
    assert {("ones", "set_"), ("mul_", "set_")} <= order
    assert rec.graph["add"].inputs[0].producer == (rec.graph["set_"], 0)


def test_a_storage_among_the_arguments_is_neither_kept_nor_read() -> None:
    with atlas.recording() as rec:
        x = torch.ones(1000)
        y = torch.empty(0).set_(x.untyped_storage())
        storage = weakref.ref(x.untyped_storage())
        del x, y
        assert storage() is None
        torch.empty(0).set_(torch.ones(1000).untyped_storage())
    with Witness() as witness:
        graph = rec.graph
    assert witness.operations == []
    assert str(graph["set_"].arguments.args[1]) == "torch.storage.UntypedStorage"


def test_a_deep_copy_comes_from_its_original() -> None:
    with atlas.recording() as rec:
        x = torch.arange(4.0) * 2
        copy.deepcopy(x).sin()
    assert reaches(rec.graph, "mul", "copy_")  # which copies the bytes from one storage to another
    assert reaches(rec.graph, "copy_", "sin")


def test_memory_that_others_write_to_is_a_limit() -> None:
    """What numpy writes, and what is written under another name by DLPack, is in the results and not in the graph."""
    with atlas.recording() as rec:
        x = torch.zeros(3)
        x.numpy()[...] = 1
        y = x + 1
        torch.from_dlpack(x).mul_(5)
        z = x.sin()
    assert (y.tolist(), z.tolist()) == ([2, 2, 2], torch.full((3,), 5.0).sin().tolist())
    assert rec.graph["add"].inputs[0].producer == (rec.graph["zeros"], 0)
    assert not reaches(rec.graph, "mul_", "sin")


# -- models and inputs -------------------------------------------------------------------------------------------------


def test_a_dynamically_quantized_model() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(2, 4)
    alone = content(model(x))
    with Witness() as witness:
        model(x)
    with atlas.recording(model) as rec:
        result = model(x)
    assert content(result) == alone
    assert operations(rec.graph) == witness.operations
    ops = [(node.operation, node.scope.path, str(node.operation_type)) for node in rec.graph.where(kind="op")]
    linear = "quantized.linear_dynamic.default"
    assert ops == [(linear, "0", "matmul"), ("aten.relu.default", "1", "activation"), (linear, "2", "matmul")]


INPUTS: dict[str, Callable[[], Tensor]] = {
    "complex": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "float8": lambda: torch.ones(3).to(torch.float8_e5m2),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
    "subclass": lambda: torch.ones(3).as_subclass(Plain),
    "two": lambda: TwoTensor(torch.ones(3), torch.zeros(3)),
    "meta": lambda: torch.ones(3, device="meta"),
    "uint16": lambda: torch.arange(3).to(torch.uint16),
}


def overwrite(x: Tensor) -> Tensor:
    """Changes its input, in place where that is possible."""
    if x.is_quantized or x.dtype in (torch.float8_e5m2, torch.uint16):
        return x.fill_(0).clone()
    x.mul_(2)
    if x.layout is torch.sparse_coo:
        x.add_(torch.ones(3, 3).to_sparse())  # which gives it new indices
    return x * 1


@pytest.mark.parametrize("coarse", [False, True], ids=["ops", "modules"])
@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_is_left_as_found(kind: str, coarse: bool) -> None:
    x = INPUTS[kind]()
    before, version = content([x.a, x.b] if kind == "two" else x), x._version
    graph = atlas.capture(overwrite, x, track_tensor_ops=not coarse)
    assert content([x.a, x.b] if kind == "two" else x) == before
    assert x._version == version
    if not coarse:
        assert graph.where(lambda node: bool(node.writes))


def test_a_tensor_of_inference_mode_is_left_as_found() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        atlas.capture(overwrite, x)
        assert x.tolist() == [1, 1, 1]


def test_a_model_of_fake_parameters_is_captured_without_being_asked_to_fake() -> None:
    with FakeTensorMode():
        model, x = nn.Linear(4, 2), torch.ones(3, 4)
        graph = atlas.capture(model, x, backward=True)
    assert isinstance(model.weight, FakeTensor)
    assert model.weight.grad is None
    assert graph["addmm"].outputs[0].shape == (3, 2)
    assert {value.parameter for value in graph["addmm"].inputs} == {"bias", "weight", None}
