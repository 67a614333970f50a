"""A graph captured with values="replay" -> its operations as torch.fx's graph, which runs.

Operations run in order on tensors that share memory as they did, so writes in place and views are the operators' own.
Parameters and buffers are the model's, if it is at hand; else what was kept, as other tensors from outside are.
"""

from __future__ import annotations

import operator as python
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import fx

from torchatlas.capturing.replaying import CHANGED, REPLAY, fingerprint
from torchatlas.errors import NotAvailableError
from torchatlas.execute.fx_names import argument_name, attribute_name
from torchatlas.execute.kept import array, built, content, fresh_storage, kept_in, view_of
from torchatlas.execute.ops import argument, dtype_named, operator
from torchatlas.execute.preconditions import checked
from torchatlas.execute.recorded.calling import Input, RecordedProgram
from torchatlas.execute.recorded.guards import Expected, guarded
from torchatlas.execute.recorded.run import Kept, Read, rebuilt
from torchatlas.execute.replay import place
from torchatlas.graph import Graph, NodeKind, Phase
from torchatlas.graph.arguments import Constant, decode
from torchatlas.graph.columns import KINDS, PHASES
from torchatlas.operations.behaviour import TAKES_STORAGE

# Of these the program reads a result without an operator: the LSTM kernels look at the sizes of batches.
_READ_BY_TORCH = {"aten._pack_padded_sequence.default": 1}
_UNKNOWN_READS = (
    "of a graph alone nobody knows what the program read of them past the operators; cut the model itself, with its "
    "inputs, and they may be others"
)
_READ_INPUT = ".batch_sizes"  # of a torch.nn.utils.rnn.PackedSequence


def program_of(graph: Graph, live: Kept | None = None, *, allow: Iterable[str] = ()) -> RecordedProgram:
    """What was recorded as a program that runs; `live` has the model's own tensors, if it is at hand.

    NotAvailableError says what cannot be run again, and why. `allow` adds operators or namespaces.
    """
    return _Builder(graph, live, frozenset(allow)).program()


