"""Autograd graphs of every kind we know of: name -> builder. Seeded, so that a graph can be built once per engine."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


@dataclass
class Case:
    """What to differentiate, how, and what to look at afterwards. With `grad`, inputs are those of autograd.grad."""

    outputs: Any
    grad_outputs: Any = None
    inputs: Any = None
    leaves: list[torch.Tensor] = field(default_factory=list)  # whose .grad is compared; also retained ones
    grad: bool = False
    create_graph: bool = False
    retain_graph: bool | None = None
    allow_unused: bool = False
    log: list[Any] = field(default_factory=list)  # what hooks note down


GRAPHS: dict[str, Callable[[], Case]] = {}


def graph(build: Callable[[], Case]) -> Callable[[], Case]:
    assert build.__name__ not in GRAPHS
    GRAPHS[build.__name__] = build
    return build


def build(name: str) -> Case:
    torch.manual_seed(0)
    return GRAPHS[name]()


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True, **options)


def of_model(model: nn.Module, loss: torch.Tensor, *more: torch.Tensor, **options: Any) -> Case:
    return Case(loss, leaves=[*model.parameters(), *more], **options)


# Shapes of graphs


@graph
def chain() -> Case:
    x = leaf(3)
    y = x
    for _ in range(30):
        y = y.sin()
    return Case(y.sum(), leaves=[x])


@graph
def diamond() -> Case:
    x = leaf(3)
    y = x.exp()
    return Case((y.sin() + y.cos()).sum(), leaves=[x])


@graph
def used_three_times() -> Case:
    x = leaf(3)
    return Case((x * x * x).sum(), leaves=[x])


@graph
def many_paths() -> Case:
    x = leaf(4)
    layer = [x.sin(), x.cos(), x.tanh()]
    for _ in range(4):
        layer = [layer[i] * layer[(i + 1) % 3] + layer[(i + 2) % 3] for i in range(3)]
    return Case(sum(layer).sum(), leaves=[x])


@graph
def several_roots() -> Case:
    x, w = leaf(3), leaf(3)
    y = x * w
    return Case([y.sum(), y.exp(), w.sin()], [None, torch.ones(3), torch.randn(3)], leaves=[x, w])


@graph
def one_root_twice() -> Case:
    x = leaf(3)
    y = x.sin()
    return Case([y, y], [torch.ones(3), torch.full((3,), 2.0)], leaves=[x])


@graph
def a_root_behind_another() -> Case:
    x = leaf(3)
    y = x.sin()
    return Case([y.exp().sum(), y, x], [None, torch.ones(3), torch.ones(3)], leaves=[x])


@graph
def leaf_as_root() -> Case:
    x = leaf()
    return Case(x, leaves=[x])


@graph
def unused_outputs() -> Case:
    x = leaf(6, 2)
    first, _, third = x.split(2)
    x.exp()
    return Case((first * third).sum(), leaves=[x])


@graph
def constants_on_the_way() -> Case:
    x = leaf(3)
    return Case((x * torch.ones(3) + torch.arange(3) - 2).sum(), leaves=[x])


@graph
def detached_in_the_middle() -> Case:
    x, w = leaf(3), leaf(3)
    return Case((x.sin().detach() * w + x.cos()).sum(), leaves=[x, w])


@graph
def frozen_parameters() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    return of_model(model, model(torch.randn(5, 3)).sum())


@graph
def gradients_already_there() -> Case:
    x = leaf(3)
    x.grad = torch.ones(3)
    return Case(x.sin().sum(), leaves=[x])


@graph
def graph_kept() -> Case:
    x = leaf(3)
    return Case(x.sin().exp().sum(), leaves=[x], retain_graph=True)


@graph
def tied_numbers() -> Case:
    """Nodes of one thread each: their sequence numbers are equal, and the heap decides."""
    leaves = [leaf(3) for _ in range(9)]
    made: list[Any] = [None] * 9

    def work(i: int) -> None:
        made[i] = leaves[i].sin()

    for i in range(9):
        thread = threading.Thread(target=work, args=(i,))
        thread.start()
        thread.join()
    return Case(torch.stack(made).sum(), leaves=leaves)


# Models


@graph
def mlp() -> Case:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    return of_model(model, model(torch.randn(3, 4)).square().mean())


@graph
def lstm() -> Case:
    model = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    out, (h, c) = model(torch.randn(6, 2, 4))
    return of_model(model, out.sum() + h.square().sum() + c.sum())


@graph
def gru() -> Case:
    model = nn.GRU(4, 5)
    return of_model(model, model(torch.randn(6, 2, 4))[0].square().sum())


@graph
def lstm_cell_loop() -> Case:
    cell = nn.LSTMCell(3, 4)
    h = c = torch.zeros(2, 4)
    for x in torch.randn(6, 2, 3):
        h, c = cell(x, (h, c))
    return of_model(cell, (h * c).sum())


@graph
def convolutions() -> Case:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    return of_model(model, F.cross_entropy(model(torch.randn(3, 2, 8, 8)), torch.tensor([0, 2, 1])))


@graph
def channels_last() -> Case:
    model = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 2, 6, 6).to(memory_format=torch.channels_last)
    return of_model(model, (model(x) * model(x).relu()).sum())


@graph
def transformer_layer() -> Case:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return of_model(model, model(torch.randn(2, 5, 8)).square().mean())


class GPT(nn.Module):
    """Two blocks, tied weights, fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(8, 32) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(32, 8) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for i in range(2):
            q, k, v = (
                p.view(*p.shape[:2], 2, 4).transpose(1, 2) for p in self.qkv[i](self.norms[2 * i](x)).chunk(3, -1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out[i](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return self.norms[4](x) @ self.wte.weight.t()


@graph
def gpt() -> Case:
    model = GPT()
    ids = torch.randint(11, (2, 6))
    return of_model(model, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


@graph
def embedding() -> Case:
    model = nn.Embedding(7, 3)
    return of_model(model, model(torch.tensor([1, 1, 4])).square().sum())


@graph
def sparse_embedding() -> Case:
    model = nn.Embedding(7, 3, sparse=True)
    return of_model(model, model(torch.tensor([1, 1, 4])).square().sum())


@graph
def sparse_embedding_used_twice() -> Case:
    model = nn.Embedding(7, 3, sparse=True)
    return of_model(model, (model(torch.tensor([1, 1, 4])) * model(torch.tensor([2, 1, 1]))).sum())


@graph
def sparse_and_dense_for_one_weight() -> Case:
    model = nn.Embedding(7, 3, sparse=True)
    return of_model(model, (model(torch.tensor([1, 4])) @ model.weight.t()).sum())


@graph
def dense_and_sparse_for_one_weight() -> Case:
    model = nn.Embedding(7, 3, sparse=True)
    scores = model.weight.sin().sum(0)
    return of_model(model, (model(torch.tensor([1, 4])) * scores).sum())


@graph
def embedding_bag() -> Case:
    model = nn.EmbeddingBag(7, 3, mode="sum", sparse=True)
    return of_model(model, model(torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])).square().sum())


@graph
def sparse_matmul() -> Case:
    x = leaf(3, 2)
    matrix = torch.tensor([[0.0, 0.0, 3.0], [4.0, 0.0, 5.0]]).to_sparse().requires_grad_()
    return Case(torch.sparse.mm(matrix, x).square().sum(), leaves=[x, matrix])


@graph
def complex_numbers() -> Case:
    x = leaf(3, dtype=torch.complex64)
    return Case((x * x.conj() + x.exp()).abs().sum(), leaves=[x])


@graph
def complex_and_real() -> Case:
    x, z = leaf(3), leaf(3, dtype=torch.complex64)
    return Case(torch.view_as_real(x * z).sum(), leaves=[x, z])


# Views and writes


@graph
def write_into_a_view() -> Case:
    x, w = leaf(4, 3), leaf(3)
    y = x * 2
    y[1] = w
    y[2].mul_(w)
    return Case(y.square().sum(), leaves=[x, w])


@graph
def views_of_views() -> Case:
    x, w = leaf(4, 6), leaf(2)
    y = x.clone()
    inner = y.view(2, 2, 6)[1].t()[2:4, 0]
    inner.copy_(w)
    return Case((y.exp() + inner.sum()).sum(), leaves=[x, w])


@graph
def as_strided() -> Case:
    x = leaf(8)
    return Case(x.as_strided((3, 4), (2, 1)).square().sum(), leaves=[x])


@graph
def as_strided_after_a_write() -> Case:
    x = leaf(8)
    y = x.clone()
    window = y.as_strided((3, 4), (2, 1))
    y.mul_(3)
    return Case(window.square().sum(), leaves=[x])


@graph
def written_in_place() -> Case:
    x = leaf(3)
    y = x * 2
    y.add_(1).mul_(2)
    y.relu_()
    return Case(y.sum(), leaves=[x])


@graph
def split_and_cat() -> Case:
    x = leaf(6, 2)
    a, b, c = x.split([1, 2, 3])
    return Case(torch.cat([c, a.exp(), b * 2]).square().sum(), leaves=[x])


@graph
def unbind_and_stack() -> Case:
    x = leaf(4, 3)
    return Case(torch.stack(x.unbind()[::-1], 1).square().sum(), leaves=[x])


@graph
def expand() -> Case:
    x = leaf(1, 3)
    return Case((x.expand(4, 3) * torch.randn(4, 3)).sum(), leaves=[x])


@graph
def broadcast() -> Case:
    x, y, z = leaf(4, 1), leaf(3), leaf()
    return Case((x * y + z).exp().sum(), leaves=[x, y, z])


@graph
def casts() -> Case:
    x, y = leaf(3), leaf(3, dtype=torch.float64)
    return Case((x.double() * y + x.half().float()).sum(), leaves=[x, y])


@graph
def mixed_dtypes() -> Case:
    x, y = leaf(3), leaf(3, dtype=torch.float64)
    return Case((x * y + x).sum(), leaves=[x, y])


@graph
def root_gradient_of_another_dtype_and_shape() -> Case:
    x = leaf(2, 3)
    return Case(x.sin(), torch.ones(2, 3, dtype=torch.float64), leaves=[x])


@graph
def zero_dimensions() -> Case:
    x = leaf()
    return Case(x * x.exp(), leaves=[x])


@graph
def empty_tensors() -> Case:
    x = leaf(0, 3)
    return Case((x.sin() @ torch.ones(3, 2)).sum(), leaves=[x])


# Ops


@graph
def integer_side_outputs() -> Case:
    x = leaf(4, 5)
    values, indices = x.topk(2)
    largest, where = x.max(0)
    return Case((values * indices).sum() + (largest * where).sum() + x.sort(1)[0][:, 0].sum(), leaves=[x])


@graph
def index_put() -> Case:
    x, w = leaf(5, 2), leaf(3, 2)
    y = x.index_put((torch.tensor([0, 2, 2]),), w, accumulate=True)
    return Case((y * y[torch.tensor([1, 1, 4, 0, 0])]).sum(), leaves=[x, w])


@graph
def gather_and_scatter() -> Case:
    x, w = leaf(3, 4), leaf(3, 2)
    index = torch.tensor([[0, 1], [3, 3], [2, 0]])
    return Case((x.gather(1, index) * x.scatter_add(1, index, w).gather(1, index)).sum(), leaves=[x, w])


@graph
def where_with_nan() -> Case:
    x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    return Case(torch.where(x > 0, x.sqrt(), torch.zeros(3)).sum(), leaves=[x])


@graph
def cumulative() -> Case:
    x = leaf(4, 3)
    return Case((x.cumsum(0) * x.cumprod(1) + x.logcumsumexp(0)).sum(), leaves=[x])


@graph
def fft() -> Case:
    x = leaf(8)
    return Case(torch.fft.irfft(torch.fft.rfft(x) * 2j).square().sum() + torch.fft.fft(x).abs().sum(), leaves=[x])


@graph
def norms() -> Case:
    x = leaf(4, 3)
    return Case(x.norm() + x.norm(dim=1).sum() + x.logsumexp(0).sum() + x.std() + F.normalize(x).sum(), leaves=[x])


@graph
def linear_algebra() -> Case:
    x = leaf(3, 3)
    a = x @ x.t() + torch.eye(3)
    u, s, vh = torch.linalg.svd(a)
    return Case(torch.linalg.inv(a).sum() + (u[:, 0] * vh[0]).abs().sum() + s.sum() + a.logdet(), leaves=[x])


@graph
def losses() -> Case:
    x = leaf(4, 3)
    target = torch.tensor([0, 2, 1, 1])
    out = F.cross_entropy(x, target) + F.nll_loss(x.log_softmax(1), target) + F.huber_loss(x, torch.zeros(4, 3))
    return Case(out + F.binary_cross_entropy_with_logits(x, torch.ones(4, 3)), leaves=[x])


@graph
def dropout() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Dropout(0.2))
    return of_model(model, model(torch.randn(3, 6)).sum())


@graph
def autocast() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    x = torch.randn(3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x).float().square().sum() + model(x * 2).float().sum()
    return of_model(model, out)


@graph
def jagged() -> Case:
    x, w = leaf(2, 3), leaf(4, 3)
    nested = torch.nested.as_nested_tensor([x, w], layout=torch.jagged)
    return Case((nested * 2).sin().values().sum(), leaves=[x, w])


# Functions of one's own


class Scaled(Function):
    """Arguments that are no tensors, and an input that gets no gradient."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: torch.Tensor, label: str, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor + y.detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, g * ctx.factor + 0 * x, None, None


class Pair(Function):
    """Two outputs, and gradients that may be None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Any, b: Any) -> Any:
        return a * 2 if b is None else b * 3 if a is None else a + b


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.saved_tensors[0].exp()


