"""categories.py: every name torch can produce gets the right category, or an honest unknown."""

from __future__ import annotations

import doctest
import inspect
import operator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchatlas.graph.nouns import OperationType
from torchatlas.operations import categories, operation_type, type_of_box
from torchatlas.operations.categories import _split

# What a TorchDispatchMode sees in ordinary forward, backward and optimizer steps on the CPU, assigned by hand.
RUN = {
    "convolution": "convolution.default convolution_backward.default",
    "matmul": """
        _fft_c2c.default _fft_r2c.default _trilinear.default addmm.default baddbmm.default bmm.default mm.default""",
    "attention": """
        _native_multi_head_attention.default _scaled_dot_product_flash_attention_for_cpu.default
        _scaled_dot_product_flash_attention_for_cpu_backward.default _transformer_encoder_layer_fwd.default""",
    "recurrent": """
        _thnn_fused_gru_cell.default _thnn_fused_lstm_cell.default _thnn_fused_lstm_cell_backward_impl.default
        mkldnn_rnn_layer.default mkldnn_rnn_layer_backward.default""",
    "norm": """
        _fused_rms_norm.default _fused_rms_norm_backward.default _native_batch_norm_legit.default
        _native_batch_norm_legit_no_training.default native_batch_norm.default native_batch_norm_backward.default
        native_group_norm.default native_group_norm_backward.default native_layer_norm.default
        native_layer_norm_backward.default""",
    "activation": """
        _log_softmax.default _log_softmax_backward_data.default _prelu_kernel.default _prelu_kernel_backward.default
        _safe_softmax.default _softmax.default _softmax_backward_data.default celu.default elu.default
        elu_backward.default gelu.default gelu_backward.default glu.default glu_backward.default hardshrink.default
        hardshrink_backward.default hardsigmoid.default hardsigmoid_backward.default hardswish.default
        hardswish_backward.default hardtanh.default hardtanh_backward.default leaky_relu.default
        leaky_relu_backward.default log_sigmoid_backward.default log_sigmoid_forward.default mish.default
        mish_backward.default relu.default relu_.default rrelu_with_noise.default rrelu_with_noise_backward.default
        sigmoid.default sigmoid_.default sigmoid_backward.default silu.default silu_backward.default softplus.default
        softplus_backward.default softshrink.default softshrink_backward.default tanh.default tanh_.default
        tanh_backward.default threshold.default threshold_backward.default""",
    "pooling": """
        _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d.default
        _adaptive_avg_pool3d_backward.default _upsample_nearest_exact2d.default
        _upsample_nearest_exact2d_backward.default adaptive_max_pool2d.default adaptive_max_pool2d_backward.default
        adaptive_max_pool3d.default adaptive_max_pool3d_backward.default affine_grid_generator.default
        avg_pool2d.default avg_pool2d_backward.default avg_pool3d.default avg_pool3d_backward.default
        fractional_max_pool2d.default fractional_max_pool2d_backward.default grid_sampler_2d.default
        grid_sampler_2d_backward.default max_pool2d_with_indices.default max_pool2d_with_indices_backward.default
        max_pool3d_with_indices.default max_pool3d_with_indices_backward.default max_unpool2d.default
        max_unpool3d.default upsample_bicubic2d.default upsample_bicubic2d_backward.default upsample_bilinear2d.default
        upsample_bilinear2d_backward.default upsample_linear1d.default upsample_linear1d_backward.default
        upsample_nearest1d.default upsample_nearest2d.default upsample_nearest2d_backward.default
        upsample_nearest3d.default upsample_trilinear3d.default upsample_trilinear3d_backward.default""",
    "pointwise": """
        _foreach_add_.List _foreach_addcdiv_.ScalarList _foreach_addcmul_.Scalar _foreach_div_.ScalarList
        _foreach_lerp_.Scalar _foreach_mul_.Tensor _foreach_sqrt.default abs.default add.Scalar add.Tensor add.out
        add_.Tensor addcdiv_.default addcmul_.default clamp.default clamp_.default clamp_min.default clamp_min_.Tensor
        div.Scalar div.Tensor div_.Scalar eq.Scalar eq.Tensor exp.default ge.Scalar gt.Scalar le.Scalar lerp_.Scalar
        log.default logical_and_.default lt.Scalar masked_fill.Scalar masked_fill_.Scalar mul.Scalar mul.Tensor
        mul_.Tensor ne.Scalar neg.default pow.Tensor_Scalar reciprocal.default rsqrt.default rsub.Scalar sgn.default
        sign.default sqrt.default sqrt_.default sub.Tensor sub_.Tensor tril.default where.self xlogy.Tensor""",
    "reduction": """
        _foreach_norm.Scalar amax.default any.default argmax.default cumprod.default cumsum.default
        linalg_vector_norm.default logsumexp.default max.dim mean.default mean.dim norm.ScalarOpt_dim prod.default
        std.correction sum.default sum.dim_IntList var.correction var_mean.correction""",
    "view": """
        _indices.default _unsafe_view.default _values.default alias.default as_strided.default detach.default
        diagonal.default expand.default lift_fresh.default permute.default select.int slice.Tensor split.Tensor
        split_with_sizes.default squeeze.dim sym_size.int t.default transpose.int unbind.int unfold.default
        unsafe_split.Tensor unsqueeze.default unsqueeze_.default view.default view_as_real.default""",
    "movement": """
        _foreach_copy_.default _local_scalar_dense.default _sparse_coo_tensor_with_dims_and_tensors.default
        _to_copy.default arange.default arange.start_step cat.default channel_shuffle.default clone.default
        col2im.default constant_pad_nd.default copy_.default diagonal_backward.default empty.memory_format
        empty_like.default fill_.Scalar flip.default full.default gather.default im2col.default index.Tensor
        index_add.default index_put.default index_select.default linspace.default new_empty.default
        new_empty_strided.default new_zeros.default ones.default ones_like.default permute_copy.default
        pixel_shuffle.default pixel_unshuffle.default reflection_pad1d.default reflection_pad2d_backward.default
        repeat.default replication_pad3d.default replication_pad3d_backward.default roll.default scalar_tensor.default
        scatter.src scatter_add.default select_backward.default slice_backward.default sort.default stack.default
        topk.default unfold_backward.default zero_.default zeros.default zeros_like.default""",
    "random": """
        bernoulli_.float native_dropout.default native_dropout_backward.default normal_.default rand.default
        randint.low randn.default randperm.default uniform_.default""",
    "embedding": """
        _embedding_bag.default _embedding_bag_backward.default _embedding_bag_dense_backward.default embedding.default
        embedding_dense_backward.default embedding_renorm_.default""",
    "loss": """
        _ctc_loss.Tensor _ctc_loss_backward.Tensor binary_cross_entropy.default binary_cross_entropy_backward.default
        binary_cross_entropy_with_logits.default huber_loss.default huber_loss_backward.default mse_loss.default
        mse_loss_backward.default multi_margin_loss.default multi_margin_loss_backward.default
        multilabel_margin_loss_backward.default multilabel_margin_loss_forward.default nll_loss2d_backward.default
        nll_loss2d_forward.default nll_loss_backward.default nll_loss_forward.default smooth_l1_loss.default
        smooth_l1_loss_backward.default soft_margin_loss.default soft_margin_loss_backward.default""",
    "optimizer": "_fused_adagrad_.default _fused_adam_.default _fused_adamw_.tensor_lr _fused_sgd_.default",
}

