"""torchatlas trace TARGET: trace a model by torch.export, say which sizes may vary, and save it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from torchatlas.analysis.cost import cost
from torchatlas.cli import _target
from torchatlas.cli._options import check_output, inputs_option, output_option, print_result, target_argument, verb
from torchatlas.tables import text_table
from torchatlas.units import format_count


@click.command()
@target_argument
@inputs_option
@click.option("--train", is_flag=True, help="Trace in training mode, with dropout and batch statistics.")
@click.option("--fixed", is_flag=True, help="Fix every size to that of the example.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Seconds of computing to spend on finding the sizes that may vary. Default: 45.",
)
@click.option("--follow", is_flag=True, help="If torch.export refuses: follow the path that these inputs take.")
@click.option("--no-weights", is_flag=True, help="Leave the weights out of the file.")
@output_option("Save the model, to be run again (.atlas), or its graph (.json, .png ...).")
@verb
def command(
    target: str,
    inputs: tuple[str, ...],
    train: bool,
    fixed: bool,
    budget: float | None,
    follow: bool,
    no_weights: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Trace TARGET with torch.export, and save it.

    Prints the nodes, the sizes that may vary and the notes. TARGET is module:callable or path.py:callable. The callable
    is a model, a model class, or a function without arguments that returns a model, (model, args) or
    (model, args, kwargs).

    \b
    torchatlas trace models.gpt:build --inputs int64:2,16 --output gpt.atlas
    torchatlas run gpt.atlas --inputs int64:4,32
    torchatlas trace models.gpt:build --inputs int64:2,16 --output gpt.onnx
    """
    check_output(output)
    with _target.opened(target, as_json) as (parsed, item):
        model, args, kwargs = _target.model_and_example(item, parsed, inputs)
        import torchatlas as atlas
        from torchatlas.execute.free_sizes import BUDGET_S

        traced = atlas.TracedModel(
            model.train(train),
            args,
            dynamic_shapes=None if fixed else "auto",
            kwargs=kwargs,
            fallback="capture" if follow else None,
            budget_s=BUDGET_S if budget is None else budget,
        )
    graph = traced.graph
    if output is not None and output.suffix in (".atlas", ".onnx") and graph.source == "export":
        traced.save(output, weights=not no_weights)
    elif output is not None:
        graph.save(output)
    counts = Counter(str(node.operation_type) for node in graph.where(kind="op"))
    report = cost(graph)
    facts: dict[str, Any] = {
        "target": str(parsed),
        "output": None if output is None else str(output),
        "nodes": len(graph),
        "input_shapes": {name: list(shape) for name, shape in traced.input_shapes.items()},
        "sizes": graph.metadata.get("sizes", {}),
        "input_sizes": [asdict(size) for size in traced.input_sizes],
        "operations": dict(counts.most_common()),
        "macs": report.macs,
        "uncosted": sorted(report.uncosted),
        "notes": list(graph.notes),
    }
    print_result(facts, _text(facts), as_json)


def _text(facts: dict[str, Any]) -> str:
    rows = [("nodes", f"{facts['nodes']:,}"), ("multiply-adds", format_count(facts["macs"]))]
    rows += [(f"input {name}", f"({', '.join(map(str, shape))})") for name, shape in facts["input_shapes"].items()]
    if facts["sizes"]:
        rows.append(("may vary", ", ".join(f"{name} ({size} here)" for name, size in facts["sizes"].items())))
    else:
        rows.append(("may vary", "no size"))
    fixed: dict[str, list[str]] = {}
    for size in facts["input_sizes"]:
        if size["symbol"] is None:
            fixed.setdefault(size["reason"], []).append(f"{size['input']}[{size['dim']}] = {size['size']}")
    rows += [("fixed", f"{', '.join(sizes)}: {reason}") for reason, sizes in fixed.items()]
    rows += [(kind, f"{count:,}") for kind, count in facts["operations"].items()]
    if facts["uncosted"]:
        rows.append(("without a cost formula", ", ".join(facts["uncosted"])))
    rows += [("note", note) for note in facts["notes"]]
    text = text_table((facts["target"], ""), rows, widest=400)
    return text + (f"\nwritten: {facts['output']}" if facts["output"] else "")
