"""A graph, a program and files of somebody who wants to control the reader's terminal or spreadsheet."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph, Module, OperationType, Tables
from torchatlas.graph.arguments import Call, Constant, decode, encode

# Sets a window's title, clears the screen, turns the writing direction, marks up, ends a line in three ways, changes
# the colour by a C1 control, hides and deletes. It begins like a formula, and holds no dot or slash:
# those would divide module and file names.
HOSTILE = "=cmd|'\x1b]0;owned\x07\x1b[2J\u202e\u2066[red][link=x]\u2028\u2029\x85\x9b31m\u200b\ufeff\x7f\x08\r\n\t"
NO_UNICODE = HOSTILE + "\ud800"  # half a surrogate pair: print raises, and no file holds it
MARK = "cmd"  # what is still there when it is shown

# All that we send to a terminal besides text: rich's colours, and a progress bar's cursor.
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[12]?[KA])|\r(?=\x1b\[(?:2K|1A)|\n|$)", re.MULTILINE)


def forbidden(text: str) -> set[str]:
    """The characters of a text, besides line feeds, that a terminal obeys or does not show, and what UTF-8 lacks."""
    return {character for character in text if not character.isprintable()} - {"\n"}


def hostile_graph(text: str = HOSTILE, *, operations: bool = True) -> Graph:
    """A recorded training step in which every text is hostile; without `operations` those keep their names."""
    graph = _step()
    tables = graph.tables
    known = (OperationType.MATMUL, OperationType.CONVOLUTION)  # so that something is left to be costed
    hostile = Tables(
        operations=[
            _suffixed(one, text, "name") if operations and one.type not in known else one for one in tables.operations
        ],
        layouts=tables.layouts,  # dtypes and devices are words: no file holds others
        arguments=[_call(one, text) for one in tables.arguments] if operations else tables.arguments,
        sources=[_suffixed(one, text, "file", "function", "text") for one in tables.sources],
        modules=[Module(_path(one.path, text), one.type + text, one.kind) for one in tables.modules],
        names=[_path(name, text) for name in tables.names],
        threads=[name + text for name in tables.threads],
        devices=tables.devices,
    )
    metadata = graph.metadata | {"torch": text, text: {text: [text]}, "sizes": {text: 4}}
    return Graph(
        graph.columns,
        hostile,
        source=graph.source,
        notes=[*graph.notes, text],
        metadata=metadata,
        recorded=graph.recorded,
    )


def _step() -> Graph:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    return atlas.capture(model, torch.randn(2, 3, 4, 4), backward=True, optimizer=torch.optim.SGD, values="stats")


def _suffixed(row: Any, text: str, *fields: str) -> Any:
    return dataclasses.replace(row, **{name: getattr(row, name) + text for name in fields})


def _path(path: str, text: str) -> str:
    """Each part of a module's path, so that it stays a tree."""
    return ".".join(text + part + text for part in path.split(".")) if path else ""


def _call(arguments: str, text: str) -> str:
    call = decode(arguments)
    more = {"hostile" + text: [text, Constant("opaque", text)]}
    return encode(Call(call.args, {**(call.kwargs or {}), **more}))


def hostile_model(text: str = NO_UNICODE) -> tuple[nn.Module, torch.Tensor]:
    """A model whose class and modules are named so, and an example."""
    layer = type("Layer" + HOSTILE, (nn.Linear,), {})
    model = type("Model" + HOSTILE, (nn.Sequential,), {})()
    for number in range(3):
        model.add_module(f"{number}{text}", layer(4, 4))
        model.add_module(f"relu{number}{text}", nn.ReLU())
    return model, torch.randn(2, 4)


FILE_NAME = HOSTILE.replace("\n", "")  # a target is one line
PROGRAM = f"""
import sys
import torch
from torch import nn

HOSTILE = {HOSTILE!r}

def forward(self, x):
    return self.inside(x).relu()  # {FILE_NAME.replace(chr(13), "")}

forward.__code__ = forward.__code__.replace(co_name=HOSTILE, co_qualname=HOSTILE)
Model = type(HOSTILE, (nn.Module,), {{"forward": forward}})

def build():
    model = Model()
    model.add_module("inside", nn.Sequential())
    model.inside.add_module(HOSTILE, nn.Linear(4, 4))
    model.register_parameter("unused" + HOSTILE, nn.Parameter(torch.ones(2)))
    return model, (torch.randn(2, 4),)

def broken():
    raise type("Error" + HOSTILE, (Exception,), {{}})(HOSTILE)

if __name__ == "__main__":
    model, example = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(*example).sum() * float("nan")).backward()
    optimizer.step()
    if "fail" in sys.argv:
        broken()
    if "exit" in sys.argv:
        sys.exit(HOSTILE)
"""
