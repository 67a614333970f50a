"""The words of the house: which kinds of node, phase, role and operation there are, and what a source line is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchatlas.escapes import clean


class NodeKind(StrEnum):
    """What a node stands for. torch.fx's words (placeholder, call_function) are accepted as well."""

    INPUT = "input"
    OP = "op"
    OUTPUT = "output"

    @classmethod
    def _missing_(cls, value: object) -> NodeKind | None:
        fx_words = {"placeholder": cls.INPUT, "call_function": cls.OP, "call_module": cls.OP, "call_method": cls.OP}
        return fx_words.get(str(value))


class Phase(StrEnum):
    """When in a training step a node ran."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"  # forward work repeated inside backward by activation checkpointing
    OPTIMIZER = "optimizer"
    OTHER = "other"  # between backward and the next forward: gradient clipping, averaging of weights


class OperationType(StrEnum):
    """The category of an operation; never its phase."""

    CONVOLUTION = "convolution"
    MATMUL = "matmul"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    NORM = "norm"
    ACTIVATION = "activation"
    POOLING = "pooling"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    VIEW = "view"
    MOVEMENT = "movement"
    RANDOM = "random"
    EMBEDDING = "embedding"
    LOSS = "loss"
    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"
    GRADIENT = "gradient"  # autograd graphs only
    ACCUMULATE = "accumulate"  # autograd graphs only
    MODULE = "module"  # module-level graphs: a container that is not one of the above
    CUSTOM = "custom"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What a tensor is to the program."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"  # the .grad of a leaf
    OPTIMIZER_STATE = "optimizer state"
    TEMPORARY = "temporary"  # made in backward, optimizer or other code, and none of the above


class EdgeKind(StrEnum):
    """Data flows along `data`; `order` only says that the target may not run before the source."""

    DATA = "data"
    ORDER = "order"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of the user's program."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return clean(f"{self.file}:{self.line} in {self.function}")
