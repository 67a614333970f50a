"""The page of the real Model Explorer, in a real browser, has every node, edge and layer of ours."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from browser import READY_MS, chromium
from support import tiny_gpt2

import torchatlas as atlas
from torchatlas.export.model_explorer import namespace
from torchatlas.export.namespaces import places

pytest.importorskip("model_explorer")

# The page computes its graph in a worker. This keeps what the worker sends.
KEEP_GRAPHS = """
window.graphs = [];
const Original = window.Worker;
window.Worker = class extends Original {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", event => window.graphs.push(...[event.data?.modelGraph].filter(Boolean)));
  }
}
"""
FOLDED = "___group___"  # ends the id of a layer


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The address that `model-explorer` prints, while it runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-u", "-m", "model_explorer", *arguments, f"--port={port}", "--no_open_in_browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
            until = time.monotonic() + READY_MS / 1000
            while time.monotonic() < until:  # it prints the address before it listens
                try:
                    urlopen(f"http://localhost:{port}").close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield address
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.child(limit=240)
@pytest.mark.parametrize("suffix", [".model-explorer.json", ".atlas"])
def test_the_page_has_every_node_edge_and_layer(tmp_path: Path, suffix: str) -> None:
    model, inputs = tiny_gpt2()
    graph = atlas.capture(model, kwargs=inputs, loss=lambda output: output.loss, optimizer=torch.optim.AdamW)
    path = str(graph.save(tmp_path / f"step{suffix}"))
    extension = ["--extensions=torchatlas.integrations.model_explorer"] if suffix == ".atlas" else []
    with served(path, *extension) as address, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(READY_MS)
        page.add_init_script(KEEP_GRAPHS)
        page.goto(address)
        page.get_by_text("op node count").wait_for()
        (found, *_) = page.evaluate(
            "graphs.map(graph => Object.values(graph.nodesById).map("
            "node => [node.id, node.namespace, (node.incomingEdges || []).map("
            "edge => [edge.sourceNodeId, edge.sourceNodeOutputId, edge.targetNodeInputId])]))"
        )
    nodes = {name: edges for name, _, edges in found if not name.endswith(FOLDED)}
    layers = {name.removesuffix(FOLDED) for name, _, _ in found if name.endswith(FOLDED)}
    names = graph.index.names()
    assert set(nodes) == set(names)
    shown = sorted((target, *edge) for target, edges in nodes.items() for edge in edges)
    assert shown == sorted(
        (names[edge.target_id], names[edge.source_id], str(edge.output_index or 0), str(edge.input_index or 0))
        for edge in graph.edges
        if edge.kind == "data"
    )
    spaces, place = places(graph)
    ops_in: dict[str, int] = {}
    for at in place.tolist():
        parts = namespace(spaces[at]).split("/") if spaces[at] else []
        for end in range(1, len(parts) + 1):
            ops_in["/".join(parts[:end])] = ops_in.get("/".join(parts[:end]), 0) + 1
    assert {layer for layer, ops in ops_in.items() if ops > 1} <= layers  # it folds a layer of one op into that op
    assert len(layers) > 20
