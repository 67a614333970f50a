"""Pieces of a recorded run: bit for bit the model's results along its path, and an error on every other path."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from partition.models import Net
from torch import Tensor, nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.capturing.tensor_bytes import fingerprint
from torchatlas.errors import AnalysisError, CaptureError, InputMismatchError, InvalidInputError, NotAvailableError
from torchatlas.execute.recorded_run import record
from torchatlas.inputs import named_tensors

STRATEGIES = ("fusion", "op", "module")


def pieces_of(model: nn.Module, *args: Any, strategy: str = "op", gradients: bool | None = None, **kwargs: Any) -> Any:
    return atlas.GraphPartitioner(strategy).partition(record(model, args, kwargs, gradients)).extract()


def assert_same(found: Any, truth: Any) -> None:
    one, other = dict(named_tensors(found)), dict(named_tensors(truth))
    assert type(found) is type(truth)
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert tensor.dtype is one[name].dtype
        assert torch.equal(tensor, one[name]), name


@dataclass
class Found:
    boxes: Tensor
    count: int


class Both(NamedTuple):
    first: Tensor
    rest: list[Tensor]


class Finder(nn.Module):
    """A detector in small: it reads a number, keeps what is above a threshold, and returns structures of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.anchors = [torch.arange(4.0)]
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, batch: dict[str, Tensor], scale: float = 1.0) -> Any:
        self.calls += 1
        x = self.linear(batch["x"]) * scale + self.anchors[0]
        kept = x[x > 0.5]
        flat = x.view(-1)
        flat[:2] = 7.0  # a write through a view, before x is read again
        weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
        weights *= 2  # a tensor from outside that each run writes
        if (x.sum() > 1000).item():
            x = x.exp()
        top, where = (x * weights).topk(2)
        return OrderedDict(found=Found(kept, len(kept)), both=Both(top, [where, flat]), mean=x.mean(), same=batch["x"])


def batch(seed: int = 0) -> dict[str, Tensor]:
    return {"x": torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_recorded_run_is_put_together_again(strategy: str) -> None:
    model = Finder().eval()
    report = atlas.GraphPartitioner(strategy).partition(model, batch())
    assert report.front_end == "run"
    pieces = report.extract()
    assert list(pieces) == [one.node_id for one in report.subgraphs]
    for _ in range(2):  # the second run begins where the first began
        found, truth = pieces(batch()), model(batch())
        assert_same(found, truth)
        assert isinstance(found["found"], Found)
        assert isinstance(found["both"], Both)
        assert found["found"].count == truth["found"].count
    with torch.no_grad():
        model.linear.weight *= 1.0001  # the pieces have the model's own parameters
    assert_same(pieces(batch()), model(batch()))


def test_extracting_leaves_the_model_alone_and_pieces_do_what_it_does() -> None:
    model = Finder()
    pieces = pieces_of(model, batch())
    assert model.calls == 0
    pieces(batch())
    assert model.calls == 1  # as if it had been called


def test_nearby_inputs_take_the_same_path_and_others_are_refused() -> None:
    model = Finder().eval()
    pieces = pieces_of(model, batch())
    near = {"x": batch()["x"] * 1.0001}
    assert_same(pieces(near), model(near))
    assert not torch.equal(model(near)["mean"], model(batch())["mean"])
    with pytest.raises(InputMismatchError, match=r"(?s)another path.*index.*shape"):
        pieces({"x": torch.full((5, 4), -100.0)})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (({"x": torch.randn(6, 4)},), r"batch\.x is torch\.float32 \[6, 4\]"),
        (({"x": torch.randn(5, 4).double()},), r"torch\.float64"),
        (({"x": torch.randn(4, 5).t()},), "strides"),
        (({"y": torch.randn(5, 4)},), "'y': tensor"),
        (({"x": torch.randn(5, 4)}, 2.0), r"scale.: 2\.0"),
    ],
    ids=["shape", "dtype", "strides", "structure", "number"],
)
def test_other_inputs_are_refused(given: Any, match: str) -> None:
    with pytest.raises(InputMismatchError, match=match):
        pieces_of(Finder(), batch(), 1.0)(*given)


class Reads(nn.Module):
    """Python takes a number out of a tensor, in one of several ways, and computes with it."""

    def __init__(self, read: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return x * self.read(x * 2)


READS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: 2.0 if x[0] > 0 and x[1] != 5 else float(x[1]),
    "tolist": lambda x: x.tolist()[1],
    "numpy": lambda x: float(x.numpy()[1]),
    "asarray": lambda x: float(np.asarray(x).max()),
    "equal": lambda x: 1.0 if torch.equal(x, torch.tensor([2.0, 4.0, 6.0])) else 3.0,
}


@pytest.mark.parametrize("name", READS)
def test_a_number_that_was_read_must_be_the_same(name: str) -> None:
    model, x = Reads(READS[name]), torch.tensor([1.0, 2.0, 3.0])
    pieces = pieces_of(model, x)
    assert torch.equal(pieces(x), model(x))
    with pytest.raises(InputMismatchError, match="another path"):
        pieces(torch.tensor([-1.0, 5.0, 3.0]))
    assert "tolist" not in vars(torch.Tensor)  # what was watched is as before


