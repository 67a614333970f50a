"""The rows of a `.json` file as types, and which column of the graph each of their fields is: read by both directions.

docs/format.md describes the same for readers. A number that is absent has the default -1 here and is left out of files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, KINDS, PHASES, ROLES, Layout, Module
from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase, Role, SourceLine
from torchatlas.graph.timing import Timing

Small = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Big = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Reference = Small | str | None  # the text of a table's row; its number where an earlier row has the same text


# gc=False: rows hold no cycles, and millions of them would keep the garbage collector busy.
class JsonNode(Struct, omit_defaults=True, gc=False):
    id: Small
    name: str  # name, operation_type and scope are for other readers: the graph works them out from the rest
    kind: NodeKind
    operation: Small | str
    operation_type: str
    phase: Phase
    scope: str
    inputs: list[Small]
    outputs: list[Small | None]
    call: Small | None = -1
    writes: list[Small] = []
    arguments: Raw | UnsetType = UNSET
    arguments_row: Small | None = -1  # where an earlier row of the table holds an equal call
    given_name: Reference = None
    source: Small | None = -1
    start_ns: Big | None = -1
    time_ns: Big | None = -1
    time_spread_ns: Big | None = -1
    memory_bytes: Big | None = -1
    sequence_nr: Big | None = -1
    iteration: Small | None = -1
    thread: Reference = None
    forward: Small | None = -1
    composites: Reference = None


class JsonEdge(Struct, omit_defaults=True, gc=False):
    source: Small
    target: Small
    kind: EdgeKind
    output_index: Small | None = -1
    input_index: Small | None = -1
    value: Small | None = -1


class JsonValue(Struct, omit_defaults=True, gc=False):
    id: Small
    layout: Small
    role: Role
    storage: Small | None = -1
    offset: Big | None = -1
    version: Small | None = -1
    producer: Small | None = -1
    output_index: Small | None = -1
    view_of: Small | None = -1
    parameter: Reference = None


class JsonStorage(Struct, omit_defaults=True, gc=False):
    id: Small
    role: Role
    bytes: Big | None = -1
    device: Reference = None
    born: Small | None = -1
    died: Small | None = -1


class JsonCall(Struct, omit_defaults=True, gc=False):
    id: Small
    module: Small
    parent: Small | None = -1
    index: Small | None = -1


class JsonParameter(Struct, omit_defaults=True):
    name: str
    keyword_only: bool = False
    default: Raw | UnsetType = UNSET  # absent: required; null: None


class JsonOperation(Struct, omit_defaults=True):
    name: str
    type: OperationType
    parameters: list[JsonParameter] = []


class Document(Struct, omit_defaults=True):
    """The whole file."""

    format: str
    version: int
    source: str
    notes: list[str]
    metadata: dict[str, Any]
    nodes: list[JsonNode]
    edges: list[JsonEdge]
    values: list[JsonValue]
    storages: list[JsonStorage]
    calls: list[JsonCall]
    operations: list[JsonOperation]
    arguments: list[Raw]
    layouts: list[Layout]
    sources: list[SourceLine]
    modules: list[Module]
    names: list[str]
    threads: list[str]
    devices: list[str]
    timing: Timing | None = None
    recorded: list[str] = []  # what the graph held and this file does not


@dataclass(frozen=True)
class RowList:
    """One list of rows: the type of a row, and for its fields the columns they are."""

    name: str
    unit: str  # what columns.py counts these rows in
    row: type[Struct]
    words: dict[str, tuple[str, tuple[str, ...]]]  # field -> column, the words its numbers stand for
    references: dict[str, tuple[str, str]] = field(default_factory=dict)  # field -> column, table

    @cached_property
    def numbers(self) -> dict[str, str]:
        """Field -> column, of all other fields that have a column of their name."""
        columns = {name: f"{self.unit}_{name}" for name in self.row.__struct_fields__ if name not in _TEXTS}
        others = self.words.keys() | self.references.keys()
        return {name: column for name, column in columns.items() if column in COLUMNS and name not in others}


_TEXTS = ("name", "arguments")  # fields of a node that hold text where its column holds the row of a table

ROW_LISTS = (
    RowList(
        "nodes",
        "node",
        JsonNode,
        {"kind": ("node_kind", KINDS), "phase": ("node_phase", PHASES)},
        {
            "operation": ("node_operation", "operations"),
            "given_name": ("node_name", "names"),
            "thread": ("node_thread", "threads"),
            "composites": ("node_composites", "names"),
        },
    ),
    RowList("edges", "edge", JsonEdge, {"kind": ("edge_kind", EDGE_KINDS)}),
    RowList("values", "value", JsonValue, {"role": ("value_role", ROLES)}, {"parameter": ("value_parameter", "names")}),
    RowList(
        "storages", "storage", JsonStorage, {"role": ("storage_role", ROLES)}, {"device": ("storage_device", "devices")}
    ),
    RowList("calls", "call", JsonCall, {}),
)
