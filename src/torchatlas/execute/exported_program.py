"""torch.export's graph -> a Program: the nodes of its blocks (no_grad, autocast, checkpoint) run like all others."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from torchatlas.capturing.exported import Block, attribute, block_of
from torchatlas.execute.program import Mode, Program, ProgramBuilder


def compiled(graph: Any, constants: Mapping[str, str]) -> Program:
    """A program of an fx graph of functions. `constants` says which placeholders are the model's own, by name."""
    compiler = _Compiler(constants)
    return compiler.builder.program(list(compiler.read(graph, "")))


class _Compiler:
    def __init__(self, constants: Mapping[str, str]) -> None:
        self.constants, self.builder = constants, ProgramBuilder()
        self.values: dict[Any, Any] = {}  # fx node -> a register, or what it stands for in an argument

    def read(self, graph: Any, prefix: str) -> Any:
        """Instructions for the nodes of a graph; what it returns."""
        for node in graph.nodes:
            name = prefix + node.name
            if node.op == "placeholder" and not prefix:  # those of an inner graph stand for its operands
                register = self.values[node] = self.builder.register(name)
                if node.name in self.constants:
                    self.builder.constants[register.number] = self.constants[node.name]
                else:
                    self.builder.inputs.append(register.number)
            elif node.op == "get_attr":
                register = self.values[node] = self.builder.register(name)
                self.builder.attached[register.number] = attribute(graph.owning_module, str(node.target))
            elif node.op == "call_function" and (block := block_of(node)) is not None:
                self._block(node, block, name)
            elif node.op == "call_function" and not _is_check(node.target):
                self._call(node, name)
            elif node.op == "output":
                return self._resolved(node.args[0])
        return ()

    def _call(self, node: Any, name: str) -> None:
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):  # of the results of a block
            self.values[node] = args[0][args[1]]
            return
        self.values[node] = self.builder.add(name, node.target, args, kwargs, STAND_INS.get(node.target))

    def _block(self, node: Any, block: Block, name: str) -> None:
        """The nodes of a block between its beginning and its end: their values can be seen as well."""
        for inner, operand in zip(
            (inner for inner in block.body.graph.nodes if inner.op == "placeholder"), block.operands, strict=True
        ):
            self.values[inner] = self._resolved(operand)
        mode = self.builder.add("", Mode, (block.kind, block.settings))
        self.values[node] = self.read(block.body.graph, f"{name}.")
        self.builder.add("", Mode.end, (mode,))

    def _resolved(self, item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return self.values[item]
        if isinstance(item, list):
            return [self._resolved(part) for part in item]
        if isinstance(item, tuple):
            return tuple(self._resolved(part) for part in item)
        if isinstance(item, Mapping):
            return {key: self._resolved(part) for key, part in item.items()}
        if isinstance(item, slice):
            return slice(*(self._resolved(part) for part in (item.start, item.stop, item.step)))
        return item


def _is_check(target: Any) -> bool:
    """What export adds to hold its assumptions: the inputs are checked before the program runs."""
    return str(target).startswith(("aten._assert_tensor_metadata", "aten.sym_constrain_range"))


def copy_unless_same(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Export ends with a copy to each buffer that was assigned, also after `self.count += 1`: a copy to itself.

    That one would only tell autograd that what it saved was overwritten.
    """
    return target if source is target else torch.ops.aten.copy_.default._op(target, source, non_blocking)


STAND_INS = {torch.ops.aten.copy_.default: copy_unless_same}  # operator -> what a program calls in its place
