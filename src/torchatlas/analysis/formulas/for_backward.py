"""Which results of an operator only its backward needs: indices of pools, statistics of norms, masks, workspaces.

torch's kernels write them in inference too. A result that the program itself takes, such as the indices of
`MaxPool2d(return_indices=True)`, counts as an output all the same: `analysis.inference` looks at who reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchatlas.analysis.formulas.measures import aten
from torchatlas.graph.columns import Operation

_BY_RESULTS: dict[tuple[int, ...], str] = {
    # values | indices; output | random mask; loss | total weight, alpha, is_target; output | buffer, mask, norms
    (1,): """
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d native_dropout _fused_dropout nll_loss_forward
    nll_loss2d_forward _ctc_loss _cudnn_ctc_loss multilabel_margin_loss_forward log_sigmoid_forward
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper _weight_norm_interface
    _fused_rms_norm _thnn_fused_gru_cell _scaled_dot_product_flash_attention_for_cpu""",
    # output | mean, reciprocal deviation; determinant, solution | LU, pivots
    (1, 2): """
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training miopen_batch_norm _linalg_det _linalg_solve_ex""",
    # output | statistics and a reserve; output | offsets, sizes and maxima of the bags; output | logsumexp, seeds
    (1, 2, 3): """
    _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update cudnn_batch_norm
    _embedding_bag _embedding_bag_forward_only""",
    (1, 2, 3, 4, 5, 6, 7, 8): """
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward""",
    # hidden, cell | workspace; sign, logarithm | LU, pivots
    (2,): "_thnn_fused_lstm_cell",
    (2, 3): "_linalg_slogdet",
    # output, hidden, cell | workspace, reserve
    (3,): "mkldnn_rnn_layer",
    (3, 4): "_cudnn_rnn miopen_rnn",
}

FOR_BACKWARD: Mapping[str, tuple[int, ...]] = {
    name: results for results, names in _BY_RESULTS.items() for name in aten(names)
}


def results_for_backward(operation: Operation) -> tuple[int, ...]:
    """The positions of an operator's results that only its backward needs; most operators have none."""
    namespace, _, rest = operation.name.partition(".")
    return FOR_BACKWARD.get(f"{namespace}.{rest.rpartition('.')[0] or rest}", ())
