"""Processes that tests start, each with a time-out from outside: what is not over by then is ended, and says where.

`run` starts programs. A test marked `child` runs in a process of its own as a whole, since what hangs in C++ can only
be ended from outside; marked tests of one module share a process until one of them hangs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

LIMIT = 240.0  # seconds for a program or a marked test: far more than any needs on a busy machine
_GRACE = 5.0  # seconds to say where it stands
_REPORTS = "TORCHATLAS_TEST_REPORTS"  # where the child of a marked test writes its reports


class Child:
    """A program in a session of its own, so that it can be ended together with all it has started."""

    def __init__(
        self, command: Sequence[str], output: Path, *, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> None:
        ours = {"PYTHONFAULTHANDLER": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **ours, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def end(self) -> None:
        """End it and all it has started. Each that is still there first writes the stacks of all its threads."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGABRT)
            try:
                self.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def run(*commands: Sequence[str], cwd: Path | None = None, limit: float = LIMIT, **env: str) -> list[str]:
    """Run programs side by side until all have ended well; what each printed, errors included."""
    with tempfile.TemporaryDirectory() as place:
        outputs = [Path(place, f"{number}.txt") for number in range(len(commands))]
        children = [Child(command, output, cwd=cwd, env=env) for command, output in zip(commands, outputs, strict=True)]
        end, late = time.monotonic() + limit, False
        try:
            while any(child.process.poll() is None for child in children):
                late = time.monotonic() > end
                if late or any(child.process.poll() for child in children):
                    break  # one has failed: the others would wait for it
                time.sleep(0.02)
        finally:
            for child in children:
                child.end()
        codes, printed = [child.process.returncode for child in children], [child.output for child in children]
    if late:
        pytest.fail(f"not over after {limit:g} s; where it stood:\n" + "\n".join(printed), pytrace=False)
    assert not any(codes), f"ended with {codes}:\n" + "\n".join(printed)
    return printed


def python(code: str, *arguments: str, cwd: Path | None = None, limit: float = LIMIT, **env: str) -> str:
    """What a Python program printed."""
    return run([sys.executable, "-c", code, *arguments], cwd=cwd, limit=limit, **env)[0]


# -- tests in a process of their own -------------------------------------------------------------------------------


class Marked:
    """Plugin: runs tests that are marked `child` in one, and hands on its reports as if they were of this process."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit, self._child, self._place = limit, None, Path(tempfile.mkdtemp(prefix="torchatlas-tests-"))
        self._reports: dict[str, list[dict[str, Any]]] = {}
        self._read = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if item.get_closest_marker("child") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_unconfigure(self) -> None:
        self._end()
        for file in self._place.iterdir():
            file.unlink()
        self._place.rmdir()

    def _reports_of(self, item: pytest.Item) -> list[Any]:
        if self._child is None or self._child.process.poll() is not None or item.nodeid not in self._asked:
            self._start(item)
        limit = getattr(item.get_closest_marker("child"), "kwargs", {}).get("limit", self._limit)
        end = time.monotonic() + limit
        while not self._done(item.nodeid):
            over, late = self._child.process.poll() is not None, time.monotonic() > end
            if (over and not self._done(item.nodeid)) or late:
                return [self._ended(item, f"not over after {limit:g} s" if late else "its process ended")]
            time.sleep(0.02)
        read = item.config.hook.pytest_report_from_serializable
        return [read(config=item.config, data=data) for data in self._reports.pop(item.nodeid)]

    def _start(self, item: pytest.Item) -> None:
        """A child for this test and those of its module that come after it."""
        self._end()
        self._asked = [
            other.nodeid for other in item.session.items if other.path == item.path and other.get_closest_marker("child")
        ]
        self._asked = self._asked[self._asked.index(item.nodeid) :]
        self._reports.clear()
        self._read = 0
        file = self._place / "reports"
        file.write_text("")
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-c"]
        command += [str(item.config.inipath), "--rootdir", str(item.config.rootpath), *self._asked]
        where = item.config.rootpath
        self._child = Child(command, self._place / "output", cwd=where, env={_REPORTS: str(file)})

    def _done(self, nodeid: str) -> bool:
        with (self._place / "reports").open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                data = json.loads(line)
                self._reports.setdefault(data["nodeid"], []).append(data)
        return any(data.get("when") == "teardown" for data in self._reports.get(nodeid, ()))

    def _ended(self, item: pytest.Item, why: str) -> pytest.TestReport:
        self._end()
        text = f"{why}; where it stood:\n{self._child_output}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child_output, self._child = self._child.output, None


class Reporting:
    """Plugin of the child: writes down each report as it comes."""

    def __init__(self, file: str) -> None:
        self._file = file

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with open(self._file, "a") as file:
            file.write(json.dumps(data) + "\n")


def plugin() -> Marked | Reporting:
    """What conftest.py registers: in the process of the suite the one, in a child the other."""
    return Reporting(os.environ[_REPORTS]) if _REPORTS in os.environ else Marked()