class _Builder:
    """Goes through the ops of a graph once; knows which node of torch.fx holds each value and each memory."""

    def __init__(self, graph: Graph, live: Kept | None, allow: frozenset[str]) -> None:
        self.source, self.live, self.allow, self.kept = graph, live, allow, kept_in(graph)
        self.own, self.arguments = graph.own, set[str]()
        columns = graph.columns
        self.graph, self.root, self.names = fx.Graph(), dict[str, Any](), dict[str, str]()
        self.of_value: dict[int, fx.Node] = {}
        self.of_storage: dict[int, fx.Node] = {}  # the first tensor there: whatever uses the memory comes after it
        self.layout_of: dict[fx.Node, tuple[int, int]] = {}  # layout, offset
        self.written: list[torch.Tensor] = []
        self.bits = {(op, index) for op, index, _ in self.kept.views}
        self.recipes = {(one.op, one.input): one for one in self.kept.recipes}
        self.draws = {op: generator for op, generator, _ in self.kept.draws}
        self.kinds: list[int] = columns["node_kind"].tolist()
        self.inputs_of = _slices(columns["input_ptr"], columns["input_value"])
        self.outputs_of = _slices(columns["output_ptr"], columns["output_value"])
        self.storage: list[int] = columns["value_storage"].tolist()
        self.layout: list[int] = columns["value_layout"].tolist()
        self.offset: list[int] = columns["value_offset"].tolist()
        stored = columns["value_storage"][columns["input_value"]]
        self.is_written = set(stored[columns["input_written"].astype(bool)].tolist())
        pointers, digests = array(graph, "digest_pointers").tolist(), array(graph, "digests")
        self.digests = [[one.tobytes() for one in digests[a:b]] for a, b in pairwise(pointers)]
        self.ops = [node for node, kind in enumerate(self.kinds) if KINDS[kind] is NodeKind.OP]
        self._refuse()
        self.read, self.read_inputs = self._reads()

    def _refuse(self) -> None:
        """What no list of operators can do again."""
        columns, graph = self.source.columns, self.source
        phases = {PHASES[phase] for phase in np.unique(columns["node_phase"][self.ops]).tolist()}
        if phases & {Phase.BACKWARD, Phase.OPTIMIZER}:
            raise NotAvailableError("This run holds a backward pass. Capture the forward pass alone to have pieces.")
        for op, _, _, _, why in self.kept.patches:
            if why == CHANGED:
                near = self.ops[min(op, len(self.ops) - 1)]
                name, operation, _, line = place(graph, near)
                raise NotAvailableError(
                    f"Before {name} ({operation}){f' at {line}' if line else ''} something that is no operator, numpy "
                    "say, wrote into a tensor: operators alone do not compute what this model does."
                )
        for op, generator in self.draws.items():
            if not self.kept.generators[generator][1]:
                raise NotAvailableError(
                    f"{place(graph, self.ops[op])[0]} draws from a generator of its own, which is not in the graph."
                )
        owners: dict[int, str] = {}
        for node, kind in enumerate(self.kinds):
            if KINDS[kind] is NodeKind.INPUT and self.outputs_of[node]:
                storage, name = self.storage[self.outputs_of[node][0]], graph.nodes[node].name
                if storage in self.is_written and owners.setdefault(storage, name) != name:
                    raise NotAvailableError(f"{owners[storage]} and {name} share memory that this model writes.")

    def _reads(self) -> tuple[dict[int, set[int]], dict[int, bytes]]:
        """Which results of which nodes the program read past the operators, and of which values that it was given."""
        columns = self.source.columns
        made: dict[int, set[int]] = {}
        given: dict[int, bytes] = {}
        node_of = np.repeat(np.arange(len(self.kinds)), np.diff(columns["input_ptr"]))
        wrote = columns["input_written"].astype(bool)
        writes = list(zip(node_of[wrote].tolist(), columns["input_value"][wrote].tolist(), strict=True))
        for read in self.live.reads if self.live is not None else ():
            found = self._value_read(read)
            end = self.ops[read.ops] if read.ops < len(self.ops) else len(self.kinds)
            last = max((n for n, value in writes if self.storage[value] == read.storage and n < end), default=-1)
            if found is None:
                if self._from_outside(read.storage) and last < 0:
                    continue  # it is always the same
                raise NotAvailableError(f"{read.how}() read a tensor that no operator has made as it was then.")
            node, index, value = found
            if last > node:
                raise NotAvailableError(
                    f"{read.how}() read what {place(self.source, last)[0]} had written into a part of a tensor."
                )
            if KINDS[self.kinds[node]] is NodeKind.INPUT:
                given[value] = read.digest
            else:
                made.setdefault(node, set()).add(index)
        return made, given

    def _from_outside(self, storage: int) -> bool:
        return all(storage != self.storage[value] for made in self.outputs_of for value in made)

    def _value_read(self, read: Read) -> tuple[int, int, int] | None:
        """The last node before a read that returned this tensor: node, index and value."""
        end = self.ops[read.ops] if read.ops < len(self.ops) else len(self.kinds)
        for node in range(end - 1, -1, -1):
            for index, value in enumerate(self.outputs_of[node]):
                layout = self.source.tables.layouts[self.layout[value]]
                same = (layout.shape, layout.stride, self.offset[value]) == (read.shape, read.stride, read.offset)
                if self.storage[value] == read.storage and same:
                    return node, index, value
        return None

    # -- the program -------------------------------------------------------------------------------------------------

    def program(self) -> RecordedProgram:
        """All of it."""
        inputs = [self._input(node) for node, kind in enumerate(self.kinds) if KINDS[kind] is NodeKind.INPUT]
        self._written_from_outside()
        settings, grad, draws = dict(self.kept.settings), True, set()
        results: list[fx.Node] = []
        structure: Any = None
        op = 0
        for node, kind in enumerate(self.kinds):
            if KINDS[kind] is NodeKind.OP:
                grad = settings[op].grad if op in settings else grad
                made = self._op(op, node, grad)
                draws |= {made.name} if op in self.draws else set()
                op += 1
            elif KINDS[kind] is NodeKind.OUTPUT:
                results = [self._tensor(value, -1, at) for at, value in enumerate(self.inputs_of[node])]
                structure = self._arguments(node).args[0]
        if self.live is not None:
            structure = self.live.result
            if (count := _count(structure)) != len(results):
                raise NotAvailableError(f"The model returns {count} tensors, and {len(results)} were recorded.")
        self.graph.output(tuple(results))
        module = fx.GraphModule(self.root, self.graph)
        given = None if self.live is None else self.live.given
        drawing, written = frozenset(draws), tuple(self.written)
        return RecordedProgram(module, self.names, drawing, tuple(inputs), written, structure, given)

    def _input(self, node: int) -> Input:
        name, (value,) = self.source.nodes[node].name, self.outputs_of[node]
        layout = self.source.tables.layouts[self.layout[value]]
        if layout.kind != "strided" or layout.stride is None:
            raise NotAvailableError(f"{name} is a {layout.kind} tensor; pieces take plain ones.")
        self._register(value, self._placeholder(name))
        digest, reader = self.read_inputs.get(value), Input.reader
        decides = self.live is None or name.endswith(_READ_INPUT)
        if digest is None and decides and f"{REPLAY}storage/{self.storage[value]}" in self.source.recorded:
            kept = self._content(value)
            digest = None if kept is None else fingerprint(kept)
            reader = Input.reader if self.live is not None else _UNKNOWN_READS
        shape: Any = layout.shape
        stride: Any = layout.stride
        return Input(name, shape, stride, dtype_named(layout.dtype), layout.device, digest, reader)

    def _placeholder(self, name: str) -> fx.Node:
        self.arguments.add(given := argument_name(name, self.arguments))
        return self.graph.placeholder(given)

    def _op(self, op: int, node: int, grad: bool) -> fx.Node:
        row = self.source.tables.operations[int(self.source.columns["node_operation"][node])]
        name, operation, _, line = place(self.source, node)
        where = f"{name} ({operation})" + (f" at {line}" if line else "")
        if operation in TAKES_STORAGE:
            raise NotAvailableError(f"{where} lets a tensor show other memory, which pieces cannot do.")
        try:
            found, call = operator(row, self.allow, own=self.own), self._arguments(node)
            taken = [self._tensor(value, op, index) for index, value in enumerate(self.inputs_of[node])]
            args = tuple(argument(_without_generator(item), taken, None) for item in call.args)
            kwargs = {key: argument(_without_generator(item), taken, None) for key, item in (call.kwargs or {}).items()}
        except NotAvailableError as error:
            raise NotAvailableError(f"{where} cannot be run again: {error}") from error
        made, returns = self.outputs_of[node], found._schema.returns
        several = len(returns) > 1 or any("List" in str(one.type) for one in returns)
        states = self._states(node, taken) if not any(one.alias_info is not None for one in returns) else {}
        returned = [value for value in made if value not in states]
        read = self._read_of(node, operation, made, returned)
        expected = Expected(where, tuple(map(self._looks, returned)), tuple(self.digests[op]), read)
        device = self._device(node)
        runs = found if self.own else checked(found)
        function = guarded(runs, expected, grad=grad, several=several, device=device)
        result = self.graph.create_node("call_function", function, args, kwargs, name)
        self.names[result.name] = name
        if torch.Tag.inplace_view in found.tags:  # the tensor has another shape now
            self._forget(taken[0])
        for index, value in enumerate(returned):
            one = self.graph.call_function(python.getitem, (result, index)) if several else result
            self._register(value, one)
        self.of_value |= states
        return result

    def _states(self, node: int, taken: list[fx.Node]) -> dict[int, fx.Node]:
        """Values of tensors that an op wrote and did not return: running means, say. They are what it was given."""
        columns = self.source.columns
        written = columns["input_written"][slice(*columns["input_ptr"][node : node + 2])].tolist()
        found = {}
        for value in self.outputs_of[node]:
            for index, given in enumerate(self.inputs_of[node]):
                if written[index] and self._spot(given) == self._spot(value):
                    found[value] = taken[index]
        return found

    def _spot(self, value: int) -> tuple[int, int, int]:
        return self.storage[value], self.layout[value], self.offset[value]

    def _read_of(self, node: int, operation: str, made: list[int], returned: list[int]) -> frozenset[int]:
        """Which of the tensors that an op returned must be equal to the bit."""
        read = [made[index] for index in self.read.get(node, ())]
        if any(value not in returned for value in read):
            raise NotAvailableError(f"The program read what {place(self.source, node)[0]} wrote into a tensor.")
        more = {_READ_BY_TORCH[operation]} if operation in _READ_BY_TORCH else set()
        return frozenset({returned.index(value) for value in read} | more)

    def _looks(self, value: int) -> tuple[tuple[int, ...] | None, torch.dtype]:
        layout = self.source.tables.layouts[self.layout[value]]
        shape = layout.shape if layout.kind == "strided" else None
        plain = None if shape is None else tuple(size for size in shape if isinstance(size, int))
        return plain if plain is not None and len(plain) == len(shape or ()) else None, dtype_named(layout.dtype)

    def _device(self, node: int) -> str:
        values = [*self.inputs_of[node], *self.outputs_of[node]]
        layouts = [self.source.tables.layouts[self.layout[value]] for value in values]
        return next((one.device.partition(":")[0] for one in layouts if one.device != "meta"), "cpu")

    def _arguments(self, node: int) -> Any:
        return decode(self.source.tables.arguments[int(self.source.columns["node_arguments"][node])])

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _register(self, value: int, node: fx.Node) -> None:
        self.of_value[value] = node
        self.layout_of[node] = (self.layout[value], self.offset[value])
        self.of_storage.setdefault(self.storage[value], node)

    def _forget(self, node: fx.Node) -> None:
        self.layout_of.pop(node, None)
        for value in [value for value, known in self.of_value.items() if known is node]:
            del self.of_value[value]

    def _tensor(self, value: int, op: int, index: int) -> fx.Node:
        """What holds a value: what an op returned, or the memory it is in, looked at the same way."""
        if value in self.of_value:
            return self.of_value[value]
        if (op, index) in self.bits:
            raise NotAvailableError("it takes a conjugated or negated view that no operator returned.")
        storage = self.storage[value]
        if storage not in self.of_storage:
            return self._from_model(value) or self._from_bytes(value, op, index)
        base, layout = self.of_storage[storage], self.source.tables.layouts[self.layout[value]]
        if self.layout_of.get(base) == (self.layout[value], self.offset[value]):
            return base
        known = self.layout_of.get(base)
        dtype = None if known is None else self.source.tables.layouts[known[0]].dtype
        if layout.kind != "strided" or dtype != layout.dtype:
            raise NotAvailableError(f"it takes a {layout.kind} view of {layout.dtype} that no operator returned.")
        seen = (base, list(layout.shape or ()), list(layout.stride or ()), self.offset[value])
        node = self.graph.call_function(torch.as_strided, seen)
        self._register(value, node)
        return node

    def _from_model(self, value: int) -> fx.Node | None:
        """A parameter or buffer of the model at hand; a view of one if that is what was used."""
        own = self.live.own.get(self.storage[value], []) if self.live is not None else []
        if not own:
            return None
        layout = self.source.tables.layouts[self.layout[value]]
        for name, tensor in own:
            if layout.kind != "strided" or _is_like(tensor, layout, self.offset[value]):
                return self._attribute(value, name, tensor)
        name, tensor = own[0]
        if dtype_named(layout.dtype) is not tensor.dtype:
            raise NotAvailableError(f"it looks at {name} as {layout.dtype}.")
        base = self._get_attr(name, value, tensor)
        self.of_storage[self.storage[value]] = base
        seen = (base, list(layout.shape or ()), list(layout.stride or ()), self.offset[value])
        node = self.graph.call_function(torch.as_strided, seen)
        self._register(value, node)
        return node

    def _attribute(self, value: int, name: str, tensor: torch.Tensor) -> fx.Node:
        node = self._get_attr(name, value, tensor)
        self._register(value, node)
        return node

    def _get_attr(self, name: str, value: int, tensor: torch.Tensor) -> fx.Node:
        written = attribute_name(name, value)
        self.root[written] = tensor
        return self.graph.get_attr(written)

    def _from_bytes(self, value: int, op: int, index: int) -> fx.Node:
        """A tensor from outside, as it was when it was first used."""
        recipe = self.recipes.get((op, index))
        layout = self.source.tables.layouts[self.layout[value]]
        tensor = built(self.source, recipe, layout) if recipe is not None else self._content(value)
        if tensor is None:
            raise NotAvailableError(
                f"it takes a {layout.kind} tensor of {layout.dtype} from outside that was not kept."
            )
        parameter = int(self.source.columns["value_parameter"][value])
        name = self.source.tables.names[parameter] if parameter >= 0 else f"constants.{value}"
        return self._attribute(value, name, tensor)

    def _content(self, value: int) -> torch.Tensor | None:
        """A tensor from outside as it was kept; None if it is no plain one."""
        layout, number = self.source.tables.layouts[self.layout[value]], self.storage[value]
        sizes: Any = (*(layout.shape or ()), *(layout.stride or ()))
        if layout.kind != "strided" or layout.stride is None or not all(isinstance(size, int) for size in sizes):
            return None
        stored = fresh_storage(content(self.source, f"storage/{number}"), 0, layout.device)
        return view_of(stored, layout, self.offset[value])

    def _written_from_outside(self) -> None:
        """Tensors from outside that the run writes, and that are not the model's: each run begins with a copy."""
        lasting = self.live.own if self.live is not None else {}
        columns = self.source.columns
        for value in np.flatnonzero(columns["value_producer"] < 0).tolist():
            storage = self.storage[value]
            if storage not in self.is_written or storage in self.of_storage or storage in lasting:
                continue
            if self.live is None and columns["value_parameter"][value] >= 0:
                continue
            if self.live is not None and storage in self.live.held:
                raise NotAvailableError(
                    "This model writes into a tensor that is an attribute of a module and no buffer, so that a second "
                    "run differs from the first. Make it a buffer: register_buffer(name, tensor)."
                )
            tensor = self._content(value)
            if tensor is None:
                raise NotAvailableError("This model writes into a tensor from outside that was not kept.")
            self._register(value, self._placeholder(f"constant_{value}"))
            self.written.append(tensor)


def _slices(pointers: Any, values: Any) -> list[list[int]]:
    ends, listed = pointers.tolist(), values.tolist()
    return [listed[a:b] for a, b in pairwise(ends)]


def _is_like(tensor: torch.Tensor, layout: Any, offset: int) -> bool:
    same = tuple(tensor.shape) == layout.shape and tensor.stride() == layout.stride
    return same and int(tensor.storage_offset()) == offset and tensor.dtype is dtype_named(layout.dtype)


def _count(structure: Any) -> int:
    found: list[Any] = []
    rebuilt(structure, found.append)
    return len(found)


def _without_generator(item: Any) -> Any:
    """An argument, or None for a generator: torch then takes the one that it was, or none was drawn from."""
    return None if isinstance(item, Constant) and item.kind == "generator" else item
