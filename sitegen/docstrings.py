"""A docstring in Google style -> its sections: what it says, Args, Returns, Raises, Example."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example):$")
_ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")


@dataclass
class Docstring:
    text: str = ""  # all before the first section
    args: dict[str, str] = field(default_factory=dict)
    returns: str = ""
    raises: dict[str, str] = field(default_factory=dict)
    example: str = ""

    @property
    def summary(self) -> str:
        return self.text.split("\n\n")[0]


def parsed(text: str | None) -> Docstring:
    """The sections of a docstring.

    >>> doc = parsed("Add.\\n\\nArgs:\\n    a, b: Numbers,\\n        whole ones.\\nReturns:\\n    Their sum.")
    >>> doc.args, doc.returns
    ({'a': 'Numbers, whole ones.', 'b': 'Numbers, whole ones.'}, 'Their sum.')
    """
    blocks: dict[str, list[str]] = {"": []}
    name = ""
    for line in inspect.cleandoc(text or "").splitlines():
        if match := _SECTION.match(line):
            name = match[1]
            blocks[name] = []
        elif name and line and not line.startswith(" "):
            raise ValueError(f"the section {name} is followed by {line!r}; sections end a docstring")
        else:
            blocks[name].append(line)
    bodies = {name: inspect.cleandoc("\n".join(["", *lines])) for name, lines in blocks.items()}
    return Docstring(
        text=bodies[""].strip(),
        args=_entries(bodies.get("Args", "")),
        returns=_joined(bodies.get("Returns", bodies.get("Yields", ""))),
        raises=_entries(bodies.get("Raises", "")),
        example=bodies.get("Example", "").strip(),
    )


def _entries(body: str) -> dict[str, str]:
    """`name: text`, or `one, other: text`; what is indented goes on with the entry before it."""
    entries: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith(" ") and entries:
            entries[-1][1].append(line.strip())
        elif match := _ENTRY.match(line):
            entries.append((match[1], [match[2]]))
        elif line.strip():
            raise ValueError(f"expected `name: text`, got {line!r}")
    return {name: " ".join(lines) for names, lines in entries for name in names.split(", ")}


def _joined(body: str) -> str:
    return " ".join(body.split())