class SetUp(Function):
    """Forward and its context apart; vmap works, and so does a second backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y, g * x


class Silent(Function):
    """Gives no gradient at all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return None


class OutOfNothing(Function):
    """Makes a gradient even if none came."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return torch.full((3,), 7.0) if g is None else g


class Nested(Function):
    """A backward inside of the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(x.sin(), x, g)


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * 2


@graph
def function_with_other_arguments() -> Case:
    x, y = leaf(3), leaf(3)
    return Case(Scaled.apply(2.5, x.exp(), "label", y * 2).sum(), leaves=[x, y])


@graph
def function_with_half_a_gradient() -> Case:
    x = leaf(3)
    first, _ = Pair.apply(x * 2)
    _, second = Pair.apply(x)
    both = Pair.apply(x.exp())
    return Case((first + second + both[0] * both[1]).sum(), leaves=[x])


@graph
def function_once_differentiable() -> Case:
    x = leaf(3)
    return Case(Once.apply(x.sin()).sum(), leaves=[x])


@graph
def function_with_setup_context() -> Case:
    x, y = leaf(3), leaf(3)
    return Case(SetUp.apply(x.sin(), y).sum(), leaves=[x, y], create_graph=True, inputs=[x, y], grad=True)


@graph
def function_that_is_silent() -> Case:
    x, y = leaf(3), leaf(3)
    return Case((Silent.apply(x.sin().exp()) + y).sum(), leaves=[x, y])