# Every other shape of name.
OTHER = {
    "aten::add.Tensor": "pointwise",
    "torch.ops.aten.mm.default": "matmul",
    "aten.__and__.Tensor": "pointwise",
    "aten._scaled_dot_product_efficient_attention_backward.default": "attention",
    "aten.cudnn_batch_norm_backward.default": "norm",
    "aten.linalg_solve_triangular.default": "matmul",
    "aten.special_log_softmax.int": "activation",
    "aten.no_such_operator.default": "unknown",
    "aten.no_such_operator_backward.default": "unknown",
    "aten._fused_no_such_step_.default": "unknown",
    "prims.convert_element_type.default": "movement",
    "prims.reshape.default": "movement",
    "prims.broadcast_in_dim.default": "view",
    "prims.no_such_prim.default": "unknown",
    "prim.device.default": "view",
    "prim::ListConstruct": "view",
    "prim.NumToTensor.Scalar": "movement",
    "profiler._record_function_enter_new.default": "view",
    "torchvision.nms.default": "movement",
    "torchvision.roi_align.default": "pooling",
    "torchvision._roi_align_backward.default": "pooling",
    "torchvision.deform_conv2d.default": "convolution",
    "torchvision.ops.boxes.nms": "movement",
    "torchvision.models.resnet.Bottleneck": "module",
    "quantized.conv2d_relu.new": "convolution",
    "quantized.linear_relu_dynamic_fp16.default": "matmul",
    "quantized.linear_prepack.default": "movement",
    "quantized.add_relu.default": "pointwise",
    "quantized_decomposed.dequantize_per_tensor.default": "pointwise",
    "onednn.qconv2d_pointwise.default": "convolution",
    "c10d.allreduce_.default": "communication",
    "_c10d_functional.wait_tensor.default": "communication",
    "c10d_functional.all_gather_into_tensor.default": "communication",
    "symm_mem.one_shot_all_reduce.default": "communication",
    "torch.distributed.distributed_c10d.all_reduce": "communication",
    "AddBackward0": "gradient",
    "ConvolutionBackward0": "gradient",
    "MyFunctionBackward": "gradient",
    "CopyBackwards": "gradient",
    "CopySlices": "gradient",
    "torch::autograd::CopyBackwards": "gradient",
    "torch::autograd::GraphRoot": "gradient",
    "torch::autograd::CppNode<my::Function>": "gradient",
    "AccumulateGrad": "accumulate",
    "torch::autograd::AccumulateGrad": "accumulate",
    "struct torch::autograd::AccumulateGrad": "accumulate",
    "nn.Conv2d": "convolution",
    "torch.nn.modules.conv.LazyConvTranspose3d": "convolution",
    "nn.Linear": "matmul",
    "nn.modules.linear.NonDynamicallyQuantizableLinear": "matmul",
    "nn.MultiheadAttention": "attention",
    "nn.LSTM": "recurrent",
    "nn.SyncBatchNorm": "norm",
    "nn.ReLU6": "activation",
    "nn.Upsample": "pooling",
    "nn.Dropout2d": "random",
    "nn.EmbeddingBag": "embedding",
    "nn.CrossEntropyLoss": "loss",
    "nn.Unfold": "movement",
    "nn.Sequential": "module",
    "nn.TransformerEncoderLayer": "module",
    "my.package.Block": "module",
    "my.package.Conv2d": "module",
    "__main__.make.<locals>.Block": "module",
    "torch.optim.adamw.AdamW": "optimizer",
    "torch.relu": "activation",
    "torch.nn.functional.scaled_dot_product_attention": "attention",
    "torch.nn.functional.unfold": "movement",
    "torch._C._nn.gelu": "activation",
    "torch.fft.rfft": "matmul",
    "torch.fft.fftshift": "movement",
    "torch.linalg.inv": "matmul",
    "torch.linalg.norm": "reduction",
    "torch.linalg.cond": "matmul",
    "torch.cond": "unknown",
    "torch.ops.higher_order.flex_attention": "attention",
    "torch.utils.checkpoint.checkpoint": "unknown",
    "_operator.add": "pointwise",
    "_operator.iadd": "pointwise",
    "_operator.and_": "pointwise",
    "_operator.inv": "pointwise",
    "_operator.matmul": "matmul",
    "_operator.getitem": "view",
    "_operator.setitem": "movement",
    "builtins.getattr": "view",
    "math.sqrt": "pointwise",
    ".view": "view",
    ".unfold": "view",
    ".T": "view",
    ".add_": "pointwise",
    ".float": "movement",
    ".no_such_method": "unknown",
    "mylib.myop.default": "custom",
    "mylib::myop": "custom",
    "mylib::relu.Tensor": "custom",
    "my.package.function": "custom",
    "": "unknown",
}

