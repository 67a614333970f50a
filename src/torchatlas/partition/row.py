"""Things in a row, which can be moved: whether one comes before another is a comparison of two numbers.

Where the numbers of two neighbours leave none in between, those around them are numbered again, as few as leave
room in proportion to their count (Itai, Konheim and Rodeh 1981): a move takes log n steps on average.
"""

from __future__ import annotations

_GAP = 2**20  # between neighbours at first; any number does, a larger one is used up later


class Row:
    """The numbers 0 to count - 1 in a row. `place[one] < place[other]` where one comes first."""

    def __init__(self, count: int) -> None:
        head, tail = count, count + 1  # stay outside of all others
        self.place = [one * _GAP for one in range(count)] + [-_GAP, count * _GAP]
        self._left = [head, *range(count - 1), -1, count - 1 if count else head]
        self._right = [*range(1, count), tail, 0 if count else tail, -1] if count else [tail, -1]
        self._head, self._tail = head, tail

    def remove(self, one: int) -> None:
        left, right = self._left[one], self._right[one]
        self._right[left], self._left[right] = right, left

    def move_before(self, one: int, other: int) -> None:
        self.remove(one)
        self._insert(one, self._left[other], other)

    def move_behind(self, one: int, other: int) -> None:
        self.remove(one)
        self._insert(one, other, self._right[other])

    def _insert(self, one: int, left: int, right: int) -> None:
        place = self.place
        if left == self._head and right != self._tail:
            place[left] = place[right] - 2 * _GAP
        if right == self._tail:
            place[right] = place[left] + 2 * _GAP
        if place[right] - place[left] < 2:
            self._make_room(left)
        self._left[one], self._right[one] = left, right
        self._right[left] = self._left[right] = one
        place[one] = (place[left] + place[right]) // 2

    def _make_room(self, around: int) -> None:
        """Number again what is in the smallest range of numbers around one that holds few for its width."""
        place, width, count = self.place, 2, 1
        first = last = around
        while True:
            low = place[around] // width * width
            while self._left[first] != self._head and place[self._left[first]] >= low:
                first, count = self._left[first], count + 1
            while self._right[last] != self._tail and place[self._right[last]] < low + width:
                last, count = self._right[last], count + 1
            if 4 * count * count <= width:
                break
            width *= 2
        one, step = first, width // count
        for number in range(count):
            place[one] = low + number * step
            one = self._right[one]
