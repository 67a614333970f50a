"""Turns an operation's name (ATen overload, autograd node, module class, fx function or method) into its category.

Reads names only and never imports torch, so a graph loaded from a file is classified on any machine. A name is looked
up exactly, then simplified rule by rule (_RULES) until a table knows it; what no table knows is unknown or custom.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from typing import NamedTuple

from torchatlas.errors import AnalysisError
from torchatlas.graph.nouns import OperationType
from torchatlas.registry import Registry

# One table per category, of simplified names: no namespace, overload, leading or trailing underscore, vendor or "2d".
_NAMES: dict[OperationType, str] = {
    OperationType.CONVOLUTION: """
    conv conv_depthwise conv_dilated conv_tbc conv_transpose convolution convolution_add_relu convolution_mode
    convolution_overrideable convolution_pointwise convolution_relu convolution_transpose
    convolution_transpose_pointwise deform_conv depthwise_convolution nnpack_spatial_convolution qconv
    qconv_pointwise""",
    # Dense linear algebra: with FFTs, solves and decompositions. They are not products, but no category is nearer: like
    # products they are heavy library kernels that nothing fuses into, and a picture should not show them as reductions.
    OperationType.MATMUL: """
    addbmm addmm addmm_activation addmv addr baddbmm bilinear bmm c2c c2r chain_matmul cholesky cholesky_inverse
    cholesky_solve compute_linear_combination cslt_sparse_mm det dot dyn_quant_matmul_4bit eig eigh eigvals eigvalsh
    einsum fft fft2 fftn geqrf ger grouped_mm hfft hfft2 hfftn householder_product hspmm ifft ifft2 ifftn ihfft ihfft2
    ihfftn imatmul inner int4mm_packed_weight_cpu int_mm inv inverse irfft irfft2 irfftn istft kron ldl_factor ldl_solve
    linalg_cond linear linear_fp16_weight linear_fp16_weight_fp32_activation linear_int8_weight
    linear_int8_weight_fp32_activation linear_pointwise linear_with_input_q_dq_qweight_dq_output_fp32
    linear_with_input_q_dq_qweight_dq_relu_output_fp32 logdet lstsq lu lu_factor lu_solve lu_with_info matmul matrix_exp
    matrix_power matrix_rank matrix_sqrth mixed_dtypes_linear mkl_linear mm mm_plus_mm mm_reduce_impl multi_dot mv orgqr
    ormqr outer pinv pinverse qlinear qlinear_pointwise qr r2c rfft rfft2 rfftn sampled_addmm scaled_addmm
    scaled_grouped_mm scaled_grouped_mm_v2 scaled_mm scaled_mm_v2 semi_structured_addmm semi_structured_linear
    semi_structured_mm slogdet smm solve solve_triangular sparse_matmul spsolve sspaddmm stft svd svdvals tensordot
    tensorinv tensorsolve triangular_solve trilinear vdot vecdot weight_int4pack_mm weight_int4pack_mm_for_cpu
    weight_int4pack_mm_with_scales_and_zeros weight_int8pack_mm wrapped_fbgemm_linear_fp16_weight
    wrapped_quantized_linear wrapped_quantized_linear_prepacked""",
    # _transformer_encoder_layer_fwd is a whole layer in one kernel; attention is what it is called for.
    OperationType.ATTENTION: """
    attention efficient_attention flash_attention flash_attention_forward_no_dropout_inplace flex_attention
    multi_head_attention multi_head_attention_forward scaled_dot_product_attention scaled_dot_product_attention_math
    scaled_dot_product_attention_math_for_mps scaled_dot_product_cudnn_attention scaled_dot_product_efficient_attention
    scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu
    scaled_dot_product_fused_attention_overrideable transform_bias_rescale_qkv transformer_encoder_layer_fwd
    triton_multi_head_attention triton_scaled_dot_attention""",
    OperationType.RECURRENT: """
    gru gru_cell lstm lstm_cell lstm_mps rnn rnn_layer rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
    thnn_differentiable_gru_cell thnn_differentiable_lstm_cell thnn_fused_gru_cell thnn_fused_lstm_cell""",
    OperationType.NORM: """
    batch_norm batch_norm_elemt batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_impl_index
    batch_norm_legit batch_norm_legit_no_training batch_norm_no_update batch_norm_stats batch_norm_update_stats
    batch_norm_with_update group_norm instance_norm layer_norm local_response_norm norm_except_dim normalize qbatch_norm
    renorm rms_norm weight_norm weight_norm_interface""",
    # Softmax is read as an activation although it reduces; tanh and sigmoid are activations wherever they are used.
    OperationType.ACTIVATION: """
    celu elu gelu glu gumbel_softmax hardshrink hardsigmoid hardswish hardtanh infinitely_differentiable_gelu leaky_relu
    log_sigmoid log_softmax logsigmoid masked_softmax mish nested_tensor_softmax_with_shape prelu prelu_kernel relu
    relu6 rrelu rrelu_with_noise safe_softmax selu sigmoid silu softmax softmin softplus softshrink softsign tanh
    tanhshrink threshold""",
    # Resampling, down and up: pooling, unpooling, interpolation, grid sampling and regions of interest.
    OperationType.POOLING: """
    adaptive_avg_pool adaptive_max_pool affine_grid affine_grid_generator avg_pool fractional_max_pool grid_sample
    grid_sampler grid_sampler_2d grid_sampler_2d_cpu_fallback grid_sampler_3d interpolate lp_pool max_pool
    max_unpool ps_roi_align ps_roi_pool roi_align roi_pool upsample upsample_bicubic upsample_bicubic_aa
    upsample_bilinear upsample_bilinear_aa upsample_lanczos_aa upsample_linear upsample_nearest
    upsample_nearest_exact upsample_trilinear""",
    # One output element from one position of each input: also masks, comparisons, (de)quantisation and scalars.
    OperationType.POINTWISE: """
    abs absolute accumulate_grad acos acosh add add_relu addcdiv addcmul airy_ai
    amp_foreach_non_finite_check_and_unscale amp_update_scale and angle arccos arccosh arcsin arcsinh arctan arctan2
    arctanh asin asinh atan atan2 atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 bessel_y0
    bessel_y1 bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor cbrt ceil
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w clamp clamp_max
    clamp_min clamp_nan_to_num clip complex conj_physical copysign cos cosh cross deg2rad dequantize
    dequantize_per_channel dequantize_per_channel_group dequantize_per_tensor dequantize_per_token diff digamma
    dirichlet_grad div divide entr eq erf erf_inv erfc erfcx erfinv exp exp2 expit expm1 fake_quant_per_channel
    fake_quantize_learnable_per_channel_affine fake_quantize_learnable_per_tensor_affine
    fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_tensor_affine_cachemask_tensor_qparams fix float_power
    floor floor_divide floordiv fmax fmin fmod frac frexp fused_moving_avg_obs_fake_quant fused_moving_avg_obs_fq
    fused_moving_avg_obs_fq_helper gammainc gammaincc gammaln gcd ge gradient greater greater_equal gt heaviside
    hermite_polynomial_h hermite_polynomial_he hypot i0 i0e i1 i1e iadd iand idiv ifloordiv igamma igammac ilshift imod
    imul invert ior ipow irshift isclose isfinite isin isinf isnan isneginf isposinf isreal isub itruediv ixor
    laguerre_polynomial_l lcm ldexp le legendre_polynomial_p lerp less less_equal lgamma log log10 log1p log2 log_ndtr
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lshift lt masked_fill masked_scale maximum
    minimum mod modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 mul multigammaln multiply
    mvlgamma nan_to_num ndtr ndtri ne neg negative nextafter not not_equal or polar polygamma pow psi qadd qmul
    quantize_per_channel quantize_per_channel_group quantize_per_tensor quantize_per_tensor_dynamic quantize_per_token
    rad2deg reciprocal remainder round rshift rsqrt rsub saturate_weight_to_fp16 scaled_modified_bessel_k0
    scaled_modified_bessel_k1 sgn shift_left shift_right_arithmetic shifted_chebyshev_polynomial_t
    shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w sign signbit
    signed_log1p sin sinc sinh spherical_bessel_j0 sqrt square standard_gamma_grad sub subtract sym_float sym_int
    sym_ite sym_max sym_min sym_not sym_sqrt sym_sum tan tril triu true_divide truediv trunc where xlog1py xlogy xor
    zeta""",
    # One output element from many along an axis: also scans (cumsum), histograms and distances.
    OperationType.REDUCTION: """
    all allclose amax amin aminmax any argmax argmin bincount cdist choose_qparams choose_qparams_optimized
    choose_qparams_per_tensor choose_qparams_per_token choose_qparams_per_token_asymmetric choose_qparams_symmetric
    corrcoef cosine_similarity count_nonzero cov csr_prod csr_sum cummax cummaxmin cummin cumprod cumsum
    cumulative_trapezoid dist equal euclidean_dist frobenius_norm hash_tensor histc histogram histogramdd
    histogramdd_bin_edges histogramdd_from_bin_cts histogramdd_from_bin_tensors is_all_true is_any_true kthvalue
    linalg__powsum logcumsumexp logsumexp matrix_norm max mean median min mode nanmean nanmedian nanquantile nansum
    native_norm nested_sum norm nuclear_norm pairwise_distance pdist powsum prod quantile segment_reduce std std_mean
    sum sum_to_size trace trapezoid trapz value_selecting_reduction var var_mean vector_norm xor_sum""",
    # Moves nothing: another look at the same memory, or only its metadata (sizes, checks, profiler marks). reshape is a
    # view whenever it can be, so it is here; what is called in order to copy (contiguous, to) is movement.
    OperationType.VIEW: """
    Constant DictConstruct GetAttr H ListConstruct ListUnpack T TupleConstruct TupleIndex TupleUnpack Uninitialized
    add_batch_dim adjoint alias align_to as_strided assert assert_async assert_scalar assert_tensor_metadata atleast_1d
    atleast_2d atleast_3d broadcast_in_dim broadcast_tensors broadcast_to can_cast ccol_indices chunk coalesced
    col_indices collapse_view conj crow_indices cudnn_is_acceptable data debug_has_internal_overlap dense_dim detach
    device diagonal dim dimI dimV dsplit dtype element_size expand expand_as flatten functional_assert_async
    functional_assert_scalar functional_sym_constrain_range functional_sym_constrain_range_for_size fused_sdp_choice
    fw_primal get_device getattr getitem getslice has_compatible_shallow_copy_type has_same_storage_numel hsplit imag
    indices is_coalesced is_complex is_conj is_contiguous is_cuda is_distributed is_floating_point is_inference is_leaf
    is_neg is_pinned is_same_size is_set_to is_signed is_zerotensor isinstance layout len lift lift_fresh
    linalg_check_errors mH mT make_dep_token make_dual make_token matrix_H meshgrid moveaxis movedim narrow ndim
    ndimension neg_view nested_compute_contiguous_strides_offsets nested_get_jagged_dummy nested_get_lengths
    nested_get_max_seqlen nested_get_min_seqlen nested_get_offsets nested_get_ragged_idx nested_get_values
    nested_tensor_size nested_tensor_storage_offsets nested_tensor_strides nested_view_from_buffer
    nested_view_from_jagged nnz numel numpy_T output_nr permute pos positive promote_types q_per_channel_axis
    q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme ravel real record_function_enter
    record_function_enter_new record_function_exit record_stream refine_names reinterpret_tensor remove_batch_dim rename
    requires_grad reshape reshape_alias reshape_as reshape_from_tensor resolve_conj resolve_neg result_type retain_grad
    retains_grad row_indices select set set_data shape sink_tokens size slice slice_inverse sparse_broadcast_to
    sparse_dim split split_dim split_with_sizes squeeze storage_offset stride swapaxes swapdims sym_constrain_range
    sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride t tensor_split
    transpose unbind unchecked_cast unflatten unflatten_dense_tensors unfold unpack_dual unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsafe_view unsqueeze validate_compressed_sparse_indices validate_sparse_bsc_tensor_args
    validate_sparse_bsr_tensor_args validate_sparse_compressed_tensor_args validate_sparse_coo_tensor_args
    validate_sparse_csc_tensor_args validate_sparse_csr_tensor_args values version view view_as view_as_complex
    view_as_real view_of view_of_dtype vsplit""",
    # Copies, creates or rearranges. sort, topk, unique, searchsorted and nms are here: they pick and reorder;
    # scatter_add and index_add too, for the scatter outweighs the sum.
    OperationType.MOVEMENT: """
    NumToTensor all_gather_copy_in alloc_from_pool arange argsort argwhere as_strided_scatter as_tensor
    autocast_to_full_precision autocast_to_reduced_precision bartlett_window bfloat16 blackman_window block_diag bool
    bucketize byte cartesian_prod cast_Byte cast_Char cast_Double cast_Float cast_Half cast_Int cast_Long cast_Short cat
    chalf channel_shuffle char chunk_cat chunk_cat_mixed_dtype clone coalesce col2im collapse column_stack combinations
    concat concatenate constant_pad_nd contiguous convert_element_type convert_indices_from_coo_to_csr
    convert_indices_from_csr_to_coo convert_weight_to_int4pack convert_weight_to_int4pack_for_cpu copy copy_from
    copy_from_and_resize copy_sparse_to_sparse copy_strided copy_to cpu cslt_compress cuda cudnn_rnn_flatten_weight
    device_put diag diag_embed diagflat diagonal_scatter dim_arange double dstack dyn_quant_pack_4bit_weight
    efficientzerotensor empty empty_affine_quantized empty_like empty_per_channel_affine_quantized empty_permuted
    empty_quantized empty_strided expand_dims_copy eye fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16
    fbgemm_pack_quantized_matrix fftfreq fftshift fill fill_diagonal flatten_dense_tensors flip fliplr flipud float fold
    from_file full full_like gather half hamming_window hann_window hstack ifftshift im2col index index_add index_copy
    index_fill index_put index_put_impl index_reduce index_select int int_repr iota is_nonzero item
    jagged_to_padded_dense kaiser_window lazy_clone linspace local_scalar_dense logspace long lu_unpack
    make_per_channel_quantized_tensor make_per_tensor_quantized_tensor masked_scatter masked_select maximum_value
    minimum_value mkl_reorder_linear_weight mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight mkldnn_reshape
    mkldnn_transpose msort narrow_copy nested_from_padded nested_from_padded_and_nested_example
    nested_from_padded_tensor nested_select nested_tensor_from_mask nested_tensor_from_mask_left_aligned
    nested_tensor_from_tensor_list nested_to_padded_tensor new_empty new_empty_strided new_full new_ones new_tensor
    new_zeros new_zeros_with_same_feature_meta nms nonzero nonzero_numpy nonzero_static numpy one_hot ones ones_like
    pack_padded_sequence pad pad_circular pad_enum pad_packed_sequence pad_sequence padded_dense_to_jagged pin_memory
    pixel_shuffle pixel_unshuffle put qnms range reflection_pad reorder_convolution_transpose_weight
    reorder_convolution_weight reorder_linear_weight reorder_mkldnn_rnn_layer_weight repeat repeat_interleave
    replication_pad reshape_copy resize resize_as resize_as_sparse resize_output resize_storage_bytes rev rfftfreq roll
    rot90 row_stack rowwise_prune scalar_tensor scatter scatter_add scatter_reduce searchsorted select_scatter
    semi_structured_apply semi_structured_apply_dense semi_structured_tile setitem shape_as_tensor short slice_scatter
    sort sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor
    sparse_csr_tensor sparse_mask sparse_mask_projection sparse_resize sparse_resize_and_clear spdiags stack take
    take_along_dim tensor tile to to_copy to_cpu to_dense to_mkldnn to_padded_tensor to_sparse to_sparse_bsc
    to_sparse_bsr to_sparse_csc to_sparse_csr to_sparse_semi_structured tolist topk tril_indices triu_indices type
    type_as unique unique2 unique_consecutive unique_dim unique_dim_consecutive unsafe_index unsafe_index_put
    unsafe_masked_index unsafe_masked_index_put_accumulate vander vstack wrapped_fbgemm_pack_gemm_matrix_fp16
    wrapped_linear_prepack zero zeros zeros_like""",
    # Draws random numbers; dropout too, and its backward.
    OperationType.RANDOM: """
    alpha_dropout bernoulli binomial cauchy cudnn_init_dropout_state dropout exponential feature_alpha_dropout
    feature_dropout fill_mem_eff_dropout_mask geometric inductor_reserve_rng_state log_normal multinomial normal
    philox_key_fold_in philox_key_split philox_normal philox_rand philox_uniform poisson rand rand_like randint
    randint_like randn randn_like random randperm sample_dirichlet sobol_engine_draw sobol_engine_ff
    sobol_engine_initialize_state sobol_engine_scramble standard_gamma uniform""",
    OperationType.EMBEDDING: "embedding embedding_bag embedding_renorm",
    OperationType.LOSS: """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy cross_entropy_loss
    ctc_loss gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss linear_cross_entropy
    linear_cross_entropy_batch_chunked linear_cross_entropy_batch_chunked_no_reduction margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss nll_loss_nd poisson_nll_loss
    smooth_l1_loss soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss""",
    # Only the fused steps: a foreach step is made of ordinary pointwise ops, and the phase says it was the optimizer.
    OperationType.OPTIMIZER: "fused_adagrad fused_adam fused_adamw fused_sgd",
}

# Classes of torch.nn, without "Lazy" and "2d". A class that is not here is a container: OperationType.MODULE.
_CLASSES: dict[OperationType, str] = {
    OperationType.CONVOLUTION: "Conv ConvTranspose",
    OperationType.MATMUL: "Bilinear Linear NonDynamicallyQuantizableLinear",
    OperationType.ATTENTION: "MultiheadAttention",
    OperationType.RECURRENT: "GRU GRUCell LSTM LSTMCell RNN RNNCell",
    OperationType.NORM: """
    BatchNorm CrossMapLRN GroupNorm InstanceNorm LayerNorm LocalResponseNorm RMSNorm SyncBatchNorm""",
    OperationType.ACTIVATION: """
    CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish PReLU RReLU ReLU
    ReLU6 SELU SiLU Sigmoid Softmax Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold""",
    OperationType.POOLING: """
    AdaptiveAvgPool AdaptiveMaxPool AvgPool FractionalMaxPool LPPool MaxPool MaxUnpool Upsample UpsamplingBilinear
    UpsamplingNearest""",
    OperationType.REDUCTION: "CosineSimilarity PairwiseDistance",
    OperationType.VIEW: "Flatten Identity Unflatten",
    OperationType.MOVEMENT: """
    ChannelShuffle CircularPad ConstantPad Fold PixelShuffle PixelUnshuffle ReflectionPad ReplicationPad Unfold
    ZeroPad""",
    OperationType.RANDOM: "AlphaDropout Dropout FeatureAlphaDropout",
    OperationType.EMBEDDING: "Embedding EmbeddingBag",
    OperationType.LOSS: """
    AdaptiveLogSoftmaxWithLoss BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss
    HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss MarginRankingLoss MultiLabelMarginLoss
    MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss
    TripletMarginWithDistanceLoss""",
}

# Names that mean something else in one namespace than the tables say.
_EXCEPTIONS: dict[str, OperationType] = {
    "_operator.inv": OperationType.POINTWISE,  # bitwise not; torch.linalg.inv inverts a matrix
    "prims.reshape": OperationType.MOVEMENT,  # always a copy, unlike aten's
    "torch.linalg.cond": OperationType.MATMUL,  # torch.cond is a branch
    "torch.nn.functional.unfold": OperationType.MOVEMENT,  # im2col; Tensor.unfold is a view
}

# Libraries of operators that ship with torch: `namespace.name.overload`, and a name the tables miss is unknown.
_QUANTIZED_NAMESPACES = frozenset({"_quantized", "mkldnn_prepacked", "onednn", "quantized", "sparse"})
_OPERATOR_NAMESPACES = _QUANTIZED_NAMESPACES | {
    *("aten", "fsdp", "higher_order", "inductor", "inductor_prims", "mkl", "mkldnn", "prim", "prims", "profiler"),
    *("quantization", "quantized_decomposed", "rngprims", "static_runtime", "torch_nn"),
}
_COMMUNICATION_NAMESPACES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "c10d_functional", "symm_mem"}
)
# Python modules whose functions fx calls by name: `torch.nn.functional.relu`, `_operator.add`.
_PYTHON_NAMESPACES = frozenset({"_operator", "builtins", "math", "operator", "torch", "torchvision"})
# Without `::` nothing marks an overload in a namespace we do not know; these words are never a function or a class.
_OVERLOADS = frozenset({"Scalar", "Scalar_out", "Tensor", "Tensor_out", "default", "out"})


class _Rule(NamedTuple):
    """A part of a name that does not change the category, as a regular expression: it is cut off."""

    pattern: str
    materialises: bool = False  # a view with this part writes memory: slice_backward fills a whole tensor of zeros


# In this order, each on the result of the one before; the first result that a table knows decides.
_RULES = (
    _Rule(r"^_foreach_"),  # the op over lists of tensors
    _Rule(r"^__(?=\w+__$)|(?<=\w)__?$"),  # Python's operators and ops in place: __and__, add_
    _Rule(r"_(?:double_|differentiable_|dense_|sparse_|per_sample_weights_)?backward(?:_[a-z]+)?$", materialises=True),
    _Rule(r"_copy$", materialises=True),  # the functional twin of a view: permute_copy
    # Variants of one operator, by what they take, check or return.
    _Rule(r"_(?:ex|forward|forward_only|functional|helper|jvp|out|unsafe|with_(?:dims|dims_and_tensors|indices))$"),
    _Rule(r"(?<=[a-z])[123]d(?=_|$)"),  # the number of dimensions: conv2d, max_pool2d_with_indices
    _Rule(r"^_(?=[a-zA-Z])"),  # private operators
    # The library that computes it.
    _Rule(r"^(?:cudnn|fbgemm|fft|fused|linalg|miopen|mkldnn|mps|native|quantized|slow|sparse|special|thnn)_"),
)
# What the quantized libraries append to an operator's name for a fused epilogue or a number format.
_QUANTIZED_SUFFIX = re.compile(r"_(?:2bit|4bit|add|byte|dynamic|fp16|leaky|out|relu|run|scalar|tanh|unpacked_weight)$")
_QUANTIZED_PACKING = re.compile(r"_(?:prepack|unpack)(?:_\w+)?$")
# `AddBackward0`, `CopyBackwards`, a user's `MyFunctionBackward`; the other C++ nodes have names of their own.
_AUTOGRAD = re.compile(
    r"^\w*Backwards?\d*$|^(?:AccumulateGrad|CopySlices|DelayedError|Error|GraphRoot|NotImplemented|UndefinedGrad)$"
)

# Categories of ops that occur in any layer, and of layers that may run nothing but one of them, forward or backward.
_IN_ANY_LAYER = frozenset({OperationType.POINTWISE, OperationType.REDUCTION, OperationType.MOVEMENT})
_LAYERS_OF_SUCH = frozenset(
    {OperationType.POOLING, OperationType.ACTIVATION, OperationType.NORM, OperationType.LOSS, OperationType.RANDOM}
)

# Classes of torch that never run an op of their own category, and the op that they run instead.
_RUN_INSTEAD = {"AdaptiveAvgPool": "mean"}

REGISTERED: Registry[OperationType] = Registry("operation category")  # what register_operator added, by dotted name


def _by_name(tables: dict[OperationType, str]) -> dict[str, OperationType]:
    return {name: category for category, names in tables.items() for name in names.split()}


_CATEGORY_OF_NAME = _by_name(_NAMES)
_CATEGORY_OF_CLASS = _by_name(_CLASSES)


@functools.cache
def operation_type(operation: str) -> OperationType:
    """The category of an operation, from its name alone. A backward op has the category of its forward op.

    >>> operation_type("aten.convolution_backward.default").value
    'convolution'
    >>> operation_type("nn.LSTM").value, operation_type("torch.nn.functional.gelu").value
    ('recurrent', 'activation')
    >>> operation_type("AddBackward0").value, operation_type("mylib.myop.default").value
    ('gradient', 'custom')
    """
    return _registered_type(operation) or _builtin_type(operation)


def type_of_box(operation: OperationType, module: str, ran: Collection[str] = ()) -> OperationType:
    """The category of a module that runs a single op, by its class where that says more: pooling may be just a mean.

    A graph holds only the bare name of a class, and anybody may call a class Dropout. So a name of torch.nn counts only
    if the ops that the module `ran`, in all phases, are those of torch's own class. A registered class comes first,
    but one that shares its name with a class of torch.nn decides only for ops that occur in any layer.

    >>> type_of_box(OperationType.REDUCTION, "AdaptiveAvgPool2d", ["aten.mean.dim"]).value
    'pooling'
    >>> type_of_box(OperationType.POINTWISE, "Dropout", ["aten.mul.Tensor"]).value
    'pointwise'
    """
    plain = _plain_class(module)
    category = _CATEGORY_OF_CLASS.get(plain)
    registered = _registered_class(module) if len(REGISTERED) else None
    if registered is not None and (category is None or operation in _IN_ANY_LAYER):
        return registered
    if operation not in _IN_ANY_LAYER or category not in _LAYERS_OF_SUCH:
        return operation
    instead = _RUN_INSTEAD.get(plain)
    is_torchs = any(operation_type(name) is category or _split(name)[1] == instead for name in ran)
    return category if is_torchs else operation


def register_category(name: str, category: OperationType) -> None:
    """File the category of a dotted name. AnalysisError if it has one already."""
    known = operation_type(name)
    if name in REGISTERED or known not in (OperationType.CUSTOM, OperationType.MODULE, OperationType.UNKNOWN):
        raise AnalysisError(f"cannot register {name!r} as {category.value}: it is already {known.value}")
    REGISTERED.add(name)(category)
    operation_type.cache_clear()


def _registered_type(operation: str) -> OperationType | None:
    name = dotted(operation)
    return REGISTERED.get(name) or REGISTERED.get(name.rpartition(".")[0])  # as it is, or without its overload


def _registered_class(module: str) -> OperationType | None:
    """The category registered for classes of this bare name; None if there is none, or if several differ."""
    categories = {REGISTERED[name] for name in REGISTERED if name.rpartition(".")[2] == module}
    return categories.pop() if len(categories) == 1 else None


def _builtin_type(operation: str) -> OperationType:
    if _is_autograd_node(operation):
        accumulates = _split(operation)[1] == "AccumulateGrad"
        return OperationType.ACCUMULATE if accumulates else OperationType.GRADIENT
    namespace, name = _split(operation)
    library = namespace.partition(".")[0]
    exception = _EXCEPTIONS.get(f"{namespace}.{name}")
    if exception is not None:
        return exception
    if library in _COMMUNICATION_NAMESPACES:
        return OperationType.COMMUNICATION
    if library in _QUANTIZED_NAMESPACES:
        return _type_of_quantized(name)
    if library in _OPERATOR_NAMESPACES or operation.startswith("."):
        return _type_of_name(name) or OperationType.UNKNOWN
    if _is_class(name):
        return _type_of_class(namespace, name)
    if namespace.startswith("torch.distributed"):
        return OperationType.COMMUNICATION
    if namespace == "" or library in _PYTHON_NAMESPACES:
        return _type_of_name(name) or OperationType.UNKNOWN
    return OperationType.CUSTOM


def _type_of_name(name: str) -> OperationType | None:
    category, materialises = _CATEGORY_OF_NAME.get(name), False
    for rule in _RULES:
        if category is not None:
            break
        simpler = re.sub(rule.pattern, "", name)
        materialises |= rule.materialises and simpler != name
        name, category = simpler, _CATEGORY_OF_NAME.get(simpler)
    return OperationType.MOVEMENT if materialises and category is OperationType.VIEW else category


def _type_of_quantized(name: str) -> OperationType:
    if _QUANTIZED_PACKING.search(name):
        return OperationType.MOVEMENT
    category = _type_of_name(name)
    while category is None and _QUANTIZED_SUFFIX.search(name):
        name = _QUANTIZED_SUFFIX.sub("", name)
        category = _type_of_name(name)
    return category or OperationType.UNKNOWN


def _type_of_class(namespace: str, name: str) -> OperationType:
    if namespace.startswith("torch.optim"):
        return OperationType.OPTIMIZER
    if f"{namespace}.".startswith(("nn.", "torch.nn.", "torch.ao.nn.")):
        return _CATEGORY_OF_CLASS.get(_plain_class(name), OperationType.MODULE)
    return OperationType.MODULE  # a stranger's LayerNorm may be anything: its ops tell, or register_operator


def _plain_class(name: str) -> str:
    return re.sub(r"[123]d$", "", name.removeprefix("Lazy"))


def _is_autograd_node(operation: str) -> bool:
    if operation.startswith(("torch::autograd::", "torch.autograd.", "struct torch::autograd::")):
        return True
    return _AUTOGRAD.match(operation.rpartition("::")[2]) is not None


def _is_class(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def dotted(operation: str) -> str:
    """The one spelling of a name that tables use: mylib.scan of mylib::scan and torch.ops.mylib.scan."""
    return operation.removeprefix("struct ").replace("::", ".").removeprefix("torch.ops.")


def without_overload(operation: str) -> str:
    """The name that all overloads of an operator share: aten.add of aten.add.Tensor."""
    namespace, _, rest = operation.partition(".")
    return f"{namespace}.{rest.rpartition('.')[0] or rest}"


def _split(operation: str) -> tuple[str, str]:
    """Namespace and bare name: ('aten', 'add_') of aten.add_.Tensor, ('', 'view') of .view."""
    parts = [part for part in dotted(operation).split(".") if part]
    if len(parts) < 2:
        return "", parts[0] if parts else ""
    operator = parts[0] in _OPERATOR_NAMESPACES or parts[0] in _COMMUNICATION_NAMESPACES
    marked = "::" in operation and parts[0] != "torch"
    if operator or marked or (len(parts) == 3 and parts[2] in _OVERLOADS):
        return parts[0], parts[1]
    name = parts[-1]
    return ".".join(parts[:-1]), name if "<" in name else name.rstrip(">")
