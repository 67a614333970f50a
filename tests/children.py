"""Processes that tests start, each with a time-out from outside: what is not over by then is ended, and says where.

`run` starts programs. A test marked `child` runs in a process of its own as a whole, since what hangs in C++ can only
be ended from outside; marked tests of one module share a process until one of them hangs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LIMIT = 240.0  # seconds for a program or a marked test: far more than any needs on a busy machine
_GRACE = 5.0  # seconds to say where it stands
_REPORTS = "TORCHATLAS_TEST_REPORTS"  # where the child of a marked test writes its reports


class Printed(NamedTuple):
    out: str
    err: str


class Child:
    """A program in a session of its own, so that it can be ended together with all it has started."""

    def __init__(
        self, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        ours = {"PYTHONFAULTHANDLER": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        out, err = self._files = [tempfile.TemporaryFile("w+") for _ in "oe"]  # noqa: SIM115  # a pipe would fill up
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **ours, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def end(self) -> Printed:
        """End it and all it has started. Each that is still there first writes the stacks of all its threads."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        printed = []
        for file in self._files:
            file.seek(0)
            printed.append(file.read())
            file.close()
        return Printed(*printed)


def run(
    *commands: Sequence[str],
    cwd: Path | None = None,
    limit: float = LIMIT,
    codes: Container[int] = (0,),
    **env: str,
) -> list[Printed]:
    """Run programs side by side until all have ended, with one of `codes`; what each printed."""
    end, late = time.monotonic() + limit, False
    children: list[Child] = []
    try:
        children += (Child(command, cwd=cwd, env=env) for command in commands)
        while any(child.process.poll() is None for child in children):
            late = time.monotonic() > end
            if late or any(child.process.poll() not in (None, 0) for child in children):
                break  # one has failed: the others would wait for it
            time.sleep(0.02)
    finally:
        printed = [child.end() for child in children]
    found = [child.process.returncode for child in children]
    if late or any(code not in codes for code in found):
        why = f"not over after {limit:g} s; where it stood:" if late else f"ended with {found}:"
        pytest.fail("\n".join([why, *(text for each in printed for text in each)]), pytrace=False)
    return printed


def python(code: str, *arguments: str, cwd: Path | None = None, limit: float = LIMIT, **env: str) -> str:
    """What a Python program printed."""
    return run([sys.executable, "-c", code, *arguments], cwd=cwd, limit=limit, **env)[0].out


# -- tests in a process of their own -----------------------------------------------------------------------------------


class Marked:
    """Plugin: runs tests that are marked `child` in one, and hands on its reports as if they were of this process."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._tests: list[str] = []  # that the child runs
        self._reports: dict[str, list[dict[str, Any]]] = {}  # by test: that it has begun, then its reports
        self._file = tempfile.NamedTemporaryFile("r")  # noqa: SIM115

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        mark = item.get_closest_marker("child")
        if mark is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item, mark.kwargs.get("limit", LIMIT)):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        item.session._setupstate.teardown_exact(nextitem)  # what the test before this one has left for it
        return True

    def pytest_unconfigure(self) -> None:
        self._end()
        self._file.close()

    def _reports_of(self, item: pytest.Item, limit: float) -> list[pytest.TestReport]:
        if self._child is None or item.nodeid not in self._tests:
            self._start(item)
        assert self._child is not None
        began, patience = time.monotonic(), LIMIT  # to start
        while True:
            over, late = self._child.process.poll() is not None, time.monotonic() > began + patience
            self._read()
            if patience is not limit and item.nodeid in self._reports:
                began, patience = time.monotonic(), limit
            if any(data["when"] == "teardown" for data in self._reports.get(item.nodeid, ())):
                read = item.config.hook.pytest_report_from_serializable
                return [read(config=item.config, data=data) for data in self._reports.pop(item.nodeid)[1:]]
            if over or late:
                why = "its process ended" if over else f"not over after {limit:g} s"
                text = "\n".join([f"{why}; where it stood:", *self._end()])
                return [pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")]
            time.sleep(0.02)

    def _start(self, item: pytest.Item) -> None:
        """A child for this test and those of its module that come after it."""
        self._end()
        marked = [each for each in item.session.items if each.path == item.path and each.get_closest_marker("child")]
        self._tests = [each.nodeid for each in marked[marked.index(item) :]]
        config, file = item.config, self._file.name
        Path(file).write_text("")
        self._file.seek(0)
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
        command += ["-c", str(config.inipath), "--rootdir", str(config.rootpath), *self._tests]
        self._child = Child(command, cwd=config.rootpath, env={_REPORTS: file})

    def _read(self) -> None:
        while True:
            at = self._file.tell()
            if not (line := self._file.readline()).endswith("\n"):
                self._file.seek(at)
                return
            data = pickle.loads(bytes.fromhex(line))
            self._reports.setdefault(data["nodeid"], []).append(data)

    def _end(self) -> Printed:
        child, self._child, self._tests = self._child, None, []
        self._reports.clear()
        return Printed("", "") if child is None else child.end()


class Reporting:
    """Plugin of such a child: writes each report down as it comes."""

    def __init__(self, file: str) -> None:
        self._file = file

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"nodeid": nodeid, "when": "start"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _write(self, data: dict[str, Any]) -> None:
        with open(self._file, "a") as file:
            file.write(pickle.dumps(data).hex() + "\n")  # JSON would make lists of tuples


def plugin() -> Marked | Reporting:
    """What conftest.py registers: in the process of the suite the one, in a child the other."""
    return Reporting(os.environ.pop(_REPORTS)) if _REPORTS in os.environ else Marked()
