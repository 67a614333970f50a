"""Operators with unusual arguments, outputs or dtypes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.specimen import Call, specimen


@specimen("embedding_bag: four outputs of which people see one")
def embedding_bag() -> Call:
    return nn.EmbeddingBag(6, 3, mode="mean"), (torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3])), {}


@specimen("an embedding whose gradient is sparse (Adam refuses it, SGD does not)")
def sparse_gradient() -> Call:
    return nn.Embedding(6, 3, sparse=True), (torch.tensor([1, 1, 4]),), {}


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft(x) * self.filter
        return torch.fft.irfft(spectrum, n=8), spectrum


@specimen("an FFT layer: complex parameters, values and outputs")
def complex_fft() -> Call:
    return Spectral(), (torch.randn(2, 8),), {}


def attention_scores(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("i,j->ij", bias, bias)


@specimen("einsum: one line that becomes permutes, reshapes and bmm")
def einsum() -> Call:
    q, k, bias = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(3)
    return attention_scores, (q, k, bias), {}


def keep_positive(x: Tensor) -> tuple[Tensor, Tensor]:
    kept = x[x > 0]
    return kept * 2, torch.where(x > 0, x, x.exp() - 1)


@specimen("boolean mask indexing: the output's shape depends on the data", fakes=False)
def boolean_mask() -> Call:
    return keep_positive, (torch.randn(3, 4, requires_grad=True),), {}


class MaskedWrite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        y = self.linear(x)
        y[mask] = 0.0
        y[rows, None] = y[rows, 1:2]
        return y.masked_fill(mask, 1.0)


@specimen("writes through masks and index lists: None stands inside a list of tensors")
def indexed_writes() -> Call:
    mask = torch.tensor([[True, False, False], [False, False, True]])
    return MaskedWrite(), (torch.randn(2, 3), mask, torch.tensor([1])), {}


def scatter_gather(source: Tensor, index: Tensor) -> Tensor:
    pooled = torch.zeros(3, 2).scatter_add(0, index[:, None].expand_as(source), source)
    return pooled.gather(0, index[:, None].expand_as(source)) - source.index_select(0, index)


@specimen("message passing: scatter, gather and index_select over one index")
def scatter_and_gather() -> Call:
    return scatter_gather, (torch.randn(4, 2, requires_grad=True), torch.tensor([0, 2, 2, 1])), {}


def order_statistics(x: Tensor) -> tuple[Tensor, ...]:
    best, where = x.topk(2, dim=1)
    ordered, _ = x.sort(dim=1, descending=True)
    return best, where, ordered.cumsum(1), x.median(1).values, x.max(0).values


@specimen("topk, sort, median: several outputs, some integer, some dropped")
def multi_output_operators() -> Call:
    return order_statistics, (torch.randn(3, 4, requires_grad=True),), {}


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(4)
        self.rms = nn.RMSNorm(4)
        self.group = nn.GroupNorm(2, 4)
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.instance(self.group(self.rms(self.layer(x)).transpose(1, 2)))


@specimen("four kinds of norm: some one operator, some many")
def norms() -> Call:
    return Norms(), (torch.randn(2, 3, 4),), {}


def many_losses(logits: Tensor, target: Tensor) -> Tensor:
    probabilities = logits.softmax(-1)
    soft = F.one_hot(target, 3).float()
    return (
        F.cross_entropy(logits, target, label_smoothing=0.1)
        + F.binary_cross_entropy_with_logits(logits, soft)
        + F.kl_div(probabilities.log(), soft, reduction="batchmean")
        + F.smooth_l1_loss(probabilities, soft)
    )


@specimen("losses of several kinds added up")
def losses() -> Call:
    return many_losses, (torch.randn(2, 3, requires_grad=True), torch.tensor([0, 2])), {}


def linear_algebra(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    spd = a @ a.mT + 3 * torch.eye(3)
    return torch.linalg.cholesky(spd), torch.linalg.solve(spd, b), torch.linalg.eigvalsh(spd), spd.logdet()


@specimen("linear algebra: LAPACK operators with outputs only backward reads")
def linalg() -> Call:
    return linear_algebra, (torch.randn(3, 3, requires_grad=True), torch.randn(3, 2)), {}


def update_all(parameters: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch._foreach_add(torch._foreach_mul(parameters, 0.9), gradients))


@specimen("foreach operators: lists of tensors in, lists of tensors out")
def foreach_lists() -> Call:
    parameters = [torch.randn(2, requires_grad=True), torch.randn(3, requires_grad=True)]
    return update_all, (parameters, [torch.randn(2), torch.randn(3)]), {}


class Interpolates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Linear(4, 6)

    def forward(self, image: Tensor) -> Tensor:
        theta = self.locate(image.mean(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(image[:, None].shape), align_corners=False)
        return F.grid_sample(image[:, None], grid, align_corners=False)


@specimen("a spatial transformer: sampling positions are computed by the model")
def grid_sampling() -> Call:
    return Interpolates(), (torch.randn(2, 4, 4),), {}
