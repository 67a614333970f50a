"""A test that hangs in C++ with the interpreter's lock taken is ended from outside, named, and says where it stood."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import children
import pytest

HANGS = """
import ctypes

def hangs():
    ctypes.PyDLL(None).pause()  # PyDLL keeps the GIL: no other thread of Python runs, no signal handler either
"""
TESTS = f"""
import pytest
{HANGS}
def test_first(): pass

@pytest.mark.child(limit=8)
def test_hangs(): hangs()

@pytest.mark.child
def test_dies(): ctypes.string_at(0)

@pytest.mark.child
def test_fails(): assert "this" == "that"

@pytest.mark.child
def test_skips(): pytest.skip("for a reason")

@pytest.mark.child
def test_passes(): print("not seen")

def test_last(): pass
"""


def project(folder: Path, tests: str) -> list[str]:
    """A suite with our plugin; the command that runs it."""
    (folder / "test_it.py").write_text(tests)
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(children.__file__).parent)!r})\nimport children\n"
        "def pytest_configure(config): config.pluginmanager.register(children.plugin(), 'children')\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = child\nfaulthandler_exit_on_timeout = true\n")
    return [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]


def test_a_marked_test_that_hangs_or_dies_fails_alone(tmp_path: Path) -> None:
    (printed,) = children.run(project(tmp_path, TESTS), cwd=tmp_path, limit=200, codes=(1,))
    outcomes = [line.split(" - ")[0] for line in printed.out.splitlines() if line.startswith(("PASSED", "FAILED"))]
    assert outcomes == [
        *(f"PASSED test_it.py::test_{name}" for name in ("first", "passes", "last")),
        *(f"FAILED test_it.py::test_{name}" for name in ("hangs", "dies", "fails")),
    ]
    assert "not over after 8 s; where it stood:" in printed.out
    assert 'test_it.py", line 7 in hangs' in printed.out
    assert "its process ended; where it stood:" in printed.out
    assert "Fatal Python error: Segmentation fault" in printed.out
    assert "AssertionError: assert 'this' == 'that'" in printed.out
    assert "SKIPPED [1] test_it.py:21: for a reason" in printed.out


def test_a_worker_that_hangs_is_ended_and_the_others_tests_run(tmp_path: Path) -> None:
    """What any test can do in `make test`: pyproject.toml sets the same options, with more patience."""
    command = project(tmp_path, f"{HANGS}\ndef test_hangs(): hangs()\n\ndef test_after(): pass\n")
    (printed,) = children.run(
        [*command, "-n", "1", "-o", "faulthandler_timeout=8"], cwd=tmp_path, limit=200, codes=(1,)
    )
    assert "FAILED test_it.py::test_hangs" in printed.out
    assert "PASSED test_it.py::test_after" in printed.out
    assert 'test_it.py", line 5 in hangs' in printed.err


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_all_it_has_started(tmp_path: Path) -> None:
    code = (
        f"{HANGS}\nimport subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"  # not Python, which would write its stack, too
        "print(child.pid, flush=True)\nhangs()"
    )
    with pytest.raises(pytest.fail.Exception, match="not over after 25 s; where it stood") as failed:
        children.python(code, limit=25)
    text = str(failed.value)
    assert "in hangs" in text
    pid = next(line for line in text.splitlines() if line.isdecimal())
    ps = ["ps", "-o", "stat=", "-p", pid]
    for _ in range(600):  # a killed process may take a moment to go
        state = subprocess.run(ps, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
        if state in ("", "Z", "Zs"):  # gone, or waiting for whoever adopts it
            return
        time.sleep(0.1)
    pytest.fail(f"the process that it had started is still there: {state}")
