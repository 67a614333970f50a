"""What torch.fx loses without a word is found out, and a model is as it was after it was partitioned."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.inputs import same_bits
from torchatlas.partition.fx_tracing import traced_by_fx


class Base(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.done = False


class Once(Base):
    def forward(self, x: Tensor) -> Tensor:
        if not self.done:
            with torch.no_grad():
                self.one.weight.div_(2)
            self.done = True
        return self.one(x)


class Counts(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return self.one(x) * self.count


class Random(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + torch.rand(1)


class Autocast(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.one(x)


class WithoutGradients(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.two(x)
        return self.one(x) + y


class Accumulates(Base):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(4, 8)
        total += self.one(x)
        return total


class Writes(Base):
    """A view that is made before its memory is written to cannot be written to."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[0] = self.one(x[0])
        out[1] = self.one(x[1])
        return out


class DependsOnData(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.one(x)[x[:, 0] > 0]


class Constant(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + torch.arange(8.0)


class Returned(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.one(x), torch.ones(2), self.one.weight


@pytest.mark.parametrize(
    ("kind", "front_end"),
    [
        (Once, "export"),
        (Counts, "export"),
        (Random, "export"),
        (Autocast, "export"),
        (WithoutGradients, "export"),
        (Accumulates, "export"),
        (Writes, "export"),
        (DependsOnData, "run"),
        (Constant, "fx"),
        (Returned, "fx"),
    ],
)
@pytest.mark.parametrize("strategy", ["fusion", "op"])
def test_the_model_is_left_alone_and_its_pieces_do_what_it_does(
    kind: type[Base], front_end: str, strategy: str
) -> None:
    model, x = kind().eval(), torch.randn(4, 8)
    twin, attributes = copy.deepcopy(model), set(vars(model))
    state = torch.get_rng_state()
    report = atlas.GraphPartitioner(strategy).partition(model, x)
    assert report.front_end == front_end
    assert torch.equal(torch.get_rng_state(), state)
    assert (set(vars(model)), model.done) == (attributes, False)
    for name, tensor in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    pieces = report.extract()
    for _ in range(2):
        given = torch.randn(4, 8) if front_end != "run" else x
        torch.manual_seed(3)
        found = pieces(given)
        torch.manual_seed(3)
        expected = twin(given)
        found, expected = (each if isinstance(each, tuple) else (each,) for each in (found, expected))
        if kind is Once:
            break  # the second run of the model is another than the first, which is what was partitioned
        for one, other in zip(found, expected, strict=True):
            assert one.dtype is other.dtype
            assert torch.equal(one, other)


def test_a_hook_of_the_model_itself_is_not_lost() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8)
    model.register_forward_hook(lambda module, args, out: out * 3)
    report = atlas.GraphPartitioner().partition(model, x)
    assert report.front_end != "fx"
    assert "other values than the model" in report.attempts[0].reason
    assert torch.equal(report.extract()(x), model(x))


def test_a_result_may_be_sparse() -> None:
    class Sparse(Base):
        def forward(self, x: Tensor) -> Tensor:
            return self.one(x).to_sparse()

    module = traced_by_fx(Sparse(), (torch.ones(4, 8),), {})
    assert not same_bits(module(torch.ones(4, 8)), module(torch.zeros(4, 8)))


def test_random_numbers_are_not_drawn_in_another_order() -> None:
    class Twice(Base):
        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.one(x)) * 2 + self.drop(self.two(x))

    model, x = Twice(), torch.randn(4, 8)
    refused: list[str] = []
    for strategy in ("fusion", "op", "module"):
        report = atlas.GraphPartitioner(strategy).partition(model, x)
        try:
            pieces = report.extract()
        except NotAvailableError as error:
            refused.append(str(error))
            continue
        torch.manual_seed(5)
        found = pieces(x)
        torch.manual_seed(5)
        assert torch.equal(found, model(x))
    assert len(refused) < 3
    assert all("another order" in why for why in refused)
    assert torch.equal(atlas.GraphPartitioner().partition(model.eval(), x).extract()(x), model(x))


def test_arguments_of_any_name() -> None:
    class Two(Base):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.one(x) + y

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    model = Two()
    assert torch.equal(atlas.GraphPartitioner().partition(model, x=x, y=y).extract()(x, y), model(x, y))
    module: Any = torch.fx.symbolic_trace(model)
    with pytest.raises(InvalidInputError, match="does not take these"):
        atlas.GraphPartitioner().partition(module, x, y, y)


def test_conjugated_and_negated_views_are_compared_by_what_they_stand_for() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert same_bits(x.conj(), x.conj().resolve_conj())
    assert same_bits(x.conj().imag, torch.tensor([-2.0, 4.0]))
    assert not same_bits(x.conj(), x)
