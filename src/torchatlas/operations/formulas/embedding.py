"""Embeddings: only the rows that are looked up are read."""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import bytes_for, bytes_of, part_of, per_result, results
from torchatlas.operations.work import OpCall, Operand, Work, formula

_SUM, _MEAN, _MAX = 0, 1, 2  # as embedding_bag numbers its modes


@formula("embedding")
def embedding(call: OpCall) -> Work:
    rows = part_of(call["weight"], results(call)[0].numel)
    return Work(bytes_read=rows + bytes_of(call["indices"]))


@formula("embedding_dense_backward embedding_backward")
def embedding_backward(call: OpCall) -> Work:
    """Adds each gradient to the row it came from; a row that is met twice has two added."""
    if call.get("sparse"):
        return embedding_sparse_backward(call)
    gradient = call.inputs[0]
    scaled = gradient.numel if call.get("scale_grad_by_freq") else 0
    return Work(elementwise_flops=gradient.numel + scaled)


@formula("embedding_sparse_backward")
def embedding_sparse_backward(call: OpCall) -> Work:
    """Puts gradients and indices side by side."""
    moved = bytes_of(call["grad"], call["indices"])
    return Work(bytes_read=moved, bytes_written=moved, parallelism=call["grad"].numel)


@formula("embedding_renorm")
def embedding_renorm(call: OpCall) -> Work:
    """The norm of each row that is looked up, a comparison, and a product where it is too long."""
    table: Operand = call["self"]
    indices: Operand = call["indices"]
    touched = indices.numel * table.shape[-1]
    moved = part_of(table, touched)
    read = moved + indices.bytes
    return Work(0, 3 * touched + 4 * indices.numel, read, moved, touched)


@formula("embedding_bag")
@formula("_embedding_bag _embedding_bag_forward_only", backward_only=(1, 2, 3))
def embedding_bag(call: OpCall) -> Work:
    """Rows weighed, added or compared; the mean divides."""
    weights = call.get("per_sample_weights")
    looked_up = call["indices"].numel * call["weight"].shape[-1]
    flops = looked_up * (2 if weights is not None else 1)
    if call["mode"] == _MEAN:
        flops += results(call)[0].numel
    read = part_of(call["weight"], looked_up) + bytes_of(call["indices"], call["offsets"], weights)
    return Work(elementwise_flops=flops, bytes_read=read)


@formula("_embedding_bag_backward _embedding_bag_dense_backward")
def embedding_bag_backward(call: OpCall) -> Work:
    """Adds a bag's gradient, weighed or divided, to the rows of the bag; of a maximum only to the row it was in."""
    if call.get("sparse"):
        return embedding_bag_sparse_backward(call)
    gradient: Operand = call["grad"]
    if call["mode"] == _MAX:
        return Work(elementwise_flops=gradient.numel)
    looked_up = call["indices"].numel * gradient.shape[-1]
    scaled = call.get("per_sample_weights") is not None or call["mode"] == _MEAN
    return Work(elementwise_flops=looked_up * (2 if scaled else 1))


@formula("_embedding_bag_sparse_backward")
def embedding_bag_sparse_backward(call: OpCall) -> Work:
    """One row per index, weighed or divided."""
    gradient: Operand = call["grad"]
    looked_up = call["indices"].numel * gradient.shape[-1]
    scaled = call.get("per_sample_weights") is not None or call["mode"] == _MEAN
    written = bytes_for(looked_up, gradient) + bytes_of(call["indices"])
    return Work(elementwise_flops=looked_up if scaled else 0, bytes_written=written, parallelism=looked_up)


@formula("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(call: OpCall) -> Work:
    """For each index the product of its row with the gradient of its bag, summed."""
    looked_up = call["indices"].numel * call["weight"].shape[-1]
    rows = part_of(call["weight"], looked_up)
    read = rows + bytes_of(call["grad"], call["indices"], call["offsets"], call["offset2bag"])
    return Work(elementwise_flops=2 * looked_up, bytes_read=read)


# Whole numbers to floats: a product and a sum per element.
formula("quantized.embedding_byte quantized.embedding_4bit")(per_result(2))
