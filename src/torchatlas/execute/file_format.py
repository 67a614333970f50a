"""How a traced model lies in an `.atlas` file: beside its graph, as data.

The metadata of the graph holds the program (`Saved`), its recorded values the weights. A program may call operators of
torch that stay inside of the process's memory (see ops.py), and the functions listed here.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from msgspec import Struct

from torchatlas.execute.program import Mode

VERSION = 1
KEY = "program"  # of the graph's metadata, and the folder of its recorded values
_SIZES = "add sub mul floordiv truediv mod pow neg pos eq ne lt le gt ge and_ or_ not_ getitem"  # what sizes go through
FUNCTIONS = {
    **{f"operator.{name}": getattr(operator, name) for name in _SIZES.split()},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "sqrt", "trunc")},
    **{f"torch.sym_{name}": getattr(torch, f"sym_{name}") for name in ("float", "int", "ite", "max", "min", "not")},
    "begin": Mode,
    "end": Mode.end,
}


class Step(Struct, array_like=True):
    """An instruction. `call` are its arguments, with registers in the place of tensors."""

    name: str
    result: int
    function: str
    call: str


class Leaf(Struct):
    """What is expected of an input."""

    name: str
    kind: str  # tensor | number | constant
    dtype: str = ""
    device: str = ""
    shape: list[str] = []
    value: str = "null"


class Held(Struct):
    """A parameter, a buffer or a constant: which tensor it is."""

    tensor: int
    kind: str
    requires_grad: bool


class SavedVariant(Struct):
    """One trace."""

    registers: list[str]  # their names
    inputs: list[int]
    constants: dict[str, str]  # register -> parameter, buffer or constant
    attached: dict[str, int]  # register -> tensor
    calls: list[Step]
    outputs: str
    names: dict[str, str]
    in_spec: Any
    out_spec: Any
    leaves: list[Leaf]
    guards: list[str]


class Saved(Struct):
    """What the metadata of a graph says of its program."""

    version: int
    model: str
    signature: list[tuple[str, int, bool, str]]  # name, kind, whether there is a default, which
    weights: bool
    tensors: list[tuple[str, list[int]]]  # dtype and shape; their bytes lie among the recorded values
    held: dict[str, Held]  # by name
    variant: SavedVariant
    variants: int  # further ones, each a file in the file
