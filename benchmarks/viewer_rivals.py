"""The graphs of bench_viewer.py in Model Explorer and torchvista.

They live in an environment of their own, outside the project, made at the first use: they need packages that we do not.
Model Explorer gets the same graph as its JSON, with phases and modules as layers. torchvista gets the model and records
a forward pass itself: it knows neither backward nor optimizer. Neither page says when it is done: what is measured is
when its picture has stopped changing, from screenshots.
"""

from __future__ import annotations

import json
import os
import queue
import site
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torchatlas.graph import Graph

_PACKAGES = ("ai-edge-model-explorer", "ai-edge-model-explorer-adapter", "torchvista")
_NEEDS = ("ipython", "flask", "dacite", "portpicker", "requests", "termcolor", "watchdog")
LIMIT = 120  # seconds, for each step

SERVE = """
import sys
import model_explorer
config = model_explorer.config()
config.add_model_from_path(sys.argv[1])
model_explorer.visualize_from_config(config, host="127.0.0.1", port=0, no_open_in_browser=True)
"""

TRACE = """
import sys, time
sys.path[:0] = sys.argv[3:]
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
import bench_viewer
name, path = sys.argv[1:3]
from support import giant_llama, load_torchvision
load_torchvision()
import torchvista
if name == "large":
    import bench_pictures
    from torch import nn
    blocks = lambda stage: [bench_pictures.Block(8, 1 + (number + stage) % 7) for number in range(90)]
    model, inputs = nn.Sequential(*(nn.Sequential(*blocks(stage)) for stage in range(56))), torch.randn(2, 8)
else:
    FakeTensorMode(allow_non_fake_inputs=True).__enter__()
    layers = {"llama13k": {"num_hidden_layers": 37}}.get(name, {})
    model = bench_viewer._gpt2() if name == "gpt2" else giant_llama("405B", **layers)
    inputs = torch.zeros(1, 64 if name == "gpt2" else 2048, dtype=torch.long)
start = time.perf_counter()
torchvista.trace_model(model.eval(), inputs, export_path=path)
print("seconds", time.perf_counter() - start)
"""


def rows(name: str, graph: Graph, folder: Path, browser: Any) -> Iterator[str]:
    """A line for each of them: what it took, or what went wrong."""
    from playwright.sync_api import Error as PageError

    python = _environment()
    for title, measure in (("Model Explorer", _model_explorer), ("torchvista, forward only", _torchvista)):
        try:
            answer = measure(python, name, graph, folder, browser)
        except (PageError, RuntimeError, subprocess.SubprocessError) as error:
            answer = f"failed: {str(error).strip().splitlines()[0][:200]}"
        yield f"- {name}, {title}: {answer}"


