"""What goes in and what comes out: dicts, dataclasses, nesting, None, nothing at all."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.specimen import Call, specimen


class DictToDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.linear(batch["x"]) * batch["mask"]
        return {"hidden": hidden, "mean": hidden.mean()}


@specimen("a dict in and a dict out")
def dict_in_dict_out() -> Call:
    return DictToDict(), ({"x": torch.randn(3, 4), "mask": torch.tensor([[1.0], [0.0], [1.0]])},), {}


@dataclass
class Batch:
    features: Tensor
    weights: list[Tensor]
    label: str


@dataclass
class Result:
    score: Tensor
    label: str


class DataclassToDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, batch: Batch) -> Result:
        return Result(self.linear(batch.features) * sum(batch.weights), batch.label)


@specimen("a dataclass of tensors in and another out, registered with nothing")
def dataclass_in_dataclass_out() -> Call:
    return DataclassToDataclass(), (Batch(torch.randn(2, 4), [torch.ones(1), torch.ones(2, 1)], "train"),), {}


class Moments(NamedTuple):
    mean: Tensor
    variance: Tensor


class ToNamedTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Moments:
        y = self.linear(x)
        return Moments(y.mean(0), y.var(0))


@specimen("a named tuple out")
def named_tuple_out() -> Call:
    return ToNamedTuple(), (torch.randn(3, 4),), {}


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = self.linear(x)
        return y, [y.sin(), (y.cos(), None, {"shape": tuple(y.shape), "abs": y.abs()})], "done"


@specimen("tuples in lists in tuples out, with None and words among the tensors")
def nested_outputs() -> Call:
    return Nested(), (torch.randn(2, 4),), {}


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None, repeats: int, mode: str = "sum") -> Tensor:
        for _ in range(repeats):
            x = self.linear(x)
        return x.sum(1) if mask is None and mode == "sum" else x


@specimen("None, an int and a default string among the arguments")
def none_and_int_arguments() -> Call:
    return Optional(), (torch.randn(2, 4), None, 2), {}


class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, *, query: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
        return self.linear(query) * scale + bias


@specimen("tensors that can only be passed by keyword")
def keyword_only_tensors() -> Call:
    return KeywordOnly(), (), {"bias": torch.randn(2), "query": torch.randn(3, 4), "scale": 0.5}


class NamesThatCollide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor, *, backward: bool, loss: Tensor, values: float, kwargs: None = None) -> Tensor:
        return self.linear(x if backward else -x) * values - loss


@specimen("a model whose keywords have the names of capture's own")
def colliding_keywords() -> Call:
    return NamesThatCollide(), (torch.randn(2, 4),), {"backward": True, "loss": torch.ones(2), "values": 2.0}


class SumOfAll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, *xs: Tensor) -> Tensor:
        return self.linear(torch.stack(xs).sum(0))


@specimen("any number of arguments, and one tensor given twice")
def same_tensor_twice() -> Call:
    x = torch.randn(2, 4, requires_grad=True)
    return SumOfAll(), (x, torch.randn(2, 4), x), {}


def softplus_by_hand(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() + 1).log() * y


@specimen("a plain function, no module anywhere")
def plain_function() -> Call:
    return softplus_by_hand, (torch.randn(3, requires_grad=True), torch.randn(3)), {}


@specimen("an identity: the output is the input, and no operator runs")
def output_is_input() -> Call:
    return nn.Sequential(nn.Identity(), nn.Identity()), (torch.randn(2, 3, requires_grad=True),), {}


class ReturnsWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor, unused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x @ self.weight
        return y, y, self.weight


@specimen("an unused input, one value returned twice, a parameter returned as it is")
def unused_and_repeated() -> Call:
    return ReturnsWeights(), (torch.randn(2, 3), torch.randn(1)), {}


class TwoLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = self.linear(x)
        accuracy = (logits.argmax(1) == target).float().mean()
        return nn.functional.cross_entropy(logits, target), logits.square().mean(), accuracy, logits.argmax(1)


@specimen("several outputs: two losses, a metric without grad, integers")
def outputs_without_grad() -> Call:
    return TwoLosses(), (torch.randn(3, 4), torch.tensor([0, 2, 1])), {}


@specimen("only integers go in")
def integer_input() -> Call:
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)), (torch.tensor([[0, 4], [1, 1]]),), {}


def histogram(x: Tensor) -> Tensor:
    return (x[:, None] == torch.arange(4)).sum(0)


@specimen("only integers go in and come out: nothing to differentiate", trains=False)
def integers_only() -> Call:
    return histogram, (torch.tensor([0, 3, 1, 3]),), {}


@specimen("an empty batch")
def zero_size_tensor() -> Call:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (torch.randn(0, 4),), {}


@specimen("double precision throughout")
def double_dtype() -> Call:
    model = nn.Sequential(nn.Linear(4, 3, dtype=torch.float64), nn.Tanh())
    return model, (torch.randn(2, 4, dtype=torch.float64),), {}
