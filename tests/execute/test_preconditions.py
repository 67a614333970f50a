"""What kernels take for granted: a call that torch itself makes passes, and one that would leave memory is refused.

Nothing here reaches a kernel that it could harm: the refusal comes first. benchmarks/probe_operators.py calls them.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchatlas.errors import InvalidInputError
from torchatlas.execute.preconditions import _PRECONDITIONS, LARGEST_SIZE, checked
from torchatlas.operations.loadable import loadable_operators

aten = torch.ops.aten
r, far = torch.randn, torch.full((2, 3, 2, 2), 2**40)
image, small = r(2, 3, 4, 4), r(2, 3, 2, 2)
volume, tiny = r(2, 3, 4, 4, 4), r(2, 3, 2, 2, 2)
c3, c4 = torch.ones(3), torch.ones(4)
no = torch.empty(0)
lstm = (r(16, 3), r(16, 4), r(16), r(16))
layer = (r(5, 2, 3), *lstm, r(2, 4), r(2, 4), False, [], 2, 4, 1, True, False, False, True)
packed = [r(12, 3), r(12, 4), r(12), r(12)]
plain = [r(4, 3), r(4, 4), r(4), r(4)]
rest = (True, 1, 0.0, False, False, False)
pair = [r(2, 3), r(4)]
adam = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
sgd = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
sgd["is_first_step"] = False
adagrad = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
steps = [torch.tensor(1.0), torch.tensor(1.0)]
bag = (r(10, 3), torch.tensor([1, 2, 9]), torch.tensor([0, 2]))
bags = (r(2, 3), torch.tensor([1, 2, 9]), torch.tensor([0, 2]), torch.tensor([0, 0, 1]), torch.tensor([2, 1]))


def with_indices(pool: Any, given: torch.Tensor, *settings: Any) -> torch.Tensor:
    found: torch.Tensor = pool(given, *settings)[1]
    return found


def last(*args: Any) -> tuple[Any, ...]:
    """The arguments of mkldnn_rnn_layer_backward for the layer above."""
    with torch.enable_grad():
        output, hy, cy, workspace = aten.mkldnn_rnn_layer.default(*layer)
    settings = (False, 2, 4, 1, True, True, False, [], False)
    return (*layer[:7], output, hy, cy, torch.ones_like(output), None, None, *settings, *(args or (workspace,)))


# operator, a call that passes, and how it is made hostile: the place of an argument and what is put there
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], dict[int | str, Any]]] = [
    (aten.as_strided.default, (r(4), [2], [2], 0), {}, {3: 3}),
    (aten.as_strided_.default, (torch.ones(9, dtype=torch.bool), [2, 2], [1, 2], 0), {}, {2: [1, 2**46]}),
    (aten.as_strided_copy.default, (r(4), [2], [2], 0), {}, {1: [9]}),
    (aten.as_strided_scatter.default, (r(4), r(2), [2], [2], 0), {}, {3: [7]}),
    (aten.empty_strided.default, ([2, 3], [3, 1]), {}, {1: [-3, 1]}),
    (aten.new_empty_strided.default, (r(1), [2, 3], [3, 1]), {}, {2: [2**46, 2**46]}),
    (aten._chunk_cat.default, ([r(4)], 0, 2), {}, {0: [r(4), torch.tensor(1.0)]}),
    (aten.pdist.default, (r(3, 2), 2.0), {}, {0: r(0, 3)}),
    (aten.unfold_backward.default, (r(2, 3), [4], 0, 3, 1), {}, {1: [40]}),
    (aten.div.Tensor_mode, (torch.tensor([-(2**63)]), torch.tensor([2])), {"rounding_mode": "trunc"}, {1: torch.tensor([-1])}),
    (aten.div_.Scalar_mode, (torch.tensor([-(2**63)]), 2), {"rounding_mode": "trunc"}, {1: -1}),
    (aten.divide.Tensor_mode, (torch.tensor([-(2**63)]), torch.tensor([2])), {"rounding_mode": "trunc"}, {1: torch.tensor([-1])}),
    (aten.divide_.Scalar_mode, (torch.tensor([-(2**63)]), 2), {"rounding_mode": "trunc"}, {1: -1}),
    (aten._softmax_backward_data.default, (r(2, 3), r(2, 3), 1, torch.float32), {}, {1: r(1)}),
    (aten._log_softmax_backward_data.default, (r(2, 3), r(2, 3), 1, torch.float32), {}, {1: r(1)}),
    (aten._fft_c2c.default, (r(2, 4, dtype=torch.complex64), [1], 0, True), {}, {1: [2]}),
    (aten._fft_r2c.default, (r(2, 4), [1], 0, True), {}, {1: [-1]}),
    (aten._fft_c2r.default, (r(2, 3, dtype=torch.complex64), [1], 0, 4), {}, {3: 400}),
    (aten.linalg_lu_solve.default, (torch.eye(3), torch.tensor([1, 2, 3], dtype=torch.int32), r(3, 2)), {}, {1: torch.tensor([1, 2, 9], dtype=torch.int32)}),
    (aten.linalg_lstsq.default, (r(3, 2), r(3, 1)), {"driver": "gelss"}, {1: r(3, 0)}),
    (aten.rrelu_with_noise.default, (r(2, 3), r(2, 3), 0.1, 0.3, True), {}, {1: r(3).expand(2, 3)}),
    (aten.rrelu_with_noise_.default, (r(2, 3), r(2, 3), 0.1, 0.3, True), {}, {1: r(3).expand(2, 3)}),
    (aten.native_batch_norm.default, (image, c3, c3, c3.clone(), c3.clone(), True, 0.1, 1e-5), {}, {3: no}),
    (aten._native_batch_norm_legit.no_stats, (image, c3, c3, True, 0.1, 1e-5), {}, {3: False}),
    (aten._native_batch_norm_legit_no_training.default, (image, c3, c3, c3, c3, 0.1, 1e-5), {}, {4: c4}),
    (aten._batch_norm_with_update.default, (image, c3, c3, c3.clone(), c3.clone(), 0.1, 1e-5), {}, {4: no}),
    (aten._batch_norm_no_update.default, (image, c3, c3, c3, c3, 0.1, 1e-5), {}, {4: no}),
    (aten._batch_norm_no_update.default, (image, c3, c3, c3, c3, 0.1, 1e-5), {}, {3: None, 4: None}),
    (aten.batch_norm.default, (image, c3, c3, c3, c3, False, 0.1, 1e-5, False), {}, {1: c4}),
    (aten.native_batch_norm_backward.default, (image, image, c3, None, None, c3, c3, True, 1e-5, [True] * 3), {}, {6: no}),
    (aten.batch_norm_backward.default, (image, image, c3, c3, c3, c3, c3, True, 1e-5, [True] * 3, no), {}, {5: None}),
    (aten.batch_norm_backward.default, (image, image, c3, c3, c3, c3, c3, True, 1e-5, [True] * 3, no), {}, {0: image[:0], 1: image[:0]}),
    (aten.native_layer_norm_backward.default, (r(2, 4), r(2, 4), [4], r(2, 1), r(2, 1), c4, c4, [True] * 3), {}, {3: r(1, 1)}),
    (aten._fused_rms_norm_backward.default, (r(2, 4), r(2, 4), [4], r(2, 1), c4, [True] * 2), {}, {3: r(1, 1)}),
    (aten.native_group_norm.default, (image, c3, c3, 2, 3, 16, 3, 1e-5), {}, {6: 0}),
    (aten.native_group_norm_backward.default, (image, image, r(2, 1), r(2, 1), c3, 2, 3, 16, 1, [True] * 3), {}, {6: 4}),
    (aten._weight_norm.default, (r(3, 4), r(3, 1), 0), {}, {1: no}),
    (aten._weight_norm_interface.default, (r(3, 4), r(3, 1), 0), {}, {1: no}),
    (aten._weight_norm_interface_backward.default, (r(3, 4), r(3, 4), r(3, 1), r(3, 1), 0), {}, {3: no}),
    (aten.max_pool1d.default, (r(2, 3, 8), [2]), {}, {1: [2**40]}),
    (aten.max_pool1d_with_indices.default, (r(2, 3, 8), [2]), {}, {1: [2**40]}),
    (aten._adaptive_avg_pool2d.default, (image, [2, 2]), {}, {1: [2**40, 0]}),
    (aten._adaptive_avg_pool3d.default, (volume, [2, 2, 2]), {}, {1: [2**40, 0, 2]}),
    (aten.adaptive_avg_pool1d.default, (r(2, 3, 8), [2]), {}, {1: [0]}),
    (aten.adaptive_avg_pool2d.default, (image, [2, 2]), {}, {1: [2**40, 0]}),
    (aten.adaptive_avg_pool3d.default, (volume, [2, 2, 2]), {}, {1: [2**40, 0, 2]}),
    (aten.adaptive_max_pool1d.default, (r(2, 3, 8), [2]), {}, {1: [0]}),
    (aten.adaptive_max_pool2d.default, (image, [2, 2]), {}, {1: [2**40, 0]}),
    (aten.adaptive_max_pool3d.default, (volume, [2, 2, 2]), {}, {1: [2**40, 0, 2]}),
    (aten.max_pool2d_with_indices_backward.default, (small, image, [2, 2], [2, 2], [0, 0], [1, 1], False, with_indices(aten.max_pool2d_with_indices, image, [2, 2])), {}, {7: far}),
    (aten.max_pool3d_with_indices_backward.default, (tiny, volume, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, with_indices(aten.max_pool3d_with_indices, volume, [2] * 3)), {}, {0: r(9, 3, 2, 2, 2)}),
    (aten.avg_pool2d_backward.default, (small, image, [2, 2], [2, 2], [0, 0], False, True, None), {}, {0: r(5, 3, 2, 2)}),
    (aten.avg_pool3d_backward.default, (tiny, volume, [2] * 3, [2] * 3, [0] * 3, False, True, None), {}, {0: r(5, 3, 2, 2, 2)}),
    (aten._adaptive_avg_pool2d_backward.default, (small, image), {}, {1: r(1, 3, 4, 4)}),
    (aten._adaptive_avg_pool3d_backward.default, (tiny, volume), {}, {1: r(1, 3, 4, 4, 4)}),
    (aten.adaptive_max_pool2d_backward.default, (small, image, with_indices(aten.adaptive_max_pool2d, image, [2, 2])), {}, {2: far}),
    (aten.adaptive_max_pool3d_backward.default, (tiny, volume, with_indices(aten.adaptive_max_pool3d, volume, [2] * 3)), {}, {1: r(1, 3, 4, 4, 4)}),
    *[(getattr(aten, f"{kind}_pad1d").default, (r(2, 3, 4), [1, 1]), {}, {1: [1, -2]}) for kind in ("reflection", "replication")],
    *[(getattr(aten, f"{kind}_pad2d").default, (image, [1] * 4), {}, {1: [1, 1, 1, -2]}) for kind in ("reflection", "replication")],
    *[(getattr(aten, f"{kind}_pad3d").default, (volume, [1] * 6), {}, {1: [2, 1, 1, 1, -2, 1]}) for kind in ("reflection", "replication")],
    *[(getattr(aten, f"{kind}_pad1d_backward").default, (r(2, 3, 6), r(2, 3, 4), [1, 1]), {}, {1: r(9, 3, 4)}) for kind in ("reflection", "replication")],
    *[(getattr(aten, f"{kind}_pad2d_backward").default, (r(2, 3, 6, 6), image, [1] * 4), {}, {2: []}) for kind in ("reflection", "replication")],
    *[(getattr(aten, f"{kind}_pad3d_backward").default, (r(2, 3, 6, 6, 6), volume, [1] * 6), {}, {1: r(2, 15, 4, 4, 4)}) for kind in ("reflection", "replication")],
    (aten.grid_sampler_2d_backward.default, (small, image, r(2, 2, 2, 2), 0, 0, False, [True, True]), {}, {0: r(2, 3, 1, 1)}),
    (aten.grid_sampler_3d_backward.default, (tiny, volume, r(2, 2, 2, 2, 3), 0, 0, False, [True, True]), {}, {0: r(1)}),
    (aten._upsample_bilinear2d_aa.default, (image, [8, 8], False, 2.0, 2.0), {}, {1: [100, 8]}),
    (aten._upsample_bicubic2d_aa.default, (image, [8, 8], False, 2.0, 2.0), {}, {3: 0.1}),
    (aten.scaled_dot_product_attention.default, (r(2, 4, 5, 8), r(2, 4, 6, 8), r(2, 4, 6, 8)), {}, {1: r(2, 4, 2, 8)}),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, (r(2, 4, 5, 8), r(2, 4, 6, 8), r(2, 4, 6, 8)), {}, {1: r(2, 4, 2, 8)}),
    (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, (*(r(2, 4, 5, 8) for _ in range(5)), r(2, 4, 5), 0.0, False), {}, {5: no}),
    (aten.lstm.input, (r(5, 2, 3), [r(1, 2, 4), r(1, 2, 4)], list(lstm), *rest), {}, {2: [r(16, 1), *lstm[1:]]}),
    (aten.gru.input, (r(5, 2, 3), r(1, 2, 4), packed, *rest), {}, {2: [*packed[:3], no]}),
    (aten.rnn_tanh.input, (r(5, 2, 3), r(1, 2, 4), plain, *rest), {}, {1: r(1, 1, 4)}),
    (aten.rnn_relu.input, (r(5, 2, 3), r(1, 2, 4), plain, *rest), {}, {2: [*plain, r(1)]}),
    (aten._pad_packed_sequence.default, (r(6, 3), torch.tensor([3, 2, 1]), False, 0.0, 4), {}, {1: torch.tensor([0, 0, 1])}),
    (aten.mkldnn_rnn_layer.default, layer, {}, {1: r(16, 0)}),
    (aten.mkldnn_rnn_layer_backward.default, last(), {}, {22: torch.empty(1, dtype=torch.uint8)}),
    (aten.embedding_dense_backward.default, (r(2, 3), torch.tensor([0, 9]), 10, -1, True), {}, {1: torch.tensor([0, 2**40])}),
    (aten._embedding_bag.default, bag, {}, {2: torch.tensor([0, 2**40])}),
    (aten._embedding_bag_forward_only.default, bag, {}, {2: torch.empty(0, dtype=torch.int64)}),
    (aten.embedding_bag.default, bag, {}, {1: torch.tensor([1, 2, 2**40])}),
    (aten._embedding_bag_backward.default, (*bags, torch.empty(0, dtype=torch.int64), 10, False, 0, False, None), {}, {3: torch.tensor([0, 0, 2**40])}),
    (aten._embedding_bag_dense_backward.default, (*bags[:2], *bags[3:], torch.empty(0, dtype=torch.int64), 10, False, 0, None), {}, {2: torch.tensor([0, 0, -9])}),
    (aten.nll_loss_backward.default, (torch.tensor(1.0), r(2, 3), torch.tensor([0, 2]), None, 1, -100, torch.tensor(2.0)), {}, {2: torch.tensor([0, 2**40])}),
    (aten.nll_loss2d_backward.default, (torch.tensor(1.0), image, torch.zeros(2, 4, 4, dtype=torch.int64), None, 1, -100, torch.tensor(2.0)), {}, {2: torch.full((2, 4, 4), -(2**40))}),
    (aten.smooth_l1_loss_backward.default, (r(3), r(3), r(3), 1, 0.5), {}, {0: torch.ones(3, dtype=torch.int64), 1: far[0, 0, 0], 2: far[0, 0, 0]}),
    (aten._fused_adam_.default, (pair, pair, pair, pair, [], steps), adam, {2: [r(2, 3), r(1)]}),
    (aten._fused_adamw_.default, (pair, pair, pair, pair, [], steps), adam, {1: pair[:1]}),
    (aten._fused_sgd_.default, (pair, pair, pair), sgd, {2: []}),
    (aten._fused_adagrad_.default, (pair, pair, pair, steps), adagrad, {3: [no, no]}),
]  # fmt: skip


def hostile(args: tuple[Any, ...], change: dict[int | str, Any]) -> list[Any]:
    return [change.get(place, argument) for place, argument in enumerate(args)]


@pytest.mark.parametrize(("operator", "args", "kwargs", "change"), CALLS, ids=[str(row[0]) for row in CALLS])
def test_a_call_of_torch_passes_and_a_hostile_one_is_refused(
    operator: Any, args: Any, kwargs: Any, change: Any
) -> None:
    run = checked(operator)
    with torch.no_grad(), pytest.raises(InvalidInputError, match=f"{operator} is not run: "):
        run(*hostile(args, change), **kwargs)
    if operator is not aten._fused_rms_norm_backward.default:  # no kernel of the CPU
        with torch.no_grad():
            run(*args, **kwargs)


def test_kernels_get_memory_for_every_element() -> None:
    """With expanded tensors these kernels read on behind the end of their memory."""
    gradient, weight = r(2, 3, 1, 1), r(1)
    args = image, r(2, 1), r(2, 1), c3, 2, 3, 16, 1, [True] * 3
    found = checked(aten.native_group_norm_backward.default)(gradient.expand(2, 3, 4, 4), *args)
    expected = aten.native_group_norm_backward.default(gradient.repeat(1, 1, 4, 4), *args)
    assert all(map(torch.equal, found, expected))
    settings = c3, 2, 3, 16, 1, 1e-5
    found = checked(aten.native_group_norm.default)(image, weight.expand(3), *settings)
    assert all(map(torch.equal, found, aten.native_group_norm.default(image, weight.repeat(3), *settings)))
    for operator in (aten.median.dim, aten.nanmedian.dim):
        assert torch.equal(checked(operator)(c3.expand(5, 3), 0)[0], c3)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5, 5), (2, 4, 3, 3, 3)])
def test_batch_norm_sums_an_expanded_gradient_in_the_order_in_which_torch_does(shape: tuple[int, ...]) -> None:
    x, one, rest = r(*shape), r(1), (r(4), r(4), r(4), r(4), r(4).abs(), True, 1e-5, [True] * 3)
    for gradient in (one.expand(shape), r(*shape[1:]).expand(shape)):
        found = checked(aten.native_batch_norm_backward.default)(gradient, x, *rest)
        assert all(map(torch.equal, found, aten.native_batch_norm_backward.default(gradient, x, *rest)))
    settings = (r(4), r(4), r(4), r(4).abs(), True, 0.1, 1e-5)
    found = checked(aten.native_batch_norm.default)(one.expand(shape), *settings)
    assert all(map(torch.equal, found, aten.native_batch_norm.default(one.expand(shape), *settings)))


def test_an_output_that_is_resized_gets_the_strides_that_its_kernel_gives() -> None:
    x, found, expected = r(2, 3).t(), torch.zeros(0), torch.zeros(0)
    torch.sin(x, out=expected)
    checked(aten.sin.out)(x, out=found)
    assert found.stride() == expected.stride() == (1, 3)
    assert torch.equal(found, expected)


def test_unusual_calls_of_torch_pass() -> None:
    """Found by benchmarks/probe_operators.py among the samples of torch's own tests."""
    run, nothing, indices = checked(aten._embedding_bag_backward.default), bags[1][:0], bags[1]
    rest = (nothing, bags[4], nothing, 10, False, 0, False, None)
    for offsets in ([0, 2], [0, 2, 3]):  # also where the last bag ends
        run(r(2, 3), indices, torch.tensor(offsets), *rest)
    with pytest.raises(InvalidInputError, match="offsets are not of the bags"):
        run(r(2, 3), indices, torch.tensor([0, 1, 2]), *rest)
    checked(aten.batch_norm.default)(no, None, None, no, no, True, 0.1, 1e-5, True)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")  # newer versions of torch say so
