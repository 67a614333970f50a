"""How modules own, share, name and reach their parts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from zoo.specimen import Call, specimen


@specimen("the plain case")
def mlp() -> Call:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (torch.randn(3, 4),), {}


@specimen("random numbers in the forward pass")
def mlp_dropout() -> Call:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), (torch.randn(3, 4),), {}


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


@specimen("embedding and output head share one parameter: count it once, sum two gradients")
def tied_weights() -> Call:
    return TiedWeights(), (torch.tensor([[1, 2, 5]]),), {}


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(torch.tanh(self.shared(x)))


@specimen("one module called twice: two call indices, parameters counted once")
def module_called_twice() -> Call:
    return CalledTwice(), (torch.randn(2, 4),), {}


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


@specimen("one module under two names: which path is a call's?")
def module_under_two_names() -> Call:
    return TwoNames(), (torch.randn(2, 4),), {}


class ByIndex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](self.layers[2](x))


@specimen("a ModuleList used by index, out of order, one member never")
def module_list_by_index() -> Call:
    return ByIndex(), (torch.randn(2, 4),), {}


class ByKey(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"mean": nn.Linear(4, 1), "scale": nn.Linear(4, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head(x) for name, head in self.heads.items()}


@specimen("a ModuleDict: module names that are the user's keys")
def module_dict_by_key() -> Call:
    return ByKey(), (torch.randn(2, 4),), {}


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(4, 2)
        self.up = nn.Linear(2, 4)

    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.down(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.encode(x))


class UsesEncodeOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.autoencoder = Autoencoder()
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.autoencoder.encode(x))


@specimen("a submodule reached by another method than forward: its own call is never seen")
def submodule_method() -> Call:
    return UsesEncodeOnly(), (torch.randn(2, 4),), {}


@specimen("the thing to run is a bound method, not a module")
def bound_method() -> Call:
    return Autoencoder().encode, (torch.randn(2, 4),), {}


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int) -> Tensor:
        return x if depth == 0 else self(torch.tanh(self.step(x)), depth - 1)


@specimen("a module that calls itself: scopes nest in themselves")
def recursion() -> Call:
    return Recursive(), (torch.randn(2, 4), 3), {}


@specimen("a lazy module: parameters that have no shape, and another class, until the first call", fakes=False)
def lazy_module() -> Call:
    return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 2)), (torch.randn(2, 4),), {}


@specimen("weight norm: the weight is computed by a parametrization at each access")
def weight_norm_parametrization() -> Call:
    return weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),), {}


def double(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output * 2


def shift(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(arg + 1 for arg in args)


@specimen("hooks that change a module's input and output: operators outside any forward")
def hooks_change_values() -> Call:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_pre_hook(shift)
    model[0].register_forward_hook(double)
    return model, (torch.randn(2, 4),), {}


def halve(
    module: nn.Module, grad_input: tuple[Tensor | None, ...], grad_output: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    return tuple(None if grad is None else grad / 2 for grad in grad_input)


@specimen("a full backward hook on a module: an extra node around it in the autograd graph")
def module_backward_hook() -> Call:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[1].register_full_backward_hook(halve)
    return model, (torch.randn(2, 4),), {}


@specimen("names many levels deep")
def deep_names() -> Call:
    model: nn.Module = nn.Linear(3, 3)
    for _ in range(8):
        model = nn.Sequential(model, nn.Identity())
    return model, (torch.randn(2, 3),), {}


class UnregisteredConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scales = [torch.tensor([1.0, 2.0, 3.0])]
        self.shift = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scales[0] + self.shift


@specimen("tensors held as plain attributes and in a list: no input, no parameter, no buffer")
def unregistered_constant() -> Call:
    return UnregisteredConstant(), (torch.randn(2, 3),), {}


class PartlyFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.backbone(x)))


@specimen("a frozen backbone: half of the forward has no backward")
def frozen_parameters() -> Call:
    return PartlyFrozen(), (torch.randn(2, 4),), {}


class ThroughViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.flat.view(3, 4).t()[:, :2] + self.flat[:2]


@specimen("a parameter used only through views of it")
def parameter_through_view() -> Call:
    return ThroughViews(), (torch.randn(2, 4),), {}


class ParametersOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(3, 3)) for _ in range(2))

    def forward(self) -> Tensor:
        return self.matrices[0] @ self.matrices[1]


@specimen("no tensor goes in: everything comes from parameters")
def no_tensor_input() -> Call:
    return ParametersOnly(), (), {}


class Normalise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x - x.mean(), dim=-1)


@specimen("a module with no parameters")
def no_parameters() -> Call:
    return Normalise(), (torch.randn(2, 4, requires_grad=True),), {}


class ScalarModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return 3 - self.slope * x.exp() / 2


@specimen("everything is 0-dimensional; Python numbers stand where tensors go")
def zero_dim_scalar() -> Call:
    return ScalarModel(), (torch.tensor(0.5),), {}


class AddsLayerOnFirstCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "second"):
            self.second = nn.Linear(4, 2)
        return self.second(self.first(x))


@specimen("a submodule made inside forward: it was not there when watching began")
def module_made_in_forward() -> Call:
    return AddsLayerOnFirstCall(), (torch.randn(2, 4),), {}