@graph
def function_out_of_nothing() -> Case:
    x = leaf(3)
    return Case(Silent.apply(OutOfNothing.apply(x.sin())).sum(), leaves=[x])


@graph
def function_with_zeros_for_nothing() -> Case:
    x, y = leaf(3), leaf(3)
    return Case(Silent.apply(SetUp.apply(x.sin(), y)).sum(), leaves=[x, y])


@graph
def function_with_a_backward_inside() -> Case:
    x = leaf(3)
    return Case((Nested.apply(x.exp()) * x).sum(), leaves=[x])


@graph
def function_in_place() -> Case:
    x = leaf(4)
    y = x.clone()
    InPlace.apply(y[1:3])
    return Case(y.square().sum(), leaves=[x])


@graph
def function_as_root() -> Case:
    x = leaf(3)
    return Case(SetUp.apply(x, x), torch.ones(3), leaves=[x])


# Hooks


@graph
def tensor_hooks() -> Case:
    x = leaf(3)
    log: list[Any] = []
    y = x.sin()
    y.register_hook(lambda g: log.append(("y", g.tolist())))
    y.register_hook(lambda g: g * 2)
    y.register_hook(lambda g: log.append(("y again", g.tolist())))
    x.register_hook(lambda g: g + 1)
    return Case(y.exp().sum() + y.sum(), leaves=[x], log=log)


