"""A fixed thousand of the wrong files that benchmarks/fuzz.py makes: refused by an error of ours, or harmless."""

import sys
from pathlib import Path

import children
import pytest
from synthetic import random_graph

ROOT = Path(__file__).parent.parent
FILES = ("bytes", "zip", "json", "columns", "tables", "values", "page")


def fuzz(*options: str) -> None:
    children.run([sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), *options])


def only(*kinds: str) -> list[str]:
    return [option for kind in kinds for option in ("--only", kind)]


@pytest.mark.slow
def test_wrong_files_are_refused_or_harmless() -> None:
    fuzz("--cases", "800", *only(*FILES))


@pytest.mark.slow
def test_wrong_programs_and_replays_are_refused_or_harmless() -> None:
    fuzz("--cases", "200", *only("program", "replay"))


BREAKS = {
    "KeyError": "raise KeyError('x')",
    "SIGSEGV": "os.kill(os.getpid(), 11)",
    "changed environment": "os.environ['X'] = '1'",
    "changed canary": "open('canary', 'w').close()",
    "changed grad mode": "torch.set_grad_enabled(False)",
    "MemoryError": "bytearray(6 << 30)",
    "took more than": "time.sleep(0); pool.MOST_SECONDS = 0",
}
SCRIPT = """
import os, sys, time
sys.path.insert(0, {folder!r})
import fuzz, torch
from fuzzing import pool, seeds, user
one = seeds.Seed("one", ".atlas", open({file!r}, "rb").read())
fuzz.make_seeds = lambda: [one]
load, warm_up = user.Graph.load, fuzz.warm_up
for breaks in {breaks!r}:
    def broken(path, breaks=breaks):
        exec(breaks)
        return load(path)
    def first(*given, broken=broken):
        user.Graph.load = load
        warm_up(*given)
        user.Graph.load = broken
    fuzz.warm_up = first
    sys.argv = ["fuzz.py", "--cases", "3", "--only", "columns", "--keep", {keep!r}, "--workers", "1"]
    assert fuzz.main() == 1
"""


@pytest.mark.slow
def test_what_fails_is_found_and_can_be_reproduced(tmp_path: Path) -> None:
    """With a way of loading that breaks, every case fails and says how to see it again."""
    file = random_graph(12, 20).save(tmp_path / "one.atlas")
    values = {"folder": str(ROOT / "benchmarks"), "file": str(file), "keep": str(tmp_path / "kept")}
    script = SCRIPT.format(**values, breaks=list(BREAKS.values()))
    printed = children.python(script)
    for word in BREAKS:
        assert word in printed
    assert "--reproduce 0:0" in printed
    assert {path.name for path in (tmp_path / "kept").glob("*.atlas")} == {f"0-{case}.atlas" for case in range(3)}
