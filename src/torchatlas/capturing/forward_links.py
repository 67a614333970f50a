"""Autograd's sequence numbers -> the nodes that took them: the link between forward and backward."""

from __future__ import annotations


class Sequences:
    """Which node autograd's numbers belong to.

    An op that needs a gradient takes the next number just before it is dispatched. Four things disturb that: a write
    to a view takes one more just after (CopySlices), an op that reads such a view takes one more just before, some
    in-place ops first clone their input, which is dispatched, and numbered, in between, and hooks on what is saved for
    backward may run ops of their own before the op that saves.
    """

    def __init__(self, first: int) -> None:
        self.node_of: dict[int, int] = {}
        self._next = first
        self.lent = -1  # a number that went to an op which needs none: if it was a hook's, the owner is yet to come
        self._unclaimed: list[int] = []
        self._view_written_by = -1  # the last node, if it wrote to a view

    def take_back(self, following: int) -> int:
        """The node that a number was lent to, when its owner is here now, which has no other; else -1."""
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
