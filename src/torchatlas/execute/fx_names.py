"""Names of inputs and weights -> names that torch.fx may write into the code it makes of a graph.

torch.fx puts the names of arguments and attributes into Python source as they are, and runs it. A name from a file may
hold anything, a quotation mark and a call behind it say; one from a model may be a keyword, or hide a part of a module.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection

from torch import fx, nn

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[\w\-+:/ ]+")  # of a ModuleDict, say: it stands in quotation marks then


def argument_name(name: str, taken: Collection[str] = ()) -> str:
    """A name for an argument that looks like `name` and is not among those taken.

    >>> argument_name("past.key", {"past_key"}), argument_name("class"), argument_name("x): import os #")
    ('past_key_1', 'input_class', 'x___import_os__')
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not _WORD.fullmatch(plain) or keyword.iskeyword(plain):
        plain = f"input_{plain}"
    number, found = 0, plain
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    return found


def attribute_name(name: str, number: int) -> str:
    """The path of an attribute, where torch.fx can write it down; else one made of a number that nobody else has.

    >>> attribute_name("layers.0.weight", 7), attribute_name('x", print("!"), "', 7), attribute_name("code.bias", 7)
    ('layers.0.weight', 'held_7', 'held_7')
    """
    for depth, part in enumerate(name.split(".")):
        written = _KEY.fullmatch(part) and not keyword.iskeyword(part)
        if not written or hasattr(nn.Module if depth else fx.GraphModule, part):
            return f"held_{number}"
    return name
