"""Graph -> TensorBoard's graph page, with times: a GraphDef and a RunMetadata, as TensorFlow writes them.

Nothing is traced: nodes, edges and times are those of the graph. Modules become name scopes; backward and the optimizer
have scopes of their own. `torch.utils.tensorboard` writes graphs only through torch.jit.trace, and without times.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from importlib import import_module
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.graph import EdgeKind, Graph, GraphNode, Phase
from torchatlas.graph.formats import imported
from torchatlas.integrations.loggers import Sink
from torchatlas.integrations.training_report import TrainingReport

_PRODUCER = 22  # the oldest version of a GraphDef that TensorBoard takes as it is
_NS_PER_US = 1000


def add_graph(writer: Any, graph: Graph, *, tag: str = "step") -> None:
    """Add a graph with its times to TensorBoard's graph page.

    Args:
        writer: A SummaryWriter, or the folder to write an event file into.
        graph: The graph. The page of a run shows one graph: the last that was added.
        tag: What the times are called, under "Tag" on the page.
    Raises:
        InvalidInputError: `writer` is neither.
        MissingDependencyError: tensorboard is not installed.
    Example:
        >>> import tempfile, torch, torchatlas as atlas
        >>> from torchatlas.integrations.tensorboard import add_graph
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4), backward=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     add_graph(folder, graph)
    """
    events = _protocol("event_pb2")
    if not isinstance(graph, Graph):
        raise InvalidInputError(f"add_graph(writer, graph) takes a Graph, not {type(graph).__name__}.")
    definition, times = graph_def(graph)
    tagged = events.TaggedRunMetadata(tag=tag, run_metadata=times.SerializeToString())
    now = time.time()
    messages = [
        events.Event(wall_time=now, graph_def=definition.SerializeToString()),
        events.Event(wall_time=now, tagged_run_metadata=tagged),
    ]
    if isinstance(writer, (str, os.PathLike)):
        own = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(os.fspath(writer))
        try:
            for event in messages:
                own.add_event(event)
        finally:
            own.close()
    elif hasattr(writer, "_get_file_writer"):
        for event in messages:
            writer._get_file_writer().add_event(event)
        writer.flush()
    else:
        raise InvalidInputError(
            f"add_graph(writer, graph) takes a SummaryWriter or a folder, not {type(writer).__name__}."
        )


def graph_def(graph: Graph) -> tuple[Any, Any]:
    """A graph as TensorFlow's GraphDef, and its times as RunMetadata.

    Args:
        graph: The graph.
    Returns:
        Both messages. Nodes are in the graph's order; a node without a time is in the GraphDef alone.
    Raises:
        MissingDependencyError: tensorboard is not installed.
    Example:
        >>> import torch, torchatlas as atlas
        >>> from torchatlas.integrations.tensorboard import graph_def
        >>> definition, _ = graph_def(atlas.capture(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(1)))
        >>> [node.name for node in definition.node]
        ['input', '0/relu', 'output']
    """
    graphs, versions = _protocol("graph_pb2"), _protocol("versions_pb2")
    stats, config = _protocol("step_stats_pb2"), _protocol("config_pb2")
    names = _unique_names(graph)
    data: dict[int, list[tuple[int, str]]] = {}
    order: dict[int, dict[str, None]] = {}
    for edge in graph.edges:
        source, output = names[edge.source_id], edge.output_index
        if edge.kind == EdgeKind.DATA:
            text = f"{source}:{output}" if output else source
            data.setdefault(edge.target_id, []).append((edge.input_index or 0, text))
        else:
            order.setdefault(edge.target_id, {})[f"^{source}"] = None
    definition = graphs.GraphDef(versions=versions.VersionDef(producer=_PRODUCER))
    times: dict[str, Any] = {}
    born = _born_bytes(graph)
    for node, name in zip(graph.nodes, names, strict=True):
        inputs = [text for _, text in sorted(data.get(node.id, ()), key=lambda one: one[0])]
        device = _device(node)
        definition.node.append(_node_def(node, name, [*inputs, *order.get(node.id, ())], device))
        if node.time_ns is not None:
            on = times.setdefault(device, stats.DeviceStepStats(device=device))
            on.node_stats.append(_node_stats(node, name, born.get(node.id, 0), stats))
    return definition, config.RunMetadata(step_stats=stats.StepStats(dev_stats=list(times.values())))


def sink(writer: Any) -> Sink:
    """What a training writes to a SummaryWriter: figures while it runs, the graph of its last step at the end."""

    def log(figures: dict[str, float], step: int) -> None:
        for name, number in figures.items():
            writer.add_scalar(name, number, step)

    def finish(report: TrainingReport) -> None:
        if report.graph is not None:
            add_graph(writer, report.graph, tag=f"step {report.graph.metadata.get('step', '')}".strip())
        if report.findings is not None:
            writer.add_text("atlas/findings", f"```\n{report.findings}\n```".replace("\n", "\n    "))
        writer.flush()

    return Sink("TensorBoard", log, finish)


def _protocol(name: str) -> Any:
    imported("tensorboard", "Writing graphs for TensorBoard needs")
    return import_module(f"tensorboard.compat.proto.{name}")


def _node_def(node: GraphNode, name: str, inputs: list[str], device: str) -> Any:
    nodes, attributes = _protocol("node_def_pb2"), _protocol("attr_value_pb2")
    shapes = _protocol("tensor_shape_pb2")
    made = nodes.NodeDef(name=name, op=node.operation or str(node.kind), input=inputs, device=device)
    if node.outputs:
        sizes = [[size if isinstance(size, int) else -1 for size in value.shape] for value in node.outputs]
        dims = [shapes.TensorShapeProto(dim=[shapes.TensorShapeProto.Dim(size=one) for one in size]) for size in sizes]
        listed = attributes.AttrValue.ListValue(shape=dims)
        made.attr["_output_shapes"].CopyFrom(attributes.AttrValue(list=listed))
        dtypes = ", ".join(value.dtype for value in node.outputs)
        made.attr["dtype"].CopyFrom(attributes.AttrValue(s=dtypes.encode()))
    if node.source is not None:
        made.attr["line"].CopyFrom(attributes.AttrValue(s=str(node.source).encode()))
    return made


def _node_stats(node: GraphNode, name: str, born: int, stats: Any) -> Any:
    """Times in microseconds, which the page shows, at least one: it leaves out what took none. And in nanoseconds."""
    assert node.time_ns is not None
    start, micros = node.start_ns or 0, max(1, round(node.time_ns / _NS_PER_US))
    made = stats.NodeExecStats(
        node_name=name,
        all_start_micros=start // _NS_PER_US,
        op_end_rel_micros=micros,
        all_end_rel_micros=micros,
        all_start_nanos=start,
        op_end_rel_nanos=node.time_ns,
        all_end_rel_nanos=node.time_ns,
        timeline_label=node.operation,
    )
    if born:
        made.memory.append(stats.AllocatorMemoryUsed(allocator_name=_device(node), total_bytes=born, peak_bytes=born))
    return made


def _born_bytes(graph: Graph) -> dict[int, int]:
    """How much each node allocates, as far as it is known."""
    allocated: Counter[int] = Counter()
    for storage in graph.storages:
        if storage.born is not None and storage.bytes is not None:
            allocated[storage.born.id] += storage.bytes
    return dict(allocated)


def _device(node: GraphNode) -> str:
    device = next((value.device for value in node.outputs), "cpu")
    kind, _, index = device.partition(":")
    return f"/device:{kind.upper()}:{index or 0}"


def _unique_names(graph: Graph) -> list[str]:
    """A name for each node, with a / between modules. None is also a scope: TensorBoard would merge them."""
    paths = [_path(node) for node in graph.nodes]
    taken = {"/".join(path[:end]) for path in paths for end in range(1, len(path))}
    names: list[str] = []
    for path in paths:
        name, count = "/".join(path), 0
        while name in taken:
            count += 1
            name = f"{'/'.join(path)}_{count}"
        taken.add(name)
        names.append(name)
    return names


def _path(node: GraphNode) -> list[str]:
    scope = node.scope.path
    leaf = node.name.removeprefix(f"{scope}.") if scope else node.name
    phase = [] if node.phase == Phase.FORWARD or node.kind != "op" else [str(node.phase)]
    parts = [*phase, *(scope.split(".") if scope else ()), leaf]
    return [re.sub(r"[^A-Za-z0-9_.\-]", "_", part) or "_" for part in parts]
