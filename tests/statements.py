"""The statements that random programs are made of: each is a line or block of Python that runs in the state given.

A rule looks at the tensors, modules and optimizers there are (`Scene`) and returns the text of a statement, or None
where it has nothing to work on. Rules are chosen in proportion to their weight. What a statement may name beside its
variables stands in DEFINITIONS.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

DEFINITIONS = '''\
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor + 0 * x, None

class Double_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Tied(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleDict({"first": nn.Linear(width, width), "last": nn.Linear(width, width)})
        self.layers["last"].weight = self.layers["first"].weight
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = self.layers["first"](x).relu_()
        x = torch.cat([x[:, :2], x[:, 2:].mul(2)], 1)
        return self.layers["last"](x) * self.scale

class Loop(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.table = nn.Embedding(5, width, padding_idx=0)

    def forward(self, x):
        out, state = torch.empty(len(x), 3, x.shape[1]), None
        for step in range(3):
            state = self.cell(x + self.table(torch.tensor(step)), state)
            out[:, step] = state[0]
        return out.sum(1)

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.relu = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, bound=0.5):
        self.seen += 1
        for layer in self.layers:
            x = x + self.relu(layer(x))
            if x.mean() > bound:
                x = x[..., :1] * 0.5 + x
        return x
'''


class Scene:
    """What a program has made so far, and the random choices of the next statement."""

    def __init__(self, names: dict[str, Any], chance: random.Random, fresh: int) -> None:
        self.names, self.chance, self._fresh = names, chance, fresh

    def new(self) -> str:
        """A name that stands for nothing yet, or now and then one that stands for a tensor."""
        self._fresh += 1
        return f"t{self._fresh}"

    def all(self, kind: type, where: Callable[[Any], bool] = lambda item: True) -> list[str]:
        return [name for name, item in self.names.items() if isinstance(item, kind) and where(item)]

    def one(self, kind: type, where: Callable[[Any], bool] = lambda item: True) -> str | None:
        """Mostly one of the last: so that programs get long chains."""
        found = self.all(kind, where)
        if not found:
            return None
        return self.chance.choice(found[-4:] if self.chance.random() < 0.6 else found)

    def tensor(self, where: Callable[[torch.Tensor], bool] = lambda item: True) -> str | None:
        return self.one(torch.Tensor, where)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def pick(self, *items: str) -> str:
        return self.chance.choice(items)

    def shape(self, least: int = 0, most: int = 3) -> str:
        sizes = [self.chance.randint(1, 4) for _ in range(self.chance.randint(least, most))]
        return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"

    def number(self) -> str:
        return self.pick("0.5", "2", "-1.5", "3", "0.0", "float('inf')", "-float('nan')") if (
            self.chance.random() < 0.3
        ) else f"{self.chance.uniform(-2, 2):.2f}"


Rule = Callable[[Scene], str | None]
RULES: list[Rule] = []
WEIGHTS: list[float] = []
TRAINING: list[float] = []  # weights for a program that trains a module
BEFORE: list[Rule] = []  # also before the recording begins


def rule(weight: float, before: bool = False, trains: bool = False) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.append(function)
        WEIGHTS.append(weight)
        TRAINING.append(weight * (5 if trains else 1))
        if before:
            BEFORE.append(function)
        return function

    return add


def is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


def is_written_freely(tensor: torch.Tensor) -> bool:
    """Whether an in-place op may write a tensor with gradients on: no leaf, no view of one, no expanded memory."""
    base = tensor if tensor._base is None else tensor._base
    own = all(step or size < 2 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return own and not tensor.is_inference() and not (base.is_leaf and base.requires_grad)


def takes(tensor: torch.Tensor, width: int) -> bool:
    return tensor.dtype is torch.float32 and tensor.dim() == 2 and tensor.shape[1] == width


# -- new tensors -------------------------------------------------------------------------------------------------------


@rule(3, before=True)
def made(scene: Scene) -> str:
    grad = ", requires_grad=True" if scene.chance.random() < 0.4 else ""
    dtype = ", dtype=torch.float64" if scene.chance.random() < 0.15 else ""
    return f"{scene.new()} = torch.randn({scene.shape()}{dtype}{grad})"


@rule(2, before=True)
def matrix(scene: Scene) -> str:
    grad = ", requires_grad=True" if scene.chance.random() < 0.5 else ""
    return f"{scene.new()} = torch.randn(3, 4{grad})"


@rule(1, before=True)
def filled(scene: Scene) -> str:
    name, shape = scene.new(), scene.shape()
    number = scene.pick("float('nan')", "-float('nan')", "float('inf')", "1.5", "-0.0", "3")
    return f"{name} = " + scene.pick(
        f"torch.full({shape}, {number})",
        f"torch.zeros({shape})",
        f"torch.ones({shape}, dtype=torch.float64)",
        f"torch.arange({scene.chance.randint(2, 6)}.0)",
        f"torch.tensor([{number}, 2.0])",
        f"torch.randint(0, 3, {shape})",
        f"torch.rand({shape}) > 0.5",
        f"torch.randn({shape}, dtype=torch.complex64)",
        f"torch.zeros(2).new_full({shape}, {number})",
    )


# -- ops that make tensors ---------------------------------------------------------------------------------------------

_UNARY = ("sin", "exp", "tanh", "relu", "sigmoid", "abs", "neg", "square", "clone", "softplus", "gelu", "detach")


@rule(5)
def unary(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    name = scene.chance.choice(_UNARY)
    call = f"F.{name}({x})" if name in ("softplus", "gelu") else f"{x}.{name}()"
    return f"{scene.new()} = {call}"


@rule(4)
def binary(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    shape = scene[x].shape

    def fits(other: torch.Tensor) -> bool:
        pairs = zip(reversed(shape), reversed(other.shape), strict=False)
        return is_real(other) and all(a == b or 1 in (a, b) for a, b in pairs)

    y = scene.tensor(fits) if scene.chance.random() < 0.8 else scene.number()
    sign = scene.pick("+", "-", "*", "/")
    return f"{scene.new()} = " + scene.pick(f"{x} {sign} {y}", f"{x} {sign} {y}", f"torch.where({x} > 0, {x}, {y})")


@rule(2)
def reduction(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: is_real(t) and t.dim() > 0 and t.numel() > 0)) is None:
        return None
    dim = scene.chance.randrange(scene[x].dim())
    return f"{scene.new()} = {x}." + scene.pick(
        "sum()", f"mean({dim})", f"amax({dim})", f"cumsum({dim})", f"softmax({dim})", f"sort({dim})[0]",
        f"max({dim})[1]", f"std({dim}, correction=0)", f"topk(1, {dim})[0]", f"norm(dim={dim})",
    )


@rule(2)
def product(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: is_real(t) and t.dim() == 2)
    if x is None:
        return None
    y = scene.tensor(lambda t: t.dtype == scene[x].dtype and t.dim() == 2 and t.shape[0] == scene[x].shape[1])
    return f"{scene.new()} = " + (f"{x} @ {y}" if y is not None else f"{x} @ {x}.t()")


@rule(2)
def joined(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: is_real(t) and t.dim() > 0)) is None:
        return None
    y = scene.tensor(lambda t: t.shape == scene[x].shape and t.dtype == scene[x].dtype)
    return f"{scene.new()} = torch.{scene.pick('cat', 'stack')}([{x}, {y}], {scene.chance.randrange(scene[x].dim())})"


@rule(2)
def indexed(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: is_real(t) and t.dim() > 0 and t.numel() > 0)) is None:
        return None
    last = scene[x].shape[0] - 1
    return f"{scene.new()} = {x}[" + scene.pick(f"[0, {last}, 0]", f"{x} > 0", f"torch.tensor([{last}])", "None") + "]"


@rule(1)
def drawn(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    return f"{scene.new()} = " + scene.pick(
        f"F.dropout({x}, 0.5)", f"torch.rand_like({x})", f"torch.bernoulli({x}.sigmoid())", f"torch.randn({x}.numel())"
    )


# -- views -------------------------------------------------------------------------------------------------------------


@rule(6)
def view(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: t.numel() > 0)) is None:
        return None
    t: torch.Tensor = scene[x]
    ways = ["detach()", "data", "unsqueeze(0)", "view_as({x})"]
    if t.is_contiguous():
        ways += ["view(-1)"] * 2
    if t.dim():
        dim = scene.chance.randrange(t.dim())
        ways += [f"select({dim}, {scene.chance.randrange(t.shape[dim])})", f"unbind({dim})[-1]", f"unfold({dim}, 1, 1)"]
        ways += [f"narrow({dim}, {t.shape[dim] // 2}, {t.shape[dim] - t.shape[dim] // 2})", f"chunk(2, {dim})[0]"]
        ways += [f"transpose(0, {dim})", f"movedim(0, {dim})", f"expand(2, {', '.join(['-1'] * t.dim())})", "reshape(-1)"]
        ways += [f"split(1, {dim})[0]"]
    if t.dim() >= 2:
        ways += ["diagonal()", "mT", "flatten(0, 1)", "[..., ::2]", "[1:, :1]"]
    if t.dim() == 1:
        ways += ["[1:]", "[::2]", "[:2]"]
    if t.is_complex():
        ways += ["real", "conj()", "imag"]
    if t.dtype is torch.float32 and t.dim() and not t.requires_grad:
        ways += ["view(torch.int32)", "view(torch.uint8)"] if t.stride(-1) == 1 else []
    way = scene.chance.choice(ways).replace("{x}", x)
    return f"{scene.new()} = {x}{'' if way.startswith('[') else '.'}{way}"


# -- writes ------------------------------------------------------------------------------------------------------------


@rule(6)
def in_place(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: is_real(t) and is_written_freely(t) and t.numel() > 0)) is None:
        return None
    same = scene.tensor(lambda t: is_real(t) and t.dtype == scene[x].dtype and t.shape == scene[x].shape)
    ways = [f"{x}.add_({scene.number()})", f"{x}.mul_({scene.number()})", f"{x}.zero_()", f"{x}.fill_({scene.number()})"]
    ways += [f"{x}.relu_()", f"{x}.clamp_(-1, 1)", f"{x}.normal_()", f"{x}.copy_({same}.clone())", f"{x} += {same}.sin()"]
    ways += [f"{x}.masked_fill_({x} > 0, {scene.number()})", f"{x}.sub_({same}.exp(), alpha=0.5)", f"{x}.copysign_(-1.0)"]
    if scene[x].dim():
        last = scene[x].shape[0] - 1
        ways += [f"{x}[0] = {scene.number()}", f"{x}[{last}:] *= 0.5", f"{x}[[0, {last}]] = {scene.number()}"]
        ways += [f"{x}[{x} > 0] = 0.25", f"{x}.index_fill_(0, torch.tensor([{last}]), 1.0)", f"{x}[..., 0].add_(1)"]
        ways += [f"{x}.index_add_(0, torch.tensor([0]), {x}[:1].detach().clone())"]
    return scene.chance.choice(ways)


@rule(2)
def quietly(scene: Scene) -> str | None:
    """A write that autograd does not see, as optimizers and initialisations do."""
    x = scene.tensor(lambda t: is_real(t) and t.is_leaf and t.numel() > 0 and not t.is_inference())
    if x is None:
        return None
    way = scene.pick("mul_(0.9)", "add_(0.1)", "zero_()", "uniform_(-1, 1)")
    if scene.chance.random() < 0.3:
        return f"{x}.data.{way}"
    return f"with torch.no_grad():\n    {x}.{way}"


@rule(1)
def relaid(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: is_real(t) and not t.requires_grad and is_written_freely(t) and t._base is None)
    if x is None:
        return None
    ways = ["unsqueeze_(0)", "squeeze_()"] + (["t_()"] if scene[x].dim() == 2 else [])
    count = scene[x].numel()
    ways += [f"resize_({max(count - 1, 0)})", f"resize_({count + 2}).zero_()", f"resize_(1, {count})"]
    return f"{x}.{scene.chance.choice(ways)}"


# -- out= --------------------------------------------------------------------------------------------------------------


@rule(4)
def into(scene: Scene) -> str | None:
    """An op that writes into a tensor of any size; torch resizes it, warns, or refuses."""
    x = scene.tensor(lambda t: is_real(t) and not t.requires_grad and t.numel() > 0)
    out = scene.tensor(lambda t: is_real(t) and not t.requires_grad and is_written_freely(t))
    if x is None or out is None or scene[x].untyped_storage()._cdata == scene[out].untyped_storage()._cdata:
        return None
    if scene.chance.random() < 0.25:
        out = f"{out}.detach()"
    last = max(scene[x].dim() - 1, 0)
    ways = [f"torch.add({x}, 1.0, out={out})", f"torch.sin({x}, out={out})", f"torch.mul({x}, {x}, out={out})"]
    ways += [f"torch.arange({scene.chance.randint(1, 6)}, out={out})", f"torch.linspace(0, 1, 3, out={out})"]
    if scene[x].dim():
        ways += [f"torch.sum({x}, {last}, out={out})", f"torch.index_select({x}, 0, torch.tensor([0]), out={out})"]
        ways += [f"torch.cat([{x}, {x}], out={out})", f"torch.cumsum({x}, {last}, out={out})"]
        ways += [f"torch.gather({x}, 0, torch.zeros_like({x}, dtype=torch.int64), out={out})"]
        ways += [f"torch.take({x}, torch.tensor([0, 99]), out={out})"]  # which raises, after it has resized
        ways += [f"torch.max({x}, {last}, out=({out}, torch.empty(0, dtype=torch.int64)))"]
    if scene[x].dim() == 2:
        ways += [f"torch.mm({x}, {x}.t(), out={out})"] * 2
    return scene.chance.choice(ways)


# -- control flow ------------------------------------------------------------------------------------------------------


@rule(2)
def loop(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    name, count = scene.new(), scene.chance.randint(2, 4)
    return f"{name} = {x}\nfor step in range({count}):\n    {name} = " + scene.pick(
        f"{name} * 0.5 + step", f"torch.tanh({name}) - {x}", f"{name}.detach() + {x}", f"{name}[...]"
    )


@rule(2)
def branch(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: is_real(t) and t.numel() > 0)) is None:
        return None
    name = scene.new()
    test = scene.pick(f"{x}.sum() > 0", f"{x}.mean().item() > 0", f"bool(({x} > 0).any())")
    return f"if {test}:\n    {name} = {x} * 2\nelse:\n    {name} = {x}.exp().sum()"


@rule(1)
def while_loop(scene: Scene) -> str | None:
    if (x := scene.tensor(lambda t: is_real(t) and t.numel() > 0)) is None:
        return None
    name = scene.new()
    return f"{name} = {x}.detach().abs().nan_to_num(posinf=3.0).clamp(max=50.0)\nwhile {name}.sum() > 1:\n    {name} = {name} * 0.3"


@rule(1)
def caught(scene: Scene) -> str | None:
    """An op that raises; what it did before stays."""
    if (x := scene.tensor(is_real)) is None:
        return None
    way = scene.pick(
        f"{x} @ torch.ones(97)", f"{x}.view(97)", f"torch.take({x}, torch.tensor([99]))", f"torch.add({x}, [])",
        f"{x}.add_(torch.ones(2, 3, 97))",
    )
    return f"try:\n    {way}\nexcept (RuntimeError, IndexError, TypeError):\n    pass"


@rule(1)
def dropped(scene: Scene) -> str | None:
    found = scene.all(torch.Tensor)
    return f"del {scene.chance.choice(found)}" if len(found) > 4 else None


# -- modules -----------------------------------------------------------------------------------------------------------


@rule(2, before=True)
def module(scene: Scene) -> str:
    name = scene.new().replace("t", "m")
    return f"{name} = " + scene.pick(
        "nn.Linear(4, 4)", "nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))", "nn.LayerNorm(4)",
        "nn.BatchNorm1d(4)", "Residual(4)", "Residual(4)", "nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4, bias=False))",
        "nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 2, 1), nn.Flatten())", "nn.Linear(4, 4).double()",
        "nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 4))", "nn.GRUCell(4, 4)",
        "nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten())",
        "nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)", "nn.LazyLinear(4)", "Tied(4)", "Tied(4)", "Loop(4)",
        "nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))", "nn.Sequential(Residual(4), nn.Tanh(), Residual(4))",
    )


def _call_of(scene: Scene) -> str | None:
    x, m = scene.tensor(lambda t: takes(t, 4) and len(t) > 1), scene.one(nn.Module)
    return None if x is None or m is None else f"{m}({x})"


@rule(5, trains=True)
def called(scene: Scene) -> str | None:
    call = _call_of(scene)
    return None if call is None else f"{scene.new()} = {call}"


@rule(1, trains=True)
def mode(scene: Scene) -> str | None:
    m = scene.one(nn.Module)
    return None if m is None else f"{m}." + scene.pick("eval()", "train()", "zero_grad()", "requires_grad_(False)")


@rule(1, trains=True)
def module_hook(scene: Scene) -> str | None:
    m = scene.one(nn.Module)
    return None if m is None else f"{m}." + scene.pick(
        "register_forward_hook(lambda module, args, out: out * 1.5)",
        "register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))",
        "register_full_backward_hook(lambda module, given, made: tuple(g * 2 if g is not None else g for g in given))",
    )


@rule(1)
def copied(scene: Scene) -> str | None:
    if scene.chance.random() < 0.3 and (m := scene.one(nn.Module)) is not None:
        return f"{scene.new().replace('t', 'm')} = copy.deepcopy({m})"
    x = scene.tensor(lambda t: t.is_leaf)
    return None if x is None else f"{scene.new()} = copy.deepcopy({x})"


# -- storages ----------------------------------------------------------------------------------------------------------


@rule(1)
def by_storage(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: is_real(t) and t.numel() > 0 and not t.requires_grad)
    if x is None:
        return None
    bytes_ = scene[x].untyped_storage().nbytes() // scene[x].element_size()
    size, dtype = scene.chance.randint(1, bytes_), f"dtype={scene[x].dtype}"
    offset = scene.chance.randint(0, bytes_ - size)
    other = scene.tensor(lambda t: t.dtype == scene[x].dtype and t.shape == scene[x].shape)
    return scene.pick(
        f"{scene.new()} = torch.empty(0, {dtype}).set_({x}.untyped_storage(), {offset}, ({size},), (1,))",
        f"{scene.new()} = torch.empty(0, {dtype}).set_({x})",
        f"{x}.data = {other}.detach().clone()",
        f"{x}.untyped_storage().copy_({x}.clone(memory_format=torch.contiguous_format).untyped_storage())"
        if scene[x].is_contiguous() and bytes_ == scene[x].numel() else f"{scene.new()} = {x}.as_strided((1,), (1,))",
    )


# -- functions ---------------------------------------------------------------------------------------------------------


@rule(2)
def function(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    return f"{scene.new()} = " + scene.pick(
        f"Scale.apply({x}, 2.0)", f"Scale.apply({x} * 1.0, -0.5)", f"Double_.apply({x} + 0.0)",
    )


@rule(2)
def checkpointed(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: is_real(t) and t.requires_grad)
    if x is None:
        return None
    body = scene.pick(f"lambda x: (x.sin() * x).exp()", "lambda x: F.dropout(x.tanh(), 0.5)", "lambda x: x.relu() + 1")
    call = _call_of(scene)
    if call is not None and scene.chance.random() < 0.5:
        body, x = call[:-1].split("(")
    return f"{scene.new()} = checkpoint({body}, {x}, use_reentrant={scene.pick('False', 'False', 'True')})"


@rule(2)
def transformed(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: is_real(t) and t.numel() > 0)
    if x is None:
        return None
    ways = [f"torch.func.grad(lambda x: (x.sin() * x).sum())({x})", f"torch.func.jvp(torch.sin, ({x},), ({x},))[1]"]
    ways += [f"torch.func.vjp(torch.tanh, {x})[1]({x})[0]"]
    if scene[x].dim() == 1:
        ways += [f"torch.func.hessian(lambda x: (x ** 3).sum())({x})", f"torch.func.jacrev(torch.sin)({x})"]
        ways += [f"torch.func.jacfwd(torch.exp)({x})"]
    if scene[x].dim():
        ways += [f"torch.vmap(lambda x: x.sin() + x.sum())({x})", f"torch.vmap(torch.func.grad(lambda x: x.square().sum()))({x})"]
    return f"{scene.new()} = {scene.chance.choice(ways)}"


@rule(1)
def within(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    call = _call_of(scene) or f"{x} * 2"
    around = scene.pick("torch.no_grad()", "torch.enable_grad()", "torch.autocast('cpu', dtype=torch.bfloat16)")
    return f"with {around}:\n    {scene.new()} = {call}"


# -- gradients ---------------------------------------------------------------------------------------------------------


def _root(scene: Scene) -> str | None:
    return scene.tensor(lambda t: t.requires_grad and t.grad_fn is not None and t.numel() > 0 and is_real(t))


@rule(4, trains=True)
def backward(scene: Scene) -> str | None:
    if (x := _root(scene)) is None:
        return None
    keep = scene.pick("", "retain_graph=True", "retain_graph=True")
    loss = scene.pick(f"{x}.sum()", f"{x}.square().mean()")
    twice = f"\n{scene.new()} = {x}.detach()\n{x}.mean().backward()" if keep and scene.chance.random() < 0.4 else ""
    return f"{loss}.backward({keep}){twice}"


@rule(3, trains=True)
def accumulated(scene: Scene) -> str | None:
    call = _call_of(scene)
    if call is None:
        return None
    count = scene.chance.randint(2, 4)
    return f"for step in range({count}):\n    {call}.square().mean().backward()"


@rule(2)
def gradient(scene: Scene) -> str | None:
    x = _root(scene)
    leaf = scene.tensor(lambda t: t.requires_grad and is_real(t))
    if x is None or leaf is None:
        return None
    again, name = scene.chance.random() < 0.5, scene.new()
    call = f"{name} = torch.autograd.grad({x}.square().sum(), {leaf}, allow_unused=True, retain_graph=True"
    if again:
        return f"{call}, create_graph=True)[0]\nif {name} is not None and {name}.requires_grad:\n    {name}.square().sum().backward(retain_graph=True)"
    return f"{call})[0]"


@rule(1)
def tensor_hook(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: t.requires_grad and is_real(t))
    if x is None:
        return None
    ways = ["register_hook(lambda g: g * 2)", "retain_grad()", "register_hook(lambda g: g.clamp(-1, 1))"]
    if scene[x].is_leaf:
        ways += ["register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))", "grad = None"]
    return f"{x}.{scene.chance.choice(ways)}"


# -- optimizers --------------------------------------------------------------------------------------------------------


@rule(2, before=True)
def optimizer(scene: Scene) -> str | None:
    m = scene.one(nn.Module, lambda m: any(p.requires_grad for p in m.parameters()))
    if m is None:
        return None
    made = scene.pick(
        "SGD({}, lr=0.1, momentum=0.9)", "Adam({}, lr=0.01)", "AdamW({}, lr=0.01, foreach=False)", "RMSprop({}, lr=0.01)",
        "SGD({}, lr=0.1, nesterov=True, momentum=0.5, weight_decay=0.1)", "Adagrad({})", "Adam({}, amsgrad=True)",
        "LBFGS({}, max_iter=2)", "Adam({}, fused=True)",
    )
    return f"{scene.new().replace('t', 'o')} = torch.optim.{made.format(f'{m}.parameters()')}"


@rule(4, trains=True)
def step(scene: Scene) -> str | None:
    o, call = scene.one(torch.optim.Optimizer), _call_of(scene)
    if o is None:
        return None
    if isinstance(scene[o], torch.optim.LBFGS) or (call is not None and scene.chance.random() < 0.2):
        if call is None:
            return None
        lines = ["def closure():", f"    {o}.zero_grad()", f"    loss = {call}.square().mean()", "    loss.backward()"]
        return "\n".join([*lines, "    return loss", f"{o}.step(closure)"])
    zero = scene.pick(f"{o}.zero_grad()\n", f"{o}.zero_grad(set_to_none=False)\n", "")
    train = f"{call}.square().mean().backward()\n" if call is not None else ""
    clip = "nn.utils.clip_grad_norm_([p for g in {}.param_groups for p in g['params']], 1.0)\n".format(o)
    return f"{zero}{train}{clip if scene.chance.random() < 0.3 else ''}{o}.step()"


# -- what people do besides --------------------------------------------------------------------------------------------


@rule(1, trains=True)
def averaged(scene: Scene) -> str | None:
    m = scene.one(nn.Module, lambda m: any(p.requires_grad for p in m.parameters()))
    if m is None:
        return None
    return scene.pick(
        f"with torch.no_grad():\n    for p in {m}.parameters():\n        p.mul_(0.9).add_(torch.ones_like(p), alpha=0.1)",
        f"for p in {m}.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)",
        f"torch._foreach_mul_([p.grad for p in {m}.parameters() if p.grad is not None], 0.5)",
        f"{m}.load_state_dict({{key: item.clone() for key, item in {m}.state_dict().items()}})",
        f"for p in {m}.parameters():\n    p.grad = torch.zeros_like(p)",
        f"nn.utils.clip_grad_value_({m}.parameters(), 0.1)",
        f"torch.nn.init.uniform_(next({m}.parameters()))",
    )


@rule(1, trains=True)
def called_with(scene: Scene) -> str | None:
    """A module called in some other way than by itself."""
    call = _call_of(scene)
    if call is None:
        return None
    m, x = call[:-1].split("(")
    name = scene.new()
    return scene.pick(
        f"{name} = torch.func.functional_call({m}, {{key: p * 2 for key, p in {m}.named_parameters()}}, ({x},))",
        f"with torch.autograd.graph.save_on_cpu():\n    {name} = {call}",
        f"with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):\n    {name} = {call}",
        f"{name} = checkpoint(lambda x: checkpoint({m}, x, use_reentrant=False) * 2, {x}, use_reentrant=False)",
        f"{name} = sum({m}({x}) for _ in range(2))",
        f"with torch.inference_mode():\n    {name} = {call}.clone()",
        f"{name} = F.scaled_dot_product_attention({call}, {x}, {x})",
        f"{name} = F.cross_entropy({call}, torch.arange(len({x})) % 4)",
    )


@rule(1)
def listed(scene: Scene) -> str | None:
    """Ops over lists of tensors, and several results of one op of which one is written."""
    x = scene.tensor(lambda t: is_real(t) and t.dim() > 0 and t.shape[0] > 1 and is_written_freely(t))
    if x is None:
        return None
    name = scene.new()
    return scene.pick(
        f"torch._foreach_add_([part.detach() for part in {x}.split(1)], 1.0)",
        f"{name} = torch._foreach_exp([{x}, {x}[1:]])[1]",
        f"{name} = torch.cat([part * 2 for part in {x}.chunk(2)])",
        f"{name}, _ = torch.split({x}.clone(), [1, len({x}) - 1])\n{name}.data.add_(1)",
        f"{name} = torch.zeros_like({x}).index_put_((torch.tensor([0, 0]),), {x}[:1].detach(), accumulate=True)",
        f"{name} = {x}.clone()\n{name}[::2], {name}[1:2] = 1.0, {name}[:1].detach().clone()",
    )
