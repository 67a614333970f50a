"""Autograd's engine as readable Python, run over torch's real nodes: the same order, the same gradients, step by step.

Read the files in this order; each says which part of torch/csrc/autograd it mirrors.

    edge.py               where a gradient goes: Edge, GraphRoot
    buffer.py             where gradients meet and are summed: InputBuffer
    output_validation.py  which shape and dtype a node's gradients get: validate_outputs
    queue.py              which node is next: ReadyQueue
    plan.py               what will run at all: compute_dependencies, ExecInfo, init_to_execute
    node.py               how one node is run: call_function, call_tensor_pre_hooks
    gradient_memory.py    how much the waiting gradients weigh: GradientMemory
    task.py               one backward, in three phases: GraphTask
    backward_and_grad.py  backward and grad, as torch.autograd has them
    building.py           how the forward pass makes nodes in the first place: Node, set_history

>>> import torch
>>> x = torch.tensor([2.0], requires_grad=True)
>>> task = GraphTask((x * 3 + x.sin()).sum())
>>> task.run()
>>> [node.name() for node in task.order]
['SumBackward0', 'AddBackward0', 'SinBackward0', 'MulBackward0', 'torch::autograd::AccumulateGrad']
>>> x.grad
tensor([2.5839])
"""

from torchatlas.autograd.engine.backward_and_grad import backward, grad
from torchatlas.autograd.engine.buffer import InputBuffer
from torchatlas.autograd.engine.edge import Edge, GraphRoot, gradient_edge
from torchatlas.autograd.engine.gradient_memory import GradientMemory, Moment
from torchatlas.autograd.engine.output_validation import validate_outputs
from torchatlas.autograd.engine.plan import Capture, ExecInfo, compute_dependencies, init_to_execute
from torchatlas.autograd.engine.queue import NodeTask, ReadyQueue
from torchatlas.autograd.engine.task import GraphTask, Step

__all__ = [
    "Capture",
    "Edge",
    "ExecInfo",
    "GradientMemory",
    "GraphRoot",
    "GraphTask",
    "InputBuffer",
    "Moment",
    "NodeTask",
    "ReadyQueue",
    "Step",
    "backward",
    "compute_dependencies",
    "grad",
    "gradient_edge",
    "init_to_execute",
    "validate_outputs",
]
