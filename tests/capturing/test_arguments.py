"""Arguments are lossless: a call rebuilt from the graph is the call that was made."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO, Specimen, loss_of

import torchatlas as atlas
from torchatlas.errors import FileFormatError
from torchatlas.graph import Call, Constant, TensorRef
from torchatlas.graph.arguments import decode, encode
from torchatlas.graph.attributes import attributes_of
from torchatlas.graph.columns import Operation, Parameter
from torchatlas.graph.nouns import OperationType


class Tensor(str):
    """Stands for a tensor of that shape and dtype."""


class Witness(TorchDispatchMode):
    """Every call as torch made it, with shapes in place of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = func._schema.arguments
        named = {argument.name: item for argument, item in zip(arguments, args, strict=False)} | (kwargs or {})
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value() and a.name not in named}
        row = (str(func), seen(named), seen(defaults))
        out = func(*args, **(kwargs or {}))
        if not str(func).startswith(("prim.", "profiler.")):
            self.calls.append(row)
        return out


def described(shape: Any, dtype: str) -> Tensor:
    return Tensor(f"{dtype}{list(shape)}")


def seen(item: Any) -> Any:
    """An argument as torch has it, in words that a graph loaded without torch could use."""
    if isinstance(item, torch.Tensor):
        shape = [] if isinstance(item, nn.parameter.UninitializedTensorMixin) else item.shape
        return described(shape, str(item.dtype).removeprefix("torch."))
    if isinstance(item, (torch.dtype, torch.layout, torch.memory_format)):
        return f"{type(item).__name__} {str(item).removeprefix('torch.')}"
    if isinstance(item, torch.device):
        return f"device {item}"
    if isinstance(item, torch.Generator):
        return f"generator {item.device}"
    if isinstance(item, (list, tuple)):
        return [seen(part) for part in item]
    if isinstance(item, dict):
        return {key: seen(part) for key, part in item.items()}
    return (type(item).__name__, repr(item))


def told(item: Any, inputs: Any) -> Any:
    """An argument as the graph has it, in the same words."""
    if isinstance(item, TensorRef):
        return described(inputs[item.index].shape, inputs[item.index].dtype)
    if isinstance(item, Constant):
        return f"{item.kind} {item.name}"
    if isinstance(item, (list, tuple)):
        return [told(part, inputs) for part in item]
    if isinstance(item, dict):
        return {key: told(part, inputs) for key, part in item.items()}
    return (type(item).__name__, repr(item))


# worker_thread: a recording follows threads, the witness does not.
@pytest.mark.parametrize("specimen", [entry for entry in ZOO if entry.name != "worker_thread"], ids=str)
def test_calls_are_the_calls_torch_made(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    witness = Witness()
    with witness, atlas.recording(model if isinstance(model, nn.Module) else None) as rec:
        result = model(*args, **kwargs)
        if specimen.trains:
            loss_of(result).backward()
    graph = rec.graph
    for node, (name, named, defaults) in zip(graph.where(kind="op"), witness.calls, strict=True):
        assert node.operation == name
        parameters = [parameter.name for parameter in operation_of(graph, node).parameters]
        call, inputs = node.arguments, node.inputs
        rebuilt = dict(zip(parameters, call.args, strict=False)) | (call.kwargs or {})
        rebuilt = {key: told(item, inputs) for key, item in rebuilt.items()}
        for key, item in named.items():
            assert rebuilt.get(key, defaults.get(key, ("NoneType", "None"))) == item, f"{node.name}: {key}"
        for key in set(rebuilt) - set(named):  # torch leaves out what equals its default
            assert rebuilt[key] == defaults[key], f"{node.name} was not given {key}"


def operation_of(graph: atlas.Graph, node: Any) -> Any:
    return graph.tables.operations[graph.columns["node_operation"][node.id]]


# -- odd arguments ---------------------------------------------------------------------------------------------------


def last_call(function: Any) -> tuple[Any, ...]:
    with atlas.recording() as rec:
        function()
    return rec.graph.where(kind="op")[-1].arguments.args


def test_numbers_in_tensor_places_keep_their_type() -> None:
    x = torch.arange(3)
    with atlas.recording() as rec:
        for number in (2, 2.0, True, 1, 1.0, 0.0, -0.0):
            x * number
    found = [repr(node.arguments.args[1]) for node in rec.graph.where(kind="op")]
    assert found == ["2", "2.0", "True", "1", "1.0", "0.0", "-0.0"]


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1e308, 5e-324, 0.1, 2**62, -(2**62), 2**53 + 1, 3 + 4j])
def test_numbers_are_exact(number: Any) -> None:
    x = torch.zeros(1, dtype=torch.complex128 if isinstance(number, complex) else torch.float64)
    (found,) = last_call(lambda: x.add_(number))[1:]
    assert (type(found), found) == (type(number), number)


