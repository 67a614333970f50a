"""Statements that train: modules, hooks, functions, checkpoints, gradients, optimizers."""

from __future__ import annotations

import torch
from torch import nn

from statements.scene import Scene, is_real, rule, takes

# -- modules -----------------------------------------------------------------------------------------------------------


@rule(2, before=True)
def module(scene: Scene) -> str:
    name = scene.new().replace("t", "m")
    return f"{name} = " + scene.pick(
        "nn.Linear(4, 4)",
        "nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))",
        "nn.LayerNorm(4)",
        "nn.BatchNorm1d(4)",
        "Residual(4)",
        "Residual(4)",
        "nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4, bias=False))",
        "nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 2, 1), nn.Flatten())",
        "nn.Linear(4, 4).double()",
        "nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 4))",
        "nn.GRUCell(4, 4)",
        "nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten())",
        "nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)",
        "nn.LazyLinear(4)",
        "Tied(4)",
        "Tied(4)",
        "Loop(4)",
        "nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))",
        "nn.Sequential(Residual(4), nn.Tanh(), Residual(4))",
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
    return (
        None
        if m is None
        else f"{m}."
        + scene.pick(
            "register_forward_hook(lambda module, args, out: out * 1.5)",
            "register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))",
            "register_full_backward_hook(lambda m, given, made: tuple(None if g is None else g * 2 for g in given))",
        )
    )


@rule(1)
def copied(scene: Scene) -> str | None:
    if scene.chance.random() < 0.3 and (m := scene.one(nn.Module)) is not None:
        return f"{scene.new().replace('t', 'm')} = copy.deepcopy({m})"
    x = scene.tensor(lambda t: t.is_leaf)
    return None if x is None else f"{scene.new()} = copy.deepcopy({x})"


# -- functions ---------------------------------------------------------------------------------------------------------


@rule(2)
def function(scene: Scene) -> str | None:
    if (x := scene.tensor(is_real)) is None:
        return None
    return f"{scene.new()} = " + scene.pick(
        f"Scale.apply({x}, 2.0)",
        f"Scale.apply({x} * 1.0, -0.5)",
        f"Double_.apply({x} + 0.0)",
    )


@rule(2)
def checkpointed(scene: Scene) -> str | None:
    x = scene.tensor(lambda t: is_real(t) and t.requires_grad)
    if x is None:
        return None
    body = scene.pick("lambda x: (x.sin() * x).exp()", "lambda x: F.dropout(x.tanh(), 0.5)", "lambda x: x.relu() + 1")
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
        ways += [
            f"torch.vmap(lambda x: x.sin() + x.sum())({x})",
            f"torch.vmap(torch.func.grad(lambda x: x.square().sum()))({x})",
        ]
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
        test = f"if {name} is not None and {name}.requires_grad:"
        return f"{call}, create_graph=True)[0]\n{test}\n    {name}.square().sum().backward(retain_graph=True)"
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
        "SGD({}, lr=0.1, momentum=0.9)",
        "Adam({}, lr=0.01)",
        "AdamW({}, lr=0.01, foreach=False)",
        "RMSprop({}, lr=0.01)",
        "SGD({}, lr=0.1, nesterov=True, momentum=0.5, weight_decay=0.1)",
        "Adagrad({})",
        "Adam({}, amsgrad=True)",
        "LBFGS({}, max_iter=2)",
        "Adam({}, fused=True)",
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
    clip = f"nn.utils.clip_grad_norm_([p for g in {o}.param_groups for p in g['params']], 1.0)\n"
    return f"{zero}{train}{clip if scene.chance.random() < 0.3 else ''}{o}.step()"


# -- what people do besides --------------------------------------------------------------------------------------------


@rule(1, trains=True)
def averaged(scene: Scene) -> str | None:
    m = scene.one(nn.Module, lambda m: any(p.requires_grad for p in m.parameters()))
    if m is None:
        return None
    return scene.pick(
        f"with torch.no_grad():\n    for p in {m}.parameters():\n        p.mul_(0.9).add_(torch.ones_like(p), alpha=2)",
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
