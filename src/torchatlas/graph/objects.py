"""The objects a Graph hands out: views of its columns, made when asked for and cheap to throw away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from torchatlas.escapes import clean
from torchatlas.graph import arguments, item_sections
from torchatlas.graph.attributes import arguments_by_name, attributes_of, collective_attributes
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, ROLES, WITHIN, Layout
from torchatlas.graph.foreign_names import EdgeAliases, NodeAliases
from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase, Role, SourceLine
from torchatlas.graph.shown import Shown
from torchatlas.sections import Facts, Lines, Section
from torchatlas.units import format_bytes, format_ns

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph
    from torchatlas.graph.scopes import Scope


class _Item(Shown):
    """A row of a graph: equal when it is the same row of the same graph object."""

    __slots__ = ("_graph", "id")

    def __init__(self, graph: Graph, id: int) -> None:
        self._graph = graph
        self.id = id

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._graph is self._graph and other.id == self.id

    def __hash__(self) -> int:
        return hash((type(self), id(self._graph), self.id))

    def __str__(self) -> str:
        return repr(self)  # many are printed together: a line each

    def _number(self, column: str) -> int:
        return int(self._graph.columns[column][self.id])

    def _optional(self, column: str) -> int | None:
        number = int(self._graph.columns[column][self.id])
        return None if number < 0 else number

    def _node_at(self, column: str) -> GraphNode | None:
        number = self._number(column)
        return None if number < 0 else GraphNode(self._graph, number)


class Storage(_Item):
    """One allocation: how many bytes, where, from when to when. Views and tied weights share it."""

    _HEADINGS: ClassVar = (">storage", ">bytes", "device", "role", "born in", "died after")

    @property
    def bytes(self) -> int | None:
        """The most it ever held, should it have been resized."""
        return self._optional("storage_bytes")

    @property
    def device(self) -> str | None:
        """Where it lies, such as "cpu" or "cuda:0"."""
        device = self._optional("storage_device")
        return None if device is None else self._graph.tables.devices[device]

    @property
    def born(self) -> GraphNode | None:
        """The node that allocated it; None when it existed before."""
        return self._node_at("storage_born")

    @property
    def died(self) -> GraphNode | None:
        """The last node that ran before it was freed; None when it outlived the recording."""
        return self._node_at("storage_died")

    @property
    def role(self) -> Role:
        """What its tensor is to the program."""
        return ROLES[self._number("storage_role")]

    def __repr__(self) -> str:
        return clean(f"<Storage {self.id}: {self.bytes} bytes on {self.device}, {self.role}>")

    def _sections(self) -> Iterator[Section]:
        return item_sections.storage_sections(self)

    def _cells(self) -> list[str]:
        ends = ["" if node is None else node.name for node in (self.born, self.died)]
        return [str(self.id), format_bytes(self.bytes), self.device or "", str(self.role), *ends]


class Value(_Item):
    """One state of a tensor. An in-place write makes a new Value on the same Storage."""

    _HEADINGS: ClassVar = (">value", "tensor", "role", "name", "made by")

    @property
    def storage(self) -> Storage | None:
        """The memory it lies in; None for a tensor without any, such as a sparse one."""
        storage = self._optional("value_storage")
        return None if storage is None else Storage(self._graph, storage)

    @property
    def layout(self) -> Layout:
        """Strided, sparse ..."""
        return self._graph.tables.layouts[self._number("value_layout")]

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Its sizes; of a traced model some are symbols, such as "s0"."""
        return self.layout.shape

    @property
    def stride(self) -> tuple[int | str, ...] | None:
        """Its strides in elements; None where the layout has none."""
        return self.layout.stride

    @property
    def dtype(self) -> str:
        """The dtype by its short name, such as "float32"."""
        return self.layout.dtype

    @property
    def device(self) -> str:
        """Where it lies, such as "cpu" or "cuda:0"."""
        return self.layout.device

    @property
    def offset(self) -> int:
        """Where it begins in its storage, in elements."""
        return self._number("value_offset")

    @property
    def version(self) -> int:
        """How many writes its storage had seen when it was made."""
        return self._number("value_version")

    @property
    def producer(self) -> tuple[GraphNode, int] | None:
        """The node and output index that made it; None for what existed before."""
        node = self._node_at("value_producer")
        return None if node is None else (node, self._number("value_output_index"))

    @property
    def view_of(self) -> Value | None:
        """The value that it is a view of; None if it is none."""
        value = self._optional("value_view_of")
        return None if value is None else Value(self._graph, value)

    @property
    def role(self) -> Role:
        """What it is to the program: input, parameter, activation ..."""
        return ROLES[self._number("value_role")]

    @property
    def parameter(self) -> str | None:
        """The name it has in the model: of a parameter or buffer, or of the one that a gradient or state belongs to."""
        name = self._optional("value_parameter")
        return None if name is None else self._graph.tables.names[name]

    @property
    def consumers(self) -> list[GraphNode]:
        """The nodes that take it, in execution order."""
        return [GraphNode(self._graph, node) for node in self._graph.index.consumers(self.id)]

    def __repr__(self) -> str:
        name = f" {self.parameter}" if self.parameter else ""
        return clean(f"<Value {self.id}:{name} {self.dtype}{list(self.shape)} {self.role}>")

    def _sections(self) -> Iterator[Section]:
        return item_sections.value_sections(self)

    def _cells(self) -> list[str]:
        maker = "" if self.producer is None else self.producer[0].name
        return [str(self.id), item_sections.tensor_text(self), str(self.role), self.parameter or "", maker]


