"""One trace of a model: its program, its graph, the names that link the two, and a check of which inputs it serves."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from torchatlas.errors import (
    CaptureError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    NodeNotFoundError,
    NotAvailableError,
    OutOfMemoryError,
)
from torchatlas.execute.capture_fallback import Followed
from torchatlas.execute.exporting import bound
from torchatlas.execute.node_values import RunOptions, Taken, ValueObserver, check_runs_ops, cloned
from torchatlas.execute.program import Failed, Program, Unreachable, part
from torchatlas.execute.program_file import NUMBERS_ONLY
from torchatlas.graph import Graph, GraphNode, Value
from torchatlas.graph.module_outputs import output_nodes, without_output
from torchatlas.torch_private import pytree


@dataclass(eq=False)
class Variant:
    """One trace. A model has several if some sizes, such as 1, need a trace of their own."""

    program: Program | Followed
    graph: Graph
    in_spec: Any
    out_spec: Any
    leaves: list[tuple[str, Any]]  # of the inputs: name, and what is expected of it
    guards: list[tuple[str, Any]]  # what export assumed of the sizes: as text and as code
    constants: dict[str, Any] = field(default_factory=dict)  # what is not the model's own
    exported: Any = None  # torch.export's program, where it was made here

    def run(self, flat: list[Any], model: nn.Module, options: RunOptions) -> tuple[Any, dict[str, Taken]]:
        """Run the trace, with inputs in the order of `in_spec`. Returns the result and, by name, the kept values."""
        try:
            if isinstance(self.program, Followed):
                args, kwargs = pytree.tree_unflatten(flat, self.in_spec)
                return self.program.run(args, kwargs, options)
            recorder = ValueObserver(options) if options else None
            results = self.program.run(flat, self.tensors_of(model), recorder)
        except Failed as failed:
            if isinstance(failed.error, CaptureError):  # of an edit, which says where it was called
                raise failed.error from failed.error.__cause__
            raise self._explained(failed) from failed.error
        return structured(results, self.out_spec), {} if recorder is None else recorder.values()

    def run_between(self, values: Mapping[str, Any], to: str, model: nn.Module) -> list[Any]:
        """Compute what a node or module makes from the values of other nodes alone."""
        if not isinstance(self.program, Program):
            raise NotAvailableError("a part of a model can be run when torch.export traced it, not from a capture.")
        numbers = {name: register for register, name in enumerate(self.program.names) if name}
        register_values: dict[int, Any] = {}
        for name, value in values.items():
            registers = [numbers[node] for node in self._made_by(name, model)]
            several = value if len(registers) > 1 and isinstance(value, (list, tuple)) else [value]
            if len(several) != len(registers):
                raise InvalidInputError(f"{name!r} makes {len(registers)} values; {len(several)} were given.")
            register_values.update(zip(registers, several, strict=True))
        try:
            program = part(
                self.program,
                register_values,
                [numbers[node] for node in self._made_by(to, model)],
                self._storages_of,
            )
        except Unreachable as error:
            leaves = dict(zip(self.program.inputs, self.leaves, strict=True))
            missing = ", ".join(self.program.names[r] or leaves[r][0] for r in error.missing)
            raise InvalidInputError(
                f"{', '.join(map(repr, values)) or 'nothing'} does not determine {to!r}: it also depends on {missing}. "
                "Give that as well, or the value of a node on the way."
            ) from None
        written = {s for instruction in program.instructions for r in instruction.writes for s in self._storages_of(r)}
        arguments = [cloned(value) if self._storages_of(r) & written else value for r, value in register_values.items()]
        try:
            return program.run(arguments, self.tensors_of(model))
        except Failed as failed:
            raise self._explained(failed) from failed.error

    def hyperparameters(self, name: str, model: nn.Module) -> dict[str, Any]:
        """The arguments of a node by name: its attributes, and weights and biases as tensors."""
        constants = self.tensors_of(model)
        attributes = self.graph[name].hyperparameters
        return {
            key: constants(item.parameter) if isinstance(item, Value) and item.parameter else item
            for key, item in attributes.items()
        }

    # -- names -------------------------------------------------------------------------------------------------------

    def node_names(self, name: str, model: nn.Module, *, edited: bool = False) -> list[str]:
        """The node of a name; for the path of a module of the model the nodes that make the output of each of its
        calls."""
        graph = self.graph
        if name in graph:
            return [name]
        if name in graph.scopes:
            made = _outputs_of(graph, name)
            if not made:
                raise NodeNotFoundError(without_output(graph, name))
            if edited and any(len(nodes) > 1 for nodes in made):
                several = next(nodes for nodes in made if len(nodes) > 1)
                raise InvalidInputError(f"module {name!r} makes several values; edit one of its nodes: {several}.")
            return [node for nodes in made for node in nodes]
        check_runs_ops(name, model)
        return [graph[name].name]  # an error that suggests near names

    def _made_by(self, name: str, model: nn.Module) -> list[str]:
        """The node of a name, or the nodes that make what a module returns; a module that is called once."""
        calls = _outputs_of(self.graph, name) if name not in self.graph and name in self.graph.scopes else [[]]
        if len(calls) > 1:
            raise InvalidInputError(f"module {name!r} is called {len(calls)} times; name one of its nodes: {calls}.")
        return self.node_names(name, model)

    def _explained(self, failed: Failed) -> Exception:
        where = node_location(self.graph[failed.name]) if failed.name else "a call that is no node of the graph"
        first = (str(failed.error).splitlines() or [""])[0]
        text = f"running the traced model failed at {where}: {type(failed.error).__name__}: {first}"
        if isinstance(failed.error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in first:
            return OutOfMemoryError(f"{text}. Keep fewer values, with nodes=[...], or take smaller inputs.")
        if isinstance(failed.error, (RuntimeError, IndexError)):
            return InputMismatchError(text)
        return CaptureError(text)

    # -- memory ------------------------------------------------------------------------------------------------------

    def tensors_of(self, model: nn.Module) -> Callable[[str], Any]:
        """Parameters and buffers by name, as the model has them now, and what the trace itself holds."""
        owners: dict[str, Any] = {"": model}  # each module is looked up once in a run
        others = self.constants

        def constant(name: str) -> Any:
            return others[name] if name in others else tensor_named(name, owners)

        return constant

    @cached_property
    def _storages(self) -> dict[int, frozenset[int]]:
        """Register -> the memory that it may lie in, by its number in the graph."""
        assert isinstance(self.program, Program)
        storages: dict[int, frozenset[int]] = {}
        by_parameter: dict[str, set[int]] = {}
        for value in self.graph.values:
            if value.parameter and value.storage is not None:
                by_parameter.setdefault(value.parameter, set()).add(value.storage.id)
        for register, parameter in self.program.constants.items():
            storages[register] = frozenset(by_parameter.get(parameter, ()))
        for register, name in enumerate(self.program.names):
            if name:
                made = self.graph[name].outputs
                storages[register] = frozenset(value.storage.id for value in made if value.storage is not None)
        for instruction in self.program.instructions:
            if instruction.function is operator.getitem:  # of several results: in the memory of any of them
                storages[instruction.result] = storages.get(instruction.reads[0], frozenset())
        return storages

    def _storages_of(self, register: int) -> frozenset[int]:
        return self._storages.get(register, frozenset())


def structured(results: list[Any], spec: Any) -> Any:
    """Values in the structure that a model takes or returns. A file may name any class that torch's pytree knows."""
    try:
        return pytree.tree_unflatten(results, spec)
    except Exception as error:  # of that class
        raise CaptureError(f"what the model takes or returns cannot be put together again: {error}") from error


