"""What the garbage collector is asked for."""

from __future__ import annotations

import gc

import torch
from torch import nn

from torchatlas.garbage_collection import collection_paused, instances_of


class Own(nn.Linear):
    @property
    def __class__(self):  # type: ignore[no-untyped-def,override]
        raise RuntimeError("an object is asked for nothing but its class")


def test_instances_of_a_class_and_of_what_inherits_from_it() -> None:
    made = [nn.Linear(1, 1), Own(1, 1), nn.Sequential()]
    found = {id(item) for item in instances_of(nn.Module)}
    assert all(id(item) in found for item in made)
    assert id(torch.zeros(1)) not in found
    assert not {id(made[0]), id(made[2])} & {id(item) for item in instances_of(Own)}


def test_many_objects_made_during_a_pause_count_as_old_and_frozen_ones_stay_frozen() -> None:
    frozen = gc.get_freeze_count()
    with collection_paused():
        made: list[list[int]] = [[] for _ in range(20_000)]
    assert len(made) == 20_000
    assert gc.get_freeze_count() == frozen > 0  # conftest.py freezes what was there before the tests
    gc.unfreeze()
    try:
        with collection_paused():
            more: list[list[int]] = [[] for _ in range(20_000)]
        assert {id(one) for one in more} <= {id(one) for one in gc.get_objects(generation=2)}
    finally:
        gc.freeze()
