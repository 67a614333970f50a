"""Enums of a graph: kinds of nodes and edges, phases, roles, categories of operations; and SourceLine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchatlas.escapes import clean
from torchatlas.graph.shown import ShownPart

_FX_WORDS = {"placeholder": "input", "call_function": "op", "call_module": "op", "call_method": "op"}


class NodeKind(StrEnum):
    """What a node stands for. torch.fx's words (placeholder, call_function) are accepted, and equal, as well."""

    INPUT = "input"
    OP = "op"
    OUTPUT = "output"

    @property
    def fx_word(self) -> str:
        """What torch.fx calls it."""
        return {"input": "placeholder", "op": "call_function"}.get(self.value, self.value)

    @classmethod
    def _missing_(cls, value: object) -> NodeKind | None:
        word = _FX_WORDS.get(str(value))
        return None if word is None else cls(word)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, _FX_WORDS.get(other, other)) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__  # of our own word: in a set or dictionary only that is found

    def __repr__(self) -> str:
        return f"<NodeKind.{self.name}: {self.value!r}, in torch.fx {self.fx_word!r}>"


class Phase(StrEnum):
    """When in a training step a node ran."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"  # forward work repeated inside backward by activation checkpointing
    OPTIMIZER = "optimizer"
    OTHER = "other"  # between backward and the next forward: gradient clipping, averaging of weights


class OperationType(StrEnum):
    """The category of an operation; never its phase. pytorch-graph's words: `torchatlas.compat.pytorch_graph`."""

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
class SourceLine(ShownPart):
    """One line of the user's program."""

    file: str  # its path
    line: int  # its number, from 1
    function: str  # the function the line is in
    text: str  # what stands there

    def __str__(self) -> str:
        return clean(f"{self.file}:{self.line} in {self.function}")
