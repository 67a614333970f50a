"""The table of sections, and how one adds itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchatlas.registry import Registry
from torchatlas.render.viewer.subject import Subject

# Member name below viewer/ -> its content: a flat numpy array for *.npy, for *.json what JSON can hold.
Members = Mapping[str, Any]


@dataclass(frozen=True)
class ViewerSection:
    """A function that makes members, and the names of the arguments of `document` that it reads."""

    members: Callable[[Subject], Members]
    takes: tuple[str, ...]


SECTIONS: Registry[ViewerSection] = Registry("section of a viewer page")


def section(name: str, *takes: str) -> Callable[[Callable[[Subject], Members]], Callable[[Subject], Members]]:
    """A decorator that adds a section. A section that has nothing to show returns no members: its pane hides itself."""

    def add(members: Callable[[Subject], Members]) -> Callable[[Subject], Members]:
        SECTIONS.add(name)(ViewerSection(members, takes))
        return members

    return add
