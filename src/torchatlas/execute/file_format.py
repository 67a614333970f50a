"""How a traced model lies in an `.atlas` file: beside its graph, as data.

The metadata of the graph holds the program (`Saved`), its recorded values the weights. A program calls operators of
torch by name (operations/loadable.py says which), functions of sizes (scalars.py), and begins and ends blocks.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

VERSION = 1
KEY = "program"  # of the graph's metadata, and the folder of its recorded values
BEGIN, END = "begin", "end"  # of a block: without gradients, or under autocast


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
