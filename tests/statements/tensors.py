"""Statements on tensors: new ones, ops, views, writes, out=, storages, control flow."""

from __future__ import annotations

import torch

from statements.scene import Scene, is_real, is_written_freely, rule

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
        "sum()",
        f"mean({dim})",
        f"amax({dim})",
        f"cumsum({dim})",
        f"softmax({dim})",
        f"sort({dim})[0]",
        f"max({dim})[1]",
        f"std({dim}, correction=0)",
        f"topk(1, {dim})[0]",
        f"norm(dim={dim})",
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
        ways += [
            f"transpose(0, {dim})",
            f"movedim(0, {dim})",
            f"expand(2, {', '.join(['-1'] * t.dim())})",
            "reshape(-1)",
        ]
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
    ways = [
        f"{x}.add_({scene.number()})",
        f"{x}.mul_({scene.number()})",
        f"{x}.zero_()",
        f"{x}.fill_({scene.number()})",
    ]
    ways += [
        f"{x}.relu_()",
        f"{x}.clamp_(-1, 1)",
        f"{x}.normal_()",
        f"{x}.copy_({same}.clone())",
        f"{x} += {same}.sin()",
    ]
    ways += [
        f"{x}.masked_fill_({x} > 0, {scene.number()})",
        f"{x}.sub_({same}.exp(), alpha=0.5)",
        f"{x}.copysign_(-1.0)",
    ]
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
    begin = f"{name} = {x}.detach().abs().nan_to_num(posinf=3.0).clamp(max=50.0)"
    return f"{begin}\nwhile {name}.sum() > 1:\n    {name} = {name} * 0.3"


@rule(1)
def caught(scene: Scene) -> str | None:
    """An op that raises; what it did before stays."""
    if (x := scene.tensor(is_real)) is None:
        return None
    way = scene.pick(
        f"{x} @ torch.ones(97)",
        f"{x}.view(97)",
        f"torch.take({x}, torch.tensor([99]))",
        f"torch.add({x}, [])",
        f"{x}.add_(torch.ones(2, 3, 97))",
    )
    return f"try:\n    {way}\nexcept (RuntimeError, IndexError, TypeError):\n    pass"


@rule(1)
def dropped(scene: Scene) -> str | None:
    found = scene.all(torch.Tensor)
    return f"del {scene.chance.choice(found)}" if len(found) > 4 else None


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
        if scene[x].is_contiguous() and bytes_ == scene[x].numel()
        else f"{scene.new()} = {x}.as_strided((1,), (1,))",
    )


# -- lists -----------------------------------------------------------------------------------------------------------


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
