"""A Program -> torch.fx's graph, which a partition cuts: the same calls, with flat inputs and outputs.

torch.fx puts the names of arguments and attributes into Python source as they are, and runs it. A name from a file may
hold anything, a quotation mark and a call behind it say; one from a model may be a keyword, or hide a part of a module.
So every name is made safe first.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any

from torch import fx, nn

from torchatlas.execute.program import Mode, Program, filled

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[\w\-+:/ ]+")  # of a ModuleDict, say: it stands in quotation marks then


def to_fx(program: Program, constant: Callable[[str], Any]) -> tuple[fx.GraphModule, dict[str, str]]:
    """A program as torch.fx's graph; `constant` gives the model's tensors by name.

    The names that come with it lead from the nodes of torch.fx to the instructions that are nodes.
    """
    graph, root, names = fx.Graph(), dict[str, Any](), dict[str, str]()
    nodes: list[Any] = [None] * len(program.names)  # by register
    taken: set[str] = set()
    for register in program.inputs:
        taken.add(name := argument_name(program.names[register], taken))
        nodes[register] = graph.placeholder(name)
    for register, name in program.constants.items():
        root[written := attribute_name(name, register)] = constant(name)
        nodes[register] = graph.get_attr(written)
    for register, item in program.attached.items():
        root[f"attached_{register}"] = item
        nodes[register] = graph.get_attr(f"attached_{register}")
    modes: list[tuple[str, tuple[Any, ...]]] = []
    for step in program.instructions:
        if step.function is Mode:
            modes.append(step.args)
        elif step.function is Mode.end:
            modes.pop()
        else:
            # `target` is the bare kernel of an operator, which torch.fx cannot name, unless it is a function of ours
            target = step.target if isinstance(step.target, FunctionType) else step.function
            target = _within(target, tuple(modes)) if modes else target
            args, kwargs = filled(step.args, nodes), filled(step.kwargs, nodes)
            node = nodes[step.result] = graph.create_node("call_function", target, args, kwargs, step.name or None)
            if step.name:
                names[node.name] = step.name
    graph.output(tuple(filled(program.outputs, nodes)))
    return fx.GraphModule(root, graph), names


def _within(function: Any, modes: tuple[tuple[str, tuple[Any, ...]], ...]) -> Any:
    """A function as it runs inside a block of the program: without gradients, or under autocast."""

    def run(*args: Any, **kwargs: Any) -> Any:
        begun = [Mode(kind, settings) for kind, settings in modes]
        try:
            return function(*args, **kwargs)
        finally:
            for mode in reversed(begun):
                mode.end()

    run.__name__ = run.__qualname__ = argument_name(getattr(function, "__name__", "call"))
    return run


def argument_name(name: str, taken: Collection[str] = ()) -> str:
    """A name for an argument that looks like `name` and is not among those taken.

    >>> argument_name("past.key", {"past_key"}), argument_name("class"), argument_name("x): import os #")
    ('past_key_1', 'input_class', 'x___import_os__')
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not _WORD.fullmatch(plain) or keyword.iskeyword(plain):
        plain = f"input_{plain}"
    number, candidate = 0, plain
    while candidate in taken:
        number += 1
        candidate = f"{plain}_{number}"
    return candidate


def attribute_name(name: str, number: int) -> str:
    """The path of an attribute, where torch.fx can write it down; else one made of a number that no other has.

    >>> attribute_name("layers.0.weight", 7), attribute_name('x", print("!"), "', 7), attribute_name("code.bias", 7)
    ('layers.0.weight', 'held_7', 'held_7')
    """
    for depth, part in enumerate(name.split(".")):
        written = _KEY.fullmatch(part) and not keyword.iskeyword(part)
        if not written or hasattr(nn.Module if depth else fx.GraphModule, part):
            return f"held_{number}"
    return name
