"""Inputs and outputs of nodes: kept, edited or watched while a program runs, read by name afterwards, or written out.

`ValueFile` writes tensors one after another to a .safetensors file and never holds more than one of them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchatlas.errors import FileSystemError, InvalidInputError, NodeNotFoundError
from torchatlas.execute.program import Instruction, Observer, Program
from torchatlas.files import replacing
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.module_outputs import runs_nothing
from torchatlas.graph.names import short_name
from torchatlas.graph.shown import Shown
from torchatlas.registry import did_you_mean
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import pytree

Edits = Mapping[str, Callable[[Any], Any]]
_MOST_ROWS = 40
_MOST_PARTS = 8


@dataclass(frozen=True, eq=False, repr=False)
class NodeIO(Shown):
    """What one node took and made in one run. Indexing by "inputs", "output", "hyperparameters" works as well.

    So does indexing by the keys of DLBacktrace's `node_io`: "input_values", "output_values", "layer_hyperparams",
    "input_sources", "output_children", "node_type", "layer_type", "func_name".
    """

    inputs: tuple[Any, ...]
    output: Any
    _hyperparameters: Callable[[], dict[str, Any]] = field(repr=False)
    node: GraphNode | None = field(default=None, repr=False)  # None for the output of a model that was not traced

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What it was called with by name; weights and biases are the model's own."""
        return self._hyperparameters()

    def __getitem__(self, name: str) -> Any:
        """One of `keys()` by its name."""
        if name in _OF_VALUES:
            return getattr(self, _OF_VALUES[name])
        if self.node is None or name not in _OF_NODE:
            raise KeyError(f"{name!r} is not one of {', '.join(self.keys())}")
        return _OF_NODE[name](self.node)

    def keys(self) -> list[str]:
        """What it can be indexed by."""
        return [*_OF_VALUES, *(() if self.node is None else _OF_NODE)]

    def _sections(self) -> Iterator[Section]:
        taken = ", ".join(map(value_text, self.inputs)) or "nothing"
        name = "the model" if self.node is None else self.node.name
        yield Lines([f"{name}: {taken} -> {value_text(self.output)}"])
        rows = [[f"input {number}", value_text(one)] for number, one in enumerate(self.inputs)]
        yield Table(["", "value"], [*rows, ["output", value_text(self.output)]])
        if known := self.hyperparameters:
            yield Table(["argument", "value"], [[key, value_text(one)] for key, one in known.items()])


_OF_VALUES = {
    "inputs": "inputs",
    "output": "output",
    "hyperparameters": "hyperparameters",
    "input_values": "inputs",
    "output_values": "output",
    "layer_hyperparams": "hyperparameters",
}
_OF_NODE: dict[str, Callable[[GraphNode], Any]] = {
    "input_sources": lambda node: [one.name for one in node.predecessors],
    "output_children": lambda node: [one.name for one in node.successors],
    "node_type": lambda node: node.op,
    "layer_type": lambda node: str(node.operation_type),
    "func_name": lambda node: short_name(node.operation),
}


