"""What the nodes of one run took and made: by name, in the order in which they ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchatlas.errors import NodeNotFoundError
from torchatlas.registry import near_names


@dataclass(frozen=True, eq=False)
class NodeIO:
    """What one node took and made in one run. Indexing by "inputs", "output", "hyperparameters" works as well."""

    inputs: tuple[Any, ...]
    output: Any
    _hyperparameters: Callable[[], dict[str, Any]] = field(repr=False)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What it was called with by name; weights and biases are the model's own."""
        return self._hyperparameters()

    def __getitem__(self, name: str) -> Any:
        if name not in ("inputs", "output", "hyperparameters"):
            raise KeyError(name)
        return getattr(self, name)


class NodeValues(Mapping[str, NodeIO]):
    """Node name -> what it took and made, in the order in which the nodes ran. `output` is the model's."""

    def __init__(self, entries: dict[str, NodeIO], output: Any) -> None:
        self._entries, self.output = entries, output

    def __getitem__(self, name: str) -> NodeIO:
        if name not in self._entries:
            near = " or ".join(map(repr, near_names(name, self._entries)))
            raise NodeNotFoundError(f"no value of {name!r} was kept" + (f"; did you mean {near}?" if near else ""))
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<values of {len(self)} nodes>"
