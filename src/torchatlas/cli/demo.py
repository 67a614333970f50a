"""torchatlas demo: a training step of a small GPT: its summary, its graph in files, a picture, a page of the viewer."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import check_output, echo, progress, show, verb

NAMES = ("torchatlas-demo.atlas", "torchatlas-demo.json", "torchatlas-demo.png", "torchatlas-demo.html")


@click.command()
@click.option(
    "--output", type=click.Path(path_type=Path), default=".", show_default=True, help="The folder to write into."
)
@verb
def command(output: Path, as_json: bool) -> None:
    """Capture a training step of a small GPT and draw it.

    Prints its summary and saves its graph as .atlas, .json and .png, and as a page (.html) to explore in a browser.
    """
    files = [output / name for name in NAMES]
    for file in files:
        check_output(file)
    with progress("capturing one training step of a small GPT"):
        from torchatlas.demo import training_step

        graph = training_step()
        for file in files:
            graph.save(file)
    show(graph, as_json=as_json, files=[str(file) for file in files])
    if not as_json:
        echo(f"\nwritten: {', '.join(map(str, files))}")
        echo(f"next: open {files[-1]} in a browser, or: torchatlas view {files[0]}")