def value_text(value: Any) -> str:
    """A value in one line: of tensors what they are, not their numbers."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        more = f", {len(value) - _MOST_PARTS:,} more" if len(value) > _MOST_PARTS else ""
        return f"({', '.join(map(value_text, value[:_MOST_PARTS]))}{more})"
    if isinstance(value, dict):
        return value_text([f"{key}: {value_text(one)}" for key, one in value.items()])
    kind: Any = type(value)
    return f"a {kind.__name__}" if kind.__repr__ is object.__repr__ else str(value)  # else Python shows an address


class NodeValues(Shown, Mapping[str, NodeIO]):
    """Node name -> what it took and made, in the order in which the nodes ran. `output` is the model's.

    The path of a module stands for the node that makes what the module returns, as in `graph[...]`.
    """

    def __init__(self, entries: dict[str, NodeIO], output: Any, graph: Graph | None = None, model: Any = None) -> None:
        self._entries, self.output, self._graph, self._model = entries, output, graph, model

    def __getitem__(self, name: str) -> NodeIO:
        """What a node, or the last node of a module, took and made."""
        if name and name not in self._entries and self._graph is not None and name in self._graph.scopes:
            name = self._graph[name].name
        if name not in self._entries:
            check_runs_ops(name, self._model)
            modules = () if self._graph is None else self._graph.scopes
            raise NodeNotFoundError(f"no value of {name!r} was kept{did_you_mean(name, [*self._entries, *modules])}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the nodes, in the order in which they ran."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<values of {len(self)} nodes>"

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"values of {len(self):,} nodes; the model returned {value_text(self.output)}"])
        names = list(self)[:_MOST_ROWS]
        rows = [
            [name, ", ".join(map(value_text, (one := self[name]).inputs)), value_text(one.output)] for name in names
        ]
        left = len(self) - len(rows)
        yield Table(["node", "takes", "makes"], rows, below=f"{left:,} more nodes" if left else "")


def check_runs_ops(name: str, model: nn.Module | None) -> None:
    """Refuse the path of a module that a graph does not have since no op runs in it, such as an nn.Identity."""
    modules = {} if model is None else dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        raise NodeNotFoundError(runs_nothing(name, type(modules[name]).__name__))


# -- while it runs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """The inputs of a node, in the order of its arguments, and its output."""

    inputs: tuple[Any, ...]
    output: Any


@dataclass(frozen=True, eq=False)
class RunOptions:
    """What a run is asked for beside its result, by the names of nodes."""

    keep: Collection[str] | None = ()  # whose values to return; None: of all
    edits: Edits = field(default_factory=dict)  # what to put in the place of values
    watch: Callable[[str, Any], None] | None = None  # called with every name and value

    def keeps(self, name: str) -> bool:
        return self.keep is None or name in self.keep

    def __bool__(self) -> bool:
        return self.keep is None or bool(self.keep or self.edits) or self.watch is not None


@dataclass(eq=False, slots=True)
class _Cell:
    """One state of the value in a register, shared by all kept entries that saw it."""

    value: Any
    register: int


class ValueObserver(Observer):
    """Keeps, edits or reports the inputs and outputs of nodes.

    A kept value lies in a cell. Before an op writes to its memory the cell gets a copy, and a later reader of the
    register gets a new cell. Storages tell which values share memory, at run time: schemas do not always say so.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.kept: dict[str, tuple[list[_Cell], _Cell | None]] = {}

    def begin(self, program: Program, registers: list[Any]) -> None:
        self.names, self.registers = program.names, registers
        self.cells: list[_Cell | None] = [None] * len(registers)
        writes = any(instruction.writes for instruction in program.instructions)
        self.in_memory: dict[int, list[_Cell]] | None = {} if writes else None  # storage -> what lies in it
        self.written: set[int] = set()  # storages
        self.outside: set[int] = set()  # those of the model and the caller
        if writes:
            outside = [*program.inputs, *program.constants, *program.attached]
            self.outside.update(storage for register in outside for storage in _storages(registers[register]))
        for register in program.inputs:
            if program.names[register]:  # a number is no node
                self._made(register)

    def _cell(self, register: int) -> _Cell:
        cell = self.cells[register]
        if cell is None:
            cell = self.cells[register] = _Cell(self.registers[register], register)
            if self.in_memory is not None:
                for storage in _storages(cell.value):
                    self.in_memory.setdefault(storage, []).append(cell)
        return cell

    def before(self, instruction: Instruction) -> None:
        """Note what a node takes, and copy what was kept of memory that it writes to."""
        if instruction.name and self.options.keeps(instruction.name):
            self.kept[instruction.name] = [self._cell(register) for register in instruction.reads], None
        if self.in_memory is not None:
            for register in instruction.writes:
                for storage in _storages(self.registers[register]):
                    self.written.add(storage)
                    self._copy(storage)

    def _copy(self, storage: int) -> None:
        assert self.in_memory is not None
        for cell in self.in_memory.pop(storage, ()):
            if self.cells[cell.register] is cell:
                self.cells[cell.register] = None
                cell.value = cloned(cell.value)

    def after(self, instruction: Instruction, args: Any, kwargs: dict[str, Any]) -> None:
        self._made(instruction.result)

    def _made(self, register: int) -> None:
        name, registers = self.names[register], self.registers
        if name in self.options.edits:
            registers[register] = self.options.edits[name](registers[register])
        if self.options.keeps(name):
            taken = self.kept[name][0] if name in self.kept else []
            self.kept[name] = taken, self._cell(register)
        if self.options.watch is not None:
            self.options.watch(name, registers[register])

    def end(self, results: list[Any]) -> None:
        if self.options.keeps("output"):
            self.kept["output"] = [_Cell(result, -1) for result in results], None
        for storage in self.written & self.outside:  # the next run will write to it again
            self._copy(storage)

    def values(self) -> dict[str, Taken]:
        """What was kept, by name."""
        return {
            name: Taken(tuple(cell.value for cell in taken), None if made is None else made.value)
            for name, (taken, made) in self.kept.items()
        }


