"""One file for each fault that the doctor finds, named after its key. Importing a file registers its diagnosis."""

from torchatlas.diagnosis.faults import (  # noqa: F401
    broadcast_in_loss,
    data_write,
    dropout_in_eval,
    freed_graph,
    graph_kept,
    in_place,
    kept_state,
    loss_mismatch,
    loss_without_grad,
    not_finite,
    not_zeroed,
    nothing_changes,
    optimizer_misses,
    order,
    retain_graph,
    saved_memory,
    train_eval_mode,
    vanishing_exploding,
    zero_gradients,
)