def test_outputs_that_share_memory_with_inputs_do_not_change_them_too_early() -> None:
    """This kernel gives its output the shape of the result and then reads its input, which is the same tensor."""
    bias, first, second = r(1, 3), r(1, 4), r(4, 3)
    expected = torch.addmm(bias, first, second)
    assert checked(aten.addmm.out)(bias, first, second, out=first) is first
    assert torch.equal(first, expected)


def test_outputs_of_any_strides_are_written() -> None:
    expected, room, indices = r(2, 3), torch.zeros(3, 4), torch.empty(2, 2, dtype=torch.int64)
    written = room.t()[:2, :3]
    assert checked(aten._softmax.out)(expected, 1, False, out=written) is written
    assert torch.equal(room.t()[:2, :3], expected.softmax(1))
    with pytest.raises(RuntimeError, match="single memory location"):
        checked(aten._softmax.out)(expected, 1, False, out=r(3).expand(2, 3))
    values = torch.empty(2, 2)
    found = checked(aten.topk.values)(expected, 2, values=values, indices=indices)
    assert found[0] is values
    assert found[1] is indices
    assert torch.equal(values, expected.topk(2)[0])


def test_a_gradient_that_has_no_memory_is_not_asked_for() -> None:
    """`nn.GroupNorm` of a channels-last input that needs no gradient ends the process in torch 2.13."""
    last = image.to(memory_format=torch.channels_last)
    args = last, last, r(2, 1), r(2, 1), c3, 2, 3, 16, 1
    with pytest.raises(InvalidInputError, match="channels-last"):
        checked(aten.native_group_norm_backward.default)(*args, [False, True, True])
    checked(aten.native_group_norm_backward.default)(*args, [True] * 3)


