"""Graph: columns underneath, objects on demand."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import InvalidInputError, NodeNotFoundError
from torchatlas.escapes import clean
from torchatlas.graph import formats, identity
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, Array, Tables, empty_columns
from torchatlas.graph.index import Index
from torchatlas.graph.item_sections import rows_sections
from torchatlas.graph.module_outputs import output_nodes, without_output
from torchatlas.graph.names import origin, short_name
from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase
from torchatlas.graph.objects import GraphEdge, GraphNode, Storage, Value
from torchatlas.graph.scopes import ScopeTree
from torchatlas.graph.shown import Shown
from torchatlas.graph.subgraph import induced
from torchatlas.graph.timing import Measured, Timing
from torchatlas.registry import did_you_mean, member
from torchatlas.sections import Section

if TYPE_CHECKING:
    import networkx
    import pandas

Item = TypeVar("Item", bound=GraphNode | GraphEdge | Value | Storage)


class Rows(Shown, Sequence[Item], Generic[Item]):
    """The rows of one kind, made as they are asked for."""

    def __init__(self, graph: Graph, make: type[Item], count: int) -> None:
        self._graph, self._make, self._count = graph, make, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> Item: ...
    @overload
    def __getitem__(self, position: slice) -> list[Item]: ...
    def __getitem__(self, position: int | slice) -> Item | list[Item]:
        if isinstance(position, slice):
            return [self._make(self._graph, row) for row in range(*position.indices(self._count))]
        row = operator.index(position)
        if not -self._count <= row < self._count:
            noun = self._make.__name__.removeprefix("Graph").lower()
            raise IndexError(f"there is no {noun} {row}: this graph has {self._count:,}, from 0 on")
        return self._make(self._graph, row % self._count)

    def __iter__(self) -> Iterator[Item]:
        return (self._make(self._graph, row) for row in range(self._count))

    def __repr__(self) -> str:
        return f"<{self._count} x {self._make.__name__}>"

    def _sections(self) -> Iterator[Section]:
        return rows_sections(self._graph, f"{self._make.__name__.removeprefix('Graph').lower()}s", self)


class Graph:
    """One computation: what happened, in which order, on which data.

    `atlas.capture`, `atlas.recording`, `atlas.trace` and others make graphs; code that builds one itself fills a
    `torchatlas.graph.builder.Builder`.

    Args:
        columns: The arrays that hold nodes, edges, values, storages and scopes, by name.
        tables: Texts and arguments that columns point into.
        source: Where it comes from: "run", "export", "fx" or "autograd".
        notes: What a reader must know before trusting a number.
        metadata: What does not change the structure: versions, the class of the model.
        recorded: Tensors or statistics kept per output, by "node:output".
        timing: How its times were measured.
        own: True for what this process recorded itself: whatever that program ran may be replayed. What a file holds is
            run with more care.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> len(graph), graph["addmm"].output_shapes, graph.scopes[""].parameters
        (4, [(1, 2)], 10)
    """

    def __init__(
        self,
        columns: dict[str, Array] | None = None,
        tables: Tables | None = None,
        *,
        source: str = "run",
        notes: Iterable[str] = (),
        metadata: dict[str, Any] | None = None,
        recorded: dict[str, Array] | None = None,
        timing: Timing | None = None,
        own: bool = False,
    ) -> None:
        self.columns = empty_columns() if columns is None else columns
        self.tables = Tables() if tables is None else tables
        self.source = source
        self.notes = list(notes)
        self.metadata = metadata or {}
        self.recorded = recorded or {}
        self._timing = timing
        self.own = own

    # -- looking -------------------------------------------------------------------------------------------------

    @cached_property
    def index(self) -> Index:
        """Look-ups over the columns: names, neighbours and values by node."""
        return Index(self)

    @cached_property
    def nodes(self) -> Rows[GraphNode]:
        """The nodes, in execution order."""
        return Rows(self, GraphNode, len(self.columns["node_kind"]))

    @cached_property
    def edges(self) -> Rows[GraphEdge]:
        """The edges, by id."""
        return Rows(self, GraphEdge, len(self.columns["edge_source"]))

    @cached_property
    def values(self) -> Rows[Value]:
        """The values: every state of every tensor."""
        return Rows(self, Value, len(self.columns["value_storage"]))

    @cached_property
    def storages(self) -> Rows[Storage]:
        """The allocations, by id."""
        return Rows(self, Storage, len(self.columns["storage_bytes"]))

    @property
    def scopes(self) -> ScopeTree:
        """Every module by path; "" is the whole program."""
        return self.index.scopes

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.columns["node_kind"])

    def __iter__(self) -> Iterator[GraphNode]:
        """The nodes, in execution order."""
        return iter(self.nodes)

    def __contains__(self, name: object) -> bool:
        """Whether there is a node of that name."""
        return name in self.index.by_name

    def __getitem__(self, name: str | int) -> GraphNode:
        """A node by its name or id; by the path of a module, the node that makes what the module returns."""
        if isinstance(name, (int, np.integer)):
            return self.nodes[int(name)]
        node = self.index.by_name.get(name)
        if node is None and name and name in self.scopes:
            made = [self.nodes[one].name for call in output_nodes(self, name) for one in call]
            if not made:
                raise NodeNotFoundError(without_output(self, name))
            if len(made) != 1:
                several = f"{', '.join(made[:5])}{' ...' if len(made) > 5 else ''}"
                raise NodeNotFoundError(f"module {name!r} returns what {len(made)} nodes make; name one: {several}.")
            return self[made[0]]
        if node is None:
            absent = " A module that runs no operator is not in a traced graph." if self.source == "export" else ""
            known = [*self.index.by_name, *self.scopes]
            hint = did_you_mean(name, known) or f". graph.nodes lists them.{absent}"
            raise NodeNotFoundError(f"no node or module is named {name!r}{hint}")
        return GraphNode(self, node)

    @explains_arguments
    def where(
        self,
        predicate: Callable[[GraphNode], bool] | None = None,
        *,
        kind: NodeKind | str | None = None,
        phase: Phase | str | None = None,
        operation: str | None = None,
        operation_type: OperationType | str | None = None,
        scope: str | None = None,
        iteration: int | None = None,
    ) -> list[GraphNode]:
        """The nodes that meet every condition, in execution order.

        Args:
            predicate: A function of a node.
            kind: "input", "op" or "output".
            phase: "forward", "backward", "recompute", "optimizer" or "other".
            operation: A full name (aten.add.Tensor) or a short one (add).
            operation_type: The category, such as "matmul".
            scope: The path of a module; everything below it is included. One that the graph does not have is an error.
            iteration: The step of a training loop, counted from 0.
        Returns:
            The nodes.
        Raises:
            InvalidInputError: `predicate` is not a function.
            AnalysisError: A word that is no kind, phase or category.
            NodeNotFoundError: A scope that the graph does not have.
        """
        if predicate is not None and not callable(predicate):
            raise InvalidInputError(
                f"where takes a function of a node, or conditions by name, not {predicate!r}: "
                f"where(operation={str(predicate)!r}), or where(scope={str(predicate)!r})."
            )
        columns, tables = self.columns, self.tables
        keep = np.ones(len(self), bool)
        if kind is not None:
            keep &= columns["node_kind"] == KINDS.index(member(NodeKind, kind))
        if phase is not None:
            keep &= columns["node_phase"] == PHASES.index(member(Phase, phase))
        if operation is not None:
            wanted = [op.name == operation or short_name(op.name) == operation for op in tables.operations]
            keep &= np.array(wanted or [False])[columns["node_operation"]]
        if operation_type is not None:
            category = member(OperationType, operation_type)
            keep &= np.array([op.type == category for op in tables.operations] or [False])[columns["node_operation"]]
        if scope is not None:
            scope = self.scopes[scope].path
            inside = [not scope or path == scope or path.startswith(scope + ".") for path in self.index.paths]
            keep &= np.array(inside)[self.index.path_of_call[columns["node_call"]]]
        if iteration is not None:
            keep &= columns["node_iteration"] == iteration
        nodes = [GraphNode(self, int(node)) for node in np.flatnonzero(keep)]
        return nodes if predicate is None else [node for node in nodes if predicate(node)]

    def topological_order(self) -> list[GraphNode]:
        """Every node after all it depends on: execution order is such an order."""
        return list(self.nodes)

    @explains_arguments
    def subgraph(self, nodes: Iterable[GraphNode | str | int] | None = None, *, scope: str | None = None) -> Graph:
        """The chosen nodes with the edges among them, as a graph of its own.

        Args:
            nodes: Nodes, their names or their ids; None takes all.
            scope: Only those in the module of this path and below it.
        Returns:
            The graph.
        Raises:
            NodeNotFoundError: There is no node of that name, or no module of that path.
            InvalidInputError: `nodes` is one node, not several.
        """
        if nodes is None:
            chosen = {node.id for node in self.where(scope=scope or "")}
        elif isinstance(nodes, (str, GraphNode)):
            raise InvalidInputError(
                f"subgraph takes several nodes, not {nodes!r}: a list of them, or a module by scope=."
            )
        else:
            chosen = {node.id if isinstance(node, GraphNode) else self[node].id for node in nodes}
        return induced(self, np.array(sorted(chosen), np.int64))

    # -- totals --------------------------------------------------------------------------------------------------

    @property
    def time_ns(self) -> int | None:
        """The sum of all known node times; None when nothing was timed. `measured()` says what it is."""
        known = self.columns["node_time_ns"]
        known = known[known >= 0]
        return int(known.sum()) if len(known) else None

    @property
    def timing(self) -> Timing | None:
        """How many runs the times are of, and what a whole run took; None when nothing was timed."""
        if self._timing is None and self.time_ns is not None:
            return Timing()  # times without a Timing are of one run
        return self._timing if self.time_ns is not None else None

    @timing.setter
    def timing(self, timing: Timing | None) -> None:
        self._timing = timing

    def measured(self, nodes: Array | None = None) -> Measured | None:
        """The sum of known node times, with what it is: of one run, or the median of several.

        Args:
            nodes: Ids of the nodes to sum; None sums all.
        Returns:
            The time; None when none of them was timed.
        """
        time, spread, timing = self.columns["node_time_ns"], self.columns["node_time_spread_ns"], self.timing
        if nodes is not None:
            time, spread = time[nodes], spread[nodes]
        timed = time >= 0
        if timing is None or not timed.any():
            return None
        known = timing.runs > 1 and (spread[timed] >= 0).all()
        return Measured(int(time[timed].sum()), timing.runs, int(spread[timed].sum()) if known else None)

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes alive after any node; None when memory was not followed."""
        known = self.columns["node_memory_bytes"]
        return int(known.max()) if len(known) and known.max() >= 0 else None

    @property
    def data_edges(self) -> int:
        """How many edges carry data."""
        return int((self.columns["edge_kind"] == EDGE_KINDS.index(EdgeKind.DATA)).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the columns in memory."""
        return sum(column.nbytes for column in self.columns.values())

    # -- sameness ------------------------------------------------------------------------------------------------

    @cached_property
    def hash(self) -> str:
        """The structure as a hex digest: equal for the same model and input in any process."""
        return identity.structural_hash(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and (other is self or self.hash == other.hash)

    def __hash__(self) -> int:
        return hash(self.hash)

    def identical(self, other: Graph) -> bool:
        """Whether every column, table and note is the same, times included. `==` compares the structure only.

        Args:
            other: Another graph.
        Returns:
            True if nothing differs.
        """
        return identity.first_difference(self, other) is None

    # -- going elsewhere: formats add themselves, see graph/formats.py ----------------------------------------------

    def save(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write the graph; the suffix chooses the format.

        Args:
            path: Where: .atlas holds everything, .json everything but recorded values, .html is the viewer, .svg, .png
                and .pdf are pictures; .dot, .mmd, .csv, .parquet, .graphml, .gexf, .onnx, .model-explorer.json,
                .node-data.json, .trace.json, .speedscope.json and .et are for other tools.
            **options: Those of the format. A page of the viewer takes `title`, and what is laid over the graph:
                `overlay` (numbers of nodes or modules by name), `findings`, `partition`, `stages`, `backward`; `device`
                is for its roofline. A .node-data.json file takes `by`. Pictures take the arguments of `atlas.draw`.
        Returns:
            The path.
        Raises:
            FileFormatError: No format has that suffix.
            FileSystemError: The file cannot be written.
            MissingDependencyError: The format needs a package that is not installed.
        """
        return formats.save(self, formats.as_path(path), **options)

    def show(self, **options: Any) -> Path:
        """Open the viewer in a browser.

        Args:
            **options: Those of `save("step.html")`.
        Returns:
            The path of its page.
        """
        shown: Path = formats.view("browser", self, **options)
        return shown

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Graph:
        """Read a graph. Nothing in a file is ever executed.

        Args:
            path: A file that `save` wrote: .atlas, .json, or a page of the viewer (.html).
        Returns:
            The graph; of a traced model that was saved, its graph.
        Raises:
            FileSystemError: The file cannot be read.
            FileFormatError: The file is damaged, or not of the format that its suffix says.
            NewerVersionError: A newer torchatlas wrote it.
        """
        graph = formats.load(formats.as_path(path))
        assert isinstance(graph, cls)
        return graph

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The graph for the algorithms of networkx.

        Returns:
            A networkx.MultiDiGraph with one node per node and one edge per edge.
        Raises:
            MissingDependencyError: networkx is not installed.
        """
        return formats.view("networkx", self)

    def to_pandas(self) -> pandas.DataFrame:
        """The nodes as a data frame.

        Returns:
            A pandas.DataFrame with one row per node.
        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return formats.view("pandas", self)

    def __repr__(self) -> str:
        return f"<Graph of {clean(origin(self.source))}: {len(self):,} nodes, {len(self.edges):,} edges>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows, in every form that it may choose from: the picture is drawn once for all of them."""
        return {"text/plain": repr(self), **formats.view("notebook", self)}

    def _repr_html_(self) -> str:
        return str(formats.view("html", self))

    def _repr_svg_(self) -> str:
        return str(formats.view("svg", self))
