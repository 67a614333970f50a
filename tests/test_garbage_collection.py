"""What the garbage collector is asked for."""

from __future__ import annotations

import torch
from torch import nn

from torchatlas.garbage_collection import instances_of


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