class GraphNode(_Item, NodeAliases):
    """One thing that happened: an input arriving, an operation, an output leaving. Read from a graph.

    Args:
        graph: The graph it belongs to.
        id: Its position in the order of execution.
    Example:
        >>> import torch, torchatlas as atlas
        >>> node = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4), backward=True)["addmm"]
        >>> node.operation, str(node.operation_type), str(node.phase), len(node.backward_nodes) > 0
        ('aten.addmm.default', 'matmul', 'forward', True)
    """

    _HEADINGS: ClassVar = (">node", "name", "operation", "phase", "makes", ">time")

    @property
    def kind(self) -> NodeKind:
        """Input, op or output."""
        return KINDS[self._number("node_kind")]

    @property
    def name(self) -> str:
        """Unique in the graph and the same from run to run: scope, operation, counter."""
        return self._graph.index.name(self.id)

    @property
    def operation(self) -> str:
        """The full name, e.g. aten.convolution.default."""
        return self._graph.tables.operations[self._number("node_operation")].name

    @property
    def operation_type(self) -> OperationType:
        """The category of the operation; never its phase."""
        return self._graph.tables.operations[self._number("node_operation")].type

    @property
    def phase(self) -> Phase:
        """When it ran: forward, backward, recompute, optimizer or other."""
        return PHASES[self._number("node_phase")]

    @property
    def scope(self) -> Scope:
        """The module call it ran in (for a backward node: its forward node's)."""
        return self._graph.index.scope_of_call(self._number("node_call"))

    @property
    def call_index(self) -> int:
        """Which call of that module it belongs to, counted from 0."""
        call = self._number("node_call")
        return 0 if call < 0 else int(self._graph.columns["call_index"][call])

    @property
    def source(self) -> SourceLine | None:
        """The user's own line."""
        source = self._optional("node_source")
        return None if source is None else self._graph.tables.sources[source]

    @property
    def inputs(self) -> list[Value]:
        """The values it took, parameters too."""
        return [Value(self._graph, int(value)) for value in self._graph.index.inputs(self.id)]

    @property
    def outputs(self) -> list[Value]:
        """What it returned, then what it wrote without returning it."""
        return [Value(self._graph, int(value)) for value in self._graph.index.outputs(self.id)]

    @property
    def writes(self) -> tuple[int, ...]:
        """The positions in `inputs` that it changed in place."""
        return self._graph.index.writes(self.id)

    @property
    def arguments(self) -> arguments.Call:
        """The whole call: tensors as references into `inputs`, everything else in place."""
        row = self._optional("node_arguments")
        return arguments.Call() if row is None else arguments.decode(self._graph.tables.arguments[row])

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments that are not tensors, by name, with defaults; also sizes they imply, such as kernel_size."""
        operation = self._graph.tables.operations[self._number("node_operation")]
        call, taken = self.arguments, [value.layout for value in self.inputs]
        attributes = attributes_of(operation, call, [layout.shape for layout in taken])
        if operation.type is OperationType.COMMUNICATION:
            named, made = arguments_by_name(operation, call), [value.layout for value in self.outputs]
            groups = self._graph.metadata.get("groups", {})
            attributes |= collective_attributes(operation.name, named, taken, self.writes, made, groups)
        return attributes

    @property
    def start_ns(self) -> int | None:
        """When it began, from the start of the recording."""
        return self._optional("node_start_ns")

    @property
    def time_ns(self) -> int | None:
        """Time on the host: of one run, or the median of several; None when it was not timed."""
        return self._optional("node_time_ns")

    @property
    def time_spread_ns(self) -> int | None:
        """The interquartile range of its times over several runs; None for one run."""
        return self._optional("node_time_spread_ns")

    @property
    def device_time_ns(self) -> int | None:
        """The sum of its kernels on the device, as `atlas.join_profile` found it; None where no kernel is known."""
        times: dict[str, int] = self._graph.metadata.get("device_times", {}).get("by_node", {})
        return times.get(str(self.id))

    @property
    def memory_bytes(self) -> int | None:
        """Bytes alive right after it."""
        return self._optional("node_memory_bytes")

    @property
    def sequence_nr(self) -> int | None:
        """Autograd's number, shared by a forward node and its backward nodes."""
        return self._optional("node_sequence_nr")

    @property
    def iteration(self) -> int:
        """The step of a training loop it ran in, counted from 0."""
        return self._number("node_iteration")

    @property
    def thread(self) -> str | None:
        """The thread it ran on, if not the one that began the recording."""
        thread = self._optional("node_thread")
        return None if thread is None else self._graph.tables.threads[thread]

    @property
    def forward_node(self) -> GraphNode | None:
        """The op of forward that this op of backward belongs to; None where there is none."""
        return self._node_at("node_forward")

    @property
    def backward_nodes(self) -> list[GraphNode]:
        """The ops of backward that belong to this op of forward."""
        return [GraphNode(self._graph, int(node)) for node in self._graph.index.backward_of(self.id)]

    @property
    def composites(self) -> tuple[str, ...] | None:
        """The composite operators that called it, outermost first, as aten.linear.default does addmm.

        Empty where the program called it itself. None where nobody knows: only the native recorder sees them.
        """
        row = self._optional("node_composites")
        if row is None:
            return None
        joined = self._graph.tables.names[row]
        return tuple(joined.split(WITHIN)) if joined else ()

    @property
    def predecessors(self) -> list[GraphNode]:
        """The nodes its data comes from."""
        return [GraphNode(self._graph, int(node)) for node in self._graph.index.predecessors(self.id)]

    @property
    def successors(self) -> list[GraphNode]:
        """The nodes its data goes to."""
        return [GraphNode(self._graph, int(node)) for node in self._graph.index.successors(self.id)]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{value.dtype}{list(value.shape)}" for value in self.outputs)
        return clean(f"<GraphNode {self.id} {self.name}: {self.operation}{f' -> {shapes}' if shapes else ''}>")

    def _sections(self) -> Iterator[Section]:
        return item_sections.node_sections(self)

    def _headline(self) -> str:
        return clean(self.name)

    def _cells(self) -> list[str]:
        made = ", ".join(map(item_sections.tensor_text, self.outputs))
        time = "" if self.time_ns is None else format_ns(self.time_ns)
        return [str(self.id), self.name, self.operation, str(self.phase), made, time]


