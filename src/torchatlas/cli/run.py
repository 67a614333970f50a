"""torchatlas run FILE: run a saved traced model, print what it returns, and save what its nodes made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import allow_option, file_argument, output_option, print_result, progress, verb
from torchatlas.errors import FileFormatError, FileSystemError, InvalidInputError
from torchatlas.files import open_to_read
from torchatlas.tables import text_lines, text_table
from torchatlas.units import format_seconds


@click.command()
@file_argument
@click.option("--inputs", multiple=True, metavar="SHAPE", help="A random input: [NAME=][DTYPE:]SHAPE. Repeatable.")
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="FILE", help="Take inputs by name from a .safetensors file."
)
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Also show this node or module. Repeatable.")
@click.option("--values", type=click.Path(path_type=Path), metavar="FILE", help="Save what nodes make as .safetensors.")
@output_option("Save what the model returns as .safetensors.")
@click.option("--check-finite", is_flag=True, help="Stop at the first node that makes NaN or infinity, and name it.")
@allow_option
@verb
def command(
    file: Path,
    inputs: tuple[str, ...],
    data: Path | None,
    nodes: tuple[str, ...],
    values: Path | None,
    output: Path | None,
    check_finite: bool,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a saved traced model, without its code.

    FILE was written by torchatlas trace --output FILE.

    \b
    torchatlas run m.atlas --inputs 8,3,224,224 --node layer1 --values values.safetensors
    """
    from torchatlas.execute.node_values import ValueFile, checked_path
    from torchatlas.execute.traced import TracedModel

    for path in (values, output):
        if path is not None:
            checked_path(path)
    with progress(f"reading {file.name}"):
        traced = TracedModel.load(file, allow=allow)
    args, named = _target.example_inputs(inputs, fake=False)
    kwargs: dict[str, Any] = named if data is None else named | _tensors_in(data)
    if not args and not kwargs:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in traced.input_shapes.items())
        raise InvalidInputError(f"{file.name} takes {shapes}: pass --inputs or --data.")
    shown: dict[str, Any] = {}
    began = time.perf_counter()
    with progress(f"running {file.name}"):
        if check_finite:
            traced.run(*args, check_finite=True, **kwargs)
        if values is not None:
            result = traced.predict(*args, save=values, nodes=nodes or None, **kwargs).output
        else:
            node_values = traced.predict(*args, nodes=nodes, **kwargs)
            result, shown = node_values.output, {name: entry.output for name, entry in node_values.items()}
    seconds = time.perf_counter() - began
    flat = dict(_flat("output", result))
    if output is not None:
        with ValueFile(output) as out:
            for name, tensor in flat.items():
                out.write(name, tensor)
    facts = {
        "file": str(file),
        "seconds": seconds,
        "runs": 1,
        "values": [_facts(n, v) for name, value in shown.items() for n, v in _flat(name, value)],
        "outputs": [_facts(name, value) for name, value in flat.items()],
        "written": [str(path) for path in (values, output) if path is not None],
    }
    print_result(facts, _text(facts), as_json)


def _tensors_in(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        open_to_read(path).close()  # what is no file is refused: a named pipe would be waited for
        return dict(load_file(path))
    except SafetensorError as error:
        raise FileFormatError(f"{path}: not a .safetensors file: {error}.") from error
    except FileSystemError:
        raise
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror or error}") from error


def _flat(name: str, value: Any) -> list[tuple[str, Any]]:
    """The leaves of a result, each with its path."""
    if isinstance(value, dict):
        return [pair for key, part in value.items() for pair in _flat(f"{name}.{key}", part)]
    if isinstance(value, (list, tuple)):
        return [pair for index, part in enumerate(value) for pair in _flat(f"{name}.{index}", part)]
    return [(name, value)]


def _facts(name: str, value: Any) -> dict[str, Any]:
    import torch

    if not isinstance(value, torch.Tensor):
        return {"name": name, "value": value if isinstance(value, (bool, int, float, str)) else repr(value)}
    facts: dict[str, Any] = {"name": name, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if value.numel() and value.layout is torch.strided and not value.is_complex():
        numbers = value.detach().cpu().double()  # not every device has that
        finite = numbers[numbers.isfinite()]
        facts["not_finite"] = numbers.numel() - finite.numel()
        if finite.numel():
            facts |= {"min": finite.min().item(), "max": finite.max().item(), "mean": finite.mean().item()}
    return facts


def _text(facts: dict[str, Any]) -> str:
    rows = []
    for each in [*facts["values"], *facts["outputs"]]:
        if "value" in each:
            rows.append([each["name"], str(each["value"]), "", "", "", ""])
        else:
            figures = [f"{each[key]:.4g}" if key in each else "" for key in ("min", "mean", "max")]
            look = f"{each['dtype']}[{', '.join(map(str, each['shape']))}]"
            rows.append([each["name"], look, *figures, str(each.get("not_finite") or "")])
    table = text_table(["value", "", ">min", ">mean", ">max", ">not finite"], rows)
    lines = [f"ran in {format_seconds(facts['seconds'])} (one run)", *(f"written: {path}" for path in facts["written"])]
    return f"{table}\n{text_lines(lines)}"