def _environment() -> str:
    """The Python of an environment that sees our packages and has theirs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchatlas"
    folder = Path(os.environ.get("VIEWER_RIVALS", cache / "viewer-rivals"))
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        print(f"Installing Model Explorer and torchvista into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *_NEEDS], check=True)
        subprocess.run([*pip, "--no-deps", *_PACKAGES], check=True)  # they pin versions of what we have
        packages = next((folder / "lib").glob("python*")) / "site-packages"
        (packages / "zz_torchatlas.pth").write_text("\n".join(site.getsitepackages()))
    return python


# -- Model Explorer ----------------------------------------------------------------------------------------------------


def as_model_explorer(graph: Graph) -> dict[str, Any]:
    """The graph in Model Explorer's words: every node with its phase and modules as namespace."""
    nodes = []
    for node in graph.nodes:
        modules = [part for part in (node.module_name or "").split(".") if part]
        edges = [
            {"sourceNodeId": str(source), "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
            for place, source in enumerate(node.parent_ids)
        ]
        nodes.append(
            {
                "id": str(node.id),
                "label": node.operation or str(node.kind),
                "namespace": "/".join([str(node.phase or "other"), *modules]),
                "incomingEdges": edges,
                "attrs": [{"key": "name", "value": node.name}],
                "outputsMetadata": [
                    {"id": str(place), "attrs": [{"key": "shape", "value": str(shape)}]}
                    for place, shape in enumerate(node.output_shapes)
                ],
            }
        )
    return {"label": "graph", "graphs": [{"id": "graph", "nodes": nodes}]}


def _model_explorer(python: str, name: str, graph: Graph, folder: Path, browser: Any) -> str:
    path = folder / f"{name}.model_explorer.json"
    path.write_text(json.dumps(as_model_explorer(graph), separators=(",", ":")))
    with _served(python, path) as address:
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.set_default_timeout(LIMIT * 1000)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        try:
            start = time.perf_counter()
            page.goto(address)
            page.locator("canvas.main").wait_for()
            ready = time.perf_counter() - start
            _until_quiet(page, None)
            opened = _open_something(page)
            before = page.screenshot()
            page.locator(".bubble.expand-all").first.click()
            expanded = _until_quiet(page, before)
            others = sorted(
                {url.split("/")[2] for url in requests if "127.0.0.1" not in url and url.startswith("http")}
            )
        finally:
            _close(page)
    size = path.stat().st_size / 1e6
    return (
        f"{size:.1f} MB of JSON and a server; drawn after {ready:.1f} s; a group opens in {opened}; "
        f"everything opens in {expanded}; asks {', '.join(others) or 'nobody else'}"
    )


@contextmanager
def _served(python: str, path: Path) -> Iterator[str]:
    """The address of a server that shows a file; the server is ended afterwards."""
    command = [python, "-u", "-c", SERVE.replace("port=0", f"port={_free_port()}"), str(path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.Queue[str] = queue.Queue()
    assert server.stdout is not None
    threading.Thread(target=lambda out: [lines.put(line) for line in out], args=(server.stdout,), daemon=True).start()
    try:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            with suppress(queue.Empty):
                if (line := lines.get(timeout=1)).startswith("http"):
                    yield line.strip()
                    return
            if server.poll() is not None:
                break
        raise RuntimeError("Model Explorer's server did not start")
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _open_something(page: Any) -> str:
    """Double-click down the middle of the canvas until a box opens."""
    box = page.locator("canvas.main").bounding_box()
    for y in range(int(box["y"]) + 60, int(box["y"] + box["height"]) - 20, 24):
        before = page.screenshot()
        page.mouse.dblclick(box["x"] + box["width"] / 2, y)
        page.wait_for_timeout(150)
        if page.screenshot() != before:
            return "about " + _until_quiet(page, before)
    return "no time: none was found"


def _until_quiet(page: Any, before: bytes | None) -> str:
    """Seconds until the picture differs from the one before and stays the same for a second; as words."""
    from playwright.sync_api import TimeoutError as PageTimeout

    start, changed, last = time.perf_counter(), 0.0, before
    while (now := time.perf_counter() - start) < LIMIT:
        try:
            picture = page.screenshot()
        except PageTimeout:
            return f"more than {LIMIT} s: the page no longer answers"
        taken = time.perf_counter() - start
        if picture != last or page.get_by_text("Please wait").count():
            last, changed = picture, taken
        elif now - changed > 1.0 and (before is None or changed > 0 or now > LIMIT / 4):
            return f"{changed:.1f} s" if changed else f"more than {now:.0f} s: nothing changed"
        page.wait_for_timeout(100)
    return f"more than {LIMIT} s"


def _close(page: Any) -> None:
    with suppress(Exception):  # a page that is stuck may not close; the browser goes away afterwards
        page.context.close()


# -- torchvista --------------------------------------------------------------------------------------------------------


def _torchvista(python: str, name: str, graph: Graph, folder: Path, browser: Any) -> str:
    path = folder / f"{name}.torchvista.html"
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent / "tests"), str(here.parent / "src")]
    command = [python, "-c", TRACE, name, str(path), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * LIMIT)
    traced = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith("seconds")), None)
    words = (
        f"recorded and written in {float(traced):.1f} s" if traced else f"fails: {done.stderr.strip().splitlines()[-1]}"
    )
    if not path.exists():
        return words
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(LIMIT * 1000)
    try:
        start = time.perf_counter()
        page.goto(path.resolve().as_uri(), wait_until="commit")
        page.locator("svg g").nth(5).wait_for(state="attached")  # boxes and lines are groups
        drawn = f"drawn after {time.perf_counter() - start:.1f} s"
    except Exception as error:
        drawn = f"not drawn within {LIMIT} s ({type(error).__name__})"
    finally:
        _close(page)
    return f"{path.stat().st_size / 1e6:.1f} MB; {words}; {drawn}"
