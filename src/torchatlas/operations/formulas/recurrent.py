"""Recurrent layers and cells: each step multiplies its input and its last state with a weight.

The states depend on one another: only one step's results can be computed at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchatlas.operations.work import Formula, OpCall, Operand, Work, formula

# Per element of a step's state, beside the products: sums of the gates and their biases, activations (a sigmoid is 4
# operations, tanh 1), the new state. lstm: 4 gates, f c + i g, o tanh(c). gru: 2 gates, tanh(a + r b), n + z (h - n).
_STEPS = {"lstm": 4 * 3 + (3 * 4 + 1) + 3 + 2, "gru": 2 * (3 + 4) + 5 + 3, "rnn": 3 + 1}
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def kind(operation: str) -> str:
    """lstm, gru or rnn, from a name."""
    return next(one for one in _GATES if one in operation.lower())


def layers(positions: int, weights: Sequence[Operand], states: int, kind: str, at_once: int) -> Work:
    """Every matrix is used at every position. `states` is how many elements a position's states have in all layers."""
    macs = positions * sum(one.numel for one in weights if len(one.shape) == 2)
    return Work(macs, positions * states * _STEPS[kind], parallelism=at_once)


@formula("lstm gru rnn_tanh rnn_relu _lstm_mps")
def recurrent(call: OpCall) -> Work:
    """All layers and directions; packed sequences have their padding left out of the data already."""
    data, state = call.get("input") or call["data"], _first(call["hx"])
    return layers(_positions(data), call["params"], _states(state), kind(call.operation), state.numel)


@formula("_cudnn_rnn miopen_rnn", backward_only=(3, 4))
def packed_recurrent(call: OpCall) -> Work:
    name = _MODES[call["mode"]]
    return layers(_positions(call["input"]), call["weight"], _states(call["hx"]), name, call["hx"].numel)


@formula("mkldnn_rnn_layer", backward_only=(3,))
def one_layer(call: OpCall) -> Work:
    """One layer, one direction. Without biases, zeros in the shape of the weights stand for them."""
    weights, state = call.inputs[1:3], call["hx_"]
    return layers(_positions(call["input"]), weights, state.shape[-1], _MODES[call["mode"]], state.numel)


def _backward_of(forward: Formula) -> Formula:
    """Towards the input and the state, and towards the weights: always all of them, so twice the work of forward."""

    def backward(call: OpCall) -> Work:
        work = forward(call)
        return Work(2 * work.macs, 2 * work.elementwise_flops, parallelism=work.parallelism)

    return backward


formula("lstm_mps_backward")(_backward_of(recurrent))
formula("_cudnn_rnn_backward miopen_rnn_backward")(_backward_of(packed_recurrent))
formula("mkldnn_rnn_layer_backward")(_backward_of(one_layer))


@formula(
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell",
    "quantized_rnn_tanh_cell",
)
def cell(call: OpCall) -> Work:
    state = _first(call["hx"])
    weights = [call["w_ih"], call["w_hh"]]
    return layers(_positions(call["input"]), weights, state.shape[-1], kind(call.operation), state.numel)


@formula(
    "quantized.quantized_lstm_cell_dynamic quantized.quantized_gru_cell_dynamic",
    "quantized.quantized_rnn_relu_cell_dynamic nn.LSTMCell nn.GRUCell nn.RNNCell",
    "quantized.quantized_rnn_tanh_cell_dynamic",
)
def cell_of_unseen_weights(call: OpCall) -> Work:
    """Weights that are packed away, or belong to the module: the sizes of input and state say theirs."""
    data, state, name = call.inputs[0], call.outputs[0], kind(call.operation)
    weight = _GATES[name] * state.shape[-1] * (data.shape[-1] + state.shape[-1])
    steps = _positions(data)
    return Work(steps * weight, state.numel * _STEPS[name], parallelism=state.numel)


@formula("quantized_lstm quantized_gru nn.LSTM nn.GRU nn.RNN")
def layers_of_unseen_weights(call: OpCall) -> Work:
    """Results are [..., directions * state], the last state is [layers * directions, ..., state]."""
    name = kind(call.operation)
    data, (result, last, *cells) = call.inputs[0], [one for one in call.outputs if "int" not in one.dtype]
    state, inner = last.shape[-1], cells[0].shape[-1] if cells else last.shape[-1]
    directions = result.shape[-1] // state
    depth = last.shape[0] // directions
    taken = data.shape[-1] + (depth - 1) * directions * state  # by all layers together
    weight = directions * _GATES[name] * inner * (taken + depth * state)
    projection = directions * depth * inner * state if inner != state else 0
    steps = _positions(data)
    return Work(
        steps * (weight + projection), steps * directions * depth * inner * _STEPS[name], parallelism=last.numel
    )


@formula("_thnn_fused_gru_cell", backward_only=(1,))
@formula("_thnn_fused_lstm_cell", backward_only=(2,))
def fused_gates(call: OpCall) -> Work:
    """What comes after the products: gates, activations, the new state."""
    return Work(elementwise_flops=call.outputs[0].numel * _STEPS[kind(call.operation)])


@formula(
    "_thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl _thnn_differentiable_lstm_cell_backward",
    "_thnn_fused_gru_cell_backward _thnn_differentiable_gru_cell_backward",
)
def fused_gates_backward(call: OpCall) -> Work:
    """About twice the steps forward, on as many states as the gradients of the gates have room for."""
    name = kind(call.operation)
    return Work(elementwise_flops=2 * call.outputs[0].numel // _GATES[name] * _STEPS[name])


_MODES = ("rnn", "rnn", "lstm", "gru")  # rnn_relu, rnn_tanh, lstm, gru: torch's own numbers


def _positions(data: Operand) -> int:
    """Steps of all sequences together."""
    return data.numel // max(data.shape[-1], 1)


def _states(last: Operand) -> int:
    """Elements of all layers' states at one position, from [layers * directions, ..., state]."""
    return last.shape[0] * last.shape[-1]


def _first(states: Operand | list[Operand]) -> Operand:
    return states[0] if isinstance(states, list) else states