def test_every_precondition_has_a_row() -> None:
    assert {str(row[0]).rpartition(".")[0] for row in CALLS} == set(_PRECONDITIONS)


@pytest.mark.parametrize("size", [LARGEST_SIZE + 1, -LARGEST_SIZE - 1, 2**63 - 1])
def test_numbers_that_overflow_in_kernels_are_refused(size: int) -> None:
    for operator, args in (
        (aten.zeros.default, ([size],)),
        (aten.narrow.default, (r(4), 0, size, 1)),
        (aten.reshape.default, (r(4), (2, size))),
    ):
        with pytest.raises(InvalidInputError, match="no size of a tensor"):
            checked(operator)(*args)
    assert checked(aten.slice.Tensor)(r(4), 0, 1, 2**63 - 1).shape == (3,)  # to the end


@pytest.mark.parametrize("number", [-1, 6, 2**31 - 1, True])
def test_a_number_in_place_of_a_dtype_a_layout_or_a_memory_format_is_refused(number: int) -> None:
    """torch takes it and looks it up in tables without a look at their ends."""
    for operator, args, kwargs, which in (
        (aten.zeros.default, ([2],), {"dtype": number}, "dtype"),
        (aten.zeros.default, ([2],), {"layout": number}, "layout"),
        (aten.to.device, (r(2), torch.device("cpu"), number), {}, "dtype"),
        (aten.clone.default, (r(2),), {"memory_format": number}, "memory_format"),
        (aten._to_copy.default, (r(2),), {"dtype": number}, "dtype"),
    ):
        with pytest.raises(InvalidInputError, match=f"argument {which} is a number"):
            checked(operator)(*args, **kwargs)
    assert checked(aten.zeros.default)([2], dtype=torch.float64, layout=None).dtype is torch.float64