# aten ops whose schema says view (or does not) where we say otherwise, and why it is right.
COPIES_IN_PRACTICE = {"to", "contiguous", "pin_memory", "coalesce"} | {
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
}
VIEWS_WITHOUT_ALIAS = (
    {"_unsafe_view", "_reshape_from_tensor", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift", "data"}
    | {"atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "meshgrid", "unflatten_dense_tensors", "set"}
    | {"_add_batch_dim", "_remove_batch_dim", "_coalesced", "q_per_channel_scales", "q_per_channel_zero_points"}
    | {"_functional_assert_async", "_functional_assert_scalar", "_functional_sym_constrain_range", "_make_dep_token"}
    | {"_functional_sym_constrain_range_for_size", "_nested_tensor_size", "_nested_tensor_strides"}
    | {"_nested_tensor_storage_offsets", "_nested_compute_contiguous_strides_offsets", "_nested_get_jagged_dummy"}
    | {"_nested_get_lengths", "_nested_get_max_seqlen", "_nested_get_min_seqlen", "_nested_get_offsets"}
)
CONTAINERS = (
    {"Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"}
    | {"Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"}
    | {"RNNBase", "RNNCellBase"}
)


def aten_schemas() -> list[Any]:
    """The schema of every aten operator that is registered with the dispatcher and has one."""
    registered = set(torch._C._dispatch_get_all_op_names())
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")]
    return [s for s in schemas if f"{s.name}.{s.overload_name}".rstrip(".") in registered]


def full_name(schema: Any) -> str:
    return f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"


def bare_name(schema: Any) -> str:
    return str(schema.name).removeprefix("aten::")


@pytest.mark.parametrize("category", RUN)
def test_ops_of_ordinary_training(category: str) -> None:
    wrong = {name: operation_type(f"aten.{name}") for name in RUN[category].split()}
    wrong = {name: found for name, found in wrong.items() if found != category}
    assert not wrong, f"expected {category}"


def test_listed_ops_exist() -> None:
    registered = set(torch._C._dispatch_get_all_op_names())
    listed = [name.removesuffix(".default") for names in RUN.values() for name in names.split()]
    assert len(listed) > 150
    assert [name for name in listed if f"aten::{name}" not in registered] == []


@pytest.mark.parametrize(("name", "category"), OTHER.items())
def test_other_names(name: str, category: str) -> None:
    assert operation_type(name) == category


def test_at_least_95_percent_of_aten_is_known() -> None:
    names = [full_name(schema) for schema in aten_schemas()]
    unknown = [name for name in names if operation_type(name) is OperationType.UNKNOWN]
    assert len(names) > 2500
    known = 1 - len(unknown) / len(names)
    assert known >= 0.95, f"{known:.1%} known; unknown: {' '.join(sorted(unknown))}"


def test_what_layers_run_is_known() -> None:
    seen: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(str(func))
            return func(*args, **(kwargs or {}))

    image, sequence = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 8)
    layers: list[tuple[torch.nn.Module, torch.Tensor]] = [
        *((layer, image) for layer in (torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2))),
        *(
            (layer, image)
            for layer in (torch.nn.Upsample(scale_factor=2), torch.nn.PixelShuffle(2), torch.nn.Fold(9, 2))
        ),
        *((layer, sequence) for layer in (torch.nn.TransformerEncoderLayer(8, 2, 16), torch.nn.LSTM(8, 8))),
        *((layer, sequence) for layer in (torch.nn.GRU(8, 8), torch.nn.RMSNorm(8), torch.nn.PReLU(), torch.nn.GLU())),
    ]
    with Watch():
        for layer, x in layers:
            x = torch.randn(2, 16, 64) if isinstance(layer, torch.nn.Fold) else x
            output = layer(x.clone().requires_grad_())
            loss = (output[0] if isinstance(output, tuple) else output).square().sum()
            loss.backward()
            if parameters := list(layer.parameters()):
                torch.optim.AdamW(parameters, foreach=True).step()
    assert len(seen) > 50
    assert [name for name in sorted(seen) if operation_type(name) in ("unknown", "custom")] == []


