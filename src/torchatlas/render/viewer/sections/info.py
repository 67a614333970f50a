"""Graph -> info.json: title, totals, the device, and what a reader must know."""

from __future__ import annotations

from typing import Any

import numpy as np

import torchatlas
from torchatlas.analysis.devices import device_named
from torchatlas.analysis.totals import memory_usage, operations_mask
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject

VERSION = 1
STOPPED = "the program stopped at "  # how the note of a recording begins that an exception ended


@section("info", "title", "device")
def info(subject: Subject) -> Members:
    """Made last: other sections say what they left out."""
    graph = subject.graph
    measured = graph.measured()
    content = {
        "version": VERSION,
        "title": _title(subject),
        "time": None if measured is None else measured.what,
        "program": torchatlas.__version__,
        "totals": _totals(subject),
        "device": _device(subject),
        "notes": [*graph.notes, *subject.notes],
        "failed": _failed(graph),
        "left_out": subject.left_out,
    }
    return {"info.json": content}


def _title(subject: Subject) -> str:
    title = subject.extras.get("title") or ""
    if not isinstance(title, str):
        raise InvalidInputError(f"title={title!r} is no text; pass a string.")
    model = next((module.type for module in subject.graph.tables.modules if not module.path), "")
    unnamed = "autograd graph" if subject.graph.source == "autograd" else "computation"
    return title or model or subject.outline.root.type or unnamed  # as on the still picture


def _totals(subject: Subject) -> dict[str, Any]:
    """The totals of the graph; None where they are unknown."""
    graph, counts = subject.graph, subject.counts
    is_op = operations_mask(graph)
    flops, at_least = None, []
    if counts is not None:
        known = is_op & (counts.macs >= 0)
        flops = int(counts.flops[known].sum()) if known.any() or not is_op.any() else None
        at_least += ["flops"] if counts.uncosted else []
    if memory_usage(graph)["at_least"]:
        at_least.append("peak_bytes")
    times = graph.columns["node_time_ns"][is_op]
    if (times >= 0).any() and (times < 0).any():
        at_least.append("time_ns")
    return {
        "ops": int(is_op.sum()),
        "parameters": graph.scopes[""].parameters,
        "flops": flops,
        "peak_bytes": graph.peak_bytes,
        "time_ns": graph.time_ns,
        "at_least": at_least,
    }


def _device(subject: Subject) -> dict[str, Any] | None:
    """The device of the roofline. Its rates are those of the dtype in which most multiply-adds are made."""
    if subject.counts is None:
        return None
    device = device_named(subject.extras.get("device"))
    dtype = _main_dtype(subject)
    return {
        "name": device.name,
        "flops_per_second": device.flops_for(dtype),
        "bytes_per_second": device.bandwidth,
        "basis": f"{dtype}; {device.source}",
    }


def _main_dtype(subject: Subject) -> str:
    graph, counts = subject.graph, subject.counts
    assert counts is not None
    nodes = np.flatnonzero(counts.macs > 0)
    pointers = graph.columns["output_ptr"]
    nodes = nodes[pointers[nodes + 1] > pointers[nodes]]
    values = graph.columns["output_value"][pointers[nodes]]
    made = values >= 0
    layouts = graph.columns["value_layout"][values[made]]
    work = np.bincount(layouts, counts.macs[nodes[made]].astype("f8"), minlength=len(graph.tables.layouts))
    by_dtype: dict[str, float] = {}
    for layout, amount in zip(graph.tables.layouts, work.tolist(), strict=True):
        by_dtype[layout.dtype] = by_dtype.get(layout.dtype, 0.0) + amount
    return max(by_dtype, key=by_dtype.__getitem__) if any(by_dtype.values()) else "float32"


def _failed(graph: Graph) -> dict[str, Any] | None:
    """Where the program stopped: the last op that ran, and the note that says why. An op that raises has no node."""
    message = next((note for note in graph.notes if note.startswith(STOPPED)), None)
    if message is None:
        return None
    ran = np.flatnonzero(operations_mask(graph))
    return {"node": int(ran[-1]) if len(ran) else None, "message": message}