def tensor_named(name: str, owners: dict[str, Any]) -> torch.Tensor:
    """A tensor of the model that is `owners[""]`; `owners` remembers the modules on the way.

    Names may come from a file. Only modules, parameters, buffers and tensors that are attributes are looked up, never
    a property or what else an object answers to: "__class__.__init__.__globals__" names nothing.
    """
    path, _, last = name.rpartition(".")
    if path not in owners:
        owner = owners[""]
        for part in path.split("."):
            owner = owner._modules.get(part) if isinstance(owner, nn.Module) else None
        owners[path] = owner
    if isinstance(owner := owners[path], nn.Module):
        for held in (owner._parameters, owner._buffers, vars(owner)):
            if isinstance(tensor := held.get(last), torch.Tensor):
                return tensor
    raise InvalidModelError(f"this {type(owners['']).__name__} has no parameter, buffer or tensor {name!r}.")


def node_location(node: GraphNode) -> str:
    """A node, its module and its line, in words."""
    where = f"{node.name} ({node.operation})"
    if node.scope.path:
        where += f" in module {node.scope.path}"
    return f"{where}, {node.source}" if node.source is not None else where


def _outputs_of(graph: Graph, path: str) -> list[list[str]]:
    """For each call of a module, the names of the nodes that make what it returns."""
    return [[graph.nodes[node].name for node in call] for call in output_nodes(graph, path)]


