"""Autograd's sequence numbers -> which forward op made the backward node that runs."""

from __future__ import annotations

from torchatlas.capturing.row_schema import NodeRow, Plan
from torchatlas.capturing.tensor_states import TensorStates

_WIDTH = len(NodeRow._fields)
_SEQUENCE_NR, _FORWARD, _THREAD = map(NodeRow._fields.index, ("sequence_nr", "forward", "thread"))
ACCUMULATE = 2**63  # AccumulateGrad nodes have the largest sequence number there is


class ForwardLinks:
    """The forward ops of one recording. Autograd numbers its nodes in every thread anew.

    `nodes` are the nodes that were decoded so far: flat, NodeRow.
    """

    def __init__(self, nodes: list[int], states: TensorStates, first_numbers: list[int]) -> None:
        self._nodes, self._states = nodes, states
        self._sequences = [SequenceNumbers(first) for first in first_numbers]

    def sequence_nr(
        self, node: int, plan: Plan, returned: list[int], thread: int, next_nr: int, needs_grad: bool, writes_view: bool
    ) -> int:
        """The number of the backward node that autograd made for an op; -1 for none."""
        sequences, makes_node = self._sequences[thread], needs_grad and not plan.detaches
        if makes_node and sequences.lent >= 0:
            makes_node = self._differentiable(plan, returned)
            if makes_node and (borrower := sequences.take_back(next_nr)) >= 0:
                self._nodes[borrower * _WIDTH + _SEQUENCE_NR] = -1
        return sequences.give(next_nr, node, plan.clones, makes_node, writes_view)

    def forward_node(self, backward_nr: int, thread: int, values: list[int]) -> int:
        """The forward op of a backward node by its number; -1 if it is not known. `values` are what an op in it takes.

        Where several threads gave out the number, it is the one that the data belongs to.
        """
        if len(self._sequences) == 1:
            return self._sequences[0].node_of.get(backward_nr, -1)
        nodes = {
            t: sequences.node_of[backward_nr]
            for t, sequences in enumerate(self._sequences)
            if backward_nr in sequences.node_of
        }
        for value in values if len(nodes) > 1 else ():
            before = self._states.value_producer[value]
            origin = self._nodes[before * _WIDTH + _FORWARD] if before >= 0 else -1
            near = origin if origin >= 0 else before  # what forward saved, or what a backward op made of it
            if near >= 0 and (its_thread := self._nodes[near * _WIDTH + _THREAD]) in nodes:
                return nodes[its_thread]
        return nodes.get(thread, next(iter(nodes.values()), -1))

    def _differentiable(self, plan: Plan, returned: list[int]) -> bool:
        """True if autograd makes a node for what an op returned: not for whole numbers, nor for new tensors."""
        name, dtypes = plan.name.split(".")[1], self._states.dtypes
        real = any(dtypes[n].is_floating_point or dtypes[n].is_complex for n in returned)
        return real and not name.endswith("_like") and not name.startswith("new_")


class SequenceNumbers:
    """Which op took each number of one thread.

    An op that needs a gradient takes the next number just before it is dispatched. Four things disturb that: a write
    to a view takes one more just after (CopySlices), an op that reads such a view takes one more just before, some
    in-place ops first clone their input, which is dispatched, and numbered, in between, and hooks on what is saved for
    backward may run ops of their own before the op that saves.
    """

    def __init__(self, first: int) -> None:
        self.node_of: dict[int, int] = {}
        self._next = first
        self.lent = -1  # a number given to an op that needs none: if a hook ran that op, the number's owner comes later
        self._unclaimed: list[int] = []
        self._view_written_by = -1  # the last node, if it wrote to a view

    def take_back(self, following: int) -> int:
        """The node that a number was lent to, if the op that owns the number has come and took no other; else -1."""
        if following > self._next:
            return -1
        self._unclaimed, borrower, self.lent = [self.lent], self.node_of[self.lent], -1
        return borrower

    def give(self, following: int, node: int, clones: bool, makes_node: bool, writes_view: bool) -> int:
        """The number a node took, or -1; `following` is the next one free when the node was dispatched."""
        own = -1
        if following > self._next:
            if self._view_written_by >= 0:
                self.node_of[self._next] = self._view_written_by
                self._next += 1
            # Also an op that needs no gradient: the node of a custom Function exists before its forward runs, and
            # under torch.func the tensors that are dispatched do not say that they need one.
            is_mine = makes_node or self._view_written_by < 0
            self._unclaimed = list(range(self._next, following))
            for number in self._unclaimed:
                self.node_of[number] = node if is_mine else max(node - 1, 0)
            if self._unclaimed and is_mine:
                own = self._unclaimed.pop()
            if not clones:  # only a clone leaves one, for the in-place op it was made for
                self._unclaimed = []
            self._next = following
            self.lent = -1 if makes_node else own
        elif makes_node and self._unclaimed:
            own = self._unclaimed.pop()
        if own >= 0:
            self.node_of[own] = node
        self._view_written_by = node if writes_view and makes_node else -1
        return own