def _storages(value: Any) -> list[int]:
    """The memory that a value lies in."""
    if isinstance(value, torch.Tensor):
        try:
            return [value.untyped_storage()._cdata]
        except (NotImplementedError, RuntimeError):  # sparse: no op of an exported program writes to those
            return []
    return [s for part in value for s in _storages(part)] if isinstance(value, (list, tuple)) else []


def cloned(value: Any) -> Any:
    """Tensors of their own, still part of autograd's graph."""
    return pytree.tree_map(lambda part: part.clone() if isinstance(part, torch.Tensor) else part, value)


# -- written to a file -------------------------------------------------------------------------------------------------


_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}


class ValueFile:
    """A file in the making. It appears under its name when the block ends without an exception.

    The format begins with the offsets of all tensors, which are known only at the end: until then the bytes wait in a
    second file beside it. Tensors of types that the format lacks are not written: its metadata lists them, "left out".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checked_path(path)
        self._header: dict[str, Any] = {}
        self._left_out: list[str] = []
        self._end = 0
        try:
            self._bytes: Any = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115  # closed in __exit__
        except OSError as error:
            raise FileSystemError(f"cannot write {self.path}: {error.strerror or error}") from error

    def write(self, name: str, value: Any) -> None:
        """A tensor under its name; several under "name:0", "name:1"; nothing for what is no tensor."""
        if isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                self.write(f"{name}:{index}", item)
        elif isinstance(value, torch.Tensor):
            self._write(name, value)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        dtype = _NAMES.get(tensor.dtype)
        if dtype is None or tensor.layout is not torch.strided or tensor.is_nested:
            self._left_out.append(f"{name}: {tensor.dtype}, {tensor.layout}".replace("torch.", ""))
            return
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        size = plain.numel() * plain.element_size()
        if size:
            self._bytes.write(plain.reshape(-1).view(torch.uint8).numpy().data)
        offsets = [self._end, self._end + size]
        self._header[name] = {"dtype": dtype, "shape": list(plain.shape), "data_offsets": offsets}
        self._end += size

    def __enter__(self) -> ValueFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._bytes:
            if error is None:
                self._finish()

    def _finish(self) -> None:
        made_by = {"made by": "torchatlas"}
        if self._left_out:
            made_by["left out"] = "; ".join(self._left_out)
        text = json.dumps({"__metadata__": made_by, **self._header}).encode()
        text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
        try:
            with replacing(self.path) as file:
                file.write(len(text).to_bytes(8, "little") + text)
                self._bytes.seek(0)
                shutil.copyfileobj(self._bytes, file, 1 << 24)
        except FileSystemError:
            raise
        except OSError as error:
            raise FileSystemError(f"cannot write {self.path}: {error.strerror or error}") from error


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path that such a file can have."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InvalidInputError(f"values are saved as .safetensors, not {target.name!r}.")
    return target
