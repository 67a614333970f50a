"""A few captures at small batch sizes -> the peak at any batch size, and the largest batch that fits.

The memory after every node is taken to grow in a straight line with the batch, each node along its own, and the peak
is the highest of them all: where it lies may change. A step whose peak is in the optimizer at batch 4 and in backward
at batch 64 is predicted right, which a line through two peaks would not.

A training takes many steps: the state that an optimizer makes in its first one counts from the beginning, as it is
there in all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from torchatlas.analysis.reports import Report, fields_as_json
from torchatlas.analysis.storages import peak_of
from torchatlas.analysis.totals import memory_usage, module_calls_only
from torchatlas.argument_errors import explains_arguments
from torchatlas.deprecation import old_arguments, old_attribute
from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, Role
from torchatlas.graph.columns import ROLES, Array
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import byte_limit, format_bytes

_COUNTABLE = 2**60
_SHOWN = (2, 8, 32, 128)  # times the largest captured size, the sizes that text shows predictions for


class IntBound(int):
    """A whole number that is only a bound. It prints as one.

    >>> IntBound(512, "at most"), IntBound(512, "at most") + 1, f"{IntBound(2048, 'at least'):,}"
    (at most 512, 513, '2,048')
    """

    sign: str  # "at least" or "at most"

    def __new__(cls, number: int, sign: str) -> IntBound:
        bound = super().__new__(cls, number)
        bound.sign = sign
        return bound

    def __repr__(self) -> str:
        return f"{self.sign} {int(self)}"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)

    def __reduce__(self) -> tuple[type[IntBound], tuple[int, str]]:
        return IntBound, (int(self), self.sign)


@dataclass(frozen=True, eq=False, repr=False)
class BatchPeak(Report):
    """How the peak grows with the batch. `at` and `largest_batch` answer; print it for a table.

    `measured` are the peaks of the captures, by batch size, with the state that their optimizers made counted from the
    beginning: `state_bytes` of it. The lines go through the smallest and the largest; `exact` says that all captures
    between them lay on the lines, to the byte. With `at_least`, the size of some tensors is not known; with `bends`,
    memory grows faster than in a straight line. `notes` say more. Predictions are bounds then: the peak is at least,
    the largest batch at most what they say.
    """

    measured: dict[int, int]  # the peaks of the captures, by batch size
    exact: bool  # all captures between the two lie on the lines, to the byte
    at_least: bool  # some sizes are not known: there may be more
    notes: tuple[str, ...]
    low: Array = field(repr=False)  # bytes after every node at the smallest size
    high: Array = field(repr=False)  # and at the largest
    graph: Graph = field(repr=False)  # the capture at the smallest size
    state_bytes: int = 0  # what the optimizer made in the captured step and keeps
    bends: bool = False  # memory grows faster than the lines

    sizes = old_attribute("batches")

    @property
    def batches(self) -> tuple[int, int]:
        """The batch sizes that the lines go through."""
        return min(self.measured), max(self.measured)

    @property
    def bytes_per_example(self) -> float:
        """What every further example adds to the peak of large batches."""
        low, high = self.batches
        return int((self.high - self.low).max()) / (high - low)

    @property
    def fixed_bytes(self) -> float:
        """What the peak of large batches holds beside that."""
        growth, low = self.high - self.low, self.batches[0]
        return int(self.low[growth == growth.max()].max()) - self.bytes_per_example * low

    def at(self, batch: int) -> int:
        """The peak at a batch size.

        Args:
            batch: The batch size.
        Returns:
            Bytes: as captured where it was, else as predicted. With `at_least` or `bends` they print as "at least".
        Raises:
            InvalidInputError: It is no whole number from 1.
        """
        if batch in self.measured:
            return IntBound(self.measured[batch], "at least") if self.at_least else self.measured[batch]
        peak = int(self._at(_positive(batch)).max())
        return IntBound(peak, "at least") if self.at_least or self.bends else peak

    def node_at(self, batch: int) -> str:
        """Where the peak is.

        Args:
            batch: The batch size.
        Returns:
            The name of the node; empty when the captures could not be compared.
        """
        return self.graph.nodes[int(self._at(_positive(batch)).argmax())].name if len(self.low) > 1 else ""

    @old_arguments(memory_bytes="limit")
    def largest_batch(self, limit: float | str) -> int | None:
        """The largest batch that fits.

        Args:
            limit: The memory, in bytes or as text such as "24GB".
        Returns:
            The batch size; 0 when none fits, None when every one does. With `at_least` or `bends` it prints as "at
            most".
        Raises:
            InvalidInputError: The limit is no number of bytes.
        """
        growth, (low, high) = self.high - self.low, self.batches
        limit_bytes = min(byte_limit(limit), _COUNTABLE)
        if (np.maximum(self.low, self.high)[growth <= 0] > limit_bytes).any():
            return 0
        growing = growth > 0
        if not growing.any():
            return None
        room = (limit_bytes - self.low[growing]) * (high - low) // growth[growing]
        largest = max(int(room.min()) + low, 0)
        return IntBound(largest, "at most") if (self.at_least or self.bends) and largest else largest

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        measured = {str(batch): peak for batch, peak in self.measured.items()}
        growth = {"fixed_bytes": self.fixed_bytes, "bytes_per_example": self.bytes_per_example}
        return {"measured": measured, **growth, **fields_as_json(self, ("measured", "low", "high", "graph"))}

    def _sections(self) -> Iterator[Section]:
        sign = "at least " if self.at_least else ""
        per_example, fixed = format_bytes(self.bytes_per_example), format_bytes(self.fixed_bytes)
        predicted = "at least " if self.at_least or self.bends else ""
        yield Lines([f"{predicted}{per_example} per example and {fixed} besides"])
        rows = [[f"{size:,}", f"{sign}{format_bytes(peak)}", "captured", ""] for size, peak in self.measured.items()]
        for size in (self.batches[1] * factor for factor in _SHOWN):
            rows.append([f"{size:,}", f"{predicted}{format_bytes(self.at(size))}", "predicted", self.node_at(size)])
        yield Table([">batch", ">peak", "", "reached in"], rows)
        yield Lines([], self.notes)

    def _at(self, batch: int) -> Array:
        """Bytes after every node, rounded up."""
        growth, (low, high) = self.high - self.low, self.batches
        if int(np.abs(growth).max()) * batch > _COUNTABLE:
            raise InvalidInputError(f"At batch size {batch:,} the bytes are more than can be counted.")
        bytes_after: Array = self.low - growth * (low - batch) // (high - low)
        return bytes_after


@old_arguments(sizes="batches")
@explains_arguments
def peak_for_batch(
    captured: Callable[[int], Graph] | Mapping[int, Graph], batches: Sequence[int] = (2, 3, 4)
) -> BatchPeak:
    """Predict the peak of memory at other batch sizes from captures at small ones.

    Lines are drawn through the smallest and the largest size. The others check them: `notes` say where they were off.

    Args:
        captured: A function from the batch size to a graph, usually a capture with `fake=True`, called for each of
            `batches`; or the graphs themselves, by batch size.
        batches: The batch sizes to capture.
    Returns:
        A BatchPeak: `at(batch)` is the peak, `largest_batch(limit)` what fits. Print it for a table.
    Raises:
        InvalidInputError: There are less than two batch sizes, or `captured` gives no graphs.
        AnalysisError: Memory was not followed in one of the graphs.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Linear(64, 64)
        >>> growth = atlas.peak_for_batch(lambda batch: atlas.capture(model, torch.empty(batch, 64), fake=True))
        >>> growth.exact, growth.at(1000) - growth.at(999)
        (True, 512)
    """
    if not isinstance(captured, Mapping) and (not callable(captured) or hasattr(captured, "forward")):
        raise InvalidInputError(
            f"peak_for_batch takes a function that captures a batch of a given size, not {type(captured).__name__}: "
            "peak_for_batch(lambda batch: atlas.capture(model, torch.empty(batch, 3, 224, 224), backward=True, "
            "fake=True))."
        )
    batches = [batches] if isinstance(batches, int) else batches
    graphs = dict(captured) if isinstance(captured, Mapping) else {_positive(size): captured(size) for size in batches}
    graphs = {size: graphs[size] for size in sorted(graphs, key=_positive)}
    if len(graphs) < 2:
        raise InvalidInputError(f"Two different batch sizes are needed to see how memory grows; got {list(graphs)}.")
    for size, graph in graphs.items():
        if not isinstance(graph, Graph):
            raise InvalidInputError(
                f"The capture at batch size {size} is {type(graph).__name__}, not a Graph: return atlas.capture(...)."
            )
    for graph in graphs.values():
        peak_of(graph)  # an error if memory was not followed
    curves = {size: _with_state(graph) for size, graph in graphs.items()}
    measured = {size: int(curve.max()) for size, (curve, _) in curves.items()}
    (first, *between, last), notes = graphs, []
    alike = all(_same_operations(graphs[first], graphs[size]) for size in graphs)
    if alike:
        memory = {size: curve for size, (curve, _) in curves.items()}
    else:
        memory = {size: np.array([peak]) for size, peak in measured.items()}
        notes.append(
            "the program ran different operations at different batch sizes, so that only the peaks were compared: "
            "where the peak moves to another place in the program, the prediction is too low"
        )
    prediction = BatchPeak(measured, True, False, (), memory[first], memory[last], graphs[first])
    off = [note for size in between if (note := _deviation(prediction, size, memory[size]))]
    if not between:
        notes.append("nothing checked that memory grows in a straight line; capture a size between the two to see")
    at_least = any(memory_usage(graph)["at_least"] for graph in graphs.values())
    # A curve that lies below its chord rises above it further on. One byte less is rounding: predictions round up.
    bends = any(int((memory[size] - prediction._at(size)).min()) < -1 for size in between)
    exact = bool(between) and alike and not off
    state = curves[first][1]
    if state:
        notes.append(
            f"the optimizer had not stepped: the {format_bytes(state)} of state that it made count from the beginning, "
            "as they do from the second step on"
        )
    if at_least:
        notes.append(f"{_unknown(graphs[last])}: the peak is higher, and the largest batch smaller, by what that takes")
    notes += off
    return replace(prediction, exact=exact, at_least=at_least, notes=tuple(notes), state_bytes=state, bends=bends)


def _with_state(graph: Graph) -> tuple[Array, int]:
    """Bytes after every node of any step but the first: with the state that the optimizer makes in the first.

    And the bytes of that state.
    """
    columns = graph.columns
    made = (columns["storage_role"] == ROLES.index(Role.OPTIMIZER_STATE)) & (columns["storage_bytes"] > 0)
    made &= (columns["storage_born"] >= 0) & (columns["storage_died"] < 0)
    born, sizes = columns["storage_born"][made], columns["storage_bytes"][made]
    at = np.zeros(len(graph), np.int64)
    np.add.at(at, born, sizes)
    total = int(sizes.sum())
    return columns["node_memory_bytes"] + total - np.cumsum(at), total


def _unknown(graph: Graph) -> str:
    """The memory of a graph whose size is unknown, in words."""
    if module_calls_only(graph):
        return "only module calls were recorded, so that what is made inside them is not known"
    columns, makers = graph.columns, Counter[str]()
    for storage in np.flatnonzero(columns["storage_bytes"] < 0).tolist():
        node = graph.storages[storage].born
        makers["a tensor that was there before" if node is None else f"{node.name} ({node.operation})"] += 1
    shown = ", ".join(name for name, _ in makers.most_common(3))
    more = f" and {len(makers) - 3:,} more" if len(makers) > 3 else ""
    return clean(f"the size of {makers.total():,} tensors is not known, such as the workspace of {shown}{more}")


def _deviation(predicted: BatchPeak, size: int, memory: Array) -> str:
    """How far a capture is off the lines, in words; empty when it is on them."""
    off = memory - predicted._at(size)
    if not off.any():
        return ""
    worst = int(np.abs(off).argmax())
    where = f" at {predicted.graph.nodes[worst].name}" if len(off) > 1 else ""
    direction = "low" if off[worst] < 0 else "high"  # a curve that lies below its chord rises above it further on
    return (
        f"memory does not grow in a straight line: at batch size {size} it is {int(off[worst]):+,} bytes off the line"
        f"{where}, so that predictions for larger sizes are too {direction}, the more the larger they are"
    )


def _same_operations(one: Graph, other: Graph) -> bool:
    """Whether two graphs are the same operations in the same order, whatever the shapes."""
    if len(one) != len(other):
        return False
    number: dict[str, int] = {}

    def operations(graph: Graph) -> Array:
        rows = [number.setdefault(operation.name, len(number)) for operation in graph.tables.operations]
        return np.array(rows or [0])[graph.columns["node_operation"]]

    return bool((operations(one) == operations(other)).all())


def _positive(batch: int) -> int:
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise InvalidInputError(f"A batch size is a whole number from 1 on, not {batch!r}.")
    return batch