def test_not_a_number_is_kept() -> None:
    (found,) = last_call(lambda: torch.zeros(1).fill_(math.nan))[1:]
    assert math.isnan(found)


NANS = ["7ff8000000000000", "fff8000000000000", "7ff8000020000000", "fff8000000000007"]


@pytest.mark.parametrize("place", ["a number", "a complex number", "in a tensor's place", "a keyword"])
def test_each_nan_is_kept_with_its_bits(place: str) -> None:
    numbers = [struct.unpack(">d", bytes.fromhex(bits))[0] for bits in NANS]
    x = torch.ones(2)
    with atlas.recording(values="replay") as rec:
        for number in numbers:
            if place == "a number":
                torch.full((2,), number, dtype=torch.float64)
            elif place == "a complex number":
                torch.full((2,), complex(1, number), dtype=torch.complex128)
            elif place == "a keyword":
                torch.add(x, x, alpha=number)
            else:
                x.mul(number)
    calls = [text for text in rec.graph.tables.arguments if "nan" in text]
    assert len(set(calls)) == len(NANS)
    assert [encode(decode(text)) for text in calls] == calls
    assert atlas.verify(rec.graph)


@pytest.mark.parametrize("text", ["nan:7ff8000000000000", "nan:3ff0000000000000", "nan:7FF8000000000001", "nan:7ff8"])
def test_a_nan_has_one_text(text: str) -> None:
    with pytest.raises(FileFormatError, match="not a call"):
        decode(f'[[{{"float":"{text}"}}],{{}}]')


def test_none_inside_and_at_the_end() -> None:
    x, mask = torch.randn(3, 3), torch.tensor([True, False, True])
    with atlas.recording() as rec:
        x[:, mask]
        torch.clamp(x, max=1)
        nn.functional.layer_norm(x, (3,))
    graph = rec.graph
    assert graph["index"].arguments.args == (TensorRef(0), [None, TensorRef(1)])
    assert graph["clamp"].arguments.args == (TensorRef(0), None, 1)
    assert graph["native_layer_norm"].arguments.args == (TensorRef(0), [3], None, None, 1e-05)


def test_constants_of_torch() -> None:
    x = torch.ones(1, 2, 3, 3)
    with atlas.recording() as rec:
        x.to(torch.float64)
        x.contiguous(memory_format=torch.channels_last)
        torch.zeros(2, dtype=torch.int8, device="cpu")
    assert rec.graph["_to_copy"].arguments.kwargs == {"dtype": Constant("dtype", "float64")}
    assert rec.graph["clone"].arguments.kwargs == {"memory_format": Constant("memory_format", "channels_last")}
    zeros = rec.graph["zeros"].arguments.kwargs or {}
    assert (zeros["dtype"], zeros["device"]) == (Constant("dtype", "int8"), Constant("device", "cpu"))


def test_lists_of_tensors_and_numbers() -> None:
    parts = [torch.ones(1), torch.ones(2)]
    with atlas.recording() as rec:
        torch.cat(parts)
        torch._foreach_mul(parts, [2.0, 3.0])
    assert rec.graph["cat"].arguments == Call(([TensorRef(0), TensorRef(1)],))
    assert rec.graph["_foreach_mul"].arguments.args == ([TensorRef(0), TensorRef(1)], [2.0, 3.0])