@pytest.mark.parametrize(
    ("operator", "args", "kwargs"),
    [
        (aten.empty.memory_format, ([3, 3],), {"layout": torch.sparse_csr}),  # its row pointers are what memory held
        (aten.new_zeros.default, (r(3), [3]), {"layout": torch._mkldnn}),
        (aten.empty.memory_format, ([4],), {"dtype": torch.quint8}),
        (aten._to_copy.default, (r(4),), {"dtype": torch.qint8}),
        (aten.mm.default, (torch.eye(3).to_sparse_csr(), r(3, 3)), {}),
        (aten.cat.default, ([r(3, 3), torch.eye(3).to_sparse_bsc((1, 1))],), {}),
    ],
)
def test_tensors_whose_indices_or_memory_are_believed_are_refused(operator: Any, args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidInputError, match="a tensor of"):
        checked(operator)(*args, **kwargs)


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_views_of_quantized_tensors_are_refused() -> None:
    """A view of other bytes than its own ends the process."""
    quantized = aten._make_per_tensor_quantized_tensor(torch.zeros(4, dtype=torch.uint8), 0.1, 3)
    for operator, args in ((aten.view.dtype, [torch.int8]), (aten._neg_view.default, [])):
        with pytest.raises(InvalidInputError, match="a quantized tensor"):
            checked(operator)(quantized, *args)


