"""Columns and tables -> the first thing that makes them no graph, in words and with its row.

Loading runs this on every file, so that a damaged or hostile one cannot lead a reader outside its arrays; saving runs
it first, so that what is written can be read back. Columns are checked whole, tables row by row: time is linear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import chain

import numpy as np

from torchatlas.errors import FileFormatError
from torchatlas.escapes import quoted
from torchatlas.graph.arguments import highest_reference, highest_reference_of_value
from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, ENUMS, POINTERS, Array, Layout, Tables, lengths
from torchatlas.graph.nouns import EdgeKind

MOST_CALLS = 10_000  # of modules in each other: Python itself stops at a tenth of that, unless told otherwise
MOST_PARTS = 250  # of a dotted name: readers of the module tree go down one call of Python per part
_LARGEST = 2**63 - 1  # torch counts elements and bytes in 64 bits
_DEVICE = re.compile(r"[A-Za-z_]\w*(:\d{1,9})?", re.ASCII)
_DATA = EDGE_KINDS.index(EdgeKind.DATA)
# Columns whose sum a reader may ask for.
_SUMMED = ("node_time_ns", "node_time_spread_ns", "storage_bytes")
_REQUIRED = ("node_operation", "input_value", "value_layout", "edge_source", "edge_target", "call_module")
# Rows that point to rows of their own kind, which come first: there are no loops.
_BACKWARD = ("call_parent", "value_view_of", "node_forward")


def faults(columns: dict[str, Array], tables: Tables) -> str | None:
    """The first thing that makes these columns and tables no graph, in words; None when they are sound."""
    problems = chain(_shape_faults(columns), _number_faults(columns, tables), _table_faults(tables))
    return next(chain(problems, _relation_faults(columns)), None)


def call_faults(columns: dict[str, Array], tables: Tables) -> str | None:
    """The first text of a call, or of a default, that is none, or that names an input its node does not have."""
    return next(_call_faults(columns, tables), None)


# -- each column by itself -------------------------------------------------------------------------------------------


def _shape_faults(columns: dict[str, Array]) -> Iterator[str]:
    for name, (dtype, _) in COLUMNS.items():
        if name not in columns:
            yield f"column {name} is missing"
        elif columns[name].dtype != np.dtype(dtype) or columns[name].ndim != 1:
            yield f"column {name} is {columns[name].dtype} with {columns[name].ndim} dimensions, expected flat {dtype}"
    count = lengths(columns)
    for name, (_, unit) in COLUMNS.items():
        expected = count["node"] + 1 if unit == "node+1" else count[unit]
        if len(columns[name]) != expected:
            yield f"column {name} has {len(columns[name])} rows, expected {expected}"


def _number_faults(columns: dict[str, Array], tables: Tables) -> Iterator[str]:
    count = lengths(columns)
    for name, (dtype, _) in COLUMNS.items():
        column = columns[name]
        if not dtype.startswith("i") or not len(column):
            continue
        if column.min() < -1:
            where = _first(column < -1)
            yield f"{name}[{where}] is {int(column[where])}; only -1, for none, is below zero"
        if name in POINTERS:
            target = POINTERS[name]
            limit = count[target] if target in count else len(getattr(tables, target))
            if column.max() >= limit:
                where = _first(column >= limit)
                yield f"{name}[{where}] is {int(column[where])}, but there are {limit} rows in {target}"
    for name in _REQUIRED:
        if len(columns[name]) and columns[name].min() < 0:
            yield f"{name} may not be absent, but row {_first(columns[name] < 0)} is"
    for name, size in ENUMS.items():
        if len(columns[name]) and columns[name].max() >= size:
            where = _first(columns[name] >= size)
            yield f"{name}[{where}] is {int(columns[name][where])}, expected less than {size}"
    for name, parts in (("input_ptr", "input"), ("output_ptr", "output")):
        ptr = columns[name]
        if ptr[0] != 0 or ptr[-1] != count[parts] or (ptr[1:] < ptr[:-1]).any():
            yield f"{name} does not divide the {count[parts]} {parts}s among the nodes"
    for name in _SUMMED:
        if (total := float(columns[name].sum(dtype=np.float64))) > _LARGEST:
            yield f"{name} sums to {total:.3g}, and there is no larger sum than {_LARGEST}"
    if len(columns["node_start_ns"]) and (ends := int(columns["node_start_ns"].max())) > _LARGEST // 2:
        yield f"node_start_ns[{int(np.argmax(columns['node_start_ns']))}] is {ends}: centuries after the start"


# -- columns against each other --------------------------------------------------------------------------------------


def _relation_faults(columns: dict[str, Array]) -> Iterator[str]:
    """Indices that lead beyond what they index, and orders that cannot be. Follows `_number_faults`."""
    inputs, outputs = np.diff(columns["input_ptr"]), np.diff(columns["output_ptr"])
    for name in _BACKWARD:
        if (where := _first(columns[name] >= np.arange(len(columns[name]), dtype=np.int32))) >= 0:
            yield f"{name}[{where}] is {int(columns[name][where])}: it points to itself or forward"
    if (deepest := _depth(columns["call_parent"])) > MOST_CALLS:
        yield f"call_parent: calls lie {deepest} deep in each other, expected at most {MOST_CALLS}"
    source, target = columns["edge_source"], columns["edge_target"]
    if (where := _first(source >= target)) >= 0:
        at = f"edge_source[{where}] is {source[where]} and edge_target[{where}] is {target[where]}"
        yield f"an edge points backward: {at}; nodes are in execution order"
    made = np.append(outputs, 0)[columns["value_producer"]]  # -1, for none, is the last
    if (where := _first((columns["value_output_index"] >= made) & (columns["value_producer"] >= 0))) >= 0:
        yield _beyond(columns, "value_output_index", where, "value_producer", int(made[where]), "outputs")
    data = columns["edge_kind"] == _DATA
    for name, end, count, what in (
        ("edge_output_index", "edge_source", outputs, "outputs"),
        ("edge_input_index", "edge_target", inputs, "inputs"),
    ):
        limit = count[columns[end]]
        if (where := _first(columns[name] >= limit)) >= 0:
            yield _beyond(columns, name, where, end, int(limit[where]), what)
        if (where := _first(data & (columns[name] < 0))) >= 0:
            yield f"{name}[{where}] is absent, but the edge carries data"
    if len(source):
        taken = np.append(columns["input_value"], -1)[columns["input_ptr"][target] + columns["edge_input_index"]]
        if (where := _first(data & (taken != columns["edge_value"]))) >= 0:
            index = int(columns["edge_input_index"][where])
            yield (
                f"edge_value[{where}] is {int(columns['edge_value'][where])}, "
                f"but input {index} of node {int(target[where])} is value {int(taken[where])}"
            )
    taker = np.repeat(np.arange(len(inputs), dtype=np.int32), inputs)
    maker = columns["value_producer"][columns["input_value"]]
    if (where := _first(maker >= taker)) >= 0:
        yield f"node {taker[where]} takes a value that node {maker[where]} makes, which does not run before it"
    born, died = columns["storage_born"], columns["storage_died"]
    if (where := _first((born > died) & (died >= 0))) >= 0:
        yield f"storage_died[{where}] is {int(died[where])}, before storage_born[{where}], which is {int(born[where])}"


def _depth(parent: Array) -> int:
    """How deep rows are nested at most; parents come first. Each step looks twice as far up as the one before."""
    depth, above = np.ones(len(parent) + 1, np.int64), np.append(parent, -1)  # the last row is that of none
    depth[-1] = 0
    while (above >= 0).any():
        depth += depth[above]
        above = above[above]
    return int(depth.max())


def _first(mask: Array) -> int:
    """The first true row; -1 when there is none."""
    where = int(mask.argmax()) if len(mask) else 0
    return where if len(mask) and mask[where] else -1


def _beyond(columns: dict[str, Array], name: str, row: int, owner: str, limit: int, what: str) -> str:
    return f"{name}[{row}] is {int(columns[name][row])}, but node {int(columns[owner][row])} has {limit} {what}"


def _call_faults(columns: dict[str, Array], tables: Tables) -> Iterator[str]:
    highest = np.full(len(tables.arguments) + 1, -1, np.int64)  # the last is that of no call
    for row, text in enumerate(tables.arguments):
        try:
            highest[row] = highest_reference(text)
        except FileFormatError as error:
            yield f"arguments[{row}]: {error}"
    for row, operation in enumerate(tables.operations):
        for parameter in operation.parameters:
            try:
                if parameter.default is not None and highest_reference_of_value(parameter.default) >= 0:
                    yield f"operations[{row}]: the default of {quoted(parameter.name)} is a tensor"
            except FileFormatError as error:
                yield f"operations[{row}]: the default of {quoted(parameter.name)}: {error}"
    named, inputs = highest[columns["node_arguments"]], np.diff(columns["input_ptr"])
    if (where := _first(named >= inputs)) >= 0:
        row = int(columns["node_arguments"][where])
        there = f"node {where} has {int(inputs[where])} inputs"
        yield f"arguments[{row}] names the tensor {int(named[where])}, counted from 0, but {there}"


# -- tables ----------------------------------------------------------------------------------------------------------


def _table_faults(tables: Tables) -> Iterator[str]:
    for row, layout in enumerate(tables.layouts):
        for problem in _layout_faults(layout):
            yield f"layouts[{row}]{problem}"
    for row, device in enumerate(tables.devices):
        if not _DEVICE.fullmatch(device):
            yield f"devices[{row}] is {quoted(device)}, which is no device"
    for row, module in enumerate(tables.modules):
        if (long := _path_fault(module.path)) is not None:
            yield f"modules[{row}].path {long}"
        if not module.kind.isidentifier():
            yield f"modules[{row}].kind is {quoted(module.kind)}, which is no word"
    for row, name in enumerate(tables.names):
        if (long := _path_fault(name)) is not None:
            yield f"names[{row}] {long}"
    for row, source in enumerate(tables.sources):
        if not -1 <= source.line <= _LARGEST:
            yield f"sources[{row}].line is {_number(source.line)}, which is no line"
    for row, operation in enumerate(tables.operations):
        if len({parameter.name for parameter in operation.parameters}) < len(operation.parameters):
            yield f"operations[{row}] has two parameters of the same name"


def _layout_faults(layout: Layout) -> Iterator[str]:
    parts = (("shape", layout.shape), ("stride", layout.stride or ()))
    for name, sizes in parts:
        for position, size in enumerate(sizes):
            if isinstance(size, int) and not 0 <= size <= _LARGEST:
                yield f".{name}[{position}] is {_number(size)}, which is no size"
    if layout.stride is not None and len(layout.stride) != len(layout.shape):
        yield f": {len(layout.shape)} sizes and {len(layout.stride)} strides"
    known = [size for size in layout.shape if isinstance(size, int)]
    if 0 not in known and _product(known) > _LARGEST:
        yield f".shape has more than {_LARGEST} elements"
    for name, word, is_one in (
        ("dtype", layout.dtype, str.isidentifier),
        ("device", layout.device, _DEVICE.fullmatch),
        ("kind", layout.kind, str.isidentifier),
    ):
        if not is_one(word):
            yield f".{name} is {quoted(word)}, which is no {name}"


def _product(sizes: list[int]) -> int:
    """Of sizes from 1 on; no larger than it takes to see that it is too large."""
    product = 1
    for size in sizes:
        if product > _LARGEST:
            return product
        product *= size
    return product


def _path_fault(path: str) -> str | None:
    if (parts := path.count(".") + 1) > MOST_PARTS:
        return f"has {parts} parts, expected at most {MOST_PARTS}: {quoted(path)}"
    return None


def _number(number: int) -> str:
    """A number for a message. Python writes none of more than 4,300 digits."""
    sign = "-" if number < 0 else ""
    return str(number) if abs(number) < 10**30 else f"{sign}10 to the {math.log10(abs(number)):.0f}"