def test_required_arguments_that_are_none_are_kept() -> None:
    """A call rebuilt from the graph must have every argument the schema requires."""
    from torchatlas.capturing.record_op import plan_for
    from torchatlas.capturing.table_rows import _call_text

    plan = plan_for(torch.ops.aten._cudnn_rnn.default)
    entries = [0, [1], None, 2, None, None]
    others = tuple(range(len(plan.others)))
    call = decode(_call_text(plan, entries, others, {}))
    assert len(call.args) == len(plan.operator._schema.arguments)


def test_calls_come_back_from_text() -> None:
    call = Call((TensorRef(1), [None, 2**80], (1, (2.5,)), {"a": math.inf}, "é", 1j), {"x": Constant("dtype", "int8")})
    assert decode(encode(call)) == call


# -- attributes ------------------------------------------------------------------------------------------------------


def test_attributes_of_a_convolution() -> None:
    model = nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(2, 0), dilation=(2, 1), groups=2)
    node = atlas.capture(model, torch.randn(1, 4, 9, 7))["convolution"]
    assert node.attributes == {
        "stride": [2, 1],
        "padding": [2, 0],
        "dilation": [2, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 2,
        "kernel_size": [3, 2],
        "in_channels": 4,
        "out_channels": 8,
    }


def test_attributes_of_a_transposed_convolution() -> None:
    model = nn.ConvTranspose2d(6, 4, 3, groups=2)
    attributes = atlas.capture(model, torch.randn(1, 6, 4, 4))["convolution"].attributes
    assert (attributes["in_channels"], attributes["out_channels"], attributes["transposed"]) == (6, 4, True)


def test_attributes_of_a_convolution_in_another_order() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.conv_tbc(x, torch.ones(3, 4, 8), torch.ones(8))

    attributes = atlas.capture(model, torch.randn(7, 2, 4))["conv_tbc"].attributes
    assert attributes == {"pad": 0, "kernel_size": [3], "in_channels": 4, "out_channels": 8}


@pytest.mark.parametrize("batch", [(2,), ()])
@pytest.mark.parametrize("name", ["_conv_depthwise2d", "conv_depthwise3d"])
def test_attributes_of_a_convolution_of_every_channel(name: str, batch: tuple[int, ...]) -> None:
    """They run on GPUs only."""
    schema = getattr(torch.ops.aten, name).default._schema
    parameters = tuple(Parameter(argument.name) for argument in schema.arguments)
    operation = Operation(f"aten.{name}.default", OperationType.CONVOLUTION, parameters)
    kernel = [3, 2] if name.endswith("2d") else [3, 2, 2]
    call = Call((TensorRef(0), TensorRef(1), kernel, None, [1] * len(kernel), [0] * len(kernel), [1] * len(kernel)))
    found = attributes_of(operation, call, [(*batch, 6, *[9] * len(kernel)), (12, 1, *kernel)])
    assert (found["kernel_size"], found["in_channels"], found["out_channels"]) == (kernel, 6, 12)


def test_attributes_of_linear_and_embedding() -> None:
    model = nn.Sequential(nn.Embedding(7, 4, padding_idx=1), nn.Flatten(), nn.Linear(12, 5))
    graph = atlas.capture(model, torch.tensor([[1, 2, 3]]))
    embedding, linear = graph["0.embedding"].attributes, graph["2.addmm"].attributes
    assert (embedding["num_embeddings"], embedding["embedding_dim"], embedding["padding_idx"]) == (7, 4, 1)
    assert (linear["in_features"], linear["out_features"]) == (12, 5)
    assert (linear["alpha"], linear["beta"]) == (1, 1)  # defaults are filled in


def test_attributes_include_defaults_and_keywords() -> None:
    x = torch.randn(2, 3)
    with atlas.recording() as rec:
        x.sum(1)
        torch.add(x, x, alpha=2)
        nn.functional.batch_norm(x, None, None, training=True, eps=0.5)
    assert rec.graph["sum"].attributes == {"dim": [1], "keepdim": False, "dtype": None}
    assert rec.graph["add"].attributes == {"alpha": 2}
    assert rec.graph["native_batch_norm"].attributes["eps"] == 0.5