@pytest.mark.parametrize(
    ("operator", "lists"),
    [
        (aten._foreach_addcmul_.ScalarList, ([r(2)], [r(2)], [r(2)], [])),
        (aten._foreach_div_.ScalarList, ([r(2), r(2)], [1.0])),
        (aten._foreach_copy_.default, ([r(2), r(2)], [r(2)])),
    ],
)
def test_lists_of_other_lengths_are_refused_before_autograd_takes_their_elements(operator: Any, lists: Any) -> None:
    """With gradients torch reads behind the end of the shorter list, and compares lengths afterwards."""
    with pytest.raises(InvalidInputError, match="lists are not of one length"):
        checked(operator)(*lists)
    checked(operator)(*(one[:1] or [2.0] for one in lists))


def loadable_schemas() -> Iterator[tuple[str, Any]]:
    """Those of the list that this torch has; not every version has all."""
    for name in loadable_operators():
        _, packet, overload = name.split(".")
        if packet not in NOT_EVERYWHERE or hasattr(aten, packet):
            yield name, getattr(getattr(aten, packet), overload)._schema


NOT_EVERYWHERE = {"_foreach_clone", "_foreach_powsum", "cholesky", "qr"}  # the former came, the latter went


def test_loadable_operators_exist_and_none_reaches_outside() -> None:
    """The list is of operators of torch, and none of them takes a file, a storage, an object or a callable."""
    for name, schema in loadable_schemas():
        kinds = {str(one.type) for one in schema.arguments}
        assert not kinds & {"Storage", "Stream", "AnyClassType", "Future[Any]", "PyObject"}, name
        assert not any("file" in one.name for one in schema.arguments), name
    for name in (
        "_reshape_alias",
        "_sparse_coo_tensor_unsafe",
        "segment_reduce",
        "from_file",
        "_nested_view_from_buffer",
    ):
        assert not any(loadable.split(".")[1] == name for loadable in loadable_operators())


def test_kernels_that_write_their_gradient_where_they_are_told_are_not_loadable() -> None:
    """Their out= forms do not look at the size of what they are given."""
    for name, schema in loadable_schemas():
        packet = name.split(".")[1]
        if f"aten.{packet}" in _PRECONDITIONS or packet.endswith("_backward"):
            assert not any(one.is_out for one in schema.arguments), name