# -- the inputs that a trace serves ------------------------------------------------------------------------------------


def guard_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The names that guards use: arguments by name, and `flat_args`, which the guards of strict export use."""
    return {"flat_args": pytree.tree_leaves((args, kwargs)), **bound(model, args, kwargs)}


@dataclass(frozen=True)
class Expected:
    """What an input tensor must have. A size that may vary is a symbol, or a formula of symbols."""

    dtype: torch.dtype
    device: str  # its type
    shape: tuple[str, ...]


ANY_NUMBER = object()  # an input that may be any number


def expected(traced: Any) -> Any:
    """What an input must be: Expected for a tensor, ANY_NUMBER for a number that may vary, else the traced constant."""
    if isinstance(traced, torch.Tensor):
        return Expected(traced.dtype, traced.device.type, tuple(map(str, traced.shape)))
    return ANY_NUMBER if isinstance(traced, (torch.SymInt, torch.SymFloat, torch.SymBool)) else traced


def mismatch(leaves: list[tuple[str, Any]], flat: list[Any]) -> str | None:
    """The first thing about inputs that does not fit the trace, in words; None if all fits."""
    known: dict[str, int] = {}
    small: str | None = None  # said last: another trace helps there
    for (name, wanted), argument in zip(leaves, flat, strict=True):
        if not isinstance(wanted, Expected):
            if wanted is not ANY_NUMBER and (isinstance(argument, torch.Tensor) or wanted != argument):
                return f"input {name} is {argument!r}, but {wanted!r} was traced and is part of the graph: trace again."
            continue
        if not isinstance(argument, torch.Tensor):
            return f"input {name} is a {type(argument).__name__}, not a tensor: pass torch.as_tensor(...) of it."
        if argument.dtype != wanted.dtype:
            return f"input {name} has dtype {argument.dtype}; the model was traced with {wanted.dtype}."
        if argument.device.type != wanted.device:
            return f"input {name} is on {argument.device}; the model was traced on {wanted.device}."
        if argument.dim() != len(wanted.shape):
            return f"input {name} has {argument.dim()} dimensions; the model was traced with {len(wanted.shape)}."
        for dim, (size, fixed) in enumerate(zip(argument.shape, wanted.shape, strict=True)):
            if fixed.isdecimal():
                if size != int(fixed):
                    why = "(traced.input_sizes says why)"
                    return f"input {name} has size {size} in dimension {dim}; this trace fixes it to {fixed} {why}."
            elif fixed.isidentifier():
                if known.setdefault(fixed, size) != size:
                    other = known[fixed]
                    return f"input {name} has size {size} in dimension {dim}, which must be {other}, as elsewhere."
                if size < 2:
                    small = f"input {name} has size {size} in dimension {dim}; {FROM_TWO}"
    return small


FROM_TWO = "it was traced for sizes from 2."


def broken_guard(guards: list[tuple[str, Any]], arguments: dict[str, Any]) -> str | None:
    """The first assumption of export about sizes, made for the example, that does not hold for these inputs."""
    names = {**SYMPY_INTERP, **NUMBERS_ONLY, "L": arguments}
    for text, code in guards:
        try:
            holds = bool(eval(code, names))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CaptureError(f"what was assumed of the sizes cannot be computed: {text}: {error}.") from error
        if not holds:
            assumption = text.replace("L['", "").replace("']", "").replace(".size()", ".shape")
            return f"the model was traced where {assumption}, and takes another path for these sizes."
    return None


def looks(leaf: Any) -> Any:
    """Cache key: inputs with equal keys are served by the same trace."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device.type
    return type(leaf), leaf if isinstance(leaf, (bool, int, float, str, type(None))) else repr(leaf)


def usable_device(device: Any) -> torch.device:
    """The device that was asked for, if torch knows it and can use it here."""
    try:
        usable = torch.device(device)
        torch.empty(0, device=usable)
    except (AssertionError, RuntimeError, TypeError) as error:  # torch has no error class of its own for any of them
        first = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise InvalidInputError(
            f"device={str(device)!r} cannot be used here: {first}. Leave device= out to trace the model where it is."
        ) from error
    return usable


def check_device(model: nn.Module, device: torch.device) -> None:
    elsewhere = {p.device.type for p in [*model.parameters(), *model.buffers()]} - {device.type}
    if elsewhere:
        raise InvalidInputError(
            f"device={str(device)!r}, but the model is on {', '.join(sorted(elsewhere))}. "
            f"Move it first: model.to({str(device)!r})."
        )