@graph
def hooks_of_tensors_that_are_gone() -> Case:
    x = leaf(3)
    log: list[Any] = []

    def inner() -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda g: (log.append("ran"), g * 3)[1])
        return y.exp()

    return Case(inner().sum(), leaves=[x], log=log)


@graph
def retained_gradients() -> Case:
    x = leaf(3)
    y = x.sin()
    y.retain_grad()
    z = y.exp()
    z.register_hook(lambda g: g * 2)
    z.retain_grad()
    return Case((z + y).sum(), leaves=[x, y, z])


@graph
def retained_gradient_that_never_comes() -> Case:
    x = leaf(3)
    y = x.sin()
    y.retain_grad()
    return Case(Silent.apply(y).sum(), leaves=[x, y])


@graph
def node_hooks() -> Case:
    x, w = leaf(3), leaf(3)
    log: list[Any] = []
    y = x * w
    node: Any = y.grad_fn
    node.register_prehook(lambda g: (log.append("pre"), (g[0] * 2,))[1])
    node.register_hook(lambda i, o: (log.append(("post", len(i), o[0].tolist())), (i[0] + 1, i[1]))[1])
    accumulate: Any = node.next_functions[0][0]
    accumulate.register_hook(lambda i, o: log.append("accumulated"))
    accumulate.register_prehook(lambda g: (log.append("before"), (g[0] * 5,))[1])
    case = Case(y.sin().sum(), leaves=[x, w], log=log)
    case.leaves.append(y)  # keeps its node alive
    y.retain_grad()
    return case


