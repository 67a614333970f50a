"""Every private torch symbol the package uses, in one place. tests/test_torch_private.py holds a canary for each.

torch may change these in any release; when one goes, this file and its canary are what to mend.
"""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._C import _current_autograd_node as current_autograd_node
from torch._C._autograd import _get_sequence_nr as next_sequence_nr
from torch._C._autograd import _unsafe_set_version_counter as set_version_counters
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

__all__ = [
    "FakeCopyMode",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "UninitializedTensor",
    "current_autograd_node",
    "dispatch_mode_stack",
    "next_sequence_nr",
    "no_dispatch_modes",
    "pytree",
    "set_version_counters",
    "tensor_data",
]

no_dispatch_modes = _disable_current_modes
tensor_data: Any = torch._C.TensorBase.data  # the descriptor behind Tensor.data
UninitializedTensor: Any = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]  # of lazy modules


def dispatch_mode_stack() -> list[TorchDispatchMode]:
    """The dispatch modes of this thread, innermost last."""
    return list(_get_current_dispatch_mode_stack())
