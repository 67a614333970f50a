"""Joining groups in any sequence: a join is refused exactly if it would close a circle, and the order stays right."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from torchatlas.partition.acyclic_groups import Groups, MovableOrder


class Units(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.before)


def some_units(chance: random.Random, count: int) -> Any:
    before = [{b for b in range(unit) if chance.random() < 2.5 / count} for unit in range(count)]
    after: list[set[int]] = [{unit for unit in range(count) if b in before[unit]} for b in range(count)]
    return Units(before=before, after=after)


def circular(units: Any, group: list[int]) -> bool:
    """Whether groups wait for each other, by taking away what waits for nobody until nothing is left."""
    waits = {g: {group[b] for u, own in enumerate(group) if own == g for b in units.before[u]} - {g} for g in group}
    while free := [g for g, needed in waits.items() if not needed & waits.keys()]:
        for g in free:
            del waits[g]
    return bool(waits)


@pytest.mark.parametrize("seed", range(40))
def test_a_join_is_refused_exactly_if_it_closes_a_circle(seed: int) -> None:
    chance = random.Random(seed)
    units = some_units(chance, chance.randrange(4, 24))
    groups = Groups(units)
    refused = 0
    for _ in range(60):
        one, other = (groups.group[chance.randrange(len(units))] for _ in range(2))
        wanted = [one if group == other else group for group in groups.group]
        joined = groups.join(one, other)
        assert (joined is None) == circular(units, wanted)
        refused += joined is None
        for group in set(groups.group):
            expected = {groups.group[b] for u in groups.members[group] for b in units.before[u]} - {group}
            assert groups.before(group) == expected
            assert all(groups.order.place[b] < groups.order.place[group] for b in expected)
            assert {unit for unit, own in enumerate(groups.group) if own == group} == set(groups.members[group])
    assert seed or refused  # some are


@pytest.mark.parametrize("seed", range(5))
def test_a_movable_order_keeps_its_order_however_often_things_are_moved(seed: int) -> None:
    chance = random.Random(seed)
    count = 40
    order, expected = MovableOrder(count), list(range(count))
    for _ in range(3000):
        one, other = chance.sample(expected if seed % 2 else [*expected[:3], expected[-1]], 2)
        behind = chance.random() < 0.5
        expected.remove(one)
        expected.insert(expected.index(other) + behind, one)
        (order.move_behind if behind else order.move_before)(one, other)
        assert sorted(expected, key=order.place.__getitem__) == expected
