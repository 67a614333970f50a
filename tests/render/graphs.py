"""Graphs written down op by op, without torch: small ones for unit tests, random nested ones for properties."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import note
from hypothesis import strategies as st

from torchatlas.graph import Graph, Layout, Module, Operation, Tables
from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, KINDS, PHASES, ROLES
from torchatlas.graph.consistency import faults
from torchatlas.graph.nouns import EdgeKind, NodeKind, Phase, Role
from torchatlas.operations import operation_type

Shape = tuple[int, ...]


@dataclass
class Sketch:
    """Writes a graph down: modules are entered and left, ops read values and make some.

    >>> sketch = Sketch()
    >>> x = sketch.input("x")
    >>> with sketch.module("layer", "Layer"):
    ...     x = sketch.op("relu", sketch.op("add", x, x))
    >>> sketch.output(x)
    >>> print(sketch.graph())
    <Graph of a run: 4 nodes, 4 edges>
    """

    phase: Phase = Phase.FORWARD
    iteration: int = 0
    tables: Tables = field(default_factory=lambda: Tables(threads=["MainThread"], devices=["cpu"]))
    rows: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    _call: int = -1
    _rows_of: dict[Any, int] = field(default_factory=dict)
    _calls_of: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows["input_ptr"].append(0)
        self.rows["output_ptr"].append(0)

    # -- what a test writes ------------------------------------------------------------------------------------------

    def input(self, name: str = "x", shape: Shape = (2, 3)) -> int:
        return self._node("input", NodeKind.INPUT, (), [shape], name=name, role=Role.INPUT)[0]

    def output(self, *values: int, name: str = "output") -> None:
        self._node("output", NodeKind.OUTPUT, values, [], name=name)

    def op(self, name: str, *inputs: int, shape: Shape | None = None, **more: Any) -> int:
        """One op with one output, of the shape of its first input unless said; the value it makes."""
        return self.ops(name, *inputs, shapes=[shape if shape is not None else self.shape(inputs)], **more)[0]

    def ops(
        self, name: str, *inputs: int, shapes: Sequence[Shape], writes: int = 0, forward: int = -1, arguments: str = ""
    ) -> list[int]:
        """One op; a value for every shape. It writes to so many of its first inputs."""
        found = self._node(f"aten.{name}.default", NodeKind.OP, inputs, shapes, writes=writes)
        self.rows["node_forward"][-1] = forward
        if arguments:
            self.rows["node_arguments"][-1] = self._row(self.tables.arguments, arguments)
        return found

    def parameter(self, name: str, shape: Shape, role: Role = Role.PARAMETER) -> int:
        """A value that nobody makes."""
        return self._value(shape, -1, -1, role, self._row(self.tables.names, name))

    def order(self, source: int, target: int) -> None:
        """An edge without data, between two nodes."""
        self._edge(source, target, -1, -1, -1, EdgeKind.ORDER)

    @contextmanager
    def module(self, name: str, type: str = "Block", kind: str = "module") -> Iterator[str]:
        """What is written inside happens in a call of this module, named within the one around it."""
        above = self._call
        outer = self.tables.modules[self.rows["call_module"][above]].path if above >= 0 else ""
        path = f"{outer}.{name}" if outer and name else outer or name
        index = self._calls_of[path] = self._calls_of.get(path, -1) + 1
        self._add("call", module=self._row(self.tables.modules, Module(path, type, kind)), parent=above, index=index)
        self._call = len(self.rows["call_module"]) - 1
        yield path
        self._call = above

    @property
    def call(self) -> int:
        return self._call

    @contextmanager
    def inside(self, call: int, phase: Phase) -> Iterator[None]:
        """What is written inside happens in a call made before, as backward does."""
        before = self._call, self.phase
        self._call, self.phase = call, phase
        yield
        self._call, self.phase = before

    @property
    def count(self) -> int:
        return len(self.rows["node_kind"])

    def producer(self, value: int) -> int:
        return self.rows["value_producer"][value]

    def shape(self, inputs: Sequence[int]) -> Shape:
        if not inputs:
            return (2, 3)
        shape = self.tables.layouts[self.rows["value_layout"][inputs[0]]].shape
        return tuple(int(size) for size in shape)

    def graph(self, source: str = "run") -> Graph:
        columns = {name: np.array(self.rows[name], dtype) for name, (dtype, _) in COLUMNS.items()}
        by_target = np.argsort(columns["edge_target"], kind="stable")
        for name in COLUMNS:
            if name.startswith("edge_"):
                columns[name] = columns[name][by_target]
        fault = faults(columns, self.tables)
        assert fault is None, fault
        return Graph(columns, self.tables, source=source)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _add(self, unit: str, **cells: int) -> None:
        for name, cell in cells.items():
            self.rows[f"{unit}_{name}"].append(cell)

    def _row(self, table: list[Any], row: Any) -> int:
        """The place of a row in its table; new ones are added."""
        key = (id(table), row)
        if key not in self._rows_of:
            self._rows_of[key] = len(table)
            table.append(row)
        return self._rows_of[key]

    def _node(
        self,
        operation: str,
        kind: NodeKind,
        inputs: Sequence[int],
        shapes: Sequence[Shape],
        *,
        name: str = "",
        role: Role = Role.ACTIVATION,
        writes: int = 0,
    ) -> list[int]:
        number = self.count
        self._add(
            "node",
            kind=KINDS.index(kind),
            operation=self._row(self.tables.operations, Operation(operation, operation_type(operation))),
            phase=PHASES.index(self.phase),
            call=self._call if kind == NodeKind.OP else -1,
            name=self._row(self.tables.names, name) if name else -1,
            iteration=self.iteration,
            thread=0,
            source=-1,
            arguments=-1,
            start_ns=-1,
            time_ns=-1,
            time_spread_ns=-1,
            composites=-1,
            memory_bytes=-1,
            sequence_nr=-1,
            forward=-1,
        )
        for place, value in enumerate(inputs):
            self._add("input", value=value, written=int(place < writes))
            if self.producer(value) >= 0:
                self._edge(
                    self.producer(value), number, self.rows["value_output_index"][value], place, value, EdgeKind.DATA
                )
        found = [self._value(shape, number, output, role, -1) for output, shape in enumerate(shapes)]
        for value in found:
            self._add("output", value=value)
        self.rows["input_ptr"].append(len(self.rows["input_value"]))
        self.rows["output_ptr"].append(len(self.rows["output_value"]))
        return found

    def _value(self, shape: Shape, producer: int, output: int, role: Role, parameter: int) -> int:
        layout = Layout(shape, tuple(int(np.prod(shape[place + 1 :])) for place in range(len(shape))), "float32", "cpu")
        number = len(self.rows["value_layout"])
        self._add(
            "value",
            storage=number,
            layout=self._row(self.tables.layouts, layout),
            offset=0,
            version=0,
            producer=producer,
            output_index=output,
            view_of=-1,
            role=ROLES.index(role),
            parameter=parameter,
        )
        size = 4 * int(np.prod(shape))
        self._add("storage", bytes=size, device=0, born=producer, died=-1, role=ROLES.index(role))
        return number

    def _edge(self, source: int, target: int, output: int, place: int, value: int, kind: EdgeKind) -> None:
        self._add(
            "edge",
            source=source,
            target=target,
            output_index=output,
            input_index=place,
            value=value,
            kind=EDGE_KINDS.index(kind),
        )


# -- graphs with a name: one difficulty each ---------------------------------------------------------------------------


def linear(sketch: Sketch, x: int, name: str = "linear", width: int = 3) -> int:
    """A layer with a weight: one op in a module of its own."""
    with sketch.module(name, "Linear") as path:
        *rest, features = sketch.shape([x]) or (1,)
        weight = sketch.parameter(f"{path}.weight", (width, features))
        return sketch.op("addmm", x, weight, shape=(*rest, width))


def chain(length: int, op: Callable[[int], str] = lambda number: f"op{number}") -> Graph:
    """One op after the other, all different unless told."""
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("", "Chain"):
        for number in range(length):
            x = sketch.op(op(number), x)
    sketch.output(x)
    return sketch.graph()


def branches(count: int) -> Graph:
    """So many ops side by side, each different, and one that joins them."""
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("", "Branches"):
        parts = [sketch.op(f"part{number}", x) for number in range(count)]
        x = sketch.op("cat", *parts)
    sketch.output(x)
    return sketch.graph()


def recurrent_loop(steps: int, *, stacked: bool = True, odd_step: int | None = None) -> Graph:
    """A cell of several ops run again and again on slices of the input; its outputs stacked at the end.

    At `odd_step` the cell reads the input instead of what came before: that step is wired in its own way.
    """
    sketch = Sketch()
    x = sketch.input("x", (steps, 4, 8))
    hidden = sketch.op("zeros", x, shape=(4, 8))
    kept = []
    for step in range(steps):
        with sketch.module("cell", "Cell"):
            piece = sketch.op("select", x, shape=(4, 8))
            before = piece if step == odd_step else hidden
            gates = sketch.op("add", sketch.op("mm", piece, shape=(4, 8)), sketch.op("mul", before))
            hidden = sketch.op("tanh", sketch.op("sigmoid", gates))
        kept.append(hidden)
    sketch.output(sketch.op("stack", *kept) if stacked else hidden)
    return sketch.graph()


def tower(blocks: int, *, width: Callable[[int], int] = lambda number: 8) -> Graph:
    """Blocks with a skip connection; equal ones unless their width says otherwise."""
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Tower"):
        for number in range(blocks):
            with sketch.module(f"layers.{number}", "Block"):
                h = linear(sketch, x, "one", width(number))
                h = linear(sketch, sketch.op("relu", h), "two", 8)
                x = sketch.op("add", h, x)
    sketch.output(x)
    return sketch.graph()


def dense_block(layers: int, name: str = "layer") -> Graph:
    """Every layer reads all before it, and so has a larger input than the one before."""
    sketch = Sketch()
    features = [sketch.input("x", (2, 8))]
    with sketch.module("", "DenseBlock"):
        for number in range(layers):
            with sketch.module(f"{name}{number}", "DenseLayer"):
                joined = sketch.op("cat", *features, shape=(2, 8 * len(features)))
                features.append(linear(sketch, sketch.op("relu", joined), "linear", 8))
        x = sketch.op("cat", *features, shape=(2, 8 * len(features)))
    sketch.output(x)
    return sketch.graph()


# -- random graphs -----------------------------------------------------------------------------------------------------

ODD_NAMES = (
    "plain",
    "<script>alert(1)</script> & \"quotes\" 'single'",
    "名前 имя 🙂 \N{RIGHT-TO-LEFT OVERRIDE}gnp",
    "line\nbreak\ttab \x1b[31m \x00",
    "long" * 2500,
    " ",
)
_OPS = ("relu", "add", "mul", "convolution", "addmm", "native_layer_norm", "cat", "mean", "dropout", "my_op")
_SHAPES: tuple[Shape, ...] = ((2, 3), (1,), (), (2, 64, 56, 56), (0, 4), (4096, 4096))

Part = tuple[Any, ...]  # ("op", name, shape, how far back its inputs are) and so on; see _write


def parts() -> st.SearchStrategy[Part]:
    """What a module is made of: ops, runs of them, and modules in it."""
    back = st.lists(st.integers(0, 12), min_size=0, max_size=3)
    single = st.one_of(
        st.tuples(st.just("op"), st.sampled_from(_OPS), st.sampled_from(_SHAPES), back),
        st.tuples(st.just("chain"), st.integers(1, 40), st.booleans()),
        st.tuples(st.just("split"), st.sampled_from(("split", "topk")), st.integers(1, 6)),
        st.tuples(st.just("view"), st.integers(1, 4)),
        st.tuples(st.just("mesh"), st.integers(2, 7), st.integers(0, 2**16)),
        st.tuples(st.just("alone"), st.booleans()),
        st.tuples(st.just("write"), st.integers(0, 3)),
        st.tuples(st.just("linear"), st.integers(1, 9)),
    )
    return st.recursive(
        single,
        lambda inner: st.one_of(
            st.tuples(st.just("module"), st.sampled_from(ODD_NAMES), st.lists(inner, max_size=5)),
            st.tuples(st.just("branches"), st.sampled_from((2, 3, 5, 60)), inner),
            st.tuples(st.just("repeat"), st.integers(2, 12), st.lists(inner, min_size=1, max_size=4), st.booleans()),
            st.tuples(st.just("dense"), st.integers(3, 5)),
            st.tuples(st.just("again"), st.integers(2, 5), st.lists(inner, min_size=1, max_size=3)),
        ),
        max_leaves=8,
    )


@st.composite
def nested_graphs(draw: st.DrawFn, most_ops: int = 250) -> Graph:
    """Any program: nested modules, skips, branches, loops, dense and odd parts; perhaps with a backward pass."""
    program = draw(st.lists(parts(), max_size=4))
    inputs, training = draw(st.integers(0, 3)), draw(st.sampled_from(("", "", "backward", "optimizer", "two steps")))
    named = draw(st.sampled_from(ODD_NAMES))
    note(f"written({program!r}, inputs={inputs}, training={training!r}, named={named[:50]!r}, most_ops={most_ops})")
    return written(program, inputs=inputs, training=training, named=named, most_ops=most_ops)


def written(
    program: Sequence[Part], *, inputs: int = 1, training: str = "", named: str = "Net", most_ops: int = 1500
) -> Graph:
    """The graph of a program made of parts."""
    writer = _Writer(most_ops)
    writer.steps(program, inputs, training, named)
    return writer.sketch.graph()


class _Writer:
    """Writes parts into a sketch. `made` holds the values so far, the newest last."""

    def __init__(self, most_ops: int) -> None:
        self.sketch, self.made, self.most_ops, self.modules = Sketch(), list[int](), most_ops, 0

    def steps(self, program: Sequence[Part], inputs: int, training: str, named: str) -> None:
        sketch = self.sketch
        for step in range(2 if training == "two steps" else 1):
            sketch.iteration, sketch.phase = step, Phase.FORWARD
            self.made = [sketch.input(f"{named}{number}", (2, 8)) for number in range(inputs)]
            first, self.modules = sketch.count, 0
            with sketch.module("", named or "Net"):
                self._all(program)
            last = sketch.count
            if training:
                self._backward(first, last, training != "backward")
            sketch.phase = Phase.FORWARD
            if self.made:
                sketch.output(*self.made[-2:], name=named)

    def _back(self, distance: int) -> list[int]:
        return [self.made[-1 - distance % len(self.made)]] if self.made else []

    def _new(self, name: str, *inputs: int, shape: Shape | None = None) -> None:
        self.made.append(self.sketch.op(name, *inputs, shape=shape))

    def _all(self, program: Sequence[Part]) -> None:
        for part in program:
            if self.sketch.count < self.most_ops:
                self._write(part)

    def _write(self, part: Part) -> None:
        sketch = self.sketch
        match part:
            case ("op", name, shape, back):
                inputs = [value for distance in back for value in self._back(distance)]
                self._new(name, *inputs, shape=shape)
            case ("chain", length, equal):
                for number in range(length):
                    self._new("relu" if equal else f"op{number}", *self._back(0))
            case ("split", name, count):
                self.made += sketch.ops(name, *self._back(0), shapes=[(2, number) for number in range(count)])
            case ("view", count):
                for _ in range(count):
                    self._new("view", *self._back(0))
            case ("mesh", size, seed):
                self._mesh(size, random.Random(seed))
            case ("alone", read):
                value = sketch.op("randn")
                if read:
                    self.made.insert(0, value)
            case ("write", distance):
                self.made += sketch.ops("add_", *self._back(distance), shapes=[(2, 3)], writes=1)
            case ("linear", width):
                if self.made:
                    self.modules += 1
                    self.made.append(linear(sketch, self.made[-1], f"linear{self.modules}", width))
            case ("module", name, program):
                self.modules += 1
                with sketch.module(f"m{self.modules}", name):
                    self._all(program)
            case ("again", times, program):
                name = f"shared{self.modules}"
                self.modules += 1
                for _ in range(times):
                    with sketch.module(name, "Shared"):
                        self._all(program)
            case ("repeat", times, program, skip):
                self._repeat(times, program, skip)
            case ("branches", count, inner):
                self._branches(count, inner)
            case ("dense", count):
                for number in range(count):
                    with sketch.module(f"dense{self.modules}_{number}", "Dense"):
                        self._new("relu", *self._back(0))
                        self._new("cat", *self.made[-2 * count :], shape=(2, number))
            case _:
                raise AssertionError(part)

    def _mesh(self, size: int, rng: random.Random) -> None:
        """Two layers of ops, densely joined."""
        above = self.made[-size:]
        for _ in range(2):
            below = []
            for number in range(size):
                reads = [value for value in above if rng.random() < 0.6]
                below.append(self.sketch.op(f"mesh{number}", *reads))
            above = below
        self.made += above

    def _repeat(self, times: int, program: Sequence[Part], skip: bool) -> None:
        self.modules += 1
        name = f"layers{self.modules}"
        for number in range(times):
            if self.sketch.count >= self.most_ops:
                break
            before, numbered = self._back(0), self.modules
            with self.sketch.module(f"{name}.{number}", "Layer"):
                self._all(program)
                if skip and before:
                    self._new("add", *self._back(0), *before)
            self.modules = numbered  # so that equal layers have equal names inside

    def _branches(self, count: int, inner: Part) -> None:
        before, ends = list(self.made), []
        for _ in range(count):
            if self.sketch.count >= self.most_ops:
                break
            self.made = list(before)
            self._write(inner)
            ends += self.made[len(before) :][-1:]
        self.made = before
        self._new("cat", *ends)

    def _backward(self, first: int, last: int, with_optimizer: bool) -> None:
        """For every forward op one that takes the gradients of what it made, and what it read."""
        sketch, rows = self.sketch, self.sketch.rows
        gradients: dict[int, list[int]] = {}  # forward value -> gradients of it
        weights: list[tuple[int, int]] = []
        for node in reversed(range(first, last)):
            outputs = rows["output_value"][rows["output_ptr"][node] : rows["output_ptr"][node + 1]]
            inputs = rows["input_value"][rows["input_ptr"][node] : rows["input_ptr"][node + 1]]
            arriving = [gradient for value in outputs for gradient in gradients.get(value, [])]
            if not arriving and node != last - 1:
                continue
            name = self.sketch.tables.operations[rows["node_operation"][node]].name.split(".")[1]
            with sketch.inside(rows["node_call"][node], Phase.BACKWARD):
                if len(arriving) > 1:
                    arriving = [sketch.op("add", *arriving)]
                shapes = [sketch.shape([value]) for value in inputs]
                made = sketch.ops(f"{name}_backward", *arriving, *inputs[:1], shapes=shapes, forward=node)
            for value, gradient in zip(inputs, made, strict=True):
                if sketch.producer(value) >= first:
                    gradients.setdefault(value, []).append(gradient)
                elif sketch.producer(value) < 0:
                    weights.append((value, gradient))
        if with_optimizer:
            sketch.phase = Phase.OPTIMIZER
            with sketch.module("Adam", "Adam", "optimizer"):
                for weight, gradient in weights:
                    sketch.ops("addcdiv_", weight, gradient, shapes=[(2, 3)], writes=1)