def test_views_are_what_torch_calls_views() -> None:
    wrong = set()
    for schema in aten_schemas():
        if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
            continue
        if not any("Tensor" in str(returned.type) for returned in schema.returns):
            continue
        aliases = any(returned.alias_info is not None for returned in schema.returns)
        if aliases != (operation_type(full_name(schema)) is OperationType.VIEW):
            wrong.add(bare_name(schema))
    wrong = {name for name in wrong if not name.startswith("_test_")}
    assert wrong == COPIES_IN_PRACTICE | VIEWS_WITHOUT_ALIAS


@pytest.mark.parametrize("suffix", ["_", "_backward", "_copy"])
def test_variants_have_the_category_of_the_op(suffix: str) -> None:
    names = {bare_name(schema) for schema in aten_schemas()}
    pairs = [(name, name.removesuffix(suffix)) for name in names if name.endswith(suffix)]
    pairs = [(name, plain) for name, plain in pairs if plain in names]
    assert len(pairs) > 20
    wrong = {}
    for name, plain in pairs:
        expected, found = operation_type(f"aten.{plain}"), operation_type(f"aten.{name}")
        if expected is OperationType.VIEW and suffix != "_":
            expected = OperationType.MOVEMENT
        if found is not expected:
            wrong[name] = (found, expected)
    assert not wrong


def test_every_layer_of_torch_nn_is_known_or_a_container() -> None:
    classes = {n for n, c in vars(torch.nn).items() if inspect.isclass(c) and issubclass(c, torch.nn.Module)}
    assert {name for name in classes if operation_type(f"nn.{name}") is OperationType.MODULE} == CONTAINERS


