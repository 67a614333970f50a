"""Elementwise arithmetic of real calls, against numbers worked out by hand on small shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import support
import torch
from operations.costing import (
    EIGHT,
    LOGITS,
    MASK,
    ORDERED,
    SQUARE,
    TARGETS,
    Run,
    X,
    Y,
    Z,
    backward,
    cost_of,
    declare_operators,
    whole,
)
from torch import Tensor, nn
from torch.nn import functional as F

from torchatlas.graph.arguments import Call, TensorRef
from torchatlas.graph.columns import Operation, Parameter
from torchatlas.operations.formulas import FORMULAS
from torchatlas.operations.work import OpCall, Operand, Work

aten = torch.ops.aten
C, D = torch.complex(X, Y), torch.complex(Y, Z)
GRID, PARTS = torch.rand(1, 2, 2, 2), torch.tensor([3, 5])
ZERO, THREE, SHORT = torch.zeros(1), torch.rand(3), torch.rand(4, 3, 2)
BATCH_NORM, WEIGHT_NORM_BACK = aten._native_batch_norm_legit_no_training, aten._weight_norm_interface_backward
MASKED_PUT = aten._unsafe_masked_index_put_accumulate
AFFINE_BACK, SPARSE_BACK = aten.affine_grid_generator_backward, aten.embedding_sparse_backward
FAKE = aten._fake_quantize_learnable_per_tensor_affine
ROUNDED_BACK = aten.fake_quantize_per_tensor_affine_cachemask_backward
FAKE_BACK = aten._fake_quantize_learnable_per_tensor_affine_backward

TABLE = torch.randn(5, 4)


def ctc(scores: Tensor) -> Tensor:
    return F.ctc_loss(scores, torch.ones(2, 3).long(), (5, 5), (3, 3))


def sampled(picture: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(picture, grid, align_corners=False)


def weighted_bag(weights: Tensor) -> Tensor:
    return F.embedding_bag(TARGETS[None], TABLE, mode="sum", per_sample_weights=weights)


# operation, its call, elementwise FLOPs
POINTWISE: list[tuple[str, Run, int]] = [
    ("add", lambda: X + Y, 6),
    ("add", lambda: torch.add(X, Y, alpha=2), 12),
    ("sub", lambda: X - 1, 6),
    ("rsub", lambda: torch.rsub(X, Y, alpha=3), 12),
    ("add", lambda: X + torch.rand(4, 1, 3), 24),  # by broadcasting, the result is larger than what goes in
    ("mul", lambda: X * 2, 6),
    ("div", lambda: X / Y, 6),
    ("div", lambda: torch.div(X, Y, rounding_mode="floor"), 12),
    ("addcmul", lambda: torch.addcmul(X, Y, Z), 12),
    ("addcmul", lambda: torch.addcmul(X, Y, Z, value=0.5), 18),
    ("addcdiv", lambda: torch.addcdiv(X, Y, Z, value=0.5), 18),
    ("lerp", lambda: torch.lerp(X, Y, 0.3), 18),
    ("clamp", lambda: X.clamp(0, 1), 12),
    ("clamp", lambda: X.clamp(max=1), 6),
    ("clamp_min", lambda: torch.clamp_min(X, 0), 6),
    ("where", lambda: torch.where(MASK, X, Y), 6),
    ("masked_fill", lambda: X.masked_fill(MASK, 0.0), 6),
    ("gt", lambda: X > Y, 6),
    ("bitwise_and", lambda: MASK & MASK, 6),
    ("add", lambda: TARGETS + 1, 2),  # whole numbers count as well
    ("exp", lambda: X.exp(), 6),
    ("rsqrt", lambda: X.rsqrt(), 6),
    ("pow", lambda: X**3, 6),
    ("round", lambda: X.round(decimals=2), 18),
    ("sigmoid", lambda: X.sigmoid(), 24),  # negate, exp, add, reciprocal
    ("logit", lambda: X.logit(eps=0.1), 30),  # two bounds, subtract, divide, logarithm
    ("hypot", lambda: torch.hypot(X, Y), 24),
    ("nan_to_num", lambda: X.nan_to_num(), 36),
    ("tril", lambda: X.tril(), 6),
    ("linalg_cross", lambda: torch.linalg.cross(X, Y), 18),
    ("mul", lambda: C * D, 36),  # (a + bi)(c + di): four products, two sums
    ("mul", lambda: C * Y, 12),
    ("mul", lambda: C * 2j, 36),
    ("add", lambda: C + D, 12),
    ("div", lambda: C / D, 66),
    ("div", lambda: C / 2, 12),
    ("abs", lambda: C.abs(), 24),  # two squares, a sum, a root
    ("exp", lambda: C.exp(), 30),
    ("_conj_physical", lambda: torch.ops.aten._conj_physical(C), 6),
    ("complex", lambda: torch.complex(X, Y), 0),
    ("gradient", whole(lambda: torch.gradient(X, dim=1)), 12),
    ("_fake_quantize_learnable_per_tensor_affine", lambda: FAKE(X, torch.ones(1), torch.zeros(1), 0, 9), 42),
    ("_fake_quantize_learnable_per_tensor_affine_backward", lambda: FAKE_BACK(X, X, torch.ones(1), ZERO, 0, 9), 108),
    ("fake_quantize_per_tensor_affine_cachemask_backward", whole(lambda: ROUNDED_BACK(X, MASK)), 6),
    ("_choose_qparams_per_tensor", whole(lambda: torch._choose_qparams_per_tensor(X)), 12),
    ("fake_quantize_per_tensor_affine_cachemask", lambda: torch.fake_quantize_per_tensor_affine(X, 0.1, 0, 0, 9), 60),
]
ACTIVATIONS: list[tuple[str, Run, int]] = [
    ("relu", lambda: F.relu(X), 6),
    ("tanh", lambda: X.tanh(), 6),
    ("leaky_relu", lambda: F.leaky_relu(X), 18),
    ("gelu", lambda: F.gelu(X), 30),
    ("gelu", lambda: F.gelu(X, approximate="tanh"), 54),
    ("silu", lambda: F.silu(X), 30),
    ("hardswish", lambda: F.hardswish(X), 30),
    ("hardtanh", lambda: F.hardtanh(X), 12),
    ("elu", lambda: F.elu(X), 30),
    ("elu", lambda: aten.elu(X, 1.6, 1.05), 36),
    ("softplus", lambda: F.softplus(X), 36),
    ("mish", lambda: F.mish(X), 24),
    ("glu", lambda: F.glu(torch.randn(2, 4)), 20),  # four results
    ("_prelu_kernel", lambda: F.prelu(X, torch.rand(1)), 18),
    ("_softmax", lambda: X.softmax(-1), 30),
    ("_log_softmax", lambda: X.log_softmax(-1), 32),  # and one logarithm per row
    ("_log_softmax", lambda: X.log_softmax(0), 33),
    ("threshold_backward", backward(F.relu, 2, 3), 12),
    ("tanh_backward", backward(torch.tanh, 2, 3), 18),
    ("sigmoid_backward", backward(torch.sigmoid, 2, 3), 18),
    ("gelu_backward", backward(F.gelu, 2, 3), 66),
    ("gelu_backward", backward(lambda x: F.gelu(x, approximate="tanh"), 2, 3), 108),
    ("silu_backward", backward(F.silu, 2, 3), 54),
    ("glu_backward", backward(F.glu, 2, 4), 32),
    ("_softmax_backward_data", backward(lambda x: x.softmax(-1), 2, 3), 24),
    ("_log_softmax_backward_data", backward(lambda x: x.log_softmax(-1), 2, 3), 24),
    ("_safe_softmax", lambda: aten._safe_softmax(X, -1), 48),
    ("_masked_softmax", lambda: aten._masked_softmax(X, MASK, 1, 2), 36),
    ("_masked_softmax_backward", lambda: aten._masked_softmax_backward(X, Y, MASK, 1), 30),
    ("selu", whole(lambda: F.selu(X)), 36),
    ("rrelu", whole(lambda: F.rrelu(X, training=True)), 24),
]
NORMS: list[tuple[str, Run, int]] = [
    # per element: sum; subtract, square, sum; multiply; weight, bias. Per row: two divisions, epsilon, root
    ("native_layer_norm", lambda: F.layer_norm(X, (3,), torch.ones(3), torch.ones(3)), 6 * 7 + 2 * 4),
    ("native_layer_norm", lambda: F.layer_norm(X, (2, 3)), 6 * 5 + 4),
    ("native_layer_norm_backward", backward(nn.LayerNorm(3), 2, 3), 6 * 13 + 2 * 2),
    ("native_layer_norm_backward", backward(nn.LayerNorm(3, elementwise_affine=False), 2, 3), 6 * 9 + 2 * 2),
    ("native_group_norm", lambda: F.group_norm(torch.randn(2, 4, 3), 2, torch.ones(4)), 24 * 6 + 4 * 4),
    ("native_group_norm_backward", backward(nn.GroupNorm(2, 4), 2, 4, 3), 24 * 13 + 4 * 2),
    # running averages: per channel two of three operations, and one to make the variance unbiased
    ("native_batch_norm", lambda: nn.BatchNorm1d(3)(torch.randn(4, 3, 2)), 24 * 7 + 3 * (4 + 7)),
    ("native_batch_norm", lambda: nn.BatchNorm1d(3).eval()(torch.randn(4, 3, 2)), 24 * 4 + 3 * 2),
    ("native_batch_norm_backward", backward(nn.BatchNorm1d(3), 4, 3, 2), 24 * 9 + 3 * 3),
    ("native_batch_norm_backward", backward(nn.BatchNorm1d(3).eval(), 4, 3, 2), 24 * 6 + 3),
    ("_weight_norm_interface", lambda: aten._weight_norm_interface(X, torch.ones(2, 1)), 6 * 3 + 2 * 2),
    ("_weight_norm_interface_backward", lambda: WEIGHT_NORM_BACK(X, Y, torch.ones(2, 1), torch.ones(2, 1), 0), 38),
    ("_native_batch_norm_legit_no_training", lambda: BATCH_NORM(SHORT, None, None, THREE, THREE, 0, 1), 24 * 2 + 6),
    ("rms_norm", whole(lambda: F.rms_norm(X, (3,), torch.ones(3))), 6 * 4 + 2 * 3),
    ("instance_norm", whole(lambda: F.instance_norm(SHORT)), 24 * 5 + 12 * 4),
    ("group_norm", whole(lambda: F.group_norm(torch.randn(2, 4, 3), 2, torch.ones(4))), 24 * 6 + 4 * 4),
    ("norm_except_dim", whole(lambda: torch.norm_except_dim(X)), 6 * 2 + 2),
    ("renorm", lambda: X.renorm(2, 0, 1.0), 6 * 3 + 2 * 4),
    ("embedding_renorm_", lambda: F.embedding(TARGETS, torch.randn(5, 4), max_norm=1.0), 8 * 3 + 2 * 4),
]
REDUCTIONS: list[tuple[str, Run, int]] = [
    ("sum", lambda: X.sum(), 6),
    ("sum", lambda: C.sum(), 12),
    ("mean", lambda: X.mean(), 7),
    ("mean", lambda: X.mean(1), 8),
    ("max", lambda: X.max(1), 6),
    ("maximum", lambda: torch.max(X, Y.unsqueeze(1)), 12),  # of two tensors: pointwise
    ("argmax", lambda: X.argmax(), 6),
    ("aminmax", lambda: X.aminmax(), 12),
    ("any", lambda: MASK.any(), 6),
    ("var", lambda: X.var(1), 6 * 4 + 2 * 2),
    ("std", lambda: X.std(), 6 * 4 + 3),
    ("logsumexp", lambda: X.logsumexp(1), 6 * 4 + 2 * 2),
    ("linalg_vector_norm", lambda: X.norm(), 6 * 2 + 1),
    ("linalg_vector_norm", lambda: torch.linalg.vector_norm(X, 1), 6 * 2),
    ("linalg_vector_norm", lambda: torch.linalg.vector_norm(X, 3), 6 * 3 + 1),
    ("linalg_vector_norm", lambda: torch.linalg.vector_norm(C, 2), 6 * 4 + 1),
    ("cumsum", lambda: X.cumsum(0), 6),
    ("_cdist_forward", lambda: torch.cdist(X, torch.rand(4, 3), p=1.0), 8 * 9),
    ("_pdist_forward", lambda: F.pdist(torch.rand(4, 3)), 6 * (9 + 1)),
    ("histc", lambda: EIGHT.histc(4, -1, 1), 32),
    ("trace", lambda: X.trace(), 2),
    ("sort", lambda: EIGHT.sort(), 8 * 3),
    ("sort", lambda: torch.randn(4, 8).sort(0), 32 * 2),
    ("topk", lambda: EIGHT.topk(2), 8 + 2 * 1),
    ("_unique2", lambda: EIGHT.unique(), 8 * (3 + 1)),
    ("searchsorted", lambda: torch.searchsorted(ORDERED, torch.rand(5)), 5 * 3),
    ("bucketize", lambda: torch.bucketize(X, ORDERED), 6 * 3),
    ("nonzero", lambda: X.nonzero(), 6),
    ("isin", lambda: torch.isin(TARGETS, torch.arange(3)), 6),
    ("prod", lambda: X.prod(), 6),
    ("prod", lambda: C.prod(), 36),
    ("logcumsumexp", lambda: X.logcumsumexp(0), 24),
    ("trapezoid", whole(lambda: torch.trapezoid(X)), 24),
    ("max", whole(lambda: torch.max(X, Y.unsqueeze(1))), 12),
    ("linalg_norm", whole(lambda: torch.linalg.norm(X)), 6 * 2 + 1),
    ("linalg_matrix_norm", whole(lambda: torch.linalg.matrix_norm(X, 1)), 6 * 2 + 1),
    ("cumprod_backward", whole(lambda: aten.cumprod_backward(X, Y, 0, X)), 18),
    ("cummaxmin_backward", whole(lambda: aten.cummaxmin_backward(X, Y, torch.zeros(2, 3).long(), 0)), 6),
    (
        "_segment_reduce_backward",
        backward(lambda x: torch.segment_reduce(x, "sum", lengths=PARTS), 8),
        16,
    ),
    ("_histogramdd_bin_edges", lambda: torch.histogramdd(torch.rand(4, 2), [3, 3]), 16),
    ("linalg__powsum", lambda: aten.linalg__powsum(X, 3), 18),
    ("dist", lambda: torch.dist(X, Y), 6 * 3 + 1),
    ("_cdist_backward", backward(lambda x: torch.cdist(x, torch.rand(4, 3)), 2, 3), 8 * 3 * 4),
    ("pairwise_distance", whole(lambda: F.pairwise_distance(X, Y)), 6 * 4 + 2),
    ("cosine_similarity", whole(lambda: F.cosine_similarity(X, Y)), 6 * 6 + 2 * 6),
    ("histogram", lambda: EIGHT.histogram(4), 8 * 4),
    ("histogram", lambda: EIGHT.histogram(ORDERED), 8 * 4),  # three steps of a bisection, and add
    ("segment_reduce", lambda: torch.segment_reduce(EIGHT, "mean", lengths=PARTS), 8 + 2),
    ("msort", whole(lambda: torch.randn(4, 8).msort()), 32 * 2),
    ("quantile", whole(lambda: EIGHT.quantile(0.5)), 8 * 3 + 3),
    ("unique_dim", lambda: torch.randn(4, 8).unique(dim=0), 32 * (2 + 1)),
    ("unique_consecutive", lambda: EIGHT.unique_consecutive(), 8),
]
POOLS: list[tuple[str, Run, int]] = [
    ("max_pool2d_with_indices", lambda: F.max_pool2d(SQUARE, 2, return_indices=True), 4 * 4),
    ("avg_pool2d", lambda: F.avg_pool2d(SQUARE, 2), 4 * 5),
    ("avg_pool2d", lambda: F.avg_pool2d(SQUARE, 3, stride=1, padding=1), 16 * 10),
    ("_adaptive_avg_pool2d", lambda: F.adaptive_avg_pool2d(torch.randn(1, 5, 5), 3), 7 * 7 + 9),  # sides 2, 3, 2
    ("_adaptive_avg_pool2d_backward", backward(lambda x: F.adaptive_avg_pool2d(x, 3), 1, 5, 5), 7 * 7 + 9),
    ("adaptive_max_pool2d", lambda: F.adaptive_max_pool2d(torch.randn(1, 5, 5), 3), 7 * 7),
    ("max_pool2d_with_indices_backward", backward(lambda x: F.max_pool2d(x, 2), 1, 1, 4, 4), 4),
    ("avg_pool2d_backward", backward(lambda x: F.avg_pool2d(x, 2), 1, 1, 4, 4), 4 * 5),
    ("upsample_nearest2d", lambda: F.interpolate(SQUARE, scale_factor=2), 0),
    ("upsample_nearest2d_backward", backward(lambda x: F.interpolate(x, scale_factor=2), 1, 1, 4, 4), 64),
    ("upsample_bilinear2d", lambda: F.interpolate(SQUARE, scale_factor=2, mode="bilinear"), 64 * 4 * 2),
    ("upsample_bicubic2d", lambda: F.interpolate(SQUARE, scale_factor=2, mode="bicubic"), 64 * 16 * 2),
    # 4 -> 2 with 2 * 2 + 1 taps a side: first 4 x 2, then 2 x 2 results
    ("_upsample_bilinear2d_aa", lambda: F.interpolate(SQUARE, 2, mode="bilinear", antialias=True), 2 * 5 * (8 + 4)),
    # per place two coordinates scaled (4) and split into neighbours (3), four weights; then four taps
    ("grid_sampler_2d", lambda: sampled(SQUARE, GRID), 4 * 18 + 4 * 8),
    ("affine_grid_generator", lambda: F.affine_grid(torch.rand(1, 2, 3), [1, 1, 4, 4], align_corners=False), 16 * 12),
    ("col2im", lambda: F.fold(torch.randn(1, 4, 9), (4, 4), 2), 36),
    # to the picture: four taps; to the grid: four taps for each coordinate
    ("grid_sampler_2d_backward", backward(lambda x: sampled(x, GRID), 1, 1, 4, 4), 72 + 32),
    ("grid_sampler_2d_backward", backward(lambda grid: sampled(SQUARE, grid), 1, 2, 2, 2), 72 + 64),
    ("affine_grid_generator_backward", whole(lambda: AFFINE_BACK(GRID, [1, 1, 2, 2], False)), 4 * 12),
    ("im2col", lambda: F.unfold(SQUARE, 2), 0),
    ("max_unpool2d", lambda: F.max_unpool2d(*F.max_pool2d(SQUARE, 2, return_indices=True), 2), 0),
    ("max_pool2d", whole(lambda: F.max_pool2d(SQUARE, 2)), 4 * 4),
]
LOSSES: list[tuple[str, Run, int]] = [
    ("mse_loss", lambda: F.mse_loss(X, Y), 12 + 6 + 1),
    ("mse_loss", lambda: F.mse_loss(X, Y, reduction="none"), 12),
    ("mse_loss_backward", backward(lambda x: F.mse_loss(x, Y, reduction="sum"), 2, 3), 18),
    ("smooth_l1_loss", lambda: F.smooth_l1_loss(X, Y), 48 + 7),
    ("binary_cross_entropy", lambda: F.binary_cross_entropy(X, X.round(), reduction="sum"), 48 + 6),
    ("binary_cross_entropy_with_logits", lambda: F.binary_cross_entropy_with_logits(X, Y, X), 6 * 9 + 7),
    # per target: a test, a negation, a product; the sum; one division
    ("nll_loss_forward", lambda: F.nll_loss(LOGITS, TARGETS), 2 * 2 + 2 + 1),
    ("nll_loss_forward", lambda: F.nll_loss(LOGITS, TARGETS, torch.rand(3), reduction="none"), 2 * 3),
    ("nll_loss_backward", backward(lambda x: F.nll_loss(x, TARGETS), 2, 3), 2 * 3),
    ("_ctc_loss", lambda: ctc(torch.randn(5, 2, 4)), 5 * 2 * 7 * 13),
    ("_ctc_loss_backward", backward(lambda x: ctc(x), 5, 2, 4), 5 * 2 * 7 * 18 + 40 * 3),
    ("cross_entropy_loss", whole(lambda: F.cross_entropy(LOGITS, TARGETS)), 32 + 7),
    ("cross_entropy_loss", whole(lambda: F.cross_entropy(LOGITS, X)), 32 + 6 * 2 + 3),  # with probabilities
    ("kl_div", whole(lambda: F.kl_div(X, Y, reduction="sum")), 6 * 3 + 6),
    ("poisson_nll_loss", whole(lambda: F.poisson_nll_loss(X, Y)), 6 * 3 + 7),
    ("cosine_embedding_loss", whole(lambda: F.cosine_embedding_loss(X, Y, torch.ones(2))), 6 * 6 + 2 * 11 + 3),
    ("triplet_margin_loss", whole(lambda: F.triplet_margin_loss(X, Y, Z)), 2 * 4 * 6 + 2 * 5 + 3),
    ("multi_margin_loss", lambda: F.multi_margin_loss(X, TARGETS), 6 * 4 + 2 + 3),
    ("multi_margin_loss_backward", backward(lambda x: F.multi_margin_loss(x, TARGETS), 2, 3), 6 * 5),
    ("multilabel_margin_loss_forward", lambda: F.multilabel_margin_loss(X, MASK.long()), 6 * 3 * 4),
]
OTHERS: list[tuple[str, Run, int]] = [
    ("embedding", lambda: F.embedding(TARGETS, torch.randn(5, 4)), 0),
    ("embedding_dense_backward", backward(lambda w: F.embedding(TARGETS, w), 5, 4), 8),
    ("_embedding_bag_forward_only", lambda: F.embedding_bag(TARGETS[None], torch.randn(5, 4), mode="mean"), 8 + 4),
    ("index_add", lambda: X.index_add(0, torch.tensor([1]), Y[:1]), 3),
    ("scatter_add", lambda: X.scatter_add(0, TARGETS[None] // 2, Y), 2),
    ("index_put", lambda: X.index_put((torch.tensor([0]),), Y[:1], accumulate=True), 3),
    ("put", lambda: X.put(TARGETS, THREE[:2], accumulate=True), 2),
    ("index_reduce", lambda: X.index_reduce(0, TARGETS // 2, Y, "mean"), 6 + 6),
    ("scatter_reduce", lambda: X.scatter_reduce(0, TARGETS[None] // 2, Y, "amax"), 2),
    ("masked_scatter", lambda: X.masked_scatter(MASK, Y), 6),
    ("masked_select", lambda: X.masked_select(MASK), 6),
    ("_unsafe_masked_index", lambda: aten._unsafe_masked_index(X, MASK, [None, torch.arange(3)], 0), 6),
    ("_embedding_bag_backward", backward(lambda w: F.embedding_bag(TARGETS[None], w, mode="sum"), 5, 4), 8),
    ("_embedding_bag_per_sample_weights_backward", backward(weighted_bag, 1, 2), 16),
    ("embedding_sparse_backward", whole(lambda: SPARSE_BACK(TABLE[:2], TARGETS, 5, -1, False)), 0),
    ("_coalesce", lambda: torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (4,), check_invariants=False).coalesce(), 12),
    ("_to_sparse", lambda: X.to_sparse(), 6),
    ("logspace", lambda: torch.logspace(0, 1, 6), 18),
    ("hann_window", lambda: torch.hann_window(6), 24),
    ("linalg_vander", whole(lambda: torch.linalg.vander(X)), 18),
    ("_convert_indices_from_coo_to_csr", lambda: aten._convert_indices_from_coo_to_csr(TARGETS, 3), 4),
    ("_unsafe_masked_index_put_accumulate", lambda: MASKED_PUT(X, MASK, [None, torch.arange(3)], Y), 12),
    ("masked_scatter_backward", whole(lambda: aten.masked_scatter_backward(X, MASK, [2, 3])), 6),
    ("repeat_interleave", whole(lambda: X[0].repeat_interleave(torch.tensor([1, 2, 3]))), 3),
    ("bernoulli_", lambda: torch.empty(2, 3).bernoulli_(0.5), 12),
    ("uniform_", lambda: torch.empty(2, 3).uniform_(), 6),
    ("uniform_", lambda: torch.empty(2, 3).uniform_(-1, 1), 18),
    ("randn", lambda: torch.randn(2, 3), 6),
    ("native_dropout", lambda: torch.native_dropout(X, 0.5, True), 24),
    ("native_dropout_backward", lambda: aten.native_dropout_backward(X, MASK, 2.0), 12),
    ("dropout", whole(lambda: F.dropout(X)), 24),
    ("dropout", whole(lambda: F.dropout(X, training=False)), 0),
    ("feature_dropout", whole(lambda: torch.feature_dropout(SHORT, 0.5, True)), 24 * 2 + 12 * 2),
    ("alpha_dropout", whole(lambda: torch.alpha_dropout(X, 0.5, True)), 30),
    ("poisson", lambda: torch.poisson(X), 12),
    ("randperm", lambda: torch.randperm(6), 6),
    ("multinomial", lambda: X.multinomial(2), 30),
    ("multinomial", lambda: torch.rand(2, 4).multinomial(3, replacement=True), 8 * 2 + 6 * (1 + 2)),
    ("arange", lambda: torch.arange(6), 12),
    ("_to_copy", lambda: X.to(torch.int32), 0),
    ("cat", lambda: torch.cat([X, Y]), 0),
]
TABLES = POINTWISE + ACTIVATIONS + NORMS + REDUCTIONS + POOLS + LOSSES + OTHERS


@pytest.mark.filterwarnings("ignore:index_reduce\\(\\) is in beta:UserWarning")
@pytest.mark.parametrize(("operation", "run", "flops"), TABLES, ids=[f"{one[0]}-{one[2]}" for one in TABLES])
def test_flops_are_those_worked_out_by_hand(operation: str, run: Run, flops: int) -> None:
    support.needs(f"aten.{operation}")
    assert cost_of(run, operation)[0] == flops


# -- calls that no kernel here can run ---------------------------------------------------------------------------------


def imagined(operation: str, results: list[Tensor], *args: Any) -> Work:
    """The work of a call that is only written down."""
    namespace, name = operation.split(".")
    schema = getattr(getattr(torch.ops, namespace), name).default._schema.arguments if namespace == "aten" else []
    tensors = [one for one in args if isinstance(one, Tensor)]
    numbers = iter(range(len(tensors)))
    call = Call(tuple(TensorRef(next(numbers)) if isinstance(one, Tensor) else one for one in args))
    parameters = tuple(Parameter(one.name, one.kwarg_only) for one in schema)
    inputs, outputs = ([Operand(one.shape, str(one.dtype)[6:]) for one in side] for side in (tensors, results))
    return FORMULAS[operation](OpCall(Operation(f"{operation}.default", parameters=parameters), call, inputs, outputs))


@pytest.mark.parametrize(
    ("work", "flops"),
    [
        (lambda: imagined("aten._fused_rms_norm", [X], X, [3], THREE, 1e-6), 6 * 4 + 2 * 3),
        # normalise; weigh; sum g n; subtract its share, scale; then the gradient of the weight
        (lambda: imagined("aten._fused_rms_norm_backward", [X], X, X, [3], THREE, THREE, [True, True]), 6 * 9 + 2),
        (lambda: imagined("aten._fused_rms_norm_backward", [X], X, X, [3], THREE, THREE, [False, True]), 6 * 3),
        (lambda: imagined("aten.cudnn_batch_norm", [SHORT], SHORT, THREE, THREE, THREE, THREE, True), 24 * 7 + 3 * 11),
        (lambda: imagined("aten.cudnn_batch_norm_backward", [SHORT], SHORT, SHORT, THREE), 24 * 9 + 3 * 3),
        (lambda: imagined("aten.batch_norm_stats", [THREE, THREE], SHORT, 1e-5), 24 * 4 + 3 * 4),
        (lambda: imagined("aten.batch_norm_elemt", [SHORT], SHORT, THREE, THREE, THREE, THREE, 1e-5), 24 * 4),
        (lambda: imagined("aten.batch_norm_backward_reduce", [THREE], SHORT, SHORT, THREE, THREE), 24 * 4),
        (lambda: imagined("aten.batch_norm_backward_elemt", [SHORT], SHORT, SHORT, THREE, THREE), 24 * 5),
        (lambda: imagined("aten._cudnn_ctc_loss", [X], torch.rand(5, 2, 4), torch.ones(2, 3)), 5 * 2 * 7 * 18 + 40 * 3),
        (lambda: imagined("torchvision.nms", [TARGETS], torch.rand(4, 4), torch.rand(4), 0.5), 4 * 3 + 4 * 2 + 6 * 13),
        (lambda: imagined("torchvision.roi_align", [X], SQUARE, torch.rand(2, 5)), 6 * (9 + 1)),
    ],
)
def test_kernels_of_other_devices_are_costed(work: Callable[[], Work], flops: int) -> None:
    assert (work().macs, work().elementwise_flops) == (0, flops)


# -- fused optimizers --------------------------------------------------------------------------------------------------


def fused_step(make: Callable[[list[Tensor]], torch.optim.Optimizer], before: int = 0) -> Run:
    """One step of an optimizer over six parameters in two tensors, after `before` other steps."""
    parameters = [torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)]
    for parameter in parameters:
        parameter.grad = torch.ones(parameter.shape)
    optimizer = make(parameters)
    for _ in range(before):
        optimizer.step()
    return optimizer.step


def adam(**options: Any) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, fused=True, **options)


def sgd(**options: Any) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True, **options)


@pytest.mark.parametrize(
    ("make", "before", "operation", "flops", "read", "written"),
    [
        # m: 3, v: 4, root, divide, epsilon; scale, divide, subtract. Read p, g, m, v and two counters
        (adam(), 0, "_fused_adam_", 6 * 13, 4 * 24 + 8, 3 * 24),
        (adam(weight_decay=0.1), 1, "_fused_adam_", 6 * 15, 4 * 24 + 8, 3 * 24),
        (adam(amsgrad=True, maximize=True), 0, "_fused_adam_", 6 * 15, 5 * 24 + 8, 4 * 24),
        (adam(weight_decay=0.1, decoupled_weight_decay=True), 0, "_fused_adamw_", 6 * 14, 4 * 24 + 8, 3 * 24),
        (sgd(), 0, "_fused_sgd_", 6 * 2, 2 * 24, 24),
        (sgd(momentum=0.9), 0, "_fused_sgd_", 6 * 2, 2 * 24, 2 * 24),  # the first buffer is the gradient
        (sgd(momentum=0.9), 1, "_fused_sgd_", 6 * 4, 3 * 24, 2 * 24),
        (sgd(momentum=0.9, nesterov=True, weight_decay=0.1), 1, "_fused_sgd_", 6 * 8, 3 * 24, 2 * 24),
        (
            lambda parameters: torch.optim.Adagrad(parameters, fused=True),
            0,
            "_fused_adagrad_",
            6 * 7,
            3 * 24 + 8,
            2 * 24,
        ),
    ],
)
def test_fused_steps_follow_their_update_rule(
    make: Any, before: int, operation: str, flops: int, read: int, written: int
) -> None:
    assert cost_of(fused_step(make, before), operation) == (flops, read, written, 6)


def test_formulas_are_filed_under_names_that_exist() -> None:
    """A misspelt name would never be found, and its operation be costed by its category."""
    declare_operators()
    known = {name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    known |= {f"{name}.default" for name in known}
    known |= {".".join(name.split(".")[:2]) for name in known}
    known |= {name.rstrip("_") for name in known}
    ours = [name for name in FORMULAS if FORMULAS[name].__module__.rpartition(".")[2] not in MACS]
    assert len(ours) > 800
    missing = {name for name in ours if name not in known and not name.startswith("torchvision.")}
    assert missing <= set(NEWER.split())


# test_formulas_macs.py looks at those.
MACS = ("attention", "convolution", "linalg", "matmul", "recurrent")
NEWER = """
_c10d_functional._wrap_tensor_autograd _c10d_functional.batch_p2p_ops _c10d_functional.irecv _c10d_functional.isend
aten._foreach_powsum aten._philox_key_fold_in aten._philox_key_split aten._philox_normal aten._philox_uniform
aten._upsample_lanczos2d_aa aten._upsample_lanczos2d_aa_backward aten.linalg__powsum aten.miopen_ctc_loss
c10d.check_for_nan c10d_functional.batch_p2p_ops c10d_functional.irecv c10d_functional.isend
torch_nn._linear_cross_entropy_batch_chunked torch_nn._linear_cross_entropy_batch_chunked_no_reduction
"""  # what the oldest versions of torch do not have