@graph
def node_hooks_that_get_nothing() -> Case:
    x = leaf(3)
    log: list[Any] = []
    y = OutOfNothing.apply(x.sin())
    y.grad_fn.register_prehook(lambda g: log.append(g))
    y.grad_fn.register_hook(lambda i, o: log.append((i[0].tolist(), o)))
    return Case(Silent.apply(y).sum(), leaves=[x], log=log)


@graph
def post_accumulate_hooks() -> Case:
    model = nn.Linear(3, 2)
    log: list[Any] = []
    for name, parameter in model.named_parameters():

        def hook(parameter: Any, name: str = name) -> None:
            log.append((name, parameter.grad.sum().item()))
            parameter.grad.mul_(2)

        parameter.register_post_accumulate_grad_hook(hook)
    x = torch.randn(4, 3)
    return of_model(model, (model(x) + model(x * 2)).sum(), log=log)


@graph
def module_backward_hooks() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    log: list[Any] = []
    model[1].register_full_backward_hook(lambda m, i, o: (log.append(("hook", i[0].sum().item())), (i[0] * 2,))[1])
    model[2].register_full_backward_pre_hook(lambda m, o: (log.append(("pre", o[0].sum().item())), (o[0] * 3,))[1])
    return of_model(model, model(leaf(5, 3)).sum(), log=log)


@graph
def multi_grad_hook() -> Case:
    x, y = leaf(3), leaf(3)
    log: list[Any] = []
    a, b = x.sin(), y.exp()
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda g: log.append([t.tolist() for t in g]), mode="any")
    a.register_hook(lambda g: log.append("a"))
    return Case((a * b).sum(), leaves=[x, y], log=log)


@graph
def hook_that_queues_a_callback() -> Case:
    x = leaf(3)
    log: list[Any] = []
    y = x.sin()
    queue: Any = torch.autograd.Variable._execution_engine.queue_callback  # as DDP does
    y.register_hook(lambda g: queue(lambda: log.append("at the end")))
    return Case(y.sum(), leaves=[x], log=log)


@graph
def grad_inside_of_a_hook() -> Case:
    x = leaf(3)
    log: list[Any] = []

    def hook(g: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            t = g.detach().requires_grad_()
            (inner,) = torch.autograd.grad(t.pow(3).sum(), t)
        log.append(inner.tolist())
        return inner

    y = x.sin()
    y.register_hook(hook)
    return Case((y * y).sum(), leaves=[x], log=log)


@graph
def saved_tensor_hooks() -> Case:
    x = leaf(3)
    log: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: (log.append("unpacked"), t)[1]):
        y = (x.sin() * x.exp()).tanh()
    return Case(y.sum(), leaves=[x], log=log)


# Checkpoints, compilers, transforms


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 4))


@graph
def reentrant_checkpoint() -> Case:
    model = nn.ModuleList([block(), block()])
    x = leaf(3, 4)
    y = checkpoint(model[1], checkpoint(model[0], x, use_reentrant=True), use_reentrant=True)
    return of_model(model, y.square().sum(), x)


@graph
def checkpoint_without_reentering() -> Case:
    model = nn.ModuleList([block(), block()])
    x = leaf(3, 4)
    y = checkpoint(model[1], checkpoint(model[0], x, use_reentrant=False), use_reentrant=False)
    return of_model(model, y.square().sum(), x)


@graph
def compiled() -> Case:
    torch._dynamo.reset()
    model = block()[:2]
    function: Any = torch.compile(model, backend="aot_eager")
    x = leaf(3, 4)
    return of_model(model, (function(x) * x).sum(), x)


@graph
def through_func_grad() -> Case:
    x = leaf(3)
    y = torch.func.grad(lambda t: t.sin().pow(3).sum())(x)
    return Case((y * x).sum(), leaves=[x])


@graph
def through_vmap() -> Case:
    x, w = leaf(5, 3), leaf(3, 2)
    y = torch.func.vmap(lambda row: (row @ w).tanh())(x)
    return Case(y.square().sum(), leaves=[x, w])


