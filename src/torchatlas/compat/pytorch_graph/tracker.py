"""pytorch-graph's ComputationalGraphTracker: records a model's run between start and stop, and summarizes it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn

from torchatlas.analysis.totals import summarize
from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.recording import Recording, recording
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import FileFormatError, InvalidModelError, StateError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphEdge, GraphNode, formats
from torchatlas.graph.formats import as_path, suffix_of
from torchatlas.interrupts import Bracket, signals_deferred
from torchatlas.registry import check_choice

if TYPE_CHECKING:
    from torchatlas.render.picture import Picture

RENDERERS = ("plotly", "matplotlib")
NODE_KEYS = (
    "id",
    "name",
    "operation_type",
    "module_name",
    "input_shapes",
    "output_shapes",
    "parameters",
    "execution_time",
    "memory_usage",
    "metadata",
    "parent_ids",
    "child_ids",
    "timestamp",
)
EDGE_KEYS = ("source_id", "target_id", "edge_type", "tensor_shape", "metadata")


class ComputationalGraphTracker(Bracket["ComputationalGraphTracker"]):
    """Records a model's run between `start_tracking()` and `stop_tracking()`, or inside `with tracker:`.

    Starting again after a stop begins anew. `graph` and `get_graph_summary()` also work while tracking: they show what
    there is so far.

    Args:
        model: The model, which names the modules.
        track_memory: Follow which tensors are alive.
        track_timing: Measure how long each op takes.
        track_tensor_ops: False records whole module calls instead of operations, at almost no cost.
    Raises:
        InvalidModelError: `model` is not a module.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Linear(4, 2)
        >>> with atlas.ComputationalGraphTracker(model) as tracker:
        ...     output = model(torch.ones(1, 4))
        >>> tracker.tracking, tracker.graph["addmm"].output_shapes
        (False, [(1, 2)])
    """

    @explains_arguments
    def __init__(
        self,
        model: nn.Module,
        track_memory: bool = True,
        track_timing: bool = True,
        track_tensor_ops: bool = True,
    ) -> None:
        _check_model(model)
        self.model = model
        self.track_memory, self.track_timing, self.track_tensor_ops = track_memory, track_timing, track_tensor_ops
        self._session: Recording | None = None
        self._began_ns = self._ended_ns = 0

    def start_tracking(self) -> None:
        """Begin to record everything that torch does on this thread.

        Raises:
            StateError: It is tracking already.
        """
        self._start(None)

    def stop_tracking(self) -> None:
        """Stop recording. The graph is decoded when it is first asked for.

        Raises:
            StateError: It is not tracking.
        """
        self._stop(None)

    def _begin(self) -> ComputationalGraphTracker:
        self._start(None)
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop(error)

    def _start(self, guard: Restorer | None) -> None:
        if self.tracking:
            raise StateError("This tracker is tracking already; call stop_tracking() before starting again.")
        options: dict[str, Any] = {"track_timing": self.track_timing, "track_memory": self.track_memory}
        if guard is not None and self.track_tensor_ops:
            session = Recording(self.model, only_inputs=True, guard=guard, **options)
        else:
            session = recording(self.model, track_tensor_ops=self.track_tensor_ops, **options)
        with signals_deferred():  # a recording that is not assigned yet could not be stopped
            session.start()
            self._session, self._began_ns, self._ended_ns = session, time.perf_counter_ns(), 0

    def _stop(self, error: BaseException | None) -> None:
        if self._session is None or not self._session.running:
            raise StateError("This tracker is not tracking; call start_tracking() before stop_tracking().")
        ended_ns = time.perf_counter_ns()
        self._session.stop(error)
        self._ended_ns = ended_ns

    @property
    def tracking(self) -> bool:
        """Whether it records at this moment."""
        return self._session is not None and self._session.running

    @property
    def graph(self) -> Graph:
        """What was recorded: `graph.nodes`, `graph.edges`, `graph.scopes` and all the rest."""
        if self._session is None:
            raise StateError("Nothing was tracked yet; call start_tracking(), run the model, then stop_tracking().")
        return self._session.graph

    def get_graph_summary(self) -> dict[str, Any]:
        """The run in figures.

        `execution_time` is the wall time in seconds from start to stop, what lies between the operations and the cost
        of recording them included, our decoding afterwards not; on an accelerator it does not wait for the device.
        `operation_time` sums the operations alone. With `track_timing=False` both are nan, which prints and computes
        but is no time, and "timing" is "off". `times` prints readably what these times are: one run, or the median of
        several, and then also what the program takes alone. `memory_usage` is in bytes and prints readably; with
        `track_memory=False` its entries are None and "memory" is "off".
        """
        graph = self.graph
        figures = summarize(graph)
        operation_time = figures.pop("operation_time")
        return {
            "total_nodes": figures.pop("total_nodes"),
            "total_operations": figures.pop("total_operations"),
            "total_edges": figures.pop("total_edges"),
            "execution_time": self._wall_seconds(figures["times"]["recorded"]),
            "operation_time": float("nan") if operation_time is None else operation_time,
            **figures,
            "timing": "on" if self.track_timing else "off",
            "memory": "on" if self.track_memory else "off",
            "tracking": self.tracking,
        }

    def export_graph(self, filepath: str | os.PathLike[str], format: str | None = None) -> Path:
        """Write the graph to a file.

        Args:
            filepath: Where; its suffix chooses the format (.json, .atlas ...).
            format: The format where the suffix does not say it: "json" writes JSON into a file of any name that has no
                suffix of another format.
        Returns:
            The path.
        Raises:
            FileFormatError: There is no such format.
            FileSystemError: The file cannot be written.
        """
        path = as_path(filepath)
        if format is None:
            return self.graph.save(path)
        return formats.save(self.graph, path, suffix="." + str(format).lower().removeprefix("."))

    def save_graph_png(
        self,
        filepath: str | os.PathLike[str],
        width: int = 1200,
        height: int = 800,
        dpi: int = 300,
        show_legend: bool = True,
        node_size: int = 20,
        font_size: int = 10,
    ) -> Path:
        """Draw the graph into a PNG of exactly `width` x `height` pixels. What does not fit is closed into fewer boxes.

        Args:
            filepath: Where; the folder must exist.
            width: Pixels.
            height: Pixels.
            dpi: What the file says of its resolution.
            show_legend: Whether the colours are explained below.
            node_size: The height of the smallest box, in pixels.
            font_size: The height of the smallest label, in pixels.
        Returns:
            The path.
        Raises:
            FileFormatError: The path has a suffix other than .png.
            FileSystemError: The file cannot be written.
        """
        from torchatlas.render.picture import draw

        path = as_path(filepath)
        if suffix_of(path) != ".png":
            raise FileFormatError(
                f"save_graph_png writes .png files, and {str(filepath)!r} ends otherwise; graph.save() writes others."
            )
        picture = draw(
            self.graph, width=width, height=height, font_size=font_size, node_size=node_size, legend=show_legend
        )
        return picture.save(path, dpi=dpi)

    # -- names of pytorch-graph for what `graph` holds -----------------------------------------------------------------

    @property
    def is_tracking(self) -> bool:
        """Another name of `tracking`."""
        return self.tracking

    @property
    def nodes(self) -> dict[int, GraphNode]:
        """The nodes by id, in the order in which they ran."""
        return {node.id: node for node in self.graph.nodes}

    @property
    def edges(self) -> list[GraphEdge]:
        """The edges, in the order of `graph.edges`."""
        return list(self.graph.edges)

    def get_graph_data(self) -> dict[str, Any]:
        """Nodes and edges as dictionaries with pytorch-graph's keys, and the summary."""
        return {
            "nodes": [{key: getattr(node, key) for key in NODE_KEYS} for node in self.graph.nodes],
            "edges": [{key: getattr(edge, key) for key in EDGE_KEYS} for edge in self.graph.edges],
            "summary": self.get_graph_summary(),
        }

    def visualize_graph(self, renderer: str = "plotly") -> Picture:
        """Draw the graph. A notebook shows the picture, and its `save(path)` writes it.

        Args:
            renderer: One of pytorch-graph's, "plotly" or "matplotlib". Both give the same picture, without the library.
        Returns:
            The Picture.
        Raises:
            InvalidInputError: There is no renderer of that name.
        """
        from torchatlas.render.picture import draw

        check_choice("renderer", renderer, RENDERERS)
        return draw(self.graph)

    def _wall_seconds(self, recorded: dict[str, Any] | None) -> float:
        if not self.track_timing:
            return float("nan")
        if recorded is not None and recorded["runs"] > 1:
            return float(recorded["ns"] / 1e9)
        return ((time.perf_counter_ns() if self.tracking else self._ended_ns) - self._began_ns) / 1e9

    def __repr__(self) -> str:
        state = "tracking" if self.tracking else "new" if self._session is None else "stopped"
        return f"<ComputationalGraphTracker of {clean(type(self.model).__name__)}, {state}>"


def _check_model(model: Any) -> None:
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise InvalidModelError(f"{model.__name__} is a class, not a model; pass an instance: {model.__name__}(...).")
    if isinstance(model, Mapping):
        raise InvalidModelError("A dictionary of weights is not a model; build the model and call load_state_dict.")
    hint = " For a plain function use atlas.capture(function, ...)." if callable(model) else ""
    raise InvalidModelError(f"model must be a torch.nn.Module, not {type(model).__name__}.{hint}")