@pytest.mark.parametrize("module", [torch.nn.functional, torch.linalg, torch.fft, torch.special])
def test_public_functions_are_known(module: Any) -> None:
    plumbing = {"boolean_dispatch", "assert_int_or_pair", "handle_torch_function"}
    names = [name for name, value in vars(module).items() if name[0] != "_" and callable(value)]
    names = [n for n in names if not inspect.isclass(getattr(module, n)) and not n.startswith("has_torch_function")]
    unknown = [n for n in names if operation_type(f"{module.__name__}.{n}") is OperationType.UNKNOWN]
    assert set(unknown) <= plumbing


def test_arithmetic_operators_are_known() -> None:
    arithmetic = "add sub mul truediv floordiv mod pow neg pos invert lshift rshift and_ or_ xor eq ne lt le gt ge"
    names = arithmetic.split()
    in_place = [n for n in operator.__all__ if n.startswith("i") and n[1:] in {name.rstrip("_") for name in names}]
    assert len(in_place) > 8
    for name in [*names, *in_place]:
        assert operation_type(f"_operator.{name}") in ("pointwise", "view"), name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten.convolution.default", "convolution"),
        ("aten.add_.Tensor", "add_"),
        ("aten::add_.Tensor", "add_"),
        ("aten.add", "add"),
        ("torch.ops.aten.add.Tensor", "add"),
        ("nn.Conv2d", "Conv2d"),
        ("torch.nn.functional.relu", "relu"),
        ("_operator.add", "add"),
        (".view", "view"),
        ("relu", "relu"),
        ("ConvolutionBackward0", "ConvolutionBackward0"),
        ("torch::autograd::CopySlices", "CopySlices"),
        ("torch::autograd::CppNode<my::Function>", "Function"),
        ("torchvision.nms.default", "nms"),
        ("torchvision.ops.boxes.nms", "nms"),
        ("c10d.allreduce_.default", "allreduce_"),
        ("mylib.myop.default", "myop"),
        ("mylib::myop.some_overload", "myop"),
        ("my.package.Block", "Block"),
        ("my.package.<lambda>", "<lambda>"),
        ("", ""),
    ],
)
def test_the_bare_name_is_found_in_every_spelling(name: str, short: str) -> None:
    assert _split(name)[1] == short


def test_bare_names_have_no_dot() -> None:
    names = [*torch._C._dispatch_get_all_op_names(), *OTHER, "a.b.c.d", "...", "aten.", "a::b::c.d"]
    assert [name for name in names if "." in _split(name)[1]] == []


def test_tables_are_sorted_and_disjoint() -> None:
    for tables in (categories._NAMES, categories._CLASSES):
        words = [word for names in tables.values() for word in names.split()]
        assert sorted(word for word in set(words) if words.count(word) > 1) == []
        for category, names in tables.items():
            assert names.split() == sorted(names.split()), category


@pytest.mark.parametrize(
    ("operation", "module", "ran", "found"),
    [
        ("reduction", "AdaptiveAvgPool2d", "aten.mean.dim", "pooling"),
        ("pointwise", "AdaptiveAvgPool2d", "aten.mean.dim aten.div.Scalar", "pooling"),
        ("pointwise", "Dropout", "aten.bernoulli_.float aten.div_.Scalar aten.mul.Tensor", "random"),
        ("pointwise", "Dropout", "aten.native_dropout.default", "random"),
        ("pointwise", "Dropout", "aten.mul.Tensor", "pointwise"),  # a stranger's
        ("reduction", "Softmax", "aten.sum.dim_IntList", "reduction"),
        ("pointwise", "LayerNorm", "aten.mul.Tensor", "pointwise"),
        ("reduction", "AdaptiveAvgPool2d", "", "reduction"),  # nothing is known
        ("matmul", "Dropout", "aten.mm.default aten.bernoulli_.float", "matmul"),  # an op that tells more
        ("reduction", "Linear", "aten.addmm.default aten.sum.dim_IntList", "reduction"),  # of a bias, in backward
        ("pointwise", "", "", "pointwise"),
    ],
)
def test_a_class_says_more_than_an_op_if_it_runs_what_torchs_runs(
    operation: str, module: str, ran: str, found: str
) -> None:
    assert type_of_box(OperationType(operation), module, ran.split()) == OperationType(found)


def test_docstring_examples() -> None:
    result = doctest.testmod(categories)
    assert result.attempted >= 3
    assert result.failed == 0
