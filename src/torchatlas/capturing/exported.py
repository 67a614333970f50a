"""torch.export's program -> Graph: the same nouns as a recorded run, with symbolic sizes, and no times or memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.frames import is_users
from torchatlas.capturing.record_op import operator_name
from torchatlas.capturing.table_rows import layout_row, operation_of, portable
from torchatlas.capturing.tensors import layout_name
from torchatlas.graph import Graph, NodeKind, OperationType, Role
from torchatlas.graph.arguments import Call, Constant, TensorRef, encode
from torchatlas.graph.builder import Builder
from torchatlas.graph.columns import Layout, Operation
from torchatlas.graph.nouns import SourceLine
from torchatlas.torch_private import OpOverload

_ROLES = {"PARAMETER": Role.PARAMETER, "BUFFER": Role.BUFFER, "CONSTANT_TENSOR": Role.CONSTANT}
# What sets a mode around a part of a graph, and how many arguments say which.
_BLOCKS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4, "tag_activation_checkpoint": 0}
_INPUT, _OUTPUT = Operation("input", OperationType.MOVEMENT), Operation("output", OperationType.MOVEMENT)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n(?: +(?P<text>.*))?')


def graph_of_export(program: Any, model: nn.Module, inputs: list[Any]) -> tuple[Graph, dict[str, int]]:
    """The graph of an exported program, and for each of its nodes that has one, by name, the number of ours.

    A node inside a block is named after the block as well: "wrap_with_autocast.linear".

    `inputs` are the example's, flat: they say what symbolic sizes were.
    """
    return _Reader(program, model).read(inputs)


@dataclass(frozen=True)
class WrappedBlock:
    """A part of an exported graph that runs without gradients, under autocast or in a checkpoint."""

    kind: str
    settings: tuple[Any, ...]
    body: Any  # a GraphModule
    operands: tuple[Any, ...]


def block_of(node: Any) -> WrappedBlock | None:
    """The block that a node of an exported graph stands for; None for any other node."""
    kind = getattr(node.target, "__name__", "")
    if kind not in _BLOCKS:
        return None
    settings = _BLOCKS[kind]
    body = attribute(node.graph.owning_module, str(node.args[settings].target))
    return WrappedBlock(kind, tuple(node.args[:settings]), body, tuple(node.args[settings + 1 :]))


class _Reader:
    def __init__(self, program: Any, model: nn.Module) -> None:
        self.program, self.model, self.builder = program, model, Builder()
        self.values: dict[Any, Any] = {}  # fx node -> a value, a list of values, or what it stands for in an argument
        self.state: dict[int, tuple[int, int]] = {}  # value -> its storage and version
        self.numbers: dict[str, int] = {}
        self.prefix = ""  # of the blocks that are being read
        self.open_calls = OpenCalls(self._begin_call)
        self.shared: dict[int, int] = {}  # id of a tensor of the model -> its storage

    def read(self, inputs: list[Any]) -> tuple[Graph, dict[str, int]]:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        examples = iter(inputs)
        sizes: dict[str, int] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                if spec.kind.name == "USER_INPUT":
                    self._input(node, next(examples, None), sizes)
                else:
                    self._outside(node, spec)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self.values[node] = Constant("opaque", str(node.target))
            elif node.op == "output":
                self._output(node)
        metadata = {"torch": torch.__version__.partition("+")[0], "sizes": sizes}
        return self.builder.graph("export", metadata=metadata), self.numbers

    # -- what comes in -----------------------------------------------------------------------------------------------

    def _outside(self, node: Any, spec: Any) -> None:
        fake: Any = node.meta.get("val")
        role = _ROLES.get(spec.kind.name, Role.CONSTANT)
        if not isinstance(fake, torch.Tensor):
            self.values[node] = Constant("opaque", spec.kind.name.lower())
            return
        tensor = attribute(self.model, spec.target)
        storage = self.shared.get(id(tensor)) if tensor is not None else None  # tied weights
        if storage is None:
            storage = self.builder.storage(_bytes(fake), str(fake.device), role)
            if tensor is not None:
                self.shared[id(tensor)] = storage
        value = self.builder.value(_layout(fake), role, storage=storage, name=spec.target)
        self.values[node], self.state[value] = value, (storage, 0)

    def _input(self, node: Any, example: Any, sizes: dict[str, int]) -> None:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            self.values[node] = _symbol(fake)
            if isinstance(fake, torch.SymInt) and isinstance(example, int):
                sizes[str(fake)] = example
            return
        for size, known in zip(map(str, fake.shape), getattr(example, "shape", ()), strict=False):
            if size.isidentifier():
                sizes[size] = int(known)
        number = self.builder.next_node
        storage = self.builder.storage(_bytes(fake), str(fake.device), Role.INPUT, number)
        value = self.builder.value(_layout(fake), Role.INPUT, storage=storage, producer=number, output=0)
        self.values[node], self.state[value] = value, (storage, 0)
        self.numbers[node.name] = self.builder.node(_INPUT, kind=NodeKind.INPUT, outputs=[value], name=node.name)

    def _output(self, node: Any) -> None:
        inputs: list[int] = []
        text = encode(Call(tuple(self._argument(item, inputs) for item in node.args)))
        number = self.builder.node(_OUTPUT, kind=NodeKind.OUTPUT, inputs=inputs, arguments=text, name="output")
        self.numbers[node.name] = number

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: Any) -> None:
        made = node.meta.get("val")
        block = block_of(node)
        if block is not None:
            self._inline(node, block)
            return
        if node.target is operator.getitem and isinstance(self.values.get(node.args[0]), list):
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        if not _tensors(made) and not _written(node.target):  # sizes and checks
            self.values[node] = _symbol(made)
            return
        inputs: list[int] = []
        input_positions: dict[str, list[int]] = {}  # argument name -> which inputs it holds
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []

        def argument(name: str, item: Any) -> Any:
            before = len(inputs)
            known = self._argument(item, inputs)
            input_positions[name] = list(range(before, len(inputs)))
            return known

        args = tuple(argument(name, item) for name, item in zip_longest(names[: len(node.args)], node.args))
        kwargs = {name: argument(name, item) for name, item in node.kwargs.items()}
        number = self.builder.next_node
        written = [index for name in _written(node.target) for index in input_positions.get(name, ())]
        for index in written:
            storage, version = self.state[inputs[index]]
            self.state[inputs[index]] = storage, version + 1
        outputs: list[int] = []
        self.values[node] = self._made(node.target, made, number, inputs, input_positions, outputs)
        self.numbers[self.prefix + node.name] = self.builder.node(
            _operation(node.target),
            inputs=inputs,
            outputs=outputs,
            written=written,
            arguments=encode(Call(args, kwargs)),
            call=self._module_call(node),
            source=source_of(node.meta.get("stack_trace")),
        )

    def _inline(self, node: Any, block: WrappedBlock) -> None:
        operands, outer = iter(block.operands), self.prefix
        self.prefix = f"{outer}{node.name}."
        for inner in block.body.graph.nodes:
            if inner.op == "placeholder":
                operand = next(operands)
                self.values[inner] = self.values[operand] if isinstance(operand, torch.fx.Node) else portable(operand)
            elif inner.op == "get_attr":
                self.values[inner] = Constant("opaque", str(inner.target))
            elif inner.op == "call_function":
                self._call(inner)
            elif inner.op == "output":
                results = inner.args[0]
                several = isinstance(results, (list, tuple))
                values = [self.values.get(item) for item in (results if several else [results])]
                self.values[node] = values if several else values[0]
        self.prefix = outer

    def _argument(self, item: Any, inputs: list[int]) -> Any:
        """An argument as it is written down: tensors by the place they get among the inputs."""
        if isinstance(item, torch.fx.Node):
            known = self.values[item]
            if (
                isinstance(known, int)
                and not isinstance(known, bool)
                and isinstance(item.meta.get("val"), torch.Tensor)
            ):
                inputs.append(known)
                return TensorRef(len(inputs) - 1)
            if isinstance(known, list):
                inputs += [value for value in known if value is not None]
                return [TensorRef(len(inputs) - len(known) + at) for at in range(len(known))]
            return known
        if isinstance(item, (list, tuple)):
            return [self._argument(part, inputs) for part in item]
        if isinstance(item, dict):
            return {str(key): self._argument(part, inputs) for key, part in item.items()}
        return portable(item)

    def _made(
        self,
        target: Any,
        made: Any,
        number: int,
        inputs: list[int],
        input_positions: dict[str, list[int]],
        outputs: list[int],
    ) -> Any:
        """Values for what a node returns: new memory, or that of the argument which the schema says it aliases."""
        returns = getattr(getattr(target, "_schema", None), "returns", [])
        several = isinstance(made, (list, tuple))
        values: list[int | None] = []
        for index, fake in enumerate(made if several else [made]):
            if not isinstance(fake, torch.Tensor):
                values.append(None)
                continue
            alias = returns[min(index, len(returns) - 1)].alias_info if returns else None
            base = self._aliased(target, alias, input_positions, inputs)
            if base is None:
                storage = self.builder.storage(_bytes(fake), str(fake.device), Role.ACTIVATION, number)
                version, view_of, role = 0, -1, Role.ACTIVATION
            else:
                (storage, version), view_of = self.state[base], base
                role = self.builder.role_of(base)
            value = self.builder.value(
                _layout(fake),
                role,
                storage=storage,
                producer=number,
                output=len(outputs),
                version=version,
                view_of=view_of,
            )
            self.state[value] = storage, version
            outputs.append(value)
            values.append(value)
        return values if several else values[0]

    def _aliased(self, target: Any, alias: Any, input_positions: dict[str, list[int]], inputs: list[int]) -> int | None:
        if alias is None:
            return None
        for argument in target._schema.arguments:
            mine = argument.alias_info
            if mine is not None and mine.before_set & alias.before_set and input_positions.get(argument.name):
                return inputs[input_positions[argument.name][0]]
        return None

    def _begin_call(self, path: str, kind: str, outer: int | None) -> int:
        return self.builder.call(path, kind, -1 if outer is None else outer)

    def _module_call(self, node: Any) -> int:
        """The module call a node belongs to; calls are told apart by the keys that export gives them."""
        calls = [
            (key, path.partition("@")[0], kind)
            for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items()
            if "_empty_nn_module_stack" not in path
        ]
        innermost = self.open_calls.at(calls)
        return -1 if innermost is None else innermost


class OpenCalls:
    """The module calls that are open at a node of a traced graph. `begin(path, class, outer call)` opens one."""

    def __init__(self, begin: Callable[[str, str, int | None], int]) -> None:
        self._begin = begin
        self._stack: list[tuple[Any, int]] = []

    def at(self, calls: list[tuple[Any, str, Any]]) -> int | None:
        """The innermost of these calls (key, path, class), outermost first; those that go on are not opened anew."""
        stack, same = self._stack, 0
        while same < min(len(calls), len(stack)) and calls[same][0] == stack[same][0]:
            same += 1
        del stack[same:]
        for key, path, kind in calls[same:]:
            name = kind if isinstance(kind, str) else kind.__qualname__
            stack.append((key, self._begin(path, name.rpartition(".")[2], stack[-1][1] if stack else None)))
        return stack[-1][1] if stack else None


def attribute(owner: Any, path: str) -> Any:
    """The attribute at a dotted path; None if there is none."""
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner


def _operation(target: Any) -> Operation:
    if isinstance(target, OpOverload) or hasattr(target, "_schema"):
        return operation_of(operator_name(target), target)
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", "") or ""
    return operation_of(f"higher_order.{name}" if "higher_order" in module else f"{module}.{name}", target)


def _written(target: Any) -> list[str]:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return []
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _tensors(made: Any) -> bool:
    if isinstance(made, (list, tuple)):
        return any(isinstance(part, torch.Tensor) for part in made)
    return isinstance(made, torch.Tensor)


def _symbol(made: Any) -> Any:
    """A number that is computed from sizes, as it stands in arguments."""
    if isinstance(made, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Constant("symbol", str(made))
    return made if isinstance(made, (bool, int, float, str)) else None


def _size(size: Any) -> int | str:
    return int(str(size)) if str(size).isdecimal() else str(size)  # export may hide a number in a symbol


def _layout(fake: torch.Tensor) -> Layout:
    stride = tuple(map(_size, fake.stride())) if fake.layout is torch.strided else layout_name(fake)
    return layout_row(tuple(map(_size, fake.shape)), stride, fake.dtype, fake.device)


def _bytes(fake: torch.Tensor) -> int:
    """The size of its data; -1, unknown, for symbolic sizes."""
    total = fake.element_size()
    for size in map(_size, fake.shape):
        if isinstance(size, str):
            return -1
        total *= size
    return total


def source_of(trace: str | None) -> SourceLine | None:
    """The innermost line that is the user's, from the text of a stack."""
    frames = [match for match in _FRAME.finditer(trace or "") if is_users(match["file"])]
    if not frames:
        return None
    last = frames[-1]
    return SourceLine(last["file"], int(last["line"]), last["function"].strip(), (last["text"] or "").strip())