@graph
def through_jvp() -> Case:
    x = leaf(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, tangent = torch.func.jvp(lambda t: t.sin() * t, (x,), (torch.ones(3),))
    return Case(tangent.sum(), leaves=[x])


# Gradients of gradients, selections


@graph
def backward_of_backward() -> Case:
    x, w = leaf(3), leaf(3)
    return Case((x * w).sin().pow(3).sum(), leaves=[x, w], create_graph=True)


@graph
def backward_of_sums_of_gradients() -> Case:
    x, w = leaf(3), leaf(3)
    y = x.sin() * w
    return Case((y * y.exp() * x).sum(), leaves=[x, w], create_graph=True)


@graph
def grad_of_a_convolution_twice() -> Case:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Softplus(), nn.Conv2d(3, 1, 3))
    x = leaf(2, 2, 6, 6)
    return Case(model(x).sum(), grad=True, inputs=[x, *model.parameters()], create_graph=True, leaves=[])


@graph
def second_order() -> Case:
    x, w = leaf(4, 3), leaf(3)
    (g,) = torch.autograd.grad((x @ w).pow(3).sum(), w, create_graph=True)
    return Case(g.square().sum(), leaves=[x, w])


@graph
def gradient_penalty() -> Case:
    model = nn.Sequential(nn.Linear(3, 6), nn.Softplus(), nn.Linear(6, 1))
    x = leaf(5, 3)
    out = model(x)
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return of_model(model, out.mean() + (g.norm(dim=1) - 1).square().mean(), x)


@graph
def grad_of_some_inputs() -> Case:
    x, w, b = leaf(4, 3), leaf(3, 2), leaf(2)
    hidden = x @ w
    return Case((hidden + b).tanh().sum(), grad=True, inputs=[w, hidden], leaves=[x, w, b])


@graph
def grad_of_an_input_behind_another() -> Case:
    x = leaf(3)
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g + 1)
    return Case(y.exp().sum(), grad=True, inputs=[x, y], leaves=[x])


@graph
def grad_of_a_hooked_intermediate() -> Case:
    x = leaf(3)
    log: list[Any] = []
    y = x.sin()
    y.register_hook(lambda g: (log.append("ran"), g * 2)[1])
    y.retain_grad()
    return Case(y.exp().sum(), grad=True, inputs=[y], leaves=[x, y], log=log)


@graph
def grad_of_the_same_input_twice() -> Case:
    x = leaf(3)
    return Case(x.sin().sum(), grad=True, inputs=[x, x])


@graph
def grad_of_an_unused_input() -> Case:
    x, w, u = leaf(3), leaf(3), leaf(3)
    return Case((x * w).sum(), grad=True, inputs=[u, w], allow_unused=True, leaves=[x])


@graph
def grad_of_nothing_that_is_used() -> Case:
    x, u = leaf(3), leaf(3)
    return Case([x.sum(), x.sin().sum()], grad=True, inputs=[u], allow_unused=True)


@graph
def grad_of_several_outputs() -> Case:
    x, w = leaf(3), leaf(3)
    outputs = [(x * w).sum(), w.exp(), x.sin()]
    return Case(outputs, [None, torch.ones(3), torch.ones(3)], grad=True, inputs=[w], leaves=[x])


@graph
def grad_of_a_part_of_many_outputs() -> Case:
    x = leaf(6, 2)
    a, b, c = x.sin().split(2)
    return Case((a * b + c).sum(), grad=True, inputs=[b, x], leaves=[x])


@graph
def grad_of_an_edge() -> Case:
    x, w = leaf(3), leaf(3)
    y = x * w
    edge = torch.autograd.graph.get_gradient_edge
    return Case([edge(y.sin())], [torch.ones(3)], grad=True, inputs=[edge(y), edge(x)])


@graph
def backward_into_some_inputs() -> Case:
    x, w, b = leaf(4, 3), leaf(3, 2), leaf(2)
    return Case((x @ w + b).tanh().sum(), inputs=[w], leaves=[x, w, b])


@graph
def backward_into_an_intermediate() -> Case:
    x, w = leaf(3), leaf(3)
    y = x.sin() * w
    return Case(y.exp().sum(), inputs=[y, w], leaves=[x, w, y])


@graph
def backward_into_parameters_of_a_model() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    case = of_model(model, model(torch.randn(5, 3)).sum())
    case.inputs = [model[2].weight, model[4].bias]
    return case


@graph
def checkpoint_and_some_inputs() -> Case:
    model = block()
    x = leaf(3, 4)
    y = checkpoint(model, x, use_reentrant=False)
    return Case(y.sum(), grad=True, inputs=[x, model[0].weight], leaves=list(model.parameters()))
