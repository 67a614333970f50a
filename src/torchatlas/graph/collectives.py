"""What a node that communicates says beside its arguments: with whom, how many bytes, by which reduction."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchatlas.graph.arguments import Constant
from torchatlas.graph.columns import Layout

# They hand over nothing: the tensor they take only says on which device to wait, or is passed on.
# fmt: off
WITHOUT_PAYLOAD = (
    "c10d.barrier", "c10d.check_for_nan", "c10d.monitored_barrier_", "c10d_functional.wait_tensor",
    "_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd",
)
# fmt: on
_FUNCTIONAL = ("c10d_functional.", "_c10d_functional.", "_c10d_functional_autograd.", "_dtensor.")
_COUNTED = ("c10d.", *_FUNCTIONAL)


def collective_attributes(
    operation: str,
    named: Mapping[str, Any],
    taken: Sequence[Layout],
    writes: Sequence[int],
    made: Sequence[Layout],
    groups: Mapping[str, Any],
) -> dict[str, Any]:
    """`named` are the arguments by name, `taken` and `made` the layouts of inputs and outputs, `groups` by name."""
    found: dict[str, Any] = {}
    name = named.get("process_group", named.get("group_name"))
    name = name.name if isinstance(name, Constant) else name
    if isinstance(name, str):
        found["group"] = {"name": name, **groups.get(name, {})}
    if not operation.startswith(_COUNTED):
        return found
    moves = operation.rpartition(".")[0] not in WITHOUT_PAYLOAD
    found["bytes"] = _payload(taken, writes, made) if moves else 0
    if moves and "async_op" not in named:  # send and isend are the same op: it does not tell
        found["async_op"] = True if operation.startswith(_FUNCTIONAL) else None
    reduction = named.get("reduce_op")
    if isinstance(reduction, Constant):
        found["reduce_op"] = reduction.name
    ranks = found.get("group", {}).get("ranks")
    for argument in ("dst", "src", "root_rank"):
        position = named.get(argument)
        if isinstance(position, int):
            word = "root" if argument == "root_rank" or "broadcast" in operation else "peer"
            known = ranks is not None and 0 <= position < len(ranks)
            found[word] = ranks[position] if known else None
    return found


def _payload(taken: Sequence[Layout], writes: Sequence[int], made: Sequence[Layout]) -> int | None:
    """The larger of what this process hands in and what it gets back, in bytes."""
    given = [_bytes(layout) for position, layout in enumerate(taken) if position not in writes]
    got = [_bytes(taken[position]) for position in writes] if writes else [_bytes(layout) for layout in made]
    if None in given or None in got:
        return None
    return max(sum(part or 0 for part in given), sum(part or 0 for part in got))


def _bytes(layout: Layout) -> int | None:
    bits = re.search(r"\d+", layout.dtype)
    if layout.kind != "strided" or not all(isinstance(size, int) for size in layout.shape):
        return None
    if bits is None and layout.dtype != "bool":
        return None
    return math.prod(int(size) for size in layout.shape) * (1 if bits is None else max(int(bits[0]) // 8, 1))