class GraphEdge(_Item, EdgeAliases):
    """From `source` to `target`: data, or only an order that must be kept. Read from `graph.edges`.

    Args:
        graph: The graph it belongs to.
        id: Its position in `graph.edges`.
    Example:
        >>> import torch, torchatlas as atlas
        >>> edge = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4)).edges[0]
        >>> edge.source.name, edge.target.name, edge.tensor_shape
        ('input', 'addmm', (1, 4))
    """

    _HEADINGS: ClassVar = ("from", "to", "kind", "tensor")

    @property
    def source(self) -> GraphNode:
        """The node that must come first."""
        return GraphNode(self._graph, self.source_id)

    @property
    def target(self) -> GraphNode:
        """The node that must come later."""
        return GraphNode(self._graph, self.target_id)

    @property
    def source_id(self) -> int:
        """The id of the node that must come first."""
        return self._number("edge_source")

    @property
    def target_id(self) -> int:
        """The id of the node that must come later."""
        return self._number("edge_target")

    @property
    def output_index(self) -> int | None:
        """The place of its value in `source.outputs`; None for order."""
        return self._optional("edge_output_index")

    @property
    def input_index(self) -> int | None:
        """The place of its value in `target.inputs`; None for order."""
        return self._optional("edge_input_index")

    @property
    def value(self) -> Value | None:
        """The value that is handed on; None for order."""
        value = self._optional("edge_value")
        return None if value is None else Value(self._graph, value)

    @property
    def kind(self) -> EdgeKind:
        """Data, or only an order."""
        return EDGE_KINDS[self._number("edge_kind")]

    def __repr__(self) -> str:
        return clean(f"<GraphEdge {self.source.name} -> {self.target.name}, {self.kind}>")

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{self.source.name} -> {self.target.name}"])
        yield Facts(list(zip(("from", "to", "kind", "tensor"), self._cells(), strict=True)))

    def _cells(self) -> list[str]:
        tensor = "" if self.value is None else item_sections.tensor_text(self.value)
        return [self.source.name, self.target.name, str(self.kind), tensor]
