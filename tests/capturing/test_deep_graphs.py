"""Graphs that are deep: walked without recursion, recorded, and freed afterwards without ending the process."""

from __future__ import annotations

import children
import pytest
from support import sampled

# Freed by recursion, 50,000 nodes end a process that has the usual stack of 8 MB. Here each thread has a quarter of it.
NODES = 30_000
SMALL_STACK = """
import gc, resource, threading, time, torch, torchatlas as atlas
torch.set_num_threads(1)
threading.stack_size(2 << 20)
resource.setrlimit(resource.RLIMIT_STACK, (2 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
"""
PROGRAM = f"""{SMALL_STACK}
x = torch.ones(1, requires_grad=True)
y = x
for _ in range({NODES}):
    y = y * 1.0
def deep():
    h = x
    for _ in range({NODES}):
        h = h.sin()
    return h
graph = atlas.autograd_graph(y, saved=False)
assert len(graph) == {NODES + 1}
assert graph.recorded["topological_nr"][0] == {NODES}
"""
ENDINGS = {
    "dropped": "del y\ntime.sleep(0.3)",
    "dropped at the end": "del y",
    "never dropped": "",
    "after backward": "y.backward()\ndel y\ntime.sleep(0.3)",
    "used further": "z = (y + 1).sum()\ndel y\nz.backward()\nassert x.grad == 1\ndel z\ntime.sleep(0.3)",
    "walked twice": "graph = atlas.autograd_graph(y, saved=False)\ndel y\ntime.sleep(0.3)",
    "recorded": "rec = atlas.record_backward(y)\ndel y\nassert len(rec.graph) == len(graph)\ndel rec\ntime.sleep(0.3)",
    "its middle lives on": "h = deep()\natlas.lifecycle(h.sum())\ntime.sleep(0.3)\ndel h\ntime.sleep(0.3)",
    "one of two parts lives on": (
        "one, two = deep(), deep()\natlas.lifecycle(one + two)\ndel one\ntime.sleep(0.3)\ndel two\ntime.sleep(0.3)"
    ),
    "many walks leave no more than one": (
        "def kept(): return sum(type(each).__name__ == '_Slab' for each in gc.get_objects())\n"
        "before = kept()\nfor _ in range(3):\n    atlas.lifecycle(y)\nassert kept() == before > 0"
    ),
    "in a thread": "t = threading.Thread(target=globals().pop, args=('y',))\nt.start()\nt.join()",
}


@pytest.mark.parametrize("ending", sampled(ENDINGS, 4))
def test_a_deep_graph_is_freed(ending: str) -> None:
    assert children.python(PROGRAM + ENDINGS[ending] + "\nprint('fine')\n") == "fine\n"


RECORDED = f"""{SMALL_STACK}
x = torch.ones(1, requires_grad=True)
def program():
    y = x
    for _ in range({NODES}):
        y = y.sin()
    return y.sum()
"""
PASSES = {
    "backward": "with atlas.recording() as rec:\n    program().backward()",
    "grad": "with atlas.recording() as rec:\n    torch.autograd.grad(program(), x)",
    "made before": "y = program()\nwith atlas.recording() as rec:\n    y.backward()\ndel y",
    "after another": "with atlas.recording() as rec:\n    x.cos().backward()\n    program().backward()",
    "kept by a pass": (
        "with atlas.recording() as rec:\n    y = program()\n    y.backward(retain_graph=True)\n    (y + x).backward()\n"
        "    del y"
    ),
}


@pytest.mark.parametrize("passes", sampled(PASSES, 5))
def test_a_deep_graph_whose_backward_pass_was_recorded_is_freed(passes: str) -> None:
    """Each op of it asks torch which node runs."""
    ending = f"\nassert len(rec.graph) > {NODES}\ngc.collect()\ntime.sleep(0.3)\nprint('fine')\n"
    assert children.python(RECORDED + PASSES[passes] + ending) == "fine\n"
