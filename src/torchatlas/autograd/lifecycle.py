"""Where the nodes behind a tensor are in their life: created, consumed by a backward pass and freed, or retained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchatlas.argument_errors import explains_arguments
from torchatlas.autograd.graph_walk import leaf_of, roots_of, sequence_nr, walk
from torchatlas.autograd.saved_tensors import SavedSlot, is_parameter, saved_by, storage_bytes, storage_key
from torchatlas.escapes import clean
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_bytes

CREATED, FREED, PACKED, NOTHING = "created", "freed", "packed", "nothing saved"
_MOST_ROWS = 40


@dataclass(frozen=True, repr=False)
class NodeLife(ShownPart):
    """One node and what it saved."""

    name: str
    sequence_nr: int  # autograd's number: when its forward op ran
    state: str  # created: can run; freed: has run and cannot again; packed: a hook keeps what it saved; nothing saved
    slots: tuple[str, ...]  # the names of what it saved
    bytes: int  # of what is held now, each storage counted with the first node that holds it

    def _headline(self) -> str:
        return clean(f"{self.name}: {self.state}, holds {format_bytes(self.bytes)}")


@dataclass(frozen=True, repr=False)
class Lifecycle(Shown):
    """The nodes behind a tensor, in the order of backward, and what they hold."""

    nodes: list[NodeLife] = field(repr=False)
    held_bytes: int  # by all of them together, without parameters
    parameter_bytes: int  # of saved tensors that are parameters: those stay in any case

    @property
    def state(self) -> str:
        """The state of the whole graph: created when it can run, freed, or partly freed."""
        states = {node.state for node in self.nodes}
        if FREED not in states:
            return "created"
        return "partly freed" if CREATED in states or PACKED in states else "freed"

    @property
    def can_run(self) -> bool:
        """True if backward can run through all of it."""
        return all(node.state != FREED for node in self.nodes)

    def count(self, state: str) -> int:
        """How many nodes are in a state.

        Args:
            state: One of the states that `NodeLife.state` has.
        Returns:
            Their number.
        """
        return Counter(node.state for node in self.nodes)[state]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        nodes = [{**vars(node), "slots": list(node.slots)} for node in self.nodes]
        held = {"held_bytes": self.held_bytes, "parameter_bytes": self.parameter_bytes}
        return {"state": self.state, "can_run": self.can_run, **held, "nodes": nodes}

    def _sections(self) -> Iterator[Section]:
        again = "backward can run" if self.can_run else "a second backward through it fails"
        freed = f", {self.count(FREED):,} freed" if self.count(FREED) else ""
        yield Lines([f"{self.state}: {len(self.nodes):,} nodes{freed}; holds {format_bytes(self.held_bytes)}; {again}"])
        rows = [
            [node.name, node.state, ", ".join(node.slots), format_bytes(node.bytes) if node.bytes else ""]
            for node in self.nodes[:_MOST_ROWS]
        ]
        left = len(self.nodes) - len(rows)
        below = f"{left:,} more nodes in .nodes" if left else ""
        yield Table(["node", "state", "saved", ">holds"], rows, below=below)


@explains_arguments
def lifecycle(tensor: Any) -> Lifecycle:
    """What became of the graph behind a tensor: can backward still run, and how many bytes does it hold?

    A node that saved nothing leaves no trace of having run: its state says so.

    Args:
        tensor: A tensor with a graph behind it, or several.
    Returns:
        A Lifecycle: every node with its state, `can_run`, `held_bytes`. Print it.
    Raises:
        InvalidInputError: It is no tensor.
        AnalysisError: There is no graph behind it.
    Example:
        >>> import torch, torchatlas as atlas
        >>> loss = torch.ones(3, requires_grad=True).exp().sum()
        >>> before = atlas.lifecycle(loss)
        >>> loss.backward()
        >>> before.can_run, before.held_bytes, atlas.lifecycle(loss).can_run
        (True, 12, False)
    """
    behind = walk(roots_of(tensor, "lifecycle")).nodes
    leaves = {storage_key(leaf) for node in behind if (leaf := leaf_of(node)) is not None}
    seen: set[int] = set()
    nodes, held, parameters = [], 0, 0
    for node in behind:
        if leaf_of(node) is not None:
            continue  # a leaf: it is never freed
        saved = [each for each in saved_by(node) if each.state != "none"]
        mine = 0
        for each in saved:
            key = None if each.data is None else storage_key(each.data)
            if key is None or key in seen:
                continue
            seen.add(key)
            size = max(storage_bytes(each.data), 0)
            if key in leaves or (each.data is not None and is_parameter(each.data)):
                parameters += size
            else:
                mine += size
        held += mine
        number = sequence_nr(node)
        slots = tuple(each.slot for each in saved)
        nodes.append(NodeLife(clean(node.name().rpartition("::")[2]), number, _state(saved), slots, mine))
    return Lifecycle(nodes, held, parameters)


def _state(saved: list[SavedSlot]) -> str:
    states = {each.state for each in saved}
    if "freed" in states:
        return FREED
    if "saved" in states:
        return CREATED
    return PACKED if states else NOTHING