def test_an_input_that_was_read_must_be_the_same() -> None:
    class Repeats(nn.Module):
        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            return torch.cat([x] * sum(times.tolist()))

    pieces = pieces_of(Repeats(), torch.randn(2), torch.tensor([1, 2]))
    assert len(pieces(torch.randn(2), torch.tensor([1, 2]))) == 6
    with pytest.raises(InputMismatchError, match="times holds other numbers"):
        pieces(torch.randn(2), torch.tensor([2, 1]))


def test_what_was_read_after_a_part_was_written_is_refused() -> None:
    def read(x: Tensor) -> float:
        x[:1] = 4
        return sum(x.tolist())

    with pytest.raises(NotAvailableError, match="a part of a tensor"):
        pieces_of(Reads(read), torch.randn(3))


class Packs(nn.Module):
    """The kernels of an LSTM read the sizes of batches, and call other operators by them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        if (x.sum() > 1e6).item():
            return x
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


def test_packed_sequences_of_other_lengths_are_refused() -> None:
    """[5, 2, 2] and [5, 3, 1] make tensors of the same sizes."""
    model, x = Packs().eval(), torch.randn(3, 5, 3)
    pieces = pieces_of(model, x, torch.tensor([5, 2, 2]))
    assert torch.equal(pieces(x * 2, torch.tensor([5, 2, 2])), model(x * 2, torch.tensor([5, 2, 2])))
    with pytest.raises(InputMismatchError, match="another path"):
        pieces(x, torch.tensor([5, 3, 1]))


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.rand(4), torch.randn(4)
        return x * left + right if x.sum().item() > 0 else x


def test_a_packed_sequence_that_is_given_and_returned() -> None:
    """A class of tuples that takes nothing but tensors; torch.export refuses it, with an error of ours."""
    model = nn.GRU(4, 5).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    report = atlas.GraphPartitioner().partition(model, packed)
    assert report.front_end == "run"
    assert_same(report.extract()(packed), model(packed))
    with pytest.raises(CaptureError, match="cannot trace GRU"):
        atlas.trace(model, packed)


class Cache:
    def __init__(self) -> None:
        self.layers = [{"keys": torch.zeros(4)}]


class Remembers(nn.Module):
    def forward(self, x: Tensor, cache: Cache | None = None) -> dict[str, Any]:
        cache = cache or Cache()
        cache.layers[0]["keys"] = x * (2 if x.sum().item() > 0 else 3)
        return {"last": x + 1, "cache": cache}


@pytest.mark.parametrize(("given", "what"), [((), "returns"), ((Cache(),), "takes")])
def test_objects_that_hide_tensors_are_refused(given: tuple[Any, ...], what: str) -> None:
    """Pieces would return the cache of the recorded run, whatever they are given."""
    with pytest.raises(NotAvailableError, match=f"Remembers {what} a Cache, which holds tensors"):
        pieces_of(Remembers(), torch.ones(4), *given)


def test_objects_without_tensors_pass() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, range]:
            return x * 2, range(3)

    made, numbers = pieces_of(Counts(), torch.ones(4))(torch.ones(4) * 5)
    assert (made.tolist(), numbers) == ([10.0] * 4, range(3))


def test_random_numbers_are_drawn_anew_as_the_model_draws_them() -> None:
    model, x = Noisy(), torch.ones(4)
    pieces = pieces_of(model, x, strategy="fusion")
    torch.manual_seed(1)
    truth = [model(x), model(x)]
    torch.manual_seed(1)
    assert all(torch.equal(pieces(x), one) for one in truth)
    assert not torch.equal(truth[0], truth[1])


def test_random_numbers_in_another_order_are_refused() -> None:
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a = torch.rand(4)
            b = torch.rand(4)
            return (x + b) * 2 - a if x.sum().item() > 0 else x

    run = record(Late(), (torch.ones(4),), {})
    names = [node.name for node in run.graph.where(kind="op")]
    assert names[:2] == ["rand", "rand_1"]
    report = atlas.GraphPartitioner(groups={"b": ["rand_1", "add"], "a": ["rand", "mul", "sub"]}).partition(run)
    assert report.subgraphs[0].nodes[0] == "rand_1"
    with pytest.raises(NotAvailableError, match="another order"):
        report.extract()


def test_gradients_reach_the_parameters() -> None:
    """Of a model in eval mode if they are asked for: else it is recorded as inference."""
    model = Finder().eval()
    assert not pieces_of(model, batch())(batch())["mean"].requires_grad
    pieces = pieces_of(model, batch(), gradients=True)
    pieces(batch())["mean"].backward()
    found = model.linear.weight.grad.clone()
    model.zero_grad()
    model(batch())["mean"].backward()
    assert torch.equal(found, model.linear.weight.grad)


def test_autocast_and_blocks_without_gradients() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = self.linear(x).max()
            with torch.autocast("cpu", torch.bfloat16):
                return self.linear(x) * scale.item()

    model, x = Mixed(), torch.ones(2, 4)
    pieces = pieces_of(model, x)
    assert pieces(x).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):  # what was cast then is not cast twice
        assert torch.equal(pieces(x), pieces(x.clone()))
    pieces(x).sum().backward()
    found = model.linear.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert torch.equal(found, model.linear.weight.grad)


def test_one_tensor_given_twice() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x.add_(1)
            return x + y if y.sum().item() > 0 else x

    pieces, x = pieces_of(Adds(), *[torch.ones(3)] * 2), torch.ones(3)
    assert torch.equal(pieces(x, x), torch.full((3,), 4.0))
    assert torch.equal(x, torch.full((3,), 2.0))  # the input is written, as the model does
    with pytest.raises(InputMismatchError, match="were one tensor"):
        pieces(torch.ones(3), torch.ones(3))


def test_running_means_that_an_operator_writes_and_does_not_return() -> None:
    model, x = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)).train(), torch.randn(4, 3)
    twin = copy.deepcopy(model)
    assert torch.equal(pieces_of(model, x)(x), twin(x))
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_the_zoo_is_put_together_or_refused(specimen: Specimen) -> None:
    refused = {
        "backward_inside_forward",
        "lazy_module",
        "output_is_input",
        "own_generator",
        "per_example_gradients",
        "state_in_tuple",
    }
    model, args, kwargs = specimen.build()
    if not isinstance(model, nn.Module):
        pytest.skip("a function is not partitioned")
    if specimen.name in refused:
        with pytest.raises((NotAvailableError, AnalysisError)):
            pieces_of(model, *args, strategy="fusion", **kwargs)
        return
    pieces = pieces_of(model, *args, strategy="fusion", **kwargs)
    _, fresh, fresh_kwargs = copy.deepcopy((None, args, kwargs))
    before = [one.clone() for one in model.buffers()]
    torch.manual_seed(5)
    found = pieces(*fresh, **fresh_kwargs)
    with torch.no_grad():
        for one, then in zip(model.buffers(), before, strict=True):
            one.copy_(then)
    torch.manual_seed(5)
    truth = model(*args, **kwargs)
    one, other = dict(named_tensors(found)), dict(named_tensors(truth))
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert fingerprint(one[name]) == fingerprint(tensor), name


# -- of a graph alone --------------------------------------------------------------------------------------------------


def test_a_captured_graph_runs_from_the_bytes_kept_in_it(tmp_path: Path) -> None:
    model = Finder().eval()
    path = atlas.capture(model, batch(), values="replay").save(tmp_path / "finder.atlas")
    report = atlas.GraphPartitioner().partition(path)
    found, truth = report.extract()(batch()), model(batch())
    assert torch.equal(found["mean"], truth["mean"])
    assert torch.equal(found["found"]["boxes"], truth["found"].boxes)
    with pytest.raises(InputMismatchError, match=r"0 tensors, and the run takes 1: batch\.x"):
        report.extract()()
    with pytest.raises(InputMismatchError, match=r"batch\.x holds other numbers, and of a graph alone nobody knows"):
        report.extract()({"x": batch()["x"] * 1.0001})


# -- what cannot be done -----------------------------------------------------------------------------------------------


class WritesByNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.numpy()[0] = 5
        return y + 1


class HoldsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x)
        return self.seen * 2


class GoesOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.last + x
        return self.last * 2


class OwnGenerator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (WritesByNumpy(), "something that is no operator"),
        (HoldsState(), "register_buffer"),
        (GoesOn(), "another tensor in the place of its last"),
        (OwnGenerator(), "a generator of its own"),
    ],
    ids=["numpy", "state", "other state", "generator"],
)
def test_what_operators_alone_do_not_do_is_refused(model: nn.Module, match: str) -> None:
    with pytest.raises(NotAvailableError, match=match):
        pieces_of(model, torch.randn(3))


def test_a_backward_pass_is_refused() -> None:
    graph = atlas.capture(Net(), torch.randn(2, 3, 8, 8), backward=True, values="replay")
    with pytest.raises(NotAvailableError, match="backward pass"):
        atlas.GraphPartitioner().partition(graph).extract()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch is about to drop them
def test_packed_weights_are_refused() -> None:
    model = torch.ao.nn.quantized.dynamic.Linear(4, 4)
    with pytest.raises(NotAvailableError, match=r"linear_dynamic.*only its type was recorded"):
        pieces_of(model, torch.randn(2, 4))


class FindsOut(nn.Module):
    """What it finds out in its first run it does not find out again, as torchvision's region pooling does not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = x.abs().max().sign().item()
        return x * self.scale


def test_a_model_may_run_between_partition_and_extract() -> None:
    model, x = FindsOut(), torch.randn(3)
    report = atlas.GraphPartitioner("op").partition(record(model, (x,), {}))
    truth = model(x)
    assert torch.equal(report.extract()(x), truth)
    assert model.scale == 1


def test_a_model_that_has_changed_is_refused() -> None:
    model = Finder()
    report = atlas.GraphPartitioner().partition(record(model, (batch(),), {}))
    with torch.no_grad():
        model.linear.bias += 100
    with pytest.raises(InvalidInputError, match="another path than when it was partitioned"):
        report.extract()
