"""A partition and its model -> modules that run: one per subgraph, and the whole, which calls them.

Parameters stay the model's own. torch.fx's split_module does the cutting; before that the nodes are sorted so that
subgraphs follow each other in an order in which they can run, writes in place included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torchatlas.errors import InvalidInputError, NodeNotFoundError, NotAvailableError
from torchatlas.graph.nouns import OperationType
from torchatlas.operations import operation_type
from torchatlas.registry import did_you_mean

if TYPE_CHECKING:
    from torch import fx, nn

    from torchatlas.execute.recorded_pieces import RecordedProgram
    from torchatlas.execute.traced import TracedModel
    from torchatlas.partition.report import PartitionReport

# A module that takes flat inputs, and a call of the model -> what the model returns.
Caller = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_RANDOM = OperationType.RANDOM


@dataclass(frozen=True, eq=False)
class Pieces(Mapping[str, "nn.Module"]):
    """The subgraphs as modules, by id, in the order in which they run. Calling it runs them all, as the model does.

    Those of a recorded run take inputs that lead along its path, and refuse others with an InputMismatchError.
    """

    module: fx.GraphModule = field(repr=False)  # the whole, which calls the pieces; it takes flat inputs
    modules: dict[str, nn.Module] = field(repr=False)
    caller: Caller | None = field(default=None, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs, computed by its pieces."""
        if self.caller is None:
            return self.module(*args, **kwargs)
        return self.caller(self.module, args, kwargs)

    def __getitem__(self, node_id: str) -> nn.Module:
        if node_id not in self.modules:
            raise NodeNotFoundError(f"no piece has the id {node_id!r}{did_you_mean(node_id, self.modules)}")
        return self.modules[node_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


def extract(report: PartitionReport, origin: Any) -> Pieces:
    """Cut what was partitioned into modules."""
    from torch import fx

    from torchatlas.execute.recorded_run import RecordedRun
    from torchatlas.execute.traced import TracedModel

    if origin is None:
        if "replay" not in report.graph.metadata:
            raise NotAvailableError(
                f"A graph of source {report.front_end!r} does not run by itself. Partition a torch.fx.GraphModule, a "
                "traced model or a model with its inputs instead, pass one: report.extract(atlas.trace(model, "
                '*inputs)), or capture the graph with values="replay".'
            )
        from torchatlas.execute.recorded_pieces import program_of

        return _of_recorded(report, program_of(report.graph))
    if isinstance(origin, RecordedRun):
        return _of_recorded(report, origin.program)
    if isinstance(origin, TracedModel):
        return _of_traced(report, origin)
    if not isinstance(origin, fx.GraphModule):
        raise InvalidInputError(f"extract cuts a torch.fx.GraphModule or a TracedModel, not {type(origin).__name__}.")
    return _cut(report, origin, {node.name: node.name for node in origin.graph.nodes}, None)


def _of_traced(report: PartitionReport, traced: TracedModel) -> Pieces:
    from torchatlas.execute.program import Program
    from torchatlas.execute.program_to_fx import to_fx

    variant = traced.first
    if not isinstance(variant.program, Program):
        raise NotAvailableError(
            "This model was followed, not traced: torch.export refuses it. Partition the model itself, with its "
            "inputs, and its recorded run is cut: GraphPartitioner().partition(model, *inputs)."
        )
    module, names = to_fx(variant.program, variant.tensors_of(traced.model))
    return _cut(report, module, names, partial(_call_traced, traced))


def _call_traced(traced: TracedModel, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return traced.structured(module(*traced.flattened(args, kwargs)))


def _of_recorded(report: PartitionReport, program: RecordedProgram) -> Pieces:
    """Cut a recorded run. Its pieces draw random numbers anew, and get the same ones only in the order of the run."""
    from torchatlas.execute.program_to_fx import to_fx

    module, names = to_fx(program.program, program.constants.__getitem__)
    draws = frozenset(node for node, name in names.items() if name in program.draws)
    return _cut(report, module, names, program.call, draws)


def _draws(module: fx.GraphModule) -> frozenset[str]:
    """The nodes that draw random numbers, judged by their names."""
    import torch

    drawing = set()
    for node in module.graph.nodes:
        if node.op == "call_module":
            parts = [part for part in module.get_submodule(node.target).modules() if part.training]
            if any(
                operation_type(f"{type(part).__module__}.{type(part).__name__}") is _RANDOM
                or getattr(part, "dropout", 0.0)
                for part in parts
            ):
                drawing.add(node.name)
        elif node.op.startswith("call_"):
            name = getattr(node.target, "__name__", str(node.target))
            seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if seeded or (operation_type(name) is _RANDOM and node.kwargs.get("training", True)):
                drawing.add(node.name)
    return frozenset(drawing)


def _cut(
    report: PartitionReport,
    module: fx.GraphModule,
    names: dict[str, str],
    caller: Caller | None,
    draws: frozenset[str] | None = None,
) -> Pieces:
    """Cut torch.fx's graph. `names` maps its nodes to the report's names; `draws`: those that draw random numbers."""
    from torch.fx.passes.split_module import split_module

    home = {name: number for number, subgraph in enumerate(report.subgraphs) for name in subgraph.nodes}
    drawing = _draws(module) if draws is None else draws
    parts = [home.get(names.get(node.name, ""), 0) for node in module.graph.nodes if node.name in drawing]
    if parts != sorted(parts):
        raise NotAvailableError(
            "Random numbers would be drawn in another order: subgraphs that draw some are not in the order of the run. "
            "Put what draws into one group: GraphPartitioner(groups=...)."
        )
    present = {names[node.name] for node in module.graph.nodes if node.name in names}
    if missing := [name for name in home if name not in present]:
        raise InvalidInputError(f"This is not what was partitioned: it has no node {missing[0]!r}.")
    in_order, part = _sorted(module, _homes(module, {name: home.get(known) for name, known in names.items()}))
    whole = split_module(in_order, module, lambda node: part[node], keep_original_order=True)
    made = {number: getattr(whole, f"submod_{number}") for number in sorted(set(part.values()))}
    ids = [subgraph.node_id for subgraph in report.subgraphs]
    return Pieces(whole, {ids[number]: piece for number, piece in made.items()}, caller)


def _homes(module: fx.GraphModule, home: dict[str, int | None]) -> dict[Any, int | None]:
    """The part of each node; None for a view that only other parts use.

    Each of those makes the view itself: autograd forbids to write into a view that was made before its memory was
    written to.
    """
    homes = {node: home.get(node.name) for node in module.graph.nodes}
    for node in reversed(module.graph.nodes):
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        is_view = any(returned.alias_info is not None and not returned.alias_info.is_write for returned in returns)
        users = [homes[user] for user in node.users if user.op != "output"]
        if is_view and users and len(users) == len(node.users) and homes[node] not in users:
            homes[node] = None
    return homes


def _sorted(module: fx.GraphModule, home: dict[Any, int | None]) -> tuple[fx.GraphModule, dict[Any, int]]:
    """A copy of the graph with the nodes of each part side by side, and the part of each node.

    What no subgraph names, arithmetic with sizes or one of several results, is computed wherever it is used.
    """
    from torch import fx

    graph, copies = fx.Graph(), dict[Any, Any]()  # node -> its copy
    part: dict[Any, int] = {}
    nodes = list(module.graph.nodes)
    calls: dict[int | None, list[Any]] = {}
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            copies[node] = graph.node_copy(node)
        elif node.op.startswith("call_"):
            calls.setdefault(home[node], []).append(node)
    left_over = _left_over(nodes, home)
    for number in range(1 + max((known for known in home.values() if known is not None), default=0)):
        own: dict[Any, Any] = {}  # copies, for this part, of nodes that no subgraph names

        def copied(node: Any, own: dict[Any, Any] = own, number: int = number) -> Any:
            if node in copies:
                return copies[node]
            if node not in own:
                own[node] = graph.node_copy(node, copied)
                part[own[node]] = number
            return own[node]

        for node in calls.get(number, ()):
            copies[node] = graph.node_copy(node, copied)
            part[copies[node]] = number
        for node in left_over.get(number, ()):
            copies[node] = copied(node)
    last = max(part.values(), default=0)

    def returned(node: Any) -> Any:
        """split_module passes on what parts make: a constant that is returned has to be made by one."""
        if node.op != "get_attr":
            return copies[node]
        made = graph.call_function(_as_it_is, (copies[node],))
        part[made] = last
        return made

    outputs = [node for node in nodes if node.op == "output"]
    for node in outputs:
        graph.node_copy(node, returned)
    return fx.GraphModule(module, graph), part


def _as_it_is(item: Any) -> Any:
    return item


def _left_over(nodes: list[Any], home: dict[Any, int | None]) -> dict[int, list[Any]]:
    """Nodes in no subgraph that the program returns, or only checks, by the last part that they depend on."""
    last: dict[Any, int] = {}
    left_over: dict[int, list[Any]] = {}
    for node in nodes:
        known = home[node]
        last[node] = known if known is not None else max((last[source] for source in node.all_input_nodes), default=0)
        needed = not node.users or any(user.op == "output" for user in node.users)
        if node.op.startswith("call_") and known is None and needed:
            left_over.setdefault(last[node], []).append(node)
    return left_over
